//! `bench memory`: the memory of an idle topic, and of the daemon.

use crate::machine::Machine;
use crate::stage::Stage;
use anyhow::Context;
use rgaps::{Config, Domain};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;

/// What `bench memory` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Memory {
    /// Number of topics, each with a publisher and a subscriber, and without a message.
    pub topics: u64,
    /// Memory that was touched for each topic: the sum of `idle_topic`.
    pub idle_topic_bytes: u64,
    pub idle_topic: Parts,
    /// The daemon's resident memory before there was any topic, and with all of them.
    pub daemon_rss_bytes: u64,
    pub daemon_rss_with_topics_bytes: u64,
    pub machine: Machine,
}

/// Memory per topic: shared, the daemon's private memory, and the client's.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Parts {
    pub shared_bytes: u64,
    pub daemon_bytes: u64,
    pub client_bytes: u64,
}

/// Creates `topics` topics and measures the memory that they take.
pub fn memory(user: &Config, topics: u64) -> anyhow::Result<Memory> {
    let machine = Machine::describe();
    let stage = Stage::new(user, Domain::Host)?;
    let daemon = stage.node.status()?.pid;
    let daemon_rss_bytes = status_bytes(&daemon.to_string(), "VmRSS:")?;
    // The first topic of a zone also creates the zone's shared memory, which later topics use.
    let _first = members(&stage, "bench/memory/first")?;
    let before = Touched::now(daemon)?;
    let made = (0..topics).map(|topic| members(&stage, &format!("bench/memory/{topic}")));
    let made = made.collect::<anyhow::Result<Vec<_>>>()?;
    let after = Touched::now(daemon)?;
    let daemon_rss_with_topics_bytes = status_bytes(&daemon.to_string(), "VmRSS:")?;
    drop(made);
    let each = |of: fn(&Touched) -> u64| of(&after).saturating_sub(of(&before)) / topics.max(1);
    let idle_topic = Parts {
        shared_bytes: each(|touched| touched.shared),
        daemon_bytes: each(|touched| touched.daemon),
        client_bytes: each(|touched| touched.client),
    };
    Ok(Memory {
        topics,
        idle_topic_bytes: idle_topic.shared_bytes
            + idle_topic.daemon_bytes
            + idle_topic.client_bytes,
        idle_topic,
        daemon_rss_bytes,
        daemon_rss_with_topics_bytes,
        machine,
    })
}

fn members(stage: &Stage, topic: &str) -> anyhow::Result<(rgaps::Publisher, rgaps::Subscriber)> {
    let publisher = stage.node.publisher(topic).create()?;
    Ok((publisher, stage.node.subscriber(topic).create()?))
}

/// Bytes of memory that exist now.
struct Touched {
    /// Pages of the daemon's memfds, whichever process touched them.
    shared: u64,
    /// The daemon's private memory.
    daemon: u64,
    /// The private memory of this process.
    client: u64,
}

impl Touched {
    fn now(daemon: u32) -> anyhow::Result<Touched> {
        Ok(Touched {
            shared: memfd_bytes(daemon)?,
            daemon: status_bytes(&daemon.to_string(), "RssAnon:")?,
            client: status_bytes("self", "RssAnon:")?,
        })
    }
}

fn status_bytes(process: &str, field: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{path} has no {field}"))? << 10)
}

/// Returns the bytes of memory behind the rgaps memfds of a process, each counted once.
fn memfd_bytes(process: u32) -> anyhow::Result<u64> {
    let folder = format!("/proc/{process}/fd");
    let mut inodes = std::collections::HashMap::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("{folder} cannot be read"))? {
        let path = entry?.path();
        let is_ours = std::fs::read_link(&path)
            .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:rgaps"));
        if is_ours {
            let there = std::fs::metadata(&path)?;
            inodes.insert(there.ino(), there.blocks() * 512);
        }
    }
    anyhow::ensure!(
        !inodes.is_empty(),
        "the daemon has no shared memory that can be seen"
    );
    Ok(inodes.values().sum())
}
