//! The queue between the receiving and the writing thread of a recorder.
//!
//! It is bounded in bytes. With `keep` it holds the messages of the last seconds, discards older ones, and gives the writer
//! none before a trigger.

use crate::entry::Entry;
use crate::latest::Latest;
use rgaps_sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most buffers that are kept for reuse. Without reuse the kernel would map memory for each large message.
const SPARE_MAX: usize = 16;

/// The next step of the writer.
pub(crate) enum Next {
    /// Write this message.
    Write(Entry),
    /// Finish the file: it has all messages of a trigger.
    Complete,
    /// There is nothing to write now.
    Idle,
    /// The recording ends.
    End,
}

struct QueueState {
    entries: VecDeque<Entry>,
    bytes: u64,
    spare: Vec<Vec<u8>>,
    /// The latest messages that have left the queue. None: the recording has one file, so no file repeats them.
    latest: Option<Latest>,
    /// With `keep`: how many entries the last trigger has still to write. None: no trigger.
    wanted: Option<usize>,
    ended: bool,
}

pub(crate) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    bytes_max: u64,
    keep: Option<Duration>,
}

impl QueueState {
    /// Takes a message that left the queue: keeps it if a further file may repeat it, otherwise its buffer.
    fn retire(&mut self, entry: Entry) {
        let buffer = match &mut self.latest {
            Some(latest) if entry.channel.transient_local => latest.replace(entry),
            _ => Some(entry.bytes),
        };
        self.spare(buffer);
    }

    fn spare(&mut self, buffer: Option<Vec<u8>>) {
        if let Some(mut buffer) = buffer.filter(|_| self.spare.len() < SPARE_MAX) {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

impl Queue {
    /// `is_series`: whether the recording may have several files.
    pub(crate) fn new(bytes_max: u64, keep: Option<Duration>, is_series: bool) -> Queue {
        Queue {
            state: Mutex::new(QueueState {
                entries: VecDeque::new(),
                bytes: 0,
                spare: Vec::new(),
                latest: is_series.then(Latest::default),
                wanted: None,
                ended: false,
            }),
            changed: Condvar::new(),
            bytes_max,
            keep,
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    /// An empty buffer to encode a message in.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Takes back the buffer of a message that was dropped.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        self.lock().spare(Some(buffer));
    }

    /// Takes back a message that was written.
    pub(crate) fn retire(&self, entry: Entry) {
        self.lock().retire(entry);
    }

    /// The messages with which a further file begins: the latest of each transient-local publisher that have left the queue.
    pub(crate) fn latest(&self) -> Vec<Arc<Entry>> {
        let state = self.lock();
        state.latest.as_ref().map_or_else(Vec::new, Latest::all)
    }

    /// Whether a message of about `bytes` bytes has room. An empty queue has room for any message, and so has one that discards old
    /// messages.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let state = self.lock();
        let pushes_out = self.keep.is_some() && state.wanted.is_none();
        pushes_out || state.bytes == 0 || state.bytes + bytes <= self.bytes_max
    }

    /// Waits until a message of `bytes` bytes has room. False after `timeout`.
    pub(crate) fn wait_for_room(&self, bytes: u64, timeout: Duration) -> bool {
        if self.has_room(bytes) {
            return true;
        }
        let state = self.lock();
        drop(self.changed.wait_timeout(state, timeout));
        self.has_room(bytes)
    }

    /// Adds a message. Returns how many messages it discarded before their time to make room.
    pub(crate) fn push(&self, entry: Entry) -> u64 {
        let mut state = self.lock();
        let now = entry.received;
        state.bytes += entry.bytes.len() as u64;
        state.entries.push_back(entry);
        let mut pushed_out = 0;
        if let Some(keep) = self.keep {
            while state.wanted.is_none() && state.entries.len() > 1 {
                let is_old = now.duration_since(state.entries[0].received) > keep;
                if !is_old && state.bytes <= self.bytes_max {
                    break;
                }
                pushed_out += u64::from(!is_old);
                let old = state.entries.pop_front().expect("there are two");
                state.bytes -= old.bytes.len() as u64;
                state.retire(old);
            }
        }
        drop(state);
        self.changed.notify_all();
        pushed_out
    }

    /// Lets the writer take the messages that are in the queue now. Does nothing without `keep`, or before the last trigger is done.
    pub(crate) fn trigger(&self) {
        let mut state = self.lock();
        if self.keep.is_some() && state.wanted.is_none() {
            state.wanted = Some(state.entries.len());
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Call when no more messages come. The writer still takes those in the queue, except for kept ones without a trigger.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Returns the writer's next step. Waits for a message for at most `timeout`.
    pub(crate) fn next(&self, timeout: Duration) -> Next {
        let mut state = self.lock();
        let until = Instant::now() + timeout;
        loop {
            if let Some(next) = self.take(&mut state) {
                drop(state);
                self.changed.notify_all();
                return next;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Idle;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take(&self, state: &mut QueueState) -> Option<Next> {
        let may_take = match (self.keep, &mut state.wanted) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some(0)) => {
                state.wanted = None;
                return Some(Next::Complete);
            }
            (Some(_), Some(left)) => {
                *left -= 1;
                true
            }
        };
        let entry = match may_take {
            true => state.entries.pop_front(),
            false => None,
        };
        match entry {
            Some(entry) => {
                state.bytes -= entry.bytes.len() as u64;
                Some(Next::Write(entry))
            }
            None => state.ended.then_some(Next::End),
        }
    }

    /// The messages that wait, and their bytes.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        let state = self.lock();
        (state.entries.len() as u64, state.bytes)
    }
}
