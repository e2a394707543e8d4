//! A message that is received: its states.
//!
//! | state | event | next state | output |
//! |---|---|---|---|
//! | - | SMALL | Landed; or Delivering at once, if it is its turn | `FrameStep::Deliver` at once |
//! | - | REQUEST | Requested | |
//! | Requested | a receive buffer is there | Granted | GRANT from its first missing chunk |
//! | Requested | the user refuses the message | Landed | |
//! | Granted | CHUNK | Granted | a `WriteRange` |
//! | Granted | the last chunk has landed | Landed | |
//! | Granted | REQUEST | Granted; Requested as soon as the grant has ended | |
//! | Granted | each lane of the grant has ended or brought ABANDON | Kept, with its buffer | |
//! | Kept | REQUEST | Requested, with its buffer | |
//! | Requested, Granted, Kept | GAP, or the flow is refused or cut | - ; a grant keeps its buffer until its lanes have left | |
//! | Landed | its turn | Delivering | `Deliver` |
//! | Delivering | `delivered` | - | ACK, at once or with others |
//! | Delivering | `delivered`, back-pressured | BackPressured | |
//! | BackPressured | `buffer_free`, tick | Delivering | `Deliver` |
//!
//! Landed before its turn is the reorder buffer. Of a flow one message (or its beginning, a gap, its end) is Delivering or
//! BackPressured at a time: those two states stand in [`TurnState`].

use super::buffer::{ReceiveBuffer, UnfinishedBuffer};
use super::frame::Description;
use super::user::Turn;

/// The fields of a REQUEST.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) bytes: u64,
    pub(super) chunk_bytes: u32,
    pub(super) charge_end: u64,
    pub(super) description: Description,
}

/// A message before its turn.
pub(super) enum ReceiveState {
    /// It waits for a buffer, or for a lane if it has kept one.
    Requested {
        request: Request,
        kept: Option<UnfinishedBuffer>,
    },
    /// Lanes fill its buffer, which is in the grant.
    Granted { grant: u64 },
    /// Its grant ended; the sender is to request it again.
    Kept { buffer: UnfinishedBuffer },
    /// All of it is here.
    Landed { charge_end: u64, content: Content },
}

/// A message that has landed.
pub(super) enum Content {
    Small {
        bytes: Box<[u8]>,
        description_bytes: usize,
    },
    Large {
        buffer: Box<dyn ReceiveBuffer>,
        bytes: u64,
        description: Description,
    },
    /// The user does not want it.
    Refused { bytes: u64 },
}

impl ReceiveState {
    pub(super) fn is_landed(&self) -> bool {
        matches!(self, Self::Landed { .. })
    }
}

/// What is delivered, and what that gives back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// The position after it.
    pub(super) next: u64,
    /// Bytes of the flow's window.
    pub(super) window_bytes: u64,
    /// Bytes of a message that had a grant.
    pub(super) granted_bytes: Option<u64>,
    pub(super) kind: DeliveryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryKind {
    Opened,
    Message,
    Missed,
    Closed,
}

/// A message in its turn.
pub(super) enum TurnState {
    Idle,
    Delivering(Delivery),
    BackPressured(Turn, Delivery),
}
