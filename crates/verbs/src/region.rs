//! Registered memory: what may be registered, an allocation for it, and a registration that keeps its memory.

use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::{Access, Keys, Registration};
use std::alloc::Layout;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// The alignment of allocations.
const PAGE_BYTES: usize = 4096;

/// Memory at a fixed address, which a device may use.
///
/// # Safety
/// The bytes from `start` on stay valid for reads and writes by a device, at this address, as long as the value
/// lives, and nobody has a reference to them while a device or a peer may write them.
pub unsafe trait Memory: Send + Sync {
    /// The address of its first byte. (For memory of a dma-buf: the address by which works and peers name it.)
    fn start(&self) -> *mut u8;
    /// Its size.
    fn bytes(&self) -> usize;
}

/// Memory of the process's allocator, zeroed.
pub struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory of the allocator belongs to no thread, and `drop` alone frees it.
unsafe impl Send for Allocation {}
// SAFETY: address and length never change. `read` and `write` copy bytes and make no references. A copy may be torn if
// somebody writes meanwhile; that is documented, and callers check what they copied.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// So many bytes, at least one, at the start of a page.
    pub fn new(bytes: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(bytes.max(1), PAGE_BYTES);
        let layout = layout.expect("no memory is that large");
        // SAFETY: the layout has at least one byte.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Arc::new(Self { start, layout })
    }

    /// Copies bytes out of it. If a peer writes meanwhile, the copy may have some old and some new bytes.
    ///
    /// # Panics
    /// If they lie outside.
    pub fn read(&self, from: usize, into: &mut [u8]) {
        assert!(from <= self.bytes() && into.len() <= self.bytes() - from);
        // SAFETY: the assertion checked that the range lies inside the allocation, which lives until `drop`. `into` is a
        // unique reference, so it does not overlap the range.
        unsafe {
            into.as_mut_ptr()
                .copy_from_nonoverlapping(self.start.as_ptr().add(from), into.len())
        };
    }

    /// Copies bytes into it.
    ///
    /// # Panics
    /// If they lie outside.
    pub fn write(&self, from: usize, bytes: &[u8]) {
        assert!(from <= self.bytes() && bytes.len() <= self.bytes() - from);
        // SAFETY: the assertion checked that the range lies inside the allocation, which lives until `drop`. Nobody ever makes
        // a reference to its bytes, so `bytes` does not overlap them.
        unsafe {
            self.start
                .as_ptr()
                .add(from)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

// SAFETY: the allocator's block stays until `drop`, and `read` and `write` make no references to it.
unsafe impl Memory for Allocation {
    fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the block with this layout, and only this `drop` frees it.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Registered memory. A region keeps its memory and its device; channels keep the regions of works in flight.
pub struct Region {
    // Fields are dropped in this order: the registration must end before the memory.
    registration: Box<dyn Registration>,
    memory: Arc<dyn Memory>,
    device: Arc<Device>,
    access: Access,
}

impl Region {
    /// Registers memory. This takes long, since the kernel pins pages: do it once, not for each message.
    pub fn new(
        device: &Arc<Device>,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<Arc<Self>, VerbsError> {
        let (start, bytes) = (memory.start(), memory.bytes());
        // SAFETY: an implementation of `Memory` promises that the bytes stay valid as long as the value lives. The region keeps
        // the value, and drops it after the registration.
        let registration = unsafe { device.fabric().register(start, bytes, access)? };
        Ok(Self::of(device, memory, access, registration))
    }

    /// Registers memory of a dma-buf, such as GPU memory, from `offset` on. `memory` keeps the buffer's memory; its
    /// `start` is the address by which works and peers name it.
    pub fn of_dmabuf(
        device: &Arc<Device>,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<Arc<Self>, VerbsError> {
        let (address, bytes) = (memory.start() as u64, memory.bytes());
        let fabric = device.fabric();
        let registration = fabric.register_dmabuf(dmabuf, offset, bytes, address, access)?;
        Ok(Self::of(device, memory, access, registration))
    }

    fn of(
        device: &Arc<Device>,
        memory: Arc<dyn Memory>,
        access: Access,
        registration: Box<dyn Registration>,
    ) -> Arc<Self> {
        Arc::new(Self {
            registration,
            memory,
            device: Arc::clone(device),
            access,
        })
    }

    pub(crate) fn keys(&self) -> Keys {
        self.registration.keys()
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.start()
    }

    /// The address of its first byte, which a peer needs to write it.
    pub fn address(&self) -> u64 {
        self.memory.start() as u64
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The key that a peer needs to write it; `None` if peers may not.
    pub fn remote_key(&self) -> Option<u32> {
        (self.access == Access::RemoteWrite).then(|| self.keys().remote)
    }

    /// The device that it is registered with.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("address", &self.address())
            .field("bytes", &self.bytes())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
