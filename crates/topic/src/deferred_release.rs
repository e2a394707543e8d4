//! Deferred releases: holds that a subscriber gives up behind GPU work that may still read the block.
//!
//! The subscriber writes down what is to be cleared and when, and need not come back for it: the
//! block's publisher clears the bit as soon as it wants the block and finds the point passed. Whoever
//! clears an entry claims it first, so that a late one cannot clear the bit of a later owner of the
//! subscriber's slot: the slot is given away only when none of its entries is claimed.
//!
//! ```text
//! FREE --subscriber--> PENDING --whoever finds the point passed--> BY_... --the same--> FREE
//! ```

use crate::point::{progress, Point, Progress};
use crate::reader::Held;
use crate::step::step;
use crate::{Storage, TopicView};
use rgaps_layout::{
    DEFERRED_RELEASE_BY_PUBLISHER, DEFERRED_RELEASE_BY_SUBSCRIBER, DEFERRED_RELEASE_FREE,
    DEFERRED_RELEASE_PENDING, MAX_DEFERRED_RELEASES,
};
use rgaps_sync::atomic::Ordering;
use std::collections::VecDeque;

/// A state without its use count.
pub(crate) const KIND: u64 = 3;

/// One subscriber's list. Exactly one exists per subscriber.
#[derive(Debug)]
pub struct ReleaseList<S: Storage> {
    topic: TopicView<S>,
    slot: u32,
    entries: Vec<Entry<S>>,
    /// Entries in use, oldest first.
    pending: VecDeque<usize>,
    /// Free ones; those that were used last come first, so that few entries stay few cache lines.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Entry<S: Storage> {
    uses: u64,
    release: Option<(Held<S>, Point)>,
}

impl<S: Storage> ReleaseList<S> {
    /// The list of subscriber slot `slot`, which the daemon left empty.
    pub fn new(topic: TopicView<S>, slot: u32) -> Self {
        let entry = |index| Entry {
            uses: topic
                .deferred_releases(slot as usize, index)
                .state()
                .load(Ordering::Acquire)
                >> 2,
            release: None,
        };
        ReleaseList {
            entries: (0..MAX_DEFERRED_RELEASES).map(entry).collect(),
            pending: VecDeque::with_capacity(MAX_DEFERRED_RELEASES),
            free: (0..MAX_DEFERRED_RELEASES).rev().collect(),
            topic,
            slot,
        }
    }

    /// Whether nothing is on it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many are on it.
    #[inline]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Releases a hold when `point` has passed. The hold comes back when the list is full.
    pub fn push(&mut self, held: Held<S>, point: Point) -> Result<(), Held<S>> {
        let Some(index) = self.free.pop() else {
            return Err(held);
        };
        let entry = &mut self.entries[index];
        entry.uses = entry.uses.wrapping_add(1) << 2 >> 2;
        let view = self.topic.deferred_releases(self.slot as usize, index);
        let (publisher, incarnation, block, generation) = held.names();
        view.incarnation().store(incarnation, Ordering::Relaxed);
        view.generation().store(generation, Ordering::Relaxed);
        view.point().store(point.value, Ordering::Relaxed);
        view.timeline().store(point.timeline, Ordering::Relaxed);
        view.block().store(block, Ordering::Relaxed);
        view.publisher().store(publisher, Ordering::Relaxed);
        self.topic
            .deferring()
            .fetch_or(1 << self.slot, Ordering::AcqRel);
        step!("deferred_release.filled");
        // Release: whoever sees it pending sees what it says (SYNC: deferred release).
        view.state().store(
            entry.uses << 2 | DEFERRED_RELEASE_PENDING,
            Ordering::Release,
        );
        step!("deferred_release.pending");
        entry.release = Some((held, point));
        self.pending.push_back(index);
        Ok(())
    }

    /// Clears what has passed, and forgets what its publisher cleared. Returns how many entries are
    /// left.
    pub fn tidy(&mut self) -> usize {
        let before = self.pending.len();
        for _ in 0..before {
            let Some(index) = self.pending.pop_front() else {
                break;
            };
            match self.finish(index) {
                true => self.free.push(index),
                false => self.pending.push_back(index),
            }
        }
        if before > 0 && self.pending.is_empty() {
            self.topic
                .deferring()
                .fetch_and(!(1 << self.slot), Ordering::AcqRel);
        }
        self.pending.len()
    }

    /// Finishes one entry, if that can be done now.
    fn finish(&mut self, index: usize) -> bool {
        let entry = &mut self.entries[index];
        let Some((held, point)) = &entry.release else {
            return true;
        };
        let view = self.topic.deferred_releases(self.slot as usize, index);
        let ours = entry.uses << 2;
        // Acquire: who freed it has done with the block's word (SYNC: deferred release).
        let state = view.state().load(Ordering::Acquire);
        if state == ours | DEFERRED_RELEASE_BY_PUBLISHER {
            return false;
        }
        if state == ours | DEFERRED_RELEASE_PENDING {
            if progress(self.topic.storage(), *point) == Progress::Pending {
                return false;
            }
            let claimed = view.state().compare_exchange(
                state,
                ours | DEFERRED_RELEASE_BY_SUBSCRIBER,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if claimed.is_err() {
                // Its publisher was faster.
                return false;
            }
            step!("deferred_release.claimed");
            held.clear();
            view.state()
                .store(ours | DEFERRED_RELEASE_FREE, Ordering::Release);
        } else if state != ours | DEFERRED_RELEASE_FREE {
            // Somebody has scribbled here. Nobody else will clear the bit.
            if progress(self.topic.storage(), *point) == Progress::Pending {
                return false;
            }
            held.clear();
            view.state()
                .store(ours | DEFERRED_RELEASE_FREE, Ordering::Release);
        }
        if let Some((held, _)) = entry.release.take() {
            held.forget();
        }
        true
    }
}

/// A hold that a subscriber of `topic` has let go of, as its publisher finds it.
pub(crate) struct FinishedRelease {
    pub(crate) subscriber: u32,
    pub(crate) uses: u64,
    pub(crate) block: u32,
    pub(crate) generation: u64,
}

/// Claims, for publisher slot `publisher`, the entries on its blocks whose points have passed, and
/// calls `clear` with each; it is free after that.
pub(crate) fn claim_finished<S: Storage>(
    topic: &TopicView<S>,
    publisher: u32,
    incarnation: u64,
    mut clear: impl FnMut(FinishedRelease),
) {
    let mut deferring = topic.deferring().load(Ordering::Acquire) & crate::holder::SUBSCRIBERS;
    while deferring != 0 {
        let subscriber = deferring.trailing_zeros();
        deferring &= deferring - 1;
        for entry in 0..MAX_DEFERRED_RELEASES {
            let view = topic.deferred_releases(subscriber as usize, entry);
            // SYNC: deferred release.
            let state = view.state().load(Ordering::Acquire);
            if state == 0 {
                // Never used, so neither are those that come after it.
                break;
            }
            // One that is claimed for us was so by who died in this slot, or by a scribbler: we finish
            // what we claim before we look again.
            let kind = state & KIND;
            if !matches!(
                kind,
                DEFERRED_RELEASE_PENDING | DEFERRED_RELEASE_BY_PUBLISHER
            ) || view.publisher().load(Ordering::Relaxed) != publisher
                || view.incarnation().load(Ordering::Relaxed) != incarnation
            {
                continue;
            }
            let passed = FinishedRelease {
                subscriber,
                uses: state >> 2,
                block: view.block().load(Ordering::Relaxed),
                generation: view.generation().load(Ordering::Relaxed),
            };
            let point = Point {
                timeline: view.timeline().load(Ordering::Relaxed),
                value: view.point().load(Ordering::Relaxed),
            };
            if progress(topic.storage(), point) == Progress::Pending {
                continue;
            }
            // With its use count: what was read belongs to the entry that is claimed.
            let claimed = view.state().compare_exchange(
                state,
                state & !KIND | DEFERRED_RELEASE_BY_PUBLISHER,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if claimed.is_ok() {
                step!("deferred_release.taken");
                let free = passed.uses << 2 | DEFERRED_RELEASE_FREE;
                clear(passed);
                step!("deferred_release.cleared");
                // Release: done with the block's word (SYNC: deferred release).
                view.state().store(free, Ordering::Release);
            }
        }
    }
}
