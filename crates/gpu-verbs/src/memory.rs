//! Memory that both kernels and a card read and write.

use crate::GpuVerbsError;
use rgaps_cuda::{Context, CudaMapping, CudaSource, Driver, Registered};
use rgaps_layout::Domain;
use rgaps_pool::{Access, Mapping, SegmentSource};
use rgaps_verbs::{Allocation, Memory as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// The largest page size of a host. Host memory is a multiple of it.
const PAGE_BYTES: u64 = 64 << 10;
/// Size and alignment of the largest atomic, in bytes.
const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// Memory that is zeroed at first and that kernels reach: GPU memory, or host memory, which is pinned if kernels run on a GPU.
pub struct ZeroedMemory {
    storage: Storage,
    address: u64,
    bytes: u64,
}

enum Storage {
    // Fields drop in this order: the registration before its pages.
    Host {
        _registered: Option<Registered>,
        pages: Arc<Allocation>,
    },
    Gpu(CudaMapping),
}

impl ZeroedMemory {
    /// Allocates host memory for the kernels of a domain: threads of this process, or kernels of a GPU.
    pub fn host(kernels: Domain, bytes: u64) -> Result<Arc<ZeroedMemory>, GpuVerbsError> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let pages = Allocation::new(bytes as usize);
        let registered = match kernels {
            Domain::Host => None,
            Domain::Cuda(uuid) => {
                let driver = Driver::load().map_err(|error| error.into_pool(uuid))?;
                let context =
                    Context::retain(driver, uuid).map_err(|error| error.into_pool(uuid))?;
                // SAFETY: `pages` is an allocation of whole pages. It is kept until the registration has ended: `Storage::Host` drops
                // the registration first.
                let registered =
                    unsafe { Registered::new(context, pages.start().cast(), pages.bytes()) };
                Some(registered.map_err(|error| error.into_pool(uuid))?)
            }
        };
        let address = match &registered {
            Some(registered) => registered.device_address(),
            None => pages.start() as u64,
        };
        let storage = Storage::Host {
            _registered: registered,
            pages,
        };
        Ok(Arc::new(ZeroedMemory {
            storage,
            address,
            bytes,
        }))
    }

    /// Allocates memory of a domain: GPU memory, or host memory.
    pub fn new(domain: Domain, bytes: u64) -> Result<Arc<ZeroedMemory>, GpuVerbsError> {
        let Domain::Cuda(uuid) = domain else {
            return ZeroedMemory::host(domain, bytes);
        };
        let driver = Driver::load().map_err(|error| error.into_pool(uuid))?;
        let mut source = CudaSource::new(driver.clone(), uuid)?;
        let unit = source.granularity();
        let segment = source.create(bytes.max(1).next_multiple_of(unit))?;
        let mapping = CudaMapping::new(driver, uuid, segment.bytes, Access::ReadWrite)?;
        mapping.extend(segment.fd.as_fd(), segment.bytes)?;
        mapping.write(0, &vec![0; segment.bytes as usize])?;
        Ok(Arc::new(ZeroedMemory {
            address: mapping.base(),
            bytes: segment.bytes,
            storage: Storage::Gpu(mapping),
        }))
    }

    /// The address of the first byte, as kernels see it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies bytes out of it. The copy may contain a part of a concurrent write.
    ///
    /// # Panics
    /// If the range lies outside of the memory, or the GPU is lost.
    pub fn read(&self, at: u64, into: &mut [u8]) {
        match &self.storage {
            Storage::Host { pages, .. } => pages.read(at as usize, into),
            Storage::Gpu(mapping) => mapping.read(at, into).expect("the GPU is there"),
        }
    }

    /// Copies bytes into it.
    ///
    /// # Panics
    /// If the range lies outside of the memory, or the GPU is lost.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        match &self.storage {
            Storage::Host { pages, .. } => pages.write(at as usize, bytes),
            Storage::Gpu(mapping) => mapping.write(at, bytes).expect("the GPU is there"),
        }
    }

    /// The host's pages, if it is host memory.
    pub(crate) fn pages(&self) -> Option<&Arc<Allocation>> {
        match &self.storage {
            Storage::Host { pages, .. } => Some(pages),
            Storage::Gpu(_) => None,
        }
    }

    /// A word of host memory, which kernels may change too. None if this is GPU memory, or the word lies outside or is not aligned.
    pub(crate) fn word(&self, at: u64) -> Option<&AtomicU64> {
        let pages = self.pages()?;
        if at % WORD_BYTES != 0 || at.checked_add(WORD_BYTES)? > self.bytes {
            return None;
        }
        // SAFETY: the word is aligned and inside of the allocation, which was just checked, and `self` keeps the allocation. Host and
        // kernels access these bytes only by atomics, or by copies that may be torn.
        Some(unsafe { AtomicU64::from_ptr(pages.start().add(at as usize).cast()) })
    }

    /// Half a word of host memory, for fields of a queue pair.
    ///
    /// # Panics
    /// If this is GPU memory, or the half word lies outside or is not aligned.
    pub(crate) fn half_word(&self, at: u64) -> &AtomicU32 {
        let pages = self.pages().expect("queues lie in host memory");
        assert!(at % 4 == 0 && at + 4 <= self.bytes);
        // SAFETY: the half word is aligned and inside of the allocation, which was just checked, and `self` keeps the allocation.
        // Host and kernels access the fields of queue pairs by atomics.
        unsafe { AtomicU32::from_ptr(pages.start().add(at as usize).cast()) }
    }

    /// Loads the doorbell. The caller then sees everything that kernels wrote before they rang it.
    pub(crate) fn load_bytes(&self, at: u64) -> [u8; 8] {
        let word = self.word(at).expect("queues lie in host memory");
        // SYNC POINT entries: pairs with the fences of `Words::ring` in rgaps/device_rdma.cuh.
        word.load(Ordering::Acquire).to_ne_bytes()
    }
}
