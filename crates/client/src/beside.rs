//! Tag, tensor, attachment and parts of a message that comes from a recording or another system, to publish it with them.

use crate::header::Header;
use crate::parts::part_entry;
use rgaps_layout::{MAX_ATTACHMENT_BYTES, MAX_MESSAGE_PARTS, MAX_PART_NAME};
use rgaps_topic::{Metadata, Tensor};

/// Everything that travels beside a message's bytes: see [`SetMetadata::set_beside`](crate::bindings::SetMetadata::set_beside).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beside {
    /// The number that the publisher set; 0 if it set none.
    pub tag: u64,
    /// Element type, shape and strides; None if the message is not one array.
    pub tensor: Option<Tensor>,
    /// Attachment and parts.
    pub metadata: Metadata,
}

impl Beside {
    /// Attaches a header. Call it before any `add_part`. An error says why the header is invalid or too long.
    pub fn set_header(&mut self, header: &Header) -> Result<(), String> {
        let bytes = header.encode().map_err(|error| error.to_string())?;
        self.attach(&bytes, true)
    }

    /// Attaches bytes. Call it before any `add_part`. `is_header`: the publisher marked the bytes as an encoded header.
    pub fn attach(&mut self, bytes: &[u8], is_header: bool) -> Result<(), String> {
        match self.metadata.set_attachment(bytes, is_header) {
            true => Ok(()),
            false => Err(format!(
                "an attachment of {} bytes is over the limit of {MAX_ATTACHMENT_BYTES}",
                bytes.len()
            )),
        }
    }

    /// Adds a part: an array of `bytes` bytes at `offset` in the message.
    pub fn add_part(
        &mut self,
        name: &str,
        tensor: &Tensor,
        offset: u64,
        bytes: u64,
    ) -> Result<(), String> {
        if name.is_empty() || name.len() > MAX_PART_NAME {
            return Err(format!(
                "the name of a part has {} bytes, and may have 1 to {MAX_PART_NAME}",
                name.len()
            ));
        }
        match self
            .metadata
            .push_part(&part_entry(name, offset, bytes, tensor))
        {
            true => Ok(()),
            false => Err(format!("it has more than {MAX_MESSAGE_PARTS} parts")),
        }
    }
}
