//! Sending: batches of frames that are posted together, and the notices and credits between them.

use super::{Direct, Lack, Owed, Sending, Stall, STAGED_MAX};
use crate::channel::{Channel, DIRECT_BYTES_MAX, HEADER_BYTES};
use crate::error::ChannelError;
use crate::notice::{Notice, MARK_MAX};
use std::io::IoSlice;
use std::sync::MutexGuard;

/// Frames that are posted together with one doorbell: when the batch is dropped, or when it is full.
pub struct Batch<'a> {
    channel: &'a Channel,
    sending: MutexGuard<'a, Sending>,
}

impl Channel {
    /// Begins a batch. Other threads that send wait until it is dropped.
    pub fn batch(&self) -> Result<Batch<'_>, ChannelError> {
        self.check()?;
        let sending = self.sending()?;
        let channel = self;
        Ok(Batch { channel, sending })
    }

    /// Sends one frame, after a direct write if there is one. Returns the frame's number; `None` if there is no credit
    /// now: try again when [`crate::Progress::room`] says so.
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

    /// Writes the credit words to the peer, in order to find out whether it or the link is gone. Needed only while nothing
    /// else is sent.
    pub fn probe(&self) -> Result<(), ChannelError> {
        self.check()?;
        let mut sending = self.sending()?;
        sending.owe(Owed::Credits);
        self.settle_notices(&mut sending)
    }

    /// Makes the device report when everything sent so far has completed, which it otherwise reports for some works only. Then
    /// [`Channel::completed`] counts all frames. Before closing a channel, call this and [`Channel::progress`] to learn
    /// whether the peer has everything. Returns false if there is no slot for it now.
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

    /// Posts the notices and credits that are due, as far as there are slots.
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
                // The stall notice's write brings the credits.
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
        // SAFETY: frames and credits lie in the mirror, and direct writes read regions that `held` keeps until their works
        // complete. The channel drops mirror and regions after the queue pair, its first field. Frames up to
        // `inline_bytes` and credits may be inline: nobody changes them while we hold the lock of `sending`.
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
    /// Adds a frame to the batch, as [`Channel::send`]. After `None`, add nothing more before there is room.
    pub fn push(
        &mut self,
        parts: &[IoSlice<'_>],
        direct: Option<&Direct>,
    ) -> Result<Option<u64>, ChannelError> {
        self.push_after(parts, direct.map_or(&[], std::slice::from_ref))
    }

    /// Adds a frame after several direct writes, which may read several regions.
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

    /// Adds a direct write that notifies the peer by a mark, at most [`MARK_MAX`], instead of by a frame: one work and one
    /// packet less. It counts as a frame; returns its number as [`Channel::send`].
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

    /// Takes credit for a frame of so many bytes, or, with `None`, for a marked write. Returns the frame's cursor; `None` if
    /// credit lacks.
    fn reserve(&mut self, works: u64, bytes: Option<u64>) -> Result<Option<u64>, ChannelError> {
        if let Ok(cursor) = self.sending.reserve(works, bytes)? {
            return Ok(Some(cursor));
        }
        // Read the peer's credit words only when the known credit is used up.
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
        // Slots become free without the peer; for ring and receives, ask the peer by a stall notice.
        if !matches!(lack, Lack::Sends) && self.sending.stall == Stall::No {
            self.sending.stall = Stall::Owed;
            self.channel.settle_notices(&mut self.sending)?;
        }
        Ok(None)
    }

    /// Posts the frames added so far.
    pub fn post(&mut self) -> Result<(), ChannelError> {
        self.channel.post(&mut self.sending)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // An error has ended the channel, whose next call returns it.
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
