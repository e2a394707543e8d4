//! Grants: receive buffers for large messages, and the lanes that may still bring chunks of them.
//!
//! A grant keeps its buffer until the message is complete, or each of its lanes has ended or brought ABANDON. So a grant may outlive
//! its message, if that became a gap or its flow was refused.

use super::buffer::{GrantedBuffer, UnfinishedBuffer, WriteRange};
use super::frame::{self, Chunk, Lanes, Request};
use super::lanes::Outgoing;
use super::receive_flow::ReceiveFlow;
use super::receive_message::{LargeMessage, LargeState};
use super::user::{BufferReply, FlowReceiver, RemoteOf};
use super::values::Checked;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

pub(super) struct Grant {
    /// The GRANT frame that its sender gets.
    frame: frame::Grant,
    request: Request,
    /// The lanes that may still bring chunks.
    open: Lanes,
    buffer: GrantedBuffer,
}

impl Grant {
    pub(super) fn flow(&self) -> u64 {
        self.request.flow
    }
}

/// The grants that have not ended, and the user who provides their buffers.
pub(super) struct Grants {
    all: BTreeMap<u64, Grant>,
    last: u64,
    pub(super) user: Arc<dyn FlowReceiver>,
    pub(super) remote: Arc<RemoteOf>,
}

impl Grants {
    pub(super) fn new(user: Arc<dyn FlowReceiver>, remote: Arc<RemoteOf>) -> Self {
        Self {
            all: BTreeMap::new(),
            last: 0,
            user,
            remote,
        }
    }

    /// The newest grant whose number has the low bits `mark` under `mask`; 0 if there was none.
    pub(super) fn marked(&self, mark: u32, mask: u32) -> u64 {
        let back = self.last.wrapping_sub(mark.into()) & u64::from(mask);
        self.last.saturating_sub(back)
    }

    /// Grants buffers to a flow's messages in their order. Marks the flow as starved if the user has no buffer, or no lane is known to both
    /// ends. Returns whether the user refused a message, which thereby is landed and may have its turn.
    pub(super) fn give(&mut self, of: &mut ReceiveFlow, out: &mut Outgoing) -> bool {
        let mut has_landed = false;
        let lanes = out.confirmed();
        while let Some(message) = of.next_requested() {
            let begun = lanes.and_then(|lanes| self.begin(message, lanes, out));
            if begun.is_none() {
                of.is_starved = true;
                break;
            }
            has_landed |= message.is_landed();
        }
        has_landed
    }

    /// Grants a requested message the buffer that it has kept, or one of the user's. `None`: the user has none now.
    fn begin(&mut self, of: &mut LargeMessage, lanes: Lanes, out: &mut Outgoing) -> Option<()> {
        let request = of.request.as_ref()?;
        let LargeState::Waits(kept) = &mut of.state else {
            return None;
        };
        let (flow, sequence, bytes) = (request.flow, request.sequence, request.bytes);
        let buffer = match kept.take() {
            Some(kept) => Some(kept),
            None => match (self.user).buffer(flow, sequence, request.description.as_slice(), bytes)
            {
                BufferReply::Full => return None,
                BufferReply::Buffer(new) => UnfinishedBuffer::new(new, bytes),
                BufferReply::Refused => None,
            },
        };
        let request = of.request.take()?;
        let remote = |address| (self.remote)(address, bytes);
        let Some(buffer) = buffer else {
            of.set_landed(request, None);
            return Some(());
        };
        let (buffer, from_chunk, remote) = buffer.grant(request.chunk_bytes, remote);
        self.last += 1;
        let frame = frame::Grant {
            flow,
            sequence,
            grant: self.last,
            from_chunk,
            lanes,
            remote,
        };
        out.answer(lanes.as_slice()[0], frame.clone());
        let grant = Grant {
            frame,
            request,
            open: lanes,
            buffer,
        };
        self.all.insert(self.last, grant);
        of.state = LargeState::Granted(self.last);
        Some(())
    }

    /// Sends all GRANT frames again, since a lane may have lost some. Senders ignore those that they have.
    pub(super) fn report_again(&self, lane: u32, out: &mut Outgoing) {
        for grant in self.all.values() {
            out.answer(lane, grant.frame.clone());
        }
    }

    /// Lends the range of the receive buffer that belongs to a chunk which a lane brings.
    pub(super) fn lend(&mut self, lane: u32, of: &Chunk) -> Checked<WriteRange> {
        let grant = self.all.get_mut(&of.grant);
        let grant = grant.ok_or("there is no such grant")?;
        if !grant.open.contains(lane) {
            return Err("its lane is none of the grant's");
        }
        grant.buffer.lend(of.grant, of.chunk, of.bytes)
    }

    /// Removes a grant whose message is complete; `None` if there is no such grant, or chunks are missing.
    pub(super) fn take_whole(&mut self, number: u64) -> Option<Grant> {
        self.all.get(&number)?.buffer.is_whole().then_some(())?;
        self.all.remove(&number)
    }

    /// No chunk of these grants follows on a lane: it brought ABANDON, or has ended. Removes and returns the grants that end by that.
    pub(super) fn leave(&mut self, lane: u32, of: RangeInclusive<u64>) -> Vec<(u64, Grant)> {
        let mut ended = Vec::new();
        for (number, grant) in self.all.range_mut(of) {
            grant.open.remove(lane);
            if grant.open.as_slice().is_empty() {
                ended.push(*number);
            }
        }
        let ended = ended.iter();
        ended.filter_map(|of| self.all.remove_entry(of)).collect()
    }

    /// Whether a grant had this number.
    pub(super) fn was_given(&self, number: u64) -> bool {
        (1..=self.last).contains(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// Settles a flow's message whose grant has ended: it is landed if it is complete, else it waits for the next grant.
pub(super) fn settle(of: &mut ReceiveFlow, number: u64, grant: Grant) {
    let Grant {
        request, buffer, ..
    } = grant;
    // A buffer of which a range is still lent cannot be kept: then the message starts again with a new one.
    let buffer = buffer.into_unfinished();
    let Some(message) = of.grant_ended(request.sequence, number) else {
        return;
    };
    match buffer {
        Some(whole) if whole.prefix() == message.bytes => message.set_landed(request, Some(whole)),
        kept => message.state = LargeState::Waits(kept),
    }
}
