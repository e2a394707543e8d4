//! Leaving and dying: what ends when a member is gone, and what stays for whom.

use crate::control::Control;
use crate::granule_set::LiveGranules;
use crate::join::TOPIC_BYTES;
use crate::membership::{announce, empty_publisher, pass_over, write_matches};
use crate::seats::SEAT_KEPT;
use crate::step::step;
use crate::topic::{Orphan, Owner, Publisher, Quarantined, Topic};
use crate::zone::Zone;
use rgaps_layout::{PUBLISHER_ORPHAN, RECORD_FREE, RECORD_ORPHAN};
use rgaps_session::{Side, MAX_DEPARTED};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{
    abandon, clear_deferred_releases, clear_holder, clear_strangers, empty_deferred_releases,
    live_blocks, ring_publishers,
};
use std::collections::VecDeque;
use std::time::Instant;

/// Publishers of links that left or died, and how many messages each published: links that are started again are told.
/// The state file has them, too, so a successor tells them when their orphans are gone.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    all: VecDeque<(u64, u64)>,
    /// Whether the state file lacks some.
    pub(crate) is_unsaved: bool,
}

impl Departed {
    /// Notes a publisher whose ring goes up to `head`, if it is one of links.
    pub(crate) fn note(&mut self, publisher: &Publisher, head: u64) {
        if publisher.of_links {
            let published = head.saturating_sub(publisher.ring.start);
            self.add(publisher.incarnation, published);
            self.is_unsaved = true;
        }
    }

    /// Adds one that a predecessor saved, or noted now. What was known of it before is forgotten.
    pub(crate) fn add(&mut self, incarnation: u64, published: u64) {
        self.all.retain(|(known, _)| *known != incarnation);
        if self.all.len() >= MAX_DEPARTED {
            self.all.pop_front();
        }
        self.all.push_back((incarnation, published));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, u64)> {
        self.all.iter()
    }
}

/// Clears the bits of a subscriber that is gone in the holder words of all publishers. Returns how many blocks that
/// freed.
pub(crate) fn clear_holds(control: &Control, topic: &Topic, slot: u32) -> u64 {
    let view = control.topic(topic.region);
    let mut freed = 0;
    for publisher in &topic.publishers {
        let region = control.region(publisher.ring.region_offset, publisher.geometry());
        let words = view.publisher(publisher.slot as usize);
        freed += clear_holder(&words, &region, slot);
        // It may have held the last bit between two steps of a deferred release: the publisher looks at all its
        // blocks.
        words.sweep().fetch_add(1, Ordering::AcqRel);
    }
    freed
}

impl Zone {
    /// Takes all members of a client out of their topics, and forgets the client; but seats of the links wait for the next
    /// links. Returns how many blocks that freed.
    pub(crate) fn reap_client(&mut self, client: u32, now: Instant) -> u64 {
        // First: streams of others wait for it.
        self.end_timelines_of(client);
        self.end_timelines_named_by(client);
        let mut freed = 0;
        let known = self.clients.get(client);
        let is_overdue = known.is_some_and(|c| c.vacant_until.is_some_and(|until| now >= until));
        for (topic, side, slot) in self.members_of(client) {
            let stays = !is_overdue && self.leaves_a_seat(topic, side, slot);
            let vacated = stays.then(|| self.vacate(topic, slot)).flatten();
            freed += vacated.unwrap_or_else(|| self.remove_member(topic, side, slot));
        }
        let has_seats = !self.members_of(client).is_empty();
        match self.clients.get_mut(client).filter(|_| has_seats) {
            Some(client) => {
                client.session = None;
                client.vacant_until.get_or_insert(now + SEAT_KEPT);
            }
            None => self.remove_client(client),
        }
        freed
    }

    /// Takes a member out of its topic. Returns how many blocks that freed.
    pub(crate) fn remove_member(&mut self, topic: u32, side: Side, slot: u32) -> u64 {
        let freed = match side {
            Side::Publisher => self.orphan_publisher(topic, slot),
            Side::Subscriber => self.remove_subscriber(topic, slot),
        };
        self.maintain_topic(topic);
        freed
    }

    /// Ends a subscriber's demand: publishers neither wait for it nor copy for it. What it holds stays until it
    /// leaves or dies.
    pub(crate) fn close_subscriber(&mut self, index: u32, slot: u32) {
        let Some(topic) = self.topics.get_mut(index) else {
            return;
        };
        topic.close_subscriber(slot);
        announce(&self.control, topic);
        ring_publishers(&self.control.topic(topic.region), u64::MAX);
        self.maintain_topic(index);
    }

    pub(crate) fn remove_subscriber(&mut self, index: u32, slot: u32) -> u64 {
        let Some(topic) = self.topics.get_mut(index) else {
            return 0;
        };
        let Some(at) = topic.subscribers.iter().position(|s| s.slot == slot) else {
            return 0;
        };
        let subscriber = topic.subscribers.remove(at);
        let view = self.control.topic(topic.region);
        // Out of the masks first, so that nobody waits for it while its bits go.
        view.reliable()
            .store(topic.reliable_bits(), Ordering::Release);
        view.subscribers()
            .store(topic.subscriber_bits(), Ordering::Release);
        view.elsewhere()
            .store(topic.replica_bits(), Ordering::Release);
        write_matches(&view, topic);
        view.sleepers().fetch_and(!(1 << slot), Ordering::AcqRel);
        step!("leave.masks");
        // Before its bits: no publisher begins to clear one that is somebody else's by then.
        if !empty_deferred_releases(&view, slot, |slot, number| topic.publishes(slot, number)) {
            topic.held_up |= 1 << slot;
            self.held_up.insert(index);
        }
        step!("leave.deferred_releases");
        let freed = clear_holds(&self.control, topic, slot);
        step!("leave.holders");
        let words = view.subscriber(slot as usize);
        topic.past.add_subscriber(&words);
        words.incarnation().store(0, Ordering::Release);
        // Last: until it is written, a successor does all this again.
        if let Err(error) = self.registry.clear_subscriber(index, slot) {
            tracing::error!(%error, "recording the end of a subscriber failed");
        }
        self.control.doorbells.give(subscriber.doorbell);
        announce(&self.control, topic);
        ring_publishers(&view, u64::MAX);
        freed
    }

    /// Takes over a publisher that left or died.
    fn orphan_publisher(&mut self, index: u32, slot: u32) -> u64 {
        // First: from here on a successor knows that nobody writes there any more.
        if let Err(error) = self
            .registry
            .set_publisher_state(index, slot, RECORD_ORPHAN)
        {
            tracing::error!(%error, "recording the end of a publisher failed");
        }
        let order = self.next_orphan;
        self.next_orphan += 1;
        let Some(topic) = self.topics.get_mut(index) else {
            return 0;
        };
        let view = self.control.topic(topic.region);
        let Some(publisher) = topic.publisher_mut(slot) else {
            return 0;
        };
        self.control.doorbells.give(publisher.doorbell);
        publisher.doorbell = 0;
        let words = view.publisher(slot as usize);
        words.doorbell().store(0, Ordering::Relaxed);
        words.state().store(PUBLISHER_ORPHAN, Ordering::Release);
        view.blocked().fetch_and(!(1 << slot), Ordering::AcqRel);
        let region = self
            .control
            .region(publisher.ring.region_offset, publisher.geometry());
        step!("orphan.begin");
        let left = abandon(&words, &region, publisher.incarnation, publisher.ring.start);
        step!("orphan.abandoned");
        self.departed.note(publisher, left.head);
        publisher.owner = Owner::Orphan(Orphan {
            order,
            tail: left.tail,
            head: left.head,
            pending: 0,
        });
        self.control.settle(publisher);
        step!("orphan.settled");
        let released = clear_deferred_releases(&view, &region, slot, publisher.incarnation);
        step!("orphan.deferred_releases");
        announce(&self.control, topic);
        self.orphaned.insert(index);
        left.freed + released
    }

    /// Does for a topic's orphans, quarantined regions and itself what is due. True: something
    /// changed.
    pub(crate) fn maintain_topic(&mut self, index: u32) -> bool {
        let orphans = self.orphans_of(index);
        let mut changed = false;
        for slot in orphans {
            changed |= self.settle_points(index, slot);
            changed |= self.clear_deferred_releases(index, slot);
            changed |= self.evict_read(index, slot);
            changed |= self.settle_orphan(index, slot);
        }
        changed |= self.limit_orphans(index);
        changed |= self.release_quarantine(index);
        changed |= self.release_held_up(index);
        changed | self.remove_if_deserted(index)
    }

    fn settle_points(&mut self, index: u32, slot: u32) -> bool {
        let topic = self.topics.get_mut(index);
        let publisher = topic.and_then(|topic| topic.publisher_mut(slot));
        publisher.is_some_and(|p| p.has_pending_points() && self.control.settle(p))
    }

    pub(crate) fn orphans_of(&self, index: u32) -> Vec<u32> {
        let publishers = self
            .topics
            .get(index)
            .map_or(&[][..], |topic| &topic.publishers);
        publishers
            .iter()
            .filter(|p| p.is_orphan())
            .map(|p| p.slot)
            .collect()
    }

    /// Returns the granules of an orphan in which nothing lives any more, and ends it when nothing
    /// lives at all and no message is left.
    pub(crate) fn settle_orphan(&mut self, index: u32, slot: u32) -> bool {
        let Some(topic) = self.topics.get(index) else {
            return false;
        };
        let Some(publisher) = topic.publisher(slot) else {
            return false;
        };
        let Owner::Orphan(orphan) = publisher.owner else {
            return false;
        };
        let drained = orphan.tail >= orphan.head;
        if drained {
            let words = self.control.topic(topic.region).publisher(slot as usize);
            let region = self
                .control
                .region(publisher.ring.region_offset, publisher.geometry());
            clear_strangers(&words, &region, topic.subscriber_bits());
        }
        let live = self.live_granules(topic, publisher);
        let owner = topic.granule_owner(slot);
        let freed = self
            .memory
            .free_except(&self.registry, owner, |pool| live.of(pool));
        if live.is_empty() && drained {
            self.end_publisher(index, slot);
            return true;
        }
        freed > 0
    }

    /// Granules in which somebody holds a block of the publisher's.
    pub(crate) fn live_granules(&self, topic: &Topic, publisher: &Publisher) -> LiveGranules {
        let words = self
            .control
            .topic(topic.region)
            .publisher(publisher.slot as usize);
        let region = self
            .control
            .region(publisher.ring.region_offset, publisher.geometry());
        let mut live = LiveGranules::default();
        for (pool, offset, bytes) in live_blocks(&words, &region) {
            live.add(pool.unwrap_or(publisher.pool), offset, bytes);
        }
        live
    }

    /// Takes a publisher that nothing is left of out of its topic.
    fn end_publisher(&mut self, index: u32, slot: u32) {
        let Some(topic) = self.topics.get_mut(index) else {
            return;
        };
        let Some(at) = topic.publishers.iter().position(|p| p.slot == slot) else {
            return;
        };
        let publisher = topic.publishers.remove(at);
        let view = self.control.topic(topic.region);
        topic
            .past
            .add_publisher(&publisher, &view.publisher(slot as usize));
        if let Owner::Orphan(orphan) = publisher.owner {
            pass_over(&view, topic, &publisher, orphan.head);
        }
        empty_publisher(&view, slot);
        step!("end.emptied");
        announce(&self.control, topic);
        if let Err(error) = self.registry.set_publisher_state(index, slot, RECORD_FREE) {
            tracing::error!(%error, "recording the end of a publisher failed");
        }
        step!("end.recorded");
        let quarantined = quarantine_of(&publisher, topic.epoch);
        // Nothing in it counts any more, and zeros are no holder word that anyone waits for.
        self.control.discard(quarantined.offset, quarantined.bytes);
        topic.quarantine.push(quarantined);
        if !topic.publishers.iter().any(Publisher::is_orphan) {
            self.orphaned.remove(&index);
        }
        self.quarantined.insert(index);
    }

    /// Hands on the regions of former publishers that no subscriber looks at any more.
    fn release_quarantine(&mut self, index: u32) -> bool {
        let Some(topic) = self.topics.get_mut(index) else {
            return false;
        };
        if topic.quarantine.is_empty() {
            return false;
        }
        let view = self.control.topic(topic.region);
        let seen: Vec<u32> = topic
            .subscribers
            .iter()
            .map(|s| {
                view.subscriber(s.slot as usize)
                    .seen_epoch()
                    .load(Ordering::Acquire)
            })
            .collect();
        let before = topic.quarantine.len();
        let control = &mut self.control;
        topic.quarantine.retain(|region| {
            let waits = seen.iter().any(|seen| !has_reached(*seen, region.epoch));
            if !waits {
                control.give(region.offset, region.bytes);
            }
            waits
        });
        if topic.quarantine.is_empty() {
            self.quarantined.remove(&index);
        }
        topic.quarantine.len() != before
    }

    /// Removes a topic that nothing is left of.
    pub(crate) fn remove_if_deserted(&mut self, index: u32) -> bool {
        if !self.topics.get(index).is_some_and(Topic::is_deserted) {
            return false;
        }
        let Some(topic) = self.topics.remove(index) else {
            return false;
        };
        if let Err(error) = self.registry.clear_topic(index) {
            tracing::error!(%error, topic = topic.name, "recording the end of a topic failed");
        }
        for region in &topic.quarantine {
            self.control.give(region.offset, region.bytes);
        }
        self.control.give(topic.region, TOPIC_BYTES);
        self.orphaned.remove(&index);
        self.quarantined.remove(&index);
        self.held_up.remove(&index);
        true
    }

    /// Does what is due for the dead of all topics. True: something changed.
    pub(crate) fn maintain(&mut self) -> bool {
        let mut topics = &self.orphaned | &self.quarantined;
        topics.extend(&self.held_up);
        let mut changed = false;
        for topic in topics {
            changed |= self.maintain_topic(topic);
        }
        changed | self.release_set_aside()
    }

    /// Whether `maintain` has anything to look after.
    pub(crate) fn needs_maintenance(&self) -> bool {
        !self.orphaned.is_empty()
            || !self.quarantined.is_empty()
            || !self.held_up.is_empty()
            || self.set_aside.is_some()
            || self.control.timelines.unclaimed
    }
}

fn quarantine_of(publisher: &Publisher, epoch: u32) -> Quarantined {
    Quarantined {
        offset: publisher.ring.region_offset,
        bytes: publisher.geometry().bytes(),
        epoch,
    }
}

/// Whether an epoch that wraps around is at or past another.
pub(crate) fn has_reached(seen: u32, epoch: u32) -> bool {
    seen.wrapping_sub(epoch) as i32 >= 0
}

#[cfg(test)]
mod tests {
    use super::has_reached;

    #[test]
    fn epochs_wrap_around() {
        assert!(has_reached(5, 5) && has_reached(6, 5) && !has_reached(4, 5));
        assert!(has_reached(2, u32::MAX) && !has_reached(u32::MAX, 2));
    }
}
