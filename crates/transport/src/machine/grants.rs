//! Grants: receive buffers for large messages, and the lanes that may still bring chunks of them.
//!
//! A grant keeps its buffer until each of its lanes has ended or brought ABANDON, or the message is complete. So a grant may
//! outlive its message (a gap, a refused flow).

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
    /// What its sender is told.
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

/// The grants that have not ended, and the user who has the memory.
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

    /// Gives buffers to a flow's messages in their order. If the user has no buffer, or no lane is known to both ends, the flow is starved.
    /// Returns whether a message needs no more bytes, so that it may have its turn.
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

    /// Grants a message that is requested the buffer that it has kept, or one of the user's. `None`: the user has none now.
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

    /// Sends GRANT again, since a lane may have lost it. To a sender that knows it, it says nothing.
    pub(super) fn report_again(&self, lane: u32, out: &mut Outgoing) {
        for grant in self.all.values() {
            out.answer(lane, grant.frame.clone());
        }
    }

    /// The right to write a chunk that a lane brings.
    pub(super) fn lend(&mut self, lane: u32, of: &Chunk) -> Checked<WriteRange> {
        let grant = self.all.get_mut(&of.grant);
        let grant = grant.ok_or("there is no such grant")?;
        if !grant.open.contains(lane) {
            return Err("its lane is none of the grant's");
        }
        grant.buffer.lend(of.grant, of.chunk, of.bytes)
    }

    /// Takes a grant that is complete.
    pub(super) fn take_whole(&mut self, number: u64) -> Option<Grant> {
        self.all.get(&number)?.buffer.is_whole().then_some(())?;
        self.all.remove(&number)
    }

    /// Nothing more of these grants arrives through a lane: it brought ABANDON, or has ended. Returns the grants that end by that.
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

/// A grant of a flow has ended: its message goes on without it, if it is needed.
pub(super) fn settle(of: &mut ReceiveFlow, number: u64, grant: Grant) {
    let Grant {
        request, buffer, ..
    } = grant;
    // What is still lent cannot be kept: the message begins without a buffer.
    let buffer = buffer.into_unfinished();
    let Some(message) = of.grant_ended(request.sequence, number) else {
        return;
    };
    match buffer {
        Some(whole) if whole.prefix() == message.bytes => message.set_landed(request, Some(whole)),
        kept => message.state = LargeState::Waits(kept),
    }
}
