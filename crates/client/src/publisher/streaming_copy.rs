//! Streaming copies: copies to other domains that begin while their message still arrives from another host.
//!
//! The threads that fill a loan report each range that has arrived. The first report allocates replicas in the pools in which
//! subscribers read. One thread at a time queues copies; the others only leave it their ranges. Publishing ends the
//! streaming copy and copies the rest, also for subscribers that joined in between.
//!
//! A loan on a GPU is filled in staging memory ([`staging`](super::staging)), from which its bytes are copied to the GPU.

use super::replicas::ReplicaBlock;
use super::staging::StagedBlock;
use super::PublisherCore;
use crate::{LoanError, PublishError};
use rgaps_cuda::CudaError;
use rgaps_pool::{Mapping, Stream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Ranges `(start, end)` of bytes of a message, sorted. They neither overlap nor touch.
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

    /// The gaps: the ranges of the first `bytes` bytes that were not inserted.
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

/// The streaming copy of a loan that is being filled.
pub(crate) struct StreamingCopyCore {
    core: Arc<PublisherCore>,
    /// Offset of the loan in its pool.
    offset: u64,
    /// Length of the loan.
    bytes: u64,
    /// The staging memory of a loan on a GPU; None for a loan in host memory.
    staged: Option<StagedBlock>,
    state: Mutex<CopyState>,
    idle: Condvar,
}

#[derive(Default)]
struct CopyState {
    /// Ranges that have arrived and whose copies are not queued yet.
    arrived: Vec<(u64, u64)>,
    /// A thread is queuing copies.
    busy: bool,
    /// No more copies may be queued.
    ended: bool,
    /// The replicas into which copies were queued.
    begun: Vec<ReplicaBlock>,
    /// Whether replicas were allocated; `begun` may be empty even so.
    is_provided: bool,
    /// Of a loan on a GPU: the ranges that were copied there, or that a network card wrote there.
    copied: Ranges,
    /// Of a loan on a GPU: a network card wrote some of its bytes.
    is_written: bool,
}

/// Reports which bytes of a loan have been filled in host memory, so that their copies begin. Clones are the same.
#[derive(Clone)]
pub struct StreamingCopy(Arc<StreamingCopyCore>);

impl std::fmt::Debug for StreamingCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamingCopy")
            .field("bytes", &self.0.bytes)
            .finish_non_exhaustive()
    }
}

impl StreamingCopy {
    pub(crate) fn new(core: &Arc<PublisherCore>, offset: u64, bytes: u64) -> StreamingCopy {
        let streaming = StreamingCopyCore::new(core, offset, bytes, None);
        let mut known = core
            .streaming
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.retain(|streaming| streaming.strong_count() > 0);
        known.push(Arc::downgrade(&streaming));
        StreamingCopy(streaming)
    }

    /// The streaming copy of a loan on a GPU. None: no staging memory is free. With `may_wait` it allocates more instead.
    pub(crate) fn staged(
        core: &Arc<PublisherCore>,
        offset: u64,
        bytes: u64,
        may_wait: bool,
    ) -> Result<Option<StreamingCopy>, LoanError> {
        let block = match may_wait {
            true => Some(core.staged(bytes)?),
            false => core.staged_at_hand(bytes),
        };
        let streaming = block.map(|block| StreamingCopyCore::new(core, offset, bytes, Some(block)));
        Ok(streaming.map(StreamingCopy))
    }

    /// The staging memory of a loan on a GPU: address, length in bytes, and the stream that copies from it. None: the loan is in
    /// host memory.
    pub(crate) fn filled_in(&self) -> Option<(u64, u64, Stream)> {
        let staged = self.0.staged.as_ref();
        staged.map(|staged| (staged.address, staged.bytes, staged.stream()))
    }

    /// Queues the copies of those of the first `bytes` bytes that are not on the GPU yet, and orders the direct writes of network
    /// cards before work that is queued later. Does nothing for a loan in host memory.
    pub(crate) fn copy_rest(&self, bytes: u64) -> Result<(), PublishError> {
        self.0.copy_rest(bytes)
    }

    /// Whether both are the streaming copy of the same loan.
    pub fn is_same(&self, other: &StreamingCopy) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reports that `bytes` bytes from byte `from` on have arrived, and that nobody writes them while they are copied. In any
    /// order, from any thread. A caller that writes bytes again reports them again afterwards.
    pub fn arrived(&self, from: u64, bytes: u64) {
        self.0.arrived(from, bytes);
    }

    /// Reports that a network card wrote `bytes` bytes from byte `from` on into the GPU's memory. In any order, from any thread.
    /// If the same bytes are later reported as [`arrived`](Self::arrived), the copy from the host replaces them.
    pub fn written(&self, from: u64, bytes: u64) {
        self.0.written(from, bytes);
    }

    /// Ends the streaming copy: no more copies are queued. Returns the replicas into which copies were queued.
    pub(crate) fn end(&self) -> Vec<ReplicaBlock> {
        self.0.end()
    }
}

impl StreamingCopyCore {
    fn new(
        core: &Arc<PublisherCore>,
        offset: u64,
        bytes: u64,
        staged: Option<StagedBlock>,
    ) -> Arc<StreamingCopyCore> {
        Arc::new(StreamingCopyCore {
            core: core.clone(),
            offset,
            bytes,
            staged,
            state: Mutex::default(),
            idle: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, CopyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrived(&self, from: u64, bytes: u64) {
        let core = &self.core;
        let Some(end) = from.checked_add(bytes).filter(|end| *end <= self.bytes) else {
            return;
        };
        let mut state = self.lock();
        let is_read =
            self.staged.is_some() || state.is_provided || core.read_in_other_domains() != 0;
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
            let (begun, copied) = match &self.staged {
                Some(staged) => (begun, self.copy_up(staged, &arrived)),
                None => (self.queue(begun, is_provided, &arrived), 0),
            };
            state = self.lock();
            state.begun = begun;
            for (from, end) in &arrived[..copied] {
                state.copied.insert(*from, *end);
            }
        }
        state.busy = false;
        drop(state);
        self.idle.notify_all();
    }

    fn written(&self, from: u64, bytes: u64) {
        let Some(end) = from.checked_add(bytes).filter(|end| *end <= self.bytes) else {
            return;
        };
        let mut state = self.lock();
        state.copied.insert(from, end);
        state.is_written = true;
    }

    /// Queues the copies of arrived ranges into the replicas `begun`. Allocates these first unless `is_provided`. Returns the
    /// replicas whose copies did not fail.
    fn queue(
        &self,
        begun: Vec<ReplicaBlock>,
        is_provided: bool,
        arrived: &[(u64, u64)],
    ) -> Vec<ReplicaBlock> {
        let core = &self.core;
        let begun = match is_provided {
            true => begun,
            // Without memory now, publishing allocates the replicas, and waits for memory then.
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

    /// Queues the copies of ranges from staging memory to the GPU. Returns how many ranges were queued; publishing copies the others.
    fn copy_up(&self, staged: &StagedBlock, ranges: &[(u64, u64)]) -> usize {
        let mut copies = ranges.iter().map(|range| self.copy_range(staged, *range));
        let failed = copies.position(|copied| copied.is_err());
        failed.unwrap_or(ranges.len())
    }

    fn copy_range(&self, staged: &StagedBlock, (from, end): (u64, u64)) -> Result<(), CudaError> {
        let mapping = &self.core.own.mapping;
        let Some(on) = mapping.on_stream(staged.stream()) else {
            return Ok(());
        };
        let to = mapping.base() + self.offset + from;
        // SAFETY: `arrived` and `missing` limit the range to the loan's `bytes`, and both the loan's block and its staging block have as
        // many. Both blocks are reused only when the stream has passed the copy. Threads that fill the loan report a range only after
        // they wrote it; a caller that writes it again reports it again, and then it is copied again.
        unsafe { on?.copy(to, staged.address + from, end - from) }
    }

    fn copy_rest(&self, bytes: u64) -> Result<(), PublishError> {
        let Some(staged) = &self.staged else {
            return Ok(());
        };
        self.end();
        let mut state = self.lock();
        let missing: Vec<_> = state.copied.missing(bytes).collect();
        for range in missing {
            let copied = self.copy_range(staged, range);
            copied.map_err(|error| self.core.own.mapping.fail(error))?;
            state.copied.insert(range.0, range.1);
        }
        let mapping = &self.core.own.mapping;
        match mapping.context().filter(|_| state.is_written) {
            // Must happen before the message is announced.
            Some(context) => Ok(context
                .order_direct_writes()
                .map_err(|error| mapping.fail(error))?),
            None => Ok(()),
        }
    }

    fn end(&self) -> Vec<ReplicaBlock> {
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

impl Drop for StreamingCopyCore {
    fn drop(&mut self) {
        if let Some(staged) = self.staged.take() {
            if !self.core.guard.is_child() {
                self.core.unstage(&staged);
            }
        }
    }
}

impl PublisherCore {
    /// Ends the streaming copies of all loans that are not published yet, and gives back their replicas.
    #[cold]
    pub(super) fn end_streaming_copies(&self) {
        let known = {
            let mut streaming = self
                .streaming
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *streaming)
        };
        for streaming in known.iter().filter_map(std::sync::Weak::upgrade) {
            let begun = streaming.end();
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
