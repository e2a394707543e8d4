//! Sets up an RDMA lane's channel, over the connection of the handshake: both ends exchange addresses, connect, and send one record in
//! each direction. Each end reports each step, or why it failed. So both ends know the same result, and can use the connection for a TCP
//! lane after a failure.

use super::STREAM;
use crate::machine::frame::{
    Description, Frame, RdmaAddress, RdmaReady, RdmaRefused, FRAME_BYTES_MAX,
};
use crate::rdma::Rdma;
use crate::runtime::handshake::{read_frame, write_frame, HelloError, HELLO_LIMIT};
use rgaps_connection::Connection;
use rgaps_verbs::{Arrived, Channel, ChannelAddress};
use std::io::IoSlice;
use std::time::{Duration, Instant};

/// How long an end waits for the peer's first record; less than the peer waits for the report of that step.
const TRIAL_LIMIT: Duration = Duration::from_secs(1);
/// The least that a record has to hold: its kind, and the longest head of a frame.
const RECORD_BYTES_LEAST: u64 = (1 + FRAME_BYTES_MAX) as u64;
/// The first record of each direction.
const TRIAL: [u8; 1] = [STREAM];
/// The steps that both ends report.
const CONNECTED: u8 = 1;
const TRIED: u8 = 2;

/// A channel through which both ends have received a record, and each end's rail.
pub(crate) struct Agreed {
    pub(super) channel: Channel,
    pub(super) our_rail: u8,
    pub(super) their_rail: u8,
    /// How long the lane's thread polls at most before it sleeps.
    pub(super) polls: Duration,
}

/// The outer error is the connection's, and ends the handshake. The inner one is why there is no channel.
type Step<T> = Result<Result<T, String>, HelloError>;

/// Sets up a channel. Both ends call this at the same time.
pub(crate) fn agree(connection: &Connection, rdma: &Rdma, lane: u32) -> Step<Agreed> {
    let (our_rail, device) = rdma.rail(lane);
    let own = Channel::new(device, rdma.channel);
    let own = own.map_err(|error| format!("{}: {error}", device.name()));
    let frame = own.as_ref().map(|channel| {
        let address = RdmaAddress {
            rail: our_rail,
            address: Description::new(&channel.address().encode()).expect("addresses are short"),
        };
        address.into()
    });
    let other = exchange(connection, frame)?;
    let (channel, peer) = match (own, other) {
        (Ok(channel), Ok(Frame::RdmaAddress(of))) => (channel, of),
        (Ok(_), Ok(_)) => return Err(HelloError::NoHello),
        (Err(why), _) | (_, Err(why)) => return Ok(Err(why)),
    };
    let connected = match ChannelAddress::decode(peer.address.as_slice()) {
        Some(address) => connect(&channel, &address),
        None => Err("the peer's channel has an address of another version".into()),
    };
    let connected = step(connection, CONNECTED, connected)?;
    if let Err(why) = connected {
        return Ok(Err(why));
    }
    let tried = step(connection, TRIED, trial(&channel))?;
    Ok(tried.map(|()| Agreed {
        channel,
        our_rail,
        their_rail: peer.rail,
        polls: rdma.channel.spin,
    }))
}

fn connect(channel: &Channel, peer: &ChannelAddress) -> Result<(), String> {
    let connected = channel.connect(peer);
    connected.map_err(|error| error.to_string())?;
    match channel.frame_bytes_max() < RECORD_BYTES_LEAST {
        true => Err("the peer's ring is too small for frames' heads".into()),
        false => Ok(()),
    }
}

/// Reports this end's result of a step, and reads the peer's. `Ok` if both have done it.
fn step(connection: &Connection, step: u8, done: Result<(), String>) -> Step<()> {
    let frame = done.as_ref().map(|()| RdmaReady { step }.into());
    let other = exchange(connection, frame)?;
    Ok(match (done, other) {
        (Ok(()), Ok(Frame::RdmaReady(other))) if other.step == step => Ok(()),
        (Ok(()), Ok(_)) => return Err(HelloError::NoHello),
        (Err(why), _) | (_, Err(why)) => Err(why),
    })
}

/// Sends this end's frame, or why it failed, and reads the peer's.
fn exchange(connection: &Connection, own: Result<Frame, &String>) -> Step<Frame> {
    let own = own.unwrap_or_else(|why| {
        RdmaRefused {
            why: Description::of_words(why),
        }
        .into()
    });
    write_frame(connection, &own)?;
    Ok(match read_frame(connection, HELLO_LIMIT)? {
        Frame::RdmaRefused(RdmaRefused { why }) => Err(format!("the peer: {}", why.words())),
        other => Ok(other),
    })
}

/// Sends one record through the channel and waits for the peer's.
fn trial(channel: &Channel) -> Result<(), String> {
    let until = Instant::now() + TRIAL_LIMIT;
    let sent = channel.send(&[IoSlice::new(&TRIAL)], None);
    let sent = sent.map_err(|error| format!("sending the first record: {error}"))?;
    if sent.is_none() {
        return Err("the peer's channel has no room for a record".into());
    }
    let mut has_arrived = false;
    while !has_arrived {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("no record of the peer arrived for {TRIAL_LIMIT:?}"));
        }
        let mut each = |arrived: Arrived<'_>| match arrived {
            Arrived::Frame(record) if record == TRIAL => {
                has_arrived = true;
                Ok(())
            }
            _ => Err("the peer's first record is another than expected".to_owned()),
        };
        let served = channel.serve(&mut each, left);
        served.map_err(|error| format!("waiting for the peer's first record: {error}"))?;
    }
    Ok(())
}
