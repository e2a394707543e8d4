//! The states of a message at its sender.
//!
//! | state | event | next state | output |
//! |---|---|---|---|
//! | - | `send` | Queued | |
//! | Queued, small | its turn, and the window has room | Sent{lane} | SMALL |
//! | Queued, large | its turn, and the flow may have one more grant | Requested{lane} | REQUEST |
//! | Requested | GRANT, one of its lanes is open | Granted | |
//! | Requested | GRANT, all its lanes have ended | Queued | ABANDON on each lane that is open |
//! | any other | GRANT | the same | ABANDON on each lane that is open |
//! | Granted | a lane of the grant is free, and the chunk's bytes are there | Granted | CHUNK |
//! | Sent, Requested | its lane ended | Queued | |
//! | Granted | a lane that took chunks ended, or the last of the grant | Queued | ABANDON on each lane that is open |
//! | any | `cancel` | Queued, as a gap | ABANDON if granted; then GAP in its turn |
//! | any | ACK | - | `Acknowledged` |
//! | any | REFUSE | - | `Refused`; ABANDON if granted |
//! | any | `cut` | - | ABANDON if granted |
//! | any | `restart` | Queued | |
//!
//! A large message stays Granted when all its chunks are queued: until it is acknowledged, a lost lane leads back to Queued.
//! Gaps and the flow's end change between Queued and Sent in the same way.

use super::frame::{Description, Grant, Lanes, CHUNKS_MAX};
use super::lanes::Outgoing;
use crate::payload::Payload;
use std::sync::Arc;

/// An item of a flow's queue.
pub(super) enum QueuedItem {
    Message {
        payload: Arc<dyn Payload>,
        description: Description,
    },
    /// Messages that never arrive.
    Gap,
    /// The flow's end.
    Close,
}

/// The right to send chunks of one message.
#[derive(Debug)]
pub(super) struct SendGrant {
    /// Its `from_chunk` is the next one to be sent.
    pub(super) grant: Grant,
    /// The grant's lanes that have taken no chunk.
    unused: Lanes,
}

impl SendGrant {
    pub(super) fn new(grant: Grant) -> Self {
        let unused = grant.lanes;
        Self { grant, unused }
    }

    /// The next chunk was queued on this lane.
    pub(super) fn sent_on(&mut self, lane: u32) {
        self.unused.remove(lane);
        self.grant.from_chunk += 1;
    }

    fn has_used(&self, lane: u32) -> bool {
        self.grant.lanes.contains(lane) && !self.unused.contains(lane)
    }
}

#[derive(Debug)]
pub(super) enum SendState {
    Queued,
    Sent { lane: u32 },
    Requested { lane: u32 },
    Granted(SendGrant),
}

/// A message, a gap or the flow's end, with its numbers `first` to before `next`.
pub(super) struct SendMessage {
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) item: QueuedItem,
    /// The sum of the flow's charges after it; `None` before its turn.
    pub(super) charge_end: Option<u64>,
    /// It needs a grant, and charges nothing. Known from its turn on.
    pub(super) is_large: bool,
    pub(super) chunk_bytes: u32,
    pub(super) state: SendState,
    /// Grants of the message up to this number are abandoned.
    pub(super) abandoned: u64,
    /// How many of its bytes, from the first one on, are complete.
    pub(super) ready: u64,
}

impl SendMessage {
    pub(super) fn new(first: u64, next: u64, item: QueuedItem) -> Self {
        Self {
            first,
            next,
            item,
            charge_end: None,
            is_large: false,
            chunk_bytes: 0,
            state: SendState::Queued,
            abandoned: 0,
            ready: u64::MAX,
        }
    }

    /// The peer has restarted and knows nothing of the message.
    pub(super) fn restart(&mut self) {
        (self.charge_end, self.abandoned) = (None, 0);
        self.state = SendState::Queued;
    }

    /// Bytes of its payload.
    pub(super) fn bytes(&self) -> u64 {
        match &self.item {
            QueuedItem::Message { payload, .. } => payload.bytes() as u64,
            QueuedItem::Gap | QueuedItem::Close => 0,
        }
    }

    /// Bytes of payload and description: what a small message charges.
    pub(super) fn bytes_described(&self) -> u64 {
        match &self.item {
            QueuedItem::Message { description, .. } => {
                self.bytes() + description.as_slice().len() as u64
            }
            QueuedItem::Gap | QueuedItem::Close => 0,
        }
    }

    /// It requests a grant or has one.
    pub(super) fn asks(&self) -> bool {
        matches!(
            self.state,
            SendState::Requested { .. } | SendState::Granted(_)
        )
    }

    pub(super) fn is_message(&self) -> bool {
        matches!(self.item, QueuedItem::Message { .. })
    }

    /// Begins its turn: decides whether it is small or large, and sets its chunk size, which exceeds `chunk_bytes` only if there were
    /// too many chunks. Returns the bytes that it charges.
    pub(super) fn begin_turn(&mut self, small_max: u64, chunk_bytes: u32) -> u64 {
        let least = self.bytes().div_ceil(u64::from(CHUNKS_MAX));
        let least = u32::try_from(least).expect("a message has a limit");
        self.chunk_bytes = chunk_bytes.max(least).max(1);
        self.is_large = self.is_message() && self.bytes_described() > small_max;
        match self.is_large {
            true => 0,
            false => self.bytes_described(),
        }
    }

    pub(super) fn chunks(&self) -> u64 {
        self.bytes().div_ceil(u64::from(self.chunk_bytes.max(1)))
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.state, SendState::Granted(_))
    }

    /// Some of its bytes are not complete yet.
    pub(super) fn is_growing(&self) -> bool {
        self.is_message() && self.ready < self.bytes()
    }

    /// Offset and length of a chunk, if the message has it and it is complete.
    pub(super) fn ready_chunk(&self, chunk: u32) -> Option<(usize, u32)> {
        let offset = u64::from(chunk) * u64::from(self.chunk_bytes);
        let left = self.bytes().checked_sub(offset).filter(|left| *left > 0)?;
        let bytes = u32::try_from(left.min(self.chunk_bytes.into())).ok()?;
        let offset_in_memory = usize::try_from(offset).ok()?;
        (offset + u64::from(bytes) <= self.ready).then_some((offset_in_memory, bytes))
    }

    /// It has a frame to send: the first one, or a chunk.
    pub(super) fn has_work(&self) -> bool {
        match &self.state {
            SendState::Queued => true,
            SendState::Granted(of) => u64::from(of.grant.from_chunk) < self.chunks(),
            SendState::Sent { .. } | SendState::Requested { .. } => false,
        }
    }

    /// It is a message, and some of its bytes were queued on a lane.
    pub(super) fn has_left(&self) -> bool {
        let has_left = match &self.state {
            SendState::Sent { .. } => true,
            SendState::Granted(of) => of.unused != of.grant.lanes,
            SendState::Queued | SendState::Requested { .. } => false,
        };
        has_left && self.is_message()
    }

    /// Abandons its grant, if it has one: queues ABANDON on each lane of the grant that is open. The receiver sees the other lanes end.
    pub(super) fn leave_grant(&mut self, out: &mut Outgoing) {
        if let SendState::Granted(SendGrant { grant: of, .. }) = &self.state {
            self.abandoned = self.abandoned.max(of.grant);
            out.abandon(of.grant, of.lanes);
        }
    }

    /// Whether the end of this lane leads back to Queued.
    pub(super) fn is_lost_with(&self, lane: u32, is_open: impl Fn(u32) -> bool) -> bool {
        match &self.state {
            SendState::Queued => false,
            SendState::Sent { lane: on } | SendState::Requested { lane: on } => *on == lane,
            SendState::Granted(of) => {
                of.has_used(lane) || !of.grant.lanes.as_slice().iter().any(|of| is_open(*of))
            }
        }
    }
}
