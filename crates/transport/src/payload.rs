//! The bytes of a message, as whoever sends it provides them.

/// A message's bytes. They stay where they are, unchanged, until the last clone of them is dropped: that is when
/// they are acknowledged (or given up) and no lane reads them any more. That may happen while the link is locked, so `drop` does
/// not call the link.
pub trait Payload: Send + Sync + 'static {
    /// How many; at least one.
    fn bytes(&self) -> usize;
    /// How many are there, from the start on, of a message that is sent while it grows: [`crate::machine::LinkMachine::ready`] says so
    /// when there are more, and [`crate::machine::LinkMachine::cancel`] if they never will be. No lane reads the rest before.
    fn ready(&self) -> usize {
        self.bytes()
    }
    /// A part that is there. Called by lanes' threads, with bounds within [`Payload::bytes`].
    fn slice(&self, from: usize, to: usize) -> &[u8];
    /// The address of the first byte for network cards, if the bytes are on a GPU. A lane whose card knows that memory
    /// ([`crate::Registrar::register_dmabuf`]) has the card read them there, if the peer can be written directly. All other readers call
    /// [`Payload::slice`], which has to copy the bytes to the host.
    fn direct(&self) -> Option<u64> {
        None
    }
}

impl<T: AsRef<[u8]> + Send + Sync + 'static> Payload for T {
    fn bytes(&self) -> usize {
        self.as_ref().len()
    }
    fn slice(&self, from: usize, to: usize) -> &[u8] {
        &self.as_ref()[from..to]
    }
}
