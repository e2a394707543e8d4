//! Links between device topics of two hosts: what the kernels of `rgaps/device_link.cuh` need of the host.
//!
//! One process on each host makes its end, and passes [`LinkEnd::view`] to a kernel, which is an `Egress` on one host and an `Ingress` on
//! the other. Both ends have the same sizes. Their memory is host memory that is pinned for the GPU: a proxy reads and writes it without
//! a copy through the GPU, and any device of RDMA verbs can register it.

use crate::card::{Card, QueuePair};
use crate::memory::Memory;
use crate::queue::Depths;
use crate::regions::Registration;
use crate::verbs_carrier::VerbsCarrier;
use crate::view::{QueuePairView, WORK_BYTES_MAX};
use crate::GpuVerbsError;
use rgaps_verbs::{Access, ChannelAddress, Device};
use std::io::{Read, Write};
use std::mem::{offset_of, size_of};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// First word of what the ends tell each other ("rgapslnk").
const MAGIC: u64 = u64::from_le_bytes(*b"rgapslnk");
/// How long an end waits for the other in one go, until they are connected.
const LIMIT: Duration = Duration::from_secs(10);
/// A slot begins with the message's length and number. Slots and words are whole lines.
const HEAD_BYTES: u64 = 16;
const LINE_BYTES: u64 = 64;
/// Words behind the slots, a line each.
const WORDS: u64 = 2;

/// Sizes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSizes {
    /// Messages that are on their way at most: a power of two from 4 to 16,384.
    pub slots: u32,
    /// Bytes of the largest message. The sending topic's blocks have at most as many, those of the receiving topic at least.
    pub message_bytes: u64,
}

impl LinkSizes {
    fn depths(self) -> Depths {
        // So neither a work nor an immediate ever lacks room: there are as many as slots, and a few that show who lives.
        let log2 = self.slots.trailing_zeros();
        Depths {
            sends_log2: log2 + 1,
            receives_log2: log2,
        }
    }

    fn bytes(self) -> Result<u64, GpuVerbsError> {
        let most = u64::from(WORK_BYTES_MAX) - HEAD_BYTES;
        if !self.slots.is_power_of_two() || self.message_bytes > most {
            return Err(GpuVerbsError::Argument(format!(
                "a link has a power of two of slots, for messages of at most {most} bytes: not {self:?}"
            )));
        }
        let slot_bytes = (HEAD_BYTES + self.message_bytes).next_multiple_of(LINE_BYTES);
        Ok(u64::from(self.slots) * slot_bytes + WORDS * LINE_BYTES)
    }
}

/// Memory by its address and the key under which a card knows it: `rdma::Buffer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Its first byte.
    pub address: u64,
    /// The key.
    pub key: u32,
    /// Padding.
    pub padding: u32,
}

/// What an end's kernel takes as a parameter: `rdma::LinkEnd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkEndView {
    /// The queue pair, which is the link's alone.
    pub pair: QueuePairView,
    /// Memory of this end.
    pub local: Buffer,
    /// Memory of the other end.
    pub remote: Buffer,
    /// [`LinkSizes::slots`].
    pub slots: u64,
    /// [`LinkSizes::message_bytes`].
    pub message_bytes: u64,
}

const _: () =
    assert!(offset_of!(LinkEndView, local) == 88 && offset_of!(LinkEndView, slots) == 120);
const _: () = assert!(size_of::<LinkEndView>() == 136);

/// One end of a link. Its kernel has ended before it is dropped.
pub struct LinkEnd {
    // Before its memory.
    pair: QueuePair,
    registration: Registration,
    remote: Buffer,
    sizes: LinkSizes,
}

impl LinkEnd {
    /// An end whose writes go over a TCP connection to the other end, which does the same.
    pub fn over_tcp(
        card: &Card,
        sizes: LinkSizes,
        mut stream: TcpStream,
    ) -> Result<LinkEnd, GpuVerbsError> {
        let mut end = LinkEnd::new(card, sizes)?;
        end.meet(&mut stream, end.buffer())?;
        end.pair.connect_tcp(stream)?;
        Ok(end)
    }

    /// An end whose writes are posted on a queue pair of an RDMA device. The ends tell each other of it over the TCP connection
    /// `control`, which is not needed afterwards.
    pub fn over_verbs(
        card: &Card,
        sizes: LinkSizes,
        device: &Arc<Device>,
        control: &mut TcpStream,
    ) -> Result<LinkEnd, GpuVerbsError> {
        let mut end = LinkEnd::new(card, sizes)?;
        let mut carrier = VerbsCarrier::new(device, sizes.depths())?;
        let (address, key) = carrier.register(&end.registration, Access::RemoteWrite)?;
        let buffer = Buffer {
            address,
            key: key.expect("memory that the peer may write has a key"),
            padding: 0,
        };
        end.meet(control, buffer)?;
        carrier.meet(control)?;
        end.pair.connect_verbs(carrier)?;
        Ok(end)
    }

    fn new(card: &Card, sizes: LinkSizes) -> Result<LinkEnd, GpuVerbsError> {
        let memory = Memory::host(card.kernels(), sizes.bytes()?)?;
        Ok(LinkEnd {
            pair: card.queue_pair(sizes.depths())?,
            registration: card.register(&memory, true),
            remote: Buffer::default(),
            sizes,
        })
    }

    fn buffer(&self) -> Buffer {
        Buffer {
            address: self.registration.memory().address(),
            key: self.registration.key(),
            padding: 0,
        }
    }

    /// Tells the other end where it may write, and learns the same.
    fn meet(&mut self, stream: &mut TcpStream, mine: Buffer) -> Result<(), GpuVerbsError> {
        let sizes = [u64::from(self.sizes.slots), self.sizes.message_bytes];
        let words = [MAGIC, sizes[0], sizes[1], mine.address, mine.key.into()];
        let theirs = exchange(stream, words.map(u64::to_le_bytes).as_flattened())?;
        let word = |at: usize| {
            let bytes = theirs[at * 8..][..8].try_into().expect("8 bytes");
            u64::from_le_bytes(bytes)
        };
        if [word(0), word(1), word(2)] != [MAGIC, sizes[0], sizes[1]] {
            return Err(GpuVerbsError::Argument(format!(
                "the other host's end is no end of a link with {} slots of {} bytes",
                sizes[0], sizes[1]
            )));
        }
        self.remote = Buffer {
            address: word(3),
            key: word(4) as u32,
            padding: 0,
        };
        Ok(())
    }

    /// What its kernel takes as a parameter.
    pub fn view(&self) -> LinkEndView {
        LinkEndView {
            pair: self.pair.view(),
            local: self.buffer(),
            remote: self.remote,
            slots: self.sizes.slots.into(),
            message_bytes: self.sizes.message_bytes,
        }
    }

    /// Its queue pair.
    pub fn pair(&self) -> &QueuePair {
        &self.pair
    }
}

impl VerbsCarrier {
    /// Connects with the carrier at the other end of a TCP connection, which does the same. Afterwards both can post.
    pub fn meet(&mut self, control: &mut TcpStream) -> Result<(), GpuVerbsError> {
        let theirs = exchange(control, &self.address().encode())?;
        let peer = ChannelAddress::decode(&theirs).ok_or_else(|| {
            GpuVerbsError::Argument("the other host tells no address of RDMA verbs".into())
        })?;
        self.connect(&peer)?;
        exchange(control, &[0]).map(drop)
    }
}

/// Sends bytes, and receives as many.
fn exchange(stream: &mut TcpStream, mine: &[u8]) -> Result<Vec<u8>, GpuVerbsError> {
    let mut theirs = vec![0; mine.len()];
    let exchanged = stream
        .set_read_timeout(Some(LIMIT))
        .and_then(|()| stream.write_all(mine))
        .and_then(|()| stream.read_exact(&mut theirs))
        .and_then(|()| stream.set_read_timeout(None));
    exchanged.map(|()| theirs).map_err(GpuVerbsError::System)
}
