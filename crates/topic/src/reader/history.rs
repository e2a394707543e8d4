//! The history, as a reader that joins late gets it: the newest `n` messages of all publishers, oldest first, then what
//! is live.
//!
//! The history of publishers on this host is there when the reader joins. That of publishers on other hosts may still
//! be on its way, since links fetch it when the first subscriber of this host asks for it. The slot of a publisher that
//! stands for one on another host says where its history ends ([`HISTORY_LANDING`]: not yet known). Such a publisher is
//! *held*: the reader takes none of its messages before its history has landed. A reader that is waiting for history
//! when it joins also holds the publishers of this host that have history, to merge it all. Publishers that are not held
//! go on. A publisher that comes later with a history of its own is held alone; what then counts is which of its
//! messages are among the newest `n`, counted with those that the reader was given already.
//!
//! The wait ends for a publisher when it says where its history ends, when it is gone or is an orphan, and for all of
//! them when nothing has landed for [`HISTORY_STALL_NS`]. What comes of the history after that is read as live messages.
//!
//! A reader that wants no history passes it over. It holds only the publishers whose history is landing, for as long as they
//! say so: nothing that they have published until then is for this reader.

use super::{Look, Reader, Taken, SKIPS_MAX};
use crate::backlog::published_ns;
use crate::queue::newest;
use crate::{PublisherView, Storage};
use rgaps_layout::{
    HISTORY_LANDING, HISTORY_STALL_NS, MAX_PUBLISHERS, PUBLISHER_ACTIVE, SEQUENCE_END,
};
use rgaps_sync::atomic::{fence, Ordering};
use rgaps_sync::monotonic_ns;
use std::ops::Range;

/// What a reader knows of the history. Masks have a bit for each publisher.
#[derive(Debug)]
pub(super) struct Backlog {
    /// How many messages the reader gets; 0: it wants none.
    wanted: u64,
    /// Whether it waits for what is landing. Links do not: they carry on what lands as it comes.
    waits: bool,
    /// Whether it has looked once who is there.
    joined: bool,
    /// Publishers with messages of the history that are still to be read.
    pub(super) unread: u16,
    /// Where the history ends, per publisher.
    pub(super) ends: [u64; MAX_PUBLISHERS],
    /// Publishers whose history is on its way to this host.
    landing: u16,
    /// Publishers whose messages wait for that.
    pub(super) held: u16,
    /// When the messages were published that the reader was given: the newest ones, `wanted` and those of this round.
    given_ns: Vec<i64>,
    /// How much of what is landing was there, and when it was last seen to become more.
    seen: (u64, u64),
    /// How long it may stay as it is.
    stall_ns: u64,
}

impl Backlog {
    pub(super) fn new(wanted: u64, waits: bool) -> Backlog {
        Backlog {
            wanted,
            waits,
            joined: false,
            unread: 0,
            ends: [0; MAX_PUBLISHERS],
            landing: 0,
            held: 0,
            given_ns: Vec::new(),
            seen: (0, 0),
            stall_ns: HISTORY_STALL_NS,
        }
    }

    /// The reader waits for a publisher's history. The next look sees whether it has landed already.
    fn wait_for(&mut self, index: usize) {
        self.landing |= 1 << index;
        self.held |= 1 << index;
        self.seen = (0, monotonic_ns());
    }

    /// A publisher is gone. If others wait for its history, the next look sees that.
    pub(super) fn forget(&mut self, index: usize) {
        self.landing &= !(1 << index);
        self.held &= !(1 << index);
    }

    /// The reader is closed.
    pub(super) fn close(&mut self) {
        (self.unread, self.landing, self.held) = (0, 0, 0);
    }

    /// The reader was given a message that was published then.
    fn note_given(&mut self, ns: i64) {
        if self.wanted < u64::MAX {
            self.given_ns.push(ns);
        }
    }
}

/// Whether a publisher's history is on its way to this host.
fn is_landing<S: Storage>(publisher: &PublisherView<S>) -> bool {
    // Acquire: if it has landed, its messages are there, and so is every publisher that the links made before it did
    // (SYNC: history).
    publisher.history_end().load(Ordering::Acquire) == HISTORY_LANDING
        && publisher.state().load(Ordering::Acquire) == PUBLISHER_ACTIVE
}

impl<S: Storage> Reader<S> {
    /// Ends waits for history after this time without any, in place of [`HISTORY_STALL_NS`]: tests wait for no clock.
    #[doc(hidden)]
    pub fn set_history_stall(&mut self, stall_ns: u64) {
        self.backlog.stall_ns = stall_ns;
    }

    /// Publishers that have history, by their incarnations, with the number below which their messages are history to whoever
    /// subscribes now. What the seat's former subscriber had not taken is owed to those that it carried messages to: to
    /// them it is no history.
    pub fn histories(&self) -> Vec<(u64, u64)> {
        let history = |index: usize| {
            let publisher = self.topic.publisher(index);
            let incarnation = publisher.incarnation().load(Ordering::Acquire);
            let keeps = publisher.transient_local().load(Ordering::Relaxed) != 0;
            let start = publisher.start().load(Ordering::Relaxed);
            let tail = publisher.tail().load(Ordering::Acquire);
            let head = publisher.head().load(Ordering::Acquire);
            // SYNC: incarnation.
            fence(Ordering::Acquire);
            let stayed = publisher.incarnation().load(Ordering::Relaxed) == incarnation;
            let end = match self.resumes {
                true => self.slot.cursor(index).load(Ordering::Relaxed).min(head),
                false => head,
            };
            let is_there = incarnation != 0 && stayed && keeps && start <= tail && tail < end;
            is_there.then(|| (incarnation, end - start))
        };
        (0..MAX_PUBLISHERS).filter_map(history).collect()
    }

    /// A publisher is new to the reader, whose cursor is where its messages begin.
    pub(super) fn learn_history(&mut self, index: usize) {
        let publisher = self.topic.publisher(index);
        let lands = match self.backlog.joined {
            // All that is there is history.
            false => is_landing(&publisher),
            // It came later, and its history may have landed before the reader looked.
            true => publisher.history_end().load(Ordering::Acquire) > self.cursors[index],
        };
        if lands && self.backlog.waits {
            self.backlog.wait_for(index);
        }
    }

    /// Begins to read the history, once, when the reader joins: now, or when all of it has landed.
    pub(super) fn join_backlog(&mut self) {
        self.backlog.joined = true;
        if self.backlog.landing == 0 {
            return self.begin_backlog();
        }
        for index in 0..MAX_PUBLISHERS {
            let has_history = self.cursors[index] < self.backlog.ends[index];
            self.backlog.held |= u16::from(has_history) << index;
        }
    }

    /// Looks whether history has landed that something waits for.
    #[cold]
    pub(super) fn follow_landing(&mut self) {
        let (mut landed, mut left) = (0, self.backlog.landing);
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let publisher = self.topic.publisher(index);
            // In this order: a head that is read before the history has ended is not beyond its end.
            let head = publisher.head().load(Ordering::Acquire).min(SEQUENCE_END);
            match is_landing(&publisher) {
                true => {
                    landed += head;
                    self.pass_surplus(index, head);
                }
                false => self.end_landing(index),
            }
        }
        if self.backlog.wanted == 0 {
            // Each of them is held for itself, and says so before it publishes what is live.
            return;
        }
        self.end_stalled(landed);
        // A publisher that lands with those may have come meanwhile.
        let epoch = self.topic.membership_epoch().load(Ordering::Acquire);
        if epoch != self.epoch_seen {
            self.follow_membership(epoch);
        }
        if self.backlog.landing == 0 {
            self.backlog.held = 0;
            self.begin_backlog();
        }
    }

    /// Ends the wait where nothing more lands. `landed`: what has landed, as a number that rises.
    fn end_stalled(&mut self, landed: u64) {
        let now_ns = monotonic_ns();
        if landed != self.backlog.seen.0 {
            self.backlog.seen = (landed, now_ns);
        }
        if now_ns.saturating_sub(self.backlog.seen.1) < self.backlog.stall_ns {
            return;
        }
        while self.backlog.landing != 0 {
            self.end_landing(self.backlog.landing.trailing_zeros() as usize);
        }
    }

    /// Skips messages of a history that is landing: of those below `head`, only the newest that are wanted are left.
    fn pass_surplus(&mut self, index: usize, head: u64) {
        let begin = head.saturating_sub(self.backlog.wanted);
        if begin > self.cursors[index] {
            self.move_cursor(index, begin);
        }
    }

    /// A publisher's history has ended: there, or with all that will come of it.
    fn end_landing(&mut self, index: usize) {
        self.backlog.landing &= !(1 << index);
        let Some(source) = &self.sources[index] else {
            return;
        };
        let (start, publisher) = (source.start, &source.publisher);
        let end = publisher.history_end().load(Ordering::Acquire);
        let head = publisher.head().load(Ordering::Acquire).min(SEQUENCE_END);
        let end = end.min(head);
        self.backlog.ends[index] = end;
        self.pass_surplus(index, end);
        let cursor = self.cursors[index];
        if cursor > start {
            self.begin_sum(index, cursor);
        }
        if self.backlog.wanted == 0 {
            self.backlog.held &= !(1 << index);
        }
    }

    /// Puts the cursors where the newest messages begin of those before `ends` and of those that were given.
    pub(super) fn begin_backlog(&mut self) {
        let Backlog { wanted, ends, .. } = self.backlog;
        let given_ns = &mut self.backlog.given_ns;
        given_ns.sort_unstable();
        let surplus = given_ns.len() as u64;
        given_ns.drain(..surplus.saturating_sub(wanted) as usize);
        let given = given_ns.len() as u64;
        let kept: [Range<u64>; MAX_PUBLISHERS + 1] = std::array::from_fn(|index| {
            let Some(source) = self.sources.get(index) else {
                return 0..given;
            };
            let end = ends[index];
            match source {
                Some(_) => self.cursors[index].min(end)..end,
                None => end..end,
            }
        });
        let total: u64 = kept.iter().fold(0, |total, kept: &Range<u64>| {
            total.saturating_add(kept.end - kept.start)
        });
        let begin = match wanted < total {
            true => newest(wanted, &kept, |index, sequence| {
                let Some(source) = self.sources.get(index) else {
                    return self.backlog.given_ns.get(sequence as usize).copied();
                };
                let source = source.as_ref()?;
                published_ns(&source.region, source.incarnation, sequence)
            }),
            false => std::array::from_fn(|index| kept[index].start),
        };
        for index in 0..MAX_PUBLISHERS {
            if begin[index] > self.cursors[index] {
                self.move_cursor(index, begin[index]);
                self.begin_sum(index, begin[index]);
            }
            let has_backlog = self.cursors[index] < kept[index].end;
            self.backlog.unread |= u16::from(has_backlog) << index;
        }
    }

    /// Takes the oldest message of the history. None: there is none, or so much of it was pushed out that
    /// others should have their turn.
    #[cold]
    pub(super) fn poll_backlog(&mut self) -> Option<Taken<S>> {
        for _ in 0..SKIPS_MAX {
            let index = self.oldest_of_backlog()?;
            match self.look(index) {
                Look::Taken(taken) => {
                    self.backlog.note_given(taken.message.publish_ns as i64);
                    return Some(taken);
                }
                Look::Skipped => {}
                // Its publisher claims messages that are not there: what it publishes is live.
                Look::Nothing => self.backlog.unread &= !(1 << index),
            }
        }
        None
    }

    /// The publisher whose next message of the history is the oldest, or is gone.
    fn oldest_of_backlog(&mut self) -> Option<usize> {
        let mut oldest: Option<(i64, usize)> = None;
        let mut left = self.backlog.unread;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let cursor = self.cursors[index];
            let source = self.sources[index].as_ref();
            let Some(source) = source.filter(|_| cursor < self.backlog.ends[index]) else {
                self.backlog.unread &= !(1 << index);
                continue;
            };
            match published_ns(&source.region, source.incarnation, cursor) {
                Some(ns) if oldest.is_some_and(|(least, _)| least <= ns) => {}
                Some(ns) => oldest = Some((ns, index)),
                None => return Some(index),
            }
        }
        oldest.map(|(_, index)| index)
    }
}
