//! What a link needs of whoever owns it: bytes to send, memory for what comes, and ears for what happened.

use crate::frame::Flow;
use crate::lane::LaneEnd;
use std::sync::Arc;

/// Memory that a message lands in. Dropped without [`Place::commit`], it is abandoned; that may happen
/// while the link is locked, so `drop` does not call the link.
pub trait Place: Send + 'static {
    /// As many bytes as were asked for. Called once; lanes write there until the place is committed or dropped.
    fn memory(&mut self) -> &mut [u8];

    /// Where it is better that the peer's network card writes: on a GPU. Called once, before `memory`.
    fn on_card(&mut self) -> Option<Arc<dyn OnCard>> {
        None
    }

    /// All bytes are there, and it is the message's turn in its flow: once for a sequence, in their order. It does not
    /// block: `Err` gives the place back if the message cannot go on now. Then the flow waits, no other, and
    /// it is asked again after [`crate::Link::retry`] and every few milliseconds. The sender hears of it only after `Ok`.
    fn commit(self: Box<Self>, sequence: u64, meta: &[u8]) -> Result<(), Box<dyn Place>>;
}

/// Memory of a place that network cards reach and the CPU does not. It has as many bytes as the place. Each part of a message
/// is written here or to [`Place::memory`], or first to one and later to the other: then the later one counts.
pub trait OnCard: Send + Sync + 'static {
    /// The address of its first byte, as the endpoint's cards know it ([`crate::Registrar::register_dmabuf`]).
    fn address(&self) -> u64;

    /// These bytes have landed, directly here or in [`Place::memory`]: in any order, from lanes' threads, also after others.
    /// Who has such memory hears of it here and not by [`Owner::landed`].
    fn landed(&self, from: u64, bytes: u64, directly: bool);
}

/// What came of asking for memory.
pub enum Room {
    /// Here.
    Place(Box<dyn Place>),
    /// Not now; it is asked for again.
    Full,
    /// Never. The message's bytes are thrown away, and in its turn it is [`Event::Missed`].
    Refused,
}

/// Who owns a link.
pub trait Owner: Send + Sync + 'static {
    /// Memory for a message. Called with the link locked: it is quick and does not call the link.
    fn place(&self, flow: Flow, sequence: u64, meta: &[u8], bytes: u64) -> Room;

    /// These bytes of a large message have landed: in any order, from lanes' threads, also after others of it.
    fn landed(&self, flow: Flow, sequence: u64, from: u64, bytes: u64) {
        let _ = (flow, sequence, from, bytes);
    }

    /// Something happened. One at a time for a link, in order; the link is not locked and may be called. It does
    /// not block.
    fn event(&self, event: Event);
}

/// What happened on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Sending: a message is committed at the peer.
    Acknowledged {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
    },
    /// Sending: messages were given up; the peer hears of a gap.
    GaveUp {
        /// Whose.
        flow: Flow,
        /// The first.
        first: u64,
        /// The one after the last.
        next: u64,
    },
    /// Sending: what was full may have room.
    Room {
        /// Whose.
        flow: Flow,
    },
    /// Sending: a closed flow's messages are all acknowledged, and it is forgotten.
    Ended {
        /// Whose.
        flow: Flow,
    },
    /// Receiving: a flow's messages come.
    Opened {
        /// Whose.
        flow: Flow,
        /// The first.
        next: u64,
    },
    /// Receiving: these messages never come.
    Missed {
        /// Whose.
        flow: Flow,
        /// The first.
        first: u64,
        /// The one after the last.
        next: u64,
    },
    /// Receiving: the publisher is gone, and all its messages have come.
    Closed {
        /// Whose.
        flow: Flow,
    },
    /// There is a lane, where there was none.
    Up,
    /// There is none any more; both ends keep what is not acknowledged and go on when there is one again.
    Down {
        /// Why the last one ended.
        why: String,
    },
    /// A lane ended; others go on.
    LaneEnded {
        /// Its number.
        lane: u32,
        /// Why.
        end: LaneEnd,
        /// In words: for RDMA with the status of the work that failed.
        why: String,
    },
    /// The peer is another incarnation; what it did not acknowledge is sent again.
    PeerRestarted,
    /// The peer refused a lane, or was refused one.
    Refused {
        /// Why, with what both sides have.
        why: String,
    },
}
