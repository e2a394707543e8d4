//! `bench memory`: what an idle topic takes, and what the daemon does.

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
    /// Topics that were made, each with a publisher and a subscriber, without a message.
    pub topics: u64,
    /// Memory that was touched for each of them: shared, the daemon's and the client's.
    pub idle_topic_bytes: u64,
    pub idle_topic: Parts,
    /// The daemon's resident memory before there was any topic, and with all of them.
    pub daemon_rss_bytes: u64,
    pub daemon_rss_with_topics_bytes: u64,
    pub machine: Machine,
}

/// Per topic.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Parts {
    pub shared_bytes: u64,
    pub daemon_bytes: u64,
    pub client_bytes: u64,
}

/// Makes `topics` topics and looks what that took.
pub fn memory(user: &Config, topics: u64) -> anyhow::Result<Memory> {
    let machine = Machine::describe();
    let stage = Stage::new(user, Domain::Host)?;
    let daemon = stage.node.status()?.pid;
    let daemon_rss_bytes = status_bytes(&daemon.to_string(), "VmRSS:")?;
    // What comes with the first topic of a zone comes once.
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

struct Touched {
    /// Pages of the daemon's memfds, whoever touched them.
    shared: u64,
    /// The daemon's private memory.
    daemon: u64,
    /// This process's.
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

/// Memory behind a process's memfds, each counted once.
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
