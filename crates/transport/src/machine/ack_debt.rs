//! What a flow's receiver still has to acknowledge, and how long the acknowledgement may wait (delayed acknowledgements, as in TCP).
//!
//! Small messages are acknowledged together: after 16, or an eighth of their window, or with other frames, or at the next tick. Large
//! messages too: up to 4 of them, as long as at least 4 more of the flow have grants. Position and limit are sums, so a lost or repeated
//! acknowledgement does no harm.

use super::receive_message::Delivery;

const SMALL_MAX: u32 = 16;
const WINDOW_PART: u64 = 8;
const LARGE_MAX: u32 = 4;

#[derive(Default)]
pub(super) struct AckDebt {
    /// Turns that were delivered since the last acknowledgement, and the bytes of the small messages among them.
    count: u32,
    bytes: u64,
    pub(super) is_due: bool,
    /// Position and limit of the last acknowledgement; `None` if a lane may have lost it.
    reported: Option<(u64, u64)>,
    /// The last acknowledgement left with other frames. The next one may, too, so one tick does not send it.
    may_wait: bool,
}

impl AckDebt {
    pub(super) fn new(is_due: bool) -> Self {
        Self {
            is_due,
            ..Self::default()
        }
    }

    /// Adds a turn that was delivered; `granted` more messages of the flow have grants.
    pub(super) fn add(&mut self, of: Delivery, granted: usize, window_bytes: u64) {
        self.count += 1;
        self.is_due |= match of {
            Delivery::Small(bytes) => {
                self.bytes += bytes;
                self.count >= SMALL_MAX || self.bytes >= window_bytes / WINDOW_PART
            }
            Delivery::Large(_) => self.count >= LARGE_MAX || granted < LARGE_MAX as usize,
            Delivery::Opened | Delivery::Missed | Delivery::Closed => true,
        };
    }

    pub(super) fn is_owed(&self) -> bool {
        self.is_due || self.count > 0
    }

    /// A lane ended, which may have lost the last acknowledgement.
    pub(super) fn lane_ended(&mut self) {
        self.is_due |= self.reported.take().is_some();
    }

    /// Notes that this position and limit are acknowledged. False if the last acknowledgement had the same ones, so none is needed.
    pub(super) fn pay(&mut self, report: (u64, u64), with_others: bool) -> bool {
        let is_known = self.reported == Some(report);
        *self = Self {
            reported: Some(report),
            may_wait: with_others,
            ..Self::default()
        };
        !is_known
    }

    /// Whether this tick leaves the acknowledgement to other frames; at most once for each.
    pub(super) fn lets_wait(&mut self) -> bool {
        std::mem::take(&mut self.may_wait) && !self.is_due
    }
}
