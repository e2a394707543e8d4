//! How both ends agree on a channel, over the connection of the handshake: they exchange addresses, connect, and send one record in each
//! direction. Each end reports each step, or why it failed. So both know the same, and a failure leaves the connection for a TCP
//! lane.

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

/// How long the first word through a channel may take; less than the peer waits for what comes of it.
const TRIAL_LIMIT: Duration = Duration::from_secs(1);
/// What a record has to take: its kind, and a frame's head with a description.
const RECORD_BYTES_LEAST: u64 = (1 + FRAME_BYTES_MAX) as u64;
/// The first word.
const TRIAL: [u8; 1] = [STREAM];
/// Steps that both ends report.
const CONNECTED: u8 = 1;
const TRIED: u8 = 2;

/// A channel that both ends have tried, and each end's rail.
pub(crate) struct Agreed {
    pub(super) channel: Channel,
    pub(super) our_rail: u8,
    pub(super) their_rail: u8,
    /// How long the lane's thread polls.
    pub(super) polls: Duration,
}

/// Outer errors are the connection's; inner ones say why there is no channel.
type Step<T> = Result<Result<T, String>, HelloError>;

/// Both ends do this at the same time.
pub(crate) fn agree(connection: &Connection, rdma: &Rdma, lane: u32) -> Step<Agreed> {
    let (our_rail, device) = rdma.rail(lane);
    let own = Channel::new(device, rdma.channel);
    let own = own.map_err(|error| format!("{}: {error}", device.name()));
    let said = own.as_ref().map(|channel| {
        let address = RdmaAddress {
            rail: our_rail,
            address: Description::new(&channel.address().encode()).expect("addresses are short"),
        };
        address.into()
    });
    let other = exchange(connection, said)?;
    let (channel, theirs) = match (own, other) {
        (Ok(channel), Ok(Frame::RdmaAddress(of))) => (channel, of),
        (Ok(_), Ok(_)) => return Err(HelloError::NoHello),
        (Err(why), _) | (_, Err(why)) => return Ok(Err(why)),
    };
    let connected = match ChannelAddress::decode(theirs.address.as_slice()) {
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
        their_rail: theirs.rail,
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

/// Says that this end has done a step, or why not, and hears the same of the peer.
fn step(connection: &Connection, step: u8, done: Result<(), String>) -> Step<()> {
    let said = done.as_ref().map(|()| RdmaReady { step }.into());
    let other = exchange(connection, said)?;
    Ok(match (done, other) {
        (Ok(()), Ok(Frame::RdmaReady(other))) if other.step == step => Ok(()),
        (Ok(()), Ok(_)) => return Err(HelloError::NoHello),
        (Err(why), _) | (_, Err(why)) => Err(why),
    })
}

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

/// A word through the channel in each direction.
fn trial(channel: &Channel) -> Result<(), String> {
    let until = Instant::now() + TRIAL_LIMIT;
    let sent = channel.send(&[IoSlice::new(&TRIAL)], None);
    let sent = sent.map_err(|error| format!("the first word: {error}"))?;
    if sent.is_none() {
        return Err("the peer's end takes no first word".into());
    }
    let mut heard = false;
    while !heard {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("nothing came through it for {TRIAL_LIMIT:?}"));
        }
        let mut each = |arrived: Arrived<'_>| match arrived {
            Arrived::Frame(word) if word == TRIAL => {
                heard = true;
                Ok(())
            }
            _ => Err("the peer's first word is another".to_owned()),
        };
        let served = channel.serve(&mut each, left);
        served.map_err(|error| format!("waiting for the peer's first word: {error}"))?;
    }
    Ok(())
}
