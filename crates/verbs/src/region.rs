//! Memory that a device knows.

use crate::device::Device;
use crate::error::VerbsError;
use crate::fabric::{Access, Keys, Registration};
use std::alloc::Layout;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// What allocations begin at a multiple of.
const PAGE_BYTES: usize = 4096;

/// Memory that stays where it is.
///
/// # Safety
/// The bytes from `start` on stay valid for reads and writes by a device, at this address, as long as the value
/// lives, and nobody has a reference to them while a device or a peer may write them.
pub unsafe trait Memory: Send + Sync {
    /// Its first byte. (For memory of a dma-buf: the address by which the device is to know it.)
    fn start(&self) -> *mut u8;
    /// How many there are.
    fn bytes(&self) -> usize;
}

/// Zeroed memory of our own.
pub struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory of the allocator belongs to no thread, and `drop` alone frees it.
unsafe impl Send for Allocation {}
// SAFETY: address and length never change. `read` and `write` copy bytes and make no references: that what they copy
// may be torn is documented, and their callers check it.
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

    /// Copies bytes out of it; what a peer writes meanwhile may be there in part.
    ///
    /// # Panics
    /// If they lie outside.
    pub fn read(&self, from: usize, into: &mut [u8]) {
        assert!(from <= self.bytes() && into.len() <= self.bytes() - from);
        // SAFETY: inside, as was checked, and `into` is nobody else's.
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
        // SAFETY: inside, as was checked, and no reference to these bytes is ever made.
        unsafe {
            self.start
                .as_ptr()
                .add(from)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

// SAFETY: from the allocator until `drop`; `read` and `write` make no references.
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
        // SAFETY: allocated with this layout, and freed once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Registered memory. It keeps the memory and the device, and whatever is in flight keeps it.
pub struct Region {
    // The order of these fields is that of their end.
    registration: Box<dyn Registration>,
    memory: Arc<dyn Memory>,
    device: Arc<Device>,
    access: Access,
}

impl Region {
    /// Registers memory. Takes long (pages are pinned): once, never on a message's way.
    pub fn new(
        device: &Arc<Device>,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<Arc<Self>, VerbsError> {
        let (start, bytes) = (memory.start(), memory.bytes());
        // SAFETY: `Memory` promises that it stays, and it is kept beside the registration and longer.
        let registration = unsafe { device.fabric().register(start, bytes, access)? };
        Ok(Self::of(device, memory, access, registration))
    }

    /// Registers memory of a dma-buf, from an offset of it on: GPU memory, which `memory` keeps and whose
    /// address there is the one that peers are told.
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

    /// Its first byte's address, for whoever writes it from afar.
    pub fn address(&self) -> u64 {
        self.memory.start() as u64
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// What a peer needs to write it; none if it may not.
    pub fn remote_key(&self) -> Option<u32> {
        (self.access == Access::RemoteWrite).then(|| self.keys().remote)
    }

    /// The device that knows it.
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
