//! A daemon of a test's own: the real `rgapsd`, as its own process.

use rgaps::Node;
use rgaps_session::{ByteSize, Channel, Config, CudaUse};
use rustix::process::{kill_process, Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longer than anything takes; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// `rgapsd` beside the test's executable, built if it is not there or old; or `RGAPS_DAEMON`.
pub fn rgapsd() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // Where there is no compiler, as on a borrowed machine.
        if let Some(built) = std::env::var_os("RGAPS_DAEMON") {
            return built.into();
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "-q", "-p", "rgapsd"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success());
        let exe = std::env::current_exe().expect("our own path");
        let folder = exe.ancestors().find(|folder| folder.ends_with("deps"));
        folder
            .and_then(Path::parent)
            .unwrap_or_else(|| exe.parent().expect("a folder"))
            .join("rgapsd")
    })
}

/// A folder that is removed when it is dropped.
pub type Folder = tempfile::TempDir;

/// A new folder.
pub fn folder() -> Folder {
    tempfile::tempdir().expect("a folder")
}

/// A running daemon, in a folder of its own.
pub struct Daemon {
    pub folder: Folder,
    child: Option<Child>,
    settings: Vec<(String, String)>,
}

impl Daemon {
    pub fn start() -> Daemon {
        Daemon::start_with(&[])
    }

    /// With settings from the environment.
    pub fn start_with(settings: &[(&str, &str)]) -> Daemon {
        let settings = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut daemon = Daemon {
            folder: folder(),
            child: None,
            settings: settings.collect(),
        };
        daemon.start_again();
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("r.sock")
    }

    /// For clients.
    pub fn config(&self) -> Config {
        let mut config = Config {
            socket: Some(self.socket()),
            autostart: false,
            ..Config::default()
        };
        config.pool.host.cap = Some(ByteSize(256 << 20));
        config.pool.cuda.enabled = CudaUse::Off;
        config
    }

    pub fn node(&self, name: &str) -> Node {
        Node::builder(name)
            .config(self.config())
            .build()
            .expect("a node")
    }

    pub fn start_again(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .expect("a log");
        let child = Command::new(rgapsd())
            .arg("--socket")
            .arg(self.socket())
            .current_dir(self.folder.path())
            .env("RUST_LOG", "info")
            .env("RUST_BACKTRACE", "1")
            .env("RGAPS_POOL__HOST__CAP", "256MiB")
            .env("RGAPS_POOL__CUDA__ENABLED", "off")
            .envs(self.settings.iter().cloned())
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("rgapsd");
        self.child = Some(child);
        wait_for("the daemon to listen", || {
            Channel::connect(&self.socket()).is_ok()
        });
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// SIGSTOP, until `go_on`.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        wait_for("the daemon to stop", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
            stat.is_ok_and(|stat| stat.contains(") T "))
        });
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("SIGKILL");
        child.wait().expect("its end");
    }

    /// Fails if the daemon has ended, or has panicked anywhere.
    pub fn assert_well(&mut self) {
        let ended = self.child.as_mut().expect("it runs").try_wait();
        let log = self.log();
        assert!(
            matches!(ended, Ok(None)) && !log.contains("panicked"),
            "the daemon: {ended:?}"
        );
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the end of the daemon's log:\n{}", last.join("\n"));
        }
    }
}

/// Looks until it is so.
pub fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
