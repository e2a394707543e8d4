//! `bench`: the arguments of `rgaps-bench`, and its reports.

mod figures;

use crate::args::{Bench, BenchNamespaces, BenchPeer, BenchTransport, BenchWait, Common};
use crate::output::Output;
use crate::{domain, session};
use rgaps_bench::{LatencyOptions, LinkOptions, Namespaces, Wait};
use rgaps_session::PeerUse;
use serde::Serialize;

/// Bytes arrived that were not those that were sent, or did not arrive: no figure counts then.
#[derive(Debug, thiserror::Error)]
#[error("{lost} messages were lost and {corrupt} had wrong contents, so the figures above are not valid")]
struct Broken {
    lost: u64,
    corrupt: u64,
}

pub fn bench(common: &Common, bench: Bench, output: &mut Output) -> anyhow::Result<()> {
    let config = session::config(common)?;
    let counts = |counts: Vec<u32>| -> Vec<usize> {
        counts.into_iter().map(|count| count as usize).collect()
    };
    match bench {
        Bench::Latency {
            domain,
            size,
            subscribers,
            messages,
            wait,
            kernel_us,
            pause_us,
            header,
        } => {
            let options = LatencyOptions {
                domain: domain::parse(&domain)?,
                size: size.0,
                subscribers: subscribers as usize,
                messages: messages as usize,
                wait: way(wait),
                kernel_us,
                pause_us,
                header_bytes: header.unwrap_or_default().into(),
            };
            let report = rgaps_bench::latency(&config, &options)?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
        Bench::Handoff {
            gpus,
            size,
            kernel_us,
            messages,
            wait,
        } => {
            let gpus = [gpus[0], *gpus.last().unwrap_or(&gpus[0])];
            let sizes: Vec<u64> = size.iter().map(|size| size.0).collect();
            let messages = messages as usize;
            let report =
                rgaps_bench::handoff(&config, gpus, &sizes, &kernel_us, messages, way(wait))?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
        Bench::Spread {
            from,
            to,
            peer,
            readers,
            size,
            messages,
        } => {
            let (from, to) = (domain::parse(&from)?, domain::parse(&to)?);
            let peer = match peer {
                BenchPeer::Auto => PeerUse::Auto,
                BenchPeer::Copy => PeerUse::Copy,
                BenchPeer::Map => PeerUse::Map,
            };
            let (readers, messages) = (readers as usize, messages as usize);
            let report = rgaps_bench::spread(&config, from, to, peer, readers, size.0, messages)?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
        Bench::Alloc {
            processes,
            operations,
        } => put(
            &rgaps_bench::alloc(&config, &counts(processes), operations as usize)?,
            output,
        ),
        Bench::Fanout {
            domain,
            subscribers,
            size,
            messages,
        } => {
            let domain = domain::parse(&domain)?;
            let subscribers = counts(subscribers);
            let report =
                rgaps_bench::fanout(&config, domain, size.0, &subscribers, messages as usize)?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
        Bench::Fanin {
            domain,
            publishers,
            size,
            messages,
            wait,
        } => {
            let domain = domain::parse(&domain)?;
            let (publishers, messages) = (counts(publishers), messages as usize);
            let report =
                rgaps_bench::fanin(&config, domain, size.0, &publishers, messages, way(wait))?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
        Bench::Throughput {
            domain,
            size,
            messages,
        } => {
            let domain = domain::parse(&domain)?;
            let report = rgaps_bench::throughput(&config, domain, size.0, messages)?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
        Bench::Memory { topics } => put(&rgaps_bench::memory(&config, topics)?, output),
        Bench::Link {
            transport,
            domain,
            to,
            size,
            subscribers,
            lanes,
            topics,
            tls,
            messages,
            wait,
            namespaces,
        } => {
            let options = LinkOptions {
                rdma: transport == BenchTransport::Rdma,
                to: domain::parse(to.as_ref().unwrap_or(&domain))?,
                domain: domain::parse(&domain)?,
                size: size.0,
                subscribers: subscribers as usize,
                lanes,
                topics: topics as usize,
                tls,
                messages: messages.into(),
                wait: way(wait),
                namespaces: match namespaces {
                    BenchNamespaces::Auto => Namespaces::Auto,
                    BenchNamespaces::Yes => Namespaces::Yes,
                    BenchNamespaces::No => Namespaces::No,
                },
            };
            let report = rgaps_bench::link(&config, &options)?;
            put(&report, output)?;
            whole(report.lost + report.duplicate, report.corrupt)
        }
        Bench::Copies {
            domain,
            size,
            count,
        } => {
            let sizes: Vec<u64> = size.iter().map(|size| size.0).collect();
            let report = rgaps_bench::copies(domain::parse(&domain)?, &sizes, count as usize)?;
            put(&report, output)?;
            whole(0, report.corrupt)
        }
        Bench::Path { size, messages } => {
            let report = rgaps_bench::path(&config, size.0, messages)?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
    }
}

fn way(wait: BenchWait) -> Wait {
    match wait {
        BenchWait::Poll => Wait::Poll,
        BenchWait::Block => Wait::Block,
    }
}

/// JSON for programs, tables for people.
fn put(report: &impl Serialize, output: &mut Output) -> anyhow::Result<()> {
    let value = serde_json::to_value(report)?;
    output.put(report, |to| figures::write(&value, to))
}

fn whole(lost: u64, corrupt: u64) -> anyhow::Result<()> {
    if lost == 0 && corrupt == 0 {
        return Ok(());
    }
    Err(Broken { lost, corrupt }.into())
}
