//! The thread that receives: it joins topics, takes their messages, and hands copies to the queue.
//!
//! It gives each sample back as soon as it has copied it, so that a slow disk costs publishers no memory.

use crate::channel::{metadata_of, Described};
use crate::clock::WallClock;
use crate::counts::{Counters, Reason};
use crate::encode::{describe, encode, encode_ros2, Encoded};
use crate::entry::Entry;
use crate::error::RecordError;
use crate::options::Options;
use crate::queue::Queue;
use crate::schema::Kind;
use rgaps::{Domain, Late, Node, PublisherRow, RecvError, Sample, Subscriber, Token, WaitSet};
use rgaps_session::{is_pattern, pattern_matches};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a stop may go unnoticed.
const SLICE: Duration = Duration::from_millis(50);
/// The same while messages wait for their GPU work.
const GPU_SLICE: Duration = Duration::from_millis(1);
/// How often topics are looked for that match a pattern.
const DISCOVERY: Duration = Duration::from_millis(250);
/// Messages that are taken of a topic before the others have their turn.
const BURST: u32 = 64;
/// Messages of a topic that may wait for their GPU work.
const PENDING_MAX: usize = 32;
/// How long the end of a recording waits for the GPU work of its last messages.
const LAST_WORK: Duration = Duration::from_secs(1);

/// A topic that is recorded.
struct Reading {
    subscriber: Subscriber,
    token: Token,
    /// What the daemon says of publishers. None: they left before anyone could ask.
    publishers: HashMap<u64, Option<PublisherRow>>,
    channels: HashMap<(u64, Kind), Arc<Described>>,
    /// Messages whose copy to the host is not complete, oldest first.
    pending: VecDeque<Sample>,
}

pub(crate) struct Receiver {
    node: Node,
    options: Options,
    set: WaitSet,
    readings: Vec<Reading>,
    /// Topics that match a pattern and cannot be joined, each reported once.
    refused: BTreeSet<String>,
    looked: Option<Instant>,
    channels: u64,
    /// Messages that it has still to take.
    left: u64,
    clock: WallClock,
    queue: Arc<Queue>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
}

impl Receiver {
    /// Joins the topics that are named, and those that match a pattern now.
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

    /// An observer matches each publisher.
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

    /// Joins topics that match a pattern and were not there before.
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

    /// Receives until it is told to stop, and then what was published before; or until it has taken what was wanted.
    pub(crate) fn run(mut self) {
        while self.left > 0 && !self.stop.load(Ordering::Relaxed) {
            let is_due = self
                .looked
                .is_none_or(|looked| looked.elapsed() >= DISCOVERY);
            if is_due {
                if let Err(error) = self.look_for_more() {
                    // Messages come without the daemon, and the next one is found by itself.
                    tracing::debug!("no topics: {}", rgaps_session::explain(&error));
                }
            }
            self.take_some();
        }
        self.take_rest();
        self.queue.end();
    }

    /// Takes the messages that are there, or that come soon.
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
            // All that have messages wait for their GPU.
            std::thread::sleep(GPU_SLICE);
        }
    }

    /// Takes what was published before this call.
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
                // The message was skipped.
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

    /// Records the messages whose copy is complete, in their order. Waits for each at most `patience`, and gives it up if
    /// that is not zero.
    fn record_pending(&mut self, at: usize, patience: Duration) {
        while let Some(sample) = self.readings[at].pending.front() {
            let is_over = match patience.is_zero() {
                true => sample.is_ready().unwrap_or(true),
                false => {
                    // The next call finds out how it ended.
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

    /// What the daemon says of a message's publisher. Asks once.
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
