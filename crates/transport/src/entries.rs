//! What a flow has sent or is to send, and what of it was not acknowledged, in its order.
//!
//! Many messages of a flow are on their way at a time, and something is to be done for few of them: so what
//! is to be done next, and how many wait for a place, is known and not counted each time.

use crate::frame::{Lanes, Meta, Remote, LANES_MAX};
use crate::link::Span;
use std::collections::VecDeque;

/// Landing places that a flow asks for at a time, however large they are,
const ASKS_MAX: usize = 4;
/// and as long as they have no more bytes than this together: or small ones would wait for the way to the peer and back.
const ASKS_SMALL_MAX: usize = 64;
const ASKED_BYTES_MAX: u64 = 4 << 20;
/// Entries of a flow that are looked at for something to send.
const LOOK_AHEAD: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Sent {
        lane: u32,
    },
    Asked {
        lane: u32,
    },
    Granted {
        grant: u64,
        place: u64,
        remote: Option<Remote>,
        lanes: Lanes,
        used: [bool; LANES_MAX],
        sent: u64,
    },
}

impl State {
    /// It is to have a place, or has one.
    fn asks(&self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Granted { .. })
    }
}

#[derive(Debug)]
pub(crate) enum Kind {
    Message { span: Span, meta: Meta, busy: u32 },
    Gap,
    Close,
}

/// A message, or messages that never come, or the flow's end.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) first: u64,
    pub(crate) next: u64,
    pub(crate) kind: Kind,
    pub(crate) charge_end: Option<u64>,
    /// It was charged as nothing, so it cannot go eagerly.
    pub(crate) large: bool,
    /// Set by [`Entries::set`].
    pub(crate) state: State,
    /// Grants up to this number were abandoned.
    pub(crate) abandoned: u64,
    /// Bytes of a message that are there, from the start on.
    pub(crate) ready: u64,
}

impl Entry {
    pub(crate) fn new(first: u64, next: u64, kind: Kind) -> Self {
        Self {
            first,
            next,
            kind,
            charge_end: None,
            large: false,
            state: State::Waiting,
            abandoned: 0,
            ready: u64::MAX,
        }
    }

    /// Of a message.
    pub(crate) fn bytes(&self) -> u64 {
        match self.kind {
            Kind::Message { span, .. } => span.bytes,
            Kind::Gap | Kind::Close => 0,
        }
    }

    /// 1 if it is a message of which something has left, else 0.
    pub(crate) fn went(&self) -> u64 {
        let left = match self.state {
            State::Sent { .. } => true,
            State::Granted { sent, .. } => sent > 0,
            State::Waiting | State::Asked { .. } => false,
        };
        u64::from(left && matches!(self.kind, Kind::Message { .. }))
    }

    /// Below which sequence all is acknowledged when this is.
    pub(crate) fn end(&self) -> u64 {
        self.next + u64::from(matches!(self.kind, Kind::Close))
    }

    pub(crate) fn is_sent(&self, sent: u64) -> bool {
        !matches!(self.kind, Kind::Message { span, .. } if sent < span.bytes)
    }

    /// Whether bytes of it are still to come.
    pub(crate) fn is_growing(&self) -> bool {
        matches!(self.kind, Kind::Message { span, .. } if self.ready < span.bytes)
    }

    /// Whether the chunk after `sent` bytes is there.
    pub(crate) fn has_chunk(&self, sent: u64, chunk_bytes: u32) -> bool {
        let Kind::Message { span, .. } = self.kind else {
            return false;
        };
        let end = (sent + u64::from(chunk_bytes)).min(span.bytes);
        sent < end && end <= self.ready
    }

    /// Whether something of it is not on its way, nor asked for.
    fn has_work(&self) -> bool {
        match self.state {
            State::Waiting => true,
            State::Granted { sent, .. } => !self.is_sent(sent),
            State::Sent { .. } | State::Asked { .. } => false,
        }
    }
}

/// A flow's entries, the oldest first; their first sequences ascend.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: VecDeque<Entry>,
    /// Those that are to have a place or have one, and their bytes.
    asks: usize,
    asked_bytes: u64,
    /// So many of the oldest have no work.
    settled: usize,
}

impl Entries {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&Entry> {
        self.all.front()
    }

    pub(crate) fn back_mut(&mut self) -> Option<&mut Entry> {
        self.all.back_mut()
    }

    pub(crate) fn at(&self, at: usize) -> &Entry {
        &self.all[at]
    }

    /// For what is not its state.
    pub(crate) fn at_mut(&mut self, at: usize) -> &mut Entry {
        &mut self.all[at]
    }

    /// Where a message is.
    pub(crate) fn position(&self, sequence: u64) -> Option<usize> {
        let found = self
            .all
            .binary_search_by_key(&sequence, |entry| entry.first);
        found.ok()
    }

    /// The oldest message that no lane has.
    pub(crate) fn first_waiting(&self) -> Option<usize> {
        let waits = |entry: &Entry| {
            matches!(entry.kind, Kind::Message { busy: 0, .. }) && entry.state == State::Waiting
        };
        self.all.iter().position(waits)
    }

    /// One that waits.
    pub(crate) fn push(&mut self, entry: Entry) {
        debug_assert_eq!(entry.state, State::Waiting);
        self.all.push_back(entry);
    }

    /// Takes the oldest, if all of it is below this sequence.
    pub(crate) fn pop_below(&mut self, next: u64) -> Option<Entry> {
        if self.all.front()?.end() > next {
            return None;
        }
        let entry = self.all.pop_front()?;
        self.settled = self.settled.saturating_sub(1);
        if entry.state.asks() {
            self.asks -= 1;
            self.asked_bytes -= entry.bytes();
        }
        Some(entry)
    }

    pub(crate) fn set(&mut self, at: usize, state: State) {
        let entry = &mut self.all[at];
        let (before, bytes) = (entry.state.asks(), entry.bytes());
        entry.state = state;
        match (before, state.asks()) {
            (false, true) => {
                self.asks += 1;
                self.asked_bytes += bytes;
            }
            (true, false) => {
                self.asks -= 1;
                self.asked_bytes -= bytes;
            }
            _ => {}
        }
        if self.all[at].has_work() {
            self.settled = self.settled.min(at);
        }
    }

    /// Changes any of them.
    pub(crate) fn change(&mut self, each: impl FnMut(&mut Entry)) {
        self.all.iter_mut().for_each(each);
        self.count();
    }

    /// The same for one, which becomes a gap; a gap before it becomes part of it.
    pub(crate) fn make_gap(&mut self, at: usize) {
        let entry = &mut self.all[at];
        let gap = Entry {
            charge_end: entry.charge_end,
            abandoned: entry.abandoned,
            ..Entry::new(entry.first, entry.next, Kind::Gap)
        };
        *entry = gap;
        let before = at.checked_sub(1).map(|before| &self.all[before]);
        if let Some(Entry {
            kind: Kind::Gap,
            state: State::Waiting,
            first,
            ..
        }) = before
        {
            self.all[at].first = *first;
            self.all.remove(at - 1);
        }
        self.count();
    }

    fn count(&mut self) {
        let asked = self.all.iter().filter(|entry| entry.state.asks());
        (self.asks, self.asked_bytes) = asked.fold((0, 0), |(asks, bytes), entry| {
            (asks + 1, bytes + entry.bytes())
        });
        self.settled = 0;
    }

    fn looked_at(&self) -> usize {
        self.all.len().min(LOOK_AHEAD)
    }

    /// Whether something of those that are looked at has something to send or to ask for.
    pub(crate) fn has_work(&mut self) -> bool {
        let end = self.looked_at();
        while self.settled < end && !self.all[self.settled].has_work() {
            self.settled += 1;
        }
        self.settled < end
    }

    /// The first such from here on; where all lanes are busy, of those that wait.
    pub(crate) fn work_from(&mut self, from: usize, all_busy: bool) -> Option<usize> {
        if !self.has_work() {
            return None;
        }
        let begin = from.max(self.settled);
        let mut rest = self
            .all
            .range(begin.min(self.looked_at())..self.looked_at());
        let is_found = |entry: &Entry| match entry.state {
            State::Granted { .. } => !all_busy && entry.has_work(),
            _ => entry.has_work(),
        };
        rest.position(is_found).map(|at| begin + at)
    }

    /// Whether one more may ask for a place, of so many bytes.
    pub(crate) fn may_ask(&self, bytes: u64) -> bool {
        let small = self.asked_bytes + bytes <= ASKED_BYTES_MAX;
        self.asks < ASKS_MAX || (self.asks < ASKS_SMALL_MAX && small)
    }
}

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
