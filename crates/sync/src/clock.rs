//! The monotonic clock, which is the same in every process of a host, and its difference from the wall clock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The difference of the clocks changes only when the wall clock is set. A change up to this counts as an error of reading.
const CLOCK_STEP_NS: u64 = 1_000_000;
/// How often both clocks are read to measure a new difference.
const CLOCK_READS: usize = 5;
/// The value of `WALL_OFFSET_NS` before the first measurement.
const UNKNOWN: i64 = i64::MIN;
/// What [`wall_offset_ns`] returned last.
static WALL_OFFSET_NS: AtomicI64 = AtomicI64::new(UNKNOWN);
/// The clocks are compared again after this time.
const COMPARE_NS: u64 = 1_000_000;
/// The monotonic time at which they were compared last.
static COMPARED_NS: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of `CLOCK_MONOTONIC`: comparable between processes of one host (not between time
/// namespaces), unaffected by changes of the date.
#[inline]
pub fn monotonic_ns() -> u64 {
    now(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of the wall clock since 1970.
#[inline]
pub fn wall_ns() -> u64 {
    now(libc::CLOCK_REALTIME)
}

/// Returns how many nanoseconds the wall clock is ahead of [`monotonic_ns`], whose current value is `now_ns`.
///
/// Linux lets both clocks run at one rate, so this is one number for all threads of a process until the wall clock is
/// set by more than a millisecond. Times that are converted with it keep their order, however long a thread is
/// interrupted between two reads of the clocks. The clocks are compared once a millisecond at most.
pub fn wall_offset_ns(now_ns: u64) -> i64 {
    let known = WALL_OFFSET_NS.load(Ordering::Relaxed);
    let compared_ns = COMPARED_NS.load(Ordering::Relaxed);
    if known != UNKNOWN && now_ns.saturating_sub(compared_ns) < COMPARE_NS {
        return known;
    }
    COMPARED_NS.store(now_ns, Ordering::Relaxed);
    let (took, offset) = read_offset();
    if known != UNKNOWN && offset.abs_diff(known) <= CLOCK_STEP_NS + took {
        return known;
    }
    // Use the fastest read, which has the smallest error.
    let reads = (1..CLOCK_READS).map(|_| read_offset());
    let (_, offset) = reads.fold((took, offset), Ord::min);
    let order = Ordering::Relaxed;
    match WALL_OFFSET_NS.compare_exchange(known, offset, order, order) {
        Ok(_) => offset,
        Err(by_another) => by_another,
    }
}

/// Converts a time of [`monotonic_ns`] to nanoseconds of the wall clock since 1970, with an offset of [`wall_offset_ns`].
/// Times before the host's start are negative, in two's complement; those before 1970 become 0.
pub fn to_wall(monotonic_ns: u64, offset_ns: i64) -> u64 {
    let wall = (monotonic_ns as i64).saturating_add(offset_ns);
    u64::try_from(wall).unwrap_or(0)
}

/// Reads both clocks. Returns how long that took, and the difference, whose error is at most that long.
fn read_offset() -> (u64, i64) {
    let (before, wall, after) = (monotonic_ns(), wall_ns(), monotonic_ns());
    let between = before + (after - before) / 2;
    (after - before, wall as i64 - between as i64)
}

fn now(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the call to fill; both clocks that are asked for here always exist, so
    // the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_the_clocks_is_one_number_for_all_threads() {
        let read = || {
            let offsets = (0..1000).map(|_| wall_offset_ns(monotonic_ns()));
            offsets.collect::<Vec<_>>()
        };
        let threads = [(); 4].map(|()| std::thread::spawn(read));
        let first = wall_offset_ns(monotonic_ns());
        let all = threads.into_iter().flat_map(|of| of.join().unwrap());
        assert!(all.into_iter().all(|offset| offset == first));
        let wall = monotonic_ns().saturating_add_signed(first);
        assert!(wall.abs_diff(wall_ns()) < 60_000_000_000);
    }
}
