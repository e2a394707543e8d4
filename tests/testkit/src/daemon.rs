//! A daemon of the test's own: the real `rgapsd`, as a process, in a folder of its own.

use crate::process::command_within;
use crate::{programs, until, Process};
use rgaps::Node;
use rgaps_session::{Config, SessionSocket};
use rustix::process::{kill_process, Pid, Signal};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

/// Lines of its log that a failed test prints.
const LINES_OF_LOG: usize = 40;

/// A daemon that ends with the test. Its folder holds the socket `r.sock`, the configuration `rgaps.toml`, which is also the
/// clients', and the file `log`. A test that fails prints the end of the log.
pub struct Daemon {
    folder: tempfile::TempDir,
    /// None: it was killed.
    process: Option<Process>,
    builder: DaemonBuilder,
}

/// How a daemon is started.
#[derive(Clone, Default)]
pub struct DaemonBuilder {
    config: String,
    program: Option<PathBuf>,
    within: Vec<String>,
    level: Option<&'static str>,
    settings: Vec<(OsString, OsString)>,
}

impl DaemonBuilder {
    /// More lines of its configuration file. Keys without a table come first.
    pub fn config(mut self, lines: &str) -> DaemonBuilder {
        lines.clone_into(&mut self.config);
        self
    }

    /// Settings from the environment. Clients do not have them.
    pub fn settings(mut self, settings: &[(&str, &str)]) -> DaemonBuilder {
        self.settings = owned(settings);
        self
    }

    /// The level of its log. Otherwise the configuration says it.
    pub fn log_level(mut self, level: &'static str) -> DaemonBuilder {
        self.level = Some(level);
        self
    }

    /// Another program than [`programs::rgapsd`].
    pub fn program(mut self, program: impl Into<PathBuf>) -> DaemonBuilder {
        self.program = Some(program.into());
        self
    }

    /// A command that becomes the daemon, such as `ip netns exec NAME`.
    pub fn within(mut self, command: &[String]) -> DaemonBuilder {
        command.clone_into(&mut self.within);
        self
    }

    /// Starts it, and waits until it listens.
    pub fn start(self) -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("r.sock");
        let text = format!("socket = {socket:?}\nautostart = false\n{}", self.config);
        std::fs::write(folder.path().join("rgaps.toml"), text).expect("its configuration");
        let mut daemon = Daemon {
            folder,
            process: None,
            builder: self,
        };
        daemon.restart();
        daemon
    }
}

fn owned(settings: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    let settings = settings.iter();
    settings.map(|(k, v)| (k.into(), v.into())).collect()
}

impl Daemon {
    /// A daemon as it is without settings.
    pub fn start() -> Daemon {
        DaemonBuilder::default().start()
    }

    /// A daemon with these lines in its configuration file.
    pub fn start_with(config: &str) -> Daemon {
        DaemonBuilder::default().config(config).start()
    }

    /// For everything else.
    pub fn builder() -> DaemonBuilder {
        DaemonBuilder::default()
    }

    /// Starts it once more, after it has ended.
    pub fn restart(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder().join("log"))
            .expect("its log");
        let how = &self.builder;
        let program = how.program.as_deref().unwrap_or_else(|| programs::rgapsd());
        let mut command = command_within(&how.within, program);
        command
            .arg("--config")
            .arg(self.config_path())
            .arg("--socket")
            .arg(self.socket())
            .current_dir(self.folder())
            .env("RUST_BACKTRACE", "1")
            .envs(how.level.map(|level| ("RUST_LOG", level)))
            .envs(how.settings.iter().cloned())
            .stdin(Stdio::null())
            .stderr(log);
        let mut process = Process::start(&mut command);
        let socket = self.socket();
        until("the daemon to listen", || {
            assert!(process.is_running(), "the daemon has ended: {}", self.log());
            SessionSocket::connect(&socket).is_ok()
        });
        self.process = Some(process);
    }

    /// Starts it once more, with other settings from the environment.
    pub fn restart_with(&mut self, settings: &[(&str, &str)]) {
        self.builder.settings = owned(settings);
        self.restart();
    }

    /// The folder with all that is its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder().join("r.sock")
    }

    /// The configuration file, for the daemon and for clients.
    pub fn config_path(&self) -> PathBuf {
        self.folder().join("rgaps.toml")
    }

    /// The configuration of clients, which do not start a daemon, whatever `RGAPS_SOCKET` says.
    pub fn config(&self) -> Config {
        let config = Config::load(Some(&self.config_path())).expect("a configuration");
        Config {
            socket: Some(self.socket()),
            ..config
        }
    }

    /// A client in this process.
    pub fn node(&self, name: &str) -> Node {
        let node = Node::builder(name).config(self.config()).build();
        node.unwrap_or_else(|error| panic!("node '{name}': {error}"))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the daemon runs")
    }

    fn process_mut(&mut self) -> &mut Process {
        self.process.as_mut().expect("the daemon runs")
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.process().id()
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a process"), signal).expect("a signal");
    }

    /// SIGSTOP, until [`Daemon::resume`].
    pub fn stop(&self) {
        crate::stop(self.id());
        // Its first thread only waits for the one that serves, and each stops by itself. One that waits in the kernel (D)
        // stops when it comes back.
        until("all threads of the daemon to stop", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.id()));
            threads.expect("the daemon's threads").all(|thread| {
                let stat =
                    thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
                stat.is_ok_and(|stat| stat.contains(") T ") || stat.contains(") D "))
            })
        });
    }

    /// SIGCONT.
    pub fn resume(&self) {
        crate::resume(self.id());
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let status = self.process_mut().wait();
        self.process = None;
        status
    }

    /// SIGKILL; returns when it has ended.
    pub fn kill(&mut self) {
        self.process_mut().kill();
        self.process = None;
    }

    /// Panics if it has ended, or has panicked anywhere.
    pub fn assert_well(&mut self) {
        assert!(self.process_mut().is_running(), "the daemon has ended");
        assert!(!self.log().contains("panicked"), "the daemon has panicked");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process = None;
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LINES_OF_LOG)..];
            eprintln!("the end of the daemon's log:\n{}", last.join("\n"));
        }
    }
}
