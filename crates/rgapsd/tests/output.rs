//! A daemon goes on when its standard error cannot be written.

mod support;

use rustix::process::{prlimit, Pid, Resource, Rlimit};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::process::{Child, Command, Stdio};
use support::*;

/// Starts a daemon that logs every request, and clients that send some.
fn serves_on(stderr: Stdio, limit: impl Fn(&Child)) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("r.sock");
    let mut child = Command::new(env!("CARGO_BIN_EXE_rgapsd"))
        .arg("--socket")
        .arg(&socket)
        .env("RUST_LOG", "trace")
        .stdin(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let connect = || rgaps_session::SessionSocket::connect(&socket);
    until("the daemon to listen", || connect().is_ok());
    let mut clients = Vec::new();
    for name in ["one", "two"] {
        let mut client = Client::connect(connect().unwrap(), name);
        client.join("logged", subscriber());
        clients.push(client);
        limit(&child);
    }
    assert!(child.try_wait().unwrap().is_none(), "the daemon has ended");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_daemon_logs_to_a_full_disk_and_goes_on() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    serves_on(full.into(), |_| {});
}

#[test]
fn a_daemon_goes_on_when_nobody_reads_its_log() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    serves_on(writer.into(), |_| {});
}

#[test]
fn a_daemon_goes_on_when_its_log_is_as_large_as_files_may_be() {
    let mut log = tempfile::tempfile().unwrap();
    log.seek(SeekFrom::Start(1 << 20)).unwrap();
    serves_on(log.into(), |child| {
        let limit = Rlimit {
            current: Some(1 << 20),
            maximum: None,
        };
        prlimit(Some(Pid::from_child(child)), Resource::Fsize, limit).unwrap();
    });
}

#[test]
fn a_daemon_that_cannot_start_says_so_with_its_exit_code_where_standard_error_is_full() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_rgapsd"))
        .args(["--socket", "/proc/r.sock"])
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(1));
}
