//! Sleeping on a shared word until another process changes it.
//!
//! The futexes are shared ones (no `FUTEX_PRIVATE_FLAG`): the word lies in a memfd that several
//! processes map at different addresses.

use crate::atomic::AtomicU32;

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Somebody woke the sleeper, or the word had changed already, or a signal arrived: look at the word again.
    Look,
    /// The timeout has passed.
    TimedOut,
}

/// The most words that one [`futex_wait_any`] takes (the kernel's `FUTEX_WAITV_MAX`).
pub const WAIT_ANY_MAX: usize = 128;
/// The longest sleep on several words if the kernel has no `futex_waitv`.
#[cfg(not(loom))]
const WITHOUT_WAITV_NS: u64 = 1_000_000;

/// Sleeps while `word` is `expected`, at most `timeout_ns`.
#[cfg(not(loom))]
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: u64) -> Wake {
    let timeout = timespec(timeout_ns);
    // SAFETY: `word` is a live, aligned 32-bit word for the length of the call, and `timeout` a
    // valid timespec; the kernel reads both and writes neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &timeout as *const libc::timespec,
        )
    };
    wake_reason(result)
}

/// Wakes everyone who sleeps on `word`. Returns how many that were.
#[cfg(not(loom))]
pub fn futex_wake_all(word: &AtomicU32) -> u32 {
    // SAFETY: `word` is a live, aligned 32-bit word; FUTEX_WAKE uses only its address.
    let woken =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    woken.max(0) as u32
}

/// Sleeps while every word has the value beside it, at most `timeout_ns`. Takes 1 to
/// [`WAIT_ANY_MAX`] words. Before Linux 5.16, a wait for several words returns after a millisecond at most.
#[cfg(not(loom))]
pub fn futex_wait_any(words: &[(&AtomicU32, u32)], timeout_ns: u64) -> Wake {
    assert!(!words.is_empty() && words.len() <= WAIT_ANY_MAX);
    if let [(word, expected)] = words {
        return futex_wait(word, *expected, timeout_ns);
    }
    /// `struct futex_waitv` of linux/futex.h.
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    const FUTEX2_SIZE_U32: u32 = 2;
    let waiters: Vec<Waiter> = words
        .iter()
        .map(|(word, expected)| Waiter {
            value: u64::from(*expected),
            address: word.as_ptr() as u64,
            flags: FUTEX2_SIZE_U32,
            reserved: 0,
        })
        .collect();
    // futex_waitv takes a deadline, unlike FUTEX_WAIT, which takes a duration.
    let deadline = timespec(crate::monotonic_ns().saturating_add(timeout_ns));
    // SAFETY: `waiters` has `waiters.len()` valid entries, whose words `words` borrows for the length of the call;
    // `deadline` is a valid timespec.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            waiters.len(),
            0,
            &deadline as *const libc::timespec,
            libc::CLOCK_MONOTONIC,
        )
    };
    if result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        // An older kernel: sleep on the first word only, and briefly, since the others cannot wake this thread.
        let (word, expected) = words[0];
        futex_wait(word, expected, timeout_ns.min(WITHOUT_WAITV_NS));
        return Wake::Look;
    }
    wake_reason(result)
}

#[cfg(not(loom))]
fn wake_reason(result: libc::c_long) -> Wake {
    let timed_out =
        result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT);
    if timed_out {
        Wake::TimedOut
    } else {
        Wake::Look
    }
}

#[cfg(not(loom))]
fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// In a model, a sleeper spins: a lost wake-up becomes a loop that never ends, which loom
/// reports.
#[cfg(loom)]
pub fn futex_wait(word: &AtomicU32, expected: u32, _timeout_ns: u64) -> Wake {
    while word.load(crate::atomic::Ordering::Acquire) == expected {
        loom::thread::yield_now();
    }
    Wake::Look
}

/// Does nothing in a model, where sleepers spin.
#[cfg(loom)]
pub fn futex_wake_all(_word: &AtomicU32) -> u32 {
    0
}

/// In a model, waits for the first word only.
#[cfg(loom)]
pub fn futex_wait_any(words: &[(&AtomicU32, u32)], timeout_ns: u64) -> Wake {
    futex_wait(words[0].0, words[0].1, timeout_ns)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::sync::Arc;

    #[test]
    fn a_changed_word_does_not_sleep_and_an_unchanged_one_times_out() {
        let word = AtomicU32::new(1);
        assert_eq!(futex_wait(&word, 0, u64::from(u32::MAX)), Wake::Look);
        assert_eq!(futex_wait(&word, 1, 1_000_000), Wake::TimedOut);
        let other = AtomicU32::new(5);
        assert_eq!(
            futex_wait_any(&[(&word, 1), (&other, 5)], 1_000_000),
            Wake::TimedOut
        );
        assert_eq!(
            futex_wait_any(&[(&word, 1), (&other, 4)], 10_000_000_000),
            Wake::Look
        );
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = Arc::new(AtomicU32::new(0));
        let sleeper = {
            let word = word.clone();
            std::thread::spawn(move || {
                while word.load(Ordering::Acquire) == 0 {
                    futex_wait(&word, 0, 60_000_000_000);
                }
            })
        };
        word.store(1, Ordering::Release);
        futex_wake_all(&word);
        sleeper.join().unwrap();
    }
}
