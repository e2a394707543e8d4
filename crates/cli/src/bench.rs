//! `bench`: runs the benchmarks of `rgaps-bench` with the arguments of the command line, and prints their reports.

mod figures;

use crate::args::{
    Bench, BenchAlloc, BenchCopies, BenchFanin, BenchFanout, BenchHandoff, BenchLatency, BenchLink,
    BenchMemory, BenchNamespaces, BenchPath, BenchPeer, BenchSpread, BenchThroughput,
    BenchTransport, BenchWait, Common,
};
use crate::output::Output;
use crate::{domain, session};
use rgaps::Config;
use rgaps_bench::{LatencyOptions, LinkOptions, Namespaces, TreeOptions, Wait};
use rgaps_session::PeerUse;
use serde::Serialize;

/// Messages were lost or arrived with wrong bytes, so the figures are not valid.
#[derive(Debug, thiserror::Error)]
#[error("{lost} messages were lost and {corrupt} had wrong contents, so the figures above are not valid")]
struct Broken {
    lost: u64,
    corrupt: u64,
}

pub fn bench(common: &Common, bench: Bench, output: &mut Output) -> anyhow::Result<()> {
    let config = session::config(common)?;
    match bench {
        Bench::Latency(arguments) => latency(&config, &arguments, output),
        Bench::Handoff(arguments) => handoff(&config, &arguments, output),
        Bench::Spread(arguments) => spread(&config, &arguments, output),
        Bench::Alloc(BenchAlloc {
            processes,
            operations,
        }) => {
            let report = rgaps_bench::alloc(&config, &counts(&processes), operations as usize)?;
            put(&report, output)
        }
        Bench::Fanout(arguments) => fanout(&config, &arguments, output),
        Bench::Fanin(arguments) => fanin(&config, &arguments, output),
        Bench::Throughput(BenchThroughput {
            domain,
            size,
            messages,
        }) => {
            let domain = domain::parse(&domain)?;
            let report = rgaps_bench::throughput(&config, domain, size.0, messages)?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
        Bench::Memory(BenchMemory { topics }) => {
            put(&rgaps_bench::memory(&config, topics)?, output)
        }
        Bench::Link(arguments) => link(&config, &arguments, output),
        Bench::Copies(BenchCopies {
            domain,
            size,
            count,
        }) => {
            let sizes: Vec<u64> = size.iter().map(|size| size.0).collect();
            let report = rgaps_bench::copies(domain::parse(&domain)?, &sizes, count as usize)?;
            put(&report, output)?;
            whole(0, report.corrupt)
        }
        Bench::Path(BenchPath { size, messages }) => {
            let report = rgaps_bench::path(&config, size.0, messages)?;
            put(&report, output)?;
            whole(report.lost, report.corrupt)
        }
    }
}

fn latency(config: &Config, of: &BenchLatency, output: &mut Output) -> anyhow::Result<()> {
    let options = LatencyOptions {
        domain: domain::parse(&of.domain)?,
        size: of.size.0,
        subscribers: of.subscribers as usize,
        messages: of.messages as usize,
        wait: wait(of.wait),
        kernel_us: of.kernel_us,
        pause_us: of.pause_us,
        header_bytes: of.header.unwrap_or_default().into(),
    };
    let report = rgaps_bench::latency(config, &options)?;
    put(&report, output)?;
    whole(report.lost, report.corrupt)
}

fn handoff(config: &Config, of: &BenchHandoff, output: &mut Output) -> anyhow::Result<()> {
    let gpus = [of.gpus[0], *of.gpus.last().unwrap_or(&of.gpus[0])];
    let sizes: Vec<u64> = of.size.iter().map(|size| size.0).collect();
    let (messages, wait) = (of.messages as usize, wait(of.wait));
    let report = rgaps_bench::handoff(config, gpus, &sizes, &of.kernel_us, messages, wait)?;
    put(&report, output)?;
    whole(report.lost, report.corrupt)
}

fn spread(config: &Config, of: &BenchSpread, output: &mut Output) -> anyhow::Result<()> {
    let (from, to) = (domain::parse(&of.from)?, domain::parse(&of.to)?);
    let peer = match of.peer {
        BenchPeer::Auto => PeerUse::Auto,
        BenchPeer::Copy => PeerUse::Copy,
        BenchPeer::Map => PeerUse::Map,
    };
    let (readers, messages) = (of.readers as usize, of.messages as usize);
    let report = rgaps_bench::spread(config, from, to, peer, readers, of.size.0, messages)?;
    put(&report, output)?;
    whole(report.lost, report.corrupt)
}

fn fanout(config: &Config, of: &BenchFanout, output: &mut Output) -> anyhow::Result<()> {
    let (domain, subscribers) = (domain::parse(&of.domain)?, counts(&of.subscribers));
    let messages = of.messages as usize;
    let report = rgaps_bench::fanout(config, domain, of.size.0, &subscribers, messages)?;
    put(&report, output)?;
    whole(report.lost, report.corrupt)
}

fn fanin(config: &Config, of: &BenchFanin, output: &mut Output) -> anyhow::Result<()> {
    let (domain, publishers) = (domain::parse(&of.domain)?, counts(&of.publishers));
    let (messages, wait) = (of.messages as usize, wait(of.wait));
    let report = rgaps_bench::fanin(config, domain, of.size.0, &publishers, messages, wait)?;
    put(&report, output)?;
    whole(report.lost, report.corrupt)
}

fn link(config: &Config, of: &BenchLink, output: &mut Output) -> anyhow::Result<()> {
    if of.tree {
        let options = TreeOptions {
            hosts: of.hosts as usize,
            size: of.size.0,
            rate_mbit: of.rate_mbit.into(),
            fanout: of.fanout,
            messages: of.messages.unwrap_or(5).into(),
        };
        let report = rgaps_bench::tree(config, &options)?;
        put(&report, output)?;
        return whole(report.lost + report.duplicate, report.corrupt);
    }
    let options = LinkOptions {
        rdma: of.transport == BenchTransport::Rdma,
        to: domain::parse(of.to.as_ref().unwrap_or(&of.domain))?,
        domain: domain::parse(&of.domain)?,
        size: of.size.0,
        subscribers: of.subscribers as usize,
        lanes: of.lanes,
        topics: of.topics as usize,
        tls: of.tls,
        messages: of.messages.unwrap_or(100).into(),
        wait: wait(of.wait),
        namespaces: match of.namespaces {
            BenchNamespaces::Auto => Namespaces::Auto,
            BenchNamespaces::Yes => Namespaces::Yes,
            BenchNamespaces::No => Namespaces::No,
        },
    };
    let report = rgaps_bench::link(config, &options)?;
    put(&report, output)?;
    whole(report.lost + report.duplicate, report.corrupt)
}

fn counts(counts: &[u32]) -> Vec<usize> {
    counts.iter().map(|count| *count as usize).collect()
}

fn wait(wait: BenchWait) -> Wait {
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
