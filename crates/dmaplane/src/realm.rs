//! `/dev/dmaplane-pool`: memory with a quota, in dma-bufs that can be revoked.

use crate::abi::realm as abi;
use crate::Error;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{ioctl, opcode, Getter, Opcode, Setter, Updater};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const DEVICE: &str = "/dev/dmaplane-pool";
/// `DMAPLANE_POOL_MAGIC`.
const MAGIC: u8 = 0xE6;
/// `DMAPLANE_POOL_VERSION`.
const VERSION: u32 = 1;
/// The features that this crate needs: `DMAPLANE_POOL_HAS_REVOKE` and `DMAPLANE_POOL_HAS_ADOPT`.
const FEATURES: u64 = 0b11;

const HUGE: u32 = 1 << 0;
const STRICT_NODE: u32 = 1 << 1;
const REVOKED: u32 = 1 << 0;
const FREED: u32 = 1 << 1;
const MINE: u32 = 1 << 2;

const GET_VERSION: Opcode = opcode::read::<abi::Version>(MAGIC, 0x00);
const SET_QUOTA: Opcode = opcode::write::<abi::Quota>(MAGIC, 0x01);
const GET_REALM: Opcode = opcode::read::<abi::Realm>(MAGIC, 0x02);
const ALLOC: Opcode = opcode::read_write::<abi::Alloc>(MAGIC, 0x03);
const REVOKE: Opcode = opcode::read_write::<abi::Revoke>(MAGIC, 0x04);
const INFO: Opcode = opcode::read_write::<abi::Info>(MAGIC, 0x05);
const ADOPT: Opcode = opcode::read_write::<abi::Adopt>(MAGIC, 0x06);

/// The C name and the number of each call.
#[cfg(test)]
pub(crate) const CALLS: &[(&str, Opcode)] = &[
    ("DMAPLANE_POOL_GET_VERSION", GET_VERSION),
    ("DMAPLANE_POOL_SET_QUOTA", SET_QUOTA),
    ("DMAPLANE_POOL_GET_REALM", GET_REALM),
    ("DMAPLANE_POOL_ALLOC", ALLOC),
    ("DMAPLANE_POOL_REVOKE", REVOKE),
    ("DMAPLANE_POOL_INFO", INFO),
    ("DMAPLANE_POOL_ADOPT", ADOPT),
];

/// The C name and the value of each constant.
#[cfg(test)]
pub(crate) const CONSTANTS: &[(&str, u64)] = &[
    ("DMAPLANE_POOL_VERSION", VERSION as u64),
    (
        "DMAPLANE_POOL_HAS_REVOKE | DMAPLANE_POOL_HAS_ADOPT",
        FEATURES,
    ),
    ("DMAPLANE_POOL_HUGE", HUGE as u64),
    ("DMAPLANE_POOL_STRICT_NODE", STRICT_NODE as u64),
    ("DMAPLANE_POOL_REVOKED", REVOKED as u64),
    ("DMAPLANE_POOL_FREED", FREED as u64),
    ("DMAPLANE_POOL_MINE", MINE as u64),
];

/// An open file of the device, with a quota that is 0 at first. Memory that it allocated stays when it is closed.
#[derive(Debug)]
pub struct Realm {
    fd: OwnedFd,
}

/// How much memory a realm may have, and has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The most bytes that it may have.
    pub quota_bytes: u64,
    /// The bytes that it has. Revoked memory counts until it is free.
    pub used_bytes: u64,
    /// How many dma-bufs it has.
    pub buffers: u32,
}

/// Memory to be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The size, which the module rounds up to whole pages.
    pub bytes: u64,
    /// The NUMA node. None: any.
    pub node: Option<u32>,
    /// Use only blocks of 2 MiB, or fail. `bytes` must be a multiple of that.
    pub huge: bool,
    /// Use only pages of `node`, or fail.
    pub strict_node: bool,
}

/// Memory that was allocated.
#[derive(Debug)]
pub struct Allocated {
    /// The only handle of the memory, which is freed when no descriptor, mapping or importer is left.
    pub dma_buf: OwnedFd,
    /// The wanted node if all pages are on it; else the other node with most of them.
    pub actual_node: Option<u32>,
    /// Bit n: some pages are on node n. Bit 63: some are on node 63 or a higher one.
    pub nodes: u64,
    /// The memory consists of contiguous blocks of at least so many bytes.
    pub block_bytes: u64,
}

/// What the module reports about one of its dma-bufs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaBufInfo {
    /// The size, a multiple of the page size.
    pub bytes: u64,
    /// As in [`Allocated`].
    pub actual_node: Option<u32>,
    /// As in [`Allocated`].
    pub nodes: u64,
    /// As in [`Allocated`].
    pub block_bytes: u64,
    /// How many mappings devices have.
    pub importers: u32,
    /// How many mappings processes have.
    pub mappings: u32,
    /// Revoked: an access through a mapping is a SIGBUS.
    pub is_revoked: bool,
    /// Revoked, and no importer keeps the memory.
    pub is_freed: bool,
    /// It belongs to the realm that asks.
    pub is_mine: bool,
}

impl Realm {
    /// Opens a new realm. Fails if the module has another version than this crate knows, or lacks a feature.
    pub fn open() -> Result<Realm, Error> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(DEVICE, flags, Mode::empty());
        let fd = fd.map_err(|error| Error::open(DEVICE, error))?;
        // SAFETY: GET_VERSION writes one `Version`, all of it integers. `fd` is the module's device by its name, which only
        // root can give.
        let call = unsafe { Getter::<GET_VERSION, abi::Version>::new() };
        // SAFETY: `fd` is `/dev/dmaplane-pool`, opened above, so the kernel takes this number as GET_VERSION and writes one `Version`
        // into `call`, which lives until `ioctl` returns.
        let version =
            unsafe { ioctl(&fd, call) }.map_err(|error| Error::call("GET_VERSION", error))?;
        if version.version != VERSION || version.features & FEATURES != FEATURES {
            return Err(Error::Version {
                device: DEVICE,
                found: format!(
                    "has version {} with features {:#x}",
                    version.version, version.features
                ),
                needed: format!("version {VERSION} with features {FEATURES:#x}"),
            });
        }
        Ok(Realm { fd })
    }

    /// Sets how many bytes the realm may have. A quota below its usage takes nothing away.
    pub fn set_quota(&self, bytes: u64) -> Result<(), Error> {
        let record = abi::Quota { bytes, reserved: 0 };
        // SAFETY: SET_QUOTA reads one `Quota`, integers without padding. `self.fd` is the module's device: only `open`
        // puts one there.
        let call = unsafe { Setter::<SET_QUOTA, abi::Quota>::new(record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as
        // SET_QUOTA and reads one `Quota` from `call`, which lives until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("SET_QUOTA", error))
    }

    /// The realm's quota and usage.
    pub fn usage(&self) -> Result<Usage, Error> {
        // SAFETY: GET_REALM writes one `Realm`, all of it integers. `self.fd` is the module's device: only `open`
        // puts one there.
        let call = unsafe { Getter::<GET_REALM, abi::Realm>::new() };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as
        // GET_REALM and writes one `Realm` into `call`, which lives until `ioctl` returns.
        let found =
            unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("GET_REALM", error))?;
        Ok(Usage {
            quota_bytes: found.quota_bytes,
            used_bytes: found.used_bytes,
            buffers: found.buffers,
        })
    }

    /// Allocates memory that is zero.
    pub fn alloc(&self, wanted: &Wanted) -> Result<Allocated, Error> {
        let mut record = abi::Alloc {
            size: wanted.bytes,
            // The kernel refuses a number that is no node.
            node: wanted
                .node
                .map_or(-1, |node| i32::try_from(node).unwrap_or(i32::MAX)),
            flags: (u32::from(wanted.huge) * HUGE) | (u32::from(wanted.strict_node) * STRICT_NODE),
            ..abi::Alloc::default()
        };
        // SAFETY: ALLOC reads and writes one `Alloc`, integers without unnamed padding. `self.fd` is the module's device: only
        // `open` puts one there.
        let call = unsafe { Updater::<ALLOC, abi::Alloc>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as ALLOC
        // and reads and writes one `Alloc`: `record`, which `call` borrows until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("ALLOC", error))?;
        // SAFETY: the call succeeded, so the descriptor is one that the kernel made for it just now, and nobody else's.
        let dma_buf = unsafe { OwnedFd::from_raw_fd(record.fd) };
        Ok(Allocated {
            dma_buf,
            actual_node: u32::try_from(record.actual_node).ok(),
            nodes: record.nodes,
            block_bytes: record.block_bytes,
        })
    }

    /// Revokes a dma-buf of this realm: takes its memory away from all processes, also from this one. Returns how many
    /// mappings of devices still keep the memory.
    ///
    /// # Safety
    /// Nobody in this process accesses the memory from now on: an access would be a SIGBUS.
    pub unsafe fn revoke(&self, dma_buf: BorrowedFd<'_>) -> Result<u32, Error> {
        let mut record = abi::Revoke {
            fd: dma_buf.as_raw_fd(),
            ..abi::Revoke::default()
        };
        // SAFETY: REVOKE reads and writes one `Revoke`, integers without unnamed padding. `self.fd` is the module's device:
        // only `open` puts one there.
        let call = unsafe { Updater::<REVOKE, abi::Revoke>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as REVOKE
        // and reads and writes one `Revoke`: `record`, which `call` borrows until `ioctl` returns. It also takes the dma-buf's
        // pages away, which nobody in this process accesses from now on: our caller promises that.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("REVOKE", error))?;
        Ok(record.importers)
    }

    /// Asks the module about a dma-buf of any of its realms. It refuses other dma-bufs.
    pub fn info(&self, dma_buf: BorrowedFd<'_>) -> Result<DmaBufInfo, Error> {
        let mut record = abi::Info {
            fd: dma_buf.as_raw_fd(),
            ..abi::Info::default()
        };
        // SAFETY: INFO reads and writes one `abi::Info`, integers without unnamed padding. `self.fd` is the module's device: only
        // `open` puts one there.
        let call = unsafe { Updater::<INFO, abi::Info>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as INFO and
        // reads and writes one `abi::Info`: `record`, which `call` borrows until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("INFO", error))?;
        Ok(DmaBufInfo {
            bytes: record.size,
            actual_node: u32::try_from(record.actual_node).ok(),
            nodes: record.nodes,
            block_bytes: record.block_bytes,
            importers: record.importers,
            mappings: record.mappings,
            is_revoked: record.state & REVOKED != 0,
            is_freed: record.state & FREED != 0,
            is_mine: record.state & MINE != 0,
        })
    }

    /// Takes over a dma-buf of a closed realm of the same user. It counts against this realm's quota from now on.
    pub fn adopt(&self, dma_buf: BorrowedFd<'_>) -> Result<(), Error> {
        let mut record = abi::Adopt {
            fd: dma_buf.as_raw_fd(),
            ..abi::Adopt::default()
        };
        // SAFETY: ADOPT reads and may write one `Adopt`, integers without unnamed padding. `self.fd` is the module's device:
        // only `open` puts one there.
        let call = unsafe { Updater::<ADOPT, abi::Adopt>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as ADOPT
        // and reads and writes one `Adopt`: `record`, which `call` borrows until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("ADOPT", error))
    }
}
