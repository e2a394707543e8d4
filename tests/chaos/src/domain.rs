//! Where the messages live: on the host, or on a GPU with `--domain cuda`; and where some of the
//! subscribers read, with `--across`.

use anyhow::Context;
use rgaps::Domain;
use std::sync::OnceLock;

/// Tell the processes that the supervisor starts.
const VARIABLE: &str = "RGAPS_TEST_CHAOS_DOMAIN";
const ACROSS_VARIABLE: &str = "RGAPS_TEST_CHAOS_ACROSS";

/// Takes the supervisor's choice: `host`, `cuda` (the first GPU), `cuda:N` or `cuda:GPU-...`.
pub fn choose(wanted: &str, across: Option<&str>) -> anyhow::Result<()> {
    std::env::set_var(VARIABLE, parse(wanted)?.to_string());
    match across {
        Some(across) => std::env::set_var(ACROSS_VARIABLE, parse(across)?.to_string()),
        None => std::env::remove_var(ACROSS_VARIABLE),
    }
    Ok(())
}

fn parse(text: &str) -> anyhow::Result<Domain> {
    let number = match text.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse::<usize>().ok()),
        None => None,
    };
    let Some(number) = number else {
        return Ok(text.parse()?);
    };
    let devices = rgaps_cuda::Driver::load()?.devices()?;
    let device = devices.get(number);
    let device = device.with_context(|| format!("the CUDA driver finds no GPU {number}"))?;
    Ok(Domain::Cuda(device.uuid))
}

fn named(variable: &str) -> Option<Domain> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The domain of all topics.
pub fn domain() -> Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    *DOMAIN.get_or_init(|| named(VARIABLE).unwrap_or(Domain::Host))
}

/// Another domain, in which some of the subscribers read.
pub fn across() -> Option<Domain> {
    static ACROSS: OnceLock<Option<Domain>> = OnceLock::new();
    *ACROSS.get_or_init(|| named(ACROSS_VARIABLE))
}

/// Whether anything is on a GPU.
pub fn on_gpu() -> bool {
    domain() != Domain::Host || across().is_some_and(|across| across != Domain::Host)
}
