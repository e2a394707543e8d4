//! Parses domains of the command line.

use crate::exit::Usage;
use rgaps::Domain;
use rgaps_cuda::Driver;

/// `host`, `cuda:GPU-<uuid>`, `cuda` for the first GPU that this process sees, or `cuda:N` for another.
pub fn parse(text: &str) -> anyhow::Result<Domain> {
    let ordinal = match text.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse().ok()),
        None => None,
    };
    let Some(ordinal) = ordinal else {
        return Ok(text
            .parse::<Domain>()
            .map_err(|error| Usage(error.to_string()))?);
    };
    let devices = Driver::load()?.devices()?;
    match devices.get::<usize>(ordinal) {
        Some(device) => Ok(Domain::Cuda(device.uuid)),
        None if devices.is_empty() => {
            anyhow::bail!("the CUDA driver answers but shows no GPU; see 'rgaps doctor'")
        }
        None => anyhow::bail!(
            "there is no GPU {ordinal}: this process sees {}, counted from 0",
            devices.len()
        ),
    }
}
