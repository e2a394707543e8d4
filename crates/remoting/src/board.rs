//! What a backend has counted, in a file that its server reads: four numbers.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Counters of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) memory_bytes: u64,
}

impl Counts {
    pub(crate) fn write(&self, to: &File) -> io::Result<()> {
        let mut bytes = [0; 32];
        let all = [self.calls, self.bytes_in, self.bytes_out, self.memory_bytes];
        for (at, number) in all.into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        to.write_all_at(&bytes, 0)
    }

    /// Zeros where the backend has not written yet.
    pub(crate) fn read(from: &File) -> Counts {
        let mut bytes = [0; 32];
        let _ = from.read_exact_at(&mut bytes, 0);
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_le_bytes(eight)
        };
        Counts {
            calls: number(0),
            bytes_in: number(1),
            bytes_out: number(2),
            memory_bytes: number(3),
        }
    }
}
