//! What supervisor and members share: a folder with a file for each member, and two files that say what all are to do.

use anyhow::Context;
use rgaps::{ClientError, Config, Node, OpenError};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process tries to join while daemons die under it.
const JOIN_LIMIT: Duration = Duration::from_secs(240);
const JOIN_PAUSE: Duration = Duration::from_millis(20);

/// What a process is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// No other member of the run has this number.
    pub id: u32,
    pub publishes: bool,
    pub host: usize,
    /// Of `topics::KINDS`.
    pub topic: usize,
    pub seed: u64,
    pub config: PathBuf,
    pub folder: PathBuf,
}

impl Spec {
    /// What listings and failures call it.
    pub fn name(&self) -> String {
        let role = if self.publishes { "pub" } else { "sub" };
        let (id, host) = (self.id, self.host);
        format!("{role}-{id}@host-{host}")
    }

    /// Whether all are to finish: disturbances are over.
    pub fn is_finishing(&self) -> bool {
        finish_file(&self.folder).exists()
    }

    /// Whether all are to leave.
    pub fn is_leaving(&self) -> bool {
        leave_file(&self.folder).exists()
    }

    /// The member's node. Tries again while there is no daemon.
    pub fn node(&self) -> anyhow::Result<Node> {
        let config = Config::load(Some(&self.config))?;
        let build = || Node::builder(&self.name()).config(config.clone()).build();
        until_joined(build)
    }
}

pub fn finish_file(folder: &Path) -> PathBuf {
    folder.join("finish")
}

pub fn leave_file(folder: &Path) -> PathBuf {
    folder.join("leave")
}

/// Tries again and again while there is no daemon.
pub fn until_joined<T>(mut join: impl FnMut() -> Result<T, OpenError>) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        match join() {
            Ok(joined) => return Ok(joined),
            Err(OpenError::Client(error)) if is_passing(&error) && begun.elapsed() < JOIN_LIMIT => {
                std::thread::sleep(JOIN_PAUSE);
            }
            Err(error) => return Err(error).context("cannot join"),
        }
    }
}

/// Whether an error is what a daemon looks like that is dead, or stopped.
pub fn is_passing(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Launch(_) | ClientError::DaemonLost { .. } | ClientError::NoAnswer { .. }
    )
}

/// How far a publisher is: a file that outlives it. It writes each word, and everyone reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Messages that it has begun to publish.
    pub begun: u64,
    /// Messages that are published.
    pub done: u64,
    /// How many were published when it learned that disturbances are over; 0 before.
    pub at_finish: u64,
}

pub struct Counter(File);

impl Counter {
    pub fn create(spec: &Spec) -> anyhow::Result<Counter> {
        let (topic, host, id) = (spec.topic, spec.host, spec.id);
        let path = spec.folder.join(format!("publisher-{topic}-{host}-{id}"));
        let file = File::create(&path);
        let file = file.with_context(|| path.display().to_string())?;
        file.write_all_at(&[0; 24], 0)?;
        Ok(Counter(file))
    }

    pub fn begun(&self, count: u64) -> std::io::Result<()> {
        self.0.write_all_at(&count.to_le_bytes(), 0)
    }

    pub fn done(&self, count: u64) -> std::io::Result<()> {
        self.0.write_all_at(&count.to_le_bytes(), 8)
    }

    pub fn at_finish(&self, count: u64) -> std::io::Result<()> {
        self.0.write_all_at(&count.to_le_bytes(), 16)
    }
}

/// How far a publisher is whose file this is.
fn read_counter(path: &Path) -> Option<Published> {
    let bytes = std::fs::read(path).ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Published {
        begun: word(0)?,
        done: word(8)?,
        at_finish: word(16)?,
    })
}

/// All publishers of a topic on a host, living and gone: their numbers, and how far they are.
pub fn publishers(folder: &Path, topic: usize, host: usize) -> Vec<(u32, Published)> {
    let prefix = format!("publisher-{topic}-{host}-");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_topic = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let id = name.strip_prefix(&prefix)?.parse().ok()?;
        Some((id, read_counter(&entry.path())?))
    });
    of_topic.collect()
}
