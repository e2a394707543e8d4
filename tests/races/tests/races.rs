//! The race test on the test driver: a few messages, several seeds of its delays, with and without
//! a hardware queue for each stream.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Every scenario, with and without its wait.
const ALL: usize = 10;

/// How long one run of the program may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(540);

fn race(settings: &[(&str, &str)], arguments: &[&str], runs: usize) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps-races"));
    command.args(["--bytes", "65536", "--kernel-ms", "20"]);
    command.args(["--messages", "12", "--skip-messages", "30"]);
    command.args(arguments);
    command.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
    for (name, value) in settings {
        command.env(format!("RGAPS_TEST_DRIVER_{name}"), value);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let end = Instant::now() + PATIENCE;
    while child.try_wait().expect("it is our child").is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("it ended");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{settings:?}: {}\n{errors}{text}",
        output.status
    );
    let last = text.lines().last().expect("it says what it found");
    let report: serde_json::Value = serde_json::from_str(last).expect("as JSON");
    assert_eq!(report["ok"], true, "{last}");
    assert_eq!(
        report["runs"].as_array().map(Vec::len),
        Some(runs),
        "{last}"
    );
}

#[test]
fn nothing_is_read_or_reused_too_early() {
    for seed in ["1", "2"] {
        race(
            &[("DELAY_US", "2000"), ("SEED", seed)],
            &["--seed", seed],
            ALL,
        );
    }
}

/// Where all streams of a process share a queue, a publisher's own work is in order without any
/// wait, so leaving one out would not be seen.
#[test]
fn nor_with_one_hardware_queue() {
    race(
        &[("QUEUES", "1"), ("DELAY_US", "500"), ("SEED", "3")],
        &["--no-skips"],
        ALL / 2,
    );
}

#[test]
fn nor_on_two_gpus_at_once() {
    race(
        &[("DEVICES", "2"), ("DELAY_US", "1000"), ("SEED", "4")],
        &["--gpus", "2"],
        ALL,
    );
}

#[test]
fn nor_when_subscribers_read_on_another_gpu() {
    race(
        &[
            ("DEVICES", "2"),
            ("PEERS", "all"),
            ("DELAY_US", "1000"),
            ("SEED", "5"),
        ],
        &["--gpus", "2", "--across", "map"],
        ALL,
    );
}

/// That a wait is left out on the message itself is not seen on a copy of it, in two scenarios.
#[test]
fn nor_when_they_read_copies() {
    race(
        &[("DEVICES", "2"), ("DELAY_US", "1000"), ("SEED", "6")],
        &["--gpus", "2", "--across", "copy"],
        ALL - 2,
    );
}
