//! Streams that write and wait for 64-bit numbers in memory that others see too.

use crate::abi::*;
use crate::call::{global, Global};
use crate::context::{current, Context};
use crate::stream::Stream;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The stream and its context, if a number at `address` may be used from there.
fn check(
    g: &Global,
    stream: usize,
    address: u64,
    write: bool,
) -> Result<(Arc<Context>, Arc<Stream>), Code> {
    let context = current()?;
    let stream = context.stream(g, stream)?;
    if !g.config().has_memory_operations {
        return Err(Code::NOT_SUPPORTED);
    }
    // On the strict side: the documentation does not say what another context's stream does here.
    if !stream
        .context()
        .is_some_and(|other| Arc::ptr_eq(&other, &context))
    {
        return Err(Code::INVALID_HANDLE);
    }
    match g.memory().permits_number(address, context.position, write) {
        true => Ok((context, stream)),
        false => Err(Code::INVALID_VALUE),
    }
}

/// Uses the number, if it may still be used; else the context is lost.
fn with_number(owner: &Weak<Context>, address: u64, write: bool, use_it: impl FnOnce(&AtomicU64)) {
    let Some(context) = owner.upgrade() else {
        return;
    };
    // Held meanwhile, so that nothing is unmapped under us.
    let memory = global().memory();
    if !memory.permits_number(address, context.position, write) {
        return context.lose(Code::ILLEGAL_ADDRESS);
    }
    // SAFETY: aligned, and memory of a GPU or registered, as was just checked; others use the
    // number by atomic operations.
    use_it(unsafe { AtomicU64::from_ptr(address as *mut u64) });
}

/// Queues writing a number. It comes after all that the stream wrote before it.
pub(crate) fn write_number(
    g: &Global,
    stream: usize,
    address: u64,
    value: u64,
    flags: c_uint,
) -> Result<(), Code> {
    let (context, stream) = check(g, stream, address, true)?;
    if ![WRITE_DEFAULT, WRITE_NO_MEMORY_BARRIER].contains(&flags) {
        return Err(Code::INVALID_VALUE);
    }
    let owner = Arc::downgrade(&context);
    context
        .submit(g, &stream, Vec::new(), move || {
            with_number(&owner, address, true, |number| {
                number.store(value, Ordering::Release);
            });
        })
        .map(drop)
}

/// Queues waiting for a number, which anybody may write.
pub(crate) fn wait_for_number(
    g: &Global,
    stream: usize,
    address: u64,
    value: u64,
    flags: c_uint,
) -> Result<(), Code> {
    let (context, stream) = check(g, stream, address, false)?;
    if flags > WAIT_NOR {
        // Among them is flushing writes of remote devices, which takes hardware of its own.
        return Err(Code::NOT_SUPPORTED);
    }
    let owner = Arc::downgrade(&context);
    let waiting = Arc::downgrade(&stream);
    context
        .submit(g, &stream, Vec::new(), move || {
            let Some(stream) = waiting.upgrade() else {
                return;
            };
            let what = format!("for a number at {address:#x} to reach {value:#x}");
            stream.wait_until(&what, || {
                let mut found = None;
                with_number(&owner, address, false, |number| {
                    found = Some(number.load(Ordering::Acquire));
                });
                found.is_some_and(|found| is_reached(found, value, flags))
            });
        })
        .map(drop)
}

fn is_reached(found: u64, value: u64, flags: c_uint) -> bool {
    match flags {
        WAIT_GEQ => found.wrapping_sub(value) as i64 >= 0,
        WAIT_EQ => found == value,
        WAIT_AND => found & value != 0,
        _ => !(found | value) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_the_driver_does() {
        assert!(is_reached(5, 5, WAIT_GEQ) && is_reached(6, 5, WAIT_GEQ));
        assert!(!is_reached(4, 5, WAIT_GEQ));
        assert!(is_reached(2, u64::MAX, WAIT_GEQ), "the order is cyclic");
        assert!(!is_reached(u64::MAX, 2, WAIT_GEQ));
        assert!(is_reached(1 << 63, 1, WAIT_GEQ) && !is_reached(1 << 63, 0, WAIT_GEQ));
        assert!(is_reached(7, 7, WAIT_EQ) && !is_reached(8, 7, WAIT_EQ));
        assert!(is_reached(6, 2, WAIT_AND) && !is_reached(6, 1, WAIT_AND));
        assert!(is_reached(1, 2, WAIT_NOR) && !is_reached(u64::MAX, 0, WAIT_NOR));
    }
}
