//! `rgaps gpu`.

use super::examples;
use crate::units::period;
use clap::{Args, Subcommand};
use rgaps_remoting::{Endpoint, GpuList};
use rgaps_session::ByteSize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Gpu {
    /// Serve this host's GPUs to CUDA programs on other hosts.
    ///
    /// Each client gets a process of its own on this host, which ends with the client. Connections with other hosts need the realm's
    /// certificates (links.tls in the configuration), or links.insecure. The configuration's section [gpu] has the same options.
    #[command(after_help = examples::GPU_SERVE)]
    Serve(GpuServe),
    /// Run a CUDA program on the GPUs of one or several servers.
    ///
    /// The program must use CUDA's shared runtime (nvcc -cudart shared). The exit code is that of the program.
    #[command(after_help = examples::GPU_RUN)]
    Run(GpuRun),
    /// Show the GPUs and the clients of a server.
    #[command(after_help = examples::GPU_LIST)]
    List(GpuServer),
    /// Show the clients of a server and their rates, again and again.
    #[command(after_help = examples::GPU_TOP)]
    Top(GpuTop),
    /// The process of a client of a server.
    #[command(hide = true)]
    Backend(GpuBackend),
}

#[derive(Args)]
pub struct GpuServe {
    /// Listen here: HOST[:PORT], tls/HOST, tcp/HOST, rdma/HOST, unix:PATH, or NAME/ADDRESS for a plug-in. May be given several times. Without it: gpu.listen
    /// of the configuration, which is 127.0.0.1 by default.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<Endpoint>,
    /// Serve only these GPUs, by number or UUID, separated by commas.
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Serve at most N clients at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: Option<u32>,
    /// Let each client allocate at most this much GPU memory.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<ByteSize>,
    /// Pin no memory of this host. Copies are slower, and clients of this host share no memory with the server.
    #[arg(long)]
    pub no_pinning: bool,
    /// End with the process that started this one.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

#[derive(Args)]
pub struct GpuServer {
    /// The server: HOST[:PORT], NAME@HOST[:PORT] if its certificate has another name, unix:PATH, or another address of gpu serve; with :GPU behind
    /// it only that GPU (a number below 1024 is a GPU and no port). Several are separated by commas; their GPUs are numbered in this order. Without it:
    /// gpu.servers of the configuration.
    #[arg(long, value_name = "ADDRESS,...", env = "RGAPS_GPU")]
    pub on: Option<GpuList>,
}

#[derive(Args)]
pub struct GpuRun {
    #[command(flatten)]
    pub server: GpuServer,
    /// The folder of the libraries that replace CUDA's. Without it, the folder that was installed with this program.
    #[arg(long, value_name = "FOLDER", env = "RGAPS_GPU_LIBRARIES")]
    pub libraries: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct GpuTop {
    #[command(flatten)]
    pub server: GpuServer,
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", value_parser = period, default_value = "1")]
    pub interval: Duration,
    /// Exit after N updates.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

#[derive(Args)]
pub struct GpuBackend {
    /// The kind of connection on standard input.
    #[arg(long, value_parser = ["tcp", "unix", "relay"])]
    pub kind: String,
    /// The client's program.
    #[arg(long, allow_hyphen_values = true)]
    pub program: String,
    /// Which of the client's servers this one is.
    #[arg(long)]
    pub server: u8,
    /// The server's process id.
    #[arg(long)]
    pub parent: u32,
    /// Most bytes of GPU memory.
    #[arg(long)]
    pub memory_bytes: Option<u64>,
    /// A folder for images of libraries.
    #[arg(long)]
    pub images: Option<PathBuf>,
    /// Pin no memory.
    #[arg(long)]
    pub no_pinning: bool,
}
