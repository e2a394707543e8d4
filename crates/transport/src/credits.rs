//! Windows: the right of one flow to send small messages without a grant, as the receiver has set memory aside for them.
//!
//! Both ends count bytes from the flow's beginning, and counts never fall, so a limit that arrives twice or late does no harm.

/// The sender's end of a flow's window.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendWindow {
    charged: u64,
    limit: u64,
}

impl SendWindow {
    /// Charges a message. Returns the sum of all charges so far, which travels with the message; `None` if the limit has to rise first.
    pub fn charge(&mut self, bytes: u64) -> Option<u64> {
        let charged = self.charged.checked_add(bytes)?;
        if charged > self.limit {
            return None;
        }
        self.charged = charged;
        Some(charged)
    }

    /// Takes a limit from the receiver. A limit below the last one arrived late and is ignored.
    pub fn raise(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }
}

/// The receiver's end of a flow's window. It takes the flow's messages in their order.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveWindow {
    seen: u64,
    limit: u64,
}

impl ReceiveWindow {
    /// A window of `window_bytes`.
    pub fn new(window_bytes: u64) -> Self {
        Self {
            limit: window_bytes,
            ..Self::default()
        }
    }

    /// Checks the charge of a message that may be out of order: it lies behind all that was taken, and within the limit.
    pub fn admits(&self, bytes: u64, end: u64) -> Result<(), &'static str> {
        let start = end.checked_sub(bytes);
        let is_inside = start.is_some_and(|start| start >= self.seen) && end <= self.limit;
        is_inside
            .then_some(())
            .ok_or("it charges more than its window")
    }

    /// Takes the next message in order. The sender gave up all that it charged between the last message and this one, so the window gets
    /// those bytes back at once.
    pub fn arrive(&mut self, bytes: u64, end: u64) -> Result<(), &'static str> {
        self.admits(bytes, end)?;
        self.skip_to(end - bytes);
        self.seen = end;
        Ok(())
    }

    /// The sender gave up everything charged below `end` that did not arrive.
    pub fn give_up(&mut self, end: u64) -> Result<(), &'static str> {
        self.admits(0, end)?;
        self.skip_to(end);
        Ok(())
    }

    fn skip_to(&mut self, start: u64) {
        self.limit += start - self.seen;
        self.seen = start;
    }

    /// Raises the limit: the window grows, or the user has taken messages of so many bytes, in any order.
    pub fn widen(&mut self, bytes: u64) {
        self.limit += bytes;
    }

    /// Bytes that the sender may still charge after the last message that was taken.
    pub fn open(&self) -> u64 {
        self.limit - self.seen
    }

    /// The sum up to which the sender may charge.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

#[cfg(test)]
#[path = "credits_tests.rs"]
mod tests;
