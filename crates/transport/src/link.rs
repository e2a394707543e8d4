//! What both ends of a link share: where bytes lie, what a lane is told to do, what a peer did wrong.
//!
//! The ends ([`crate::Sender`], [`crate::Receiver`]) do no I/O: they are told what happened and say what to do.
//! Their owner tells them that a lane is closed only when nothing is read or written for it any more.

use crate::credits::WindowLie;
use crate::cursors::CursorLie;
use crate::frame::{Flow, Frame, Meta, Remote};
use thiserror::Error;

/// Bytes in the registered region of the host that speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// Where a lane puts bytes at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Into the lane's own ring.
    Ring(u64),
    /// Into the region.
    Region(u64),
}

/// What a lane has to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The lane.
    pub lane: u32,
    /// The notification.
    pub frame: Frame,
    /// The bytes: from where, and where they go. For an eager message its description comes first.
    pub payload: Option<(Span, Target)>,
    /// The description of an eager message.
    pub meta: Option<Meta>,
    /// Of a chunk: where its message's place is for a lane that writes by itself.
    pub remote: Option<Remote>,
}

/// What the owner has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have a lane write this. If it has a payload, [`crate::Sender::written`] follows.
    Write(Write),
    /// Nobody reads the bytes of this message here any more.
    Release {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
        /// Its bytes.
        span: Span,
    },
    /// Sender: all of a flow that was closed is acknowledged; there is no such flow any more.
    Ended {
        /// Whose.
        flow: Flow,
    },
    /// Sender: these messages were given up.
    GaveUp {
        /// Whose.
        flow: Flow,
        /// The first.
        first: u64,
        /// The one after the last.
        next: u64,
    },
    /// Receiver: a flow's messages come, from this one on.
    Opened {
        /// Whose.
        flow: Flow,
        /// The first that is not committed.
        next: u64,
    },
    /// Receiver: a flow's messages have all come, and its publisher is gone.
    Closed {
        /// Whose.
        flow: Flow,
        /// The sequence after the last.
        next: u64,
    },
    /// Receiver: copy an eager message out of the ring, now.
    Take {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
        /// The lane whose ring it is.
        lane: u32,
        /// Where in the ring.
        offset: u64,
        /// Bytes, the description included.
        bytes: u32,
        /// Those of the description.
        meta_bytes: u16,
    },
    /// Receiver: a message is whole and it is its turn. An eager one is where [`Action::Take`] had it
    /// copied, a large one at its place, which is the owner's now.
    Commit {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
        /// The place of a large message, and its description.
        large: Option<(Span, Meta)>,
        /// The bytes of an eager one, to be given to [`crate::Receiver::released`] when they are free.
        eager_bytes: u32,
    },
    /// Receiver: what was taken of this message is not needed.
    Drop {
        /// Whose.
        flow: Flow,
        /// Which.
        sequence: u64,
    },
    /// Receiver: these messages never come.
    Missed {
        /// Whose.
        flow: Flow,
        /// The first.
        first: u64,
        /// The one after the last.
        next: u64,
    },
}

/// What a peer did that no correct one does. The link is reset, the peer cut off and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeerLie {
    /// About its ring.
    #[error(transparent)]
    Cursor(#[from] CursorLie),
    /// About its window.
    #[error(transparent)]
    Window(#[from] WindowLie),
    /// About something that there is not, or not so.
    #[error("the peer's {frame} is not valid here: {what}")]
    State {
        /// The kind of frame.
        frame: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
}

pub(crate) fn lie(frame: &'static str, what: &'static str) -> PeerLie {
    PeerLie::State { frame, what }
}
