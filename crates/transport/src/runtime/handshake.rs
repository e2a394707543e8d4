//! The handshake of a lane: HELLO in both directions, with version, realm, incarnations and the link's key. Nothing else is read
//! before they match.

use crate::connection::Connection;
use crate::machine::frame::{
    DecodeError, Decoded, Frame, LaneKey, RdmaMode, ResetReason, FRAME_BYTES_MAX, HEADER_BYTES,
    WIRE_VERSION,
};
use std::io;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The lane number in the hello of the end that dials. The end that accepts numbers lanes: a number that a stranger
/// may choose would leave none for the lanes after it.
pub(crate) const UNNUMBERED: u32 = 0;

/// A handshake takes no longer.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// Why there is no lane.
#[derive(Debug, Error)]
pub enum HelloError {
    /// The connection failed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// The peer's bytes are no frame, or one of another version.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The peer began with another frame, or broke the handshake's order.
    #[error("the peer's first frame is not a hello")]
    NoHello,
    /// The peer refused.
    #[error("the peer refused the lane: {reason:?}: this end has {own}, the peer {other}")]
    Refused {
        /// Why.
        reason: ResetReason,
        /// What this end has.
        own: String,
        /// What the peer has.
        other: String,
    },
    /// This end refused.
    #[error("the lane of {from} was refused: {reason:?}: this end has {own}, the peer {other}")]
    Refuse {
        /// Whose.
        from: String,
        /// Why.
        reason: ResetReason,
        /// What this end has.
        own: String,
        /// What the peer has.
        other: String,
    },
    /// A plain lane to another host.
    #[error("{0} is another host, and lanes between hosts need TLS; configure certificates, or set insecure = true")]
    Plain(String),
    /// RDMA was required.
    #[error("RDMA is required, and not possible: {0}")]
    Rdma(String),
}

/// The fields of a HELLO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) node: u64,
    pub(crate) machine: u64,
    pub(crate) realm: u64,
    pub(crate) lane: u32,
    pub(crate) first_window: u32,
    pub(crate) rdma: RdmaMode,
    pub(crate) to: u64,
    pub(crate) key: LaneKey,
}

impl Hello {
    fn frame(&self) -> Frame {
        Frame::Hello {
            node: self.node,
            machine: self.machine,
            realm: self.realm,
            lane: self.lane,
            first_window: self.first_window,
            rdma: self.rdma,
            to: self.to,
            key: self.key,
        }
    }
}

pub(crate) fn write_frame(connection: &Connection, frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    let length = frame.encode(&mut bytes);
    connection.write_all(&bytes[..length])
}

/// Reads one frame and nothing behind it.
pub(crate) fn read_frame(connection: &Connection, limit: Duration) -> Result<Frame, HelloError> {
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

fn read_hello(connection: &Connection, own: &Hello) -> Result<Hello, HelloError> {
    match read_frame(connection, HELLO_LIMIT)? {
        Frame::Hello {
            node,
            machine,
            realm,
            lane,
            first_window,
            rdma,
            to,
            key,
        } => Ok(Hello {
            node,
            machine,
            realm,
            lane,
            first_window,
            rdma,
            to,
            key,
        }),
        Frame::Reset {
            reason,
            expected: other,
        } => {
            let (own, other) = match reason {
                ResetReason::Version => (WIRE_VERSION.to_string(), other.to_string()),
                ResetReason::Realm => (format!("{:#x}", own.realm), format!("{other:#x}")),
                ResetReason::Incarnation => (format!("{:#x}", own.to), format!("{other:#x}")),
                ResetReason::Lanes => ("one lane more".into(), format!("{other} lanes")),
                ResetReason::Key | ResetReason::Protocol => ("a key".into(), "none like it".into()),
                ResetReason::Rdma => (rdma_in_words(own.rdma as u64), rdma_in_words(other)),
            };
            Err(HelloError::Refused { reason, own, other })
        }
        _ => Err(HelloError::NoHello),
    }
}

fn rdma_in_words(mode: u64) -> String {
    let words = match mode {
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
    own: u64,
    other: impl ToString,
) -> HelloError {
    let reset = Frame::Reset {
        reason,
        expected: own,
    };
    // If it has left, it needs no reason.
    let _ = write_frame(connection, &reset);
    HelloError::Refuse {
        from: connection.peer().to_string(),
        reason,
        own: format!("{own:#x}"),
        other: other.to_string(),
    }
}

/// The end that opened the connection begins.
pub(crate) fn dial_hello(connection: &Connection, own: &Hello) -> Result<Hello, HelloError> {
    connection.set_limit(Some(HELLO_LIMIT))?;
    write_frame(connection, &own.frame())?;
    let other = read_hello(connection, own)?;
    if other.realm != own.realm {
        let realm = format!("{:#x}", other.realm);
        return Err(refuse(connection, ResetReason::Realm, own.realm, realm));
    }
    if own.to != 0 && other.node != own.to {
        let node = format!("{:#x}", other.node);
        return Err(refuse(connection, ResetReason::Incarnation, own.to, node));
    }
    if other.lane == UNNUMBERED || other.key != own.key || other.to != own.node {
        return Err(refuse(
            connection,
            ResetReason::Protocol,
            own.node,
            other.node,
        ));
    }
    connection.set_limit(None)?;
    Ok(other)
}

/// The other end reads that. Its own HELLO follows with [`answer`], when it has found the link.
pub(crate) fn accept_hello(
    connection: &Connection,
    node: u64,
    realm: u64,
) -> Result<Hello, HelloError> {
    let nobody = Hello {
        node,
        machine: 0,
        realm,
        lane: UNNUMBERED,
        first_window: 0,
        rdma: RdmaMode::No,
        to: 0,
        key: LaneKey([0; 32]),
    };
    let other = match read_hello(connection, &nobody) {
        Err(HelloError::Decode(DecodeError::Version(version))) => {
            // The header is the same in all versions, so the peer learns this one.
            refuse(
                connection,
                ResetReason::Version,
                WIRE_VERSION.into(),
                version,
            );
            return Err(DecodeError::Version(version).into());
        }
        read => read?,
    };
    if other.realm != realm {
        let their_realm = format!("{:#x}", other.realm);
        return Err(refuse(connection, ResetReason::Realm, realm, their_realm));
    }
    if other.to != 0 && other.to != node {
        let to = format!("{:#x}", other.to);
        return Err(refuse(connection, ResetReason::Incarnation, node, to));
    }
    if other.lane != UNNUMBERED {
        let reason = ResetReason::Protocol;
        return Err(refuse(connection, reason, UNNUMBERED.into(), other.lane));
    }
    Ok(other)
}

/// Sends HELLO back.
pub(crate) fn answer(connection: &Connection, own: &Hello) -> Result<(), HelloError> {
    write_frame(connection, &own.frame())?;
    connection.set_limit(None)?;
    Ok(())
}

/// What follows from both ends' modes: whether they are to agree on a channel, or why there can be no lane.
pub(crate) fn rdma_of_both(own: RdmaMode, other: RdmaMode) -> Result<bool, String> {
    match (own, other) {
        (RdmaMode::No, RdmaMode::Require) | (RdmaMode::Require, RdmaMode::No) => {
            Err(rdma_in_words(other as u64))
        }
        (RdmaMode::No, _) | (_, RdmaMode::No) => Ok(false),
        _ => Ok(true),
    }
}
