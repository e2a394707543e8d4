//! The queue of an incoming rule, from a callback of Zenoh, which must not wait, to the thread that publishes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zenoh::sample::Sample;

/// Most messages in the queue.
const MESSAGES_MAX: usize = 1024;
/// Most bytes in the queue. A single message may be larger.
const BYTES_MAX: usize = 64 << 20;

#[derive(Default)]
struct Waiting {
    samples: VecDeque<Sample>,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. False: the queue is full, and the message is dropped.
    pub(crate) fn push(&self, sample: Sample) -> bool {
        let mut waiting = self.lock();
        let bytes = waiting.bytes + sample.payload().len();
        let has_room = waiting.samples.is_empty()
            || (waiting.samples.len() < MESSAGES_MAX && bytes <= BYTES_MAX);
        if has_room {
            waiting.bytes = bytes;
            waiting.samples.push_back(sample);
            self.arrived.notify_one();
        }
        has_room
    }

    /// Takes the next message. None: no message came within `timeout`.
    pub(crate) fn pop(&self, timeout: Duration) -> Option<Sample> {
        let waiting = self.lock();
        let waited = self
            .arrived
            .wait_timeout_while(waiting, timeout, |waiting| waiting.samples.is_empty());
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let sample = waiting.samples.pop_front()?;
        waiting.bytes -= sample.payload().len();
        Some(sample)
    }
}
