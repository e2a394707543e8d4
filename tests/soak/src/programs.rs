//! Members that are not this program: subscribers in Python, members in C, and commands that look on.

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

/// The program of members in C, which `make soak` compiles.
pub struct InC(PathBuf);

impl InC {
    pub fn find() -> anyhow::Result<InC> {
        Ok(InC(program("soak-member-c")?))
    }

    /// A command that becomes the member, and ends with us.
    pub fn member(&self, spec: &Spec) -> anyhow::Result<Command> {
        let kind = &KINDS[spec.topic];
        let wish = kind.wish(spec.seed);
        let service: [u64; 5] = match spec.publishes {
            true => [
                kind.reliable.into(),
                kind.drops.into(),
                kind.transient_local.into(),
                kind.depth.into(),
                kind.bytes,
            ],
            false => [
                wish.reliable.into(),
                wish.depth.unwrap_or(0).into(),
                wish.late.into(),
                0,
                0,
            ],
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["become", "--"]).arg(&self.0);
        command.arg(if spec.publishes {
            "publish"
        } else {
            "subscribe"
        });
        command.args([spec.id.to_string(), spec.name(), spec.host.to_string()]);
        command.args([spec.topic.to_string(), kind.name.to_owned()]);
        command
            .arg(&spec.config)
            .arg(&spec.folder)
            .arg(spec.seed.to_string());
        command.args(service.map(|word| word.to_string()));
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
