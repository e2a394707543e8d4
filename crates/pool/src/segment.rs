//! The traits and types through which all crates use pool memory of every domain.
//!
//! The daemon makes segments with a [`SegmentSource`]; a process that joined a pool reserves the
//! address range of the pool's cap and maps segments into it, one behind the other, with a
//! [`Mapping`]. Offsets are always from the start of the pool, so a block may span segments.

use rgaps_layout::Domain;
use std::os::fd::{BorrowedFd, OwnedFd};

/// How a process may access a pool's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// For subscribers.
    ReadOnly,
    /// For publishers.
    ReadWrite,
}

/// Size of the pages behind a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// The system's ordinary pages.
    Base,
    /// Huge pages of this many bytes.
    Huge(u64),
    /// The driver's pages of device memory.
    Device,
}

/// Which part of the system gives the memory of a host segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Provider {
    /// A sealed memfd.
    #[default]
    Memfd,
    /// A dma-buf that the kernel's `/dev/udmabuf` creates from a memfd.
    Udmabuf,
    /// A dma-buf of the kernel module dmaplane.
    Dmaplane,
}

impl Provider {
    /// Its name in the configuration and in listings.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Memfd => "memfd",
            Provider::Udmabuf => "udmabuf",
            Provider::Dmaplane => "dmaplane",
        }
    }

    /// Whether segments are files, which can be reopened read-only and can have holes. Otherwise they are dma-bufs,
    /// whose descriptors all allow reading and writing.
    pub fn gives_files(self) -> bool {
        self == Provider::Memfd
    }
}

/// The NUMA node that a segment was asked to be on, and how many of its pages are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numa {
    /// The node that was asked for.
    pub asked: u32,
    /// How many pages were examined. 0: the kernel did not report their nodes.
    pub sampled: u32,
    /// How many of the examined pages are on the node.
    pub on_node: u32,
}

/// The memory that a segment really got, as opposed to what was configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The provider of host memory. None: the memory is a GPU's.
    pub provider: Option<Provider>,
    /// The size of its pages.
    pub pages: PageSize,
    /// None: no node was asked for, or the segment was adopted.
    pub numa: Option<Numa>,
    /// One sentence for the user for each part of the configuration that could not be applied, with the reason.
    pub warnings: Vec<String>,
}

/// A piece of shared memory, with the descriptor by which processes map it.
#[derive(Debug)]
pub struct Segment {
    /// Passed to clients by SCM_RIGHTS.
    pub fd: OwnedFd,
    /// A multiple of the source's granularity.
    pub bytes: u64,
    /// Inode of a memfd or dma-buf, 0 for a device handle.
    pub inode: u64,
    /// The memory that it really got.
    pub placement: Placement,
}

/// A CUDA stream: a `CUstream` as an integer.
/// 0 is the GPU's default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream(pub u64);

impl Stream {
    /// No stream: no unfinished work uses the bytes. The array API standard's -1.
    pub const NONE: Stream = Stream(u64::MAX);
}

/// Why an operation on a pool failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A system call failed.
    #[error("{call} failed: {source}; {hint}")]
    System {
        /// The call.
        call: &'static str,
        /// Why.
        source: std::io::Error,
        /// What to do about it.
        hint: String,
    },
    /// A CUDA driver call failed.
    #[error("{call} failed: {name} ({code}); {hint}")]
    Cuda {
        /// The call.
        call: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// Its number.
        code: i32,
        /// What to do about it.
        hint: String,
    },
    /// This process cannot use the domain.
    #[error("domain {domain} cannot be used here: {reason}")]
    Unavailable {
        /// The domain.
        domain: Domain,
        /// Why, and what to do.
        reason: String,
    },
    /// A file descriptor from another process is not a valid segment.
    #[error("refused a segment from another process: {0}")]
    Untrusted(String),
    /// A range outside of the mapped memory, or of the message.
    #[error("bytes {offset}..{end} are outside the {mapped} mapped bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// One past the last.
        end: u64,
        /// Mapped bytes.
        mapped: u64,
    },
    /// A write through a read-only mapping.
    #[error("this process mapped the pool read-only, as a subscriber; only publishers may write")]
    ReadOnly,
    /// A segment or pool was asked for with an invalid size.
    #[error("a {what} cannot have {bytes} bytes; its size must be a multiple of {unit} bytes, above 0 and at most {most}")]
    BadSize {
        /// "segment" or "pool".
        what: &'static str,
        /// The size that was asked for.
        bytes: u64,
        /// Valid sizes are multiples of this.
        unit: u64,
        /// The largest valid size.
        most: u64,
    },
    /// The pool's reserved address range is used up.
    #[error("the pool has reached its cap of {cap} bytes; raise pool.host.cap or pool.cuda.cap in rgaps.toml")]
    CapReached {
        /// The cap.
        cap: u64,
    },
}

impl PoolError {
    pub(crate) fn system(
        call: &'static str,
        source: impl Into<std::io::Error>,
        hint: impl Into<String>,
    ) -> Self {
        PoolError::System {
            call,
            source: source.into(),
            hint: hint.into(),
        }
    }

    /// A failed system call of a provider other than memfd. Advises the user to set memfd as an alternative.
    pub(crate) fn provider(
        call: &'static str,
        source: impl Into<std::io::Error>,
        hint: &str,
    ) -> Self {
        let hint = format!("{hint}, or set pool.host.provider to \"memfd\"");
        PoolError::system(call, source, hint)
    }
}

/// Makes segments of one domain. The daemon has one for each pool.
pub trait SegmentSource: Send {
    /// The domain of its segments.
    fn domain(&self) -> Domain;
    /// Segment sizes are multiples of this, which is a multiple of
    /// [`SEGMENT_UNIT_BYTES`](rgaps_layout::SEGMENT_UNIT_BYTES).
    fn granularity(&self) -> u64;
    /// A new segment of `bytes` bytes, a multiple of [`granularity`](Self::granularity).
    fn create(&mut self, bytes: u64) -> Result<Segment, PoolError>;
    /// Takes over a segment that an earlier daemon created and a client kept. Checks all that can be
    /// checked: kind, seals, owner, size, and `inode` unless it is 0.
    fn adopt(&mut self, fd: OwnedFd, bytes: u64, inode: u64) -> Result<Segment, PoolError>;
    /// Returns the physical memory of a range of a segment to the system if the domain can do that.
    /// The bytes are unspecified afterwards.
    fn discard(&mut self, segment: &Segment, offset: u64, bytes: u64);
}

/// A pool as one process sees it: a reserved address range with segments mapped from its start.
///
/// All methods may be called from any thread; `extend` calls exclude one another.
pub trait Mapping: Send + Sync {
    /// The pool's domain.
    fn domain(&self) -> Domain;
    /// How this process may access the bytes.
    fn access(&self) -> Access;
    /// Address of the pool's first byte: a host pointer, or a `CUdeviceptr`.
    fn base(&self) -> u64;
    /// Bytes reserved.
    fn cap(&self) -> u64;
    /// Bytes mapped, from the start.
    fn mapped(&self) -> u64;
    /// Maps the next segment behind the mapped ones. Checks the descriptor first (kind, seals, size);
    /// the caller keeps it.
    fn extend(&self, fd: BorrowedFd<'_>, bytes: u64) -> Result<(), PoolError>;
    /// Copies host bytes into the pool; returns when the copy has finished.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PoolError>;
    /// Copies bytes of the pool to the host; returns when the copy has finished.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), PoolError>;
    /// Copies `bytes` bytes from an address that is valid in this process, on the host or on a
    /// device (the mapping finds out which), into the pool; returns when the copy has finished.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes until the call returns.
    unsafe fn write_from(&self, offset: u64, source: u64, bytes: u64) -> Result<(), PoolError>;
    /// Waits on the CPU until all work queued on `stream` so far has finished.
    fn synchronize(&self, stream: Stream) -> Result<(), PoolError>;
}
