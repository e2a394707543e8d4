//! Keeps the device memory of a program's servers at different addresses.
//!
//! A program that uses several servers has the memory of all in one address space. The driver puts device memory at addresses that the
//! kernel chooses. So the backend of the program's second server first reserves the range in which the first one maps, the third one the
//! ranges of both, and so on. If that fails, or an address is taken nevertheless, the client asks for another.

use crate::limits::SERVERS_MAX;

/// Addresses for one server: the kernel begins to map at a random one in 1 TiB, and the rest is for the memory of GPUs. All ranges fit
/// above a third of the address space.
const RANGE_BYTES: usize = 4 << 40;
const _: () = assert!(RANGE_BYTES * SERVERS_MAX < (1 << 47) / 3 * 2);

/// Reserves what the program's servers before this one use, for as long as this process lives.
pub(super) fn keep_from_others(server: u8) {
    let ranges = usize::from(server).min(SERVERS_MAX - 1);
    if ranges == 0 {
        return;
    }
    // SAFETY: a new mapping without access. The kernel chooses free addresses, so it replaces nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            ranges * RANGE_BYTES,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        tracing::debug!("no addresses are kept free for the client's other servers");
    }
}
