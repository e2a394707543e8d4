//! Checks the processor and the kernel.

use super::Check;
use nix::sys::socket::{getsockopt, sockopt};
use rgaps_sync::{futex_wait_any, monotonic_ns, Wake};
use rustix::process::{getpid, pidfd_open, PidfdFlags};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU32;

/// A reading of the clock takes less than this where it needs no system call.
const CLOCK_NS_MAX: u64 = 150;
/// Readings that are timed.
const CLOCK_READINGS: u64 = 2000;

pub fn checks() -> Vec<Check> {
    vec![processor(), kernel(), clock(), waitv(), peer_pidfd()]
}

fn processor() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    if rgaps_sync::atomic::has_lock_free_u128() {
        Check::ok(
            "processor",
            format!("{cores} cores, 128-bit compare-and-swap"),
        )
    } else {
        Check::fail(
            "processor",
            "no 128-bit compare-and-swap",
            "use an x86-64 processor with cmpxchg16b, or a 64-bit Arm one",
        )
    }
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let machine = name.machine().to_string_lossy().into_owned();
    Check::ok("kernel", format!("Linux {release}, {machine}"))
}

fn clock() -> Check {
    let begun = monotonic_ns();
    for _ in 0..CLOCK_READINGS {
        std::hint::black_box(monotonic_ns());
    }
    let each_ns = (monotonic_ns() - begun) / CLOCK_READINGS;
    let found = format!("{each_ns} ns per reading");
    if each_ns < CLOCK_NS_MAX {
        return Check::ok("clock", found);
    }
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(path).unwrap_or_default();
    let advice = format!(
        "each message reads the clock twice; the clock source is '{}', and tsc is faster if \
         the machine has it (see {path})",
        source.trim()
    );
    Check::lack("clock", found, advice)
}

/// Checks `futex_waitv`: waits on two words that nobody changes. A kernel without the call returns an error before the time is over.
fn waitv() -> Check {
    let (a, b) = (AtomicU32::new(0), AtomicU32::new(0));
    match futex_wait_any(&[(&a, 0), (&b, 0)], 1_000_000) {
        Wake::TimedOut => Check::ok("futex_waitv", "works"),
        Wake::Look => Check::lack(
            "futex_waitv",
            "not available",
            "a wait set over topics with different access rules needs it; use Linux 5.16 or later, and a sandbox \
             that allows it",
        ),
    }
}

/// Checks whether the kernel gives pidfds of peers (`SO_PEERPIDFD`), by which the daemon knows that a client has died.
fn peer_pidfd() -> Check {
    const NAME: &str = "deaths";
    let asked = UnixStream::pair()
        .ok()
        .and_then(|(socket, _peer)| getsockopt(&socket, sockopt::PeerPidfd).ok());
    if asked.is_some() {
        return Check::ok(NAME, "SO_PEERPIDFD works, also between containers");
    }
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Check::lack(
            NAME,
            "pidfd_open works, SO_PEERPIDFD does not",
            "the daemon notices the death of clients in other PID namespaces only by the end of their socket; \
             use Linux 6.5 or later",
        ),
        Err(error) => Check::lack(
            NAME,
            format!("neither SO_PEERPIDFD nor pidfd_open works ({error})"),
            "the daemon notices the death of clients only by the end of their socket; use Linux 6.5 (or 5.3), \
             and a sandbox that allows it",
        ),
    }
}
