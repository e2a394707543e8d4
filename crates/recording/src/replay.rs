//! Replays recordings.
//!
//! One thread reads messages into loans before they are due. The caller's thread publishes each at its time. Time starts when the
//! first thread has filled as many loans as it may, so that a slow first read or new memory delays no message.

use crate::channel::Channel;
use crate::error::{ReadError, ReplayError};
use crate::message::Message;
use crate::messages::Selection;
use crate::recording::Recording;
use rgaps::{Domain, Loan, LoanError, Node, PublishError, Publisher, Unpublished};
use rgaps_client::bindings::{PatientLoan as _, PatientPublisher as _, SetMetadata as _};
use rgaps_sync::lock;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most messages in loans before they are due, and most bytes in them. A single message may be larger.
const AHEAD_MAX: usize = 16;
const AHEAD_BYTES_MAX: u64 = 256 << 20;
/// Time between two looks whether the replay stops.
const SLICE: Duration = Duration::from_millis(50);
/// How long a message waits for memory after the queue has become empty.
const LOAN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a message waits for reliable subscribers before the replay reports them.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause before another try to get memory.
const LOAN_PAUSE: Duration = Duration::from_millis(20);
/// The largest history of a publisher.
const HISTORY_MAX: u32 = 32_768;

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Speed as a multiple of the recording's. Default: 1.
    pub rate: f64,
    /// Whether to restart at the end. Even so, a replay without any message ends. Default: no.
    pub repeat: bool,
    /// Where in the recording to begin. Earlier messages of transient-local publishers are published at once, first of all.
    pub start: Duration,
    /// Topics and patterns. Empty: all topics.
    pub topics: Vec<String>,
    /// The domain to publish in. Default: that of the topic, or host memory.
    pub domain: Option<Domain>,
    /// Wait until each topic has this many subscribers.
    pub wait_subscribers: u32,
    /// Called with a text for the user about subscribers that the replay waits for. Default: logs a warning.
    pub report: fn(&str),
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
            report: |text| tracing::warn!("{text}"),
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
    /// Damaged chunks and messages, which the replay left out.
    pub corrupt: u64,
    /// The largest delay of a message behind its time, in microseconds.
    pub late_max_us: u64,
}

/// Publishes recordings again, with a publisher for each recorded publisher.
pub struct Replay {
    recordings: Vec<Arc<Recording>>,
    options: ReplayOptions,
    publishers: BTreeMap<(String, u64), Publisher>,
    replayed: AtomicU64,
    bytes: AtomicU64,
    corrupt: AtomicU64,
    late_max_us: AtomicU64,
}

/// An entry of the queue from the reading to the publishing thread.
enum Next {
    Message(Box<Filled>),
    Damaged(ReadError),
    Failed(ReplayError),
    /// The recordings restart from their beginning.
    Again,
}

/// A guard of the reading thread: its drop, also in a panic, tells the publishing thread that no more messages come.
struct Reading<'a>(&'a Ahead);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.change(|queue| {
            queue.is_begun = true;
            queue.is_complete = true;
        });
    }
}

/// A message in a loan.
struct Filled {
    topic: String,
    publisher_id: u64,
    log_ns: u64,
    bytes: u64,
    loan: Loan,
}

/// The queue from the reading to the publishing thread.
#[derive(Default)]
struct Ahead {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    next: VecDeque<Next>,
    /// Bytes of the message that was taken last, until it is published.
    taken: Option<u64>,
    /// How many messages were published.
    published: u64,
    /// Bytes of the messages in the queue, with the one that was taken last.
    bytes: u64,
    /// The reading thread has filled as many loans as it may, or has ended, so the first message may be published.
    is_begun: bool,
    /// The reading thread has ended.
    is_complete: bool,
    /// The publishing thread has ended.
    is_over: bool,
}

impl Queue {
    /// Whether no message waits, and the last one that was taken is published.
    fn is_empty(&self) -> bool {
        self.next.is_empty() && self.taken.is_none()
    }

    fn has_room(&self, bytes: u64) -> bool {
        let fits = self.is_empty() || self.bytes + bytes <= AHEAD_BYTES_MAX;
        self.next.len() < AHEAD_MAX && fits
    }
}

impl Ahead {
    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut lock(&self.queue));
        self.changed.notify_all();
    }

    /// Waits for a change, in the reading thread. That thread waits only when it can fill no more loans, so this also sets `is_begun`.
    fn wait<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        queue.is_begun = true;
        self.changed.notify_all();
        self.changed
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the queue has room for `bytes` bytes. False: the publishing thread has ended.
    fn wait_for_room(&self, bytes: u64) -> bool {
        let mut queue = lock(&self.queue);
        while !queue.is_over && !queue.has_room(bytes) {
            queue = self.wait(queue);
        }
        !queue.is_over
    }

    /// Waits until a message is published. False: the queue is empty, or the publishing thread has ended.
    fn wait_for_publish(&self) -> bool {
        let mut queue = lock(&self.queue);
        let published = queue.published;
        while !queue.is_over && queue.published == published {
            if queue.is_empty() {
                return false;
            }
            queue = self.wait(queue);
        }
        !queue.is_over
    }

    fn push(&self, next: Next) {
        self.change(|queue| {
            if let Next::Message(filled) = &next {
                queue.bytes += filled.bytes;
            }
            queue.next.push_back(next);
        });
    }

    /// Returns the next message. The caller has published the one before. None: at the end, or `stop` is set.
    fn pop(&self, stop: &AtomicBool) -> Option<Next> {
        let mut queue = lock(&self.queue);
        if let Some(bytes) = queue.taken.take() {
            queue.bytes -= bytes;
            queue.published += 1;
        }
        self.changed.notify_all();
        loop {
            if stop.load(Ordering::Relaxed) || queue.is_complete && queue.next.is_empty() {
                return None;
            }
            if queue.is_begun {
                if let Some(next) = queue.next.pop_front() {
                    if let Next::Message(filled) = &next {
                        queue.taken = Some(filled.bytes);
                    }
                    return Some(next);
                }
            }
            let waited = self.changed.wait_timeout(queue, SLICE);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

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
            // A publish waits for reliable subscribers for one slice. The replay then looks for a stop and publishes again.
            .deadline(SLICE)
            .loan_timeout(Duration::ZERO);
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

    /// What the replay has done so far.
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
        let ahead = Ahead::default();
        let published = std::thread::scope(|scope| {
            let reading = std::thread::Builder::new().name("rgaps-replay".to_owned());
            let reading = reading.spawn_scoped(scope, || {
                let _reading = Reading(&ahead);
                self.read_all(&ahead);
            });
            reading.map_err(ReplayError::Thread)?;
            let published = self.publish_all(&ahead, stop);
            ahead.change(|queue| queue.is_over = true);
            published
        });
        published.map(|()| self.replayed())
    }

    fn start_ns(&self) -> u64 {
        let begun_ns = self.recordings.first().map_or(0, |first| first.begun_ns());
        begun_ns.saturating_add(self.options.start.as_nanos() as u64)
    }

    /// Runs the reading thread: reads all messages into loans, until the end or until the publishing thread has ended.
    fn read_all(&self, ahead: &Ahead) {
        // From 0 on, not from `start_ns`: if a publisher was suspended within a publish call, its message has a time before the start.
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
            let mut has_messages = false;
            for (number, recording) in self.recordings.iter().enumerate() {
                selection.without_repeated = number > 0;
                for message in recording.select(&selection) {
                    let bytes = message.as_ref().map_or(0, |message| message.data().len());
                    if !ahead.wait_for_room(bytes as u64) {
                        return;
                    }
                    let next = match message {
                        Ok(message) => self.fill(&message, ahead),
                        Err(error) => Some(Next::Damaged(error)),
                    };
                    has_messages |= matches!(next, Some(Next::Message(_)));
                    next.into_iter().for_each(|next| ahead.push(next));
                }
            }
            // Nothing paces rounds without messages, so the replay ends.
            if !self.options.repeat || !has_messages || !ahead.wait_for_room(0) {
                return;
            }
            ahead.push(Next::Again);
        }
    }

    /// Fills a loan with a message. None: the replay does not publish its topic.
    fn fill(&self, message: &Message, ahead: &Ahead) -> Option<Next> {
        let topic = message.topic().to_owned();
        let key = (topic, message.channel.publisher_id);
        let publisher = self.publishers.get(&key)?;
        let (topic, bytes) = (key.0, message.data().len() as u64);
        let mut loan = match loan(publisher, bytes, ahead) {
            Ok(loan) => loan,
            Err(error) => return Some(Next::Failed(ReplayError::Loan { topic, error })),
        };
        let written = loan.write(0, message.data());
        let written = written.map_err(|error| rgaps_session::explain(&error));
        Some(
            match written.and_then(|()| loan.set_beside(message.beside())) {
                Ok(()) => Next::Message(Box::new(Filled {
                    topic,
                    publisher_id: message.channel.publisher_id,
                    log_ns: message.log_ns,
                    bytes,
                    loan,
                })),
                Err(reason) => Next::Damaged(ReadError::Message { topic, reason }),
            },
        )
    }

    fn publish_all(&self, ahead: &Ahead, stop: &AtomicBool) -> Result<(), ReplayError> {
        let from_ns = self.start_ns();
        let mut last_ns = from_ns;
        let mut begun = None;
        while let Some(next) = ahead.pop(stop) {
            let begun = begun.get_or_insert_with(Instant::now);
            match next {
                Next::Message(filled) => {
                    let since = self.scaled(filled.log_ns.saturating_sub(from_ns));
                    last_ns = last_ns.max(filled.log_ns);
                    self.publish_at(*filled, *begun + since, stop)?;
                }
                Next::Damaged(error) => self.leave_out(&error),
                Next::Failed(error) => return Err(error),
                // The next round begins at the time of the last message.
                Next::Again => *begun += self.scaled(last_ns - from_ns),
            }
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
        filled: Filled,
        due: Instant,
        stop: &AtomicBool,
    ) -> Result<(), ReplayError> {
        if !sleep_until(due, stop) {
            return Ok(());
        }
        let late = due.elapsed().as_micros() as u64;
        self.late_max_us.fetch_max(late, Ordering::Relaxed);
        let key = (filled.topic, filled.publisher_id);
        let (since, is_told) = (Instant::now(), Cell::new(false));
        let published = filled.loan.publish_while(|| {
            if since.elapsed() >= PATIENCE && !is_told.replace(true) {
                self.report_who_holds_back(&key, filled.bytes);
            }
            !stop.load(Ordering::Relaxed)
        });
        let topic = key.0;
        match published {
            Ok(_) => {}
            // `stop` was set while the message waited.
            Err(Unpublished {
                error: PublishError::BackPressured { .. },
                ..
            }) => return Ok(()),
            Err(Unpublished { error, .. }) => {
                let error = Box::new(error);
                return Err(ReplayError::Publish { topic, error });
            }
        }
        self.replayed.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(filled.bytes, Ordering::Relaxed);
        Ok(())
    }

    fn report_who_holds_back(&self, key: &(String, u64), bytes: u64) {
        let publisher = self.publishers.get(key);
        let overdue = publisher.and_then(|publisher| publisher.overdue(bytes));
        if let Some(PublishError::BackPressured { topic, readers, .. }) = overdue {
            let readers: Vec<String> = readers.iter().map(ToString::to_string).collect();
            let readers = readers.join(" and ");
            (self.options.report)(&format!(
                "the replay waits: {readers} has not read topic '{topic}'; read it, or subscribe best effort or with a depth"
            ));
        }
    }
}

/// Takes a loan. Waits for memory if need be: messages in the queue may hold most of it until they are published.
fn loan(publisher: &Publisher, bytes: u64, ahead: &Ahead) -> Result<Loan, LoanError> {
    let mut since = None;
    loop {
        let error = match publisher.loan(bytes) {
            Ok(loan) => return Ok(loan),
            Err(error @ (LoanError::PoolFull { .. } | LoanError::NoBlocks { .. })) => error,
            Err(error) => return Err(error),
        };
        if ahead.wait_for_publish() {
            since = None;
            continue;
        }
        let since = *since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LOAN_TIMEOUT {
            return Err(error);
        }
        std::thread::sleep(LOAN_PAUSE);
    }
}

/// Sleeps until `due`. False: `stop` was set first.
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
