//! Copies between a device and host memory that the backend does not share: through slots of shared memory (`bulk`), or over the
//! connection.

use crate::{bulk, session};
use rgaps_remoting::{Call, Code, Extent, Pitched};

/// Copies to the device. The bytes have been read when this returns.
///
/// # Safety
/// All rows of `extent` at `from` may be read, by any thread, until this returns.
pub(crate) unsafe fn copy_in(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    stream: u64,
) -> Result<(), Code> {
    let bytes = extent.bytes().ok_or(Code::INVALID_VALUE)? as usize;
    if bytes > session::inline_bytes() {
        if let Some(slots) = bulk::slots()? {
            // SAFETY: our caller promises that any thread may read all rows of `extent` at `from` until we return, which is after
            // `slots.copy_in`.
            return unsafe { slots.copy_in(to, from, extent, stream) };
        }
    }
    if extent.is_row() && to.array == 0 {
        // SAFETY: `extent` is one row of `bytes` bytes at `from`. Our caller promises that it may be read until we return, and `send` has
        // read it when it returns: it copies or writes the bytes.
        let source = unsafe { std::slice::from_raw_parts(from.address as *const u8, bytes) };
        let to = to.address;
        return session::send(&Call::CopyIn { to, stream }, source);
    }
    let mut packed = vec![0u8; bytes];
    // SAFETY: our caller promises that all rows of `extent` at `from` may be read until we return. `packed` has the `bytes` bytes of
    // these rows, and is new, so they do not overlap.
    unsafe { bulk::gather(&from, &extent, packed.as_mut_ptr() as u64) };
    session::send(&Call::CopyInRows { to, extent, stream }, &packed)
}

/// Copies from the device. The bytes are there when this returns.
///
/// # Safety
/// All rows of `extent` at `to` may be written, by any thread, until this returns.
pub(crate) unsafe fn copy_out(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    stream: u64,
) -> Result<(), Code> {
    let bytes = extent.bytes().ok_or(Code::INVALID_VALUE)? as usize;
    if bytes > session::inline_bytes() {
        if let Some(slots) = bulk::slots()? {
            // SAFETY: our caller promises that any thread may write all rows of `extent` at `to` until we return, which is after
            // `slots.copy_out`.
            return unsafe { slots.copy_out(from, to, extent, stream) };
        }
    }
    if extent.is_row() && from.array == 0 {
        let call = Call::CopyOut {
            from: from.address,
            bytes: bytes as u64,
            stream,
        };
        // SAFETY: `extent` is one row of `bytes` bytes at `to`. Our caller promises that any thread may write it until we return, which
        // is after `call_out`.
        return unsafe { session::call_out(&call, to.address as *mut u8, bytes) };
    }
    let mut packed = vec![0u8; bytes];
    let call = Call::CopyOutRows {
        from,
        extent,
        stream,
    };
    // SAFETY: `packed` is a buffer of this function with the bytes of all rows; it lives until both calls have returned, and overlaps
    // with nothing. Our caller promises that all rows of `extent` at `to` may be written until we return.
    unsafe {
        session::call_out(&call, packed.as_mut_ptr(), packed.len())?;
        bulk::scatter(packed.as_ptr() as u64, &to, &extent);
    }
    Ok(())
}
