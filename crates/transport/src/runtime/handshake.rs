//! The handshake of a lane: HELLO in both directions, with version, realm, incarnations and the link's key. An end reads no other frame
//! before they match.

use super::reset;
use crate::machine::frame::{
    DecodeError, Decoded, Frame, Hello, RdmaMode, Reset, FRAME_BYTES_MAX, HEADER_BYTES,
    WIRE_VERSION,
};
use rgaps_connection::Connection;
use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The lane number in the HELLO of the end that dials. The end that accepts assigns the numbers, which ascend: a stranger that could
/// choose the highest number would leave none for later lanes.
pub(crate) const UNNUMBERED: u32 = 0;

/// The time limit of each step of a handshake: connecting, encrypting, reading a frame.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// Why a handshake opened no lane.
#[derive(Debug, Error)]
pub(crate) enum HelloError {
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// The peer's bytes are no frame, or a frame of another version.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The peer sent a frame that does not belong at this step of the handshake.
    #[error("the peer's first frame is not a hello")]
    NoHello,
    /// One end refused the other.
    #[error("{0}")]
    Refused(String),
}

pub(crate) fn write_frame(connection: &Connection, frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    connection.write_all(&bytes)
}

/// Reads one frame and no byte behind it.
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

/// Writes an identifying number for a text.
pub(crate) fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// Refuses a peer and sends it the reason: which value this end expects, and which the peer has.
pub(crate) fn refuse(
    connection: &Connection,
    what: &str,
    expected: impl Display,
    other: impl Display,
) -> HelloError {
    let why = format!("{what}: expected {expected}, not {other}");
    // A peer that has closed the connection needs no reason.
    let _ = write_frame(connection, &reset(&why));
    HelloError::Refused(format!(
        "the lane of {} was refused: {why}",
        connection.peer()
    ))
}

/// The handshake of the end that opened the connection: sends HELLO, then checks the peer's.
pub(crate) fn dial_hello(connection: &Connection, own: &Hello) -> Result<Hello, HelloError> {
    connection.set_limit(Some(HELLO_LIMIT))?;
    write_frame(connection, &own.clone().into())?;
    let other = match read_frame(connection, HELLO_LIMIT)? {
        Frame::Hello(hello) => hello,
        Frame::Reset(Reset { why }) => {
            let why = why.words();
            return Err(HelloError::Refused(format!(
                "the peer refused the lane: {why}"
            )));
        }
        _ => return Err(HelloError::NoHello),
    };
    let refuse = |what, own, other| Err(refuse(connection, what, hex(own), hex(other)));
    if other.realm != own.realm {
        return refuse("realm", own.realm, other.realm);
    }
    if own.to != 0 && other.node != own.to {
        return refuse("incarnation", own.to, other.node);
    }
    if other.lane == UNNUMBERED || other.key != own.key || other.to != own.node {
        return refuse("answer to hello", own.node, other.to);
    }
    Ok(other)
}

/// The handshake of the other end: reads and checks HELLO. The caller finds the link and answers with its own HELLO.
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
                // All versions have the same header, so the peer can read this end's version from the answer.
                refuse(connection, "version", WIRE_VERSION, other);
            }
            return Err(error);
        }
    };
    let refuse = |what, own, other| Err(refuse(connection, what, hex(own), hex(other)));
    if other.realm != realm {
        return refuse("realm", realm, other.realm);
    }
    if other.to != 0 && other.to != node {
        return refuse("incarnation", node, other.to);
    }
    if other.lane != UNNUMBERED {
        return refuse("number of the lane", UNNUMBERED.into(), other.lane.into());
    }
    Ok(other)
}

pub(crate) fn rdma_in_words(mode: RdmaMode) -> &'static str {
    match mode {
        RdmaMode::No => "no RDMA",
        RdmaMode::Prefer => "RDMA, or TCP",
        RdmaMode::Require => "RDMA and nothing else",
    }
}

/// Whether both ends want RDMA, and so set up a channel. `Err`: the peer's mode, if one end requires what the other does not want.
pub(crate) fn rdma_of_both(own: RdmaMode, other: RdmaMode) -> Result<bool, &'static str> {
    match (own, other) {
        (RdmaMode::No, RdmaMode::Require) | (RdmaMode::Require, RdmaMode::No) => {
            Err(rdma_in_words(other))
        }
        (RdmaMode::No, _) | (_, RdmaMode::No) => Ok(false),
        _ => Ok(true),
    }
}
