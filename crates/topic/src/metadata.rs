//! [`Metadata`]: a message's attachment and the table of its parts, in this process's own memory.

use crate::{RegionView, Storage};
use rgaps_layout::{
    MetadataLengths, PartEntry, ATTACHMENT_HEADER, ATTACHMENT_RAW, MAX_ATTACHMENT_BYTES,
    MAX_MESSAGE_PARTS, MAX_METADATA_BYTES, PART_ENTRY_BYTES,
};
use rgaps_sync::atomic::Ordering;

/// An attachment and a table of parts, encoded as in the metadata area of a ring slot. Reusing a value allocates nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    lengths: MetadataLengths,
    bytes: Vec<u8>,
}

impl Metadata {
    /// Neither an attachment nor a part.
    pub const EMPTY: Metadata = Metadata {
        lengths: MetadataLengths {
            attachment_bytes: 0,
            attachment_kind: ATTACHMENT_RAW,
            parts: 0,
        },
        bytes: Vec::new(),
    };

    /// Whether there is neither an attachment nor a part.
    pub fn is_empty(&self) -> bool {
        self.lengths.bytes() == 0
    }

    /// The lengths of attachment and table.
    pub fn lengths(&self) -> MetadataLengths {
        self.lengths
    }

    /// All bytes: attachment, padding to 8, entries of parts.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The attachment; empty if there is none.
    pub fn attachment(&self) -> &[u8] {
        &self.bytes[..self.lengths.attachment_bytes as usize]
    }

    /// Whether the attachment is a header.
    pub fn is_header(&self) -> bool {
        self.lengths.attachment_kind == ATTACHMENT_HEADER
    }

    /// The entries of the table of parts, unchecked.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = PartEntry> + '_ {
        let table = self.bytes[self.lengths.parts_at()..].chunks_exact(PART_ENTRY_BYTES);
        table.map(|entry| PartEntry::decode(entry.try_into().expect("a chunk has that many bytes")))
    }

    /// Removes attachment and parts, and keeps the memory.
    pub fn clear(&mut self) {
        self.lengths = Metadata::EMPTY.lengths;
        self.bytes.clear();
    }

    /// Replaces the attachment. False: it is longer than [`MAX_ATTACHMENT_BYTES`], and nothing changed.
    #[must_use]
    pub fn set_attachment(&mut self, bytes: &[u8], is_header: bool) -> bool {
        if bytes.len() > MAX_ATTACHMENT_BYTES {
            return false;
        }
        let old = self.lengths.parts_at();
        self.lengths.attachment_bytes = bytes.len() as u32;
        self.lengths.attachment_kind = match is_header {
            true => ATTACHMENT_HEADER,
            false => ATTACHMENT_RAW,
        };
        let padding = self.lengths.parts_at() - bytes.len();
        let padded = bytes.iter().copied().chain(std::iter::repeat_n(0, padding));
        self.bytes.splice(..old, padded);
        true
    }

    /// Adds an entry to the table of parts. False: there are [`MAX_MESSAGE_PARTS`] already.
    #[must_use]
    pub fn push_part(&mut self, part: &PartEntry) -> bool {
        let has_room = usize::from(self.lengths.parts) < MAX_MESSAGE_PARTS;
        if has_room {
            self.bytes.extend_from_slice(&part.encode());
            self.lengths.parts += 1;
        }
        has_room
    }

    /// Replaces everything by encoded metadata. False: the bytes do not fit the lengths, and nothing changed.
    #[must_use]
    pub fn assign(&mut self, lengths: MetadataLengths, bytes: &[u8]) -> bool {
        let fits = lengths.is_sound() && bytes.len() == lengths.bytes();
        if fits {
            self.lengths = lengths;
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
        }
        fits
    }

    /// Writes the metadata into the slot of message `sequence`. Only for its publisher, after it has invalidated the slot.
    pub(crate) fn write<S: Storage>(&self, region: &RegionView<S>, sequence: u64) {
        for (index, bytes) in self.bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let to = region.metadata(sequence, index);
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Copies the metadata of message `sequence` from its slot. The caller must check afterwards that the slot did not change
    /// meanwhile (SYNC: descriptor).
    pub(crate) fn read<S: Storage>(
        &mut self,
        region: &RegionView<S>,
        sequence: u64,
        lengths: MetadataLengths,
    ) {
        self.lengths = lengths;
        self.bytes.clear();
        if self.bytes.capacity() < lengths.bytes() {
            self.grow(lengths.bytes());
        }
        for index in 0..lengths.bytes() / 8 {
            let word = region.metadata(sequence, index).load(Ordering::Relaxed);
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Grows the buffer: first to the size for small headers, then to the maximum.
    #[cold]
    fn grow(&mut self, bytes: usize) {
        const SMALL: usize = 512;
        let capacity = if bytes <= SMALL {
            SMALL
        } else {
            MAX_METADATA_BYTES
        };
        self.bytes.reserve_exact(capacity);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn part(name: &str) -> PartEntry {
        let mut entry = PartEntry::decode(&[0; PART_ENTRY_BYTES]);
        entry.name[..name.len()].copy_from_slice(name.as_bytes());
        entry.name_bytes = name.len() as u8;
        entry
    }

    #[test]
    fn an_attachment_changes_without_its_parts() {
        let mut metadata = Metadata::default();
        assert!(metadata.is_empty());
        assert!(metadata.push_part(&part("rgb")));
        assert!(metadata.set_attachment(b"twelve bytes", false));
        assert!(metadata.push_part(&part("depth")));
        for attachment in [&b""[..], b"1", b"12345678", &[7; MAX_ATTACHMENT_BYTES]] {
            assert!(metadata.set_attachment(attachment, true));
            assert_eq!(metadata.attachment(), attachment);
            assert!(metadata.is_header());
            assert_eq!(metadata.as_bytes().len(), metadata.lengths().bytes());
            let parts = metadata.parts().collect::<Vec<_>>();
            assert_eq!(parts, [part("rgb"), part("depth")]);
            let mut other = Metadata::default();
            assert!(other.assign(metadata.lengths(), metadata.as_bytes()));
            assert_eq!(other, metadata);
        }
    }

    #[test]
    fn more_than_the_limits_is_refused_and_changes_nothing() {
        let mut metadata = Metadata::default();
        assert!(metadata.set_attachment(b"kept", false));
        assert!(!metadata.set_attachment(&[0; MAX_ATTACHMENT_BYTES + 1], false));
        assert_eq!(metadata.attachment(), b"kept");
        for _ in 0..MAX_MESSAGE_PARTS {
            assert!(metadata.push_part(&part("a")));
        }
        assert!(!metadata.push_part(&part("a")));
        let (lengths, bytes) = (metadata.lengths(), metadata.as_bytes().to_vec());
        assert!(!metadata.assign(lengths, &bytes[1..]));
        assert_eq!(
            (metadata.lengths(), metadata.as_bytes()),
            (lengths, &bytes[..])
        );
    }
}
