//! The receiving thread of a recorder: joins topics, takes their messages, and puts copies into the queue.
//!
//! It releases each sample as soon as it has copied it, so that a slow disk costs publishers no memory.

use crate::channel::{metadata_of, Described};
use crate::clock::WallClock;
use crate::counts::{Counters, Reason};
use crate::encode::{describe, encode, encode_ros2, Encoded};
use crate::entry::Entry;
use crate::error::RecordError;
use crate::options::Options;
use crate::queue::Queue;
use crate::schema::SchemaKind;
use rgaps::{Domain, Late, Node, PublisherRow, RecvError, Sample, Subscriber, Token, WaitSet};
use rgaps_session::{is_pattern, pattern_matches};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks whether the recorder stops.
const SLICE: Duration = Duration::from_millis(50);
/// The same while messages wait for their GPU work.
const GPU_SLICE: Duration = Duration::from_millis(1);
/// Time between two searches for topics that match a pattern.
const DISCOVERY: Duration = Duration::from_millis(250);
/// Most messages that one turn takes from a topic before the next topic has its turn.
const BURST: u32 = 64;
/// Most messages of a topic that wait for their GPU work.
const PENDING_MAX: usize = 32;
/// How long the end of a recording waits for the GPU work of its last messages.
const LAST_WORK: Duration = Duration::from_secs(1);

/// A recorded topic.
struct Reading {
    subscriber: Subscriber,
    token: Token,
    /// The daemon's rows of publishers, by publisher id. None: the publisher left before the recorder asked.
    publishers: HashMap<u64, Option<PublisherRow>>,
    channels: HashMap<(u64, SchemaKind), Arc<Described>>,
    /// Messages whose copy to the host is not complete, oldest first.
    pending: VecDeque<Sample>,
}

pub(crate) struct Receiver {
    node: Node,
    options: Options,
    set: WaitSet,
    readings: Vec<Reading>,
    /// Topics that match a pattern and cannot be joined. Kept so that each is reported once.
    refused: BTreeSet<String>,
    looked: Option<Instant>,
    channels: u64,
    /// How many more messages to take.
    left: u64,
    clock: WallClock,
    queue: Arc<Queue>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
}

impl Receiver {
    /// Joins the named topics, and the existing ones that match a pattern.
    pub(crate) fn begin(
        node: Node,
        mut options: Options,
        clock: WallClock,
        queue: Arc<Queue>,
        counters: Arc<Counters>,
        stop: Arc<AtomicBool>,
    ) -> Result<Receiver, RecordError> {
        for pattern in &mut options.patterns {
            *pattern = node.resolve_topic(pattern);
        }
        let node = node.with_full_names();
        let mut receiver = Receiver {
            set: node.wait_set(),
            node,
            left: options.count.unwrap_or(u64::MAX),
            options,
            readings: Vec::new(),
            refused: BTreeSet::new(),
            looked: None,
            channels: 0,
            clock,
            queue,
            counters,
            stop,
        };
        for name in receiver.options.patterns.clone() {
            if !is_pattern(&name) && !receiver.knows(&name) {
                receiver.join(&name)?;
            }
        }
        receiver.look_for_more()?;
        Ok(receiver)
    }

    fn knows(&self, topic: &str) -> bool {
        let mut readings = self.readings.iter();
        readings.any(|reading| reading.subscriber.topic() == topic)
    }

    /// Subscribes to a topic, as an observer, which matches every publisher.
    fn join(&mut self, topic: &str) -> Result<(), RecordError> {
        let mut builder = self.node.subscriber(topic).observer();
        builder = builder.domain(Domain::Host).late(Late::AllKept);
        if self.options.reliable {
            builder = builder.reliable();
        }
        let subscriber = builder.create().map_err(|error| RecordError::Topic {
            topic: topic.to_owned(),
            error: Box::new(error),
        })?;
        let token = self.set.attach(&subscriber)?;
        self.readings.push(Reading {
            subscriber,
            token,
            publishers: HashMap::new(),
            channels: HashMap::new(),
            pending: VecDeque::new(),
        });
        let topics = self.readings.len() as u64;
        self.counters.topics.store(topics, Ordering::Relaxed);
        Ok(())
    }

    /// Joins new topics that match a pattern.
    fn look_for_more(&mut self) -> Result<(), RecordError> {
        self.looked = Some(Instant::now());
        for row in self.node.topics()? {
            let mut patterns = self.options.patterns.iter();
            let is_wanted = patterns.any(|pattern| pattern_matches(pattern, &row.name));
            if !is_wanted || self.knows(&row.name) || self.refused.contains(&row.name) {
                continue;
            }
            if let Err(error) = self.join(&row.name) {
                tracing::warn!("{}", rgaps_session::explain(&error));
                self.refused.insert(row.name);
            }
        }
        Ok(())
    }

    /// Receives until it has taken `count` messages, or until the recorder stops; then it still takes what was published before the
    /// stop.
    pub(crate) fn run(mut self) {
        while self.left > 0 && !self.stop.load(Ordering::Relaxed) {
            let is_due = self
                .looked
                .is_none_or(|looked| looked.elapsed() >= DISCOVERY);
            if is_due {
                if let Err(error) = self.look_for_more() {
                    // Messages flow without a daemon, and the node finds the next daemon by itself.
                    tracing::debug!("no topics: {}", rgaps_session::explain(&error));
                }
            }
            self.take_some();
        }
        self.take_rest();
        self.queue.end();
    }

    /// Takes the waiting messages; without any, waits for a short time.
    fn take_some(&mut self) {
        let is_pending = self
            .readings
            .iter()
            .any(|reading| !reading.pending.is_empty());
        let slice = if is_pending { GPU_SLICE } else { SLICE };
        if self.readings.is_empty() {
            return std::thread::sleep(slice);
        }
        let ready = self.set.wait(slice).unwrap_or_default();
        let mut taken = 0;
        for at in 0..self.readings.len() {
            self.record_pending(at, Duration::ZERO);
            if !ready.contains(&self.readings[at].token) {
                continue;
            }
            for _ in 0..BURST {
                if self.readings[at].pending.len() >= PENDING_MAX {
                    break;
                }
                let Some(sample) = self.receive(at) else {
                    break;
                };
                taken += 1;
                self.record_or_wait(at, sample);
            }
        }
        if taken == 0 && !ready.is_empty() {
            // All topics with messages wait for GPU work.
            std::thread::sleep(GPU_SLICE);
        }
    }

    /// Takes the messages that were published before this call.
    fn take_rest(&mut self) {
        let now_ns = rgaps_sync::monotonic_ns();
        for at in 0..self.readings.len() {
            while let Some(sample) = self.receive(at) {
                let is_later = sample.publish_ns() as i64 > now_ns as i64;
                if is_later {
                    break;
                }
                self.record_or_wait(at, sample);
                if self.readings[at].pending.len() >= PENDING_MAX {
                    self.record_pending(at, LAST_WORK);
                }
            }
            self.record_pending(at, LAST_WORK);
        }
    }

    fn receive(&mut self, at: usize) -> Option<Sample> {
        loop {
            return match self.readings[at].subscriber.try_recv() {
                Ok(sample) => {
                    let missed = sample.as_ref().map_or(0, Sample::missed);
                    self.counters.count_dropped(Reason::Missed, missed);
                    sample
                }
                // The subscriber has skipped the message.
                Err(RecvError::Untrusted { topic, reason }) => {
                    tracing::warn!("a message of topic '{topic}' was skipped: {reason}");
                    self.counters.count_dropped(Reason::Unreadable, 1);
                    continue;
                }
                Err(error) => {
                    tracing::warn!("{}", rgaps_session::explain(&error));
                    None
                }
            };
        }
    }

    fn record_or_wait(&mut self, at: usize, sample: Sample) {
        let is_ready = sample.is_ready().unwrap_or(true);
        if is_ready && self.readings[at].pending.is_empty() {
            self.record(at, &sample);
        } else {
            self.readings[at].pending.push_back(sample);
        }
    }

    /// Records pending messages in their order. With `patience` zero, stops at the first whose copy is not complete. Otherwise waits
    /// for each for at most `patience`, and drops it if its copy is still not complete.
    fn record_pending(&mut self, at: usize, patience: Duration) {
        while let Some(sample) = self.readings[at].pending.front() {
            let is_over = match patience.is_zero() {
                true => sample.is_ready().unwrap_or(true),
                false => {
                    // `record` looks whether the copy is complete.
                    let _ = sample.synchronize(patience);
                    true
                }
            };
            if !is_over {
                return;
            }
            if let Some(sample) = self.readings[at].pending.pop_front() {
                self.record(at, &sample);
            }
        }
    }

    fn record(&mut self, at: usize, sample: &Sample) {
        if self.left == 0 {
            return;
        }
        if !matches!(sample.is_ready(), Ok(true)) {
            return self.counters.count_dropped(Reason::Unreadable, 1);
        }
        if !self.has_room(sample.len()) {
            return self.counters.count_dropped(Reason::QueueFull, 1);
        }
        let log_ns = self.clock.wall_ns(sample.publish_ns());
        let is_ros2 = self.options.ros2;
        let mut bytes = self.queue.buffer();
        let row = self.publisher(at, sample);
        let type_name = row.map_or("", |row| &row.type_name);
        let encoded = match is_ros2 {
            true => encode_ros2(sample, type_name, log_ns, &mut bytes),
            false => encode(sample, type_name, log_ns, &mut bytes).map(Ok),
        };
        let encoded = match encoded {
            Ok(Ok(encoded)) => encoded,
            Ok(Err(why)) => {
                self.queue.recycle(bytes);
                let topic = self.readings[at].subscriber.topic();
                return self.counters.drop_not_ros2(topic, why);
            }
            Err(error) => {
                tracing::warn!("{}", rgaps_session::explain(&error));
                self.queue.recycle(bytes);
                return self.counters.count_dropped(Reason::Unreadable, 1);
            }
        };
        let channel = self.channel(at, sample, encoded);
        self.left -= 1;
        let pushed_out = self.queue.push(Entry {
            channel,
            log_ns,
            publish_ns: encoded.capture_ns.unwrap_or(log_ns),
            sequence: sample.sequence() as u32,
            bytes,
            image: encoded.image,
            received: Instant::now(),
        });
        self.counters
            .pushed_out
            .fetch_add(pushed_out, Ordering::Relaxed);
    }

    /// Whether the queue has room. A reliable recorder waits for it, and publishers wait for the recorder.
    fn has_room(&self, bytes: u64) -> bool {
        while !self.queue.has_room(bytes) {
            if !self.options.reliable {
                return false;
            }
            self.queue.wait_for_room(bytes, SLICE);
        }
        true
    }

    /// The daemon's row of a message's publisher. Asks the daemon once per publisher.
    fn publisher(&mut self, at: usize, sample: &Sample) -> Option<&PublisherRow> {
        let reading = &mut self.readings[at];
        let known = reading.publishers.entry(sample.publisher_id());
        let row = known.or_insert_with(|| {
            let info = self.node.topic(reading.subscriber.topic()).ok();
            let mut rows = info.into_iter().flat_map(|info| info.publishers);
            rows.find(|row| row.slot == sample.publisher_slot())
        });
        row.as_ref()
    }

    fn channel(&mut self, at: usize, sample: &Sample, encoded: Encoded) -> Arc<Described> {
        let key = (sample.publisher_id(), encoded.kind);
        if let Some(channel) = self.readings[at].channels.get(&key) {
            return channel.clone();
        }
        self.channels += 1;
        let (id, topic) = (
            self.channels,
            self.readings[at].subscriber.topic().to_owned(),
        );
        let row = self.publisher(at, sample);
        let channel = Arc::new(Described {
            id,
            topic,
            publisher_id: key.0,
            transient_local: row.is_some_and(|row| row.offer.transient_local),
            kind: encoded.kind,
            type_name: match (encoded.ros2, row) {
                (Some(known), _) => known.name.to_owned(),
                (None, row) => row.map_or_else(String::new, |row| row.type_name.clone()),
            },
            metadata: metadata_of(key.0, row, describe(sample)),
        });
        self.readings[at].channels.insert(key, channel.clone());
        channel
    }
}
