//! `topic list` and `topic info`.

use crate::args::Common;
use crate::output::{table, Output};
use crate::{session, units};
use rgaps::{
    BlockSum, History, MismatchRow, PublisherRow, RemoteRow, SubscriberRow, TopicInfo, TopicRow,
};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Topic<'a> {
    name: &'a str,
    type_name: &'a str,
    domain: Option<String>,
    publishers: u32,
    subscribers: u32,
    orphans: u32,
    messages: u64,
    bytes: u64,
}

impl<'a> From<&'a TopicRow> for Topic<'a> {
    fn from(row: &'a TopicRow) -> Self {
        Topic {
            name: &row.name,
            type_name: &row.type_name,
            domain: row.domain.map(|domain| domain.to_string()),
            publishers: row.publishers,
            subscribers: row.subscribers,
            orphans: row.orphans,
            messages: row.messages,
            bytes: row.bytes,
        }
    }
}

pub fn list(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let rows = session::look(common)?.topics()?;
    let topics: Vec<Topic<'_>> = rows.iter().map(Topic::from).collect();
    output.put(&topics, |to| {
        let cells: Vec<_> = topics.iter().map(cells).collect();
        let heads = [
            "TOPIC",
            "TYPE",
            "DOMAIN",
            "PUBLISHERS",
            "SUBSCRIBERS",
            "MESSAGES",
            "BYTES",
        ];
        table(to, &heads, &cells)
    })
}

fn cells(topic: &Topic<'_>) -> Vec<String> {
    let publishers = match topic.orphans {
        0 => topic.publishers.to_string(),
        orphans => format!("{} (+{orphans} gone)", topic.publishers),
    };
    vec![
        topic.name.to_owned(),
        or_dash(topic.type_name),
        topic.domain.clone().unwrap_or_else(|| "-".to_owned()),
        publishers,
        topic.subscribers.to_string(),
        topic.messages.to_string(),
        units::bytes(topic.bytes),
    ]
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

#[derive(Serialize)]
struct Info<'a> {
    #[serde(flatten)]
    topic: Topic<'a>,
    zone: String,
    publisher_list: Vec<Publisher<'a>>,
    subscriber_list: Vec<Subscriber<'a>>,
    /// Hosts that have subscribers.
    hosts: Vec<Remote<'a>>,
    /// Publishers and subscribers that do not match.
    mismatches: Vec<Mismatch<'a>>,
}

#[derive(Serialize)]
struct Publisher<'a> {
    slot: u32,
    client: &'a str,
    pid: u32,
    type_name: &'a str,
    mismatched: u32,
    gone: bool,
    history: &'static str,
    depth: u32,
    history_bytes: Option<u64>,
    reliable: bool,
    transient_local: bool,
    max_loans: u32,
    messages: u64,
    kept: u64,
    leased_bytes: u64,
    used_bytes: u64,
    used: Uses,
    blocks_used: u32,
    drops: u64,
}

/// What a publisher's memory is used for.
#[derive(Serialize)]
struct Uses {
    history: Blocks,
    loans: Blocks,
    held: Blocks,
    replicas: Blocks,
}

#[derive(Serialize)]
struct Blocks {
    blocks: u32,
    bytes: u64,
}

impl From<BlockSum> for Blocks {
    fn from(sum: BlockSum) -> Self {
        let BlockSum { blocks, bytes } = sum;
        Blocks { blocks, bytes }
    }
}

impl Blocks {
    fn cell(&self) -> String {
        match self.blocks {
            0 => "-".to_owned(),
            blocks => format!("{blocks} ({})", units::bytes(self.bytes)),
        }
    }
}

#[derive(Serialize)]
struct Mismatch<'a> {
    publisher: u32,
    subscriber: u32,
    reason: &'a str,
}

#[derive(Serialize)]
struct Remote<'a> {
    host: &'a str,
    subscribers: u32,
    ready: bool,
    path: &'a str,
}

impl<'a> From<&'a MismatchRow> for Mismatch<'a> {
    fn from(row: &'a MismatchRow) -> Self {
        Mismatch {
            publisher: row.publisher,
            subscriber: row.subscriber,
            reason: &row.reason,
        }
    }
}

impl<'a> From<&'a RemoteRow> for Remote<'a> {
    fn from(row: &'a RemoteRow) -> Self {
        Remote {
            host: &row.host,
            subscribers: row.subscribers,
            ready: row.ready,
            path: &row.path,
        }
    }
}

#[derive(Serialize)]
struct Subscriber<'a> {
    slot: u32,
    client: &'a str,
    pid: u32,
    type_name: &'a str,
    observer: bool,
    mismatched: u32,
    reliable: bool,
    transient_local: bool,
    depth: u32,
    received: u64,
    missed: u64,
    held: u32,
    lag: u64,
    dropped_by: u32,
    domain: Option<String>,
    path: &'a str,
}

impl<'a> From<&'a PublisherRow> for Publisher<'a> {
    fn from(row: &'a PublisherRow) -> Self {
        let (history, history_bytes) = match row.offer.history {
            History::KeepLast(_) => ("keep_last", None),
            History::KeepAll { bytes, .. } => ("keep_all", Some(bytes)),
        };
        Publisher {
            slot: row.slot,
            client: &row.client,
            pid: row.pid,
            type_name: &row.type_name,
            mismatched: row.mismatched,
            gone: row.orphan,
            history,
            depth: row.offer.history.depth(),
            history_bytes,
            reliable: row.offer.reliable,
            transient_local: row.offer.transient_local,
            max_loans: row.offer.loans,
            messages: row.head.saturating_sub(row.start),
            kept: row.head.saturating_sub(row.tail),
            leased_bytes: row.leased_bytes,
            used_bytes: row.uses.bytes(),
            used: Uses {
                history: row.uses.history.into(),
                loans: row.uses.loans.into(),
                held: row.uses.held.into(),
                replicas: row.uses.replicas.into(),
            },
            blocks_used: row.blocks_used,
            drops: row.drops,
        }
    }
}

impl Publisher<'_> {
    fn shown_client(&self) -> &str {
        if self.gone {
            "(gone)"
        } else {
            self.client
        }
    }
}

impl<'a> From<&'a SubscriberRow> for Subscriber<'a> {
    fn from(row: &'a SubscriberRow) -> Self {
        Subscriber {
            slot: row.slot,
            client: &row.client,
            pid: row.pid,
            type_name: &row.type_name,
            observer: row.observer,
            mismatched: row.mismatched,
            reliable: row.demand.reliable,
            transient_local: row.demand.transient_local,
            depth: row.demand.depth,
            received: row.received,
            missed: row.missed,
            held: row.held,
            lag: row.lag,
            dropped_by: row.dropped_by,
            domain: row.domain.map(|domain| domain.to_string()),
            path: &row.path,
        }
    }
}

pub fn info(common: &Common, name: &str, output: &mut Output) -> anyhow::Result<()> {
    let found: TopicInfo = session::look(common)?.topic(name)?;
    let info = Info {
        topic: Topic::from(&found.row),
        zone: format!("{:032x}", found.zone),
        publisher_list: found.publishers.iter().map(Publisher::from).collect(),
        subscriber_list: found.subscribers.iter().map(Subscriber::from).collect(),
        hosts: found.remote.iter().map(Remote::from).collect(),
        mismatches: found.mismatches.iter().map(Mismatch::from).collect(),
    };
    output.put(&info, |to| show(&info, to))
}

fn show(info: &Info<'_>, to: &mut dyn Write) -> io::Result<()> {
    let topic = &info.topic;
    writeln!(to, "topic     {}", topic.name)?;
    writeln!(to, "type      {}", or_dash(topic.type_name))?;
    writeln!(to, "domain    {}", topic.domain.as_deref().unwrap_or("-"))?;
    writeln!(
        to,
        "messages  {}, {}\n",
        topic.messages,
        units::bytes(topic.bytes)
    )?;
    let publishers: Vec<_> = info.publisher_list.iter().map(publisher_cells).collect();
    let heads = ["PUBLISHER", "PID", "HISTORY", "QOS", "MESSAGES", "KEPT"];
    table(to, &heads, &publishers)?;
    writeln!(to)?;
    let memory: Vec<_> = info.publisher_list.iter().map(memory_cells).collect();
    let heads = [
        "MEMORY OF",
        "LEASED",
        "HISTORY",
        "LOANS",
        "HELD",
        "REPLICAS",
        "IDLE",
    ];
    table(to, &heads, &memory)?;
    writeln!(to)?;
    let subscribers: Vec<_> = info.subscriber_list.iter().map(subscriber_cells).collect();
    let heads = [
        "SUBSCRIBER",
        "PID",
        "QOS",
        "RECEIVED",
        "MISSED",
        "HELD",
        "LAG",
        "PATH",
    ];
    table(to, &heads, &subscribers)?;
    show_drops(info, to)?;
    if !info.mismatches.is_empty() {
        writeln!(to)?;
    }
    for mismatch in &info.mismatches {
        writeln!(
            to,
            "publisher {} and subscriber {} do not match: {}",
            mismatch.publisher, mismatch.subscriber, mismatch.reason
        )?;
    }
    if info.hosts.is_empty() {
        return Ok(());
    }
    writeln!(to)?;
    let hosts: Vec<_> = info.hosts.iter().map(remote_cells).collect();
    table(to, &["HOST", "SUBSCRIBERS", "READY", "PATH"], &hosts)
}

/// Who goes on without whom.
fn show_drops(info: &Info<'_>, to: &mut dyn Write) -> io::Result<()> {
    let droppers = info.publisher_list.iter().filter(|row| row.drops > 0);
    let dropped = info.subscriber_list.iter().filter(|row| row.dropped_by > 0);
    for (at, publisher) in droppers.enumerate() {
        if at == 0 {
            writeln!(to)?;
        }
        writeln!(
            to,
            "publisher {} continued {} without a slow reliable subscriber, which missed messages",
            publisher.slot,
            units::counted(publisher.drops, "time")
        )?;
    }
    for subscriber in dropped {
        writeln!(
            to,
            "subscriber {} is too slow for {}, which does not wait for it until it has read everything",
            subscriber.slot,
            units::counted(subscriber.dropped_by.into(), "publisher"),
        )?;
    }
    Ok(())
}

fn remote_cells(remote: &Remote<'_>) -> Vec<String> {
    vec![
        remote.host.to_owned(),
        remote.subscribers.to_string(),
        if remote.ready { "yes" } else { "no" }.to_owned(),
        remote.path.to_owned(),
    ]
}

fn publisher_cells(publisher: &Publisher<'_>) -> Vec<String> {
    let history = match publisher.history_bytes {
        Some(bytes) => format!(
            "{}({}, {})",
            publisher.history,
            publisher.depth,
            units::bytes(bytes)
        ),
        None => format!("{}({})", publisher.history, publisher.depth),
    };
    vec![
        format!("{} {}", publisher.slot, publisher.shown_client()),
        publisher.pid.to_string(),
        history,
        qos(publisher.reliable, publisher.transient_local),
        publisher.messages.to_string(),
        publisher.kept.to_string(),
    ]
}

/// What a publisher leases, and why: blocks and bytes by use, and what no block needs now.
fn memory_cells(publisher: &Publisher<'_>) -> Vec<String> {
    let Uses {
        history,
        loans,
        held,
        replicas,
    } = &publisher.used;
    let idle = publisher.leased_bytes.saturating_sub(publisher.used_bytes);
    vec![
        format!("{} {}", publisher.slot, publisher.shown_client()),
        units::bytes(publisher.leased_bytes),
        history.cell(),
        loans.cell(),
        held.cell(),
        replicas.cell(),
        units::bytes(idle),
    ]
}

fn subscriber_cells(subscriber: &Subscriber<'_>) -> Vec<String> {
    vec![
        format!("{} {}", subscriber.slot, subscriber.client),
        subscriber.pid.to_string(),
        qos(subscriber.reliable, subscriber.transient_local),
        subscriber.received.to_string(),
        subscriber.missed.to_string(),
        subscriber.held.to_string(),
        subscriber.lag.to_string(),
        subscriber.path.to_owned(),
    ]
}

fn qos(reliable: bool, transient_local: bool) -> String {
    let reliability = if reliable { "reliable" } else { "best_effort" };
    let durability = if transient_local {
        "transient_local"
    } else {
        "volatile"
    };
    format!("{reliability}, {durability}")
}
