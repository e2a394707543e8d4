//! Subscribers that have left and whose deferred releases publishers have still to finish. No other subscriber
//! gets their slots before that: otherwise the publisher would clear a bit of the new one.

use crate::control::Control;
use crate::topic::Topic;
use rgaps_layout::MAX_SUBSCRIBERS;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::empty_deferred_releases;
use std::collections::BTreeMap;

/// The slots that are kept.
#[derive(Debug, Default)]
pub(crate) struct DeferredReleases {
    /// By topic: a mask of the slots.
    slots: BTreeMap<u32, u64>,
}

/// Finishes those deferred releases of a subscriber that no living publisher finishes. True: none is left.
pub(crate) fn finish(topic: &Topic, slot: u32, control: &Control) -> bool {
    let view = control.topic(topic.region);
    empty_deferred_releases(&view, slot, |slot, number| topic.publishes(slot, number))
}

impl DeferredReleases {
    /// Keeps the slot of a subscriber that leaves until its releases are finished.
    pub(crate) fn hold(&mut self, topic: &Topic, slot: u32, control: &Control) {
        if !finish(topic, slot, control) {
            *self.slots.entry(topic.index).or_default() |= 1 << slot;
        }
    }

    /// Finds the slots that a predecessor kept.
    pub(crate) fn restore(&mut self, topic: &Topic, control: &Control) {
        let view = control.topic(topic.region);
        let all = view.deferring().load(Ordering::Acquire) & ((1 << MAX_SUBSCRIBERS) - 1);
        let of_absent = all & !topic.subscriber_bits();
        if of_absent != 0 {
            self.slots.insert(topic.index, of_absent);
        }
    }

    /// Frees a topic's slots whose releases are finished. True: there were some.
    pub(crate) fn release(&mut self, topic: &Topic, control: &Control) -> bool {
        let before = self.slots_of(topic.index);
        let kept = (0..MAX_SUBSCRIBERS as u32)
            .filter(|slot| before >> slot & 1 != 0 && !finish(topic, *slot, control))
            .fold(0, |bits, slot| bits | 1 << slot);
        match kept {
            0 => self.slots.remove(&topic.index),
            _ => self.slots.insert(topic.index, kept),
        };
        kept != before
    }

    /// A mask of the slots of a topic that nobody may get.
    pub(crate) fn slots_of(&self, topic: u32) -> u64 {
        self.slots.get(&topic).copied().unwrap_or(0)
    }

    /// Topics with kept slots.
    pub(crate) fn topics(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.keys().copied()
    }

    /// Drops the slots of a topic that has ended.
    pub(crate) fn forget(&mut self, topic: u32) {
        self.slots.remove(&topic);
    }
}
