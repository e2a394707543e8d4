//! The sending end of a channel: it places frames in the peer's ring, and counts the credits that they need.
//!
//! It writes each frame to the *mirror*, a registered copy of the peer's ring, from which the device writes the same bytes of the
//! ring. Behind the ring, mirror and landing memory have two credit words: the head, and the count of posted receives.

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

/// The most works of a [`Batch`] before it posts them.
pub(crate) const STAGED_MAX: usize = 64;
/// The most notices and credits that are posted with them.
const NOTICES_MAX: usize = 3;
/// A work is signalled when the unsignalled ones before it fill one of so many parts of the send queue, or of half the ring.
const SIGNAL_PART: u32 = 4;

/// A direct write: memory of this side, which the device writes into the peer's memory before a frame.
#[derive(Clone, Debug)]
pub struct Direct {
    /// The region that has the bytes. The channel keeps it until they are written.
    pub region: Arc<Region>,
    /// Where they start in the region.
    pub offset: u64,
    /// How many, at most [`crate::DIRECT_BYTES_MAX`].
    pub bytes: u64,
    /// Their target: an address of the peer.
    pub address: u64,
    /// The peer's key for that address.
    pub key: u32,
}

/// A signalled work, and what is done when it completes: frames up to the number `frames`, and the mirror's bytes before `cursor`.
#[derive(Clone, Copy)]
struct Mark {
    number: u64,
    cursor: u64,
    frames: u64,
}

/// Whether this side has told the peer that it lacks credit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stall {
    No,
    /// The stall notice waits for a slot.
    Owed,
    /// The stall notice was sent, and the peer's head notice has not arrived.
    Announced,
}

/// How this side's credits are to be returned to the peer when a slot is free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owed {
    Nothing,
    /// Without a notice.
    Credits,
    /// With a head notice, which answers the peer's stall.
    Head,
}

pub(crate) struct Sending {
    /// Works that are not posted yet.
    staged: Vec<Work>,
    /// Signalled works in flight, the oldest first.
    marks: VecDeque<Mark>,
    /// The regions of direct writes in flight, each with its frame's number.
    held: VecDeque<(u64, Arc<Region>)>,
    ring: Sender,
    peer: ChannelAddress,
    /// The mirror's registration.
    region: Arc<Region>,
    mirror: Arc<Allocation>,
    /// The memory that the peer writes; the peer's credit words lie behind the ring.
    landing: Arc<Allocation>,
    depths: Depths,
    /// The head that the peer returned last.
    head: u64,
    /// The device has read the mirror's bytes before this cursor.
    completed_cursor: u64,
    /// The number of the last work staged, and of the last known to be complete.
    posted: u64,
    completed: u64,
    /// Works, and bytes of frames, since the last signalled work.
    unsignalled: u32,
    unsignalled_bytes: u64,
    /// The number of the last frame.
    frames: u64,
    /// Writes with immediate data since the start.
    immediates: u64,
    /// Receives that the peer has posted since the start, as far as this side knows.
    receives: u64,
    stall: Stall,
    /// A sender lacked credit, and was not yet told to try again.
    wants: bool,
    owed: Owed,
}

/// The credit that a frame lacks.
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

    /// Frees the ring up to where the peer has read it and the device has read the mirror.
    fn free(&mut self) -> Result<(), CursorViolation> {
        self.ring
            .head_returned(self.head.min(self.completed_cursor))
    }

    /// Takes slots, one receive of the peer, and, with `bytes`, room in the ring. Returns the frame's cursor.
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

    /// Reads and checks the credit words that the peer wrote. Each only grows, so an older value of either is still valid.
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

    /// Checks that the peer has a receive for a notice. A peer that keeps the protocol has: frames leave two, one for a stall and one
    /// for a head. This side's next stall follows the peer's head, whose credits return the receive of the last stall; the next
    /// head follows the peer's next stall, whose credits return the receive of the last head.
    fn has_receive(&mut self) -> Result<(), ChannelViolation> {
        if self.immediates >= self.receives {
            self.read_credits()?;
        }
        let has = self.immediates < self.receives;
        has.then_some(()).ok_or(ChannelViolation::Turn("stall"))
    }

    /// Call when the signalled work `number` completed, and with it all works before it. Returns the number of the last frame that
    /// is complete; 0 if this completes none.
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

    /// Call when the queue pair is drained: no work is in flight.
    pub(crate) fn drained(&mut self) {
        self.marks.clear();
        self.held.clear();
        self.completed = self.posted;
    }

    /// The number of the work whose completion shows that the send queue is drained.
    pub(crate) fn last_number(&self) -> u64 {
        self.posted + 1
    }

    /// Whether a sender lacked credit since this was called last.
    pub(crate) fn take_wants(&mut self) -> bool {
        std::mem::take(&mut self.wants)
    }

    /// Call when the peer's head notice arrived, which answers the stall.
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

    /// Sets the credit words in the mirror, which the next write of credits takes to the peer.
    pub(crate) fn say(&self, head: Option<u64>, receives: u64) {
        let at = size(self.ring.ring().bytes());
        if let Some(head) = head {
            word(&self.mirror, at).store(head, Ordering::Release);
        }
        word(&self.mirror, at + 8).store(receives, Ordering::Release);
    }

    /// Stages a direct write. The frame that follows is signalled, and its completion covers this write.
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
        // The low 32 bits of the frame's number are enough to detect an older frame in the slot.
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

    /// Stages a direct write with a mark, which counts as a frame.
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

    /// Stages a write of this side's credit words into the peer's landing memory. A write with a notice is always signalled.
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

/// A credit word, which the device writes or reads.
fn word(memory: &Allocation, at: usize) -> &AtomicU64 {
    assert!(at % 8 == 0 && at + 8 <= memory.bytes());
    // SAFETY: the assertion checked that the word lies inside the allocation and at a multiple of 8, and allocations begin at
    // pages, so it is aligned. The reference borrows the allocation. Programs access the word only atomically, devices as a whole.
    unsafe { AtomicU64::from_ptr(memory.start().add(at).cast()) }
}
