//! The thread that sends: reads the topics that have subscribers on the other side, and puts their messages into Zenoh.

use crate::counts::Reason;
use crate::error::BridgeError;
use crate::history::{self, Kept};
use crate::shared::Shared;
use rgaps_client::{Domain, Late, RecvError, Sample, Subscriber, Token, WaitSet};
use rgaps_session::{bare_topic_name, explain, is_pattern, pattern_matches};
use rgaps_sync::{monotonic_ns, to_wall, wall_offset_ns};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::sample::Locality;
use zenoh::time::{Timestamp, NTP64};
use zenoh::Wait as _;

/// Time between two looks whether the bridge stops.
const SLICE: Duration = Duration::from_millis(50);
/// Time between two searches for new topics and for subscribers on the other side.
const DISCOVERY: Duration = Duration::from_millis(100);
/// Most messages of a topic that one turn sends before the next topic has its turn.
const BURST: u32 = 64;
/// How long a message waits for the GPU work that writes it.
const WORK_LIMIT: Duration = Duration::from_secs(1);
/// Pause before the bridge tries again to join a topic that refused it.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// A topic that an outgoing rule names or matches.
struct Topic {
    rule: usize,
    name: String,
    publisher: Publisher<'static>,
    /// The history for late subscribers on the other side. None: the rule keeps none.
    kept: Option<Kept>,
    /// The bridge's subscriber. None: nobody on the other side subscribes to the key.
    reading: Option<Reading>,
    refused: Option<Instant>,
}

struct Reading {
    subscriber: Subscriber,
    token: Token,
    /// The types that publishers declare, by publisher id.
    types: HashMap<u64, String>,
}

pub(crate) struct Outgoing {
    shared: Arc<Shared>,
    rules: Vec<(String, bool)>,
    set: WaitSet,
    topics: Vec<Topic>,
    /// Topics whose keys are invalid. Kept so that each is reported once.
    refused: BTreeSet<String>,
    looked: Option<Instant>,
}

impl Outgoing {
    pub(crate) fn new(
        shared: Arc<Shared>,
        rules: Vec<(String, bool)>,
    ) -> Result<Outgoing, BridgeError> {
        let mut outgoing = Outgoing {
            set: shared.node.wait_set(),
            shared,
            rules,
            topics: Vec::new(),
            refused: BTreeSet::new(),
            looked: None,
        };
        for rule in 0..outgoing.rules.len() {
            let name = bare_topic_name(&outgoing.rules[rule].0).to_owned();
            if !is_pattern(&name) && !outgoing.knows(&name) {
                outgoing.add(rule, name)?;
            }
        }
        Ok(outgoing)
    }

    fn knows(&self, name: &str) -> bool {
        self.topics.iter().any(|topic| topic.name == name)
    }

    fn add(&mut self, rule: usize, name: String) -> Result<(), BridgeError> {
        let failed = |error: zenoh::Error| BridgeError::Zenoh(error.to_string());
        let (session, dialect) = (&self.shared.session, &self.shared.dialect);
        let key = dialect.key(rule, &name);
        let kept = dialect.keeps(rule);
        let kept = kept.map(|depth| Kept::declare(session, &key, self.topics.len(), depth));
        let publisher = session
            .declare_publisher(key)
            .congestion_control(CongestionControl::Block)
            .allowed_destination(Locality::Remote)
            .wait()
            .map_err(failed)?;
        self.topics.push(Topic {
            rule,
            name,
            publisher,
            kept: kept.transpose().map_err(failed)?,
            reading: None,
            refused: None,
        });
        Ok(())
    }

    pub(crate) fn run(mut self) {
        while !self.shared.is_stopped() {
            if self.looked.is_none_or(|at| at.elapsed() >= DISCOVERY) {
                self.looked = Some(Instant::now());
                self.look_for_topics();
                self.follow_subscribers();
            }
            self.send_some();
        }
    }

    /// Adds new topics that match a pattern.
    fn look_for_topics(&mut self) {
        if self.rules.iter().all(|rule| !is_pattern(&rule.0)) {
            return;
        }
        let rows = match self.shared.node.topics() {
            Ok(rows) => rows,
            // Messages flow without a daemon, and the node finds the next daemon by itself.
            Err(error) => return tracing::debug!("no topics: {}", explain(&error)),
        };
        for row in rows {
            let mut rules = self.rules.iter();
            let rule = rules.position(|rule| pattern_matches(&rule.0, &row.name));
            let Some(rule) = rule else { continue };
            if self.knows(&row.name) || self.refused.contains(&row.name) {
                continue;
            }
            if let Err(error) = self.add(rule, row.name.clone()) {
                self.shared.warn(&row.name, "key", &error.to_string());
                self.refused.insert(row.name);
            }
        }
    }

    /// Joins the topics that have subscribers on the other side, and leaves all others.
    fn follow_subscribers(&mut self) {
        for at in 0..self.topics.len() {
            let topic = &mut self.topics[at];
            let status = topic.publisher.matching_status().wait();
            let is_wanted = status.is_ok_and(|status| status.matching());
            match (is_wanted, topic.reading.take()) {
                (false, Some(reading)) => {
                    self.set.detach(reading.token);
                    // When the bridge joins again, it reads the history from the topic's publishers.
                    topic.kept.iter().for_each(Kept::clear);
                }
                (true, None) if topic.refused.is_none_or(|at| at.elapsed() >= TRY_AGAIN) => {
                    self.join(at);
                }
                (_, reading) => topic.reading = reading,
            }
        }
        let read = self.topics.iter().filter(|topic| topic.reading.is_some());
        let (read, counters) = (read.count() as u64, &self.shared.counters);
        counters.topics_out.store(read, Ordering::Relaxed);
    }

    /// Subscribes to a topic as an observer, which matches every publisher; reliably if the rule says so. Begins with the history that
    /// publishers keep for late joiners, as a subscriber on the other side would.
    fn join(&mut self, at: usize) {
        let topic = &mut self.topics[at];
        let mut builder = self.shared.node.subscriber(&topic.name);
        builder = builder.domain(Domain::Host).late(Late::AllKept);
        builder = match self.rules[topic.rule].1 {
            true => builder.observer().reliable(),
            false => builder.observer(),
        };
        let joined = builder.create().and_then(|subscriber| {
            let token = self.set.attach(&subscriber)?;
            Ok((subscriber, token))
        });
        match joined {
            Ok((subscriber, token)) => {
                topic.refused = None;
                topic.reading = Some(Reading {
                    subscriber,
                    token,
                    types: HashMap::new(),
                });
            }
            Err(error) => {
                topic.refused = Some(Instant::now());
                self.shared.warn(&topic.name, "refused", &explain(&error));
            }
        }
    }

    fn send_some(&mut self) {
        if self.topics.iter().all(|topic| topic.reading.is_none()) {
            return std::thread::sleep(SLICE);
        }
        let ready = self.set.wait(SLICE).unwrap_or_default();
        for topic in &mut self.topics {
            let Some(reading) = &mut topic.reading else {
                continue;
            };
            if !ready.contains(&reading.token) {
                continue;
            }
            for _ in 0..BURST {
                let Some(sample) = receive(&self.shared, reading) else {
                    break;
                };
                if is_from_there(&self.shared, &sample) {
                    self.shared.counters.count_not_returned();
                    continue;
                }
                let target = (&topic.publisher, topic.kept.as_ref());
                if let Err((reason, why)) = send(&self.shared, target, topic.rule, reading, sample)
                {
                    self.shared.drop_one(&topic.name, reason, &why);
                }
            }
        }
    }
}

fn receive(shared: &Shared, reading: &Reading) -> Option<Sample> {
    loop {
        return match reading.subscriber.try_recv() {
            Ok(sample) => {
                let missed = sample.as_ref().map_or(0, Sample::missed);
                shared.counters.count_dropped(Reason::Missed, missed);
                sample
            }
            // The subscriber has skipped the message.
            Err(RecvError::Untrusted { topic, reason }) => {
                shared.drop_one(&topic, Reason::Unreadable, &reason);
                continue;
            }
            Err(error) => {
                shared.warn(reading.subscriber.topic(), "receive", &explain(&error));
                None
            }
        };
    }
}

/// Whether this bridge or another one brought the message from the other side.
fn is_from_there(shared: &Shared, sample: &Sample) -> bool {
    let own = shared.own.read().unwrap_or_else(PoisonError::into_inner);
    let header = || sample.header().ok().flatten().unwrap_or_default();
    own.contains(&sample.publisher_id()) || header().values.contains_key(shared.dialect.mark())
}

fn send(
    shared: &Shared,
    (publisher, kept): (&Publisher<'static>, Option<&Kept>),
    rule: usize,
    reading: &mut Reading,
    sample: Sample,
) -> Result<(), (Reason, String)> {
    let unreadable = |error: RecvError| (Reason::Unreadable, explain(&error));
    sample.synchronize(WORK_LIMIT).map_err(unreadable)?;
    let bytes = sample.len();
    let published_ns = to_wall(sample.publish_ns(), wall_offset_ns(monotonic_ns()));
    let type_name = reading
        .types
        .entry(sample.publisher_id())
        .or_insert_with(|| declared_type(shared, reading.subscriber.topic(), &sample));
    let message = shared
        .dialect
        .encode(rule, type_name, published_ns, sample)
        .map_err(|why| (Reason::NotSent, why))?;
    let time = NTP64::from(Duration::from_nanos(published_ns));
    let timestamp = Timestamp::new(time, shared.session.zid().into());
    if let Some(kept) = kept {
        kept.push(history::Message {
            payload: message.payload.clone(),
            attachment: message.attachment.clone(),
            timestamp,
        });
    }
    publisher
        .put(message.payload)
        .encoding(message.encoding)
        .attachment(message.attachment)
        .timestamp(timestamp)
        .wait()
        .map_err(|error| (Reason::NotSent, error.to_string()))?;
    shared.counters.count_sent(bytes);
    Ok(())
}

/// The type that a message's publisher declares; empty if the publisher has left, or if the daemon does not answer.
fn declared_type(shared: &Shared, topic: &str, sample: &Sample) -> String {
    let info = shared.node.topic(topic).ok();
    let mut rows = info.into_iter().flat_map(|info| info.publishers);
    let row = rows.find(|row| row.slot == sample.publisher_slot());
    row.map(|row| row.type_name).unwrap_or_default()
}
