//! dma-bufs as segments: how to recognise one, and which guarantees it gives.
//!
//! A dma-buf has no seals and needs none. The kernel fixes its size when an exporter makes it: `ftruncate` and
//! `fallocate` refuse it, and no other call changes it. Whether its pages stay is up to the exporter, so only exporters are
//! accepted that keep every page until the last descriptor and mapping are gone ([`EXPORTERS`]). A graphics driver's
//! dma-buf, for example, is refused: the driver may move or drop its pages.
//!
//! The kernel names the exporter of a dma-buf in `/proc/self/fdinfo`. Reading that calls no file system, so a descriptor
//! from an untrusted process, whose file system may never answer, cannot block us.

use crate::memfd::{self, Inspected};
use crate::segment::{PageSize, Provider};
use crate::PoolError;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Exporters whose dma-bufs keep their pages, by the names of their kernel modules.
const EXPORTERS: [(&str, Provider); 2] = [
    // Holds a reference to each page of a memfd, which must be sealed against shrinking.
    ("udmabuf", Provider::Udmabuf),
    // Counts references. Only the realm that made the memory (an open file of the daemon) can revoke it or, once that is
    // closed, a realm of the same user that adopts it. rgaps never revokes memory.
    ("dmaplane", Provider::Dmaplane),
];

/// The kernel's description of a dma-buf.
#[derive(Debug, PartialEq, Eq)]
struct About {
    bytes: u64,
    exporter: String,
}

/// Whether a descriptor is of a dma-buf, as the kernel reports it.
pub fn is_dma_buf(fd: BorrowedFd<'_>) -> bool {
    about(fd).is_some()
}

/// Checks that a descriptor is a segment of host memory of exactly `bytes` bytes: a sealed memfd, or a dma-buf whose
/// exporter keeps its pages. Neither can lose these properties later.
pub(crate) fn inspect_segment(fd: BorrowedFd<'_>, bytes: u64) -> Result<Inspected, PoolError> {
    match about(fd) {
        Some(about) => inspect(fd, &about, bytes),
        None => memfd::inspect(fd, bytes),
    }
}

fn inspect(fd: BorrowedFd<'_>, about: &About, bytes: u64) -> Result<Inspected, PoolError> {
    let refuse = |why: String| Err(PoolError::Untrusted(why));
    let exporter = about.exporter.as_str();
    let Some((_, provider)) = EXPORTERS.iter().find(|(name, _)| *name == exporter) else {
        return refuse(format!(
            "it is a dma-buf of '{exporter}', which may take its pages away"
        ));
    };
    if about.bytes != bytes {
        return refuse(format!("it has {} bytes instead of {bytes}", about.bytes));
    }
    let stat = rustix::fs::fstat(fd)
        .map_err(|e| PoolError::system("fstat", e, "the descriptor is of no use; join again"))?;
    Ok(Inspected {
        inode: stat.st_ino,
        uid: stat.st_uid,
        provider: *provider,
        pages: PageSize::Base,
    })
}

fn about(fd: BorrowedFd<'_>) -> Option<About> {
    // dma-bufs have no seals. Most segments are memfds, and for these one call suffices.
    if rustix::fs::fcntl_get_seals(fd).is_ok() {
        return None;
    }
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    parse(&std::fs::read_to_string(path).ok()?)
}

/// Reads the description in a file of `/proc/self/fdinfo`. None: not a dma-buf, since only these have a line `exp_name`.
/// Takes the first line of each key: the buffer's name, which its user chooses, line breaks included, comes last.
fn parse(fdinfo: &str) -> Option<About> {
    let field = |name: &str| {
        let mut lines = fdinfo.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
    };
    Some(About {
        exporter: field("exp_name")?.to_owned(),
        bytes: field("size")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_kernels_words_come_before_those_of_a_buffers_user() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t9\nsize:\t4096\ncount:\t1\nexp_name:\tudmabuf\n\
                    name:\tx\nexp_name:\tother\nsize:\t1\n";
        let about = parse(text).unwrap();
        assert_eq!((about.bytes, about.exporter.as_str()), (4096, "udmabuf"));
        assert_eq!(parse("pos:\t0\nflags:\t02\nmnt_id:\t15\n"), None);
        assert_eq!(parse("exp_name:\tudmabuf\n"), None);
        assert_eq!(parse("size:\tx\nexp_name:\tudmabuf\n"), None);
    }

    #[test]
    fn other_files_are_no_dma_bufs() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let memfd = crate::create_sealed_memfd("rgaps-test", 4096).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for fd in [reader.as_fd(), memfd.as_fd(), null.as_fd()] {
            assert!(!is_dma_buf(fd));
        }
    }

    #[test]
    fn a_dma_buf_of_an_exporter_that_moves_pages_is_refused() {
        let about = About {
            bytes: 4096,
            exporter: "i915".to_owned(),
        };
        let null = std::fs::File::open("/dev/null").unwrap();
        let refused = inspect(null.as_fd(), &about, 4096).err().unwrap();
        assert!(refused.to_string().contains("'i915'"), "{refused}");
    }
}
