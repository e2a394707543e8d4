//! The interface through which a link reads the bytes of a message that its user sends.

/// A message's bytes. They stay in place and unchanged until the last clone of the `Arc` is dropped: once the message is acknowledged
/// or given up, and no lane reads it. The link may be locked at that moment, so `drop` must not call the link.
pub trait Payload: Send + Sync + 'static {
    /// The length of the message in bytes; at least one.
    fn bytes(&self) -> usize;
    /// How many bytes, from the first one on, are complete. This is less than [`Payload::bytes`] for a message that is sent while it
    /// grows. Its user then calls [`crate::machine::LinkMachine::ready`] for each increase, or [`crate::machine::LinkMachine::cancel`]
    /// if the rest will never exist. Lanes do not read incomplete bytes.
    fn ready(&self) -> usize {
        self.bytes()
    }
    /// The bytes from `from` to before `to`, all of them complete. Lanes' threads call this.
    fn slice(&self, from: usize, to: usize) -> &[u8];
    /// The address of the first byte for network cards, if the bytes are on a GPU. If that memory is registered with a lane's card
    /// ([`crate::Registrar::register_dmabuf`]), and the card can write the peer's receive buffer, the card reads the bytes there. All
    /// other readers call [`Payload::slice`], which has to copy the bytes to the host.
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
