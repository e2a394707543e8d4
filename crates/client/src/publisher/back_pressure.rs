//! Back pressure: a reliable publisher waits instead of removing messages that reliable subscribers have not read.
//!
//! A publish waits up to the publisher's deadline. Then it fails and names the slow subscribers, or the publisher continues
//! without them, as its [`SlowReaderPolicy`] says.

use super::memory::ArenaState;
use super::PublisherCore;
use crate::bindings::Patience;
use crate::pending::Deadline;
use crate::{ClientError, PublishError, SlowReader, SlowReaderPolicy};
use rgaps_layout::{MAX_SUBSCRIBERS, WAIT_SLICE_NS};
use rgaps_session::LINKS_CLIENT;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{PublisherView, Shared};
use std::sync::MutexGuard;
use std::time::Duration;

type Locked<'a> = MutexGuard<'a, ArenaState>;

/// Guard: while it lives, the publisher's slot counts one more thread that waits for room.
struct Waiting(PublisherView<Shared>);

impl Waiting {
    fn new(slot: PublisherView<Shared>) -> Waiting {
        slot.waiting().fetch_add(1, Ordering::Relaxed);
        Waiting(slot)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting().fetch_sub(1, Ordering::Relaxed);
    }
}

impl PublisherCore {
    /// Waits until the history has room for a message of `bytes` bytes. The room is certain only while the caller keeps the lock.
    #[inline]
    pub(super) fn room(&self, bytes: u64, patience: Patience) -> Result<Locked<'_>, PublishError> {
        let mut state = self.lock();
        if !self.qos.reliable || state.writer.has_room(bytes) {
            return Ok(state);
        }
        drop(state);
        self.find_room(bytes, patience)
    }

    #[cold]
    fn find_room(&self, bytes: u64, patience: Patience) -> Result<Locked<'_>, PublishError> {
        let patience_ns = match patience {
            Patience::Deadline => self.qos.deadline,
            Patience::Try | Patience::Over => Duration::ZERO,
        };
        let mut state = match self.room_until(bytes, Deadline::after(patience_ns))? {
            Ok(room) => return Ok(room),
            Err(state) => state,
        };
        match (patience, self.qos.slow_reader) {
            (Patience::Try, _) => Err(self.back_pressured(Vec::new(), Duration::ZERO)),
            (_, SlowReaderPolicy::Drop) => {
                state.writer.drop_slow(bytes);
                Ok(state)
            }
            (_, SlowReaderPolicy::Fail) => {
                let slow = state.writer.held_back_by(bytes);
                drop(state);
                Err(self.back_pressured(self.slow_readers(slow), self.qos.deadline))
            }
        }
    }

    fn back_pressured(&self, readers: Vec<SlowReader>, waited: Duration) -> PublishError {
        PublishError::BackPressured {
            topic: self.topic_name.clone(),
            readers,
            waited,
        }
    }

    /// The error that a publish of `bytes` bytes would return at the deadline. None: no subscriber is slow, or the publisher drops
    /// slow ones.
    pub(super) fn overdue(&self, bytes: u64) -> Option<PublishError> {
        if !self.qos.reliable || self.qos.slow_reader == SlowReaderPolicy::Drop {
            return None;
        }
        let slow = self.lock().writer.held_back_by(bytes);
        (slow != 0).then(|| self.back_pressured(self.slow_readers(slow), self.qos.deadline))
    }

    /// Waits for room for a message. `Ok(Ok)`: the locked state has room. `Ok(Err)`: the deadline has passed without room.
    fn room_until(
        &self,
        bytes: u64,
        deadline: Deadline,
    ) -> Result<Result<Locked<'_>, Locked<'_>>, ClientError> {
        let mut waiting = None;
        loop {
            let sleeper = self.sleeper()?;
            let mut state = self.lock();
            state.writer.announce_blocked();
            if !self.qos.reliable || state.writer.has_room(bytes) {
                return Ok(Ok(state));
            }
            let Some(left_ns) = deadline.left_ns() else {
                return Ok(Err(state));
            };
            drop(state);
            waiting.get_or_insert_with(|| Waiting::new(self.slot()));
            sleeper.sleep(left_ns.min(WAIT_SLICE_NS));
        }
    }

    pub(super) fn wait_for_room(
        &self,
        bytes: u64,
        deadline: Deadline,
    ) -> Result<bool, ClientError> {
        self.guard.check()?;
        Ok(self.room_until(bytes, deadline)?.is_ok())
    }

    /// The subscribers in these slots (bit n: slot n), with the names and processes that the daemon knows.
    fn slow_readers(&self, slots: u64) -> Vec<SlowReader> {
        // Without a daemon the caller still gets its error, only without names.
        let known = self.client.conductor.topic(&self.topic_name).ok();
        let slots = (0..MAX_SUBSCRIBERS as u32).filter(|slot| slots >> slot & 1 != 0);
        let reader = |slot| {
            let mut reader = SlowReader {
                slot,
                client: String::new(),
                pid: 0,
                hosts: Vec::new(),
            };
            let Some(topic) = &known else {
                return reader;
            };
            if let Some(row) = topic.subscribers.iter().find(|row| row.slot == slot) {
                (reader.client, reader.pid) = (row.client.clone(), row.pid);
            }
            if reader.client == LINKS_CLIENT {
                let hosts = topic.remote.iter().filter(|remote| remote.subscribers > 0);
                reader.hosts = hosts.map(|remote| remote.host.clone()).collect();
            }
            reader
        };
        slots.map(reader).collect()
    }
}
