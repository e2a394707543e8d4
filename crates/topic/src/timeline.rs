//! Timelines: counters that streams of GPU work advance.

use crate::Storage;
use rgaps_layout::{Timeline, MAX_TIMELINES, TIMELINE_TABLE_OFFSET};
use rgaps_sync::atomic::AtomicU64;
use std::mem::{offset_of, size_of};

/// A timeline of a control segment.
#[derive(Clone, Debug)]
pub struct TimelineView<S> {
    storage: S,
    base: u64,
}

/// Timeline `index`, if there is such a timeline. Number 0 is none: it is never handed out.
pub fn timeline<S: Storage>(storage: &S, index: u32) -> Option<TimelineView<S>> {
    let bytes = size_of::<Timeline>() as u64;
    let base = TIMELINE_TABLE_OFFSET + u64::from(index) * bytes;
    let there = index > 0 && index < MAX_TIMELINES && base + bytes <= storage.len();
    there.then(|| TimelineView {
        storage: storage.clone(),
        base,
    })
}

impl<S: Storage> TimelineView<S> {
    /// The last point that was reached, or `tenure << 32`.
    #[inline(always)]
    pub fn value(&self) -> &AtomicU64 {
        let at = self.base + offset_of!(Timeline, value) as u64;
        self.storage.u64(at)
    }

    /// `value` as the last tenure left it.
    pub fn reached(&self) -> &AtomicU64 {
        let at = self.base + offset_of!(Timeline, reached) as u64;
        self.storage.u64(at)
    }
}
