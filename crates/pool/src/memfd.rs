//! memfds that cannot change their size.
//!
//! A file that shrinks under a mapping kills every reader with SIGBUS. So their creator seals memfds
//! against resizing before it shares them, and every process checks seals and size of a descriptor that
//! it received before it maps it.

use crate::segment::{PageSize, Provider};
use crate::PoolError;
use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `f_type` of the file system behind memfds of huge pages.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// The size of the huge pages that we use. It divides the segment unit, so every segment consists of whole
/// huge pages.
pub(crate) const HUGE_BYTES: u64 = 2 << 20;

const REQUIRED_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Creates a memfd of `bytes` bytes and seals it against resizing and further sealing.
///
/// It is sparse: the kernel allocates a page when it is first touched. `name` only shows in `/proc/PID/maps`.
pub fn create_sealed_memfd(name: &str, bytes: u64) -> Result<OwnedFd, PoolError> {
    let fd = create_memfd(name, bytes, MemfdFlags::empty())?;
    seal(&fd)?;
    Ok(fd)
}

/// Checks that `fd` is a memfd of exactly `bytes` bytes that nobody can resize or seal further,
/// and returns its inode. The result stays true, since seals cannot be removed.
pub fn verify_memfd(fd: BorrowedFd<'_>, bytes: u64) -> Result<u64, PoolError> {
    Ok(inspect(fd, bytes)?.inode)
}

/// The checked properties of a segment's descriptor.
pub(crate) struct Inspected {
    pub(crate) inode: u64,
    pub(crate) uid: u32,
    pub(crate) provider: Provider,
    pub(crate) pages: PageSize,
}

/// Checks a memfd as [`verify_memfd`] does, and returns all that is known of it.
pub(crate) fn inspect(fd: BorrowedFd<'_>, bytes: u64) -> Result<Inspected, PoolError> {
    let refuse = |why: String| Err(PoolError::Untrusted(why));
    // Pipes, sockets and files of most file systems have no seals (EINVAL); files of a tmpfs have
    // F_SEAL_SEAL from birth, so they can never get the others.
    let seals = match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) => seals,
        Err(error) => {
            return refuse(format!(
                "it is neither a memfd (F_GET_SEALS: {error}) nor a dma-buf"
            ))
        }
    };
    if !seals.contains(REQUIRED_SEALS) {
        return refuse(format!(
            "it can still be resized or sealed (seals {:#x})",
            seals.bits()
        ));
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return refuse(format!(
            "it is sealed against writing (seals {:#x})",
            seals.bits()
        ));
    }
    let stat = rustix::fs::fstat(fd)
        .map_err(|e| PoolError::system("fstat", e, "the descriptor is of no use; join again"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("it is not a regular file".to_owned());
    }
    if stat.st_size as u64 != bytes {
        return refuse(format!("it has {} bytes instead of {bytes}", stat.st_size));
    }
    let system = rustix::fs::fstatfs(fd)
        .map_err(|e| PoolError::system("fstatfs", e, "the descriptor is of no use; join again"))?;
    let pages = match system.f_type as u64 {
        HUGETLBFS_MAGIC => PageSize::Huge(system.f_bsize as u64),
        _ => PageSize::Base,
    };
    Ok(Inspected {
        inode: stat.st_ino,
        uid: stat.st_uid,
        provider: Provider::Memfd,
        pages,
    })
}

/// Creates a memfd of `bytes` bytes, not sealed yet.
pub(crate) fn create_memfd(
    name: &str,
    bytes: u64,
    extra: MemfdFlags,
) -> Result<OwnedFd, PoolError> {
    check_file_limit(bytes)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | extra;
    let mut created = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    if created.as_ref().err() == Some(&Errno::INVAL) {
        // Linux before 6.3 does not know MFD_NOEXEC_SEAL.
        created = rustix::fs::memfd_create(name, flags);
    }
    let fd = created.map_err(|e| PoolError::system("memfd_create", e, create_hint(e)))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(|e| {
        PoolError::system("ftruncate", e, "free memory or ask for a smaller segment")
    })?;
    Ok(fd)
}

/// Seals a memfd against resizing and against further seals.
pub(crate) fn seal(fd: &OwnedFd) -> Result<(), PoolError> {
    rustix::fs::fcntl_add_seals(fd.as_fd(), REQUIRED_SEALS).map_err(|e| {
        PoolError::system(
            "fcntl(F_ADD_SEALS)",
            e,
            "memfd sealing must be allowed in this sandbox",
        )
    })
}

/// Fails if `bytes` is above RLIMIT_FSIZE, where `ftruncate` would kill the process with SIGXFSZ.
fn check_file_limit(bytes: u64) -> Result<(), PoolError> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(PoolError::system(
            "ftruncate",
            Errno::FBIG,
            format!("the file size limit (ulimit -f) is {limit} bytes; raise it above {bytes}"),
        )),
        _ => Ok(()),
    }
}

fn create_hint(error: Errno) -> &'static str {
    match error {
        Errno::MFILE => "too many open files in this process; raise ulimit -n",
        Errno::NFILE => "too many open files in the system; raise fs.file-max",
        Errno::NOSYS | Errno::PERM | Errno::ACCESS => {
            "this sandbox forbids memfd_create; allow it in its seccomp profile"
        }
        _ => "see 'rgaps doctor'",
    }
}
