//! The memory that a publisher leases: one arena in its own pool, and one in each pool that it copies to.

use crate::client::{subtract, Arena, ClientContext, PoolMapping, WorkEnd};
use crate::deferred_release::Recorded;
use rgaps_layout::GRANULE_BYTES;
use rgaps_pool::{Allocation, Mapping, Tlsf};
use rgaps_session::{PoolGrant, Range};
use rgaps_topic::{Loan, Point, Shared, Writer};
use std::sync::{Arc, Mutex, PoisonError};

/// The state that every message changes, behind the publisher's lock.
pub(super) struct ArenaState {
    pub(super) writer: Writer<Shared>,
    pub(super) memory: Memory,
    /// Open loans, which `max_loans` limits.
    pub(super) loans: u32,
    /// Blocks of dropped loans whose stream was capturing a graph, so that no point could be queued on it. `ask_again` tries again.
    pub(super) unasked: Vec<(Loan, Recorded)>,
}

/// Arenas by pool, and where each block is.
pub(super) struct Memory {
    /// The publisher's own pool first.
    arenas: Vec<Leased>,
    /// Per block: its arena, and the allocator's handle.
    handles: Vec<(usize, u32)>,
}

/// The arena in one pool.
struct Leased {
    /// Number of the pool.
    pool: u32,
    tlsf: Tlsf,
    /// Bytes leased.
    bytes: u64,
    /// Ranges that were reported to `HostMemory`, until they are given back.
    reported: Vec<ReportedRange>,
}

/// A leased range that was reported to `HostMemory`.
pub(super) struct ReportedRange {
    range: Range,
    mapping: Arc<PoolMapping>,
    /// The guard that `HostMemory` returned; dropping it ends the report.
    until: Box<dyn Send + Sync>,
}

impl ReportedRange {
    /// Reports a range to the mapping's `HostMemory`, which may take long. None: there is no `HostMemory`, or it ignores the range.
    pub(super) fn new(mapping: &Arc<PoolMapping>, range: Range) -> Option<ReportedRange> {
        let until = mapping.report_leased(range.offset, range.bytes)?;
        Some(ReportedRange {
            range,
            mapping: mapping.clone(),
            until,
        })
    }
}

impl Leased {
    /// Ends the reports of a range that this publisher returns. If a report covered more, reports the rest anew.
    fn untell(&mut self, gone: Range) {
        let end = gone.offset + gone.bytes;
        let (touched, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.reported)
            .into_iter()
            .partition(|reported| {
                reported.range.offset < end
                    && reported.range.offset + reported.range.bytes > gone.offset
            });
        self.reported = others;
        for reported in touched {
            let ReportedRange {
                range,
                mapping,
                until,
            } = reported;
            drop(until);
            let mut left = vec![range];
            subtract(&mut left, gone);
            let left = left.into_iter();
            self.reported
                .extend(left.filter_map(|range| ReportedRange::new(&mapping, range)));
        }
    }
}

impl Memory {
    pub(super) fn new(own_pool: u32, blocks: u32) -> Memory {
        let mut memory = Memory {
            arenas: Vec::new(),
            handles: vec![(0, u32::MAX); blocks as usize],
        };
        memory.arena_of(own_pool);
        memory
    }

    /// Index of the arena in a pool. Adds an empty arena for a pool that has none.
    pub(super) fn arena_of(&mut self, pool: u32) -> usize {
        if let Some(known) = self.arenas.iter().position(|arena| arena.pool == pool) {
            return known;
        }
        self.arenas.push(Leased {
            pool,
            tlsf: Tlsf::with_blocks(self.handles.len() as u32),
            bytes: 0,
            reported: Vec::new(),
        });
        self.arenas.len() - 1
    }

    pub(super) fn blocks(&self) -> u32 {
        self.handles.len() as u32
    }

    pub(super) fn leased_bytes(&self, arena: usize) -> u64 {
        self.arenas[arena].bytes
    }

    pub(super) fn all_leased_bytes(&self) -> u64 {
        self.arenas.iter().map(|arena| arena.bytes).sum()
    }

    /// The pools of the arenas, by number.
    pub(super) fn pools(&self) -> Vec<u32> {
        self.arenas.iter().map(|arena| arena.pool).collect()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let used = self
            .arenas
            .iter()
            .map(|arena| arena.tlsf.stats().used_bytes);
        used.sum()
    }

    pub(super) fn allocate(&mut self, arena: usize, bytes: u64, align: u64) -> Option<Allocation> {
        self.arenas[arena].tlsf.allocate(bytes, align)
    }

    /// Records the arena and the allocator's handle of a block, for `free`.
    pub(super) fn allocated(&mut self, block: u32, arena: usize, handle: u32) {
        self.handles[block as usize] = (arena, handle);
    }

    /// Frees an allocation for which no block of the table was free.
    pub(super) fn undo(&mut self, arena: usize, allocation: &Allocation) {
        let freed = self.arenas[arena].tlsf.free(allocation.handle);
        debug_assert!(freed.is_ok());
    }

    pub(super) fn free(&mut self, block: u32) {
        let (arena, handle) = self.handles[block as usize];
        let freed = self.arenas[arena].tlsf.free(handle);
        debug_assert!(freed.is_ok(), "block {block} was freed twice");
    }

    /// Adds a leased range to an arena. `reported`: its report, or None without `HostMemory`. An error says why the range is invalid.
    pub(super) fn add(
        &mut self,
        arena: usize,
        range: &Range,
        mapping: &PoolMapping,
        reported: Option<ReportedRange>,
    ) -> Result<(), String> {
        let end = range.offset.checked_add(range.bytes);
        if end.is_none_or(|end| end > mapping.mapped()) {
            return Err("a lease is beyond the mapped memory".to_owned());
        }
        let leased = &mut self.arenas[arena];
        let tlsf = &mut leased.tlsf;
        // Network cards register each range separately, so no message may lie in two.
        let added = match &reported {
            Some(_) => tlsf
                .add_region_apart(range.offset, range.bytes)
                .map(|_block| ()),
            None => tlsf.add_region(range.offset, range.bytes),
        };
        added.map_err(|error| format!("a lease is invalid: {error}"))?;
        leased.bytes += range.bytes;
        leased.reported.extend(reported);
        Ok(())
    }

    /// Ends all reports to `HostMemory`, because the publisher leaves.
    pub(super) fn untell_all(&mut self) {
        self.arenas
            .iter_mut()
            .for_each(|arena| arena.reported.clear());
    }
}

impl ArenaState {
    /// Frees the blocks that their last holder returned, and those whose own GPU work has finished.
    pub(super) fn collect(&mut self) {
        let ArenaState { writer, memory, .. } = self;
        writer.collect_returned(&mut |block| memory.free(block));
        writer.collect_queued(&mut |block| memory.free(block));
    }

    /// Frees a loan's block once the work on `stream` that may write it has finished, as `asked` says.
    pub(super) fn give_back(&mut self, block: Loan, asked: WorkEnd, stream: Recorded) {
        let ArenaState { writer, memory, .. } = self;
        let mut free = |block| memory.free(block);
        match asked {
            WorkEnd::Done => writer.abandon(block, Point::NONE, &mut free),
            WorkEnd::At(point) => writer.abandon(block, point, &mut free),
            WorkEnd::Later => self.unasked.push((block, stream)),
        }
    }

    /// Queries the streams of `unasked` once more, and gives back the blocks of those that answer.
    pub(super) fn ask_again(&mut self, mapping: &PoolMapping, client: &ClientContext) {
        for (block, stream) in std::mem::take(&mut self.unasked) {
            let asked = stream.ask_again(mapping, client);
            self.give_back(block, asked, stream);
        }
    }

    /// Whether GPU work of this publisher may still write blocks, as of the last `collect`.
    pub(super) fn is_written(&self) -> bool {
        self.writer.has_queued() || !self.unasked.is_empty()
    }

    /// Frees the blocks that subscribers released on streams whose work has finished.
    pub(super) fn collect_deferred_releases(&mut self) {
        let ArenaState { writer, memory, .. } = self;
        writer.collect_deferred_releases(&mut |block| memory.free(block));
    }

    /// Takes free whole granules of one arena out of the allocator, except for `keep_bytes` bytes. The caller returns them to
    /// the daemon.
    pub(super) fn take_free(&mut self, arena: usize, keep_bytes: u64) -> Vec<Range> {
        self.collect();
        self.collect_deferred_releases();
        let Some(leased) = self.memory.arenas.get_mut(arena) else {
            return Vec::new();
        };
        let free = leased.tlsf.take_free(GRANULE_BYTES, keep_bytes);
        let ranges: Vec<Range> = free
            .into_iter()
            .map(|range| Range {
                offset: range.start,
                bytes: range.end - range.start,
            })
            .collect();
        leased.bytes -= ranges.iter().map(|range| range.bytes).sum::<u64>();
        ranges.iter().for_each(|range| leased.untell(*range));
        ranges
    }
}

impl Arena for Mutex<ArenaState> {
    fn take_free(&self, pool: u32) -> Vec<Range> {
        // A poisoned lock is safe to use: nothing under it panics half-way through a change.
        let mut state = self.lock().unwrap_or_else(PoisonError::into_inner);
        let arena = state.memory.arenas.iter().position(|a| a.pool == pool);
        arena.map_or_else(Vec::new, |arena| state.take_free(arena, 0))
    }
}

/// An arena (its index in [`Memory`]), with its pool and the writable mapping of that.
#[derive(Clone)]
pub(super) struct MappedArena {
    pub(super) arena: usize,
    pub(super) pool: PoolGrant,
    pub(super) mapping: Arc<PoolMapping>,
}
