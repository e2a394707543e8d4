//! The content of test messages.

/// The bytes of a message, different for each.
pub fn content(topic: u64, incarnation: u64, sequence: u64, bytes: u64) -> Vec<u8> {
    rgaps_testkit::content(topic << 48 ^ incarnation << 32 ^ sequence, bytes as usize)
}
