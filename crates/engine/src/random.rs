//! Random numbers from the kernel, which nobody can guess.

use rustix::rand::{getrandom, GetRandomFlags};

fn fill(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        match getrandom(&mut bytes[done..], GetRandomFlags::empty()) {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            // Only a kernel before 3.17, or a sandbox that forbids the call: nothing can go on.
            Err(errno) => panic!("getrandom failed: {errno}; allow it in this sandbox"),
        }
    }
}

/// A random number that is not 0.
pub(crate) fn nonzero_u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes).max(1)
}

/// A random number.
pub(crate) fn u128() -> u128 {
    let mut bytes = [0; 16];
    fill(&mut bytes);
    u128::from_ne_bytes(bytes)
}
