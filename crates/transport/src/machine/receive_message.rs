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

/// A large message before its turn.
pub(super) struct LargeMessage {
    pub(super) bytes: u64,
    /// The same in each of its grants: so a grant writes no byte again that others may read.
    pub(super) chunk_bytes: u32,
    /// Its sender asks for a buffer; of a message that is granted, for the next one: it leaves the grant.
    pub(super) request: Option<Request>,
    pub(super) state: LargeState,
}

pub(super) enum LargeState {
    /// Requested or Kept: it waits for a buffer, for a lane if it has kept one, or for its sender to request it again.
    Waits(Option<UnfinishedBuffer>),
    /// Lanes fill its buffer, which is in the grant of this number.
    Granted(u64),
    Landed(LandedMessage),
}

/// A message that needs no byte more.
pub(super) struct LandedMessage {
    pub(super) bytes: u64,
    pub(super) charge_end: u64,
    /// Itself, or [`Turn::Missed`] if the user does not want it.
    pub(super) turn: Turn,
}

impl LargeMessage {
    pub(super) fn is_requested(&self) -> bool {
        self.request.is_some() && matches!(self.state, LargeState::Waits(_))
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.state, LargeState::Granted(_))
    }

    pub(super) fn is_landed(&self) -> bool {
        matches!(self.state, LargeState::Landed(_))
    }

    /// It needs no byte more: all of them are there, or the user does not want it.
    pub(super) fn set_landed(&mut self, request: Request, whole: Option<UnfinishedBuffer>) {
        let sequence = request.sequence;
        let turn = match whole {
            Some(whole) => Turn::Large {
                sequence,
                description: request.description,
                buffer: whole.into_whole(),
            },
            None => Turn::Missed {
                first: sequence,
                next: sequence + 1,
            },
        };
        self.state = LargeState::Landed(LandedMessage {
            bytes: self.bytes,
            charge_end: request.charge_end,
            turn,
        });
    }
}

/// What is delivered, and what that gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Opened,
    /// So many bytes of the flow's window.
    Small(u64),
    /// A message that had, or was to have, a grant for so many bytes.
    Large(u64),
    Missed,
    Closed,
}
