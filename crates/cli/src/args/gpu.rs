//! `rgaps gpu`.

use super::examples;
use crate::units::period;
use clap::{Args, Subcommand};
use rgaps_remoting::Endpoint;
use rgaps_session::ByteSize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Gpu {
    /// Serve this host's GPUs to CUDA programs on other hosts.
    ///
    /// Each client has a process of its own here, which ends with it. Connections are not encrypted, and who can connect
    /// can use the GPUs: listen on addresses of networks that you trust, or on a Unix socket.
    #[command(after_help = examples::GPU_SERVE)]
    Serve(GpuServe),
    /// Run a CUDA program on the GPUs of a server.
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
    /// Listen here: HOST:PORT, HOST, or unix:PATH. May be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub listen: Vec<Endpoint>,
    /// Serve at most N clients at a time.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Let each client allocate at most this much GPU memory.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<ByteSize>,
    /// Pin no memory of this host. Copies are slower, and clients of this host share no memory with the server.
    #[arg(long)]
    pub no_pinning: bool,
}

#[derive(Args)]
pub struct GpuServer {
    /// The server: HOST:PORT, HOST, or unix:PATH.
    #[arg(long, value_name = "ADDRESS", env = "RGAPS_GPU")]
    pub on: Endpoint,
}

#[derive(Args)]
pub struct GpuRun {
    #[command(flatten)]
    pub server: GpuServer,
    /// The folder of the libraries that stand in for CUDA's. Without it, the one that was installed with this program.
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
    /// What standard input is.
    #[arg(long, value_parser = ["tcp", "unix"])]
    pub kind: String,
    /// The server's process id.
    #[arg(long)]
    pub parent: u32,
    /// Most bytes of GPU memory.
    #[arg(long)]
    pub memory_bytes: Option<u64>,
    /// Pin no memory.
    #[arg(long)]
    pub no_pinning: bool,
}
