//! Processes: each test runs in one of its own, and may start others in *roles*.

pub use rgaps_testkit::{until, LIMIT as SOON};
use rustix::process::{kill_process_group, Pid, Signal};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// How long a test may take altogether.
const LIMIT: Duration = Duration::from_secs(300);
/// How long a test watches for something that must not happen.
pub const A_WHILE: Duration = Duration::from_millis(30);

const ALONE: &str = "RGAPS_TEST_ALONE";
const ROLE: &str = "RGAPS_TEST_ROLE";
const DONE: &str = "@test done";

/// A setting of the environment.
pub type Setting<'a> = (&'a str, &'a str);

/// Runs a test's body, a closure in the test's function, in a process of its own with `settings`.
pub fn alone<F: FnOnce()>(settings: &[Setting<'_>], body: F) {
    let path = std::any::type_name::<F>();
    let name = path.strip_suffix("::{{closure}}").unwrap();
    let (_, name) = name.split_once("::").unwrap();
    if std::env::var(ALONE).as_deref() == Ok(name) {
        end_with_parent(|| {
            let _ = kill_process_group(rustix::process::getpid(), Signal::KILL);
        });
        body();
        println!("{DONE}");
        return;
    }
    let mut command = this_program(name, settings);
    // Builds the daemon here if necessary: that may take longer than a test's limit.
    command.env("RGAPS_DAEMON", rgaps_testkit::programs::rgapsd());
    command.env(ALONE, name).process_group(0);
    let process = Process::start(command);
    let end = Instant::now() + LIMIT;
    let mut done = false;
    while let Some(line) = process.line(end.saturating_duration_since(Instant::now())) {
        done |= line == DONE;
        println!("{line}");
    }
    let status = process.outcome(end);
    assert!(status.is_some(), "it was killed after {LIMIT:?}");
    assert!(status.is_some_and(|s| s.success()) && done, "{status:?}");
}

/// Whether this is a test's own process.
pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

fn this_program(test: &str, settings: &[Setting<'_>]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--include-ignored", "--nocapture"]);
    command.envs(settings.iter().copied());
    command
}

/// The entry of a test's other processes: runs the role that `RGAPS_TEST_ROLE` names.
#[test]
#[ignore = "run by others"]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match &*role {
        "subscriber" => crate::deferred_release::subscriber(),
        "publisher" => crate::deaths::publisher(),
        "reader" => crate::deaths::reader(),
        "loser" => crate::lost::loser(),
        "peer" => crate::peers::peer(),
        "seed" => crate::seeds::member(),
        other => panic!("no such role: {other}"),
    }
    say("done");
}

/// In a role: sends `text` to the test.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{text}")
        .and_then(|()| out.flush())
        .unwrap();
}

/// In a role: returns the next line that the test sends. Ends the process if the test has ended.
pub fn hear() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(bytes) if bytes > 0 => line.trim().to_owned(),
        _ => std::process::exit(3),
    }
}

/// For a process that reads nothing from its parent: calls `end` once the parent has ended.
pub fn end_with_parent(end: impl Fn() + Send + 'static) {
    std::thread::spawn(move || {
        while matches!(std::io::stdin().read(&mut [0; 64]), Ok(bytes) if bytes > 0) {}
        end();
    });
}

/// A process that a test started. Dropping it kills the process.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a role in the realm of `daemon`.
    pub fn role(role: &str, daemon: &rgaps_testkit::Daemon, settings: &[Setting<'_>]) -> Process {
        let mut command = this_program("harness::role", settings);
        command.env(ROLE, role).env("RGAPS_SOCKET", daemon.socket());
        command.env_remove(ALONE);
        Process::start(command)
    }

    fn start(mut command: Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (lines, received) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Process {
            child,
            stdin,
            lines: received,
        }
    }

    /// The next line. None: the process has closed its output, or printed no line within `timeout`.
    fn line(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    /// Returns the next text that the role sends. Panics after a limit.
    pub fn hear(&self) -> String {
        let end = Instant::now() + SOON;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.line(left).expect("the other process says something");
            if let Some(text) = line.strip_prefix('@') {
                return text.to_owned();
            }
        }
    }

    /// Panics unless the role sends `text` next.
    pub fn expect(&self, text: &str) {
        assert_eq!(self.hear(), text);
    }

    pub fn say(&mut self, text: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    pub fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn number(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the exit status. None: the process still ran at `end`, and was killed with its group.
    fn outcome(mut self, end: Instant) -> Option<std::process::ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() > end {
                let _ = kill_process_group(self.id(), Signal::KILL);
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Panics unless the role reports that it is done, and ends successfully.
    pub fn finish(mut self) {
        self.expect("done");
        drop(self.stdin.take());
        let status = self.outcome_of_role();
        assert!(status.success(), "{status:?}");
    }

    fn outcome_of_role(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        until("the other process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Panics with `what` if `is_so` becomes true within `A_WHILE`.
pub fn never(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + A_WHILE;
    while Instant::now() < end {
        assert!(!is_so(), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
