//! A daemon of the test's own.

use rgaps::{Config, Node};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
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
            let status =
                Command::new(cargo).args(["build", "-q", "-p", "rgapsd"]).status().unwrap();
            assert!(status.success());
            let exe = std::env::current_exe().unwrap();
            exe.parent().unwrap().parent().unwrap().join("rgapsd")
        })
        .clone()
}

impl Daemon {
    pub fn start() -> Daemon {
        Daemon::start_with("")
    }

    /// With more lines for its configuration file.
    pub fn start_with(config: &str) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rgaps.toml"), config).unwrap();
        let child = Command::new(rgapsd())
            .args(["--foreground", "--socket"])
            .arg(dir.path().join("rgaps.sock"))
            .arg("--config")
            .arg(dir.path().join("rgaps.toml"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Daemon { child, dir };
        while !daemon.socket().exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        daemon
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
