//! Grants: receive buffers for large messages, and the lanes that may still bring chunks of them.
//!
//! A grant's buffer is nobody else's before each of its lanes has ended or brought ABANDON, or the message is complete. So a grant may
//! outlive its message (a gap, a refused flow).

use super::buffer::{GrantedBuffer, UnfinishedBuffer, WriteRange};
use super::frame::{self, Chunk, Lanes, Request};
use super::lanes::Outgoing;
use super::receive_flow::ReceiveFlow;
use super::user::{violation, BufferReply, LinkUser, ProtocolViolation, Turn};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) struct Grant {
    /// What its sender is told.
    frame: frame::Grant,
    request: Request,
    /// The lanes that may still bring chunks.
    open: Lanes,
    buffer: GrantedBuffer,
    /// The sender has requested the message again: it has lost a lane and leaves this grant.
    requested_again: Option<Request>,
    /// The lane that brought GRANT to the sender.
    reported_on: Option<u32>,
}

impl Grant {
    pub(super) fn flow(&self) -> u64 {
        self.request.flow
    }
}

/// The grants that have not ended, and the user who has the memory.
pub(super) struct Grants {
    all: BTreeMap<u64, Grant>,
    last: u64,
    pub(super) user: Arc<dyn LinkUser>,
}

impl Grants {
    pub(super) fn new(user: Arc<dyn LinkUser>) -> Self {
        Self {
            all: BTreeMap::new(),
            last: 0,
            user,
        }
    }

    /// The last grant whose number ends with a mark, which has the bits of `mask`; 0 if there was none.
    pub(super) fn marked(&self, mark: u32, mask: u32) -> u64 {
        let back = self.last.wrapping_sub(mark.into()) & u64::from(mask);
        self.last.saturating_sub(back)
    }

    /// The sender requests the message of a grant again.
    pub(super) fn requested_again(&mut self, grant: u64, request: Request) {
        if let Some(grant) = self.all.get_mut(&grant) {
            grant.requested_again = Some(request);
        }
    }

    /// Gives buffers to a flow's messages in their order, until the user has none, or if no lane is known to both ends: then the
    /// flow is starved. Whether a message needs no byte more: it may be its turn.
    pub(super) fn give(&mut self, flow: u64, of: &mut ReceiveFlow, out: &mut Outgoing) -> bool {
        let mut has_landed = false;
        let lanes = out.confirmed();
        while let Some((sequence, request, has_kept)) = of.next_requested() {
            let Some(lanes) = lanes else {
                of.is_starved = true;
                break;
            };
            let reply = (!has_kept).then(|| {
                let (description, bytes) = (request.description.as_slice(), request.bytes);
                self.user.buffer(flow, sequence, description, bytes)
            });
            if matches!(reply, Some(BufferReply::Full)) {
                of.is_starved = true;
                break;
            }
            let (request, kept) = of.take_requested(sequence);
            let bytes = request.bytes;
            let Some(buffer) = usable(reply, kept, &request) else {
                let (first, next) = (sequence, sequence + 1);
                let missed = Turn::Missed { first, next };
                of.set_landed(sequence, bytes, request.charge_end, missed);
                has_landed = true;
                continue;
            };
            let remote = |address| self.user.remote(address, bytes);
            match buffer.grant(request.chunk_bytes, remote) {
                Ok((buffer, from_chunk, remote)) => {
                    self.last += 1;
                    of.set_granted(sequence, bytes, self.last);
                    let frame = frame::Grant {
                        flow,
                        sequence,
                        grant: self.last,
                        from_chunk,
                        lanes,
                        remote,
                    };
                    let grant = Grant {
                        frame,
                        request,
                        open: lanes,
                        buffer,
                        requested_again: None,
                        reported_on: None,
                    };
                    self.all.insert(self.last, grant);
                    self.report(self.last, lanes.as_slice()[0], out);
                }
                Err(whole) => {
                    set_whole(of, request, whole);
                    has_landed = true;
                }
            }
        }
        has_landed
    }

    /// Sends GRANT again where it was lost with its lane, or may have been.
    pub(super) fn report_lost(&mut self, out: &mut Outgoing) {
        let Some(lane) = out.first() else {
            return;
        };
        let all = self.all.iter();
        let lost = all.filter(|(_, grant)| grant.reported_on.is_none());
        let lost: Vec<u64> = lost.map(|(number, _)| *number).collect();
        for number in lost {
            self.report(number, lane, out);
        }
    }

    fn report(&mut self, number: u64, lane: u32, out: &mut Outgoing) {
        if let Some(grant) = self.all.get_mut(&number) {
            grant.reported_on = Some(lane);
            out.answer(lane, grant.frame.clone());
        }
    }

    /// The right to write a chunk that a lane brings.
    pub(super) fn lend(&mut self, lane: u32, of: &Chunk) -> Result<WriteRange, ProtocolViolation> {
        let wrong = |what| violation("Chunk", what);
        let grant = self.all.get_mut(&of.grant);
        let grant = grant.ok_or(wrong("there is no such grant"))?;
        if !grant.open.contains(lane) {
            return Err(wrong("its lane is none of the grant's"));
        }
        let lent = grant.buffer.lend(of.grant, of.chunk, of.bytes);
        lent.map_err(wrong)
    }

    /// Takes a grant that is complete.
    pub(super) fn take_whole(&mut self, number: u64) -> Option<Grant> {
        self.all.get(&number)?.buffer.is_whole().then_some(())?;
        self.all.remove(&number)
    }

    /// A lane brought ABANDON. The grant, if that was its last lane.
    pub(super) fn abandoned(
        &mut self,
        number: u64,
        lane: u32,
    ) -> Result<Option<Grant>, ProtocolViolation> {
        if number == 0 || number > self.last {
            return Err(violation("Abandon", "there was no such grant"));
        }
        let Some(grant) = self.all.get_mut(&number) else {
            return Ok(None);
        };
        grant.open.remove(lane);
        let has_ended = grant.open.as_slice().is_empty();
        Ok(has_ended.then(|| self.all.remove(&number)).flatten())
    }

    /// A lane ended: nothing more arrives through it. The grants that end with it.
    pub(super) fn lane_ended(&mut self, lane: u32) -> Vec<(u64, Grant)> {
        for grant in self.all.values_mut() {
            grant.open.remove(lane);
            grant.reported_on = grant.reported_on.filter(|on| *on != lane);
        }
        let all = self.all.iter();
        let ended = all.filter(|(_, grant)| grant.open.as_slice().is_empty());
        let ended: Vec<u64> = ended.map(|(number, _)| *number).collect();
        let ended = ended.iter();
        ended.filter_map(|of| self.all.remove_entry(of)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// A grant of a flow has ended: its message goes on without it, if it is needed.
pub(super) fn settle(of: &mut ReceiveFlow, number: u64, grant: Grant) {
    let Grant {
        request,
        buffer,
        requested_again,
        ..
    } = grant;
    let (sequence, bytes) = (request.sequence, request.bytes);
    let is_needed = of.grant_ended(sequence, number);
    let buffer = buffer.into_unfinished();
    if !is_needed {
        return;
    }
    match buffer {
        Some(buffer) if buffer.prefix() == bytes => set_whole(of, request, buffer),
        Some(buffer) => of.set_kept(sequence, bytes, buffer),
        // It is still lent and cannot be kept: the message begins without one.
        None => of.remove_large(bytes),
    }
    if let Some(again) = requested_again {
        // It was checked when it arrived, and replaces the one that is settled here.
        let _ = of.request(&again);
    }
}

fn set_whole(of: &mut ReceiveFlow, request: Request, whole: UnfinishedBuffer) {
    let (sequence, bytes) = (request.sequence, request.bytes);
    let turn = Turn::Large {
        sequence,
        description: request.description,
        buffer: whole.into_whole(),
    };
    of.set_landed(sequence, bytes, request.charge_end, turn);
}

/// The buffer to grant: the user's, or the one that was kept if a grant of these chunks can begin in it. `None` if the user
/// refuses the message.
fn usable(
    reply: Option<BufferReply>,
    kept: Option<UnfinishedBuffer>,
    request: &Request,
) -> Option<UnfinishedBuffer> {
    match reply {
        None => kept.filter(|kept| kept.may_go_on(request.chunk_bytes)),
        Some(BufferReply::Buffer(new)) => UnfinishedBuffer::new(new, request.bytes),
        Some(BufferReply::Full | BufferReply::Refused) => None,
    }
}
