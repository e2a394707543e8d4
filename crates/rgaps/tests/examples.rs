//! Runs each example as the comment at its beginning describes, with a daemon of its own.

use rgaps_testkit::Daemon;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A command that runs an example, from the folder `examples` beside the test's executable. Builds the example first,
/// unless `RGAPS_DAEMON` is set: then the tests run from built programs, without a compiler.
fn example(name: &str, daemon: &Daemon) -> Command {
    if std::env::var_os("RGAPS_DAEMON").is_none() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let build = ["build", "-q", "-p", "rgaps", "--example", name];
        assert!(Command::new(cargo).args(build).status().unwrap().success());
    }
    let exe = std::env::current_exe().unwrap();
    let program: PathBuf = exe.ancestors().nth(2).unwrap().join("examples").join(name);
    let mut command = Command::new(program);
    command
        .env("RGAPS_SOCKET", daemon.socket())
        .stdin(Stdio::null());
    command
}

/// Runs a command to its successful end, and returns the lines that it printed.
fn run(mut command: Command) -> Vec<String> {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_subscriber_example_prints_what_the_publisher_example_publishes() {
    let daemon = Daemon::start();
    let mut publisher = example("publisher", &daemon)
        .arg("camera")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut published = BufReader::new(publisher.stdout.take().unwrap()).lines();
    let first = published.next().unwrap().unwrap();
    assert!(first.starts_with("image 0 to"), "{first}");
    // If nobody read the pipe, it would fill and block the publisher.
    let drain = std::thread::spawn(move || published.for_each(drop));

    let mut subscriber = example("subscriber", &daemon);
    subscriber.args(["camera", "3"]);
    let lines = run(subscriber);
    publisher.kill().unwrap();
    publisher.wait().unwrap();
    drain.join().unwrap();

    let images: Vec<_> = lines
        .iter()
        .filter(|line| !line.starts_with("missed"))
        .collect();
    assert_eq!(images.len(), 3, "{lines:?}");
    for line in images {
        let rest = line.strip_prefix("image ").unwrap();
        let (number, rest) = rest.split_once(": ").unwrap();
        let mean = number.parse::<u64>().unwrap() % 256;
        assert_eq!(rest, format!("[480, 640, 3] uint8, mean {mean}"));
    }
}

#[test]
fn the_metadata_example_reads_the_parts_and_the_header_that_it_wrote() {
    let daemon = Daemon::start();
    let lines = run(example("metadata", &daemon));
    assert_eq!(
        lines,
        [
            "rgb: [480, 640, 3] uint8, 921600 bytes",
            "depth: [480, 640] float32, 1228800 bytes",
            "nearest: 1.5 m",
            "from Some(\"left\"), with {\"exposure_us\": Int(8000)}",
        ]
    );
}

#[test]
fn the_events_example_receives_in_all_three_ways() {
    let daemon = Daemon::start();
    let lines = run(example("events", &daemon));
    assert_eq!(
        lines,
        [
            "callback: too hot",
            "wait set: 5 bytes on right",
            "event loop: stop",
        ]
    );
}
