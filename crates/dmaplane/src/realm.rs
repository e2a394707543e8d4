//! `/dev/dmaplane-pool`: memory with a quota, as dma-bufs that can be taken back.

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
/// `DMAPLANE_POOL_HAS_REVOKE`, `DMAPLANE_POOL_HAS_ADOPT`.
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

/// An open file of the device, with a quota that begins at 0. What it allocated stays when it is closed.
#[derive(Debug)]
pub struct Realm {
    fd: OwnedFd,
}

/// What a realm has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// What it may have.
    pub quota_bytes: u64,
    /// What it has. Revoked memory counts until it is free.
    pub used_bytes: u64,
    /// Its dma-bufs.
    pub buffers: u32,
}

/// Memory to be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// Rounded up to whole pages.
    pub bytes: u64,
    /// The NUMA node. None: any.
    pub node: Option<u32>,
    /// Only whole blocks of 2 MiB, of which `bytes` is a multiple; or the call fails.
    pub huge: bool,
    /// Only pages of `node`; or the call fails.
    pub strict_node: bool,
}

/// Memory that was allocated.
#[derive(Debug)]
pub struct Allocated {
    /// Its only handle. The memory is free when no descriptor, mapping or importer is left.
    pub dma_buf: OwnedFd,
    /// The node that was asked for, if all pages are there; else the other one with most of them.
    pub actual_node: Option<u32>,
    /// Bit n: some pages are on node n. Bit 63: on nodes from 63 on.
    pub nodes: u64,
    /// All of it is in contiguous blocks at least so large.
    pub block_bytes: u64,
}

/// What the module says of a dma-buf of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// Of whole pages.
    pub bytes: u64,
    /// As in [`Allocated`].
    pub actual_node: Option<u32>,
    /// As in [`Allocated`].
    pub nodes: u64,
    /// As in [`Allocated`].
    pub block_bytes: u64,
    /// Mappings of devices.
    pub importers: u32,
    /// Mappings of processes.
    pub mappings: u32,
    /// An access through a mapping is a SIGBUS.
    pub is_revoked: bool,
    /// It is revoked, and no importer keeps its memory.
    pub is_freed: bool,
    /// It is of the realm that asked.
    pub is_mine: bool,
}

impl Realm {
    /// Opens a realm, if the module is of the version that this crate knows.
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

    /// Sets what the realm may have. Less than it has takes nothing away.
    pub fn set_quota(&self, bytes: u64) -> Result<(), Error> {
        let record = abi::Quota { bytes, reserved: 0 };
        // SAFETY: SET_QUOTA reads one `Quota`, integers without padding. `self.fd` is the module's device: only `open`
        // puts one there.
        let call = unsafe { Setter::<SET_QUOTA, abi::Quota>::new(record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as SET_QUOTA and reads one
        // `Quota` from `call`, which lives until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("SET_QUOTA", error))
    }

    /// What the realm has.
    pub fn usage(&self) -> Result<Usage, Error> {
        // SAFETY: GET_REALM writes one `Realm`, all of it integers. `self.fd` is the module's device: only `open`
        // puts one there.
        let call = unsafe { Getter::<GET_REALM, abi::Realm>::new() };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as GET_REALM and writes one
        // `Realm` into `call`, which lives until `ioctl` returns.
        let found =
            unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("GET_REALM", error))?;
        Ok(Usage {
            quota_bytes: found.quota_bytes,
            used_bytes: found.used_bytes,
            buffers: found.buffers,
        })
    }

    /// Allocates zeros.
    pub fn alloc(&self, wanted: &Wanted) -> Result<Allocated, Error> {
        let mut record = abi::Alloc {
            size: wanted.bytes,
            // A number that is none of the kernel's is refused there.
            node: wanted
                .node
                .map_or(-1, |node| i32::try_from(node).unwrap_or(i32::MAX)),
            flags: (u32::from(wanted.huge) * HUGE) | (u32::from(wanted.strict_node) * STRICT_NODE),
            ..abi::Alloc::default()
        };
        // SAFETY: ALLOC reads and writes one `Alloc`, integers without unnamed padding. `self.fd` is the module's device: only
        // `open` puts one there.
        let call = unsafe { Updater::<ALLOC, abi::Alloc>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as ALLOC and reads and writes
        // one `Alloc`: `record`, which `call` borrows until `ioctl` returns.
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

    /// Takes the memory of a dma-buf of this realm away from everybody, also from this process. Returns how many mappings
    /// of devices still keep it.
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
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as REVOKE and reads and writes
        // one `Revoke`: `record`, which `call` borrows until `ioctl` returns. It also takes the dma-buf's pages away, which nobody in this
        // process accesses from now on: our caller promises that.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("REVOKE", error))?;
        Ok(record.importers)
    }

    /// What the module says of a dma-buf of any realm. It refuses others.
    pub fn info(&self, dma_buf: BorrowedFd<'_>) -> Result<Info, Error> {
        let mut record = abi::Info {
            fd: dma_buf.as_raw_fd(),
            ..abi::Info::default()
        };
        // SAFETY: INFO reads and writes one `Info`, integers without unnamed padding. `self.fd` is the module's device: only
        // `open` puts one there.
        let call = unsafe { Updater::<INFO, abi::Info>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as INFO and reads and writes
        // one `Info`: `record`, which `call` borrows until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("INFO", error))?;
        Ok(Info {
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

    /// Takes over a dma-buf of a realm of the same user that is closed. It counts against this realm's quota from now on.
    pub fn adopt(&self, dma_buf: BorrowedFd<'_>) -> Result<(), Error> {
        let mut record = abi::Adopt {
            fd: dma_buf.as_raw_fd(),
            ..abi::Adopt::default()
        };
        // SAFETY: ADOPT reads and may write one `Adopt`, integers without unnamed padding. `self.fd` is the module's device:
        // only `open` puts one there.
        let call = unsafe { Updater::<ADOPT, abi::Adopt>::new(&mut record) };
        // SAFETY: `self.fd` is `/dev/dmaplane-pool`, which `open` alone puts there, so the kernel takes this number as ADOPT and reads and writes
        // one `Adopt`: `record`, which `call` borrows until `ioctl` returns.
        unsafe { ioctl(&self.fd, call) }.map_err(|error| Error::call("ADOPT", error))
    }
}
