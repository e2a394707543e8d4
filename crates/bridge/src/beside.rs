//! What lies beside a message.

use rgaps_client::{DType, Header, Tensor, MAX_PART_NAME};
use rgaps_layout::PartEntry;
use rgaps_topic::Metadata;

/// What lies beside a message that comes in.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Beside {
    pub(crate) tag: u64,
    pub(crate) tensor: Option<Tensor>,
    /// Attachment and parts.
    pub(crate) metadata: Metadata,
}

impl Beside {
    /// Attaches a header, before any part.
    pub(crate) fn set_header(&mut self, header: &Header) -> Result<(), String> {
        let bytes = header.encode().map_err(|error| error.to_string())?;
        self.attach(&bytes, true)
    }

    /// Attaches bytes that are no header.
    pub(crate) fn set_attachment(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.attach(bytes, false)
    }

    fn attach(&mut self, bytes: &[u8], is_header: bool) -> Result<(), String> {
        match self.metadata.set_attachment(bytes, is_header) {
            true => Ok(()),
            false => Err(format!(
                "an attachment of {} bytes is over the limit of {}",
                bytes.len(),
                rgaps_client::MAX_ATTACHMENT_BYTES
            )),
        }
    }

    /// Adds a part: an array at `offset` in the message.
    pub(crate) fn add_part(
        &mut self,
        name: &str,
        tensor: Tensor,
        offset: u64,
        bytes: u64,
    ) -> Result<(), String> {
        let mut text = [0; MAX_PART_NAME + 1];
        if name.is_empty() || name.len() > MAX_PART_NAME {
            return Err(format!(
                "the name of a part has {} bytes, and may have 1 to {MAX_PART_NAME}",
                name.len()
            ));
        }
        text[..name.len()].copy_from_slice(name.as_bytes());
        let DType { code, bits, lanes } = tensor.dtype;
        let entry = PartEntry {
            offset,
            bytes,
            dtype_code: code,
            dtype_bits: bits,
            dtype_lanes: lanes,
            ndim: tensor.ndim,
            name_bytes: name.len() as u8,
            reserved: 0,
            shape: tensor.shape,
            strides: tensor.strides,
            name: text,
        };
        match self.metadata.push_part(&entry) {
            true => Ok(()),
            false => Err(format!(
                "it has more than {} parts",
                rgaps_client::MAX_MESSAGE_PARTS
            )),
        }
    }
}
