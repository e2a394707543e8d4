//! The contents of messages: bytes computed from the message's number. All messages differ, so a receiver can check that
//! it received this message, and all of it.

use anyhow::Context;
use rgaps::{Domain, Loan, Sample};

/// Bytes that are copied at a time to or from a message that the CPU cannot reach.
const CHUNK_BYTES: usize = 8 << 20;

/// Returns the seed of a message's contents.
pub fn seed(publisher: u64, sequence: u64) -> u64 {
    // Odd multiplier: a bijection, so no two messages share a seed.
    (publisher << 40 ^ sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn word(seed: u64, index: u64) -> u64 {
    // The same function as in the GPU kernels, so either the CPU or a GPU can write and check a message.
    rgaps_kernels::pattern(seed, index)
}

/// Writes the bytes of message `seed` from `at`, a multiple of 8, on.
pub fn make(seed: u64, at: u64, bytes: &mut [u8]) {
    let first = at / 8;
    let mut words = bytes.chunks_exact_mut(8);
    let mut index = first;
    for chunk in &mut words {
        chunk.copy_from_slice(&word(seed, index).to_le_bytes());
        index += 1;
    }
    let rest = words.into_remainder();
    let length = rest.len();
    rest.copy_from_slice(&word(seed, index).to_le_bytes()[..length]);
}

/// Whether these are the bytes of message `seed` from `at`, a multiple of 8, on.
pub fn is(seed: u64, at: u64, bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let mut index = at / 8;
    let mut wrong = 0;
    for chunk in words {
        let found = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        // Without a branch per word, so that large messages are checked at memory speed.
        wrong |= found ^ word(seed, index);
        index += 1;
    }
    wrong == 0 && *rest == word(seed, index).to_le_bytes()[..rest.len()]
}

/// Fills a loan, wherever it lives.
pub fn fill(loan: &mut Loan, seed: u64) -> anyhow::Result<()> {
    if loan.domain() == Domain::Host {
        make(seed, 0, loan.as_mut_slice()?);
        return Ok(());
    }
    let mut chunk = vec![0; CHUNK_BYTES.min(loan.len() as usize)];
    let mut at = 0;
    while at < loan.len() {
        let length = chunk.len().min((loan.len() - at) as usize);
        make(seed, at, &mut chunk[..length]);
        loan.write(at, &chunk[..length])
            .context("copying into device memory")?;
        at += length as u64;
    }
    Ok(())
}

/// Looks at all bytes of a sample, wherever it lives.
pub fn verify(sample: &Sample, seed: u64, bytes: u64) -> anyhow::Result<bool> {
    if sample.len() != bytes {
        return Ok(false);
    }
    if sample.domain() == Domain::Host {
        return Ok(is(seed, 0, sample.as_slice()?));
    }
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let length = chunk.len().min((bytes - at) as usize);
        sample.read(at, &mut chunk[..length])?;
        if !is(seed, at, &chunk[..length]) {
            return Ok(false);
        }
        at += length as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        for length in [0, 1, 7, 8, 9, 64, 1001] {
            let mut bytes = vec![0; length];
            make(seed(3, 5), 0, &mut bytes);
            assert!(is(seed(3, 5), 0, &bytes));
            for at in 0..length {
                bytes[at] ^= 1;
                assert!(!is(seed(3, 5), 0, &bytes), "byte {at} of {length}");
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn messages_differ_and_pieces_fit_together() {
        let whole = |s| {
            let mut bytes = vec![0; 100];
            make(s, 0, &mut bytes);
            bytes
        };
        assert_ne!(whole(seed(0, 1)), whole(seed(0, 2)));
        assert_ne!(whole(seed(0, 1)), whole(seed(1, 1)));
        let mut end = vec![0; 36];
        make(seed(0, 1), 64, &mut end);
        assert_eq!(whole(seed(0, 1))[64..], end);
        assert!(is(seed(0, 1), 64, &end));
    }
}
