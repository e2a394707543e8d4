//! A topic's memory, as one process sees it.

use crate::memory::{Memory, Segment};
use crate::{DeviceError, Geometry};
use rgaps_cuda::{CudaMapping, CudaSource, CudaStream, Driver, Registered};
use rgaps_layout::{
    DeviceControl, DeviceSeat, DeviceTopicView, Domain, DEVICE_CONTROL_BYTES, DEVICE_HOLDER_BYTES,
    DEVICE_LAYOUT_VERSION, DEVICE_MAGIC, DEVICE_OWNER_UNKNOWN, DEVICE_PUBLISHER_ENDPOINT,
    DEVICE_SEQUENCE_SHIFT, MAX_DEVICE_SUBSCRIBERS,
};
use rgaps_pool::{
    create_sealed_memfd, Access, HostConfig, HostMapping, HostSource, Mapping, PoolError,
    SegmentSource, SharedMap,
};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::any::Any;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// A warning for a process that opens a topic of another one.
const TURNS: &str = "this GPU runs kernels of several processes in turns, so a message of a device topic between two of them \
                     takes milliseconds; start MPS with 'rgaps up --mps', and both processes with 'rgaps run -- COMMAND', or put \
                     them on two GPUs";

/// The part that a process's kernels take in the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// They publish.
    Publisher,
    /// They receive: the ring and the blocks are mapped for reading only.
    Subscriber,
}

/// A device topic, mapped into this process and reachable by its kernels.
///
/// The owner drops it only when the kernels that use it have ended.
pub struct DeviceTopic {
    // Fields drop in this order: the registration before its pages.
    registered: Option<Registered>,
    control: SharedMap,
    memory: Memory,
    fds: [OwnedFd; 3],
    geometry: Geometry,
    domain: Domain,
    /// The owner of the seats that this process takes.
    pub(crate) owner: u64,
    /// Keeps the process a client of the daemon (`owned_by`).
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl DeviceTopic {
    /// Makes the memory of a new topic. This process may publish in it.
    pub fn create(domain: Domain, geometry: Geometry) -> Result<DeviceTopic, DeviceError> {
        let geometry = geometry.checked()?;
        let mut source = source(domain)?;
        let unit = source.granularity();
        let mut segment = |bytes: u64| source.create(bytes.next_multiple_of(unit));
        let ring = segment(geometry.ring_bytes())?;
        let words = segment(geometry.words_bytes())?;
        let control = create_sealed_memfd("rgaps-device", DEVICE_CONTROL_BYTES)?;
        let fds = [control, ring.fd, words.fd];
        let sizes = [ring.bytes, words.bytes];
        let topic = DeviceTopic::map(domain, fds, sizes, Role::Publisher, geometry)?;
        // Memory of a GPU still has the bytes of its last owner.
        topic
            .memory
            .ring
            .write(0, &vec![0; geometry.blocks_at() as usize])?;
        topic
            .memory
            .words
            .write(0, &vec![0; geometry.words_bytes() as usize])?;
        topic.describe(sizes);
        Ok(topic)
    }

    /// Opens a topic by the descriptors of its three segments, in the order of [`descriptors`](Self::descriptors).
    /// `domain` is the GPU whose kernels use it, which may be another than the one it lies on if the two are peers.
    pub fn open(domain: Domain, fds: [OwnedFd; 3], role: Role) -> Result<DeviceTopic, DeviceError> {
        let control = SharedMap::new(fds[0].as_fd(), DEVICE_CONTROL_BYTES, Access::ReadOnly)?;
        let (geometry, sizes) = read_description(&control)?;
        let topic = DeviceTopic::map(domain, fds, sizes, role, geometry)?;
        if topic.takes_turns() {
            tracing::warn!(%domain, "{TURNS}");
        }
        Ok(topic)
    }

    fn map(
        domain: Domain,
        fds: [OwnedFd; 3],
        [ring_bytes, words_bytes]: [u64; 2],
        role: Role,
        geometry: Geometry,
    ) -> Result<DeviceTopic, DeviceError> {
        let control = SharedMap::new(fds[0].as_fd(), DEVICE_CONTROL_BYTES, Access::ReadWrite)?;
        let access = match role {
            Role::Publisher => Access::ReadWrite,
            Role::Subscriber => Access::ReadOnly,
        };
        let (memory, registered) = match domain {
            Domain::Host => {
                let ring = host_mapping(fds[1].as_fd(), ring_bytes, access)?;
                let words = host_mapping(fds[2].as_fd(), words_bytes, Access::ReadWrite)?;
                (Memory::new(ring, words, None), None)
            }
            Domain::Cuda(uuid) => {
                let driver = Driver::load().map_err(|error| error.into_pool(uuid))?;
                let map = |fd: BorrowedFd<'_>, bytes, access| {
                    let mapping = CudaMapping::new(driver.clone(), uuid, bytes, access)?;
                    mapping.extend(fd, bytes)?;
                    Ok::<_, PoolError>(mapping)
                };
                let ring = map(fds[1].as_fd(), ring_bytes, access)?;
                let words = map(fds[2].as_fd(), words_bytes, Access::ReadWrite)?;
                let registered = register(&control, &ring)?;
                let context = Arc::clone(ring.context());
                let memory = Memory::new(Box::new(ring), Box::new(words), Some(context));
                (memory, Some(registered))
            }
        };
        Ok(DeviceTopic {
            registered,
            control,
            memory,
            fds,
            geometry,
            domain,
            owner: DEVICE_OWNER_UNKNOWN,
            _kept: None,
        })
    }

    /// Has a client of the daemon ([`device_owner`](rgaps_layout::device_owner)) own the seats that are taken by this value from here on:
    /// the daemon frees them when the client has ended. `kept` keeps the process that client as long as the topic is mapped.
    pub fn owned_by(self, owner: u64, kept: Box<dyn Any + Send + Sync>) -> DeviceTopic {
        DeviceTopic {
            owner,
            _kept: Some(kept),
            ..self
        }
    }

    /// Writes the description that [`read_description`] reads. The magic number comes last.
    fn describe(&self, [ring_bytes, words_bytes]: [u64; 2]) {
        let Geometry {
            depth,
            blocks,
            block_bytes,
        } = self.geometry;
        for (at, value) in [
            (offset_of!(DeviceControl, version), DEVICE_LAYOUT_VERSION),
            (offset_of!(DeviceControl, depth), depth),
            (offset_of!(DeviceControl, blocks), blocks),
        ] {
            half_word(&self.control, at).store(value, Ordering::Relaxed);
        }
        for (at, value) in [
            (offset_of!(DeviceControl, block_bytes), block_bytes),
            (offset_of!(DeviceControl, ring_bytes), ring_bytes),
            (offset_of!(DeviceControl, words_bytes), words_bytes),
        ] {
            word(&self.control, at).store(value, Ordering::Relaxed);
        }
        // SYNC POINT described: pairs with the load in `read_description`.
        word(&self.control, offset_of!(DeviceControl, magic))
            .store(DEVICE_MAGIC, Ordering::Release);
    }

    /// The topic as a parameter of kernels: addresses and sizes.
    pub fn view(&self) -> DeviceTopicView {
        let control = match &self.registered {
            Some(registered) => registered.device_address(),
            None => self.control.base().as_ptr() as u64,
        };
        DeviceTopicView {
            control,
            slots: self.memory.ring.base(),
            lengths: self.memory.ring.base() + self.geometry.lengths_at(),
            blocks_at: self.memory.ring.base() + self.geometry.blocks_at(),
            seats: self.memory.words.base(),
            holders: self.memory.words.base() + self.geometry.holders_at(),
            block_bytes: self.geometry.block_bytes,
            depth: self.geometry.depth,
            blocks: self.geometry.blocks,
        }
    }

    /// Its sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The descriptors of control, ring and words, for other processes to open the topic by.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.fds[0].as_fd(),
            self.fds[1].as_fd(),
            self.fds[2].as_fd(),
        ]
    }

    /// Ends the waits of a kernel: a seat's, or the publisher's ([`DEVICE_PUBLISHER_ENDPOINT`]).
    pub fn stop(&self, endpoint: u32) -> Result<(), DeviceError> {
        check_endpoint(endpoint, DEVICE_PUBLISHER_ENDPOINT + 1)?;
        self.control_word(offset_of!(DeviceControl, stopped))
            .fetch_or(1 << endpoint, Ordering::Release);
        Ok(())
    }

    /// Takes [`stop`](Self::stop) back.
    pub fn resume(&self, endpoint: u32) -> Result<(), DeviceError> {
        check_endpoint(endpoint, DEVICE_PUBLISHER_ENDPOINT + 1)?;
        self.control_word(offset_of!(DeviceControl, stopped))
            .fetch_and(!(1 << endpoint), Ordering::Release);
        Ok(())
    }

    /// The seat of the topic's bridge, or of its last one; `None` if there was none.
    pub fn bridge_seat(&self) -> Option<u32> {
        let word = self.control_word(offset_of!(DeviceControl, bridge));
        let seat = word.load(Ordering::SeqCst).checked_sub(1)?;
        (seat < MAX_DEVICE_SUBSCRIBERS.into()).then_some(seat as u32)
    }

    /// Writes the seat of the topic's bridge, for a bridge that comes after it.
    pub(crate) fn set_bridge_seat(&self, seat: u32) {
        self.control_word(offset_of!(DeviceControl, bridge))
            .store(1 + u64::from(seat), Ordering::SeqCst);
    }

    /// The GPU that uses the topic here, or the host.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Whether the GPU runs kernels of this process and of others in turns, since there is no MPS: a kernel that waits for
    /// one of another process then waits until its turn is over, milliseconds for each message.
    pub fn takes_turns(&self) -> bool {
        self.memory.takes_turns()
    }

    /// A stream of our own on the topic's GPU, for copies; none in host memory.
    pub fn stream(&self) -> Result<Option<CudaStream>, DeviceError> {
        Ok(self.memory.stream()?)
    }

    /// Makes this process the only bridge of the topic, until the result is dropped or the process ends.
    pub fn lock(&self) -> Result<OwnedFd, DeviceError> {
        // Opens a file description of our own: other processes share that of the descriptor, and would share its lock.
        let path = format!("/proc/self/fd/{}", self.fds[0].as_raw_fd());
        let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let fd = opened.map_err(|error| DeviceError::Lock(error.into()))?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(fd),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DeviceError::Bridged),
            Err(error) => Err(DeviceError::Lock(error.into())),
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Sequence number of the newest message; 0: there was none.
    pub fn newest_sequence(&self) -> Result<u64, DeviceError> {
        let slots = self.slots()?;
        let sequences = slots.iter().map(|slot| slot >> DEVICE_SEQUENCE_SHIFT);
        Ok(sequences.max().unwrap_or(0))
    }

    pub(crate) fn slots(&self) -> Result<Vec<u64>, DeviceError> {
        let depth = self.geometry.depth as usize;
        Ok(self.memory.load_all(Segment::Ring, 0, depth)?)
    }

    /// All holder words.
    pub(crate) fn holders(&self) -> Result<Vec<u64>, DeviceError> {
        let words_each = DEVICE_HOLDER_BYTES as usize / size_of::<u64>();
        let count = self.geometry.blocks as usize * words_each;
        let at = self.geometry.holders_at();
        let words = self.memory.load_all(Segment::Words, at, count)?;
        Ok(words.into_iter().step_by(words_each).collect())
    }

    pub(crate) fn holder_at(&self, block: u32) -> u64 {
        self.geometry.holders_at() + u64::from(block) * DEVICE_HOLDER_BYTES
    }

    pub(crate) fn seat_at(&self, seat: u32) -> u64 {
        u64::from(seat) * size_of::<DeviceSeat>() as u64
    }

    pub(crate) fn control_word(&self, at: usize) -> &AtomicU64 {
        word(&self.control, at)
    }
}

pub(crate) fn check_endpoint(endpoint: u32, end: u32) -> Result<(), DeviceError> {
    if endpoint < end {
        return Ok(());
    }
    Err(DeviceError::Argument(format!(
        "there is no seat {endpoint}: the last is {}",
        end - 1
    )))
}

/// Reads and checks the sizes that the topic's maker wrote, which may be any bytes.
fn read_description(control: &SharedMap) -> Result<(Geometry, [u64; 2]), DeviceError> {
    let refuse = |why: String| DeviceError::Pool(PoolError::Untrusted(why));
    // SYNC POINT described: pairs with the store in `describe`.
    let magic = word(control, offset_of!(DeviceControl, magic)).load(Ordering::Acquire);
    let version = half_word(control, offset_of!(DeviceControl, version)).load(Ordering::Relaxed);
    if magic != DEVICE_MAGIC || version != DEVICE_LAYOUT_VERSION {
        return Err(refuse(format!(
            "it is no device topic of version {DEVICE_LAYOUT_VERSION} (found {magic:#x}, version {version})"
        )));
    }
    let found = Geometry {
        depth: half_word(control, offset_of!(DeviceControl, depth)).load(Ordering::Relaxed),
        blocks: half_word(control, offset_of!(DeviceControl, blocks)).load(Ordering::Relaxed),
        block_bytes: word(control, offset_of!(DeviceControl, block_bytes)).load(Ordering::Relaxed),
    };
    let geometry = found.checked().map_err(|error| refuse(error.to_string()))?;
    let sizes = [
        word(control, offset_of!(DeviceControl, ring_bytes)).load(Ordering::Relaxed),
        word(control, offset_of!(DeviceControl, words_bytes)).load(Ordering::Relaxed),
    ];
    if geometry != found || sizes[0] < geometry.ring_bytes() || sizes[1] < geometry.words_bytes() {
        return Err(refuse(format!(
            "its segments of {sizes:?} bytes do not hold {found:?}"
        )));
    }
    Ok((geometry, sizes))
}

fn source(domain: Domain) -> Result<Box<dyn SegmentSource>, PoolError> {
    Ok(match domain {
        Domain::Host => Box::new(HostSource::new(HostConfig::default())),
        Domain::Cuda(uuid) => {
            let driver = Driver::load().map_err(|error| error.into_pool(uuid))?;
            Box::new(CudaSource::new(driver, uuid)?)
        }
    })
}

fn host_mapping(
    fd: BorrowedFd<'_>,
    bytes: u64,
    access: Access,
) -> Result<Box<dyn Mapping>, PoolError> {
    let mapping = HostMapping::new(bytes, access)?;
    mapping.extend(fd, bytes)?;
    Ok(Box::new(mapping))
}

/// Makes the control segment reachable for kernels.
fn register(control: &SharedMap, ring: &CudaMapping) -> Result<Registered, PoolError> {
    let context = Arc::clone(ring.context());
    let uuid = context.device().uuid;
    // SAFETY: `control` has `bytes()` bytes mapped for reading and writing from its base until it is dropped. That is after the
    // registration is: by the order of `DeviceTopic`'s fields, and in `map` until then by that of its variables.
    unsafe {
        Registered::new(
            context,
            control.base().as_ptr().cast(),
            control.bytes() as usize,
        )
    }
    .map_err(|error| error.into_pool(uuid))
}

fn word(control: &SharedMap, at: usize) -> &AtomicU64 {
    assert!(at % size_of::<AtomicU64>() == 0 && at < size_of::<DeviceControl>());
    // SAFETY: aligned and inside the mapping, as was just checked; the mapping has `DEVICE_CONTROL_BYTES`, starts at a page, and lives as
    // long as the borrow. All processes and kernels change the word by atomics only.
    unsafe { AtomicU64::from_ptr(control.base().as_ptr().add(at).cast()) }
}

fn half_word(control: &SharedMap, at: usize) -> &AtomicU32 {
    assert!(at % size_of::<AtomicU32>() == 0 && at < size_of::<DeviceControl>());
    // SAFETY: aligned and inside the mapping, as was just checked; the mapping has `DEVICE_CONTROL_BYTES`, starts at a page, and lives as
    // long as the borrow. The half word is written once, before any other process has the descriptor.
    unsafe { AtomicU32::from_ptr(control.base().as_ptr().add(at).cast()) }
}
