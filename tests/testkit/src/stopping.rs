//! Processes that stand still.

use rustix::fs::{flock, FlockOperation};
use rustix::process::{kill_process, Pid, Signal};
use std::fs::{remove_file, File};

/// SIGSTOP, until [`resume`].
pub fn stop(pid: u32) {
    signal(pid, Signal::STOP);
}

/// SIGCONT.
pub fn resume(pid: u32) {
    signal(pid, Signal::CONT);
}

/// `tools/steady.sh` stops and continues processes of tests, too. It leaves those alone of which a file is in
/// `RGAPS_TEST_STOPS`; a lock of that folder keeps it from doing so between the file and the signal.
fn signal(pid: u32, signal: Signal) {
    let folder = std::env::var_os("RGAPS_TEST_STOPS").map(std::path::PathBuf::from);
    let locked = folder.map(|folder| {
        let lock = File::open(&folder).expect("the folder of RGAPS_TEST_STOPS");
        flock(&lock, FlockOperation::LockExclusive).expect("a lock of that folder");
        let file = folder.join(pid.to_string());
        match signal == Signal::STOP {
            true => drop(File::create(file).expect("a file in that folder")),
            // It may have been continued before.
            false => drop(remove_file(file)),
        }
        lock
    });
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(process.expect("a process"), signal).expect("a signal");
    drop(locked);
}
