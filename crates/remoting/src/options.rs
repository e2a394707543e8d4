//! The options of a session that its client chooses.

use crate::limits::INLINE_BYTES;

/// How a client uses its session.
#[derive(Debug, Clone, Copy)]
pub struct SessionOptions {
    /// Which of the program's servers it is on.
    pub server: u8,
    /// How many further connections carry the bytes of large copies, unless the server is on this host or does not take them.
    pub stripes: usize,
    /// Up to this size bytes travel inside the batch.
    pub inline_bytes: usize,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            server: 0,
            stripes: 0,
            inline_bytes: INLINE_BYTES,
        }
    }
}
