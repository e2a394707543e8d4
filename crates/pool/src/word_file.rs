//! A small file of atomic 64-bit words, which persists when the processes that write it die.

use crate::segment::Access;
use crate::shared_map::SharedMap;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// A file that only this user can access, mapped as atomic words. A store is in the file at once and in program order, also
/// if the process then dies; a crash of the machine may lose it.
///
/// If another program shortens the file, processes that use it die by SIGBUS.
#[derive(Debug)]
pub struct WordFile {
    map: SharedMap,
}

impl WordFile {
    /// Opens the file at `path` with this many words, at least one. If it is missing or has another length, creates it
    /// anew with zeros.
    pub fn open(path: &Path, words: usize) -> Result<WordFile> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let bytes = (words * size_of::<u64>()) as u64;
        if file.metadata()?.len() != bytes {
            file.set_len(0)?;
            file.set_len(bytes)?;
        }
        // Allocates the file's blocks, so that no store fails (by SIGBUS) on a full file system.
        match rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        let map = SharedMap::map_unchecked(file.as_fd(), bytes, Access::ReadWrite);
        let map = map.map_err(|error| Error::other(error.to_string()))?;
        Ok(WordFile { map })
    }

    /// The words of the file.
    pub fn words(&self) -> &[AtomicU64] {
        let count = self.map.bytes() as usize / size_of::<u64>();
        // SAFETY: the mapping has `bytes` bytes, is readable and writable, starts at a page and lives as long as `self`.
        // rgaps accesses it as atomic words only, and other users have no access to the file.
        unsafe { std::slice::from_raw_parts(self.map.base().as_ptr().cast(), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let first = WordFile::open(&path, 1000).unwrap();
        assert!(first.words().iter().all(|word| word.load(Relaxed) == 0));
        first.words()[0].store(7, Relaxed);
        first.words()[999].store(u64::MAX, Relaxed);
        let second = WordFile::open(&path, 1000).unwrap();
        assert_eq!(second.words()[999].load(Relaxed), u64::MAX);
        drop((first, second));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[0]), (8000, 7));
        assert_eq!(
            WordFile::open(&path, 10).unwrap().words()[0].load(Relaxed),
            0
        );
    }

    #[test]
    fn what_is_no_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(WordFile::open(dir.path(), 10).is_err());
        assert!(WordFile::open(&dir.path().join("none/words"), 10).is_err());
    }
}
