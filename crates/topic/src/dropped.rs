//! Slow reliable subscribers that a publisher does not wait for.

/// The slots of these subscribers, and who was in each: another subscriber there is waited for.
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

    /// Keeps those of which `is_slow`, given slot and incarnation, says that they still are.
    pub(crate) fn retain(&mut self, mut is_slow: impl FnMut(u32, u64) -> bool) {
        self.subscribers
            .retain(|(slot, incarnation)| is_slow(*slot, *incarnation));
        let slots = self.subscribers.iter();
        self.mask = slots.fold(0, |mask, (slot, _)| mask | 1 << slot);
    }
}
