//! Where the messages live: on the host, or on a GPU with `--domain cuda`.

use anyhow::Context;
use rgaps::Domain;
use std::sync::OnceLock;

/// Tells the processes that the supervisor starts.
const VARIABLE: &str = "RGAPS_TEST_CHAOS_DOMAIN";

/// Takes the supervisor's choice: `host`, `cuda` (the first GPU) or `cuda:GPU-...`.
pub fn choose(wanted: &str) -> anyhow::Result<()> {
    let domain = match wanted {
        "cuda" => {
            let devices = rgaps_cuda::Driver::load()?.devices()?;
            Domain::Cuda(
                devices
                    .first()
                    .context("the CUDA driver finds no GPU")?
                    .uuid,
            )
        }
        other => other.parse()?,
    };
    std::env::set_var(VARIABLE, domain.to_string());
    Ok(())
}

/// The domain of all topics.
pub fn domain() -> Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    *DOMAIN.get_or_init(|| {
        let named = std::env::var(VARIABLE).ok();
        named
            .and_then(|name| name.parse().ok())
            .unwrap_or(Domain::Host)
    })
}

/// Whether messages live on a GPU.
pub fn on_gpu() -> bool {
    domain() != Domain::Host
}
