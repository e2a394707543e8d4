//! Points on timelines: what GPU work has to have reached before bytes may be read or reused.
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

/// How far the work before a point is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It runs, or waits to.
    Pending,
    /// It has finished.
    Reached,
    /// It never finished, and never will: its process is gone, or its context is lost.
    Aborted,
}

impl Point {
    /// There is no work to wait for.
    pub const NONE: Point = Point {
        timeline: 0,
        value: POINT_NONE,
    };

    /// Whether there is nothing to wait for, and never was.
    #[inline]
    pub fn is_none(self) -> bool {
        self.value == POINT_NONE
    }

    /// Which owner of the timeline it belongs to.
    pub fn tenure(self) -> u32 {
        tenure(self.value)
    }
}

fn tenure(value: u64) -> u32 {
    (value >> 32) as u32
}

/// How far the work before `point` is. Whoever needs the answer again keeps it: `Pending` changes, and
/// `Reached` becomes `Aborted` when the timeline's next owner is gone, too.
///
/// What a descriptor names is a peer's word: a timeline that does not exist, or a point of a tenure
/// that has not begun, is taken for work that never finishes.
pub fn progress<S: Storage>(storage: &S, point: Point) -> Progress {
    match point.value {
        POINT_NONE => return Progress::Reached,
        POINT_ABORTED => return Progress::Aborted,
        _ => {}
    }
    let Some(view) = timeline(storage, point.timeline) else {
        return Progress::Aborted;
    };
    // Acquire: what the work wrote is visible to whoever sees its point (SYNC: point). A GPU's write
    // of the value comes behind its other writes, for the whole system.
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
    // The daemon writes `reached` before it raises the tenure. If it has ended another tenure since,
    // nobody knows how far this one came: then the message counts as lost, which is safe.
    let reached = view.reached().load(Ordering::Acquire);
    match tenure(reached) == point.tenure() && reached >= point.value {
        true => Progress::Reached,
        false => Progress::Aborted,
    }
}

/// How many of `bytes` bytes are there from the start on, that come in parts of `part_bytes` whose points are
/// consecutive and end with `point`. `known` of them were there before. [`Progress::Aborted`] where not all
/// of them ever are.
///
/// What an entry says of parts is a peer's word: parts that cannot be count as none.
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
    // The count of the last one: the first is not below the tenure's start.
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
