//! A daemon, a folder and a node of a benchmark's own.

use anyhow::Context;
use rgaps::{Config, Domain, Node};
use tempfile::TempDir;

/// How long the daemon outlives a benchmark that was killed.
const IDLE_EXIT_MS: u64 = 2000;

/// The daemon, folder and node of a benchmark. Dropping it stops the daemon.
pub struct Stage {
    pub node: Node,
    pub config: Config,
    pub domain: Domain,
    _folder: TempDir,
}

impl Stage {
    /// Starts a daemon with the user's configuration, in a folder of its own.
    pub fn new(user: &Config, domain: Domain) -> anyhow::Result<Stage> {
        let folder = tempfile::Builder::new()
            .prefix("rgaps-bench-")
            .tempdir()
            .context("no temporary folder can be made; set TMPDIR")?;
        let mut config = Config {
            socket: Some(folder.path().join("r.sock")),
            idle_exit_ms: IDLE_EXIT_MS,
            autostart: true,
            access: Vec::new(),
            ..user.clone()
        };
        // The daemon must not start MPS: the environment of the benchmark decides whether its processes use it.
        config.cuda.mps = false;
        let node = node(&config, "rgaps-bench")?;
        Ok(Stage {
            node,
            config,
            domain,
            _folder: folder,
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // After an error the daemon ends by itself when it has been idle.
        let _ = self.node.stop_daemon();
    }
}

/// Creates a node of a benchmark's process.
pub fn node(config: &Config, name: &str) -> anyhow::Result<Node> {
    Ok(Node::builder(name).config(config.clone()).build()?)
}
