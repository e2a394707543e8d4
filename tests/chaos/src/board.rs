//! The scoreboard: what processes report while they live, in memory that outlives them.

use crate::steps::Counts;
use anyhow::Context;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Processes of one episode at most.
pub const ACTORS: usize = 384;
/// Extents that one process can have entered.
pub const EXTENTS: usize = 64;

/// `phase`: it does what it is there for.
pub const RUNNING: u32 = 1;
/// `phase`: it does nothing, and holds nothing. A publisher has trimmed its memory.
pub const PAUSED: u32 = 2;
/// `phase`: it has left in order.
pub const LEFT: u32 = 3;

/// `command`: go on.
pub const RUN: u32 = 0;
/// `command`: come to `PAUSED`. Subscribers go on reading, but hold nothing.
pub const PAUSE: u32 = 1;
/// `command`: come to `LEFT`.
pub const LEAVE: u32 = 2;

/// Bytes of a pool that a process holds or fills: `file` is the segment's inode, 0 for none.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Extent {
    pub file: AtomicU64,
    pub start: AtomicU64,
    pub end: AtomicU64,
}

/// A process.
#[repr(C)]
pub struct Actor {
    pub pid: AtomicU32,
    pub phase: AtomicU32,
    pub command: AtomicU32,
    /// 1: a subscriber has a message in memory that it has to ask a daemon for.
    pub asks: AtomicU32,
    /// Messages published or received.
    pub progress: AtomicU64,
    /// Of a publisher: messages that `publish` has returned for.
    pub published: AtomicU64,
    /// Samples whose bytes were wrong, or changed while they were held.
    pub corrupt: AtomicU64,
    /// Blocks that were handed out while somebody had them.
    pub doubled: AtomicU64,
    /// Messages out of order, received twice, or missing without being reported as missed.
    pub disorder: AtomicU64,
    /// Messages that a reliable subscriber missed.
    pub lost: AtomicU64,
    /// Errors of calls that should have worked.
    pub errors: AtomicU64,
    pub leased_bytes: AtomicU64,
    pub used_bytes: AtomicU64,
    /// Of a subscriber, per publisher's process: one past the last sequence number it took.
    pub next: [AtomicU64; ACTORS],
    pub extents: [Extent; EXTENTS],
}

/// All of it. Zeros are a fresh one.
#[repr(C)]
pub struct Board {
    pub actor: [Actor; ACTORS],
    pub steps: Counts,
}

impl Board {
    /// A new scoreboard, and the descriptor that child processes inherit.
    pub fn create() -> anyhow::Result<(&'static Board, OwnedFd)> {
        let fd = rustix::fs::memfd_create("rgaps-chaos-board", MemfdFlags::empty())
            .context("memfd_create")?;
        rustix::fs::ftruncate(&fd, size_of::<Board>() as u64).context("ftruncate")?;
        // SAFETY: the descriptor is a memfd that was just given the size of a board.
        Ok((unsafe { Board::map(fd.as_raw_fd()) }?, fd))
    }

    /// The scoreboard behind an inherited descriptor.
    ///
    /// # Safety
    /// `fd` is the descriptor of a board that `create` made, in this process or its parent.
    pub unsafe fn map(fd: i32) -> anyhow::Result<&'static Board> {
        // SAFETY: the descriptor is open by the caller's promise, and is only borrowed here.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<Board>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .context("mmap of the scoreboard")?;
        // SAFETY: the mapping is as long as a board, aligned to a page, never unmapped, and the
        // file is never shrunk; a board is atomics only, for which any bytes are a value.
        Ok(unsafe { &*address.cast::<Board>() })
    }

    /// Makes all actors' places fresh, for another episode. No actor lives.
    pub fn clear_actors(&self) {
        for actor in &self.actor {
            for word in [&actor.pid, &actor.phase, &actor.command, &actor.asks] {
                word.store(0, Ordering::Relaxed);
            }
            let counters = [
                &actor.progress,
                &actor.published,
                &actor.corrupt,
                &actor.doubled,
                &actor.disorder,
                &actor.lost,
                &actor.errors,
                &actor.leased_bytes,
                &actor.used_bytes,
            ];
            counters
                .into_iter()
                .chain(&actor.next)
                .for_each(|word| word.store(0, Ordering::Relaxed));
            for extent in &actor.extents {
                extent.file.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Whether an actor's process still runs.
    pub fn lives(&self, actor: u32) -> bool {
        let pid = self.actor[actor as usize].pid.load(Ordering::Acquire);
        pid != 0 && lives(pid)
    }

    /// Whether another living process than `own` has entered bytes that overlap these.
    pub fn overlaps(&self, own: u32, file: u64, start: u64, end: u64) -> bool {
        let others = self.actor.iter().enumerate();
        others
            .filter(|(index, _)| *index as u32 != own)
            .any(|(_, actor)| {
                let pid = actor.pid.load(Ordering::Acquire);
                pid != 0
                    && actor.extents.iter().any(|extent| {
                        extent.file.load(Ordering::Acquire) == file
                            && extent.start.load(Ordering::Acquire) < end
                            && start < extent.end.load(Ordering::Acquire)
                            && extent.file.load(Ordering::Acquire) == file
                    })
                    && lives(pid)
            })
    }
}

impl Actor {
    /// Enters an extent; the number takes it out again. None: there is no room.
    pub fn enter(&self, file: u64, start: u64, end: u64) -> Option<usize> {
        let free = self
            .extents
            .iter()
            .position(|extent| extent.file.load(Ordering::Relaxed) == 0)?;
        let extent = &self.extents[free];
        extent.start.store(start, Ordering::Release);
        extent.end.store(end, Ordering::Release);
        extent.file.store(file, Ordering::Release);
        Some(free)
    }

    pub fn take_out(&self, number: usize) {
        self.extents[number].file.store(0, Ordering::Release);
    }
}

/// Whether a process still runs. The daemon cleans up after one only when it is a zombie, so
/// whoever was handed its blocks finds it dead here.
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        !matches!(state, Some('Z' | 'X' | 'x') | None)
    })
}
