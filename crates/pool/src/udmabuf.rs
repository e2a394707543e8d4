//! Makes dma-bufs from memfds with the kernel's `/dev/udmabuf`.
//!
//! The device takes a memfd that is sealed against shrinking, pins all its pages, and returns a descriptor of a dma-buf of
//! those pages. We then close the memfd: punching a hole would give it other pages than the dma-buf has. The pages stay
//! until the last descriptor and mapping of the dma-buf are closed; no part of the segment can be freed earlier.

use crate::PoolError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const DEVICE: &str = "/dev/udmabuf";
/// The file with the kernel's limit for the size of one dma-buf, in MiB.
const SIZE_LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";

const FLAG_CLOEXEC: u32 = 1;

/// `struct udmabuf_create` of `linux/udmabuf.h`: the same on every architecture.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const _: () = assert!(size_of::<Create>() == 24);

// SAFETY: the opcode is UDMABUF_CREATE, which reads one `udmabuf_create` and writes nothing; `as_ptr` points to `self`,
// which has that layout. The call returns a new descriptor, which no one else owns.
unsafe impl Ioctl for Create {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        rustix::ioctl::opcode::write::<Create>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(made: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: rustix calls this after success only, so `made` is the new descriptor, which no one else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(made) })
    }
}

/// Opens the device. Fails if the kernel's limit is below `bytes`.
pub(crate) fn open(bytes: u64) -> Result<OwnedFd, PoolError> {
    let limit = size_limit_mib();
    if let Some(limit) = limit.filter(|mib| *mib < bytes.div_ceil(1 << 20)) {
        return Err(PoolError::provider(
            "UDMABUF_CREATE",
            Errno::INVAL,
            &too_large(bytes, limit),
        ));
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(DEVICE, flags, Mode::empty())
        .map_err(|error| PoolError::provider("open(/dev/udmabuf)", error, open_hint(error)))
}

/// Makes a dma-buf of all `bytes` bytes of a memfd that is sealed against shrinking.
pub(crate) fn export(
    device: BorrowedFd<'_>,
    memfd: BorrowedFd<'_>,
    bytes: u64,
) -> Result<OwnedFd, PoolError> {
    let create = Create {
        memfd: memfd.as_raw_fd() as u32,
        flags: FLAG_CLOEXEC,
        offset: 0,
        size: bytes,
    };
    // SAFETY: `open` opened `/dev/udmabuf`, a name that only root can give to another device; `Create` has the layout that the
    // kernel reads, and `memfd` is open during the call.
    unsafe { rustix::ioctl::ioctl(device, create) }
        .map_err(|error| PoolError::provider("UDMABUF_CREATE", error, create_hint(error)))
}

fn size_limit_mib() -> Option<u64> {
    std::fs::read_to_string(SIZE_LIMIT)
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn open_hint(error: Errno) -> &'static str {
    match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => {
            "load the kernel's module (modprobe udmabuf; it needs CONFIG_UDMABUF), in a container also pass the device"
        }
        Errno::ACCESS | Errno::PERM => {
            "let the daemon's user read and write /dev/udmabuf: join the group that it belongs to (ls -l /dev/udmabuf)"
        }
        _ => "see 'rgaps doctor'",
    }
}

fn create_hint(error: Errno) -> &'static str {
    match error {
        Errno::NOMEM => "free memory, raise the memory limit of this cgroup",
        Errno::MFILE => "raise ulimit -n",
        _ => "see the kernel's log",
    }
}

fn too_large(bytes: u64, limit_mib: u64) -> String {
    format!(
        "a segment of {} MiB is above the kernel's limit of {limit_mib} MiB: raise {SIZE_LIMIT}, make pool.host.segment and messages smaller",
        bytes >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        for (error, part) in [(Errno::NOENT, "modprobe udmabuf"), (Errno::ACCESS, "group")] {
            let said =
                PoolError::provider("open(/dev/udmabuf)", error, open_hint(error)).to_string();
            assert!(said.contains(part), "{said}");
            assert!(said.contains("pool.host.provider"), "{said}");
        }
        let said = PoolError::provider("UDMABUF_CREATE", Errno::INVAL, &too_large(128 << 20, 64))
            .to_string();
        for part in ["128 MiB", "64 MiB", SIZE_LIMIT, "pool.host.segment"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
