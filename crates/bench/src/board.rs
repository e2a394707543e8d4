//! Shared memory between the processes of a benchmark.
//!
//! ```text
//! 0      futex words, one per cache line
//! 4096   LINES lines of eight words: turns, floor slots, a line per member
//! then   DATA areas of `samples` words per member: results, the floor's ring
//! ```

use anyhow::Context;
use rgaps_cuda::Registered;
use rgaps_pool::{create_sealed_memfd, Access, SharedMap};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Lines of eight words.
const LINES: usize = 192;
/// Line of the first member.
const MEMBERS: usize = 64;
/// Line of the first floor slot.
const SLOTS: usize = 128;
/// Result areas of a member.
pub const AREAS: usize = 4;
const PAGE: usize = 4096;
const LINE_WORDS: usize = 8;
const BELL_STRIDE: usize = 16;

/// Words of a member's line.
#[derive(Clone, Copy)]
pub enum Field {
    /// Number of steps that the member has finished.
    Done = 0,
    /// Nanoseconds of processor time.
    Cpu = 1,
    /// Messages that the member missed.
    Lost = 2,
    /// Messages whose bytes were wrong.
    Corrupt = 3,
    /// When it ended, or a second sum.
    Ended = 4,
    /// How many results are in its areas.
    Results = 5,
    /// Processor time of a second phase.
    Cpu2 = 6,
    /// Operations behind the processor times.
    Operations = 7,
}

/// How many members there are, and how many results each has room for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct Geometry {
    pub members: usize,
    pub samples: usize,
}

impl Geometry {
    fn bytes(self) -> u64 {
        let words = LINES * LINE_WORDS + self.members * AREAS * self.samples;
        (PAGE + words * 8).next_multiple_of(PAGE) as u64
    }
}

/// The memory, mapped.
pub struct Board {
    map: Arc<SharedMap>,
    fd: OwnedFd,
    geometry: Geometry,
}

impl Board {
    /// A new board.
    pub fn create(geometry: Geometry) -> anyhow::Result<Board> {
        let fd = create_sealed_memfd("rgaps-bench", geometry.bytes())?;
        Board::open(fd, geometry)
    }

    /// The board of another process.
    pub fn open(fd: OwnedFd, geometry: Geometry) -> anyhow::Result<Board> {
        anyhow::ensure!(geometry.members <= MEMBERS, "at most {MEMBERS} processes");
        let map = SharedMap::new(fd.as_fd(), geometry.bytes(), Access::ReadWrite)?;
        Ok(Board {
            map: Arc::new(map),
            fd,
            geometry,
        })
    }

    /// Duplicates the descriptor, for a member's standard input.
    pub fn share(&self) -> anyhow::Result<OwnedFd> {
        self.fd
            .try_clone()
            .context("the descriptor of shared memory cannot be duplicated")
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.geometry.members
    }

    fn words(&self) -> &[AtomicU64] {
        let count = (self.map.bytes() as usize - PAGE) / 8;
        // SAFETY: the mapping has `bytes` bytes, checked against the memfd that is sealed against
        // resizing, and lives as long as `self`. It starts at a page, so the words are aligned.
        // All processes access this part as 64-bit atomics only (a semaphore of crate `compare` has
        // a line to itself that nobody reads as words).
        unsafe { std::slice::from_raw_parts(self.map.base().as_ptr().add(PAGE).cast(), count) }
    }

    /// The board as work on a GPU reaches it; [`line_offset`](Self::line_offset) finds lines in it.
    pub fn register(&self, context: &Arc<rgaps_cuda::Context>) -> anyhow::Result<PinnedBoard> {
        let (start, bytes) = (self.map.base().as_ptr(), self.map.bytes() as usize);
        // SAFETY: `Board::open` mapped these whole pages readable and writable. The `PinnedBoard` made below keeps the
        // mapping until the registration has ended.
        let registered = unsafe { Registered::new(context.clone(), start.cast(), bytes) };
        Ok(PinnedBoard {
            registered: registered.context("shared memory cannot be registered with the GPU")?,
            _map: self.map.clone(),
        })
    }

    /// Offset of the first word of a line, in bytes.
    pub fn line_offset(index: usize) -> u64 {
        assert!(index < LINES);
        (PAGE + index * LINE_WORDS * 8) as u64
    }

    /// Offset of a member's area, in bytes. The areas of one member lie one behind the other.
    pub fn data_offset(&self, member: usize, area: usize) -> u64 {
        assert!(member < self.geometry.members && area < AREAS);
        let words = LINES * LINE_WORDS + (member * AREAS + area) * self.geometry.samples;
        (PAGE + words * 8) as u64
    }

    /// Calls `use_them` with the bytes from `offset` on, which counts as [`data_offset`](Self::data_offset) does. The caller
    /// must have the turn for these bytes: no other process uses them meanwhile.
    pub fn bytes<R>(&self, offset: u64, bytes: u64, use_them: impl FnOnce(&mut [u8]) -> R) -> R {
        assert!(offset >= self.data_offset(0, 0) && offset + bytes <= self.map.bytes());
        // SAFETY: the range lies in the mapping, behind the words that take turns; both were just checked, and
        // the mapping lives as long as `self`. The benchmarks that use a board so (`link`, and those of crate
        // `compare`) read none of its data as words, and a process touches a range only between the word
        // that gave it the turn (acquired) and the one that passes it on (released).
        use_them(unsafe {
            std::slice::from_raw_parts_mut(
                self.map.base().as_ptr().add(offset as usize),
                bytes as usize,
            )
        })
    }

    /// Futex word `index`.
    pub fn bell(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the mapping begins with a page, which lives as long as `self` and is aligned for words. All
        // processes access that page through this function, as 32-bit atomics.
        let words: &[AtomicU32] =
            unsafe { std::slice::from_raw_parts(self.map.base().as_ptr().cast(), PAGE / 4) };
        &words[index * BELL_STRIDE]
    }

    /// A cache line of words. Benchmarks choose the use of lines 0 to 63; then come the members' lines and the floor's slots.
    pub fn line(&self, index: usize) -> &[AtomicU64] {
        assert!(index < LINES);
        &self.words()[index * LINE_WORDS..][..LINE_WORDS]
    }

    /// A word of a member's own line.
    pub fn field(&self, member: usize, field: Field) -> &AtomicU64 {
        &self.line(MEMBERS + member)[field as usize]
    }

    /// The floor's slot into which `writer` writes.
    pub fn slot(&self, writer: usize) -> Slot<'_> {
        Slot(self.line(SLOTS + writer))
    }

    /// A member's results.
    pub fn data(&self, member: usize, area: usize) -> &[AtomicU64] {
        assert!(member < self.geometry.members && area < AREAS);
        let samples = self.geometry.samples;
        let start = LINES * LINE_WORDS + (member * AREAS + area) * samples;
        &self.words()[start..][..samples]
    }

    /// The first `count` results of a member, copied.
    pub fn results(&self, member: usize, area: usize, count: usize) -> Vec<u64> {
        let area = self.data(member, area)[..count].iter();
        area.map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

/// A board that a GPU's driver has pinned. It keeps the memory, also when the [`Board`] is dropped first.
pub struct PinnedBoard {
    // Fields drop in this order: the registration ends before the mapping.
    registered: Registered,
    _map: Arc<SharedMap>,
}

impl PinnedBoard {
    /// The address at which work on the GPU finds the board.
    pub fn device_address(&self) -> u64 {
        self.registered.device_address()
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.registered.bytes() as u64
    }
}

/// The floor of a message: 64 bytes that one process writes and others read. The first word is the message's number, the
/// second is when it was sent, six are payload.
pub struct Slot<'a>(&'a [AtomicU64]);

impl Slot<'_> {
    /// Writes message `number` with `now_ns` as the time at which it was sent.
    pub fn send(&self, number: u64, now_ns: u64) {
        self.0[1].store(now_ns, Ordering::Relaxed);
        for word in &self.0[2..] {
            word.store(number, Ordering::Relaxed);
        }
        self.0[0].store(number, Ordering::Release);
    }

    /// Returns when message `number` was sent; None if the slot does not have it yet. Checks the payload.
    pub fn receive(&self, number: u64) -> Option<u64> {
        if self.0[0].load(Ordering::Acquire) < number {
            return None;
        }
        let whole = self.0[2..]
            .iter()
            .all(|word| word.load(Ordering::Relaxed) >= number);
        assert!(whole, "the floor's slot is torn");
        Some(self.0[1].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_board_and_areas_do_not_overlap() {
        let geometry = Geometry {
            members: 3,
            samples: 5,
        };
        let board = Board::create(geometry).unwrap();
        let other = Board::open(board.share().unwrap(), geometry).unwrap();
        let mut number = 1;
        for member in 0..3 {
            for area in 0..AREAS {
                for word in board.data(member, area) {
                    assert_eq!(word.swap(number, Ordering::Relaxed), 0, "written twice");
                    number += 1;
                }
            }
        }
        assert_eq!(other.results(2, AREAS - 1, 5).last(), Some(&(number - 1)));
        assert_eq!(board.line(LINES - 1)[7].load(Ordering::Relaxed), 0);
        board.slot(1).send(4, 99);
        assert_eq!(other.slot(1).receive(5), None);
        assert_eq!(other.slot(1).receive(4), Some(99));
        assert_eq!(other.slot(0).receive(1), None);
        board.bell(3).store(7, Ordering::Relaxed);
        assert_eq!(other.bell(3).load(Ordering::Relaxed), 7);
        assert!(Board::open(
            board.share().unwrap(),
            Geometry {
                members: 4,
                samples: 5000
            }
        )
        .is_err());
    }
}
