//! Whether kernels of this host could post on an mlx5 card themselves, and why not.
//!
//! This build makes no objects on cards, since that code could not be tested without one. It only looks for what such code would need,
//! and tells the owner of a card what is missing.

use std::ffi::{CStr, CString};
use std::path::Path;

/// The library of rdma-core's provider for mlx5.
const LIBRARY: &str = "libmlx5.so.1";
/// The functions that direct posting needs: they register dma-bufs, allocate doorbell pages, make objects in the card's firmware.
const FUNCTIONS: [&str; 5] = [
    "mlx5dv_open_device",
    "mlx5dv_devx_umem_reg_ex",
    "mlx5dv_devx_alloc_uar",
    "mlx5dv_devx_obj_create",
    "mlx5dv_devx_obj_modify",
];
const DEVICES: &str = "/sys/class/infiniband";
const DRIVER: &str = "mlx5_core";

/// Why kernels do not post on a card themselves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mlx5Refusal {
    /// The library cannot be loaded.
    #[error("{LIBRARY} cannot be loaded: {0}; install rdma-core (package ibverbs-providers)")]
    NoLibrary(String),
    /// The library is too old.
    #[error("{LIBRARY} has no {0}; install a newer rdma-core")]
    NoFunction(&'static str),
    /// There is no card.
    #[error("{LIBRARY} is there, and no network card of the driver {DRIVER} in {DEVICES}")]
    NoDevice,
    /// Library and card are there, but this build does not use them.
    #[error(
        "{0} has what is needed, but this build makes no queue pairs on cards: the entries that kernels write were checked against \
         rdma-core's layout and a software card, and never by a card"
    )]
    NotProven(String),
}

/// Looks for a card on which kernels could post, and returns why it is not used.
pub fn refusal() -> Mlx5Refusal {
    refusal_of(LIBRARY, Path::new(DEVICES))
}

fn refusal_of(library: &str, devices: &Path) -> Mlx5Refusal {
    let has_function = match load(library) {
        Ok(has_function) => has_function,
        Err(reason) => return Mlx5Refusal::NoLibrary(reason),
    };
    if let Some(missing) = FUNCTIONS.into_iter().find(|name| !has_function(name)) {
        return Mlx5Refusal::NoFunction(missing);
    }
    match cards(devices).first() {
        None => Mlx5Refusal::NoDevice,
        Some(card) => Mlx5Refusal::NotProven(card.clone()),
    }
}

fn cards(devices: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(devices) else {
        return Vec::new();
    };
    let is_mlx5 = |path: &Path| {
        let driver = std::fs::read_link(path.join("device/driver"));
        driver.is_ok_and(|driver| driver.ends_with(DRIVER))
    };
    let names = entries.flatten().filter(|entry| is_mlx5(&entry.path()));
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Loads a library. Returns a function that tells whether the library has a symbol.
fn load(name: &str) -> Result<impl Fn(&str) -> bool, String> {
    let path = CString::new(name).expect("our name has no NUL");
    // SAFETY: `path` is a C string. Loading runs the library's initialisers; the library is a part of rdma-core that the host's
    // administrator installed.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: dlerror gives null or a C string that is valid until this thread's next dl call.
        return Err(unsafe {
            match libc::dlerror() {
                text if text.is_null() => "no reason given".to_owned(),
                text => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        });
    }
    // The library stays loaded, since providers register handlers in libibverbs.
    Ok(move |function: &str| {
        let function = CString::new(function).expect("our names have no NUL");
        // SAFETY: dlopen returned the handle above, and nobody closes it.
        !unsafe { libc::dlsym(handle, function.as_ptr()) }.is_null()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let none = Path::new("/nonexistent");
        let refused = refusal_of("libmlx5-that-is-not-there.so.1", none).to_string();
        assert!(refused.contains("install rdma-core"), "{refused}");
        let other = refusal_of("libc.so.6", none);
        assert_eq!(other, Mlx5Refusal::NoFunction("mlx5dv_open_device"));
        assert!(cards(none).is_empty());
    }
}
