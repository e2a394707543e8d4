//! The address of a channel's end, which the other end needs to connect. Users exchange addresses over an authenticated
//! connection.

use crate::cursors::Ring;
use crate::error::VerbsError;
use crate::fabric::QueueAddress;

/// Bytes of an encoded address.
pub const ADDRESS_BYTES: usize = 80;
/// The largest ring that a peer may have: this end allocates a mirror of it.
pub const PEER_RING_BYTES_MAX: u64 = 64 << 20;
/// The version of this encoding and of the protocol of channels.
const VERSION: u32 = 1;

/// How to reach an end of a channel, and where its peer writes.
///
/// ```text
/// 0         4              8        24             28             32    36         40     48     56        64     72
/// | version | queue number | GID    | first packet | ring's key   | MTU | receives | ring | size | credits | key 0 | 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelAddress {
    pub(crate) queue: QueueAddress,
    /// The remote key of ring and credit words, which lie in one region.
    pub(crate) key: u32,
    /// The ring's address.
    pub(crate) ring: u64,
    pub(crate) ring_bytes: u64,
    /// The address of the credit words: the head, then the count of posted receives, 8 bytes each.
    pub(crate) credits: u64,
    /// How many receives this end has posted at its start.
    pub(crate) receives: u32,
}

impl ChannelAddress {
    /// Encodes the address; numbers are little-endian.
    pub fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        put(0, &VERSION.to_le_bytes());
        put(4, &self.queue.number.to_le_bytes());
        put(8, &self.queue.gid);
        put(24, &self.queue.first_packet.to_le_bytes());
        put(28, &self.key.to_le_bytes());
        put(32, &u32::from(self.queue.mtu).to_le_bytes());
        put(36, &self.receives.to_le_bytes());
        put(40, &self.ring.to_le_bytes());
        put(48, &self.ring_bytes.to_le_bytes());
        put(56, &self.credits.to_le_bytes());
        bytes
    }

    /// Decodes an address; `None` if the bytes are no address of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ADDRESS_BYTES] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let known = u32_at(0) == VERSION && bytes[64..].iter().all(|byte| *byte == 0);
        known.then_some(())?;
        Some(Self {
            queue: QueueAddress {
                number: u32_at(4),
                gid: bytes[8..24].try_into().expect("16 bytes"),
                first_packet: u32_at(24),
                mtu: u8::try_from(u32_at(32)).ok()?,
            },
            key: u32_at(28),
            receives: u32_at(36),
            ring: u64_at(40),
            ring_bytes: u64_at(48),
            credits: u64_at(56),
        })
    }

    /// Checks a peer's address, and returns the peer's ring.
    pub(crate) fn check(&self, receives_least: u32) -> Result<Ring, VerbsError> {
        let why = |why| VerbsError::Address { why };
        let ring = Ring::new(self.ring_bytes)?;
        if self.ring_bytes > PEER_RING_BYTES_MAX {
            return Err(why("its ring is too large"));
        }
        if self.receives < receives_least {
            return Err(why("it posts too few receives"));
        }
        let ends = [
            self.ring.checked_add(self.ring_bytes),
            self.credits.checked_add(16),
        ];
        if ends.contains(&None) || self.credits % 8 != 0 {
            return Err(why("its memory range overflows or is not aligned"));
        }
        // enum ibv_mtu: 256 to 4096 bytes.
        if !(1..=5).contains(&self.queue.mtu) {
            return Err(why("its MTU is not one of `enum ibv_mtu`"));
        }
        Ok(ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> ChannelAddress {
        ChannelAddress {
            queue: QueueAddress {
                gid: std::array::from_fn(|i| i as u8),
                number: 0x12_3456,
                first_packet: 7,
                mtu: 3,
            },
            key: 0xfedc_ba98,
            ring: 1 << 40,
            ring_bytes: 1 << 20,
            credits: (1 << 40) + (1 << 20),
            receives: 64,
        }
    }

    #[test]
    fn it_comes_back_and_nothing_else_is_taken() {
        let bytes = address().encode();
        assert_eq!(ChannelAddress::decode(&bytes), Some(address()));
        assert_eq!(ChannelAddress::decode(&bytes[1..]), None);
        for (at, byte) in [(0, 2), (33, 1), (64, 1), (79, 1)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(ChannelAddress::decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn what_no_peer_can_have_is_refused() {
        assert!(address().check(8).is_ok());
        let changes: [fn(&mut ChannelAddress); 7] = [
            |a| a.ring_bytes = 0,
            |a| a.ring_bytes = 2 * PEER_RING_BYTES_MAX,
            |a| a.receives = 7,
            |a| a.ring = u64::MAX - 5,
            |a| a.credits = u64::MAX - 7,
            |a| a.credits += 4,
            |a| a.queue.mtu = 6,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut other = address();
            change(&mut other);
            assert!(other.check(8).is_err(), "change {number}");
        }
    }
}
