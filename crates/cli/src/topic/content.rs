//! Reads the content of a message to the host: one array, several named arrays, or plain bytes.

use crate::array::Array;
use rgaps::{DType, Domain, Sample, Tensor};
use std::borrow::Cow;

/// The content of a message, in host memory.
pub struct Content<'a> {
    /// The message's named parts; without parts, the whole message as one entry without a name.
    pub parts: Vec<Part<'a>>,
}

pub struct Part<'a> {
    pub name: Option<String>,
    /// None: plain bytes.
    pub tensor: Option<Tensor>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Content<'a> {
    pub fn read(sample: &'a Sample) -> anyhow::Result<Content<'a>> {
        let bytes = match sample.domain() {
            Domain::Host => Cow::Borrowed(sample.as_slice()?),
            _ => {
                let mut copy = vec![0; sample.len() as usize];
                sample.read(0, &mut copy)?;
                Cow::Owned(copy)
            }
        };
        let named = sample.parts()?;
        if named.is_empty() {
            let part = Part {
                name: None,
                tensor: sample.tensor().copied(),
                bytes,
            };
            return Ok(Content { parts: vec![part] });
        }
        let part = |part: rgaps::Part| {
            let range = part.offset() as usize..(part.offset() + part.len()) as usize;
            let bytes = match &bytes {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
                Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
            };
            Part {
                name: Some(part.name().to_owned()),
                tensor: Some(part.tensor()),
                bytes,
            }
        };
        Ok(Content {
            parts: named.iter().map(part).collect(),
        })
    }
}

impl Part<'_> {
    pub fn array(&self) -> Option<Array<'_>> {
        let bytes = Cow::Borrowed(&*self.bytes);
        Some(Array {
            tensor: self.tensor?,
            bytes,
        })
    }

    /// The array, or the bytes as one of uint8.
    pub fn as_array(&self) -> anyhow::Result<Array<'_>> {
        if let Some(array) = self.array() {
            return Ok(array);
        }
        let (tensor, _) = rgaps::tensor::contiguous(DType::U8, &[self.bytes.len() as u64])?;
        Ok(Array {
            tensor,
            bytes: Cow::Borrowed(&self.bytes),
        })
    }
}
