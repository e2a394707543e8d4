//! Where standard error takes nothing, the exit code still says what happened.

use std::fs::File;
use std::process::{Command, Stdio};

/// `rgaps status` where no daemon is, in a folder of its own.
fn status_with(stderr: Stdio) -> Option<i32> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
    command.arg("status").stdout(Stdio::null()).stderr(stderr);
    command.env("RGAPS_SOCKET", folder.path().join("r.sock"));
    command.status().unwrap().code()
}

#[test]
fn an_error_that_nobody_can_read_keeps_its_exit_code() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(status_with(Stdio::null()), Some(3));
    assert_eq!(status_with(full().into()), Some(3));
    assert_eq!(status_with(unread.into()), Some(3));
}
