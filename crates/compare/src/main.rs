//! Designs of papers, rebuilt and measured beside rgaps.
//!
//! `rgaps bench` compares rgaps with the least that could do the same job. This program runs the same
//! benchmarks with other designs in turns: allocators that processes share under a lock, as in GAPS, and
//! links that copy stage by stage, as in the thesis on RGAPS and in its baseline. It is not published: only
//! figures need it. Its last line of output is JSON. The exit code is 1 if a message was lost or wrong.

#![warn(clippy::too_many_lines)]

mod alloc;
mod device;
mod handle;
mod link;
mod locks;
mod shared_tlsf;
mod staged;

use anyhow::Context;
use clap::{Args, Parser, ValueEnum};
use rgaps::{Config, Domain};
use rgaps_bench::board::Board;
use rgaps_bench::crew::{self, MemberJob, MemberOrders};
use rgaps_bench::{LinkOptions, Namespaces, Wait};
use rgaps_cuda::Driver;
use rgaps_session::{on_own_stack, start_log, ByteSize, LogFormat};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "rgaps-compare",
    version,
    about = "Measure designs of papers beside rgaps."
)]
enum Command {
    /// Loans and releases by several processes at once: rgaps; one TLSF that all share under a semaphore, and under a
    /// ticket lock; a TLSF in each process.
    Alloc {
        /// Numbers of processes. Each is measured in turn.
        #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..=32))]
        processes: Vec<u32>,
        /// Loans and releases per process.
        #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        operations: u32,
    },
    /// `rgaps bench link`, and two designs without rgaps, each stage of which ends before the next begins: pinned memory
    /// and one copy to the GPU; and pageable memory, a Unix socket, one connection and one copy per subscriber.
    Link(Link),
    /// One thread's messages, and the uncontended locks that a message takes of its handles.
    Handle {
        /// Messages of a round.
        #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        messages: u32,
    },
    /// A process of a benchmark that rgaps shares.
    #[command(hide = true)]
    BenchMember { orders: String },
    /// A process of another design.
    #[command(hide = true)]
    CompareMember { orders: String },
}

#[derive(Args)]
struct Link {
    /// Publish in this domain, and read in it unless --to is given: host, cuda (the first GPU), cuda:N or
    /// cuda:GPU-<uuid>.
    #[arg(long, default_value = "host")]
    domain: String,
    /// Read in this domain of the other host.
    #[arg(long, value_name = "DOMAIN")]
    to: Option<String>,
    /// Size of a message.
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    size: ByteSize,
    /// Number of subscribers, each a process.
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=40))]
    subscribers: u32,
    /// Number of lanes of the link, and of connections of the design with pinned memory.
    #[arg(long, value_name = "L", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=8))]
    lanes: u32,
    /// Number of messages timed one by one, rounded up to whole rounds.
    #[arg(long, value_name = "M", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// How subscribers wait for a message.
    #[arg(long, value_enum, default_value = "block")]
    wait: WaitBy,
    /// Run the hosts in two network namespaces with a virtual cable (needs root), or on loopback.
    #[arg(long, value_enum, default_value = "auto")]
    namespaces: UseNamespaces,
}

#[derive(Clone, Copy, ValueEnum)]
enum WaitBy {
    Poll,
    Block,
}

#[derive(Clone, Copy, ValueEnum)]
enum UseNamespaces {
    Auto,
    Yes,
    No,
}

/// The jobs of this program's own members.
#[derive(Serialize, Deserialize)]
enum CompareJob {
    Allocate(alloc::SharedPlan),
    Connect(Box<staged::StagedHost>),
    Subscribe(staged::StagedSubscriber),
}

impl MemberJob for CompareJob {
    const COMMAND: &'static str = "compare-member";

    fn run(&self, orders: &MemberOrders<Self>, board: &Board) -> anyhow::Result<()> {
        match self {
            CompareJob::Allocate(plan) => alloc::allocate(orders.member, plan, board),
            CompareJob::Connect(host) => host.run(orders.member, board),
            CompareJob::Subscribe(subscriber) => subscriber.run(orders.member, board),
        }
    }
}

fn main() -> ExitCode {
    on_own_stack(|| {
        let command = Command::parse();
        start_log("error", LogFormat::Text).expect("a filter");
        match run(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("rgaps-compare: {}", rgaps_session::explain(error.as_ref()));
                ExitCode::FAILURE
            }
        }
    })
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Alloc {
            processes,
            operations,
        } => {
            let processes: Vec<usize> = processes.into_iter().map(|n| n as usize).collect();
            print(&alloc::compare(
                &Config::load(None)?,
                &processes,
                operations as usize,
            )?)
        }
        Command::Link(arguments) => {
            let report = link::compare(&Config::load(None)?, &options(&arguments)?)?;
            print(&report)?;
            report.is_valid()
        }
        Command::Handle { messages } => print(&handle::measure(&Config::load(None)?, messages)?),
        Command::BenchMember { orders } => rgaps_bench::member(&orders),
        Command::CompareMember { orders } => crew::member::<CompareJob>(&orders),
    }
}

fn options(link: &Link) -> anyhow::Result<LinkOptions> {
    Ok(LinkOptions {
        domain: domain(&link.domain)?,
        to: domain(link.to.as_ref().unwrap_or(&link.domain))?,
        size: link.size.0,
        subscribers: link.subscribers as usize,
        lanes: link.lanes,
        topics: 1,
        tls: false,
        rdma: false,
        messages: link.messages.into(),
        wait: match link.wait {
            WaitBy::Poll => Wait::Poll,
            WaitBy::Block => Wait::Block,
        },
        namespaces: match link.namespaces {
            UseNamespaces::Auto => Namespaces::Auto,
            UseNamespaces::Yes => Namespaces::Yes,
            UseNamespaces::No => Namespaces::No,
        },
    })
}

/// Parses a domain: `host`, `cuda:GPU-<uuid>`, `cuda` for the first GPU, or `cuda:N` for another.
fn domain(text: &str) -> anyhow::Result<Domain> {
    let ordinal = match text.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse().ok()),
        None => None,
    };
    let Some(ordinal) = ordinal else {
        return text.parse().map_err(anyhow::Error::msg);
    };
    let devices = Driver::load()?.devices()?;
    let device = devices.get::<usize>(ordinal);
    Ok(Domain::Cuda(
        device
            .with_context(|| format!("there is no GPU {ordinal}"))?
            .uuid,
    ))
}

fn print(report: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}
