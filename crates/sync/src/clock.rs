//! The clock that is the same in every process of a host.

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable between processes of one host (not between time
/// namespaces), unaffected by changes of the date.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the call to fill; CLOCK_MONOTONIC always exists, so
    // the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
