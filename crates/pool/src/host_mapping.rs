//! A pool of host memory in one process's address space, for all providers.

use crate::dma_buf::inspect_segment;
use crate::fork::ReservedInChildren;
use crate::memfd::HUGE_BYTES;
use crate::segment::{Access, Mapping, PageSize, PoolError, Stream};
use crate::shared_map::{keep_private, map_hint, protection};
use rgaps_layout::{Domain, MAX_POOL_BYTES, SEGMENT_UNIT_BYTES};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Pools of at least this size start at a multiple of it, so that pages of 1 GiB fit.
const GIANT_BYTES: usize = 1 << 30;

/// A reserved address range with sealed memfds, or dma-bufs, mapped from its start.
///
/// The range does not move until the value is dropped, so an address computed from a pool offset stays
/// valid. Forked children do not inherit it (see `fork`), and core dumps leave it out.
#[derive(Debug)]
pub struct HostMapping {
    base: NonNull<u8>,
    cap: usize,
    access: Access,
    /// Bytes mapped, from the start. Stored with Release after a segment is mapped, loaded with Acquire before one is used.
    mapped: AtomicU64,
    /// Locked while extending. False when other code may have mapped the addresses behind the mapped
    /// part (see `map_fixed`).
    reserved: Mutex<bool>,
    /// None only during drop.
    in_children: Option<ReservedInChildren>,
}

// SAFETY: the address range belongs to the process, not to a thread, and only `drop` unmaps it. Loans and
// samples order the accesses of threads to the bytes.
unsafe impl Send for HostMapping {}
// SAFETY: methods by `&self` use addresses below `mapped`, which is atomic and only grows; `extend`, which raises it,
// holds the mutex. Loans and samples order the accesses of threads to the bytes.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    /// Reserves `cap` bytes of addresses, rounded up to whole segment units. Allocates no memory.
    pub fn new(cap: u64, access: Access) -> Result<Self, PoolError> {
        let bad = PoolError::BadSize {
            what: "pool",
            bytes: cap,
            unit: SEGMENT_UNIT_BYTES,
            most: MAX_POOL_BYTES,
        };
        if cap == 0 || cap > MAX_POOL_BYTES {
            return Err(bad);
        }
        let rounded = cap.next_multiple_of(SEGMENT_UNIT_BYTES);
        let Ok(cap) = usize::try_from(rounded) else {
            return Err(bad);
        };
        let align = if cap >= GIANT_BYTES {
            GIANT_BYTES
        } else {
            HUGE_BYTES as usize
        };
        let base = reserve_aligned(cap, align)?;
        // SAFETY: `reserve_aligned` just mapped the range for us, and no one else has its address yet.
        unsafe { keep_private(base.as_ptr().cast(), cap) };
        Ok(HostMapping {
            base,
            cap,
            access,
            mapped: AtomicU64::new(0),
            reserved: Mutex::new(true),
            in_children: Some(ReservedInChildren::new(base, cap)),
        })
    }

    /// The address of a range. Fails unless all of it is mapped.
    fn locate(&self, offset: u64, bytes: u64) -> Result<*mut u8, PoolError> {
        let mapped = self.mapped();
        let end = offset.saturating_add(bytes);
        if end > mapped {
            return Err(PoolError::OutOfRange {
                offset,
                end,
                mapped,
            });
        }
        // SAFETY: `offset <= mapped <= cap`, the length of the range that `base` starts.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    fn locate_for_writing(&self, offset: u64, bytes: u64) -> Result<*mut u8, PoolError> {
        match self.access {
            Access::ReadOnly => Err(PoolError::ReadOnly),
            Access::ReadWrite => self.locate(offset, bytes),
        }
    }

    /// Calls `then` while a read-only range is mapped writable: for drivers that refuse to register read-only memory, though
    /// they only read it. Fails if a segment's descriptor does not allow writing.
    pub fn writable_while<T>(
        &self,
        offset: u64,
        bytes: u64,
        then: impl FnOnce() -> T,
    ) -> Result<T, PoolError> {
        // One call at a time: the first to end would make the range read-only for the others.
        let _one = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let address = self.locate(offset, bytes)?;
        let protect = |access| {
            let flags = match access {
                Access::ReadOnly => MprotectFlags::READ,
                Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
            };
            // SAFETY: `locate` found the range mapped, and it stays so while `self` lives. Readers may go on: the range is
            // readable before, during and after the change.
            unsafe { rustix::mm::mprotect(address.cast(), bytes as usize, flags) }
        };
        protect(Access::ReadWrite).map_err(|error| {
            PoolError::system("mprotect", error, "its descriptor is for reading only")
        })?;
        let done = then();
        if let Err(error) = protect(self.access) {
            tracing::warn!(%error, "memory that is only read here stays writable for this process");
        }
        Ok(done)
    }

    /// Maps a segment at `offset`, where the mapped part ends.
    fn map_fixed(
        &self,
        reserved: &mut bool,
        fd: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
    ) -> Result<(), PoolError> {
        // SAFETY: `offset + bytes <= cap` was checked by `extend`.
        let address = unsafe { self.base.as_ptr().add(offset) }.cast();
        // SAFETY: the range lies in our reservation, behind the mapped part, so the call replaces only
        // reserved addresses; `extend` holds the mutex, so no other call maps there. The file cannot shrink: `extend` has
        // checked its seals, or that it is a dma-buf that keeps its pages. NORESERVE is safe for huge pages, since the
        // daemon allocated all of them when it created the segment.
        let placed = unsafe {
            rustix::mm::mmap(
                address,
                bytes,
                protection(self.access),
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                fd,
                0,
            )
        };
        if let Err(error) = placed {
            // Some kernels remove the reservation before they fail, so we reserve again. If that fails,
            // another thread has mapped the addresses, or the reservation was never removed. We cannot
            // distinguish the two, so we give the addresses up.
            // SAFETY: FIXED_NOREPLACE replaces no existing mapping.
            *reserved = unsafe { reserve(address, bytes, MapFlags::FIXED_NOREPLACE) }.is_ok();
            return Err(PoolError::system("mmap", error, map_hint(bytes as u64)));
        }
        // SAFETY: we mapped the range just now, and `mapped` does not cover it yet, so no one uses it.
        unsafe { keep_private(address, bytes) };
        Ok(())
    }
}

impl Mapping for HostMapping {
    fn domain(&self) -> Domain {
        Domain::Host
    }

    fn access(&self) -> Access {
        self.access
    }

    fn base(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    fn cap(&self) -> u64 {
        self.cap as u64
    }

    fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Acquire)
    }

    fn extend(&self, fd: BorrowedFd<'_>, bytes: u64) -> Result<(), PoolError> {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = self.mapped();
        if bytes == 0 || bytes % SEGMENT_UNIT_BYTES != 0 {
            let (unit, most) = (SEGMENT_UNIT_BYTES, self.cap());
            return Err(PoolError::BadSize {
                what: "segment",
                bytes,
                unit,
                most,
            });
        }
        if bytes > self.cap() - mapped {
            return Err(PoolError::CapReached { cap: self.cap() });
        }
        if !*reserved {
            let hint = "the pool cannot grow in this process any more; open it again";
            return Err(PoolError::system("mmap", rustix::io::Errno::NOMEM, hint));
        }
        let found = inspect_segment(fd, bytes)?;
        if let PageSize::Huge(page) = found.pages {
            let start = self.base() + mapped;
            if page == 0 || start % page != 0 || bytes % page != 0 {
                let why = format!("its pages of {page} bytes do not fit its place in the pool");
                return Err(PoolError::Untrusted(why));
            }
        }
        self.map_fixed(&mut reserved, fd, mapped as usize, bytes as usize)?;
        if found.pages == PageSize::Base && found.provider.gives_files() {
            // SAFETY: `map_fixed` mapped the range. The advice changes no bytes, and does nothing if
            // transparent huge pages are off for shared memory.
            let _ = unsafe {
                let address = self.base.as_ptr().add(mapped as usize).cast();
                rustix::mm::madvise(address, bytes as usize, Advice::LinuxHugepage)
            };
        }
        self.mapped.store(mapped + bytes, Ordering::Release);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        let target = self.locate_for_writing(offset, bytes.len() as u64)?;
        // SAFETY: `locate_for_writing` has checked that the range is mapped read-write, which it stays while
        // `self` lives. `bytes` may be a slice of this pool; `copy` allows overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError> {
        let source = self.locate(offset, bytes.len() as u64)?;
        // SAFETY: `locate` has checked that the range is mapped, which it stays while `self` lives. `bytes` may be a slice
        // of this pool; `copy` allows overlap.
        unsafe { std::ptr::copy(source, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn write_from(&self, offset: u64, source: u64, bytes: u64) -> Result<(), PoolError> {
        let target = self.locate_for_writing(offset, bytes)?;
        let source = std::ptr::with_exposed_provenance::<u8>(source as usize);
        if bytes > 0 {
            // SAFETY: our caller promises `bytes` readable bytes at `source` until we return; `locate_for_writing` has
            // checked the target. The source may lie in this pool; `copy` allows overlap.
            unsafe { std::ptr::copy(source, target, bytes as usize) };
        }
        Ok(())
    }

    /// Does nothing: host memory has no streams, and its writers have finished when they return.
    fn synchronize(&self, _stream: Stream) -> Result<(), PoolError> {
        Ok(())
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // Before unmapping: another mapping may then use the addresses at once.
        self.in_children = None;
        let reserved = *self
            .reserved
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let bytes = if reserved {
            self.cap
        } else {
            *self.mapped.get_mut() as usize
        };
        if bytes == 0 {
            return;
        }
        // SAFETY: the range is the reservation that `new` made and the segments in it, without the part that
        // may belong to others (`reserved`). Users of its addresses keep this value alive. In a forked
        // child the range is reserved, or nothing is mapped there.
        let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(result.is_ok(), "munmap of an own reservation: {result:?}");
    }
}

/// Reserves addresses without memory: at `address`, or where the kernel chooses if it is null.
///
/// # Safety
/// With an address, `how` is not `FIXED`, so that no mapping is replaced.
unsafe fn reserve(
    address: *mut std::ffi::c_void,
    bytes: usize,
    how: MapFlags,
) -> rustix::io::Result<*mut std::ffi::c_void> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | how;
    // SAFETY: no mapping is replaced: without an address the kernel chooses free ones, and with one `how` is not `FIXED`,
    // as our caller promises.
    unsafe { rustix::mm::mmap_anonymous(address, bytes, ProtFlags::empty(), flags) }
}

/// Reserves `bytes` addresses that start at a multiple of `align`: reserves more, then unmaps both ends.
fn reserve_aligned(bytes: usize, align: usize) -> Result<NonNull<u8>, PoolError> {
    let failed = |e| PoolError::system("mmap", e, map_hint((bytes + align) as u64));
    // SAFETY: no address is given.
    let raw = unsafe { reserve(std::ptr::null_mut(), bytes + align, MapFlags::empty()) }
        .map_err(failed)?;
    let head = raw.addr().next_multiple_of(align) - raw.addr();
    let tail = align - head;
    // SAFETY: `head <= align`, so the result lies in the reservation.
    let base = unsafe { raw.byte_add(head) };
    // SAFETY: both ranges are ends of the reservation just made, whose address no one else has yet.
    unsafe {
        if head > 0 {
            rustix::mm::munmap(raw, head).map_err(failed)?;
        }
        if tail > 0 {
            rustix::mm::munmap(base.byte_add(bytes), tail).map_err(failed)?;
        }
    }
    Ok(NonNull::new(base.cast()).expect("mmap gives no null address"))
}
