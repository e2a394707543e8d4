//! GPUs as Python code numbers them.

use crate::error::{invalid, raise, IntoPyErr};
use pyo3::prelude::*;
use rgaps::{Domain, GpuUuid, Stream};
use rgaps_cuda::{Device, Driver};
use std::sync::OnceLock;

/// The GPUs of this process, looked for until there is a driver that answers.
fn devices() -> PyResult<&'static [Device]> {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    if let Some(devices) = DEVICES.get() {
        return Ok(devices);
    }
    let driver = Driver::load().map_err(IntoPyErr::into_py_err)?;
    let devices = driver.devices().map_err(IntoPyErr::into_py_err)?;
    Ok(DEVICES.get_or_init(|| devices))
}

/// The number of a GPU in this process, which is the one that torch and DLPack mean.
pub(crate) fn ordinal(uuid: GpuUuid) -> PyResult<i32> {
    let found = devices()?.iter().find(|device| device.uuid == uuid);
    found.map(|device| device.ordinal).ok_or_else(|| {
        let message = format!("this process does not see the GPU {uuid}");
        raise("DomainUnavailable", message)
    })
}

/// `host`, `cuda` (the first GPU), `cuda:1`, or `cuda:GPU-...`.
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
                "'{text}' is not a domain: write 'host', 'cuda', 'cuda:0' or 'cuda:GPU-...'"
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

/// Where messages can live in this process, the host first.
#[pyfunction]
pub(crate) fn domains() -> Vec<String> {
    let gpus = devices().unwrap_or_default();
    let usable = gpus.iter().filter(|device| device.require_pools().is_ok());
    let gpus = usable.map(|device| Domain::Cuda(device.uuid).to_string());
    std::iter::once(Domain::Host.to_string())
        .chain(gpus)
        .collect()
}

/// A stream: its handle as a number, or an object of torch or cupy.
pub(crate) fn stream(object: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
    let Some(object) = object.filter(|object| !object.is_none()) else {
        return Ok(Stream(0));
    };
    for name in ["cuda_stream", "ptr"] {
        if let Some(handle) = object.getattr_opt(name)? {
            return handle.extract().map(Stream);
        }
    }
    object.extract().map(Stream).map_err(|_| {
        invalid(format!(
            "{object} is not a stream: give torch's or cupy's, or the handle as a number"
        ))
    })
}

/// The stream that a consumer names to `__dlpack__`, as the array API standard numbers them:
/// none means the default one, -1 that the consumer sees to the order itself.
pub(crate) fn dlpack_stream(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Stream>> {
    let Some(object) = object.filter(|object| !object.is_none()) else {
        return Ok(Some(Stream(0)));
    };
    match object.extract::<i64>() {
        Ok(-1) => Ok(None),
        Ok(0) => Err(invalid(
            "stream 0 is ambiguous: use 1 for the default stream, or 2",
        )),
        _ => stream(Some(object)).map(Some),
    }
}
