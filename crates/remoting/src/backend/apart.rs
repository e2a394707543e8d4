//! Addresses of device memory that no other server of the same program gives.
//!
//! A program that uses several servers has the memory of all in one address space. The driver puts device memory where the kernel maps what has
//! no address of its own. So the backend of the program's second server first reserves the range in which the first one maps, the third one the
//! ranges of both, and so on. If that fails, or an address is taken nevertheless, the client asks for another.

use crate::limits::SERVERS_MAX;

/// The kernel begins to map at a random place in 1 TiB; the rest has room for GPUs' memory. All ranges fit above a third of the address space.
const RANGE_BYTES: usize = 4 << 40;
const _: () = assert!(RANGE_BYTES * SERVERS_MAX < (1 << 47) / 3 * 2);

/// Reserves what the program's servers before this one use, for as long as this process lives.
pub(super) fn keep_from_others(server: u8) {
    let ranges = usize::from(server).min(SERVERS_MAX - 1);
    if ranges == 0 {
        return;
    }
    // SAFETY: a new mapping without access, where the kernel likes, that nobody uses.
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
