//! The handshake of a lane: HELLO in both directions, with version, realm, incarnations and the link's key. Nothing else is read
//! before they match.

use crate::machine::frame::{
    DecodeError, Decoded, Frame, Hello, RdmaMode, Reset, ResetReason, FRAME_BYTES_MAX,
    HEADER_BYTES, WIRE_VERSION,
};
use rgaps_connection::Connection;
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
pub(crate) enum HelloError {
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// The peer's bytes are no frame, or one of another version.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The peer began with another frame, or broke the handshake's order.
    #[error("the peer's first frame is not a hello")]
    NoHello,
    #[error("{who}: {reason:?}: this end has {own}, the peer {other}")]
    Refused {
        who: String,
        reason: ResetReason,
        own: String,
        other: String,
    },
    #[error("{0} is another host, and lanes between hosts need TLS; configure certificates, or set insecure = true")]
    Plain(String),
    #[error("RDMA is required, and not possible: {0}")]
    Rdma(String),
}

pub(crate) fn write_frame(connection: &Connection, frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    connection.write_all(&bytes)
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

/// The peer refused what this end's HELLO named.
fn refused(own: &Hello, reason: ResetReason, other: u64) -> HelloError {
    let (own, other) = match reason {
        ResetReason::Version => (WIRE_VERSION.to_string(), other.to_string()),
        ResetReason::Realm => (hex(own.realm), hex(other)),
        ResetReason::Incarnation => (hex(own.to), hex(other)),
        ResetReason::Lanes => ("one lane more".into(), format!("{other} lanes")),
        ResetReason::Key | ResetReason::Protocol => ("a key".into(), "none like it".into()),
        ResetReason::Rdma => (rdma_in_words(own.rdma as u64), rdma_in_words(other)),
    };
    HelloError::Refused {
        who: "the peer refused the lane".into(),
        reason,
        own,
        other,
    }
}

pub(crate) fn hex(number: u64) -> String {
    format!("{number:#x}")
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
    expected: u64,
    other: impl ToString,
) -> HelloError {
    // If it has left, it needs no reason.
    let _ = write_frame(connection, &Reset { reason, expected }.into());
    HelloError::Refused {
        who: format!("the lane of {} was refused", connection.peer()),
        reason,
        own: hex(expected),
        other: other.to_string(),
    }
}

/// The end that opened the connection begins.
pub(crate) fn dial_hello(connection: &Connection, own: &Hello) -> Result<Hello, HelloError> {
    connection.set_limit(Some(HELLO_LIMIT))?;
    write_frame(connection, &own.clone().into())?;
    let other = match read_frame(connection, HELLO_LIMIT)? {
        Frame::Hello(hello) => hello,
        Frame::Reset(Reset { reason, expected }) => return Err(refused(own, reason, expected)),
        _ => return Err(HelloError::NoHello),
    };
    let refuse = |reason, own, other| Err(refuse(connection, reason, own, hex(other)));
    if other.realm != own.realm {
        return refuse(ResetReason::Realm, own.realm, other.realm);
    }
    if own.to != 0 && other.node != own.to {
        return refuse(ResetReason::Incarnation, own.to, other.node);
    }
    if other.lane == UNNUMBERED || other.key != own.key || other.to != own.node {
        return refuse(ResetReason::Protocol, own.node, other.node);
    }
    Ok(other)
}

/// The other end reads that. Its own HELLO follows when it has found the link.
pub(crate) fn accept_hello(
    connection: &Connection,
    node: u64,
    realm: u64,
) -> Result<Hello, HelloError> {
    let other = match read_frame(connection, HELLO_LIMIT) {
        Ok(Frame::Hello(hello)) => hello,
        Ok(_) => return Err(HelloError::NoHello),
        Err(error) => {
            if let HelloError::Decode(DecodeError::Version(other)) = error {
                // The header is the same in all versions, so the peer learns this one.
                refuse(connection, ResetReason::Version, WIRE_VERSION.into(), other);
            }
            return Err(error);
        }
    };
    let refuse = |reason, own, other| Err(refuse(connection, reason, own, hex(other)));
    if other.realm != realm {
        return refuse(ResetReason::Realm, realm, other.realm);
    }
    if other.to != 0 && other.to != node {
        return refuse(ResetReason::Incarnation, node, other.to);
    }
    if other.lane != UNNUMBERED {
        return refuse(ResetReason::Protocol, UNNUMBERED.into(), other.lane.into());
    }
    Ok(other)
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
