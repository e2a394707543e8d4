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
//! BackPressured at a time: [`Delivery`] and the flow's turn say which.

use super::buffer::UnfinishedBuffer;
use super::frame::Request;
use super::user::Turn;

/// A message before its turn.
pub(super) enum ReceiveState {
    /// Requested: it waits for a buffer, or for a lane if it has kept one. Or Kept, without a request: its grant ended, and the
    /// sender is to request it again.
    Waits {
        bytes: u64,
        request: Option<Request>,
        kept: Option<UnfinishedBuffer>,
    },
    /// Lanes fill its buffer, which is in the grant.
    Granted { bytes: u64, grant: u64 },
    /// It needs no byte more.
    Landed {
        bytes: u64,
        charge_end: u64,
        /// Itself, or [`Turn::Missed`] if the user does not want it.
        turn: Turn,
    },
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
