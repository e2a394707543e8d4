//! Holds that subscribers let go of behind GPU work, when the block's publisher or they are gone.

use crate::zone::Zone;
use rgaps_layout::MAX_SUBSCRIBERS;
use rgaps_topic::{clear_deferred_releases, empty_deferred_releases};

impl Zone {
    /// Clears the bits of subscribers that have let go of an orphan's blocks, where their work has
    /// passed.
    pub(crate) fn clear_deferred_releases(&self, index: u32, slot: u32) -> bool {
        let Some(topic) = self.topics.get(index) else {
            return false;
        };
        let Some(publisher) = topic.publisher(slot) else {
            return false;
        };
        let view = self.control.topic(topic.region);
        let region = self
            .control
            .region(publisher.ring.region_offset, publisher.geometry());
        clear_deferred_releases(&view, &region, slot, publisher.incarnation) > 0
    }

    /// Gives back the slots of former subscribers whose entries publishers have finished.
    pub(crate) fn release_held_up(&mut self, index: u32) -> bool {
        let Some(topic) = self.topics.get_mut(index) else {
            return false;
        };
        let before = topic.held_up;
        let view = self.control.topic(topic.region);
        let empty = (0..MAX_SUBSCRIBERS as u32)
            .filter(|slot| before >> slot & 1 != 0)
            .filter(|slot| {
                empty_deferred_releases(&view, *slot, |slot, number| topic.publishes(slot, number))
            })
            .fold(0, |bits, slot| bits | 1 << slot);
        topic.held_up &= !empty;
        if topic.held_up == 0 {
            self.held_up.remove(&index);
        }
        topic.held_up != before
    }
}
