//! Links between device topics of two hosts: the host's side of `rgaps/device_link.cuh`.
//!
//! One process on each host makes an end and passes [`LinkEnd::view`] to a kernel. The kernel is an `Egress` on the sending host and an
//! `Ingress` on the other. Both ends have the same sizes. Their memory is host memory, pinned for the GPU, so that a proxy reads and
//! writes it without calls of CUDA, and any device of RDMA verbs can register it.

use crate::card::{Card, QueuePair};
use crate::memory::ZeroedMemory;
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

/// First word of the record that the ends exchange ("rgapslnk").
const MAGIC: u64 = u64::from_le_bytes(*b"rgapslnk");
/// How long an end waits for each read from the other, until they are connected.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes at the start of a slot with the message's length and number.
const HEAD_BYTES: u64 = 16;
/// Each slot is a multiple of a cache line.
const LINE_BYTES: u64 = 64;
/// Number of words behind the slots, each on a line of its own.
const WORDS: u64 = 2;

/// Sizes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSizes {
    /// Most messages in flight: a power of two from 4 to 16,384.
    pub slots: u32,
    /// Bytes of the largest message: at least a block of the sending topic, at most a block of the receiving topic.
    pub message_bytes: u64,
}

impl LinkSizes {
    fn depths(self) -> Depths {
        // At most one work and one immediate for each slot are in flight, and a few works are heartbeats. So the queues are never full.
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

/// The address and key of registered memory: `rdma::Buffer` of the kernels.
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

/// The parameter of an end's kernel: `rdma::LinkEnd` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkEndView {
    /// The queue pair, which only the link uses.
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

/// One end of a link. Drop it only after its kernel has ended.
pub struct LinkEnd {
    // Fields drop in this order: the queue pair before the memory that its card writes.
    pair: QueuePair,
    registration: Registration,
    remote: Buffer,
    sizes: LinkSizes,
}

impl LinkEnd {
    /// Makes an end that writes over a TCP connection. The other end calls the same function.
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

    /// Makes an end that posts its writes on a queue pair of an RDMA device. The ends exchange addresses over the TCP connection
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
        let memory = ZeroedMemory::host(card.kernels(), sizes.bytes()?)?;
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

    /// Exchanges sizes and buffers with the other end. Fails if the sizes differ.
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
                "the other host's end does not belong to a link with {} slots of {} bytes",
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

    /// The parameter of the end's kernel.
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
    /// Connects with the carrier at the other end of a TCP connection, where the peer calls the same function. When it returns, both
    /// carriers can post.
    pub fn meet(&mut self, control: &mut TcpStream) -> Result<(), GpuVerbsError> {
        let theirs = exchange(control, &self.address().encode())?;
        let peer = ChannelAddress::decode(&theirs).ok_or_else(|| {
            GpuVerbsError::Argument("the other host sent no address of RDMA verbs".into())
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
