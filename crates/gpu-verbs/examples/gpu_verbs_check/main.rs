//! Checks kernels that post RDMA, end to end: against the software card, over TCP, and over RDMA verbs inside a process, with every byte
//! verified. Also measures what posting costs. The kernels come from a library that is compiled from `tests/rdma/jobs.cu`, for threads of
//! the host or for a GPU.
//!
//! ```text
//! gpu-verbs-check verify --jobs LIBRARY [--only TEST] [--messages N] [--bytes N] [--seed N] [--payload gpu] [--limit-s N]
//! gpu-verbs-check ladder --jobs LIBRARY [--messages N] [--blocks N] [--warps N]
//! gpu-verbs-check receive --jobs LIBRARY --listen ADDRESS:PORT [--topics yes] [--device RDMA] [--messages N] [--bytes N]
//! gpu-verbs-check send --jobs LIBRARY --peer ADDRESS:PORT [--topics yes] [--device RDMA] [--messages N] [--bytes N]
//! gpu-verbs-check choose
//! ```
//! The last line is JSON. The exit code is 1 if a check failed. No figure here is one of a network card: none takes part.

mod jobs;
mod ladder;
mod links;
mod peers;
mod side;
mod verify;

use anyhow::{bail, Context, Result};
use rgaps_cuda::Driver;
use rgaps_layout::Domain;
use std::collections::BTreeMap;

/// Options by name.
pub struct Options(BTreeMap<String, String>);

impl Options {
    fn parse(arguments: &[String]) -> Result<Options> {
        let mut found = BTreeMap::new();
        for pair in arguments.chunks(2) {
            match pair {
                [name, value] if name.starts_with("--") => {
                    found.insert(name[2..].to_owned(), value.clone());
                }
                _ => bail!("{pair:?} is not an option with a value"),
            }
        }
        Ok(Options(found))
    }

    /// The option's text, if it was given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The option's number, or `none` if it was not given.
    pub fn number(&self, name: &str, none: u64) -> Result<u64> {
        let Some(text) = self.text(name) else {
            return Ok(none);
        };
        text.parse().with_context(|| format!("--{name} {text}"))
    }
}

/// The domain in which kernels of the library run.
pub fn kernels(jobs: &jobs::Jobs) -> Result<Domain> {
    if !jobs.is_cuda {
        return Ok(Domain::Host);
    }
    let devices = Driver::load()?.devices()?;
    let first = devices.first().context("there is no GPU")?;
    Ok(Domain::Cuda(first.uuid))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        bail!("name a command: verify, ladder, receive, send or choose");
    };
    let options = Options::parse(rest)?;
    if command == "choose" {
        println!("{}", rgaps_gpu_verbs::choose());
        return Ok(());
    }
    let library = options.text("jobs").context("--jobs is missing")?;
    let jobs = jobs::Jobs::load(library)?;
    match command.as_str() {
        "verify" => verify::run(&jobs, &options),
        "ladder" => ladder::run(&jobs, &options),
        "receive" => peers::receive(&jobs, &options),
        "send" => peers::send(&jobs, &options),
        other => bail!("there is no {other}"),
    }
}
