//! Sending: frames that are posted together, and what is said between them.

use super::{Direct, Lack, Owed, Sending, Stall, STAGED_MAX};
use crate::channel::{Channel, DIRECT_BYTES_MAX, HEADER_BYTES};
use crate::error::ChannelError;
use crate::notice::{Notice, MARK_MAX};
use std::io::IoSlice;
use std::sync::MutexGuard;

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

    /// Has the device say when all that was sent is done, which it says of some works only: [`Channel::completed`] counts it then. Before the
    /// channel is closed, this and [`Channel::progress`] find out whether the peer has everything. `false`: there is no slot now.
    pub fn report(&self) -> Result<bool, ChannelError> {
        self.check()?;
        let mut sending = self.sending()?;
        let has_slot = sending.has_slots(1, 0);
        if has_slot {
            sending.stage_credits(None, true);
            self.post(&mut sending)?;
        }
        Ok(has_slot)
    }

    /// Says what was left unsaid for want of slots, and what is due now.
    pub(crate) fn settle_notices(&self, sending: &mut Sending) -> Result<(), ChannelError> {
        if sending.owed == Owed::Head && sending.has_slots(1, 0) {
            sending.owed = Owed::Nothing;
            sending
                .has_receive()
                .map_err(|violation| self.violation(violation))?;
            self.counts.heads_noticed.add(1);
            sending.stage_credits(Some(Notice::Head), true);
        }
        if sending.stall == Stall::Owed && sending.has_slots(1, 0) {
            sending
                .has_receive()
                .map_err(|violation| self.violation(violation))?;
            if sending.owed == Owed::Credits {
                // They go with it.
                sending.owed = Owed::Nothing;
            }
            sending.stall = Stall::Announced;
            self.counts.stall_notices.add(1);
            sending.stage_credits(Some(Notice::Stall), true);
        }
        if sending.owed == Owed::Credits && sending.has_slots(1, 0) {
            sending.owed = Owed::Nothing;
            self.counts.heads_returned.add(1);
            sending.stage_credits(None, false);
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
        self.push_after(parts, direct.map_or(&[], std::slice::from_ref))
    }

    /// The same after several direct writes: bytes that lie in several regions.
    ///
    /// # Panics
    /// If there are more than [`Channel::directs_max`].
    pub fn push_after(
        &mut self,
        parts: &[IoSlice<'_>],
        directs: &[Direct],
    ) -> Result<Option<u64>, ChannelError> {
        let payload: u64 = parts.iter().map(|part| part.len() as u64).sum();
        assert!(directs.len() <= self.channel.directs_max());
        directs.iter().try_for_each(check_direct)?;
        let works = 1 + directs.len();
        self.make_room(works)?;
        let Some(cursor) = self.reserve(works as u64, Some(payload + HEADER_BYTES))? else {
            return Ok(None);
        };
        self.count(payload, directs);
        let bytes = payload + HEADER_BYTES;
        self.sending.stage_frame(cursor, parts, bytes, directs);
        Ok(Some(self.sending.frames))
    }

    /// Writes bytes to the peer and says so by a mark, at most [`MARK_MAX`], instead of a frame behind them: one work and
    /// one packet less. Gives the same number as a frame has.
    ///
    /// # Panics
    /// If the mark is greater.
    pub fn push_marked(&mut self, direct: &Direct, mark: u32) -> Result<Option<u64>, ChannelError> {
        assert!(mark <= MARK_MAX);
        check_direct(direct)?;
        self.make_room(1)?;
        if self.reserve(1, None)?.is_none() {
            return Ok(None);
        }
        self.count(0, std::slice::from_ref(direct));
        self.sending.stage_marked(direct, mark);
        Ok(Some(self.sending.frames))
    }

    fn make_room(&mut self, works: usize) -> Result<(), ChannelError> {
        match self.sending.staged.len() + works > STAGED_MAX {
            true => self.post(),
            false => Ok(()),
        }
    }

    fn count(&self, payload: u64, directs: &[Direct]) {
        let counts = &self.channel.counts;
        counts.frames_sent.add(1);
        counts.bytes_sent.add(payload);
        for direct in directs {
            counts.directs_sent.add(1);
            counts.direct_bytes_sent.add(direct.bytes);
        }
    }

    /// Credit for a frame of so many bytes, and where it goes in the ring; or for none there.
    fn reserve(&mut self, works: u64, bytes: Option<u64>) -> Result<Option<u64>, ChannelError> {
        if let Ok(cursor) = self.sending.reserve(works, bytes)? {
            return Ok(Some(cursor));
        }
        // The peer's words are looked at when they are needed only.
        let read = self.sending.read_credits();
        read.map_err(|violation| self.channel.violation(violation))?;
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
