//! The locks under which processes share an allocator.

use std::sync::atomic::{AtomicU64, Ordering};

/// Mutual exclusion between processes: runs `work` while no other process runs its own.
pub trait Lock {
    fn with<T>(&self, work: impl FnOnce() -> T) -> T;
}

/// A POSIX semaphore shared between processes, as in GAPS.
pub struct Semaphore<'a>(&'a [AtomicU64]);

impl<'a> Semaphore<'a> {
    /// The semaphore in `line`, which nothing else uses. One process passes `first` to initialise it, before it starts the others.
    pub fn new(line: &'a [AtomicU64], first: bool) -> Semaphore<'a> {
        assert!(size_of_val(line) >= size_of::<libc::sem_t>());
        let semaphore = Semaphore(line);
        if first {
            // SAFETY: the line is large enough, which was just checked, and aligned to a cache line, in memory that
            // all processes map. The process that passes `first` starts the others afterwards.
            let result = unsafe { libc::sem_init(semaphore.raw(), 1, 1) };
            assert_eq!(result, 0, "sem_init");
        }
        semaphore
    }

    fn raw(&self) -> *mut libc::sem_t {
        self.0.as_ptr() as *mut libc::sem_t
    }
}

impl Lock for Semaphore<'_> {
    fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: `new` of the first process initialised the semaphore, which lives as long as
        // the line that `self` borrows. A signal may end the wait early.
        while unsafe { libc::sem_wait(self.raw()) } != 0 {}
        let result = work();
        // SAFETY: `new` of the first process initialised the semaphore, which lives as long as the line that `self` borrows, and
        // the loop above took it.
        unsafe { libc::sem_post(self.raw()) };
        result
    }
}

/// A ticket lock: processes get it in the order of their tickets, and spin until then.
pub struct Ticket<'a> {
    next: &'a AtomicU64,
    serving: &'a AtomicU64,
}

impl<'a> Ticket<'a> {
    /// The lock in two cache lines, which are zero at first.
    pub fn new(next: &'a [AtomicU64], serving: &'a [AtomicU64]) -> Ticket<'a> {
        Ticket {
            next: &next[0],
            serving: &serving[0],
        }
    }
}

impl Lock for Ticket<'_> {
    fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        while self.serving.load(Ordering::Acquire) != ticket {
            rgaps_sync::spin_hint();
        }
        let result = work();
        self.serving.store(ticket + 1, Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_bench::board::{Board, Geometry};

    fn excludes(lock: impl Lock + Sync, counter: &AtomicU64) {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        lock.with(|| {
                            let seen = counter.load(Ordering::Relaxed);
                            std::hint::spin_loop();
                            counter.store(seen + 1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(counter.load(Ordering::Relaxed), 900);
    }

    #[test]
    fn both_locks_exclude() {
        let board = Board::create(Geometry {
            members: 1,
            samples: 8,
        })
        .unwrap();
        excludes(Semaphore::new(board.line(3), true), &board.line(6)[0]);
        excludes(Ticket::new(board.line(4), board.line(5)), &board.line(7)[0]);
    }
}
