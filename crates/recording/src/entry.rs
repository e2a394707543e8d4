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
    /// Of an image, what its bytes are. They are the last.
    pub(crate) image: Option<Image>,
    pub(crate) received: Instant,
}
