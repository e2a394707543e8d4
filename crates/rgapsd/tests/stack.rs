//! A daemon where `ulimit -s` is 64 KiB: a shell sets the limit, soft and hard, and becomes the daemon.

mod support;

use std::process::{Command, Stdio};
use support::*;

#[test]
fn a_daemon_with_a_stack_limit_of_64_kib_serves_and_ends_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("r.sock");
    let mut child = Command::new("/bin/sh")
        .args(["-c", "ulimit -s 64; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_rgapsd"))
        .arg("--socket")
        .arg(&socket)
        .env("RGAPS_METRICS__LISTEN", "127.0.0.1:0")
        .env("RUST_LOG", "debug")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let connect = || rgaps_session::SessionSocket::connect(&socket);
    until("the daemon to listen", || {
        assert!(child.try_wait().unwrap().is_none(), "the daemon has ended");
        connect().is_ok()
    });
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let stack = limits.lines().find(|line| line.starts_with("Max stack"));
    assert!(stack.unwrap().contains(" 65536 "), "{limits}");
    let mut publishing = Client::connect(connect().unwrap(), "publishing");
    let mut subscribing = Client::connect(connect().unwrap(), "subscribing");
    publishing.join("topic", publisher());
    subscribing.join("topic", subscriber());
    // SIGTERM is blocked in the first thread, too, so the daemon ends in order.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut status = None;
    until("the daemon to end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
}
