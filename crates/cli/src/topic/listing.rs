//! `topic list` and `topic info`.

use crate::absent;
use crate::args::Common;
use crate::exit::NoSuchTopic;
use crate::output::{table, Output};
use crate::{session, units};
use rgaps::{BlockSum, ClientError, MemoryUses, PeersInfo, RefusalCode, RemoteRow, TopicRow};
use rgaps_session::report::{Device, Publisher, Subscriber, Topic, TopicDetails};
use rgaps_session::{is_pattern, pattern_matches, LINKS_CLIENT};
use std::io::{self, Write};

pub fn list(common: &Common, wanted: &[String], output: &mut Output) -> anyhow::Result<()> {
    let node = session::look(common)?;
    let wanted: Vec<String> = wanted.iter().map(|one| node.resolve_topic(one)).collect();
    let rows = node.topics()?.into_iter();
    let is_wanted = |row: &TopicRow| {
        let mut wanted = wanted.iter();
        wanted.len() == 0 || wanted.any(|pattern| pattern_matches(pattern, &row.name))
    };
    let topics: Vec<Topic> = rows.filter(is_wanted).map(Topic::from).collect();
    output.put(&topics, |to| {
        let cells: Vec<_> = topics.iter().map(cells).collect();
        let heads = [
            "TOPIC",
            "TYPE",
            "DOMAIN",
            "PUBLISHERS",
            "SUBSCRIBERS",
            "MESSAGES",
            "BYTES PUBLISHED",
        ];
        table(to, &heads, &cells)
    })
}

fn cells(topic: &Topic) -> Vec<String> {
    let publishers = match topic.orphans {
        0 => topic.publishers.to_string(),
        orphans => format!("{} (+{orphans} gone)", topic.publishers),
    };
    vec![
        topic.name.clone(),
        type_or_untyped(&topic.type_name),
        domain_cell(topic),
        publishers,
        topic.subscribers.to_string(),
        topic.messages.to_string(),
        units::bytes(topic.bytes),
    ]
}

fn domain_cell(topic: &Topic) -> String {
    let domain = topic.domain.as_deref().unwrap_or("-");
    match topic.is_device {
        true => format!("{domain} (device topic)"),
        false => domain.to_owned(),
    }
}

fn type_or_untyped(name: &str) -> String {
    if name.is_empty() { "untyped" } else { name }.to_owned()
}

/// The type that a subscriber expects, or `any`.
fn type_or_any(name: &str) -> String {
    if name.is_empty() { "any" } else { name }.to_owned()
}

fn blocks_cell(sum: &BlockSum) -> String {
    match sum.blocks {
        0 => "-".to_owned(),
        blocks => format!("{blocks} ({})", units::bytes(sum.bytes)),
    }
}

fn shown_client(publisher: &Publisher) -> &str {
    match publisher.orphan {
        true => "(gone)",
        false => &publisher.client,
    }
}

pub fn info(common: &Common, name: &str, output: &mut Output) -> anyhow::Result<()> {
    let node = session::look(common)?;
    let name = &node.resolve_topic(name);
    let node = node.with_full_names();
    if !is_pattern(name) {
        let topic = node.topic(name);
        let topic = topic.map_err(|error| absent::explain(&node, name, error))?;
        let info = TopicDetails::from(topic);
        let peers = node.peers()?;
        return output.put(&info, |to| {
            show(&info, to)?;
            show_not_linked(&info, &peers, to)
        });
    }
    let mut rows = node.topics()?;
    rows.retain(|row| pattern_matches(name, &row.name));
    if rows.is_empty() {
        let hint = absent::other_hosts(&node)?;
        let text = format!("no topic matches '{name}' now; see 'rgaps topic list'{hint}");
        return Err(NoSuchTopic(text).into());
    }
    let mut shown = 0;
    for row in rows {
        let info = match node.topic(&row.name) {
            Ok(topic) => TopicDetails::from(topic),
            // The topic has disappeared since it was listed.
            Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        output.put(&info, |to| {
            if shown > 0 {
                writeln!(to, "\n")?;
            }
            show(&info, to)
        })?;
        shown += 1;
    }
    Ok(())
}

fn show(info: &TopicDetails, to: &mut dyn Write) -> io::Result<()> {
    let topic = &info.topic;
    writeln!(to, "topic     {}", topic.name)?;
    writeln!(to, "type      {}", type_or_untyped(&topic.type_name))?;
    writeln!(to, "domain    {}", topic.domain.as_deref().unwrap_or("-"))?;
    if let Some(device) = &info.device {
        show_device(device, to)?;
    }
    writeln!(
        to,
        "published {}, {}\n",
        units::counted(topic.messages, "message"),
        units::bytes(topic.bytes)
    )?;
    show_publishers(info, to)?;
    show_subscribers(info, to)?;
    show_slow(info, to)?;
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

fn show_publishers(info: &TopicDetails, to: &mut dyn Write) -> io::Result<()> {
    let types = have_several_types(info);
    let publishers = info.publisher_list.iter();
    let publishers: Vec<_> = publishers.map(|row| publisher_cells(row, types)).collect();
    let heads = ["PUBLISHER", "PID", "HISTORY", "QOS", "MESSAGES", "KEPT"];
    table(to, &with_type(types, &heads), &publishers)?;
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
    writeln!(to)
}

fn show_subscribers(info: &TopicDetails, to: &mut dyn Write) -> io::Result<()> {
    let types = have_several_types(info);
    let subscribers = info.subscriber_list.iter();
    let subscribers: Vec<_> = subscribers
        .map(|row| subscriber_cells(row, types))
        .collect();
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
    table(to, &with_type(types, &heads), &subscribers)
}

/// Whether the members of a topic have different types, so that the table needs a column of types.
fn have_several_types(info: &TopicDetails) -> bool {
    let publishers = info.publisher_list.iter().map(|row| &row.type_name);
    let subscribers = info.subscriber_list.iter().map(|row| &row.type_name);
    let mut types = publishers
        .chain(subscribers)
        .filter(|name| !name.is_empty());
    let first = types.next();
    types.any(|name| Some(name) != first)
}

/// Adds a column of types to the heads of a table of members, if `types`.
fn with_type<'a>(types: bool, heads: &[&'a str]) -> Vec<&'a str> {
    let mut heads = heads.to_vec();
    if types {
        heads.insert(2, "TYPE");
    }
    heads
}

/// Prints the hosts without a link if the topic has no publisher on this host: the publisher may be on one of them.
fn show_not_linked(info: &TopicDetails, peers: &PeersInfo, to: &mut dyn Write) -> io::Result<()> {
    let is_local = |publisher: &Publisher| !publisher.orphan && publisher.client != LINKS_CLIENT;
    if info.publisher_list.iter().any(is_local) {
        return Ok(());
    }
    for (at, host) in peers.not_linked().enumerate() {
        if at == 0 {
            writeln!(to)?;
        }
        writeln!(
            to,
            "host '{host}' is not linked, so nothing comes from its publishers: see 'rgaps peers'"
        )?;
    }
    Ok(())
}

/// Prints the device topic that a bridge connects with this topic, and the members in its seats.
fn show_device(device: &Device, to: &mut dyn Write) -> io::Result<()> {
    let direction = match device.kernels_publish {
        true => "kernels publish, hosts receive",
        false => "hosts publish, kernels receive",
    };
    writeln!(
        to,
        "device    {direction}, in {}: {} in the ring, {} blocks of {}",
        device.domain,
        units::counted(device.depth.into(), "message"),
        device.blocks,
        units::bytes(device.block_bytes)
    )?;
    writeln!(
        to,
        "          {} so far; {} forwarded, {} refused",
        units::counted(device.newest, "message"),
        device.forwarded,
        device.refused
    )?;
    if device.evictions > 0 {
        writeln!(
            to,
            "          {} evicted: the process ended, or received nothing for longer than limits.device_stall_ms",
            units::counted(device.evictions, "subscriber")
        )?;
    }
    if device.takes_turns {
        writeln!(
            to,
            "warning   without MPS, kernels of two processes on this GPU take turns: milliseconds for each message; run \
             'rgaps up --mps', then start them with 'rgaps run -- COMMAND'"
        )?;
    }
    for seat in &device.seats {
        let state = match (seat.joined, seat.evicted, seat.reliable) {
            (_, true, _) => "evicted".to_owned(),
            (false, ..) => "not joined".to_owned(),
            (true, _, reliable) => format!(
                "{}, wants message {}, missed {}",
                if reliable { "reliable" } else { "best_effort" },
                seat.next_sequence,
                seat.missed
            ),
        };
        let holds = match seat.held {
            0 => String::new(),
            held => format!(", holds {}", units::counted(held.into(), "block")),
        };
        let who = if seat.is_bridge { " (for hosts)" } else { "" };
        let waits = match seat.is_waited_for {
            true => "; the publisher waits for it",
            false => "",
        };
        writeln!(to, "seat {:<4} {state}{holds}{waits}{who}", seat.seat)?;
    }
    Ok(())
}

/// Prints which publisher waits for which subscriber, and which continues without slow ones.
fn show_slow(info: &TopicDetails, to: &mut dyn Write) -> io::Result<()> {
    let waiting = info.publisher_list.iter().flat_map(|publisher| {
        let slow = info.subscriber_list.iter();
        let slow = slow.filter(|row| publisher.waits_for.contains(&row.slot));
        slow.map(move |subscriber| (publisher.slot, subscriber))
    });
    for (at, (publisher, subscriber)) in waiting.enumerate() {
        if at == 0 {
            writeln!(to)?;
        }
        writeln!(
            to,
            "publisher {publisher} waits for subscriber {} '{}' (process {}), which has not read the messages that it keeps",
            subscriber.slot, subscriber.client, subscriber.pid
        )?;
    }
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

fn remote_cells(remote: &RemoteRow) -> Vec<String> {
    vec![
        remote.host.clone(),
        remote.subscribers.to_string(),
        if remote.ready { "yes" } else { "no" }.to_owned(),
        remote.path.clone(),
    ]
}

fn publisher_cells(publisher: &Publisher, types: bool) -> Vec<String> {
    let history = match publisher.history_bytes {
        Some(bytes) => format!(
            "{}({}, {})",
            publisher.history,
            publisher.depth,
            units::bytes(bytes)
        ),
        None => format!("{}({})", publisher.history, publisher.depth),
    };
    let mut cells = vec![
        format!("{} {}", publisher.slot, shown_client(publisher)),
        publisher.pid.to_string(),
        history,
        qos(publisher.reliable, publisher.transient_local),
        publisher.messages.to_string(),
        publisher.kept.to_string(),
    ];
    if types {
        cells.insert(2, type_or_untyped(&publisher.type_name));
    }
    cells
}

/// The cells of a publisher's memory: blocks and bytes by use, and leased bytes that no block uses.
fn memory_cells(publisher: &Publisher) -> Vec<String> {
    let MemoryUses {
        history,
        loans,
        held,
        replicas,
    } = &publisher.used;
    let idle = publisher.leased_bytes.saturating_sub(publisher.used_bytes);
    vec![
        format!("{} {}", publisher.slot, shown_client(publisher)),
        units::bytes(publisher.leased_bytes),
        blocks_cell(history),
        blocks_cell(loans),
        blocks_cell(held),
        blocks_cell(replicas),
        units::bytes(idle),
    ]
}

fn subscriber_cells(subscriber: &Subscriber, types: bool) -> Vec<String> {
    let qos = qos(subscriber.reliable, subscriber.transient_local);
    let mut cells = vec![
        format!("{} {}", subscriber.slot, subscriber.client),
        subscriber.pid.to_string(),
        match subscriber.depth {
            0 => qos,
            depth => format!("{qos}, depth {depth}"),
        },
        subscriber.received.to_string(),
        subscriber.missed.to_string(),
        subscriber.held.to_string(),
        subscriber.lag.to_string(),
        subscriber.path.clone(),
    ];
    if types {
        cells.insert(2, type_or_any(&subscriber.type_name));
    }
    cells
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
