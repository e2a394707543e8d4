//! Members that are not this program: subscribers in Python, and commands that look on.

use crate::board::Spec;
use crate::host::{program, Host};
use crate::topics::KINDS;
use anyhow::{bail, Context};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where this package's sources are, as it was built.
const SOURCES: &str = env!("CARGO_MANIFEST_DIR");

/// Python with the module that was built beside this program.
pub struct Python {
    interpreter: PathBuf,
    modules: PathBuf,
}

impl Python {
    /// Puts the module together below `folder`. The error says why it cannot be used.
    pub fn find(folder: &Path) -> anyhow::Result<Python> {
        let modules = folder.join("python");
        let package = modules.join("rgaps");
        std::fs::create_dir_all(&package)?;
        let sources = Path::new(SOURCES).join("../../crates/python/python/rgaps");
        for source in std::fs::read_dir(sources)? {
            let source = source?.path();
            if let Some(name) = source.file_name() {
                std::os::unix::fs::symlink(&source, package.join(name))?;
            }
        }
        let library = program("lib_rgaps.so")?;
        std::os::unix::fs::symlink(library, package.join("_rgaps.abi3.so"))?;
        let found = Command::new("python3")
            .args(["-c", "import rgaps, sys; print(sys.executable)"])
            .env("PYTHONPATH", &modules)
            .stdin(Stdio::null())
            .output()
            .context("python3 cannot be run")?;
        if !found.status.success() {
            bail!("{}", String::from_utf8_lossy(&found.stderr).trim());
        }
        let interpreter = String::from_utf8(found.stdout)?.trim().into();
        Ok(Python {
            interpreter,
            modules,
        })
    }

    /// A command that becomes the subscriber, and ends with us.
    pub fn subscriber(&self, spec: &Spec) -> anyhow::Result<Command> {
        let kind = &KINDS[spec.topic];
        let wish = kind.wish(spec.seed);
        let spec = json!({
            "id": spec.id,
            "name": spec.name(),
            "host": spec.host,
            "topic": spec.topic,
            "topic_name": kind.name,
            "config": spec.config,
            "folder": spec.folder,
            "wish": { "reliable": wish.reliable, "depth": wish.depth, "late": wish.late },
        });
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["become", "--"]).arg(&self.interpreter);
        command.arg(Path::new(SOURCES).join("python/member.py"));
        command.arg(spec.to_string());
        command.env("PYTHONPATH", &self.modules);
        Ok(command)
    }
}

/// A command that looks on, and where.
pub struct Observer {
    pub host: usize,
    pub child: Child,
    which: usize,
}

const OBSERVERS: [&[&str]; 2] = [
    &["topic", "echo", "--format", "summary", "soak/lossy"],
    &["topic", "hz", "--json", "soak/**"],
];

impl Observer {
    /// Each host has one of each.
    pub fn count() -> usize {
        OBSERVERS.len()
    }

    pub fn start(
        hosts: &[Host],
        host: usize,
        which: usize,
        log: Stdio,
    ) -> anyhow::Result<Observer> {
        let mut command = hosts[host].command(&program("rgaps")?)?;
        command.arg("--config").arg(hosts[host].config_path());
        command.args(OBSERVERS[which]).env_remove("RUST_LOG");
        let child = command.stdout(Stdio::null()).stderr(log).spawn()?;
        Ok(Observer { host, child, which })
    }

    pub fn which(&self) -> usize {
        self.which
    }

    pub fn name(&self) -> String {
        format!(
            "'rgaps {}' on host-{}",
            OBSERVERS[self.which].join(" "),
            self.host
        )
    }
}
