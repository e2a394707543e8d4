//! The sending end of a channel: where frames go, and with which credits.

use crate::address::ChannelAddress;
use crate::channel::{
    size, Channel, DIRECT_BYTES_MAX, HEADER_BYTES, RECEIVES_RESERVED, SENDS_RESERVED,
};
use crate::cursors::{CursorLie, FrameSizeError, Reserved, Ring, Sender};
use crate::error::{ChannelError, Lie};
use crate::fabric::{Depths, Work};
use crate::notice::Notice;
use crate::region::{Allocation, Memory, Region};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

/// Works of one [`Batch`] before they are posted.
const STAGED_MAX: usize = 64;
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
    /// How many, at most [`DIRECT_BYTES_MAX`].
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
    Said,
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
    fn free(&mut self) -> Result<(), CursorLie> {
        self.ring
            .head_returned(self.head.min(self.completed_cursor))
    }

    /// Room in the ring and one receive of the peer's.
    fn reserve(&mut self, works: u64, bytes: u64) -> Result<Result<u64, Lack>, FrameSizeError> {
        if !self.has_slots(works, SENDS_RESERVED) {
            return Ok(Err(Lack::Sends));
        }
        if self.immediates + u64::from(RECEIVES_RESERVED) >= self.receives {
            return Ok(Err(Lack::Receives));
        }
        Ok(match self.ring.reserve(bytes)? {
            Reserved::At(slot) => Ok(slot.cursor),
            Reserved::Full => Err(Lack::Ring),
        })
    }

    /// The credit words that the peer wrote. Each only goes up, so any two of them are true together.
    fn read_credits(&mut self) -> Result<(), Lie> {
        let at = self.landing.bytes() - size(HEADER_BYTES);
        let (head, receives) = (word(&self.landing, at), word(&self.landing, at + 8));
        let (head, receives) = (
            head.load(Ordering::Acquire),
            receives.load(Ordering::Acquire),
        );
        if head > self.ring.tail() {
            let tail = self.ring.tail();
            return Err(CursorLie::Head { head, tail }.into());
        }
        let most = self.immediates + u64::from(self.peer.receives);
        if receives > most {
            let said = receives;
            return Err(Lie::Receives { said, most });
        }
        self.head = self.head.max(head);
        self.receives = self.receives.max(receives);
        self.free()?;
        Ok(())
    }

    /// A receive for a notice. There always is one: frames leave one to a stall and one to a head, a stall tells
    /// that the last head was received, and a head that the last stall was.
    fn has_receive(&mut self) -> Result<(), Lie> {
        if self.immediates >= self.receives {
            self.read_credits()?;
        }
        let has = self.immediates < self.receives;
        has.then_some(()).ok_or(Lie::Turn("stall"))
    }

    /// Everything up to this work is done. Gives up to which frame.
    pub(crate) fn reap(&mut self, number: u64) -> Result<u64, CursorLie> {
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
    pub(crate) fn head_noticed(&mut self) -> Result<(), Lie> {
        if self.stall != Stall::Said {
            return Err(Lie::Turn("head"));
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

    fn stage_frame(
        &mut self,
        cursor: u64,
        parts: &[IoSlice<'_>],
        bytes: u64,
        direct: Option<&Direct>,
    ) {
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
        if let Some(direct) = direct {
            self.stage_direct(direct);
        }
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
        self.stage(work, direct.is_some());
    }

    /// Writes this side's credit words into the peer's.
    fn stage_credits(&mut self, notice: Option<Notice>) {
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
        self.stage(work, notice.is_some());
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

/// Frames that are posted together: with one doorbell when it is dropped, or full.
pub struct Batch<'a> {
    channel: &'a Channel,
    sending: MutexGuard<'a, Sending>,
}

impl Channel {
    /// Begins to send. Others who send wait until the batch is dropped.
    pub fn batch(&self) -> Result<Batch<'_>, ChannelError> {
        self.check()?;
        let sending = self.sending()?;
        let channel = self;
        Ok(Batch { channel, sending })
    }

    /// Sends one frame, with the bytes that are to be in the peer's memory before it. Gives its number, or
    /// nothing if there is no credit now: [`crate::Progress::room`] says when to ask again.
    pub fn send(
        &self,
        parts: &[IoSlice<'_>],
        direct: Option<&Direct>,
    ) -> Result<Option<u64>, ChannelError> {
        let mut batch = self.batch()?;
        let number = batch.push(parts, direct)?;
        batch.post()?;
        Ok(number)
    }

    /// Writes a few bytes to the peer: with nothing in flight, a peer or link that is gone shows in no other way.
    /// Not needed where something is sent all the time.
    pub fn probe(&self) -> Result<(), ChannelError> {
        self.check()?;
        let mut sending = self.sending()?;
        sending.owe(Owed::Credits);
        self.settle_notices(&mut sending)
    }

    /// Says what was left unsaid for want of slots, and what is due now.
    pub(crate) fn settle_notices(&self, sending: &mut Sending) -> Result<(), ChannelError> {
        if sending.owed == Owed::Head && sending.has_slots(1, 0) {
            sending.owed = Owed::Nothing;
            sending.has_receive().map_err(|lie| self.lie(lie))?;
            self.counts.heads_noticed.add(1);
            sending.stage_credits(Some(Notice::Head));
        }
        if sending.stall == Stall::Owed && sending.has_slots(1, 0) {
            sending.has_receive().map_err(|lie| self.lie(lie))?;
            if sending.owed == Owed::Credits {
                // They go with it.
                sending.owed = Owed::Nothing;
            }
            sending.stall = Stall::Said;
            self.counts.stall_notices.add(1);
            sending.stage_credits(Some(Notice::Stall));
        }
        if sending.owed == Owed::Credits && sending.has_slots(1, 0) {
            sending.owed = Owed::Nothing;
            self.counts.heads_returned.add(1);
            sending.stage_credits(None);
        }
        self.post(sending)
    }

    fn post(&self, sending: &mut Sending) -> Result<(), ChannelError> {
        if sending.staged.is_empty() {
            return Ok(());
        }
        let inlined = sending.staged.iter().filter(|work| work.inline).count();
        // SAFETY: frames and credits lie in the mirror, whose bytes are written again only after their works'
        // completion (`free`), direct writes in regions that `held` keeps until then. Both are kept until
        // the queue pair is destroyed: it is the channel's first field.
        let posted = unsafe { self.queue.post(&sending.staged) };
        self.counts.doorbells.add(1);
        self.counts.works.add(sending.staged.len() as u64);
        self.counts.inlined.add(inlined as u64);
        self.counts.works_in_flight_most.most(sending.in_flight());
        let notices = sending.immediates + u64::from(sending.peer.receives) - sending.receives;
        self.counts.notices_in_flight_most.most(notices);
        sending.staged.clear();
        posted.map_err(|error| self.fail(error.into()))
    }
}

impl Batch<'_> {
    /// Adds a frame: as [`Channel::send`], but it goes with the batch. After `None` nothing more goes before
    /// there is room.
    pub fn push(
        &mut self,
        parts: &[IoSlice<'_>],
        direct: Option<&Direct>,
    ) -> Result<Option<u64>, ChannelError> {
        let payload: u64 = parts.iter().map(|part| part.len() as u64).sum();
        direct.map_or(Ok(()), check_direct)?;
        let works = 1 + u64::from(direct.is_some());
        if self.sending.staged.len() + 2 > STAGED_MAX {
            self.post()?;
        }
        let Some(cursor) = self.reserve(works, payload + HEADER_BYTES)? else {
            return Ok(None);
        };
        let counts = &self.channel.counts;
        counts.frames_sent.add(1);
        counts.bytes_sent.add(payload);
        if let Some(direct) = direct {
            counts.directs_sent.add(1);
            counts.direct_bytes_sent.add(direct.bytes);
        }
        let bytes = payload + HEADER_BYTES;
        self.sending.stage_frame(cursor, parts, bytes, direct);
        Ok(Some(self.sending.frames))
    }

    fn reserve(&mut self, works: u64, bytes: u64) -> Result<Option<u64>, ChannelError> {
        if let Ok(cursor) = self.sending.reserve(works, bytes)? {
            return Ok(Some(cursor));
        }
        // The peer's words are looked at when they are needed only.
        let read = self.sending.read_credits();
        read.map_err(|lie| self.channel.lie(lie))?;
        let lack = match self.sending.reserve(works, bytes)? {
            Ok(cursor) => return Ok(Some(cursor)),
            Err(lack) => lack,
        };
        self.sending.wants = true;
        let counts = &self.channel.counts;
        match lack {
            Lack::Ring => counts.stalls_ring.add(1),
            Lack::Receives => counts.stalls_receives.add(1),
            Lack::Sends => counts.stalls_sends.add(1),
        }
        // Slots come back by themselves, the others are asked for.
        if !matches!(lack, Lack::Sends) && self.sending.stall == Stall::No {
            self.sending.stall = Stall::Owed;
            self.channel.settle_notices(&mut self.sending)?;
        }
        Ok(None)
    }

    /// Posts what was added.
    pub fn post(&mut self) -> Result<(), ChannelError> {
        self.channel.post(&mut self.sending)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // An error has ended the channel, which says so from now on.
        let _ = self.post();
    }
}

fn check_direct(direct: &Direct) -> Result<(), ChannelError> {
    let (offset, bytes) = (direct.offset, direct.bytes);
    let region = direct.region.bytes() as u64;
    let end = offset.checked_add(bytes);
    if bytes == 0 || bytes > DIRECT_BYTES_MAX || end.is_none_or(|end| end > region) {
        let max = DIRECT_BYTES_MAX;
        return Err(ChannelError::Direct {
            offset,
            bytes,
            region,
            max,
        });
    }
    Ok(())
}
