//! A daemon of the test's own.

use rgaps::{Config, Node};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
}

/// Waits until something is so; fails where it does not come. No machine is that slow.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `rgapsd` beside the test's executable, built if it is not there or old; or `RGAPS_DAEMON`.
pub fn rgapsd() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUILT
        .get_or_init(|| {
            // Where there is no compiler, as on a borrowed machine.
            if let Some(built) = std::env::var_os("RGAPS_DAEMON") {
                return built.into();
            }
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let status = Command::new(cargo)
                .args(["build", "-q", "-p", "rgapsd"])
                .status()
                .unwrap();
            assert!(status.success());
            let exe = std::env::current_exe().unwrap();
            exe.parent().unwrap().parent().unwrap().join("rgapsd")
        })
        .clone()
}

fn spawn(dir: &Path) -> Child {
    Command::new(rgapsd())
        .args(["--foreground", "--socket"])
        .arg(dir.join("rgaps.sock"))
        .arg("--config")
        .arg(dir.join("rgaps.toml"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

impl Daemon {
    pub fn start() -> Daemon {
        Daemon::start_with("")
    }

    /// With more lines for its configuration file.
    pub fn start_with(config: &str) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rgaps.toml"), config).unwrap();
        let child = spawn(dir.path());
        let daemon = Daemon { child, dir };
        daemon.wait();
        daemon
    }

    /// After `kill`.
    pub fn start_again(&mut self) {
        self.child = spawn(self.dir.path());
        self.wait();
    }

    /// Until it answers.
    fn wait(&self) {
        let begun = std::time::Instant::now();
        while Node::builder("wait").config(self.config()).build().is_err() {
            assert!(
                begun.elapsed() < std::time::Duration::from_secs(20),
                "no daemon came up"
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("rgaps.sock")
    }

    pub fn config(&self) -> Config {
        let mut config = Config::load(Some(&self.dir.path().join("rgaps.toml"))).unwrap();
        config.socket = Some(self.socket());
        config.autostart = false;
        config
    }

    pub fn node(&self, name: &str) -> Node {
        Node::builder(name).config(self.config()).build().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
