//! [`ZoneView`]: a zone as this process maps it.

use super::inherited::NotInherited;
use super::timelines::{warn_of, ZoneTimelines};
use super::{ClientError, Conductor, ForkGuard};
use rgaps_cuda::Context;
use rgaps_layout::{ControlHeader, RegistryHeader, CONTROL_BYTES, CONTROL_MAGIC, LAYOUT_VERSION};
use rgaps_pool::{verify_memfd, Access, SharedMap};
use rgaps_session::{ZoneGrant, ZoneId};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A zone: its control segment, mapped whole and for writing, and its registry. This process holds a lock on one byte of the
/// registry, by which the next daemon sees that the process lives.
pub(crate) struct ZoneView {
    id: ZoneId,
    grant: ZoneGrant,
    // Not dropped in a forked child, which lacks the mapping, and where other files may have the descriptors' numbers.
    control: ManuallyDrop<SharedMap>,
    control_fd: ManuallyDrop<NotInherited<OwnedFd>>,
    registry: ManuallyDrop<NotInherited<OwnedFd>>,
    /// The timelines on streams. Some(None): streams cannot be ordered, and publishing waits on the CPU.
    order: ManuallyDrop<OnceLock<Option<ZoneTimelines>>>,
    /// Why no daemon serves the zone any more. Unset: one does.
    lost: OnceLock<String>,
    /// A CUDA context of this process is lost, and the daemon was told or is being told.
    gpu_lost: AtomicBool,
    guard: ForkGuard,
}

impl fmt::Debug for ZoneView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneView")
            .field("id", &format_args!("{:032x}", self.id))
            .field("client_index", &self.grant.client_index)
            .field("lost", &self.lost.get())
            .finish_non_exhaustive()
    }
}

impl ZoneView {
    /// Checks and maps the descriptors that came with a join, and takes the lock on the registry.
    pub(super) fn new(
        id: ZoneId,
        grant: ZoneGrant,
        registry: OwnedFd,
        control: OwnedFd,
        guard: ForkGuard,
    ) -> Result<ZoneView, ClientError> {
        verify_memfd(registry.as_fd(), RegistryHeader::bytes())?;
        let map = SharedMap::new(control.as_fd(), CONTROL_BYTES, Access::ReadWrite)?;
        check_header(&map, id)?;
        lock_byte(registry.as_fd(), u64::from(grant.client_index))?;
        Ok(ZoneView {
            id,
            grant,
            control: ManuallyDrop::new(map),
            control_fd: ManuallyDrop::new(NotInherited::new(control)),
            registry: ManuallyDrop::new(NotInherited::new(registry)),
            order: ManuallyDrop::default(),
            lost: OnceLock::new(),
            gpu_lost: AtomicBool::new(false),
            guard,
        })
    }

    /// The zone's random number.
    pub(crate) fn id(&self) -> ZoneId {
        self.id
    }

    /// This process's index and random number in the registry.
    pub(crate) fn grant(&self) -> ZoneGrant {
        self.grant
    }

    /// Start of the control segment, `CONTROL_BYTES` long, writable, aligned to a page; mapped as
    /// long as this value lives, but not in a forked child.
    #[inline]
    pub(crate) fn control(&self) -> NonNull<u8> {
        self.control.base()
    }

    /// The zone's timelines for streams of a GPU, made on first use. None: streams of that GPU cannot be ordered, and callers wait for
    /// them on the CPU.
    pub(crate) fn order(&self, context: &Arc<Context>) -> Option<&ZoneTimelines> {
        let order = self.order.get_or_init(|| {
            // SAFETY: `drop` drops `order` before it unmaps the control segment, and a forked child drops neither.
            let order = unsafe { ZoneTimelines::new(self, context) };
            order.inspect_err(warn_of).ok()
        });
        order.as_ref().filter(|order| order.is_able(context))
    }

    /// The zone's timelines, if a stream has used them. None: no stream has, or they do not work.
    pub(crate) fn known_order(&self) -> Option<&ZoneTimelines> {
        self.order.get()?.as_ref()
    }

    /// Tells the daemon, once, that a CUDA context of this process is lost: its work has ended, so others must not wait for it.
    pub(crate) fn gpu_is_lost(&self, conductor: &Conductor) {
        if self.gpu_lost.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!("this process's CUDA context is lost; its unfinished messages are aborted");
        // The daemon will free all blocks that this process's GPU work holds, so first finish the work on its other GPUs.
        if let Some(order) = self.known_order() {
            order.finish_others();
        }
        if let Err(error) = conductor.gpu_lost(self.id) {
            tracing::warn!(%error, "telling the daemon about the lost context failed");
        }
        if let Some(order) = self.known_order() {
            order.forget();
        }
    }

    /// Whether a CUDA context of this process is lost.
    pub(crate) fn is_gpu_lost(&self) -> bool {
        self.gpu_lost.load(Ordering::Acquire)
    }

    /// Why no daemon serves the zone any more. None: the zone is not lost.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    pub(super) fn set_lost(&self, reason: &str) {
        // Keep the first reason; it explains later ones.
        let _ = self.lost.set(reason.to_owned());
    }

    pub(super) fn check_not_lost(&self) -> Result<(), ClientError> {
        match self.lost() {
            Some(reason) => Err(ClientError::ZoneLost {
                reason: reason.to_owned(),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn control_fd(&self) -> BorrowedFd<'_> {
        self.control_fd.as_fd()
    }

    /// Opens the registry again for handing it back. The lock belongs to the open file: with a duplicate of this process's descriptor
    /// the daemon would keep the lock after this process has died.
    pub(super) fn registry_to_hand_back(&self) -> Result<OwnedFd, ClientError> {
        let path = format!("/proc/self/fd/{}", self.registry.as_fd().as_raw_fd());
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, rustix::fs::Mode::empty()) {
            Ok(fd) => Ok(fd),
            // Without /proc send a duplicate: the lock then outlives this process until the daemon closes the duplicate.
            Err(_) => rustix::io::fcntl_dupfd_cloexec(self.registry.as_fd(), 3)
                .map_err(ClientError::system("fcntl(F_DUPFD_CLOEXEC)")),
        }
    }
}

impl Drop for ZoneView {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return;
        }
        // SAFETY: `drop` runs once, only `drop` drops these fields, and nothing uses them afterwards. `order` goes before `control`.
        unsafe {
            ManuallyDrop::drop(&mut self.order);
            ManuallyDrop::drop(&mut self.control);
            ManuallyDrop::drop(&mut self.control_fd);
            ManuallyDrop::drop(&mut self.registry);
        }
    }
}

fn check_header(map: &SharedMap, id: ZoneId) -> Result<(), ClientError> {
    // SAFETY: `map` is longer than the header and aligned to a page, and every bit pattern is a valid header of integers. The daemon
    // wrote the header before it sent the descriptor. If another member overwrites it meanwhile, only the check below may fail.
    let header: ControlHeader = unsafe { map.base().cast::<ControlHeader>().read_volatile() };
    if header.magic != CONTROL_MAGIC
        || header.version != LAYOUT_VERSION
        || header.bytes != CONTROL_BYTES
        || header.zone_id != id.to_le_bytes()
    {
        return Err(ClientError::Protocol(
            "the control segment has another version or zone in its header".to_owned(),
        ));
    }
    Ok(())
}

/// Takes a read lock on one byte for the open file (OFD lock). The lock ends when the last descriptor of this open file is closed, at
/// the latest with this process.
fn lock_byte(fd: BorrowedFd<'_>, byte: u64) -> Result<(), ClientError> {
    // SAFETY: an all-zero `flock` is a valid value of that plain struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = byte as _;
    lock.l_len = 1;
    loop {
        // SAFETY: `fd` is borrowed, so it is open, and `lock` is the valid `flock` that F_OFD_SETLK reads.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
            return Ok(());
        }
        let source = std::io::Error::last_os_error();
        if source.kind() != std::io::ErrorKind::Interrupted {
            return Err(ClientError::System {
                call: "fcntl(F_OFD_SETLK) on the registry",
                source,
            });
        }
    }
}
