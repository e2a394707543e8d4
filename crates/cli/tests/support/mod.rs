//! The program under test, in a realm of its own.
#![allow(dead_code)] // each test file uses a part of it

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longer than anything here takes; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The daemon that belongs to the program under test. It is another package's, so cargo builds
/// it for us only by chance.
pub fn daemon() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // Where it is there already, or there is no compiler.
        if let Some(built) = std::env::var_os("RGAPS_DAEMON") {
            return built.into();
        }
        let folder = Path::new(env!("CARGO_BIN_EXE_rgaps")).parent().unwrap();
        build("rgapsd", folder);
        folder.join("rgapsd")
    })
}

/// The program with the links between hosts, which is another package's, too.
pub fn links() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(built) = std::env::var_os("RGAPS_LINKS_PROGRAM") {
            return built.into();
        }
        // Where there is no compiler it is beside the program.
        if let Some(program) = std::env::var_os("RGAPS_PROGRAM") {
            return Path::new(&program).with_file_name("rgaps-links");
        }
        let folder = daemon().parent().unwrap();
        let there = folder.join("rgaps-links");
        // Built with the workspace, as `make test` does; to build it alone takes minutes, so one that is
        // old is used, too.
        if there.exists() {
            return there;
        }
        build("rgaps-links", folder);
        there
    })
}

/// Builds another package's program, as the one under test is built, into its folder.
fn build(package: &str, folder: &Path) {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", package, "--target-dir"]);
    build.arg(folder.parent().unwrap());
    if folder.file_name().is_some_and(|name| name == "release") {
        build.arg("--release");
    }
    let built = build.status().expect("cargo can be started");
    assert!(built.success(), "{package} does not build");
}

/// Ends a program that hangs; its processes end with it.
struct Limited(Option<Child>);

impl Drop for Limited {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a program says that ends within a limit, and prints no more than a pipe holds.
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
    /// The command did what it was told, and this is what it printed.
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
        // Where there is no compiler it is elsewhere.
        let program = std::env::var_os("RGAPS_PROGRAM");
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_rgaps").into());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("RGAPS_SOCKET", self.path("r.sock"))
            .env("RGAPS_DAEMON", daemon())
            .env("RGAPS_IDLE_EXIT_MS", "20000")
            .env("RGAPS_POOL__HOST__CAP", "256MiB")
            .env_remove("RGAPS_CONFIG")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().unwrap().into()
    }

    /// The one document that a command prints with `--json`.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut with_json = arguments.to_vec();
        with_json.push("--json");
        let out = self.run(&with_json).ok();
        assert_eq!(out.lines().count(), 1, "one document: {out}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// A program of its own in the realm, whose daemon is there.
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
        wait_for("subscribers", || {
            let run = self.run(&["topic", "info", topic, "--json"]);
            let info: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
            info["subscribers"] == n
        });
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        // There may be none.
        let _ = self.command(&["down"]).output();
    }
}

/// Waits for a command to end by itself.
pub fn finish(mut child: Child) -> Run {
    wait_for("a command to end", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap().into()
}

pub fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Looks until it is so.
#[track_caller]
pub fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
