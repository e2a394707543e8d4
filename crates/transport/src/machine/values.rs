//! Values that frames carry, each limited when it is made or decoded.

use std::sync::Arc;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 8;
/// The longest description of a message (its element type, shape, times, attachment, parts) or a flow.
pub const DESCRIPTION_BYTES_MAX: usize = 12 << 10;
/// The most characters of a reason that is sent to the peer.
const WORDS_MAX: usize = 256;
/// Lanes of a link.
pub const LANES_MAX: usize = 8;
/// Bytes of a message in one chunk.
pub const CHUNK_BYTES_MAX: u32 = 1 << 26;
/// A [`Remote`] address plus so many bytes does not overflow; no message is longer.
const REMOTE_BYTES_MAX: u64 = 1 << 46;

/// `Err`: what is wrong with a frame.
pub(super) type Checked<T> = Result<T, &'static str>;

/// What travels with a message beside its bytes, or with OPEN for a flow. Clones share the memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Description(Option<Arc<[u8]>>);

impl Description {
    /// A description; `None` if it is longer than [`DESCRIPTION_BYTES_MAX`].
    pub fn new(from: &[u8]) -> Option<Self> {
        let is_short = from.len() <= DESCRIPTION_BYTES_MAX;
        is_short.then(|| Self((!from.is_empty()).then(|| from.into())))
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    /// A reason for the peer, cut to [`WORDS_MAX`] characters.
    pub(crate) fn of_words(words: &str) -> Self {
        let some: String = words.chars().take(WORDS_MAX).collect();
        Self::new(some.as_bytes()).expect("it was cut")
    }

    /// The peer's reason, with special characters escaped.
    pub(crate) fn words(&self) -> String {
        let words = String::from_utf8_lossy(self.as_slice());
        words.escape_debug().to_string()
    }
}

impl std::fmt::Debug for Description {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Description({:02x?})", self.as_slice())
    }
}

/// The lanes through which a receive buffer may be written, by their numbers. A link gives each number to one lane only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    numbers: [u32; LANES_MAX],
    count: u8,
}

impl Lanes {
    /// These lanes; `None` if there are none or more than [`LANES_MAX`], or their numbers do not ascend.
    pub fn new(from: &[u32]) -> Option<Self> {
        let ascending = from.windows(2).all(|pair| pair[0] < pair[1]);
        let mut numbers = [0; LANES_MAX];
        numbers.get_mut(..from.len())?.copy_from_slice(from);
        let count = u8::try_from(from.len()).ok()?;
        (ascending && count > 0).then_some(Self { numbers, count })
    }

    /// Their numbers, ascending.
    pub fn as_slice(&self) -> &[u32] {
        &self.numbers[..usize::from(self.count)]
    }

    pub(super) fn contains(&self, lane: u32) -> bool {
        self.as_slice().contains(&lane)
    }

    /// Removes a lane, if it is among them. The result may be empty.
    pub(super) fn remove(&mut self, lane: u32) {
        if let Some(at) = self.as_slice().iter().position(|of| *of == lane) {
            self.numbers.copy_within(at + 1.., at);
            self.count -= 1;
            self.numbers[usize::from(self.count)] = 0;
        }
    }
}

/// The most network cards of a host through which a receive buffer may be written.
pub const RAILS_MAX: usize = 4;

/// Where a peer's card may write a receive buffer directly (RDMA): an address, and a key for each of this host's rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub(super) address: u64,
    rkeys: [u32; RAILS_MAX],
    count: u8,
}

impl Remote {
    /// `None` if there is no key or more than [`RAILS_MAX`], or the address is so high that a message could overflow it.
    pub fn new(address: u64, rkeys: &[u32]) -> Option<Self> {
        let room = address.checked_add(REMOTE_BYTES_MAX).is_some();
        let mut all = [0; RAILS_MAX];
        all.get_mut(..rkeys.len())?.copy_from_slice(rkeys);
        let count = u8::try_from(rkeys.len()).ok()?;
        (room && count > 0).then_some(Self {
            address,
            rkeys: all,
            count,
        })
    }

    /// The address of a byte of the message, and the key of one of the host's rails; `None` if the host has no such rail.
    pub fn at(&self, offset: u64, rail: u8) -> Option<(u64, u32)> {
        let rkey = self.keys().get(usize::from(rail))?;
        Some((self.address.checked_add(offset)?, *rkey))
    }

    pub(super) fn keys(&self) -> &[u32] {
        &self.rkeys[..usize::from(self.count)]
    }
}

/// Whether an end wants a lane to be an RDMA lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RdmaMode {
    /// This end has no RDMA, or does not want it.
    #[default]
    No = 0,
    /// An RDMA lane if possible, else a TCP lane.
    Prefer = 1,
    /// An RDMA lane or none.
    Require = 2,
}

/// Bytes of a link's key.
pub const KEY_BYTES: usize = 32;

/// A secret of a link's two ends, for one pair of incarnations. Both get it from the control plane, and send it in HELLO.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneKey(pub [u8; KEY_BYTES]);

impl std::fmt::Debug for LaneKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LaneKey(..)")
    }
}
