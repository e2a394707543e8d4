//! Gives a late joiner the history: the newest `n` messages of all publishers, oldest first, then live messages.
//!
//! The history of publishers on this host is complete when the reader joins. The history of publishers on other hosts may still be
//! arriving, since the links fetch it when the first subscriber of this host asks for it. The slot of a publisher that represents one of
//! another host has the end of its history ([`HISTORY_LANDING`]: not known yet). The reader *holds* such a publisher: it takes none of its
//! messages before the history has landed. A reader that finds landing history when it joins also holds the publishers of this host that
//! have history, to merge everything. It reads all other publishers meanwhile. If a publisher with a history joins later, the reader holds
//! only that one, and takes those of its messages that are among the newest `n`, counted with the messages that it took already.
//!
//! The wait for a publisher ends when its history ends, when it has left or is an orphan; and for all of them when nothing has
//! landed for [`HISTORY_STALL_NS`]. The reader takes history that arrives after that as live messages.
//!
//! A reader that wants no history skips it. It holds only the publishers whose history is landing, as long as it is: no message that
//! they publish until then is for this reader.

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

/// A reader's state of the history. Masks have a bit for each publisher.
#[derive(Debug)]
pub(super) struct Backlog {
    /// How many messages of the history the reader wants.
    wanted: u64,
    /// Whether the reader waits for landing history. Links do not: they send it on as it lands.
    waits: bool,
    /// Whether the reader has found the publishers that were there when it joined.
    joined: bool,
    /// Publishers with unread messages of the history.
    pub(super) unread: u16,
    /// Where the history ends, per publisher.
    pub(super) ends: [u64; MAX_PUBLISHERS],
    /// Publishers for whose landing history the reader waits.
    landing: u16,
    /// Publishers whose messages the reader does not take until then.
    pub(super) held: u16,
    /// Times of publishing of the history messages that the reader took: the newest `wanted`, and those since `begin_backlog`.
    given_ns: Vec<i64>,
    /// How many messages had landed (a sum of heads), and when that last grew.
    seen: (u64, u64),
    /// How long `seen` may stay the same before the wait ends, in nanoseconds.
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

    /// Makes the reader wait for a publisher's history. `follow_landing` finds out whether it has landed already.
    fn wait_for(&mut self, index: usize) {
        self.landing |= 1 << index;
        self.held |= 1 << index;
        self.seen = (0, monotonic_ns());
    }

    /// Ends the wait for a publisher that has left. `follow_landing` then lets the others go on.
    pub(super) fn forget(&mut self, index: usize) {
        self.landing &= !(1 << index);
        self.held &= !(1 << index);
    }

    /// Ends all waits, because the reader is closed.
    pub(super) fn close(&mut self) {
        (self.unread, self.landing, self.held) = (0, 0, 0);
    }

    /// Records that the reader took a history message that was published at `ns`.
    fn note_given(&mut self, ns: i64) {
        if self.wanted < u64::MAX {
            self.given_ns.push(ns);
        }
    }
}

/// Whether a publisher's history is still arriving.
fn is_landing<S: Storage>(publisher: &PublisherView<S>) -> bool {
    // Acquire: if the history has landed, this thread sees its messages, and every publisher that the links made before that (SYNC:
    // history).
    publisher.history_end().load(Ordering::Acquire) == HISTORY_LANDING
        && publisher.state().load(Ordering::Acquire) == PUBLISHER_ACTIVE
}

impl<S: Storage> Reader<S> {
    /// Replaces [`HISTORY_STALL_NS`], for tests that must not wait.
    #[doc(hidden)]
    pub fn set_history_stall(&mut self, stall_ns: u64) {
        self.backlog.stall_ns = stall_ns;
    }

    /// The publishers that have history, by incarnation, each with the sequence number below which its messages are history for a
    /// subscriber that joins now. Messages that the seat's former subscriber had not taken are not history: the hosts to which it sent
    /// messages must still get them.
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

    /// Decides whether to wait for the history of a new publisher. The caller has moved the cursor to its first message.
    pub(super) fn learn_history(&mut self, index: usize) {
        let publisher = self.topic.publisher(index);
        let lands = match self.backlog.joined {
            // While the reader joins, messages that have landed are history anyway.
            false => is_landing(&publisher),
            // The publisher joined later; its history may also have landed already.
            true => publisher.history_end().load(Ordering::Acquire) > self.cursors[index],
        };
        if lands && self.backlog.waits {
            self.backlog.wait_for(index);
        }
    }

    /// Call once, when the reader joins: begins to read the history, or holds the publishers until all of it has landed.
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

    /// Checks whether the history for which publishers are held has landed, and ends the wait if so.
    #[cold]
    pub(super) fn follow_landing(&mut self) {
        let (mut landed, mut left) = (0, self.backlog.landing);
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let publisher = self.topic.publisher(index);
            // Load the head before checking: a head loaded while the history is landing is not beyond its end.
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
            // There is nothing to merge: `end_landing` releases each publisher by itself.
            return;
        }
        self.end_stalled(landed);
        // The links may have made another publisher with landing history meanwhile.
        let epoch = self.topic.membership_epoch().load(Ordering::Acquire);
        if epoch != self.epoch_seen {
            self.follow_membership(epoch);
        }
        if self.backlog.landing == 0 {
            self.backlog.held = 0;
            self.begin_backlog();
        }
    }

    /// Ends the wait if nothing has landed for `stall_ns`. `landed`: the sum of the heads of landing publishers.
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

    /// Skips messages of a landing history: leaves only the newest `wanted` of those below `head`.
    fn pass_surplus(&mut self, index: usize, head: u64) {
        let begin = head.saturating_sub(self.backlog.wanted);
        if begin > self.cursors[index] {
            self.move_cursor(index, begin);
        }
    }

    /// Ends the wait for a publisher's history: it has landed, or no more of it will be waited for.
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

    /// Moves the cursors to the newest `wanted` messages, of those before `ends` together with those that the reader took already.
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

    /// Takes the oldest message of the history. None: none is left, or `SKIPS_MAX` messages had left the ring, and others get their turn.
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
                // The publisher's head claims messages that do not exist: treat its later ones as live.
                Look::Nothing => self.backlog.unread &= !(1 << index),
            }
        }
        None
    }

    /// The publisher whose next message of the history is the oldest, or has left the ring.
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
