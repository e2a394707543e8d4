//! Runs the program under test in a realm of its own.
#![allow(dead_code)] // each test file uses a part of it

use rgaps_testkit::programs;
#[allow(unused_imports, reason = "every test program uses a part of it")]
pub use rgaps_testkit::{until, LIMIT};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A child that is killed when this is dropped, so that a program that hangs ends.
struct Limited(Option<Child>);

impl Drop for Limited {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a program that must end within `limit` and print no more than a pipe holds. Returns its output.
pub fn limited(mut command: Command, limit: Duration) -> Run {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut limited = Limited(Some(child.unwrap()));
    let deadline = Instant::now() + limit;
    while limited.0.as_mut().unwrap().try_wait().unwrap().is_none() {
        assert!(
            Instant::now() < deadline,
            "{command:?} did not end in {limit:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let child = limited.0.take().unwrap();
    child.wait_with_output().unwrap().into()
}

/// A folder with a socket, and no daemon yet.
pub struct Realm {
    pub folder: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Run {
    /// Asserts that the command succeeded. Returns what it printed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    #[track_caller]
    pub fn fails_with(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.starts_with("rgaps: ") || code == 2, "{self:?}");
        self.stderr
    }
}

impl Realm {
    pub fn new() -> Realm {
        Realm {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        // On a machine without a compiler, the variable names the program.
        let program = std::env::var_os("RGAPS_TEST_PROGRAM");
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_rgaps").into());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("RGAPS_SOCKET", self.path("r.sock"))
            .env("RGAPS_DAEMON", programs::rgapsd())
            .env("RGAPS_IDLE_EXIT_MS", "20000")
            .env("RGAPS_POOL__HOST__CAP", "256MiB")
            .env_remove("RGAPS_CONFIG")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().unwrap().into()
    }

    /// Runs a command with `--json`. Returns the one document that it prints.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut with_json = arguments.to_vec();
        with_json.push("--json");
        let out = self.run(&with_json).ok();
        assert_eq!(out.lines().count(), 1, "one document: {out}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// A node of this process in the realm, whose daemon must run.
    pub fn node(&self, name: &str) -> rgaps::Node {
        let config = rgaps::Config {
            socket: Some(self.path("r.sock")),
            autostart: false,
            ..rgaps::Config::default()
        };
        rgaps::Node::builder(name).config(config).build().unwrap()
    }

    /// Starts a command whose output is read later.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits until the topic has so many subscribers.
    pub fn wait_for_subscribers(&self, topic: &str, n: u64) {
        until("subscribers", || {
            let run = self.run(&["topic", "info", topic, "--json"]);
            let info: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
            info["subscribers"] == n
        });
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        // There may be no daemon to stop.
        let _ = self.command(&["down"]).output();
    }
}

/// Waits for a command to end by itself.
pub fn finish(mut child: Child) -> Run {
    until("a command to end", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap().into()
}

pub fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}
