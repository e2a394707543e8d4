//! What messages hold.

use rgaps_testkit::Random;

/// The bytes of a message, which no other has.
pub fn content(topic: u64, incarnation: u64, sequence: u64, bytes: u64) -> Vec<u8> {
    let mut random = Random::new(topic << 48 ^ incarnation << 32 ^ sequence);
    (0..bytes).map(|_| random.next_u64() as u8).collect()
}
