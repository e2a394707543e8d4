//! Limits of a link, those of its configuration and those of the protocol.

/// The most flows of a link in one direction that have not ended, beside the control flow.
pub const FLOWS_MAX: usize = 4096;

/// The most messages of a flow that request or have grants, whatever their size.
pub(super) const GRANTS_MAX: usize = 4;
/// The most that do while all together have at most [`GRANTED_BYTES_MAX`] bytes. Without this, a flow of messages just above the small
/// size would send only [`GRANTS_MAX`] in each round trip.
const GRANTS_SMALL_MAX: usize = 64;
const GRANTED_BYTES_MAX: u64 = 4 << 20;

/// Whether a flow that has grants for so many messages with so many bytes may have one more. Both ends follow this rule.
pub(super) fn may_request(grants: usize, granted_bytes: u64, bytes: u64) -> bool {
    let is_small = granted_bytes.saturating_add(bytes) <= GRANTED_BYTES_MAX;
    grants < GRANTS_MAX || (grants < GRANTS_SMALL_MAX && is_small)
}

/// What a link may use.
#[derive(Clone, Copy, Debug)]
pub struct LinkLimits {
    /// Messages up to this size, description included, are sent without a grant, unless they exceed the peer's first window.
    pub small_bytes_max: u32,
    /// Large messages are sent in chunks of this size, or of a larger one if a message had more than 65,536 chunks.
    pub chunk_bytes: u32,
    /// Bytes of small messages that a flow may send to this end before its user accepts the flow. HELLO carries the number.
    pub first_window: u32,
    /// The most bytes of small messages of a flow at this end, once its user has accepted the flow.
    pub window_bytes: u64,
    /// The most payloads, of any size, that a lane has queued or is writing.
    pub payloads_max: usize,
    /// A lane takes more payloads, up to 32, while all together have at most so many bytes: otherwise small ones would wait for each
    /// other's completion.
    pub payload_bytes_max: u64,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self {
            small_bytes_max: 16 << 10,
            chunk_bytes: 1 << 20,
            first_window: 64 << 10,
            window_bytes: 1 << 20,
            payloads_max: 4,
            payload_bytes_max: 1 << 20,
        }
    }
}

impl LinkLimits {
    /// Bytes that the window grows by once the flow is accepted. At least 1: the sender learns from the wider window that it is accepted.
    pub(super) fn more_window(&self) -> u64 {
        let more = self.window_bytes.saturating_sub(self.first_window.into());
        more.max(1)
    }
}
