//! Receive buffers for large messages: whose turn it is to get one, and what becomes of it when its grant ends.

use super::buffer::UnfinishedBuffer;
use super::frame::{Frame, Lanes, LANES_MAX};
use super::grants::{Grant, Grants};
use super::lanes::Outgoing;
use super::receive_flow::ReceiveFlow;
use super::receive_message::{Content, Request};
use super::user::{BufferReply, LinkUser};
use std::sync::Arc;

/// The result of giving buffers to a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    /// A message needs no byte more: it may be its turn.
    pub(super) has_landed: bool,
    /// The user had none, or no lane is known to both ends.
    pub(super) is_starved: bool,
}

/// The grants, and the user who has the memory.
pub(super) struct Granting {
    pub(super) grants: Grants,
    user: Arc<dyn LinkUser>,
}

impl Granting {
    pub(super) fn new(user: Arc<dyn LinkUser>) -> Self {
        Self {
            grants: Grants::default(),
            user,
        }
    }

    pub(super) fn user(&self) -> Arc<dyn LinkUser> {
        Arc::clone(&self.user)
    }

    /// The sender requests the message of a grant again, of so many bytes. False if it has others.
    pub(super) fn requested_again(&mut self, grant: u64, request: Request) -> bool {
        let Some(grant) = self.grants.get_mut(grant) else {
            return true;
        };
        let is_same = grant.request.bytes == request.bytes;
        grant.requested_again = Some(request);
        is_same
    }

    /// Bytes of a grant's message.
    pub(super) fn bytes(&self, grant: u64) -> u64 {
        let grant = self.grants.get(grant);
        grant.map_or(0, |grant| grant.request.bytes)
    }

    /// Gives buffers to a flow's messages in their order.
    pub(super) fn give(&mut self, flow: u64, of: &mut ReceiveFlow, out: &mut Outgoing) -> Given {
        let mut given = Given::default();
        let lanes = confirmed(out);
        while let Some((sequence, request, has_kept)) = of.next_requested() {
            let Some(lanes) = lanes else {
                given.is_starved = true;
                break;
            };
            let reply = (!has_kept).then(|| {
                let (description, bytes) = (request.description.as_slice(), request.bytes);
                self.user.buffer(flow, sequence, description, bytes)
            });
            if matches!(reply, Some(BufferReply::Full)) {
                given.is_starved = true;
                break;
            }
            let (request, kept) = of.take_requested(sequence);
            let buffer = match usable(reply, kept, &request) {
                Ok(buffer) => buffer,
                Err(content) => {
                    of.set_landed(sequence, request.charge_end, content);
                    given.has_landed = true;
                    continue;
                }
            };
            match buffer.grant(request.chunk_bytes) {
                Ok((mut buffer, from_chunk)) => {
                    let bytes = request.bytes;
                    let remote = buffer.set_direct(|address| self.user.remote(address, bytes));
                    let granted = (buffer, from_chunk, remote);
                    let number = self.grants.add((flow, sequence), request, lanes, granted);
                    of.set_granted(sequence, number);
                    self.report(number, lanes.as_slice()[0], out);
                }
                Err(whole) => {
                    set_whole(of, sequence, request, whole);
                    given.has_landed = true;
                }
            }
        }
        given
    }

    /// Sends GRANT again where a lane may have lost it.
    pub(super) fn report_lost(&mut self, out: &mut Outgoing) {
        let Some(lane) = out.first() else {
            return;
        };
        for number in self.grants.unreported() {
            self.report(number, lane, out);
        }
    }

    fn report(&mut self, number: u64, lane: u32, out: &mut Outgoing) {
        let Some(grant) = self.grants.get_mut(number) else {
            return;
        };
        grant.reported_on = Some(lane);
        let frame = Frame::Grant {
            flow: grant.flow,
            sequence: grant.sequence,
            grant: number,
            from_chunk: grant.from_chunk,
            lanes: grant.lanes,
            remote: grant.remote,
        };
        out.answer(lane, frame);
    }
}

/// A grant of a flow has ended: its message goes on without it, if it is needed.
pub(super) fn settle(of: &mut ReceiveFlow, number: u64, mut grant: Grant) {
    let (sequence, again) = (grant.sequence, grant.requested_again.take());
    let request = grant.request.clone();
    let is_needed = of.grant_ended(sequence, number);
    let buffer = grant.into_buffer();
    if !is_needed {
        return;
    }
    match buffer {
        Some(buffer) if buffer.prefix() == request.bytes => {
            set_whole(of, sequence, request, buffer);
        }
        Some(buffer) => of.set_kept(sequence, buffer),
        None => of.forget(request.bytes),
    }
    if let Some(again) = again {
        // It was checked when it arrived, and replaces the one that is settled here.
        let _ = of.request(sequence, &again);
    }
}

fn set_whole(of: &mut ReceiveFlow, sequence: u64, request: Request, whole: UnfinishedBuffer) {
    let content = Content::Large {
        buffer: whole.into_whole(),
        bytes: request.bytes,
        description: request.description,
    };
    of.set_landed(sequence, request.charge_end, content);
}

/// The lanes that both ends have.
fn confirmed(out: &Outgoing) -> Option<Lanes> {
    let mut numbers = [0; LANES_MAX];
    let confirmed = numbers.iter_mut().zip(out.confirmed());
    let count = confirmed.map(|(number, lane)| *number = lane).count();
    Lanes::new(&numbers[..count])
}

/// The buffer to grant, or what the message is without one.
fn usable(
    reply: Option<BufferReply>,
    kept: Option<UnfinishedBuffer>,
    request: &Request,
) -> Result<UnfinishedBuffer, Content> {
    let bytes = request.bytes;
    let may_go_on = |kept: &UnfinishedBuffer| kept.may_go_on(request.chunk_bytes);
    let refused = Content::Refused { bytes };
    match reply {
        None => kept.filter(may_go_on).ok_or(refused),
        Some(BufferReply::Buffer(new)) => UnfinishedBuffer::new(new, bytes).ok_or(refused),
        Some(_) => Err(refused),
    }
}
