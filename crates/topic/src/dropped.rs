//! Slow reliable subscribers for which a publisher does not wait.

/// The slots of these subscribers, with the incarnation in each: the publisher waits for a later subscriber in the same slot.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    mask: u64,
    /// Slot and incarnation.
    subscribers: Vec<(u32, u64)>,
}

impl Dropped {
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.mask != 0
    }

    /// A bit per slot.
    #[inline]
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    pub(crate) fn add(&mut self, slot: u32, incarnation: u64) {
        self.mask |= 1 << slot;
        self.subscribers.push((slot, incarnation));
    }

    /// Keeps the subscribers for which `is_slow` returns true, given slot and incarnation.
    pub(crate) fn retain(&mut self, mut is_slow: impl FnMut(u32, u64) -> bool) {
        self.subscribers
            .retain(|(slot, incarnation)| is_slow(*slot, *incarnation));
        let slots = self.subscribers.iter();
        self.mask = slots.fold(0, |mask, (slot, _)| mask | 1 << slot);
    }
}
