//! The control channel between two hosts: messages in order, each exactly once, end to end over the path in use.
//!
//! Each end has a number that its host uses only once ([`ChannelEnd`]). Both directions number their messages from 0 for each *pair* of
//! ends, as TCP does for each connection. A sender repeats all messages from the first unacknowledged one on (go-back-n).
//!
//! | state | event | action |
//! |---|---|---|
//! | peer unknown | messages to send | announce the own end, without messages, every [`RESEND_AFTER`] |
//! | peer unknown | a segment | adopt its sender as the peer, and answer |
//! | any | a segment of an earlier end than the known peer | drop it |
//! | peer known | a segment of a later end | the peer restarted, or forgot this host: adopt it, drop what was queued, count from 0, and report [`ChannelEvent::Restarted`] |
//! | any | a segment to another end than this | answer, so that its sender learns this end; ignore its messages |
//! | pair agreed | a segment | take the acknowledgement, accept the messages that are next in order, answer if it had messages |
//! | pair agreed | messages to send, room in the window | send them |
//! | pair agreed | nothing acknowledged for [`RESEND_AFTER`] | send all unacknowledged messages |
//!
//! An end keeps its number while it exists, whatever arrives, and peers only change to later ends. So each pair begins at most
//! once, and two ends cannot restart each other for ever.
//!
//! A message replaces a waiting one about the same subject, so the number of subjects bounds how many wait.

use crate::ids::{FlowName, HostId, Life, Time};
use crate::paths::{PathTable, MAX_HOPS};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The most unacknowledged messages of a channel.
pub const CHANNEL_WINDOW: usize = 32;
/// Unacknowledged messages are sent again after this.
pub const RESEND_AFTER: Duration = Duration::from_millis(200);

/// A message that hosts send each other over control channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlMessage {
    /// Asks for all interest of the receiver, and for its changes from then on.
    Ask,
    /// What the sender's host wants of a topic.
    Interest {
        /// The topic's name.
        topic: Box<str>,
        /// What it wants, in bytes that only the user understands; `None`: nothing any more.
        want: Option<Box<[u8]>>,
    },
    /// The sender has sent all its interest since the last `Ask`.
    InterestComplete,
    /// The sender's host accepts a flow of the receiver, and has delivered, or counted as missed, all its messages below a number.
    Confirm {
        /// The flow.
        flow: FlowName,
        /// The confirmed position: the number after the last of them.
        next: u64,
    },
    /// A host gets no messages of a flow.
    Refused {
        /// The flow.
        flow: FlowName,
        /// The host: the sender's, or one below it in the flow's tree.
        host: HostId,
        /// Why, for people.
        reason: Box<str>,
    },
}

impl ControlMessage {
    /// Whether this message replaces an unsent one about the same subject.
    fn replaces(&self, waiting: &ControlMessage) -> bool {
        use ControlMessage::{Ask, Confirm, Interest, Refused};
        match (self, waiting) {
            (Ask, Ask) => true,
            (Interest { topic, .. }, Interest { topic: other, .. }) => topic == other,
            (Confirm { flow, .. }, Confirm { flow: other, .. }) => flow == other,
            (
                Refused { flow, host, .. },
                Refused {
                    flow: other,
                    host: at,
                    ..
                },
            ) => (flow, host) == (other, at),
            _ => false,
        }
    }
}

/// One end of a channel. Later ends of a host are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChannelEnd {
    /// The host and its incarnation.
    pub life: Life,
    /// The number of the end, unique within the life.
    pub number: u64,
}

/// What one end sends to the other at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The sender.
    pub from: ChannelEnd,
    /// The receiver; `None` if the sender does not know its end yet.
    pub to: Option<ChannelEnd>,
    /// The sender has accepted all messages below this number.
    pub acknowledged: u64,
    /// The number of the first message of `messages`.
    pub first: u64,
    /// At most [`CHANNEL_WINDOW`].
    pub messages: Vec<ControlMessage>,
}

/// A segment on its path. Hosts between forward it or drop it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagram {
    /// The hosts that it still has to reach, the next one first.
    pub path: Vec<HostId>,
    /// Its content.
    pub segment: Segment,
}

/// What a host has to do with a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Deliver it: it is for this host.
    Deliver(Segment),
    /// Send it on to this neighbour.
    Forward(HostId, Datagram),
    /// Drop it: this host is not next on its path, or the path is too long.
    Drop,
}

impl Datagram {
    /// Removes this host from the path. The path shrinks at each hop, so no datagram circles.
    pub fn hop(mut self, own: HostId) -> Hop {
        if self.path.len() > MAX_HOPS || self.path.first() != Some(&own) {
            return Hop::Drop;
        }
        self.path.remove(0);
        match self.path.first() {
            None => Hop::Deliver(self.segment),
            Some(next) => Hop::Forward(*next, self),
        }
    }
}

/// What a segment brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The peer's end is a new one. It may have lost what it was sent, and the channel has dropped what was queued: send everything again.
    Restarted(Life),
    /// A message.
    Message(Life, ControlMessage),
}

#[derive(Debug)]
struct Channel {
    own: ChannelEnd,
    peer: Option<ChannelEnd>,
    /// Messages that were not sent.
    waiting: VecDeque<ControlMessage>,
    /// Messages that were sent and are not acknowledged. `first` is the number of the first.
    sent: VecDeque<ControlMessage>,
    first: u64,
    /// The number of the peer's next message.
    expected: u64,
    /// A segment has to be sent, even without messages.
    owes_answer: bool,
    resend_at: Time,
}

/// All channels of a host.
#[derive(Debug)]
pub struct Channels {
    own: Life,
    /// How many ends this life has made.
    ends: u64,
    channels: BTreeMap<HostId, Channel>,
}

impl Channels {
    /// A host without channels.
    pub fn new(own: Life) -> Channels {
        Channels {
            own,
            ends: 0,
            channels: BTreeMap::new(),
        }
    }

    fn channel(&mut self, host: HostId) -> &mut Channel {
        let (own, ends) = (self.own, &mut self.ends);
        self.channels.entry(host).or_insert_with(|| {
            *ends += 1;
            let end = ChannelEnd {
                life: own,
                number: *ends,
            };
            Channel::new(end)
        })
    }

    /// Queues a message for a host. It replaces an unsent one about the same subject.
    pub fn send(&mut self, host: HostId, message: ControlMessage) {
        let waiting = &mut self.channel(host).waiting;
        if message == ControlMessage::InterestComplete {
            // It follows all interest that waits, so it cannot take the place of an earlier one.
            waiting.retain(|other| *other != message);
        }
        match waiting.iter_mut().find(|other| message.replaces(other)) {
            Some(other) => *other = message,
            None => waiting.push_back(message),
        }
    }

    /// Whether few messages wait to be sent to a host. A user whose messages soon become outdated sends them only then.
    pub fn has_room(&self, host: HostId) -> bool {
        let channel = self.channels.get(&host);
        channel.is_none_or(|channel| channel.waiting.len() < CHANNEL_WINDOW)
    }

    /// Takes a segment that arrived.
    pub fn receive(&mut self, segment: Segment, now: Time) -> Vec<ChannelEvent> {
        if segment.from.life.host == self.own.host || segment.messages.len() > CHANNEL_WINDOW {
            return Vec::new();
        }
        self.channel(segment.from.life.host).receive(segment, now)
    }

    /// Takes the datagrams to send now, to hosts to which there is a path.
    pub fn poll(&mut self, now: Time, paths: &PathTable) -> Vec<Datagram> {
        let channels = self.channels.iter_mut();
        let datagrams = channels.filter_map(|(host, channel)| {
            let path = paths.path(*host)?;
            let path = path.lives().iter().map(|life| life.host).collect();
            let segment = channel.poll(now)?;
            Some(Datagram { path, segment })
        });
        datagrams.collect()
    }

    /// Forgets the channel to a host. If the host still uses it, the next channel restarts the host's end.
    pub fn forget(&mut self, host: HostId) {
        self.channels.remove(&host);
    }

    /// The hosts that have a channel, and whether everything sent to them is acknowledged.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, bool)> + '_ {
        let channels = self.channels.iter();
        channels.map(|(host, channel)| (*host, channel.is_idle()))
    }
}

impl Channel {
    fn new(own: ChannelEnd) -> Channel {
        Channel {
            own,
            peer: None,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            first: 0,
            expected: 0,
            owes_answer: false,
            resend_at: Duration::ZERO,
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && !self.owes_answer
    }

    fn receive(&mut self, segment: Segment, now: Time) -> Vec<ChannelEvent> {
        let mut events = Vec::new();
        match self.peer {
            Some(peer) if segment.from < peer => return events,
            Some(peer) if segment.from == peer => {}
            known => {
                if known.is_some() {
                    *self = Channel::new(self.own);
                    events.push(ChannelEvent::Restarted(segment.from.life));
                }
                self.peer = Some(segment.from);
                self.resend_at = now;
            }
        }
        if segment.to != Some(self.own) {
            self.owes_answer = true;
            return events;
        }
        let end = self.first + self.sent.len() as u64;
        while self.first < segment.acknowledged.min(end) {
            self.sent.pop_front();
            self.first += 1;
            self.resend_at = now + RESEND_AFTER;
        }
        self.owes_answer |= !segment.messages.is_empty();
        for (number, message) in (segment.first..).zip(segment.messages) {
            if number == self.expected {
                self.expected += 1;
                events.push(ChannelEvent::Message(segment.from.life, message));
            }
        }
        events
    }

    fn poll(&mut self, now: Time) -> Option<Segment> {
        let is_late = now >= self.resend_at;
        let (mut first, mut messages) = (self.first, Vec::new());
        if self.peer.is_some() {
            let mut from = self.sent.len();
            let room = CHANNEL_WINDOW - from;
            let new = room.min(self.waiting.len());
            self.sent.extend(self.waiting.drain(..new));
            if is_late {
                from = 0;
            }
            first += from as u64;
            messages.extend(self.sent.range(from..).cloned());
        }
        let announces = self.peer.is_none() && !self.waiting.is_empty() && is_late;
        if messages.is_empty() && !announces && !self.owes_answer {
            return None;
        }
        // Sending new messages does not delay repeating the old ones.
        if is_late || first == self.first {
            self.resend_at = now + RESEND_AFTER;
        }
        self.owes_answer = false;
        Some(Segment {
            from: self.own,
            to: self.peer,
            acknowledged: self.expected,
            first,
            messages,
        })
    }
}
