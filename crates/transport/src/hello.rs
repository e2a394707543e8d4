//! The first words on a lane: who speaks, which version, which realm, and the link's key. Nothing else is read
//! before they fit.

use crate::connection::Connection;
use crate::cursors::Ring;
use crate::frame::{
    DecodeError, Decoded, Frame, LaneKey, ResetReason, Wish, FRAME_BYTES_MAX, HEADER_BYTES,
    WIRE_VERSION,
};
use std::io;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The lane number in the hello of the end that dials. The end that accepts numbers lanes: a number that a stranger
/// may choose would leave none for the lanes after it.
pub(crate) const ASKED: u32 = 0;

/// The first words take no longer.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// Why there is no lane.
#[derive(Debug, Error)]
pub enum HelloError {
    /// The connection failed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// What came is no frame, or one of another version.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// What came is not what is said first.
    #[error("the peer's first frame is not a hello")]
    Word,
    /// The peer refused.
    #[error("the peer refused the lane: {reason:?}: this end has {ours}, the peer {theirs}")]
    Refused {
        /// Why.
        reason: ResetReason,
        /// What this end has.
        ours: String,
        /// What the peer has.
        theirs: String,
    },
    /// This end refused.
    #[error("the lane of {from} was refused: {reason:?}: this end has {ours}, the peer {theirs}")]
    Refuse {
        /// Whose.
        from: String,
        /// Why.
        reason: ResetReason,
        /// What this end has.
        ours: String,
        /// What the peer has.
        theirs: String,
    },
    /// A plain lane to another host.
    #[error("{0} is another host, and lanes between hosts need TLS; configure certificates, or set insecure = true")]
    Plain(String),
    /// RDMA was required.
    #[error("RDMA is required, and not possible: {0}")]
    Rdma(String),
}

/// What one end says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) node: u64,
    pub(crate) realm: u64,
    pub(crate) lane: u32,
    pub(crate) ring: Ring,
    pub(crate) rdma: Wish,
    pub(crate) to: u64,
    pub(crate) key: LaneKey,
}

impl Hello {
    fn frame(&self) -> Frame {
        Frame::Hello {
            node: self.node,
            realm: self.realm,
            lane: self.lane,
            ring_bytes: self.ring.bytes(),
            rdma: self.rdma,
            to: self.to,
            key: self.key,
        }
    }
}

pub(crate) fn say(connection: &Connection, frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    let length = frame.encode(&mut bytes);
    connection.write_all(&bytes[..length])
}

/// Reads one frame and nothing behind it.
pub(crate) fn hear(connection: &Connection) -> Result<Frame, HelloError> {
    hear_within(connection, HELLO_LIMIT)
}

/// The same with another limit.
pub(crate) fn hear_within(connection: &Connection, limit: Duration) -> Result<Frame, HelloError> {
    let started = Instant::now();
    let mut bytes = [0; FRAME_BYTES_MAX];
    let (mut have, mut need) = (0, HEADER_BYTES);
    loop {
        while have < need {
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            connection.set_limit(Some(left))?;
            match connection.read(&mut bytes[have..need])? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => have += read,
            }
        }
        match Frame::decode(&bytes[..have])? {
            Decoded::Frame(frame, _) => return Ok(frame),
            Decoded::Short(more) => need = more,
        }
    }
}

fn hear_hello(connection: &Connection, ours: &Hello) -> Result<Hello, HelloError> {
    match hear(connection)? {
        Frame::Hello {
            node,
            realm,
            lane,
            ring_bytes,
            rdma,
            to,
            key,
        } => Ok(Hello {
            node,
            realm,
            lane,
            ring: Ring::new(ring_bytes).expect("the decoder checks it"),
            rdma,
            to,
            key,
        }),
        Frame::Reset {
            reason,
            ours: theirs,
        } => {
            let (ours, theirs) = match reason {
                ResetReason::Version => (WIRE_VERSION.to_string(), theirs.to_string()),
                ResetReason::Realm => (format!("{:#x}", ours.realm), format!("{theirs:#x}")),
                ResetReason::Incarnation => (format!("{:#x}", ours.to), format!("{theirs:#x}")),
                ResetReason::Lanes => ("one lane more".into(), format!("{theirs} lanes")),
                ResetReason::Key | ResetReason::Protocol => ("a key".into(), "none like it".into()),
                ResetReason::Rdma => (rdma_in_words(ours.rdma as u64), rdma_in_words(theirs)),
            };
            Err(HelloError::Refused {
                reason,
                ours,
                theirs,
            })
        }
        _ => Err(HelloError::Word),
    }
}

fn rdma_in_words(wish: u64) -> String {
    let words = match wish {
        0 => "no RDMA",
        1 => "RDMA, or TCP",
        _ => "RDMA and nothing else",
    };
    words.into()
}

/// Tells the peer that it is refused, and why.
pub(crate) fn refuse(
    connection: &Connection,
    reason: ResetReason,
    ours: u64,
    theirs: impl ToString,
) -> HelloError {
    // If it is gone, it needs no reason.
    let _ = say(connection, &Frame::Reset { reason, ours });
    HelloError::Refuse {
        from: connection.peer().to_string(),
        reason,
        ours: format!("{ours:#x}"),
        theirs: theirs.to_string(),
    }
}

/// The end that opened the connection speaks first.
pub(crate) fn dial(connection: &Connection, ours: &Hello) -> Result<Hello, HelloError> {
    connection.set_limit(Some(HELLO_LIMIT))?;
    say(connection, &ours.frame())?;
    let theirs = hear_hello(connection, ours)?;
    if theirs.realm != ours.realm {
        let realm = format!("{:#x}", theirs.realm);
        return Err(refuse(connection, ResetReason::Realm, ours.realm, realm));
    }
    if ours.to != 0 && theirs.node != ours.to {
        let node = format!("{:#x}", theirs.node);
        return Err(refuse(connection, ResetReason::Incarnation, ours.to, node));
    }
    if theirs.lane == ASKED || theirs.key != ours.key || theirs.to != ours.node {
        return Err(refuse(
            connection,
            ResetReason::Protocol,
            ours.node,
            theirs.node,
        ));
    }
    connection.set_limit(None)?;
    Ok(theirs)
}

/// The other end hears who it is. What it says of its own link, [`answer`] says then.
pub(crate) fn accept(connection: &Connection, node: u64, realm: u64) -> Result<Hello, HelloError> {
    let nobody = Hello {
        node,
        realm,
        lane: ASKED,
        ring: Ring::new(256).expect("a ring's size"),
        rdma: Wish::No,
        to: 0,
        key: LaneKey([0; 32]),
    };
    let theirs = match hear_hello(connection, &nobody) {
        Err(HelloError::Decode(DecodeError::Version(version))) => {
            // The header is the same in all versions, so the peer learns ours.
            refuse(
                connection,
                ResetReason::Version,
                WIRE_VERSION.into(),
                version,
            );
            return Err(DecodeError::Version(version).into());
        }
        other => other?,
    };
    if theirs.realm != realm {
        let their_realm = format!("{:#x}", theirs.realm);
        return Err(refuse(connection, ResetReason::Realm, realm, their_realm));
    }
    if theirs.to != 0 && theirs.to != node {
        let to = format!("{:#x}", theirs.to);
        return Err(refuse(connection, ResetReason::Incarnation, node, to));
    }
    if theirs.lane != ASKED {
        let reason = ResetReason::Protocol;
        return Err(refuse(connection, reason, ASKED.into(), theirs.lane));
    }
    Ok(theirs)
}

/// Says hello back.
pub(crate) fn answer(connection: &Connection, ours: &Hello) -> Result<(), HelloError> {
    say(connection, &ours.frame())?;
    connection.set_limit(None)?;
    Ok(())
}

/// What both ends make of what they wish: whether they are to agree on a channel, or why there can be no lane.
pub(crate) fn rdma_of_both(ours: Wish, theirs: Wish) -> Result<bool, String> {
    match (ours, theirs) {
        (Wish::No, Wish::Require) | (Wish::Require, Wish::No) => Err(rdma_in_words(theirs as u64)),
        (Wish::No, _) | (_, Wish::No) => Ok(false),
        _ => Ok(true),
    }
}
