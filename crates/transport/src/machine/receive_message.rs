//! The states of a message at its receiver.
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
//! The messages that are Landed before their turn form the reorder buffer. Of each flow, one message (or its beginning, a gap, its end)
//! at a time is Delivering or BackPressured: the flow's [`Delivery`] says which.

use super::buffer::UnfinishedBuffer;
use super::frame::Request;
use super::user::Turn;

/// A large message before its turn.
pub(super) struct LargeMessage {
    pub(super) bytes: u64,
    /// The same in each of its grants, so a grant never rewrites a byte of the prefix, which others may read.
    pub(super) chunk_bytes: u32,
    /// The sender's REQUEST that is not answered. While the message is granted, a request for the next grant: the sender abandons this one.
    pub(super) request: Option<Request>,
    pub(super) state: LargeState,
}

pub(super) enum LargeState {
    /// Requested or Kept. Without a buffer it waits for one; with one that an ended grant left, for a lane or another REQUEST.
    Waits(Option<UnfinishedBuffer>),
    /// Lanes fill its buffer, which the grant of this number has.
    Granted(u64),
    Landed(LandedMessage),
}

/// A message that is complete, or that the user does not want.
pub(super) struct LandedMessage {
    pub(super) bytes: u64,
    pub(super) charge_end: u64,
    /// The message, or [`Turn::Missed`] if the user does not want it.
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

    /// The message is complete in the buffer `whole`; `None`: the user does not want it.
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

/// The kind of the turn that is out for delivery, and what its delivery frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Opened,
    /// A small message: frees so many bytes of the flow's window.
    Small(u64),
    /// A large message, also one that the user refused: frees a grant of so many bytes.
    Large(u64),
    Missed,
    Closed,
}
