//! The outbox of a client: messages and announcements that wait to be sent to it.
//!
//! It holds at most one message of each subscription: a newer message replaces one that was not sent. So a slow client costs little
//! memory, and no thread waits for it. Announcements stay in their order, up to a limit.

use crate::protocol;
use rgaps_recording::Image;
use rustix::event::{eventfd, EventfdFlags};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most subscriptions of a client.
const SUBSCRIPTIONS_MAX: usize = 4096;
/// Most announcements that wait for a client.
const ANNOUNCEMENTS_MAX: usize = 4096;

/// An encoded message, the same for all clients.
#[derive(Debug)]
pub(crate) struct Frame {
    /// When it was published: nanoseconds since 1970.
    pub(crate) log_ns: u64,
    /// The message, encoded by the schema of its channel.
    pub(crate) bytes: Vec<u8>,
    pub(crate) image: Option<Image>,
}

/// What to send next.
#[derive(Debug)]
pub(crate) enum Out {
    Text(String),
    Message(Vec<u8>),
}

/// Why a subscription is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The client already has a subscription with this number.
    Taken,
    /// The client has too many subscriptions.
    TooMany,
}

struct Slot {
    channel: u32,
    next: Option<Arc<Frame>>,
}

#[derive(Default)]
struct OutboxState {
    announcements: VecDeque<String>,
    slots: BTreeMap<u32, Slot>,
    /// The subscription whose message was sent last. The search for the next message begins behind it (round robin).
    served: u32,
    /// Whether announcements overflowed, so that the client must be dropped.
    is_overrun: bool,
    /// Whether the client follows the users of topics.
    follows_graph: bool,
}

pub(crate) struct Outbox {
    state: Mutex<OutboxState>,
    /// An eventfd, readable while there may be something to send.
    event: OwnedFd,
}

impl Outbox {
    pub(crate) fn new() -> std::io::Result<Outbox> {
        Ok(Outbox {
            state: Mutex::default(),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // The write fails only when the counter is full, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// The descriptor to poll for new messages.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Resets the event. Call before looking at the outbox, so that no later message is overlooked.
    pub(crate) fn clear_event(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Adds an announcement. Marks the outbox as overrun if too many announcements wait for the client.
    pub(crate) fn announce(&self, text: String) {
        let mut state = self.lock();
        match state.announcements.len() < ANNOUNCEMENTS_MAX {
            true => state.announcements.push_back(text),
            false => state.is_overrun = true,
        }
        drop(state);
        self.wake();
    }

    pub(crate) fn follow_graph(&self, follows: bool) {
        self.lock().follows_graph = follows;
    }

    pub(crate) fn follows_graph(&self) -> bool {
        self.lock().follows_graph
    }

    pub(crate) fn is_overrun(&self) -> bool {
        self.lock().is_overrun
    }

    pub(crate) fn subscribe(&self, id: u32, channel: u32) -> Result<(), NoRoom> {
        let mut state = self.lock();
        if state.slots.contains_key(&id) {
            return Err(NoRoom::Taken);
        }
        if state.slots.len() >= SUBSCRIPTIONS_MAX {
            return Err(NoRoom::TooMany);
        }
        let next = None;
        state.slots.insert(id, Slot { channel, next });
        Ok(())
    }

    /// Ends a subscription. Returns its channel.
    pub(crate) fn unsubscribe(&self, id: u32) -> Option<u32> {
        self.lock().slots.remove(&id).map(|slot| slot.channel)
    }

    /// Ends the subscriptions of a channel.
    pub(crate) fn forget(&self, channel: u32) {
        let mut state = self.lock();
        state.slots.retain(|_, slot| slot.channel != channel);
    }

    /// Ends all subscriptions, and returns their channels.
    pub(crate) fn end(&self) -> Vec<u32> {
        let slots = std::mem::take(&mut self.lock().slots);
        slots.into_values().map(|slot| slot.channel).collect()
    }

    /// Puts a message of a channel into the slots of its subscriptions. Returns how many older messages it replaced.
    pub(crate) fn offer(&self, channel: u32, frame: &Arc<Frame>) -> u64 {
        let mut state = self.lock();
        let (mut is_wanted, mut replaced) = (false, 0);
        for slot in state.slots.values_mut() {
            if slot.channel == channel {
                is_wanted = true;
                replaced += u64::from(slot.next.replace(frame.clone()).is_some());
            }
        }
        drop(state);
        if is_wanted {
            self.wake();
        }
        replaced
    }

    /// Takes the next thing to send: announcements first, then a message of each subscription in turn.
    pub(crate) fn next(&self) -> Option<Out> {
        let mut state = self.lock();
        if let Some(text) = state.announcements.pop_front() {
            return Some(Out::Text(text));
        }
        let served = state.served;
        let mut waiting = state
            .slots
            .iter_mut()
            .filter(|(_, slot)| slot.next.is_some());
        let first = waiting.next()?;
        let (&id, slot) = match *first.0 > served {
            true => first,
            false => waiting.find(|(id, _)| **id > served).unwrap_or(first),
        };
        let frame = slot.next.take()?;
        state.served = id;
        drop(state);
        Some(Out::Message(protocol::message(
            id,
            frame.log_ns,
            &frame.bytes,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8) -> Arc<Frame> {
        Arc::new(Frame {
            log_ns: 0,
            bytes: vec![byte],
            image: None,
        })
    }

    /// The first byte of the subscription's number, and the first byte of the next message.
    fn next(outbox: &Outbox) -> Option<(u8, u8)> {
        match outbox.next()? {
            Out::Message(bytes) => Some((bytes[1], bytes[protocol::MESSAGE_HEAD])),
            Out::Text(text) => panic!("{text}"),
        }
    }

    #[test]
    fn a_newer_message_replaces_one_that_waits() {
        let outbox = Outbox::new().unwrap();
        outbox.subscribe(1, 7).unwrap();
        assert_eq!(outbox.subscribe(1, 8), Err(NoRoom::Taken));
        let offered = [(7, 10), (8, 11), (7, 12), (7, 13)];
        let replaced = offered.map(|(channel, byte)| outbox.offer(channel, &frame(byte)));
        assert_eq!(replaced, [0, 0, 1, 1]);
        assert_eq!((next(&outbox), next(&outbox)), (Some((1, 13)), None));
        assert_eq!(outbox.unsubscribe(1), Some(7));
        outbox.offer(7, &frame(14));
        assert_eq!(next(&outbox), None);
    }

    #[test]
    fn subscriptions_take_turns() {
        let outbox = Outbox::new().unwrap();
        for id in [1, 2, 5] {
            outbox.subscribe(id, id).unwrap();
        }
        let mut served = Vec::new();
        for _ in 0..6 {
            for id in [1, 2, 5] {
                outbox.offer(id, &frame(0));
            }
            served.extend(next(&outbox).map(|(id, _)| id));
        }
        assert_eq!(served, [1, 2, 5, 1, 2, 5]);
    }

    #[test]
    fn announcements_come_first_and_have_a_limit() {
        let outbox = Outbox::new().unwrap();
        outbox.subscribe(1, 1).unwrap();
        outbox.offer(1, &frame(0));
        outbox.announce("a".to_owned());
        assert!(matches!(outbox.next(), Some(Out::Text(text)) if text == "a"));
        for _ in 0..ANNOUNCEMENTS_MAX {
            outbox.announce(String::new());
        }
        assert!(!outbox.is_overrun());
        outbox.announce(String::new());
        assert!(outbox.is_overrun());
    }
}
