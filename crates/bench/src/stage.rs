//! A daemon, a folder and a node of a benchmark's own.

use anyhow::Context;
use rgaps::{Config, Domain, Node};
use tempfile::TempDir;

/// A daemon whose benchmark was killed leaves after this long.
const IDLE_EXIT_MS: u64 = 2000;

/// Where a benchmark plays. Dropping it stops the daemon.
pub struct Stage {
    pub node: Node,
    pub config: Config,
    pub domain: Domain,
    _folder: TempDir,
}

impl Stage {
    /// Starts a daemon with the user's configuration, but apart from his.
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
        // Whether the processes are under MPS is for their environment to say.
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
        // It would leave by itself.
        let _ = self.node.stop_daemon();
    }
}

/// A node of a member of the benchmark.
pub fn node(config: &Config, name: &str) -> anyhow::Result<Node> {
    Ok(Node::builder(name).config(config.clone()).build()?)
}
