//! Commands in a poor environment: standard error cannot be written, limits are low.

mod support;

use std::fs::File;
use std::process::{Command, Stdio};
use support::{Realm, Run};

/// Runs `rgaps status` in an empty folder without a daemon. Returns its exit code.
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

#[test]
fn a_full_disk_under_standard_output_is_said_and_ends_no_command_in_a_panic() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let keep = ["topic", "pub", "t", "--text", "x", "--transient-local"];
    realm.run(&keep).ok();
    let commands: [&[&str]; 9] = [
        &["up"],
        &["status"],
        &["doctor"],
        &["topic", "list", "--json"],
        &["topic", "info", "t"],
        &["topic", "echo", "t", "--late", "latest", "--count", "1"],
        &["topic", "pub", "t", "--text", "x"],
        &["top", "--json"],
        &["completion", "bash"],
    ];
    for arguments in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let run: Run = realm
            .command(arguments)
            .stdout(full)
            .output()
            .unwrap()
            .into();
        let said = run.fails_with(1);
        assert!(
            said.contains("standard output cannot be written: No space left"),
            "{arguments:?}: {said}"
        );
    }
}

/// Runs a command under a limit that the shell sets.
fn limited(limit: &str, realm: &Realm, arguments: &[&str]) -> Run {
    let command = realm.command(arguments);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("{limit}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(arguments);
    shell.current_dir(realm.folder.path()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.output().unwrap().into()
}

#[test]
fn a_file_that_cannot_be_saved_whole_is_not_left_behind() {
    let realm = Realm::new();
    realm.run(&["up"]).ok();
    let publish = [
        "topic",
        "pub",
        "big",
        "--size",
        "64KiB",
        "--transient-local",
    ];
    realm.run(&publish).ok();
    let echo = [
        "topic", "echo", "big", "--late", "latest", "--save", "big.raw",
    ];
    let said = limited("ulimit -f 8", &realm, &echo).fails_with(1);
    assert!(said.contains("cannot write 'big.raw'"), "{said}");
    assert!(!realm.path("big.raw").exists());
    realm.run(&echo).ok();
    assert_eq!(
        std::fs::metadata(realm.path("big.raw")).unwrap().len(),
        64 << 10
    );
}

#[test]
fn commands_work_with_a_stack_limit_of_64_kib() {
    let realm = Realm::new();
    let run = |arguments: &[&str]| limited("ulimit -s 64", &realm, arguments);
    // The daemon that this command starts inherits the limit.
    run(&["up"]).ok();
    run(&["topic", "pub", "stack", "--text", "x"]).ok();
    let doctor = run(&["doctor"]);
    assert!(doctor.code <= 1, "{doctor:?}");
    run(&["topic", "list"]).ok();
    assert!(run(&["status"]).ok().contains("rgapsd "));
    run(&["down"]).ok();
    run(&["status"]).fails_with(3);
}

#[test]
fn a_daemon_that_may_open_too_few_files_is_not_started_and_says_so() {
    let realm = Realm::new();
    let run = |arguments: &[&str]| limited("ulimit -n 64", &realm, arguments);
    let said = run(&["topic", "pub", "t", "--text", "x"]).fails_with(3);
    for word in ["the limit of open files is 64", "512 or more", "ulimit -Hn"] {
        assert!(said.contains(word), "'{word}' is not in {said}");
    }
    let doctor = run(&["doctor"]);
    assert!(
        doctor.stdout.contains("FAIL  daemon")
            && doctor.stdout.contains("-> set ulimit -Hn to 512"),
        "{doctor:?}"
    );
    doctor.fails_with(1);
    // A daemon that was started without the limit serves this shell, too.
    realm.run(&["up"]).ok();
    run(&["topic", "pub", "t", "--text", "x"]).ok();
    assert!(run(&["doctor"]).ok().contains("ok    daemon"));
}
