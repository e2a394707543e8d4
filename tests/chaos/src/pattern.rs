//! What messages hold: bytes that follow from publisher, sequence and length, and from nothing else.

use rgaps_testkit::mix;

/// A message's identity, which its publisher also puts into the message's tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Number of the publisher's process in the scoreboard.
    pub actor: u32,
    /// Its number among the publisher's, modulo 2^32.
    pub sequence: u32,
}

impl Identity {
    pub fn tag(self) -> u64 {
        u64::from(self.actor) << 32 | u64::from(self.sequence)
    }

    pub fn from_tag(tag: u64) -> Identity {
        Identity {
            actor: (tag >> 32) as u32,
            sequence: tag as u32,
        }
    }
}

fn words(identity: Identity, bytes: usize) -> impl Iterator<Item = [u8; 8]> {
    let key = mix(identity.tag() ^ mix(bytes as u64));
    (0u64..).map(move |at| (key ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
}

/// Fills a message.
pub fn fill(identity: Identity, bytes: &mut [u8]) {
    let words = words(identity, bytes.len());
    for (chunk, word) in bytes.chunks_mut(8).zip(words) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Whether all bytes are what the publisher wrote.
pub fn holds(identity: Identity, bytes: &[u8]) -> bool {
    let words = words(identity, bytes.len());
    bytes
        .chunks(8)
        .zip(words)
        .all(|(chunk, word)| *chunk == word[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_a_changed_length_and_another_message_are_seen() {
        let identity = Identity {
            actor: 3,
            sequence: 9,
        };
        assert_eq!(Identity::from_tag(identity.tag()), identity);
        for length in [0, 1, 7, 8, 9, 1000] {
            let mut bytes = vec![0; length];
            fill(identity, &mut bytes);
            assert!(holds(identity, &bytes));
            for at in 0..length {
                bytes[at] ^= 1;
                assert!(!holds(identity, &bytes), "byte {at} of {length}");
                bytes[at] ^= 1;
            }
            if length > 1 {
                assert!(!holds(identity, &bytes[..length - 1]));
                let other = Identity {
                    sequence: 10,
                    ..identity
                };
                assert!(!holds(other, &bytes));
            }
        }
    }
}
