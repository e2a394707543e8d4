//! The thread that receives messages.
//!
//! It reads topics with viewers, and each new topic until its first message tells the schema. It polls, since a subscriber that
//! sleeps on its doorbell costs publishers a system call for each message.

use crate::hub::Hub;
use crate::options::Options;
use crate::outbox::Frame;
use rgaps::{Late, Node, PublisherRow, RecvError, Sample, Subscriber};
use rgaps_recording::{describe, encode_within, metadata_of, SchemaKind, WallClock};
use rgaps_session::explain;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks for messages.
const TICK: Duration = Duration::from_millis(10);
/// The same while the server reads no topic. A new viewer ends this wait.
const IDLE: Duration = Duration::from_millis(100);
/// Pause before the server tries again to join a topic that refused it.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Most rows of publishers that the server keeps for a topic. With more, it drops all of them.
const PUBLISHERS_KEPT: usize = 64;

/// A topic that the server reads.
struct Reading {
    subscriber: Subscriber,
    /// A message whose GPU work is not complete.
    pending: Option<Sample>,
    /// When the next message may be sent.
    due: Instant,
    /// The daemon's rows of publishers, by publisher id. None: the publisher left before the server asked, or the daemon did not answer.
    publishers: BTreeMap<u64, Option<PublisherRow>>,
}

impl Reading {
    /// The daemon's row of a message's publisher. Asks the daemon once per publisher.
    fn publisher_of(&mut self, sample: &Sample, node: &Node) -> Option<PublisherRow> {
        if self.publishers.len() > PUBLISHERS_KEPT {
            self.publishers.clear();
        }
        let known = self.publishers.entry(sample.publisher_id());
        let row = known.or_insert_with(|| {
            let info = node.topic(self.subscriber.topic()).ok();
            let mut rows = info.into_iter().flat_map(|info| info.publishers);
            rows.find(|row| row.slot == sample.publisher_slot())
        });
        row.clone()
    }
}

pub(crate) struct Watcher {
    node: Node,
    options: Options,
    hub: Arc<Hub>,
    clock: WallClock,
    readings: BTreeMap<String, Reading>,
    refused: BTreeMap<String, Instant>,
}

impl Watcher {
    pub(crate) fn new(node: Node, options: Options, hub: Arc<Hub>) -> Watcher {
        Watcher {
            node,
            options,
            hub,
            clock: WallClock::now(),
            readings: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    pub(crate) fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.open_and_close();
            let names: Vec<String> = self.readings.keys().cloned().collect();
            for name in names {
                self.take(&name);
            }
            match self.readings.is_empty() {
                true => self.hub.wait(IDLE),
                false => std::thread::sleep(TICK),
            }
        }
    }

    /// Joins the topics that have viewers or whose schemas are unknown, and leaves all others.
    fn open_and_close(&mut self) {
        let (wanted, is_daemon_there) = self.hub.wanted();
        self.readings.retain(|name, _| {
            let stays = wanted.contains(name);
            if !stays {
                self.hub.close(name);
            }
            stays
        });
        for name in wanted {
            let is_refused = self.refused.get(&name);
            if !is_daemon_there
                || self.readings.contains_key(&name)
                || is_refused.is_some_and(|since| since.elapsed() < TRY_AGAIN)
            {
                continue;
            }
            // The subscriber reads in the messages' own domain, so publishers copy nothing for it.
            let builder = self.node.subscriber(&name).observer();
            match builder.keep_latest().late(Late::Latest).create() {
                Ok(subscriber) => {
                    if self.refused.remove(&name).is_some() {
                        self.hub.refuse(&name, None);
                    }
                    let reading = Reading {
                        subscriber,
                        pending: None,
                        publishers: BTreeMap::new(),
                        due: Instant::now(),
                    };
                    self.readings.insert(name, reading);
                }
                Err(error) => {
                    self.hub.refuse(&name, Some(explain(&error)));
                    self.refused.insert(name, Instant::now());
                }
            }
        }
    }

    /// Takes the newest message of a topic and delivers it, if the next one is due and its GPU work is complete.
    fn take(&mut self, name: &str) {
        let Some(reading) = self.readings.get_mut(name) else {
            return;
        };
        let now = Instant::now();
        if now < reading.due {
            return;
        }
        let sample = match reading.pending.take() {
            Some(sample) => Ok(Some(sample)),
            None => reading.subscriber.try_recv(),
        };
        let sample = match sample {
            Ok(Some(sample)) => sample,
            Ok(None) => return,
            Err(error) => return self.skip(name, &error),
        };
        match sample.is_ready() {
            Ok(true) => {}
            Ok(false) => {
                reading.pending = Some(sample);
                return;
            }
            Err(error) => return self.skip(name, &error),
        }
        reading.due = now + self.options.period();
        let row = reading.publisher_of(&sample, &self.node);
        if let Err(error) = self.send(name, row.as_ref(), &sample) {
            self.skip(name, &error);
        }
    }

    fn skip(&self, name: &str, error: &RecvError) {
        tracing::debug!(
            "a message of topic '{name}' is not shown: {}",
            explain(error)
        );
    }

    fn send(
        &self,
        name: &str,
        publisher: Option<&PublisherRow>,
        sample: &Sample,
    ) -> Result<(), RecvError> {
        let log_ns = self.clock.wall_ns(sample.publish_ns());
        let mut bytes = Vec::new();
        let type_name = publisher.map_or("", |row| &row.type_name);
        let bytes_max = self.options.bytes_max;
        let encoded = encode_within(sample, type_name, log_ns, bytes_max, &mut bytes)?;
        let kind = encoded.map_or(SchemaKind::Message, |encoded| encoded.kind);
        if !self.hub.has_channel(name, kind) {
            let metadata = metadata_of(sample.publisher_id(), publisher, describe(sample));
            self.hub.add_channel(name, kind, metadata);
        }
        let Some(encoded) = encoded else {
            self.hub.count_too_large(name);
            return Ok(());
        };
        let frame = Frame {
            log_ns,
            bytes,
            image: encoded.image,
        };
        self.hub.deliver(name, kind, frame);
        Ok(())
    }
}
