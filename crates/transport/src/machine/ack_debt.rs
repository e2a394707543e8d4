//! What a flow's receiver has to acknowledge, and how long that may wait.
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
    /// Messages that were delivered since, and their bytes.
    count: u32,
    bytes: u64,
    pub(super) is_due: bool,
    /// The last acknowledgement, which the sender knows: position and limit.
    reported: Option<(u64, u64)>,
    /// The last one left with other frames, so the next may, too: the tick waits for that once.
    may_wait: bool,
}

impl AckDebt {
    pub(super) fn new(is_due: bool) -> Self {
        Self {
            is_due,
            ..Self::default()
        }
    }

    /// Something was delivered; `granted` more messages of the flow have grants.
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

    /// The last acknowledgement may be lost with a lane.
    pub(super) fn lane_ended(&mut self) {
        self.is_due |= self.reported.take().is_some();
    }

    /// The debt is paid by a report of this position and limit. False if the sender knows them already.
    pub(super) fn pay(&mut self, report: (u64, u64), with_others: bool) -> bool {
        let is_known = self.reported == Some(report);
        *self = Self {
            reported: Some(report),
            may_wait: with_others,
            ..Self::default()
        };
        !is_known
    }

    /// Whether the tick lets it wait, once, for other frames to leave with.
    pub(super) fn lets_wait(&mut self) -> bool {
        std::mem::take(&mut self.may_wait) && !self.is_due
    }
}
