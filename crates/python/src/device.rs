//! GPUs as Python code numbers them.

use crate::error::{invalid, raise, IntoPyErr};
use pyo3::prelude::*;
use rgaps::{Domain, GpuUuid};
use rgaps_cuda::{Context, Device, Driver};
use std::sync::{Arc, OnceLock};

/// The GPUs of this process. Asks the driver again at each call until it has answered once.
fn devices() -> PyResult<&'static [Device]> {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    if let Some(devices) = DEVICES.get() {
        return Ok(devices);
    }
    let driver = Driver::load().map_err(IntoPyErr::into_py_err)?;
    let devices = driver.devices().map_err(IntoPyErr::into_py_err)?;
    Ok(DEVICES.get_or_init(|| devices))
}

/// The number of a GPU in this process, as torch and DLPack count.
pub(crate) fn ordinal(uuid: GpuUuid) -> PyResult<i32> {
    let found = devices()?.iter().find(|device| device.uuid == uuid);
    found.map(|device| device.ordinal).ok_or_else(|| {
        let message = format!("this process does not see the GPU {uuid}");
        raise("DomainUnavailable", message)
    })
}

/// The primary context of a GPU, which torch uses in this process, too.
pub(crate) fn context(uuid: GpuUuid) -> PyResult<Arc<Context>> {
    let driver = Driver::load().map_err(IntoPyErr::into_py_err)?;
    Context::retain(driver, uuid).map_err(IntoPyErr::into_py_err)
}

/// Parses the name of a domain: `host`, `cuda` (the first GPU), `cuda:1`, or `cuda:GPU-<UUID>`.
pub(crate) fn domain(text: &str) -> PyResult<Domain> {
    let number = match text.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest
            .strip_prefix(':')
            .and_then(|rest| rest.parse::<i32>().ok()),
        None => None,
    };
    let Some(number) = number else {
        return text.parse().map_err(|_| {
            invalid(format!(
                "domain must be 'host', 'cuda', 'cuda:0' or 'cuda:GPU-<UUID>', not '{text}'"
            ))
        });
    };
    let devices = devices()?;
    let found = devices.iter().find(|device| device.ordinal == number);
    found
        .map(|device| Domain::Cuda(device.uuid))
        .ok_or_else(|| {
            let message = format!(
                "there is no GPU {number}: this process sees {}",
                devices.len()
            );
            raise("DomainUnavailable", message)
        })
}

/// The domains that this process can use: ``"host"``, then one ``"cuda:GPU-<UUID>"`` per GPU.
#[pyfunction]
pub(crate) fn domains() -> Vec<String> {
    let gpus = devices().unwrap_or_default();
    let usable = gpus.iter().filter(|device| device.require_pools().is_ok());
    let gpus = usable.map(|device| Domain::Cuda(device.uuid).to_string());
    std::iter::once(Domain::Host.to_string())
        .chain(gpus)
        .collect()
}
