//! An end of the test: its device, and the TCP connection over which both ends exchange addresses and wait for each other.

use anyhow::{ensure, Context, Result};
use rgaps_verbs::raw::RawPair;
use rgaps_verbs::*;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The port on which b listens.
const PORT: u16 = 7471;
/// How long a step may take.
pub const LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    A,
    B,
}

pub struct End {
    pub role: Role,
    pub address: String,
    pub device: Arc<Device>,
    control: TcpStream,
}

/// Memory of the peer that this end may write.
#[derive(Clone, Copy)]
pub struct Place {
    pub address: u64,
    pub key: u32,
}

impl End {
    pub fn meet(role: Role, address: &str) -> Result<Self> {
        let port = std::env::var("VERBS_CHECK_PORT").ok();
        let port = port.map_or(Ok(PORT), |port| port.parse())?;
        Self::meet_at(role, address, port)
    }

    pub fn meet_at(role: Role, address: &str, port: u16) -> Result<Self> {
        let control = match role {
            Role::B => TcpListener::bind((address, port))?.accept()?.0,
            Role::A => within(|| TcpStream::connect((address, port)).ok())
                .context("nobody listens there")?,
        };
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(LIMIT))?;
        Ok(Self {
            role,
            address: address.into(),
            device: open()?,
            control,
        })
    }

    pub fn say(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.control.write_all(bytes)?)
    }

    pub fn hear<const BYTES: usize>(&mut self) -> Result<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.control.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Whether the peer closed the connection or died.
    pub fn has_ended(&self) -> Result<bool> {
        self.control.set_nonblocking(true)?;
        let peeked = self.control.peek(&mut [0]);
        self.control.set_nonblocking(false)?;
        Ok(match peeked {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        })
    }

    /// Waits until both ends have called this.
    pub fn barrier(&mut self) -> Result<()> {
        self.say(b"!")?;
        ensure!(self.hear::<1>()? == *b"!", "the peer is elsewhere");
        Ok(())
    }

    pub fn addresses(&mut self, mine: &ChannelAddress) -> Result<ChannelAddress> {
        self.say(&mine.encode())?;
        ChannelAddress::decode(&self.hear::<ADDRESS_BYTES>()?).context("not an address")
    }

    /// A channel that both ends have connected.
    pub fn channel(&mut self, config: ChannelConfig) -> Result<Channel> {
        let channel = Channel::new(&self.device, config)?;
        let peer = self.addresses(&channel.address())?;
        channel.connect(&peer)?;
        self.barrier()?;
        Ok(channel)
    }

    /// A connected queue pair, memory that the peer may write, and the peer's address.
    pub fn raw(&mut self, sends: u32, receives: u32, bytes: usize) -> Result<Raw> {
        let mut pair = RawPair::new(&self.device, sends, receives)?;
        let memory = Allocation::new(bytes);
        let region = Region::new(&self.device, memory.clone(), Access::RemoteWrite)?;
        let peer = self.addresses(&pair.address(&region))?;
        pair.connect(&peer)?;
        pair.keep(region);
        self.barrier()?;
        Ok(Raw { pair, memory, peer })
    }

    /// Registers memory at both ends, for a to write from its own to b's. Returns the peer's address and key, and this end's memory.
    pub fn place(&mut self, bytes: usize) -> Result<(Place, Arc<Allocation>, Arc<Region>)> {
        let memory = Allocation::new(bytes);
        let access = match self.role {
            Role::A => Access::LocalRead,
            Role::B => Access::RemoteWrite,
        };
        let region = Region::new(&self.device, memory.clone(), access)?;
        let mut said = [0; 12];
        said[..8].copy_from_slice(&region.address().to_le_bytes());
        said[8..].copy_from_slice(&region.remote_key().unwrap_or(0).to_le_bytes());
        self.say(&said)?;
        let heard = self.hear::<12>()?;
        let place = Place {
            address: u64::from_le_bytes(heard[..8].try_into()?),
            key: u32::from_le_bytes(heard[8..].try_into()?),
        };
        Ok((place, memory, region))
    }
}

/// A connected queue pair; its own memory is region 0.
pub struct Raw {
    pub pair: RawPair,
    pub memory: Arc<Allocation>,
    pub peer: ChannelAddress,
}

fn open() -> Result<Arc<Device>> {
    let verbs = Verbs::load()?;
    let ports = Verbs::ports();
    let port = ports
        .iter()
        .find(|port| port.is_up && port.address.is_some());
    let port = port.with_context(|| format!("no port can be used: {ports:?}"))?;
    Ok(verbs.open(port)?)
}

/// Asks every 20 ms until there is an answer; `None` after [`LIMIT`].
pub fn within<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let answer = ask();
        if answer.is_some() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Sends a frame as soon as there is credit; frames that arrive meanwhile go to `each`.
pub fn send(
    channel: &Channel,
    frame: &[u8],
    direct: Option<&Direct>,
    each: &mut Each<'_>,
) -> Result<u64> {
    loop {
        if let Some(number) = channel.send(&[IoSlice::new(frame)], direct)? {
            return Ok(number);
        }
        while !channel.serve(each, LIMIT)?.room {}
    }
}

/// Serves until this many more frames have arrived.
pub fn receive(channel: &Channel, frames: u64, each: &mut Each<'_>) -> Result<()> {
    let mut come = 0;
    let start = Instant::now();
    while come < frames {
        come += channel.serve(each, LIMIT)?.frames;
        ensure!(start.elapsed() < LIMIT, "{come} of {frames} frames came");
    }
    Ok(())
}

/// Serves until frame `number` has completed.
pub fn flush(channel: &Channel, number: u64) -> Result<()> {
    while channel.completed() < number {
        channel.serve(&mut |_| Ok(()), LIMIT)?;
    }
    Ok(())
}

/// The error with which a channel ends.
pub fn end_of(channel: &Channel) -> Result<ChannelError> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Err(error) = channel.serve(&mut |_| Ok(()), Duration::from_millis(100)) {
            return Ok(error);
        }
    }
    anyhow::bail!("it goes on")
}

/// The mixing function of SplitMix64.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills with bytes that depend on the number.
pub fn fill(number: u64, into: &mut [u8]) {
    for (index, bytes) in (0u64..).zip(into.chunks_mut(8)) {
        let word = mix(number ^ (index << 32)).to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
}

/// Whether the bytes are those of [`fill`].
pub fn is_filled(number: u64, bytes: &[u8]) -> bool {
    let mut words = (0u64..).zip(bytes.chunks(8));
    words.all(|(index, bytes)| mix(number ^ (index << 32)).to_le_bytes()[..bytes.len()] == *bytes)
}

/// A size between 1 and `most`, of any magnitude.
pub fn any_size(number: u64, most: u64) -> u64 {
    let bits = 64 - most.leading_zeros() as u64;
    let magnitude = mix(number) % bits + 1;
    1 + mix(number ^ 0xabcd) % ((1 << magnitude).min(most + 1) - 1).max(1)
}

pub fn say_json(value: serde_json::Value) {
    println!("{value}");
}
