//! `rgaps bench`.

use super::examples;
use clap::{Args, Subcommand, ValueEnum};
use rgaps_session::ByteSize;

#[derive(Subcommand)]
pub enum Bench {
    /// Time from the publish call to the subscriber's handler. Floor: a bare wake-up between two processes with 64
    /// bytes.
    #[command(after_help = examples::BENCH_LATENCY)]
    Latency(BenchLatency),
    /// Time from the end of a publisher's kernel to the start of a subscriber's kernel in another process.
    #[command(after_help = examples::BENCH_HANDOFF)]
    Handoff(BenchHandoff),
    /// Throughput of messages that are published in one domain and read in another by several processes. Floor: a
    /// bare copy.
    #[command(after_help = examples::BENCH_SPREAD)]
    Spread(BenchSpread),
    /// Time of loans and releases by several processes at once. Floor: an allocator in each process.
    #[command(after_help = examples::BENCH_ALLOC)]
    Alloc(BenchAlloc),
    /// Cost of each additional subscriber for the publisher, and the time between the first and the last wake-up.
    #[command(after_help = examples::BENCH_FANOUT)]
    Fanout(BenchFanout),
    /// Latency from several publishers to one subscriber.
    #[command(after_help = examples::BENCH_FANIN)]
    Fanin(BenchFanin),
    /// Messages per second from one publisher to one polling subscriber.
    #[command(after_help = examples::BENCH_THROUGHPUT)]
    Throughput(BenchThroughput),
    /// Memory of an idle topic, and memory of the daemon.
    #[command(after_help = examples::BENCH_MEMORY)]
    Memory(BenchMemory),
    /// Latency and throughput of a link between two hosts, both simulated on this machine. Floor: the same steps
    /// without rgaps, and bare TCP.
    #[command(after_help = examples::BENCH_LINK)]
    Link(BenchLink),
    /// Copies between a GPU and host memory, pinned and pageable.
    #[command(after_help = examples::BENCH_COPIES)]
    Copies(BenchCopies),
    /// Messages between two marks, to trace the system calls between them.
    #[command(hide = true)]
    Path(BenchPath),
}

#[derive(Args)]
pub struct BenchLatency {
    /// Publish in this domain: host, cuda (the first GPU), cuda:N or cuda:GPU-<uuid>.
    #[arg(long, default_value = "host")]
    pub domain: String,
    /// Size of a message.
    #[arg(long, value_name = "BYTES", default_value = "4KiB")]
    pub size: ByteSize,
    /// Number of subscribers, each a process.
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=60))]
    pub subscribers: u32,
    /// Number of timed messages.
    #[arg(long, value_name = "M", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub messages: u32,
    /// How subscribers wait for a message.
    #[arg(long, value_enum, default_value = "block")]
    pub wait: BenchWait,
    /// In GPU memory: also measure while a kernel of this duration runs, in microseconds.
    #[arg(long, value_name = "US", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub kernel_us: u64,
    /// Let the publisher sleep this long before each message, in microseconds, like a camera between frames.
    #[arg(long, value_name = "US", default_value = "0", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub pause_us: u64,
    /// Also time messages with a header of this many bytes, in turns with messages without one. Setting the header
    /// and reading it are part of the time. The ratio of the medians is printed.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(64..=4096))]
    pub header: Option<u16>,
}

#[derive(Args)]
pub struct BenchHandoff {
    /// GPU of the publisher and of the subscriber, counted from 0. One number means the same GPU for both.
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..=2, default_value = "0")]
    pub gpus: Vec<usize>,
    /// Size of a message. Give the option several times for several sizes.
    #[arg(long, value_name = "BYTES", default_values = ["4KiB", "4MiB"])]
    pub size: Vec<ByteSize>,
    /// Durations of the publisher's kernel before it writes, in microseconds. Each is measured in turn.
    #[arg(long, value_name = "US,...", value_delimiter = ',', default_value = "0,200", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub kernel_us: Vec<u64>,
    /// Number of timed messages in each direction, per size and duration.
    #[arg(long, value_name = "M", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub messages: u32,
    /// How subscribers wait for a message.
    #[arg(long, value_enum, default_value = "poll")]
    pub wait: BenchWait,
}

#[derive(Args)]
pub struct BenchSpread {
    /// Publish in this domain: host, cuda (the first GPU), cuda:N or cuda:GPU-<uuid>.
    #[arg(long, default_value = "cuda:0")]
    pub from: String,
    /// Read in this domain.
    #[arg(long, default_value = "cuda:1")]
    pub to: String,
    /// How messages reach another GPU.
    #[arg(long, value_enum, default_value = "copy")]
    pub peer: BenchPeer,
    /// Number of reading processes.
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=60))]
    pub readers: u32,
    /// Size of a message.
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub size: ByteSize,
    /// Number of timed messages.
    #[arg(long, value_name = "M", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub messages: u32,
}

#[derive(Args)]
pub struct BenchAlloc {
    /// Numbers of processes. Each is measured in turn.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub processes: Vec<u32>,
    /// Loans and releases per process.
    #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub operations: u32,
}

#[derive(Args)]
pub struct BenchFanout {
    /// Publish in this domain.
    #[arg(long, default_value = "host")]
    pub domain: String,
    /// Numbers of subscribers. Each is measured in turn.
    #[arg(long, value_name = "K,...", value_delimiter = ',', default_value = "1,2,4,8,16,32", value_parser = clap::value_parser!(u32).range(1..=60))]
    pub subscribers: Vec<u32>,
    /// Size of a message.
    #[arg(long, value_name = "BYTES", default_value = "64KiB")]
    pub size: ByteSize,
    /// Messages per number of subscribers, for polling and for sleeping subscribers.
    #[arg(long, value_name = "M", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub messages: u32,
}

#[derive(Args)]
pub struct BenchFanin {
    /// Publish in this domain.
    #[arg(long, default_value = "host")]
    pub domain: String,
    /// Numbers of publishers. Each is measured in turn.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub publishers: Vec<u32>,
    /// Size of a message.
    #[arg(long, value_name = "BYTES", default_value = "64KiB")]
    pub size: ByteSize,
    /// Messages per publisher.
    #[arg(long, value_name = "M", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub messages: u32,
    /// How the subscriber waits for a message.
    #[arg(long, value_enum, default_value = "block")]
    pub wait: BenchWait,
}

#[derive(Args)]
pub struct BenchThroughput {
    /// Publish in this domain.
    #[arg(long, default_value = "host")]
    pub domain: String,
    /// Size of a message.
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub size: ByteSize,
    /// Messages per run.
    #[arg(long, value_name = "M", default_value = "500000", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
}

#[derive(Args)]
pub struct BenchMemory {
    /// Number of topics.
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub topics: u64,
}

#[derive(Args)]
pub struct BenchLink {
    /// What carries the messages.
    #[arg(long, value_enum, default_value = "tcp")]
    pub transport: BenchTransport,
    /// Publish in this domain, and read in it unless --to is given: host, cuda (the first GPU), cuda:N or
    /// cuda:GPU-<uuid>.
    #[arg(long, default_value = "host")]
    pub domain: String,
    /// Read in this domain of the other host.
    #[arg(long, value_name = "DOMAIN")]
    pub to: Option<String>,
    /// Size of a message.
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub size: ByteSize,
    /// Number of subscribers per topic, each a process.
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=40))]
    pub subscribers: u32,
    /// Number of lanes, which are parallel connections of a link.
    #[arg(long, value_name = "L", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub lanes: u32,
    /// Number of topics that publish at the same time.
    #[arg(long, value_name = "T", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=40))]
    pub topics: u32,
    /// Encrypt the link, with certificates created for this run.
    #[arg(long)]
    pub tls: bool,
    /// Number of messages timed one by one, rounded up to whole rounds. Default: 100; with --tree 5.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub messages: Option<u32>,
    /// How subscribers wait for a message.
    #[arg(long, value_enum, default_value = "block")]
    pub wait: BenchWait,
    /// Run the hosts in two network namespaces with a virtual cable (needs root), or on loopback.
    #[arg(long, value_enum, default_value = "auto")]
    pub namespaces: BenchNamespaces,
    /// Instead measure how long a message takes to all hosts over a tree, beside one hop and a star. Needs root.
    #[arg(long)]
    pub tree: bool,
    /// With --tree: number of hosts, the publisher's included.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(2..=32))]
    pub hosts: u32,
    /// With --tree: what the cable of each host carries, in Mbit/s in each direction.
    #[arg(long, value_name = "MBIT", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate_mbit: u32,
    /// With --tree: number of hosts that a host sends to itself, at most (links.fanout).
    #[arg(long, value_name = "F", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub fanout: u32,
}

#[derive(Args)]
pub struct BenchCopies {
    /// The GPU: cuda (the first), cuda:N or cuda:GPU-<uuid>.
    #[arg(long, default_value = "cuda")]
    pub domain: String,
    /// Size of a copy. Give the option several times for several sizes.
    #[arg(long, value_name = "BYTES", default_values = ["64KiB", "1MiB", "4MiB", "16MiB", "64MiB", "256MiB", "1GiB"])]
    pub size: Vec<ByteSize>,
    /// Number of timed copies per kind.
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: u32,
}

#[derive(Args)]
pub struct BenchPath {
    /// Size of a message.
    #[arg(long, default_value = "4KiB")]
    pub size: ByteSize,
    /// Messages.
    #[arg(long, default_value = "2000")]
    pub messages: u64,
}

/// How the receivers of a benchmark wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchWait {
    /// Poll without sleeping.
    Poll,
    /// Sleep until a message arrives.
    Block,
}

/// How messages of a benchmark reach another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchPeer {
    /// Choose by size, as rgaps does by default.
    Auto,
    /// One copy, shared by all readers.
    Copy,
    /// No copy: readers map the publisher's GPU memory.
    Map,
}

/// What carries messages of a benchmark between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchTransport {
    /// TCP.
    Tcp,
    /// RDMA over the network cards of this machine, both hosts on loopback.
    Rdma,
}

/// Whether the hosts of a benchmark are network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchNamespaces {
    /// Network namespaces if this user may create them, otherwise loopback.
    Auto,
    /// Network namespaces; fail without them.
    Yes,
    /// Loopback.
    No,
}
