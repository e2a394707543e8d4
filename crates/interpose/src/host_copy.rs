//! Copies between a device and memory of this host that the backend has not: through slots of shared memory (`bulk`), or over the connection.

use crate::{bulk, session};
use rgaps_remoting::{Call, Code, Extent, Pitched};

/// Copies to the device. The bytes have been read when this returns.
///
/// # Safety
/// All rows of `from` may be read.
pub(crate) unsafe fn copy_in(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    stream: u64,
) -> Result<(), Code> {
    let bytes = extent.bytes().ok_or(Code::INVALID_VALUE)? as usize;
    if bytes > session::inline_bytes() {
        if let Some(slots) = bulk::slots()? {
            // SAFETY: the rows may be read, as the caller promises.
            return unsafe { slots.copy_in(to, from, extent, stream) };
        }
    }
    if extent.is_row() && to.array == 0 {
        // SAFETY: the row may be read, as the caller promises.
        let source = unsafe { std::slice::from_raw_parts(from.address as *const u8, bytes) };
        let to = to.address;
        return session::send(&Call::CopyIn { to, stream }, source);
    }
    let mut packed = vec![0u8; bytes];
    // SAFETY: the rows may be read, as the caller promises, and the buffer has as many bytes.
    unsafe { bulk::gather(&from, &extent, packed.as_mut_ptr() as u64) };
    session::send(&Call::CopyInRows { to, extent, stream }, &packed)
}

/// Copies from the device. The bytes are there when this returns.
///
/// # Safety
/// All rows of `to` may be written.
pub(crate) unsafe fn copy_out(
    to: Pitched,
    from: Pitched,
    extent: Extent,
    stream: u64,
) -> Result<(), Code> {
    let bytes = extent.bytes().ok_or(Code::INVALID_VALUE)? as usize;
    if bytes > session::inline_bytes() {
        if let Some(slots) = bulk::slots()? {
            // SAFETY: the rows may be written, as the caller promises.
            return unsafe { slots.copy_out(from, to, extent, stream) };
        }
    }
    if extent.is_row() && from.array == 0 {
        let call = Call::CopyOut {
            from: from.address,
            bytes: bytes as u64,
            stream,
        };
        // SAFETY: the row may be written, as the caller promises.
        return unsafe { session::call_out(&call, to.address as *mut u8, bytes) };
    }
    let mut packed = vec![0u8; bytes];
    let call = Call::CopyOutRows {
        from,
        extent,
        stream,
    };
    // SAFETY: the buffer is this function's, and has this length; the rows may be written, as the caller promises.
    unsafe {
        session::call_out(&call, packed.as_mut_ptr(), packed.len())?;
        bulk::scatter(packed.as_ptr() as u64, &to, &extent);
    }
    Ok(())
}
