//! Reports the memory that this process maps to an observer, which registers it with network cards.

use super::PoolMapping;
use rgaps_cuda::PinnedBuffer;
use rgaps_layout::GpuUuid;
use rgaps_pool::{is_dma_buf, Mapping, PoolError};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// An observer that registers memory with network cards, which read and write it directly. The daemon does not move the pages of
/// host pools that were reported.
pub trait HostMemory: fmt::Debug + Send + Sync + 'static {
    /// A segment was mapped for reading messages, at addresses that the mapping for writing does not share.
    fn mapped(&self, range: MappedRange);
    /// A publisher of this process may write messages to this range until the result is dropped, which happens before the range
    /// gets another owner. The range is leased, or staging memory from which messages are copied to a GPU.
    fn leased(&self, range: MappedRange) -> Box<dyn Send + Sync>;
    /// The same as [`mapped`](Self::mapped), on a GPU.
    fn gpu_mapped(&self, range: GpuRange) {
        let _ = range;
    }
    /// The same as [`leased`](Self::leased), on a GPU.
    fn gpu_leased(&self, range: GpuRange) -> Box<dyn Send + Sync> {
        Box::new(range)
    }
}

/// A range of host memory. It stays mapped as long as this value or a clone lives.
#[derive(Clone, Debug)]
pub struct MappedRange(Of);

#[derive(Clone, Debug)]
enum Of {
    Pool {
        mapping: Arc<PoolMapping>,
        offset: u64,
        bytes: u64,
    },
    Pinned(Arc<PinnedBuffer>),
}

impl MappedRange {
    /// None: the range is not mapped, or not in host memory of the CPU.
    pub(crate) fn new(mapping: &Arc<PoolMapping>, offset: u64, bytes: u64) -> Option<MappedRange> {
        let end = offset.checked_add(bytes)?;
        (mapping.is_host() && end <= mapping.mapped()).then(|| {
            MappedRange(Of::Pool {
                mapping: mapping.clone(),
                offset,
                bytes,
            })
        })
    }

    /// All of a buffer.
    pub(super) fn pinned(pages: &Arc<PinnedBuffer>) -> MappedRange {
        MappedRange(Of::Pinned(pages.clone()))
    }

    /// The address of its first byte.
    pub fn start(&self) -> *mut u8 {
        match &self.0 {
            Of::Pool {
                mapping, offset, ..
            } => (mapping.base() + offset) as *mut u8,
            Of::Pinned(pages) => pages.address() as *mut u8,
        }
    }

    /// Calls `then` while the range is mapped for writing: some cards refuse to register memory that is mapped read-only. `then`
    /// must not write the range, which has messages of other processes. None: the range cannot be mapped for writing.
    pub fn writable_while<T>(&self, then: impl FnOnce() -> T) -> Option<T> {
        match &self.0 {
            Of::Pool {
                mapping,
                offset,
                bytes,
            } => mapping.writable_while(*offset, *bytes, then),
            Of::Pinned(_) => Some(then()),
        }
    }

    /// The dma-buf that has the range, and the range's offset in it. None: its segment is not a dma-buf, or the range spans two.
    pub fn dma_buf(&self) -> Option<(Arc<OwnedFd>, u64)> {
        match &self.0 {
            Of::Pool {
                mapping,
                offset,
                bytes,
            } => mapping.dma_bufs().find(*offset, *bytes),
            Of::Pinned(_) => None,
        }
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Of::Pool { bytes, .. } => *bytes as usize,
            Of::Pinned(pages) => pages.bytes(),
        }
    }
}

/// The descriptors of a pool's segments that are dma-bufs. Kept only if the node has a [`HostMemory`].
#[derive(Debug, Default)]
pub(super) struct DmaBufs(Mutex<Vec<DmaBuf>>);

#[derive(Debug)]
struct DmaBuf {
    fd: Arc<OwnedFd>,
    offset: u64,
    bytes: u64,
}

impl DmaBufs {
    /// Keeps the descriptor of a segment that is a dma-buf. If the process has no free descriptor, the observer registers the segment
    /// by its address instead.
    pub(super) fn keep(&self, fd: BorrowedFd<'_>, offset: u64, bytes: u64) {
        if !is_dma_buf(fd) {
            return;
        }
        match fd.try_clone_to_owned() {
            Ok(fd) => {
                let fd = Arc::new(fd);
                let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push(DmaBuf { fd, offset, bytes });
            }
            Err(error) => tracing::warn!(%error, "the descriptor of a dma-buf was not kept"),
        }
    }

    fn find(&self, offset: u64, bytes: u64) -> Option<(Arc<OwnedFd>, u64)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |of: &&DmaBuf| (of.offset..of.offset + of.bytes).contains(&offset);
        let of = kept.iter().find(has)?;
        let inside = offset - of.offset;
        (inside + bytes <= of.bytes).then(|| (of.fd.clone(), inside))
    }
}

/// A range of a GPU's memory. It stays mapped as long as this value or a clone lives.
#[derive(Clone, Debug)]
pub struct GpuRange {
    mapping: Arc<PoolMapping>,
    offset: u64,
    bytes: u64,
}

impl GpuRange {
    /// None: the range is not mapped, or not on a GPU.
    pub(crate) fn new(mapping: &Arc<PoolMapping>, offset: u64, bytes: u64) -> Option<GpuRange> {
        let end = offset.checked_add(bytes)?;
        (mapping.gpu().is_some() && end <= mapping.mapped()).then(|| GpuRange {
            mapping: mapping.clone(),
            offset,
            bytes,
        })
    }

    /// The `CUdeviceptr` of its first byte.
    pub fn address(&self) -> u64 {
        self.mapping.base() + self.offset
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The GPU.
    pub fn gpu(&self) -> GpuUuid {
        let gpu = self.mapping.gpu();
        gpu.map_or(GpuUuid([0; 16]), |gpu| gpu.context().device().uuid)
    }

    /// Exports the range as a dma-buf that begins with its first byte.
    pub fn dmabuf(&self) -> Result<OwnedFd, PoolError> {
        match self.mapping.gpu() {
            Some(gpu) => gpu.dmabuf(self.offset, self.bytes),
            None => Err(PoolError::Untrusted("it is on no GPU".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_in_its_segment_and_in_no_two() {
        let fd = Arc::new(rgaps_pool::create_sealed_memfd("rgaps-test", 4096).unwrap());
        let of = |offset, bytes| DmaBuf {
            fd: fd.clone(),
            offset,
            bytes,
        };
        // The segment from 100 on is no dma-buf.
        let bufs = DmaBufs(Mutex::new(vec![of(0, 100), of(200, 50)]));
        let find = |offset, bytes| bufs.find(offset, bytes).map(|(_, at)| at);
        assert_eq!(find(0, 100), Some(0));
        assert_eq!(find(210, 40), Some(10));
        assert_eq!(find(90, 11), None);
        assert_eq!(find(100, 10), None);
        assert_eq!(find(250, 1), None);
    }
}
