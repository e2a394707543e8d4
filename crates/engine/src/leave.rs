//! Leaving and dying: what ends when a publisher or subscriber leaves, and what stays for the others.

use crate::clients::QUARANTINED;
use crate::membership::{announce, clear_holds, write_matches};
use crate::seats::{vacate_seat, SEAT_KEPT};
use crate::step::step;
use crate::topic::TOPIC_BYTES;
use crate::zone::Zone;
use rgaps_session::Side;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::ring_publishers;
use std::collections::BTreeSet;
use std::time::Instant;

impl Zone {
    /// Takes all members of a client out of their topics, and forgets the client; but seats of the links wait for the next
    /// links. Returns how many blocks that freed.
    pub(crate) fn reap_client(&mut self, client: u32, now: Instant) -> u64 {
        // First: streams of others wait for it.
        self.control.end_timelines_of(client, &mut self.topics);
        self.control.end_timelines_named_by(client, &self.topics);
        self.adoption.finish(client);
        let mut freed = 0;
        let known = self.clients.get(client);
        let is_overdue = known.is_some_and(|c| c.vacant_until.is_some_and(|until| now >= until));
        for (topic, side, slot) in self.topics.members_of(client) {
            let of = self
                .topics
                .get(topic)
                .filter(|_| side == Side::Subscriber && !is_overdue);
            let vacated = of.and_then(|of| vacate_seat(of, slot, &self.clients, &self.control));
            freed += vacated.unwrap_or_else(|| self.remove_member(topic, side, slot));
        }
        let has_seats = !self.topics.members_of(client).is_empty();
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
            Side::Publisher => {
                let (control, registry) = (&mut self.control, &self.registry);
                let topic = self.topics.get_mut(topic);
                topic.map_or(0, |topic| {
                    self.history.take_over(topic, slot, control, registry)
                })
            }
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
        self.deferred.hold(topic, slot, &self.control);
        step!("leave.deferred_releases");
        let freed = clear_holds(&self.control, topic, slot);
        step!("leave.holders");
        let words = view.subscriber(slot as usize);
        topic.past.add_subscriber(&words);
        words.incarnation().store(0, Ordering::Release);
        // Last: until it is written, a successor does all this again.
        self.registry.clear_subscriber(index, slot);
        self.control.doorbells.give(subscriber.doorbell);
        announce(&self.control, topic);
        ring_publishers(&view, u64::MAX);
        freed
    }

    /// Maintains a topic that members left, and removes it if it is deserted. True: something changed.
    pub(crate) fn maintain_topic(&mut self, index: u32) -> bool {
        let Some(topic) = self.topics.get_mut(index) else {
            return false;
        };
        let (control, memory) = (&mut self.control, &mut self.memory);
        let mut changed = self
            .history
            .maintain(topic, control, memory, &self.registry);
        changed |= self.deferred.release(topic, control);
        changed | self.remove_if_deserted(index)
    }

    /// Removes a topic that nothing is left of.
    pub(crate) fn remove_if_deserted(&mut self, index: u32) -> bool {
        let Some(topic) = self.topics.remove_deserted(index, &self.registry) else {
            return false;
        };
        self.history.release_retired(&topic, &mut self.control);
        self.control.give(topic.region, TOPIC_BYTES);
        self.deferred.forget(index);
        true
    }

    /// Maintains all topics that members left. True: something changed.
    pub(crate) fn maintain(&mut self) -> bool {
        let topics: BTreeSet<u32> = self.topics_to_maintain().collect();
        let mut changed = false;
        for topic in topics {
            changed |= self.maintain_topic(topic);
        }
        changed | self.adoption.release(&self.topics, &mut self.control)
    }

    /// Whether `maintain` has anything to look after.
    pub(crate) fn needs_maintenance(&self) -> bool {
        self.topics_to_maintain().next().is_some()
            || self.adoption.has_set_aside()
            || self.control.timelines.unclaimed
    }

    fn topics_to_maintain(&self) -> impl Iterator<Item = u32> + '_ {
        self.history.topics().chain(self.deferred.topics())
    }

    /// A client is dead, but what it held stays: publishers neither wait for it to read on nor copy for it.
    pub(crate) fn hold_dead(&mut self, client: u32) {
        for (topic, side, slot) in self.topics.members_of(client) {
            if side == Side::Subscriber {
                self.close_subscriber(topic, slot);
            }
        }
        self.adoption.finish(client);
        if let Some(client) = self.clients.get_mut(client) {
            client.session = Some(QUARANTINED);
        }
    }
}
