//! Deferred releases: holds that a subscriber releases behind GPU work that may still read the block.
//!
//! The subscriber writes block, bit and point into an entry of its list in shared memory. The block's publisher, or the subscriber
//! itself, clears the bit once it finds the point passed. It first claims the entry by a compare-and-swap. The daemon gives the
//! subscriber's slot to another one only when no entry is claimed, so a slow process cannot clear a bit of the next owner.
//!
//! ```text
//! FREE --subscriber--> PENDING --who finds the point passed--> BY_... --the same process--> FREE
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

/// Mask of a state word without its use count.
pub(crate) const KIND: u64 = 3;

/// One subscriber's list. Exactly one exists per subscriber.
#[derive(Debug)]
pub struct ReleaseList<S: Storage> {
    topic: TopicView<S>,
    slot: u32,
    entries: Vec<Entry<S>>,
    /// Entries in use, oldest first.
    pending: VecDeque<usize>,
    /// Free entries, as a stack: reusing the last one first keeps a short list in few cache lines.
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

    /// Whether the list has no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many entries the list has.
    #[inline]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Releases a hold once `point` has passed. Err: the list is full, and the caller keeps the hold.
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
        // Release: a process that sees the entry pending sees its fields (SYNC: deferred release).
        view.state().store(
            entry.uses << 2 | DEFERRED_RELEASE_PENDING,
            Ordering::Release,
        );
        step!("deferred_release.pending");
        entry.release = Some((held, point));
        self.pending.push_back(index);
        Ok(())
    }

    /// Clears the bits of entries whose points have passed, and removes entries that publishers cleared. Returns how many are left.
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
        // Acquire: the process that freed the entry no longer uses the block's holder word (SYNC: deferred release).
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
                // The publisher claimed it first.
                return false;
            }
            step!("deferred_release.claimed");
            held.clear();
            view.state()
                .store(ours | DEFERRED_RELEASE_FREE, Ordering::Release);
        } else if state != ours | DEFERRED_RELEASE_FREE {
            // Another process overwrote the state, so no publisher will clear the bit.
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

/// A deferred release whose point has passed, as the block's publisher claims it.
pub(crate) struct FinishedRelease {
    pub(crate) subscriber: u32,
    pub(crate) uses: u64,
    pub(crate) block: u32,
    pub(crate) generation: u64,
}

/// Claims, for publisher slot `publisher`, the entries on its blocks whose points have passed. Calls `clear` with each, which must
/// clear the bit; then frees the entry.
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
                // Never used, so all later entries are unused too.
                break;
            }
            // An entry that is claimed already was claimed by a publisher that died in this slot, or by a process that violates
            // the protocol: this function frees each entry that it claims before it returns.
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
            // The state has a use count, so a successful claim shows that the fields read above belong to this use of the entry.
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
                // Release: after the last use of the block's holder word (SYNC: deferred release).
                view.state().store(free, Ordering::Release);
            }
        }
    }
}
