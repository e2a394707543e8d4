//! A message on its way from the thread that receives to the file.

use crate::channel::Described;
use crate::encode::Image;
use std::sync::Arc;
use std::time::Instant;

/// A message to write.
pub(crate) struct Entry {
    pub(crate) channel: Arc<Described>,
    /// Nanoseconds since 1970.
    pub(crate) log_ns: u64,
    pub(crate) publish_ns: u64,
    pub(crate) sequence: u32,
    pub(crate) bytes: Vec<u8>,
    /// The layout of an image, whose pixels are the last of `bytes`. None: the message is no image.
    pub(crate) image: Option<Image>,
    pub(crate) received: Instant,
}
