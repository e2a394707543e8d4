//! One publisher's messages on their way to all hosts.
//!
//! [`Delivery`] decides which messages each flow has still to send, and which ones this host retains for hosts that it has no link with.
//! For a linked host, the link itself retains what is not acknowledged. This module keeps weak references to those messages: a flow that
//! replaces another finds them there and sends them again.

use super::host_flow::HostFlow;
use super::message::OutgoingMessage;
use crate::host_link::Sent;
use crate::wire::FlowDescription;
use rgaps_routing::{Delivery, HostId, StreamId};
use rgaps_transport::Payload;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Weak references to messages that links may hold: twice as many as a subscriber may hold. Beyond that, released ones are removed.
const KEPT_MAX: usize = 8192;

/// A message that some link may still hold.
struct Kept {
    message: Weak<OutgoingMessage>,
    /// Retains the message, for a host behind another.
    retained: Option<Arc<OutgoingMessage>>,
}

/// A publisher, with the messages that some host may still need.
#[derive(Default)]
pub struct Publisher {
    delivery: Delivery,
    messages: BTreeMap<u64, Kept>,
    /// Messages from this number on are retained.
    retained_from: u64,
    /// The size of all retained messages, in bytes.
    pub retained_bytes: u64,
    pub description: Option<Arc<FlowDescription>>,
    pub has_ended: bool,
    /// While a new subscriber reads the history: the number up to which it has read. A flow that carries history sends nothing from this
    /// number on. Numbers only rise in a flow, so a later message that another flow has in flight would shut out the history before it.
    pub history_read: Option<u64>,
}

impl Publisher {
    /// `reads_previous`: the subscriber that reads the history waits until the previous one is read.
    pub fn new(reads_previous: bool) -> Publisher {
        Publisher {
            history_read: reads_previous.then_some(0),
            ..Publisher::default()
        }
    }

    /// Opens a flow, if it is not open: from now on it is owed the publisher's messages.
    pub fn open(&mut self, host_flow: &HostFlow) {
        let from = match host_flow.wants_history {
            true => 0,
            false => self.delivery.next(),
        };
        let id = StreamId(host_flow.route.stream);
        let (root, hosts) = (host_flow.root, &host_flow.finals);
        if self.delivery.open(id, root, hosts, from) {
            self.settle();
        }
    }

    /// What OPEN tells each reliable host of a stream: the number from which on it is owed messages.
    pub fn begins(&mut self, stream: u64) -> BTreeMap<HostId, u64> {
        self.delivery.begins(StreamId(stream))
    }

    /// Takes note of what the link has acknowledged, so that a flow that replaces this one does not send it again.
    pub fn note_acknowledged(&mut self, publisher: u64, host_flow: &HostFlow) {
        let acknowledged = host_flow.route.link.acknowledged(host_flow.flow(publisher));
        let id = StreamId(host_flow.route.stream);
        self.delivery.acknowledged(id, acknowledged);
    }

    /// Closes a flow. It is owed nothing more.
    pub fn close(&mut self, host_flow: &HostFlow) {
        self.delivery.close(StreamId(host_flow.route.stream));
        self.settle();
    }

    /// A host of a stream's tree has all messages below `next`. `u64::MAX`: it refuses them, for now.
    pub fn confirm(&mut self, stream: u64, host: HostId, next: u64) {
        match next {
            u64::MAX => self.delivery.refused(StreamId(stream), host),
            next => self.delivery.confirmed(StreamId(stream), host, next),
        }
        self.settle();
    }

    /// The new subscriber has read a message. Returns whether that is the first one after the history.
    pub fn has_read_history(&mut self, number: u64) -> bool {
        let is_history = number < self.delivery.next();
        match &mut self.history_read {
            Some(read) if is_history => *read = number + 1,
            read => return read.is_some(),
        }
        false
    }

    /// Adds a message that was taken. The history may bring one that is known already.
    pub fn publish(&mut self, message: Arc<OutgoingMessage>) {
        let is_released = |kept: &Kept| kept.message.strong_count() == 0;
        while let Some(first) = self
            .messages
            .first_entry()
            .filter(|of| is_released(of.get()))
        {
            first.remove();
        }
        if self.messages.len() >= KEPT_MAX {
            self.messages.retain(|_, kept| !is_released(kept));
        }
        let number = message.info.sequence;
        self.forget(number);
        let is_retained = number >= self.retained_from;
        if is_retained {
            self.retained_bytes += message.bytes() as u64;
        }
        let kept = Kept {
            message: Arc::downgrade(&message),
            retained: is_retained.then(|| message.clone()),
        };
        self.messages.insert(number, kept);
        self.delivery.publish(number);
        self.settle();
    }

    /// Removes a message: its publisher aborted it, or it comes again.
    pub fn forget(&mut self, number: u64) {
        let kept = self.messages.remove(&number);
        if let Some(message) = kept.and_then(|kept| kept.retained) {
            self.retained_bytes -= message.bytes() as u64;
        }
    }

    /// Retains exactly the messages that [`Delivery::retained`] names now.
    fn settle(&mut self) {
        let from = self.delivery.retained();
        let before = std::mem::replace(&mut self.retained_from, from);
        for (_, kept) in self.messages.range_mut(before.min(from)..before.max(from)) {
            let retained = kept.message.upgrade().filter(|_| from < before);
            let bytes = |of: &Option<Arc<OutgoingMessage>>| {
                of.as_ref().map_or(0, |message| message.bytes() as u64)
            };
            self.retained_bytes += bytes(&retained);
            self.retained_bytes -= bytes(&kept.retained);
            kept.retained = retained;
        }
    }

    fn next(&mut self, host_flow: &HostFlow) -> Option<Arc<OutgoingMessage>> {
        let id = StreamId(host_flow.route.stream);
        let due = self.delivery.due(id)?;
        let history = self.history_read.filter(|_| host_flow.wants_history);
        let end = history.map_or(due.end, |read| read.min(due.end));
        if end <= due.start {
            return None;
        }
        let mut messages = self.messages.range(due.start..end);
        let next = messages.find_map(|(_, kept)| kept.message.upgrade());
        if next.is_none() {
            self.delivery.sent(id, end - 1, false);
        }
        next
    }

    /// Sends what is due on a flow. False: its link has no room for more.
    pub fn send(&mut self, topic: &str, host_flow: &mut HostFlow) -> bool {
        let stream = host_flow.route.stream;
        while let Some(message) = self.next(host_flow) {
            let is_taken = match host_flow.offer(topic, &message) {
                Sent::Full => return false,
                Sent::Taken => true,
                Sent::Never => false,
            };
            let number = message.info.sequence;
            self.delivery.sent(StreamId(stream), number, is_taken);
        }
        self.settle();
        true
    }

    pub fn is_due(&self, host_flow: &HostFlow) -> bool {
        self.delivery
            .due(StreamId(host_flow.route.stream))
            .is_some()
    }

    /// Whether the message of this number is due on a flow.
    pub fn has_due(&self, host_flow: &HostFlow, number: u64) -> bool {
        let due = self.delivery.due(StreamId(host_flow.route.stream));
        due.is_some_and(|due| due.contains(&number))
    }

    /// Whether the publisher has ended and no link holds a message of it any more.
    pub fn is_over(&self) -> bool {
        let mut messages = self.messages.values();
        self.has_ended && messages.all(|kept| kept.message.strong_count() == 0)
    }
}
