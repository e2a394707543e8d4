//! Domains as they are named on the command line.

use crate::exit::Usage;
use rgaps::Domain;
use rgaps_cuda::Driver;

/// `host`, `cuda:GPU-<uuid>`, or `cuda` for the first GPU that this process sees.
pub fn parse(text: &str) -> anyhow::Result<Domain> {
    if text != "cuda" {
        return Ok(text
            .parse::<Domain>()
            .map_err(|error| Usage(error.to_string()))?);
    }
    let devices = Driver::load()?.devices()?;
    match devices.first() {
        Some(device) => Ok(Domain::Cuda(device.uuid)),
        None => anyhow::bail!("the CUDA driver answers but shows no GPU; see 'rgaps doctor'"),
    }
}
