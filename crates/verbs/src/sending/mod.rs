//! The sending end of a channel: where frames go, and with which credits.

mod batch;

pub use batch::Batch;

use crate::address::ChannelAddress;
use crate::channel::{size, HEADER_BYTES, RECEIVES_RESERVED, SENDS_RESERVED};
use crate::cursors::{CursorViolation, FrameSizeError, Reserved, Ring, Sender};
use crate::error::ChannelViolation;
use crate::fabric::{Depths, Work};
use crate::notice::Notice;
use crate::region::{Allocation, Memory, Region};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Works of one [`Batch`] before they are posted.
pub(crate) const STAGED_MAX: usize = 64;
/// Notices that may join them.
const NOTICES_MAX: usize = 3;
/// A work is signalled when this part of the send queue, or of half the ring, has gone unsignalled.
const SIGNAL_PART: u32 = 4;

/// Memory of this side to be written into the peer's before a frame.
#[derive(Clone, Debug)]
pub struct Direct {
    /// Where the bytes are; kept until they are written.
    pub region: Arc<Region>,
    /// Where in it.
    pub offset: u64,
    /// How many, at most [`crate::DIRECT_BYTES_MAX`].
    pub bytes: u64,
    /// Where they go: the peer's address,
    pub address: u64,
    /// and its key for it.
    pub key: u32,
}

/// A signalled work: what is done when it is.
#[derive(Clone, Copy)]
struct Mark {
    number: u64,
    cursor: u64,
    frames: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stall {
    No,
    /// It is to be said when a slot is free.
    Owed,
    /// It was said, and the head has not come.
    Announced,
}

/// What credits of this side the peer is to be told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owed {
    Nothing,
    Credits,
    Head,
}

pub(crate) struct Sending {
    // In flight: before the memory that it uses.
    staged: Vec<Work>,
    marks: VecDeque<Mark>,
    held: VecDeque<(u64, Arc<Region>)>,
    ring: Sender,
    peer: ChannelAddress,
    region: Arc<Region>,
    mirror: Arc<Allocation>,
    /// What the peer writes; its credit words lie behind the ring.
    landing: Arc<Allocation>,
    depths: Depths,
    /// What the peer returned last.
    head: u64,
    /// Up to where the mirror's bytes were read by the device.
    completed_cursor: u64,
    posted: u64,
    completed: u64,
    unsignalled: u32,
    unsignalled_bytes: u64,
    frames: u64,
    immediates: u64,
    receives: u64,
    stall: Stall,
    wants: bool,
    owed: Owed,
}

/// What keeps a frame from going.
enum Lack {
    Ring,
    Receives,
    Sends,
}

impl Sending {
    pub(crate) fn new(
        ring: Ring,
        peer: ChannelAddress,
        mirror: Arc<Allocation>,
        region: Arc<Region>,
        landing: Arc<Allocation>,
        depths: Depths,
    ) -> Self {
        let slots = depths.sends as usize + 1;
        Self {
            staged: Vec::with_capacity(STAGED_MAX + NOTICES_MAX),
            marks: VecDeque::with_capacity(slots),
            held: VecDeque::with_capacity(slots),
            ring: Sender::new(ring),
            peer,
            region,
            mirror,
            landing,
            depths,
            head: 0,
            completed_cursor: 0,
            posted: 0,
            completed: 0,
            unsignalled: 0,
            unsignalled_bytes: 0,
            frames: 0,
            immediates: 0,
            receives: peer.receives.into(),
            stall: Stall::No,
            wants: false,
            owed: Owed::Nothing,
        }
    }

    pub(crate) fn frame_bytes_max(&self) -> u64 {
        self.ring.ring().frame_bytes_max() - HEADER_BYTES
    }

    fn in_flight(&self) -> u64 {
        self.posted - self.completed
    }

    fn has_slots(&self, works: u64, reserved: u32) -> bool {
        self.in_flight() + works + u64::from(reserved) <= u64::from(self.depths.sends)
    }

    /// The mirror's and the ring's bytes are free up to here.
    fn free(&mut self) -> Result<(), CursorViolation> {
        self.ring
            .head_returned(self.head.min(self.completed_cursor))
    }

    /// Slots, one receive of the peer's, and room in the ring, if there are bytes for it.
    fn reserve(
        &mut self,
        works: u64,
        bytes: Option<u64>,
    ) -> Result<Result<u64, Lack>, FrameSizeError> {
        if !self.has_slots(works, SENDS_RESERVED) {
            return Ok(Err(Lack::Sends));
        }
        if self.immediates + u64::from(RECEIVES_RESERVED) >= self.receives {
            return Ok(Err(Lack::Receives));
        }
        let Some(bytes) = bytes else {
            return Ok(Ok(self.ring.tail()));
        };
        Ok(match self.ring.reserve(bytes)? {
            Reserved::At(slot) => Ok(slot.cursor),
            Reserved::Full => Err(Lack::Ring),
        })
    }

    /// The credit words that the peer wrote. Each only goes up, so any two of them are true together.
    fn read_credits(&mut self) -> Result<(), ChannelViolation> {
        let at = self.landing.bytes() - size(HEADER_BYTES);
        let (head, receives) = (word(&self.landing, at), word(&self.landing, at + 8));
        let (head, receives) = (
            head.load(Ordering::Acquire),
            receives.load(Ordering::Acquire),
        );
        if head > self.ring.tail() {
            let tail = self.ring.tail();
            return Err(CursorViolation::Head { head, tail }.into());
        }
        let most = self.immediates + u64::from(self.peer.receives);
        if receives > most {
            let claimed = receives;
            return Err(ChannelViolation::Receives { claimed, most });
        }
        self.head = self.head.max(head);
        self.receives = self.receives.max(receives);
        self.free()?;
        Ok(())
    }

    /// A receive for a notice. There always is one: frames leave one to a stall and one to a head, a stall tells
    /// that the last head was received, and a head that the last stall was.
    fn has_receive(&mut self) -> Result<(), ChannelViolation> {
        if self.immediates >= self.receives {
            self.read_credits()?;
        }
        let has = self.immediates < self.receives;
        has.then_some(()).ok_or(ChannelViolation::Turn("stall"))
    }

    /// Everything up to this work is done. Gives up to which frame.
    pub(crate) fn reap(&mut self, number: u64) -> Result<u64, CursorViolation> {
        let mut frames = 0;
        while let Some(mark) = self.marks.front().filter(|mark| mark.number <= number) {
            self.completed = mark.number;
            self.completed_cursor = mark.cursor;
            frames = mark.frames;
            self.marks.pop_front();
        }
        while self.held.front().is_some_and(|(frame, _)| *frame <= frames) {
            self.held.pop_front();
        }
        self.free()?;
        Ok(frames)
    }

    /// Everything is done, as far as it ever will be.
    pub(crate) fn drained(&mut self) {
        self.marks.clear();
        self.held.clear();
        self.completed = self.posted;
    }

    /// Number of the work that shows that the send queue is drained.
    pub(crate) fn last_number(&self) -> u64 {
        self.posted + 1
    }

    /// Whether a sender that lacked something may ask again: said once.
    pub(crate) fn take_wants(&mut self) -> bool {
        std::mem::take(&mut self.wants)
    }

    /// The peer answered the stall.
    pub(crate) fn head_noticed(&mut self) -> Result<(), ChannelViolation> {
        if self.stall != Stall::Announced {
            return Err(ChannelViolation::Turn("head"));
        }
        self.stall = Stall::No;
        Ok(())
    }

    pub(crate) fn owes_head(&self) -> bool {
        self.owed == Owed::Head
    }

    pub(crate) fn owe(&mut self, owed: Owed) {
        self.owed = self.owed.max(owed);
    }

    /// What the peer is told with the next credits.
    pub(crate) fn say(&self, head: Option<u64>, receives: u64) {
        let at = size(self.ring.ring().bytes());
        if let Some(head) = head {
            word(&self.mirror, at).store(head, Ordering::Release);
        }
        word(&self.mirror, at + 8).store(receives, Ordering::Release);
    }

    /// The direct write of the frame that follows, whose completion is also its own.
    fn stage_direct(&mut self, direct: &Direct) {
        self.held
            .push_back((self.frames, Arc::clone(&direct.region)));
        self.unsignalled += 1;
        self.posted += 1;
        let number = self.posted;
        self.staged.push(Work {
            number,
            ..direct_work(direct)
        });
    }

    fn stage(&mut self, mut work: Work, signalled: bool) {
        self.posted += 1;
        work.number = self.posted;
        self.unsignalled += 1;
        if work.immediate.is_some() {
            self.immediates += 1;
        }
        let half = self.ring.ring().bytes() / 2;
        work.signalled = signalled
            || self.unsignalled >= (self.depths.sends / SIGNAL_PART).max(1)
            || self.unsignalled_bytes >= half / u64::from(SIGNAL_PART);
        if work.signalled {
            (self.unsignalled, self.unsignalled_bytes) = (0, 0);
            self.marks.push_back(Mark {
                number: self.posted,
                cursor: self.ring.tail(),
                frames: self.frames,
            });
        }
        debug_assert!(self.in_flight() <= u64::from(self.depths.sends));
        debug_assert!(
            self.immediates <= self.receives,
            "more notices than receives"
        );
        self.staged.push(work);
    }

    fn stage_frame(&mut self, cursor: u64, parts: &[IoSlice<'_>], bytes: u64, directs: &[Direct]) {
        let at = size(self.ring.ring().offset(cursor));
        let mut header = [0; HEADER_BYTES as usize];
        let length = u32::try_from(bytes - HEADER_BYTES).expect("frames are smaller than rings");
        header[..4].copy_from_slice(&length.to_le_bytes());
        // The low bits are enough to see that a slot holds an older frame.
        header[4..8].copy_from_slice(&(self.frames as u32).to_le_bytes());
        header[8..].copy_from_slice(&cursor.to_le_bytes());
        self.mirror.write(at, &header);
        let mut next = at + header.len();
        for part in parts {
            self.mirror.write(next, part);
            next += part.len();
        }
        self.frames += 1;
        directs.iter().for_each(|direct| self.stage_direct(direct));
        let inline = bytes <= u64::from(self.depths.inline_bytes);
        self.unsignalled_bytes += bytes;
        let work = Work {
            number: 0,
            local: self.mirror.start().wrapping_add(at),
            bytes: length + HEADER_BYTES as u32,
            local_key: self.region.keys().local,
            remote: self.peer.ring + at as u64,
            remote_key: self.peer.key,
            immediate: Some(Notice::Frame { offset: at as u64 }.to_immediate()),
            signalled: false,
            inline,
        };
        self.stage(work, !directs.is_empty());
    }

    /// A direct write that is a frame of its own.
    fn stage_marked(&mut self, direct: &Direct, mark: u32) {
        self.frames += 1;
        self.held
            .push_back((self.frames, Arc::clone(&direct.region)));
        let work = Work {
            immediate: Some(Notice::Written { mark }.to_immediate()),
            ..direct_work(direct)
        };
        self.stage(work, true);
    }

    /// Writes this side's credit words into the peer's. What has a notice is signalled anyway.
    fn stage_credits(&mut self, notice: Option<Notice>, signalled: bool) {
        let at = size(self.ring.ring().bytes());
        let work = Work {
            number: 0,
            local: self.mirror.start().wrapping_add(at),
            bytes: HEADER_BYTES as u32,
            local_key: self.region.keys().local,
            remote: self.peer.credits,
            remote_key: self.peer.key,
            immediate: notice.map(Notice::to_immediate),
            signalled: false,
            inline: self.depths.inline_bytes >= HEADER_BYTES as u32,
        };
        self.stage(work, signalled || notice.is_some());
    }
}

fn direct_work(direct: &Direct) -> Work {
    Work {
        number: 0,
        local: direct.region.start().wrapping_add(size(direct.offset)),
        bytes: u32::try_from(direct.bytes).expect("it was checked"),
        local_key: direct.region.keys().local,
        remote: direct.address,
        remote_key: direct.key,
        immediate: None,
        signalled: false,
        inline: false,
    }
}

/// A word of credit: written by the device, or read by it.
fn word(memory: &Allocation, at: usize) -> &AtomicU64 {
    assert!(at % 8 == 0 && at + 8 <= memory.bytes());
    // SAFETY: inside, and aligned, since allocations begin at pages; it is only ever accessed atomically by
    // programs, and by devices in whole words.
    unsafe { AtomicU64::from_ptr(memory.start().add(at).cast()) }
}
