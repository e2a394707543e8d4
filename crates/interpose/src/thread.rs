//! What CUDA keeps for each thread: the device, the last error, the configuration of the next launch.

use rgaps_remoting::{Code, CLIENT_THREADS_MAX};
use std::cell::Cell;
use std::sync::atomic::{AtomicU16, Ordering};

/// A launch that `<<<>>>` has begun.
#[derive(Clone, Copy, Default)]
pub(crate) struct Configuration {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: usize,
    pub(crate) stream: usize,
}

/// Most launches that may be begun inside each other: a kernel's argument may be a call that launches.
const CONFIGURATIONS_MAX: usize = 16;

// Nothing here has a destructor, so functions that run at the end of a thread or of the program may use it.
thread_local! {
    static NUMBER: Cell<Option<u16>> = const { Cell::new(None) };
    static DEVICE: Cell<u16> = const { Cell::new(0) };
    static ERROR: Cell<i32> = const { Cell::new(0) };
    static IS_IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static CONFIGURATIONS: [Cell<Configuration>; CONFIGURATIONS_MAX] =
        const { [const { Cell::new(Configuration { grid: [0; 3], block: [0; 3], shared_bytes: 0, stream: 0 }) }; CONFIGURATIONS_MAX] };
}

/// This thread's number. After very many threads two may share one, which then also share a per-thread stream.
pub(crate) fn number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    NUMBER.get().unwrap_or_else(|| {
        let thread = NEXT.fetch_add(1, Ordering::Relaxed) % CLIENT_THREADS_MAX;
        NUMBER.set(Some(thread));
        thread
    })
}

/// Gives this thread, which helps another one, the number and the device of that one.
pub(crate) fn adopt(thread: u16, device: u16) {
    NUMBER.set(Some(thread));
    DEVICE.set(device);
}

pub(crate) fn device() -> u16 {
    DEVICE.get()
}

pub(crate) fn set_device(device: u16) {
    DEVICE.set(device);
}

/// Calls `act` with another device current.
pub(crate) fn with_device<T>(device: u16, act: impl FnOnce() -> T) -> T {
    let before = DEVICE.replace(device);
    let result = act();
    DEVICE.set(before);
    result
}

/// Runs a function that a stream calls.
pub(crate) fn in_callback(body: impl FnOnce()) {
    IS_IN_CALLBACK.set(true);
    body();
    IS_IN_CALLBACK.set(false);
}

/// Whether this thread runs a function that a stream calls.
pub(crate) fn is_in_callback() -> bool {
    IS_IN_CALLBACK.get()
}

/// Notes an error for `cudaGetLastError`.
pub(crate) fn note(code: Code) {
    if code != Code::SUCCESS {
        ERROR.set(code.0);
    }
}

pub(crate) fn error() -> Code {
    Code(ERROR.get())
}

pub(crate) fn clear() {
    ERROR.set(0);
}

/// Begins a launch.
pub(crate) fn push(configuration: Configuration) -> Result<(), Code> {
    let depth = DEPTH.get();
    CONFIGURATIONS.with(|all| match all.get(depth) {
        Some(slot) => {
            slot.set(configuration);
            DEPTH.set(depth + 1);
            Ok(())
        }
        None => Err(Code::INVALID_CONFIGURATION),
    })
}

/// The launch that was begun last.
pub(crate) fn pop() -> Result<Configuration, Code> {
    let depth = DEPTH
        .get()
        .checked_sub(1)
        .ok_or(Code::INVALID_CONFIGURATION)?;
    DEPTH.set(depth);
    CONFIGURATIONS.with(|all| Ok(all[depth].get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_nest() {
        let with = |shared_bytes| Configuration {
            shared_bytes,
            ..Configuration::default()
        };
        assert!(pop().is_err());
        push(with(1)).unwrap();
        push(with(2)).unwrap();
        assert_eq!(pop().unwrap().shared_bytes, 2);
        assert_eq!(pop().unwrap().shared_bytes, 1);
        (0..CONFIGURATIONS_MAX).for_each(|n| push(with(n)).unwrap());
        assert!(push(with(0)).is_err());
    }
}
