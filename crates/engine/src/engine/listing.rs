//! Listings and the status, for people and programs.

use super::Engine;
use crate::control::Control;
use crate::memory::Memory;
use crate::pools::Pool;
use crate::recovery::name_processes;
use crate::refuse::{bad, refuse};
use crate::sessions::{is_owner, SessionId};
use crate::topic::{Publisher, Subscriber, Topic};
use crate::zone::Zone;
use rgaps_pool::{PageSize, Provider, Segment};
use rgaps_session::{
    check_topic_name, Answer, ClientRow, MemoryUses, PoolRow, PublisherRow, Refusal, RefusalCode,
    RemoteRow, Status, SubscriberRow, TopicInfo, TopicRow, ZoneId, MAX_PACKET_BYTES,
    MAX_REMOTE_HOSTS, PAGE_ROWS,
};
use rgaps_sync::atomic::{AtomicU64, Ordering};
use rgaps_topic::{block_uses, pool_copies, BlockUse};
use std::collections::{BTreeMap, BTreeSet};

/// Most warnings in a status.
const MAX_WARNINGS: usize = 32;
/// Most warnings in the row of a pool.
const MAX_POOL_WARNINGS: usize = 4;
/// Longest warning, in characters.
const MAX_WARNING_CHARS: usize = 300;
/// Most pools in a listing: their rows have to fit one packet.
const MAX_POOL_ROWS: usize = 24;
const _: () =
    assert!(MAX_POOL_ROWS * (MAX_POOL_WARNINGS * MAX_WARNING_CHARS + 400) < MAX_PACKET_BYTES);
/// A status warns when so many per cent of a limit are used.
const NEARLY_FULL_PERCENT: usize = 90;

impl Engine {
    pub(super) fn status(&self, session: Option<SessionId>) -> Status {
        let sessions = self.sessions.iter();
        let clients = sessions.filter(|(_, session)| session.welcomed).count();
        let zones = self.zones.iter();
        Status {
            version: self.setup.version.clone(),
            realm: self.setup.config.realm.clone(),
            pid: std::process::id(),
            socket: self.setup.socket.display().to_string(),
            uptime_ms: self.now.duration_since(self.started).as_millis() as u64,
            clients: clients as u32,
            topics: zones.map(|zone| zone.topics().count() as u32).sum(),
            zones: self.zones.count() as u32,
            rss_bytes: rss_bytes(),
            idle_exit_ms: self
                .setup
                .config
                .idle_exit()
                .map(|wait| wait.as_millis() as u64),
            clients_reaped: self.counters.clients_reaped,
            blocks_reclaimed: self.counters.blocks_reclaimed,
            sessions_cut_off: self.counters.sessions_cut_off,
            recovering: self.is_recovering(),
            kept: self.kept_history(session),
            warnings: self.warnings(),
            links: self.links_info(),
        }
    }

    /// The keys of those settings whose values differ from the daemon's configuration.
    pub(super) fn unlike(&self, settings: Vec<(String, String)>) -> Vec<String> {
        let own = self.setup.config.leaves();
        let differs = |(key, value): &(String, String)| own.get(key) != Some(value);
        let unlike = settings.into_iter().filter(differs);
        unlike.map(|(key, _)| key).collect()
    }

    fn is_recovering(&self) -> bool {
        let awaits = |zone: &Zone| !zone.clients().awaited().is_empty();
        self.recovery.is_running(self.now) || self.zones.iter().any(awaits)
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.quarantine.warnings();
        let links = self.links_info().failure;
        warnings.extend(links.map(|failure| failure.to_string()));
        warnings.extend(
            self.unwritten
                .iter()
                .map(|unwritten| unwritten.warning.clone()),
        );
        warnings.extend(self.troubles.iter().cloned());
        for (_, session) in self.sessions.iter().filter(|(_, s)| s.detached) {
            warnings.push(format!(
                "client '{}' (process {}) closed its session without leaving and is detached: the memory that \
                 it holds stays until the process ends",
                session.name,
                session.pid()
            ));
        }
        for zone in self.zones.iter() {
            let awaited = zone.clients().awaited();
            if !awaited.is_empty() {
                warnings.push(format!(
                    "{} did not connect to this daemon after the previous one ended (class '{}'); if a process is \
                     stopped or hangs, continue it ('kill -CONT') or restart it",
                    name_processes(&awaited),
                    zone.class()
                ));
            }
            for (what, count, most) in [
                (
                    "clients",
                    zone.clients().count(),
                    zone.limits().clients as usize,
                ),
                (
                    "topics",
                    zone.topics().count(),
                    zone.limits().topics as usize,
                ),
            ] {
                if count * 100 >= most * NEARLY_FULL_PERCENT {
                    warnings.push(format!("{count} of at most {most} {what} (limits.{what})"));
                }
            }
            warnings.extend(zone.memory().iter().flat_map(pool_warnings));
        }
        warnings.extend(self.recovery.warnings(self.now));
        warnings.truncate(MAX_WARNINGS);
        warnings.iter().map(|warning| clip(warning)).collect()
    }

    /// Whether the session may know of a zone's topics.
    pub(super) fn may_see(&self, session: SessionId, zone: &Zone) -> bool {
        let Some(known) = self.sessions.get(session) else {
            return false;
        };
        let (credentials, groups) = (&known.peer.credentials, &known.peer.groups[..]);
        // Only root sees a class that the configuration does not have any more.
        self.access
            .class(zone.class())
            .map_or(credentials.uid == 0, |class| {
                class.may_subscribe(credentials, groups) || class.may_publish(credentials, groups)
            })
    }

    pub(super) fn list_topics(&self, session: SessionId, from: u32) -> Result<Answer, Refusal> {
        let visible = self.zones.iter().filter(|zone| self.may_see(session, zone));
        let page = by_name(visible).skip(from as usize).take(PAGE_ROWS);
        Ok(Answer::Topics(
            page.map(|(zone, topic)| topic_row(topic, zone)).collect(),
        ))
    }

    pub(super) fn describe_topic(&self, session: SessionId, name: &str) -> Result<Answer, Refusal> {
        check_topic_name(name).map_err(|error| bad(error.to_string()))?;
        let mut zones = self.zones.iter().filter(|zone| self.may_see(session, zone));
        let found = zones.find_map(|zone| Some((zone, zone.topic_named(name)?)));
        let (zone, topic) = found.ok_or_else(|| {
            let may = if self.access.is_open() {
                ""
            } else {
                " that you may see"
            };
            refuse(
                RefusalCode::NotFound,
                format!("there is no topic '{name}'{may}; see 'rgaps topic list'"),
            )
        })?;
        Ok(Answer::Topic(TopicInfo {
            row: topic_row(topic, zone),
            zone: zone.id(),
            publishers: topic
                .publishers
                .iter()
                .map(|p| publisher_row(topic, p, zone))
                .collect(),
            subscribers: topic
                .subscribers
                .iter()
                .map(|s| subscriber_row(topic, s, zone))
                .collect(),
            remote: {
                let mut rows = remote_rows(topic);
                rows.extend(self.links.unserved_rows(name));
                rows.truncate(MAX_REMOTE_HOSTS);
                rows
            },
            mismatches: topic.mismatch_rows(),
            device: topic.device().map(|device| Box::new(device.row.clone())),
        }))
    }

    pub(super) fn list_pools(&self, session: SessionId) -> Result<Answer, Refusal> {
        let visible = self.zones.iter().filter(|zone| self.may_see(session, zone));
        let rows = visible.flat_map(|zone| zone.memory().iter().map(|pool| pool_row(pool, zone)));
        Ok(Answer::Pools(rows.take(MAX_POOL_ROWS).collect()))
    }

    /// Lists the clients that a session may see: its user's own and those in zones that it may see. Root and the daemon's
    /// user see all.
    pub(super) fn list_clients(&self, asker: SessionId, from: u32) -> Result<Answer, Refusal> {
        let uid = self.uid_of(asker);
        let sees_all = is_owner(uid);
        let visible: BTreeSet<ZoneId> = self
            .zones
            .iter()
            .filter(|zone| sees_all || self.may_see(asker, zone))
            .map(|zone| zone.id())
            .collect();
        let mut known: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                let shares = || session.zones.keys().any(|zone| visible.contains(zone));
                session.welcomed && (sees_all || session.uid() == uid || shares())
            })
            .collect();
        known.sort_unstable_by_key(|(id, _)| *id);
        let counts = visible.iter().filter_map(|id| self.zones.get(*id));
        let counts: BTreeMap<ZoneId, _> = counts
            .map(|zone| (zone.id(), zone.topics().member_counts()))
            .collect();
        let page = known.into_iter().skip(from as usize).take(PAGE_ROWS);
        let rows = page.map(|(_, session)| {
            let of_zones = session
                .zones
                .iter()
                .filter_map(|(zone, client)| counts.get(zone)?.get(client));
            let (publishers, subscribers) =
                of_zones.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
            ClientRow {
                name: session.name.clone(),
                pid: session.pid(),
                uid: session.uid(),
                publishers,
                subscribers,
            }
        });
        Ok(Answer::Clients(rows.collect()))
    }
}

/// The topics of several zones in the order of their names.
fn by_name<'a>(
    zones: impl Iterator<Item = &'a Zone>,
) -> impl Iterator<Item = (&'a Zone, &'a Topic)> {
    let mut zones: Vec<_> = zones
        .map(|zone| (zone, zone.topics().by_name().peekable()))
        .collect();
    std::iter::from_fn(move || {
        let first = zones.iter_mut().filter_map(|(zone, topics)| {
            let name = topics.peek()?.name.as_str();
            Some((name, *zone, topics))
        });
        let (_, zone, topics) = first.min_by_key(|(name, ..)| *name)?;
        Some((zone, topics.next()?))
    })
}

pub(super) fn topic_row(topic: &Topic, zone: &Zone) -> TopicRow {
    let (control, memory) = (zone.control(), zone.memory());
    let view = control.topic(topic.region);
    let (mut counts, mut kept, mut held) = (topic.past, 0u64, 0u64);
    for publisher in &topic.publishers {
        let words = view.publisher(publisher.slot as usize);
        counts.add_publisher(publisher, &words);
        let head = words.head().load(Ordering::Relaxed);
        let tail = words.tail().load(Ordering::Relaxed);
        kept = kept.saturating_add(head.saturating_sub(tail));
    }
    for subscriber in &topic.subscribers {
        let words = view.subscriber(subscriber.slot as usize);
        counts.add_subscriber(&words);
        held = held.saturating_add(words.held().load(Ordering::Relaxed).into());
    }
    let remote = topic.subscribers.iter().flat_map(|s| &s.remote);
    let remote = remote.filter(|row| row.ready);
    let orphans = topic.orphans().count();
    let waiting = topic.publishers.iter();
    let waiting = waiting.filter(|publisher| waits_for(topic, publisher, control) != 0);
    TopicRow {
        name: topic.name.clone(),
        type_name: topic.type_name().to_owned(),
        domain: topic.pool.map(|pool| memory.domain(pool)),
        publishers: (topic.publishers.len() - orphans) as u32,
        subscribers: topic.subscribers.iter().filter(|s| !s.closed).count() as u32,
        orphans: orphans as u32,
        messages: counts.messages,
        bytes: counts.bytes,
        received: counts.received,
        missed: counts.missed,
        kept,
        held,
        remote: remote.fold(0, |sum, row| sum.saturating_add(row.subscribers)),
        waiting: waiting.count() as u32,
        is_device: topic.device().is_some(),
    }
}

/// The reliable subscribers that a publisher waits for to make room, by slot.
fn waits_for(topic: &Topic, publisher: &Publisher, control: &Control) -> u64 {
    let view = control.topic(topic.region);
    let slot = publisher.slot as usize;
    let words = view.publisher(slot);
    let tail = words.tail().load(Ordering::Relaxed);
    let kept = words.head().load(Ordering::Relaxed).saturating_sub(tail);
    if kept == 0 || publisher.is_orphan() || words.waiting().load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let slow = topic.subscribers.iter().filter(|subscriber| {
        let words = view.subscriber(subscriber.slot as usize);
        !subscriber.closed
            && subscriber.demand.reliable
            && !(1..kept).contains(&u64::from(subscriber.demand.depth))
            && Topic::matches(publisher, subscriber)
            && words.cursor(slot).load(Ordering::Relaxed) <= tail
    });
    slow.fold(0, |mask, subscriber| mask | 1 << subscriber.slot)
}

fn publisher_row(topic: &Topic, publisher: &Publisher, zone: &Zone) -> PublisherRow {
    let (control, memory) = (zone.control(), zone.memory());
    let (words, region) = (
        control.publisher(topic, publisher.slot),
        control.ring(publisher),
    );
    let mut uses = MemoryUses::default();
    for (why, bytes) in block_uses(&words, &region) {
        let sum = match why {
            BlockUse::History => &mut uses.history,
            BlockUse::Loan => &mut uses.loans,
            BlockUse::Held => &mut uses.held,
            BlockUse::Replica => &mut uses.replicas,
        };
        sum.add(bytes);
    }
    let owner = topic.granule_owner(publisher.slot);
    let leased_bytes = memory.iter().map(|p| p.leased_bytes_of(owner)).sum();
    PublisherRow {
        slot: publisher.slot,
        client: publisher.client_name.clone(),
        pid: publisher.client_pid,
        offer: publisher.offer,
        type_name: publisher.type_name.clone(),
        mismatched: topic.mismatched_subscribers(publisher),
        orphan: publisher.is_orphan(),
        start: publisher.ring.start,
        head: words.head().load(Ordering::Relaxed),
        tail: words.tail().load(Ordering::Relaxed),
        leased_bytes,
        uses,
        blocks_used: words.blocks_used().load(Ordering::Relaxed),
        drops: words.drops().load(Ordering::Relaxed),
        waits_for: waits_for(topic, publisher, control),
    }
}

fn subscriber_row(topic: &Topic, subscriber: &Subscriber, zone: &Zone) -> SubscriberRow {
    let view = zone.control().topic(topic.region);
    let words = view.subscriber(subscriber.slot as usize);
    let read = topic
        .publishers
        .iter()
        .filter(|publisher| Topic::matches(publisher, subscriber));
    let lag = read.fold(0u64, |lag, publisher| {
        let slot = publisher.slot as usize;
        let head = view.publisher(slot).head().load(Ordering::Relaxed);
        let cursor = words.cursor(slot).load(Ordering::Relaxed);
        lag.saturating_add(head.saturating_sub(cursor))
    });
    let drops = topic.publishers.iter().filter(|publisher| {
        let words = view.publisher(publisher.slot as usize);
        words.dropped().load(Ordering::Relaxed) >> subscriber.slot & 1 != 0
    });
    let dropped_by = match subscriber.demand.reliable {
        true => drops.count() as u32,
        false => 0,
    };
    // With a depth, the subscriber skips all but the newest.
    let lag = match subscriber.demand.depth {
        0 => lag,
        depth => lag.min(u64::from(depth)),
    };
    let client = zone.clients().get(subscriber.client);
    SubscriberRow {
        slot: subscriber.slot,
        client: client.map_or_else(String::new, |client| client.name.clone()),
        pid: client.map_or(0, |client| client.pid),
        demand: subscriber.demand,
        observer: subscriber.observer,
        type_name: subscriber.type_name.clone(),
        mismatched: topic.mismatched_publishers(subscriber),
        received: words.received().load(Ordering::Relaxed),
        missed: words.missed().load(Ordering::Relaxed),
        held: words.held().load(Ordering::Relaxed),
        lag,
        dropped_by,
        domain: subscriber
            .pool
            .filter(|pool| topic.pool != Some(*pool))
            .map(|pool| zone.memory().domain(pool)),
        path: path(topic, subscriber, zone.memory()),
    }
}

/// How a subscriber's messages reach it. The subscriber reports this, since only it knows which memory it can map.
fn path(topic: &Topic, subscriber: &Subscriber, memory: &Memory) -> String {
    let reads = subscriber.pool.filter(|pool| topic.pool != Some(*pool));
    match (&subscriber.path, reads) {
        _ if subscriber.closed => "none: it is closed, and holds samples".to_owned(),
        _ if topic.matches_no_publisher(subscriber) => "none: no publisher matches it".to_owned(),
        (Some(path), _) => path.clone(),
        (None, None) => "zero copy".to_owned(),
        (None, Some(pool)) => format!(
            "copied to {}, or read in place; known with the first message",
            memory.domain(pool)
        ),
    }
}

pub(super) fn pool_row(pool: &Pool, zone: &Zone) -> PoolRow {
    let pages = pool
        .segments()
        .map(|segment| describe_pages(segment.placement.pages));
    let mut pages: Vec<String> = pages.collect();
    pages.sort_unstable();
    pages.dedup();
    let numa = pool
        .segments()
        .filter_map(|segment| segment.placement.numa)
        .reduce(|a, b| rgaps_pool::Numa {
            asked: a.asked,
            sampled: a.sampled + b.sampled,
            on_node: a.on_node + b.on_node,
        });
    let copies = pool_copies(zone.control().words(), pool.index);
    let count = |word: &AtomicU64| word.load(Ordering::Relaxed);
    PoolRow {
        zone: zone.id(),
        access: zone.class().to_owned(),
        domain: pool.domain,
        cap_bytes: pool.cap_bytes,
        segment_bytes: pool.segment_bytes,
        segments: pool.segment_count(),
        leased_bytes: pool.leased_bytes(),
        provider: providers(pool),
        pages: pages.join(", "),
        numa: numa.map(|numa| {
            (
                numa.asked,
                (u64::from(numa.on_node) * 100 / u64::from(numa.sampled.max(1))) as u32,
            )
        }),
        copied_messages: copies.map_or(0, |(messages, _)| count(messages)),
        copied_bytes: copies.map_or(0, |(_, bytes)| count(bytes)),
        warnings: pool_warnings(pool)
            .into_iter()
            .take(MAX_POOL_WARNINGS)
            .map(|w| clip(&w))
            .collect(),
    }
}

/// Hosts with subscribers of a topic.
fn remote_rows(topic: &Topic) -> Vec<RemoteRow> {
    let rows = topic.subscribers.iter().flat_map(|s| &s.remote);
    rows.take(MAX_REMOTE_HOSTS).cloned().collect()
}

/// The providers of a pool's segments. Several, if daemons with different configurations made the segments.
fn providers(pool: &Pool) -> String {
    let name = |segment: &Segment| segment.placement.provider.map_or("driver", Provider::name);
    let mut names: Vec<&str> = pool.segments().map(name).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// Warnings about a pool: what its segments lack of what the configuration asks for. Each warning once.
fn pool_warnings(pool: &Pool) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for warning in pool
        .segments()
        .flat_map(|segment| &segment.placement.warnings)
    {
        if !warnings.contains(warning) {
            warnings.push(warning.clone());
        }
    }
    if pool.pinned {
        warnings.push(
            "a client has registered this pool with a CUDA driver, so the pool does not shrink"
                .to_owned(),
        );
    }
    warnings
}

fn describe_pages(pages: PageSize) -> String {
    match pages {
        PageSize::Base => "ordinary".to_owned(),
        PageSize::Huge(bytes) => format!("huge ({} KiB)", bytes >> 10),
        PageSize::Device => "device".to_owned(),
    }
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_WARNING_CHARS).collect()
}

/// Resident memory of this process; 0 if the system does not report it.
fn rss_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
