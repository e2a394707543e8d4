//! Physical GPU memory: a memfd whose name says whose memory it is.

use crate::abi::Code;
use crate::call::Global;
use crate::config::Gpu;
use std::ffi::{c_int, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Sizes of memory and of mappings are multiples of this, as on every GPU that we know.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// What the names of our memfds start with; the UUID and a mark for NIC-capable memory follow.
const NAME: &str = "rgaps-test-gpu:";

/// Memory of one GPU, alive for as long as a descriptor or mapping is left in any process.
#[derive(Debug)]
pub(crate) struct Physical {
    file: OwnedFd,
    pub(crate) bytes: u64,
    /// Position of its GPU.
    pub(crate) position: usize,
    pub(crate) gpu_direct_rdma: bool,
}

impl Physical {
    pub(crate) fn create(
        global: &Global,
        position: usize,
        bytes: u64,
        gpu_direct_rdma: bool,
    ) -> Result<Physical, Code> {
        let config = global.config();
        if bytes > config.memory_bytes {
            return Err(Code::OUT_OF_MEMORY);
        }
        let name = name(&config.gpus[position], gpu_direct_rdma);
        let name = CString::new(name).map_err(|_| Code::UNKNOWN)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; a descriptor that is returned belongs to us alone.
        let file = unsafe {
            let fd = libc::memfd_create(name.as_ptr(), flags);
            if fd < 0 {
                return Err(Code::OPERATING_SYSTEM);
            }
            OwnedFd::from_raw_fd(fd)
        };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: both act on our own descriptor. GPU memory has no size that could be changed.
        let sized = unsafe {
            libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        sized
            .then_some(Physical {
                file,
                bytes,
                position,
                gpu_direct_rdma,
            })
            .ok_or(Code::OUT_OF_MEMORY)
    }

    /// The memory behind a descriptor that came from [`export`](Self::export), here or elsewhere.
    pub(crate) fn import(global: &Global, fd: c_int) -> Result<Physical, Code> {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let link = link.map_err(|_| Code::INVALID_VALUE)?;
        let link = link.to_string_lossy();
        let found = link.strip_prefix("/memfd:").ok_or(Code::INVALID_VALUE)?;
        let found = found.trim_end_matches(" (deleted)");
        let config = global.config();
        let candidates = config.gpus.iter().enumerate().flat_map(|(position, gpu)| {
            [false, true].map(|rdma| (position, rdma, name(gpu, rdma)))
        });
        let (position, gpu_direct_rdma, _) = candidates
            .into_iter()
            .find(|(_, _, name)| name == found)
            .ok_or(Code::INVALID_VALUE)?;
        if !config.visible.contains(&position) {
            return Err(Code::INVALID_DEVICE);
        }
        // SAFETY: readlink showed that the descriptor is open; it is borrowed for this statement.
        let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        let file = file.map_err(|_| Code::OPERATING_SYSTEM)?;
        // SAFETY: all-zero is a valid stat, and fstat fills ours.
        let bytes = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(file.as_raw_fd(), &mut stat) != 0 {
                return Err(Code::OPERATING_SYSTEM);
            }
            stat.st_size as u64
        };
        Ok(Physical {
            file,
            bytes,
            position,
            gpu_direct_rdma,
        })
    }

    /// A descriptor for another process.
    pub(crate) fn export(&self) -> Result<OwnedFd, Code> {
        self.file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)
    }

    /// Puts the memory's first `bytes` bytes at `address`, without access for anyone.
    ///
    /// # Safety
    /// The addresses are reserved, by us, and nothing else is mapped there.
    pub(crate) unsafe fn place(&self, address: u64, bytes: u64) -> Result<(), Code> {
        // SAFETY: the caller's: MAP_FIXED replaces nothing but our own reservation. Like the
        // driver's mappings it is not there in a forked child.
        unsafe {
            let at = libc::mmap(
                address as usize as *mut libc::c_void,
                bytes as usize,
                libc::PROT_NONE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(Code::MAP_FAILED);
            }
            libc::madvise(at, bytes as usize, libc::MADV_DONTFORK);
        }
        Ok(())
    }
}

fn name(gpu: &Gpu, gpu_direct_rdma: bool) -> String {
    let digits: String = gpu.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{NAME}{digits}{}",
        if gpu_direct_rdma { ":rdma" } else { "" }
    )
}
