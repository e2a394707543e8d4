//! Copies that begin while their message still arrives: what comes from another host is on its way to a GPU
//! before the last byte has landed.
//!
//! Whoever fills a loan says which ranges are there. The first to say so has blocks provided in the pools that
//! are read in, and queues the copies of what has come; others leave their ranges to whoever is doing that
//! already. Publishing ends it, and copies what is left, for whoever came since.

use super::elsewhere::Provided;
use super::PublisherCore;
use rgaps_sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Ranges of a message, which do not overlap, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|(_, before)| *before < start);
        let last = self.0.partition_point(|(next, _)| *next <= end);
        let joined = self.0[first..last]
            .iter()
            .fold((start, end), |(a, b), (c, d)| (a.min(*c), b.max(*d)));
        self.0.splice(first..last, [joined]);
    }

    /// What of the first `bytes` bytes is in none of them.
    pub(super) fn missing(&self, bytes: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let ends = self.0.iter().copied().chain([(bytes, bytes)]);
        let mut at = 0;
        ends.filter_map(move |(start, end)| {
            let gap = (at.min(bytes), start.min(bytes));
            at = at.max(end);
            (gap.0 < gap.1).then_some(gap)
        })
    }
}

/// The copies of a loan that is being filled.
pub(crate) struct Early {
    core: Arc<PublisherCore>,
    offset: u64,
    bytes: u64,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    /// Ranges that are there and not queued.
    arrived: Vec<(u64, u64)>,
    /// Somebody queues.
    busy: bool,
    /// Nothing more is begun.
    ended: bool,
    begun: Vec<Provided>,
    /// `begun` is what was provided, maybe nothing.
    is_provided: bool,
}

/// Tells of a loan in host memory what of it is filled, so that copies of that begin. Clones are the same.
#[derive(Clone)]
pub struct EarlyCopies(Arc<Early>);

impl std::fmt::Debug for EarlyCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlyCopies")
            .field("bytes", &self.0.bytes)
            .finish_non_exhaustive()
    }
}

impl EarlyCopies {
    pub(crate) fn new(core: &Arc<PublisherCore>, offset: u64, bytes: u64) -> EarlyCopies {
        let early = Arc::new(Early {
            core: core.clone(),
            offset,
            bytes,
            state: Mutex::default(),
            idle: Condvar::new(),
        });
        let mut known = core.early.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|early| early.strong_count() > 0);
        known.push(Arc::downgrade(&early));
        EarlyCopies(early)
    }

    /// Whether both are of the same loan.
    pub fn is_same(&self, other: &EarlyCopies) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// These bytes are there, and nobody writes them while they are read; in any order, from any thread. Where they
    /// are written once more, with the same bytes or others, this is called again afterwards.
    pub fn arrived(&self, from: u64, bytes: u64) {
        self.0.arrived(from, bytes);
    }

    /// No more copies are queued. What was begun.
    pub(crate) fn end(&self) -> Vec<Provided> {
        self.0.end()
    }
}

impl Early {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrived(&self, from: u64, bytes: u64) {
        let core = &self.core;
        let Some(end) = from.checked_add(bytes).filter(|end| *end <= self.bytes) else {
            return;
        };
        let mut state = self.lock();
        let is_read = state.is_provided || core.topic.elsewhere().load(Ordering::Acquire) != 0;
        if bytes == 0 || state.ended || !is_read || core.guard.check().is_err() {
            return;
        }
        state.arrived.push((from, end));
        if std::mem::replace(&mut state.busy, true) {
            return;
        }
        while !state.arrived.is_empty() && !state.ended {
            let arrived = std::mem::take(&mut state.arrived);
            let begun = std::mem::take(&mut state.begun);
            let is_provided = std::mem::replace(&mut state.is_provided, true);
            drop(state);
            let begun = self.queue(begun, is_provided, &arrived);
            state = self.lock();
            state.begun = begun;
        }
        state.busy = false;
        drop(state);
        self.idle.notify_all();
    }

    /// Queues the copies of what has arrived, into blocks that are provided if they are not yet.
    fn queue(
        &self,
        begun: Vec<Provided>,
        is_provided: bool,
        arrived: &[(u64, u64)],
    ) -> Vec<Provided> {
        let core = &self.core;
        let begun = match is_provided {
            true => begun,
            // Without memory it is copied when it is published, or waits there.
            false => core
                .provide(self.bytes, &mut Vec::new())
                .unwrap_or_default(),
        };
        let queued = begun.into_iter().filter_map(|mut provided| {
            let failed = arrived
                .iter()
                .find_map(|range| provided.copy_part(core, self.offset, *range).err());
            match failed {
                None => Some(provided),
                Some(error) => {
                    provided.fail(core, &error);
                    None
                }
            }
        });
        queued.collect()
    }

    fn end(&self) -> Vec<Provided> {
        let mut state = self.lock();
        state.ended = true;
        while state.busy {
            state = self
                .idle
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.arrived.clear();
        std::mem::take(&mut state.begun)
    }
}

impl PublisherCore {
    /// Gives back what loans that are not published yet have for their copies.
    #[cold]
    pub(super) fn end_early(&self) {
        let known = {
            let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *early)
        };
        for early in known.iter().filter_map(std::sync::Weak::upgrade) {
            let begun = early.end();
            self.withdraw(begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_what_was_not_inserted() {
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let mut ranges = Ranges::default();
            let mut model = [false; 64];
            for _ in 0..next(12) {
                let (start, bytes) = (next(64), next(20));
                let end = (start + bytes).min(64);
                ranges.insert(start, end);
                model[start as usize..end as usize].fill(true);
                assert!(ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
            let length = next(65);
            let mut missing = [false; 64];
            for (start, end) in ranges.missing(length) {
                assert!(start < end);
                missing[start as usize..end as usize].fill(true);
            }
            for at in 0..64 {
                let expected = (at as u64) < length && !model[at];
                assert_eq!(missing[at], expected, "{at} of {length}: {ranges:?}");
            }
        }
    }
}
