//! Publishing a recording again.
//!
//! One thread reads ahead. The other fills a loan with the next message before the message is due, waits, and publishes.

use crate::channel::Channel;
use crate::error::{ReadError, ReplayError};
use crate::message::Message;
use crate::messages::Selection;
use crate::recording::Recording;
use rgaps::{Domain, Loan, Node, PublishError, Publisher, Unpublished};
use rgaps_client::bindings::{PatientLoan as _, SetMetadata as _};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages that are read ahead.
const AHEAD: usize = 16;
/// How long a stop may go unnoticed.
const SLICE: Duration = Duration::from_millis(50);
/// How long a message waits for memory.
const LOAN_TIMEOUT: Duration = Duration::from_secs(5);
/// What publishers keep at most.
const HISTORY_MAX: u32 = 32_768;

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// How much faster than it was recorded. Default: 1.
    pub rate: f64,
    /// Whether to begin again at the end. Default: no.
    pub repeat: bool,
    /// Where in the recording to begin. What transient-local publishers had published before is published first, at once.
    pub start: Duration,
    /// Topics and patterns; none: all topics.
    pub topics: Vec<String>,
    /// The domain to publish in. Default: that of the topic, or host memory.
    pub domain: Option<Domain>,
    /// Wait until each topic has this many subscribers.
    pub wait_subscribers: u32,
}

impl Default for ReplayOptions {
    fn default() -> ReplayOptions {
        ReplayOptions {
            rate: 1.0,
            repeat: false,
            start: Duration::ZERO,
            topics: Vec::new(),
            domain: None,
            wait_subscribers: 0,
        }
    }
}

/// What a replay has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Replayed {
    /// Messages that were published.
    pub replayed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Damaged chunks and messages, which were left out.
    pub corrupt: u64,
    /// The latest that a message was published after its time, in microseconds.
    pub late_max_us: u64,
}

/// Publishes recordings again: a publisher like any other for each that was recorded.
pub struct Replay {
    recordings: Vec<Arc<Recording>>,
    options: ReplayOptions,
    publishers: BTreeMap<(String, u64), Publisher>,
    replayed: AtomicU64,
    bytes: AtomicU64,
    corrupt: AtomicU64,
    late_max_us: AtomicU64,
}

/// What the reading thread found next. None: the recordings begin again.
type Ahead = Option<Result<Message, ReadError>>;

impl Replay {
    /// Creates the publishers, those with history for late joiners first. Several recordings are replayed one after the
    /// other; they are the files of a series.
    pub fn new(
        node: &Node,
        mut recordings: Vec<Arc<Recording>>,
        options: ReplayOptions,
    ) -> Result<Replay, ReplayError> {
        recordings.sort_by_key(|recording| recording.first_ns());
        let selection = Selection {
            topics: options.topics.clone(),
            ..Selection::default()
        };
        let mut channels: Vec<Arc<Channel>> = recordings
            .iter()
            .flat_map(|recording| recording.channels.values().cloned())
            .collect();
        selection.check(channels.iter().map(|channel| &**channel))?;
        channels.retain(|channel| selection.has(&channel.topic));
        channels.sort_by_key(|channel| !channel.transient_local);
        let mut replay = Replay {
            recordings,
            options,
            publishers: BTreeMap::new(),
            replayed: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            late_max_us: AtomicU64::new(0),
        };
        for channel in channels {
            replay.publish_as(node, &channel)?;
        }
        Ok(replay)
    }

    fn publish_as(&mut self, node: &Node, channel: &Channel) -> Result<(), ReplayError> {
        let key = (channel.topic.clone(), channel.publisher_id);
        if self.publishers.contains_key(&key) {
            return Ok(());
        }
        let mut builder = node
            .publisher(&format!("/{}", channel.topic))
            .type_name(&channel.type_name)
            .keep_last(channel.history.clamp(1, HISTORY_MAX))
            // Who reads reliably is waited for, in slices between which a stop is seen.
            .deadline(SLICE)
            .loan_timeout(LOAN_TIMEOUT);
        if channel.transient_local {
            builder = builder.transient_local();
        }
        if !channel.reliable {
            builder = builder.best_effort();
        }
        if let Some(domain) = self.options.domain {
            builder = builder.domain(domain);
        }
        let publisher = builder.create().map_err(|error| ReplayError::Topic {
            topic: channel.topic.clone(),
            error: Box::new(error),
        })?;
        self.publishers.insert(key, publisher);
        Ok(())
    }

    /// What it has done so far.
    pub fn replayed(&self) -> Replayed {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Replayed {
            replayed: of(&self.replayed),
            bytes: of(&self.bytes),
            corrupt: of(&self.corrupt),
            late_max_us: of(&self.late_max_us),
        }
    }

    /// Publishes all messages at their time. Returns at the end, or soon after `stop` is set.
    pub fn run(&self, stop: &AtomicBool) -> Result<Replayed, ReplayError> {
        for publisher in self.publishers.values() {
            let wanted = self.options.wait_subscribers;
            while !publisher.wait_for_subscribers(wanted, SLICE)? {
                if stop.load(Ordering::Relaxed) {
                    return Ok(self.replayed());
                }
            }
        }
        let (to, from) = sync_channel(AHEAD);
        let ended = AtomicBool::new(false);
        let published = std::thread::scope(|scope| {
            let reading = std::thread::Builder::new().name("rgaps-replay".to_owned());
            let (to, ended) = (to, &ended);
            let reading = reading.spawn_scoped(scope, move || self.read_ahead(&to, ended));
            reading.map_err(ReplayError::Thread)?;
            let published = self.publish_all(from, stop);
            // The channel is closed by now, so the thread does not wait.
            ended.store(true, Ordering::Relaxed);
            published
        });
        published.map(|()| self.replayed())
    }

    fn start_ns(&self) -> u64 {
        let begun_ns = self.recordings.first().map_or(0, |first| first.begun_ns());
        begun_ns.saturating_add(self.options.start.as_nanos() as u64)
    }

    fn read_ahead(&self, to: &SyncSender<Ahead>, ended: &AtomicBool) {
        // A publisher that was stopped while it published gave its message a time from before the recording began.
        let from_ns = match self.options.start.is_zero() {
            true => 0,
            false => self.start_ns(),
        };
        let mut selection = Selection {
            topics: self.options.topics.clone(),
            from_ns,
            without_repeated: false,
        };
        loop {
            for (number, recording) in self.recordings.iter().enumerate() {
                selection.without_repeated = number > 0;
                for message in recording.select(&selection) {
                    if ended.load(Ordering::Relaxed) || to.send(Some(message)).is_err() {
                        return;
                    }
                }
            }
            if !self.options.repeat || to.send(None).is_err() {
                return;
            }
        }
    }

    fn publish_all(&self, from: Receiver<Ahead>, stop: &AtomicBool) -> Result<(), ReplayError> {
        let from_ns = self.start_ns();
        let mut begun = Instant::now();
        let mut last_ns = from_ns;
        while !stop.load(Ordering::Relaxed) {
            let message = match from.recv_timeout(SLICE) {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => {
                    self.leave_out(&error);
                    continue;
                }
                Ok(None) => {
                    // The last message has its time before the first comes again.
                    begun += self.scaled(last_ns - from_ns);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let since = self.scaled(message.log_ns.saturating_sub(from_ns));
            last_ns = last_ns.max(message.log_ns);
            self.publish_at(&message, begun + since, stop)?;
        }
        Ok(())
    }

    fn scaled(&self, ns: u64) -> Duration {
        Duration::from_secs_f64(ns as f64 / 1e9 / self.options.rate)
    }

    fn leave_out(&self, error: &ReadError) {
        tracing::warn!("{}", rgaps_session::explain(error));
        self.corrupt.fetch_add(1, Ordering::Relaxed);
    }

    fn publish_at(
        &self,
        message: &Message,
        due: Instant,
        stop: &AtomicBool,
    ) -> Result<(), ReplayError> {
        let key = (message.topic().to_owned(), message.channel.publisher_id);
        let Some(publisher) = self.publishers.get(&key) else {
            return Ok(());
        };
        let loan = publisher.loan(message.data().len() as u64);
        let mut loan = loan.map_err(|error| ReplayError::Loan {
            topic: key.0.clone(),
            error,
        })?;
        if let Err(reason) = fill(&mut loan, message) {
            let topic = key.0;
            self.leave_out(&ReadError::Message { topic, reason });
            return Ok(());
        }
        if !sleep_until(due, stop) {
            return Ok(());
        }
        let late = due.elapsed().as_micros() as u64;
        self.late_max_us.fetch_max(late, Ordering::Relaxed);
        match loan.publish_while(|| !stop.load(Ordering::Relaxed)) {
            Ok(_) => {}
            // It was stopped.
            Err(Unpublished {
                error: PublishError::BackPressured { .. },
                ..
            }) => return Ok(()),
            Err(Unpublished { error, .. }) => {
                return Err(ReplayError::Publish {
                    topic: key.0,
                    error: Box::new(error),
                })
            }
        }
        self.replayed.fetch_add(1, Ordering::Relaxed);
        let bytes = message.data().len() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Makes the loan what was recorded, or says why it cannot be that.
fn fill(loan: &mut Loan, message: &Message) -> Result<(), String> {
    let written = loan.write(0, message.data());
    written.map_err(|error| rgaps_session::explain(&error))?;
    loan.set_beside(message.beside())
}

/// False: it was stopped before.
fn sleep_until(due: Instant, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(SLICE));
    }
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay")
            .field("replayed", &self.replayed())
            .finish_non_exhaustive()
    }
}
