//! `rgaps dmaplane`.

use super::examples;
use clap::{Args, Subcommand};
use rgaps_session::ByteSize;

#[derive(Subcommand)]
pub enum Dmaplane {
    /// Show NUMA nodes, devices and counts, as the module sees them.
    #[command(after_help = examples::DMAPLANE_STATUS)]
    Status,
    /// Measure copies between NUMA nodes, and streams of RDMA by the kernel.
    ///
    /// The matrix copies with the processors of each node to the memory of each. The stream sends messages from a queue pair
    /// to another of the same port; the module measures throughput in windows of 1 s, and waits for a credit before each
    /// message. The sweep repeats short streams with more and more messages in flight; the saturation point is the least depth with
    /// 95 % of the best throughput.
    #[command(after_help = examples::DMAPLANE_BENCH)]
    Bench(DmaplaneBench),
}

#[derive(Args)]
pub struct DmaplaneBench {
    /// Bytes of each copy between nodes.
    #[arg(long, value_name = "BYTES", default_value = "16MiB")]
    pub copy: ByteSize,
    /// Copies from each node to each.
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub copies: u32,
    /// The RDMA device (`rdma link` lists them). Without one, the first that is there.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Size of a message of streams.
    #[arg(long, value_name = "BYTES", default_value = "64KiB")]
    pub message: ByteSize,
    /// Messages in flight of the sustained stream.
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
    /// Credits of the streams: messages that may be in flight, whatever the depth. Default: as many as the queues hold.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub credits: Option<u32>,
    /// Messages in flight at which posting stops, at most the credits. Default: the credits.
    #[arg(long, value_name = "N", requires = "credits")]
    pub high: Option<u32>,
    /// Messages in flight at which it goes on, fewer than that. Default: half.
    #[arg(long, value_name = "N", requires = "credits")]
    pub low: Option<u32>,
    /// Seconds of the sustained stream.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Messages at each depth of the sweep.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub messages: u32,
}
