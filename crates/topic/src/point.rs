//! Points on timelines: bytes may be read or reused once GPU work has reached their point.
//!
//! See `docs/decisions/0009-streams.md`.

use crate::{timeline, Storage};
use rgaps_layout::{MAX_COPY_PIECES, POINT_ABORTED, POINT_NONE};
use rgaps_sync::atomic::Ordering;

/// A value that a timeline reaches when the work queued before it has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Point {
    /// Index of the timeline.
    pub timeline: u32,
    /// Tenure (high half) and count (low half); [`POINT_NONE`] and [`POINT_ABORTED`] name no timeline.
    pub value: u64,
}

/// The state of the work before a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The work runs, or waits to run.
    Pending,
    /// The work has finished.
    Reached,
    /// The work will never finish: its process has died, or its CUDA context is lost.
    Aborted,
}

impl Point {
    /// There is no work to wait for.
    pub const NONE: Point = Point {
        timeline: 0,
        value: POINT_NONE,
    };

    /// Whether there never was work to wait for.
    #[inline]
    pub fn is_none(self) -> bool {
        self.value == POINT_NONE
    }

    /// The tenure: counts the owners of the timeline.
    pub fn tenure(self) -> u32 {
        tenure(self.value)
    }
}

fn tenure(value: u64) -> u32 {
    (value >> 32) as u32
}

/// The state of the work before `point`. A caller must remember `Reached` if it needs that again: once the timeline's next owner has
/// ended as well, the answer becomes `Aborted`.
///
/// The point may come from a peer's descriptor. A timeline that does not exist, or a tenure that has not begun, counts as work that
/// never finishes.
pub fn progress<S: Storage>(storage: &S, point: Point) -> Progress {
    match point.value {
        POINT_NONE => return Progress::Reached,
        POINT_ABORTED => return Progress::Aborted,
        _ => {}
    }
    let Some(view) = timeline(storage, point.timeline) else {
        return Progress::Aborted;
    };
    // Acquire: a process that sees the point also sees what the work wrote (SYNC: point). A GPU writes the value after its other
    // writes, for the whole system.
    let now = view.value().load(Ordering::Acquire);
    if tenure(now) == point.tenure() {
        return match now >= point.value {
            true => Progress::Reached,
            false => Progress::Pending,
        };
    }
    if tenure(now).wrapping_sub(point.tenure()) as i32 <= 0 {
        return Progress::Aborted;
    }
    // The daemon writes `reached` before it raises the tenure. If another tenure has ended since, the last value of this one is
    // unknown, and the message counts as aborted, which is safe.
    let reached = view.reached().load(Ordering::Acquire);
    match tenure(reached) == point.tenure() && reached >= point.value {
        true => Progress::Reached,
        false => Progress::Aborted,
    }
}

/// How many of a replica's `bytes` bytes, from the first on, are complete. It is copied in parts of `part_bytes`, whose points are
/// consecutive and end with `point`. `known`: how many bytes the caller knows to be complete. [`Progress::Aborted`]: the rest will never
/// be.
///
/// `part_bytes` comes from a peer: an impossible value counts as a replica in one part.
pub fn bytes_there<S: Storage>(
    storage: &S,
    point: Point,
    (bytes, part_bytes): (u64, u64),
    known: u64,
) -> Result<u64, Progress> {
    match progress(storage, point) {
        Progress::Reached => return Ok(bytes),
        Progress::Aborted => return Err(Progress::Aborted),
        Progress::Pending => {}
    }
    let known = known.min(bytes);
    if part_bytes == 0 || known == bytes {
        return Ok(known);
    }
    let parts = bytes.div_ceil(part_bytes);
    // The count of the last point must leave room for the points of all earlier parts in its tenure.
    if parts > MAX_COPY_PIECES || point.value & u64::from(u32::MAX) < parts {
        return Ok(known);
    }
    let mut there = known / part_bytes;
    while there + 1 < parts {
        let part = Point {
            value: point.value - (parts - 1 - there),
            ..point
        };
        if progress(storage, part) != Progress::Reached {
            break;
        }
        there += 1;
    }
    Ok((there * part_bytes).max(known))
}
