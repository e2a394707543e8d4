//! What ends when a publisher or subscriber leaves or dies, and what stays for the other members.

use super::Zone;
use crate::clients::QUARANTINED;
use crate::membership::{announce, clear_holds, write_matches};
use crate::memory::Memory;
use crate::seats::{vacate_seat, SEAT_KEPT};
use crate::step::step;
use crate::topic::{Topic, TOPIC_BYTES};
use rgaps_layout::Domain;
use rgaps_session::{Forgotten, Side};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::ring_publishers;
use std::collections::BTreeSet;
use std::time::Instant;

impl Zone {
    /// Takes all members of a client out of their topics, and forgets the client. But seats of links stay for the next links, until
    /// they are overdue. Returns how many blocks that freed.
    pub(crate) fn reap_client(&mut self, client: u32, now: Instant) -> u64 {
        // First: streams of other clients wait for these timelines.
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

    /// Closes a subscriber, so that publishers neither wait for it nor copy for it. It keeps what it holds until it leaves or dies.
    pub(crate) fn close_subscriber(&mut self, index: u32, slot: u32) {
        let Some(topic) = self.topics.get_mut(index) else {
            return;
        };
        topic.close_subscriber(slot);
        announce(&self.control, topic);
        ring_publishers(&self.control.topic(topic.region), u64::MAX);
        self.maintain_topic(index);
    }

    /// Takes a subscriber out of its topic. Returns how many blocks that freed.
    pub(crate) fn remove_subscriber(&mut self, index: u32, slot: u32) -> u64 {
        let Some(topic) = self.topics.get_mut(index) else {
            return 0;
        };
        let Some(at) = topic.subscribers.iter().position(|s| s.slot == slot) else {
            return 0;
        };
        let subscriber = topic.subscribers.remove(at);
        let view = self.control.topic(topic.region);
        // First the masks, so that no publisher waits for it while its bits are cleared.
        view.reliable()
            .store(topic.reliable_bits(), Ordering::Release);
        view.subscribers()
            .store(topic.subscriber_bits(), Ordering::Release);
        view.elsewhere()
            .store(topic.replica_bits(), Ordering::Release);
        write_matches(&view, topic);
        view.sleepers().fetch_and(!(1 << slot), Ordering::AcqRel);
        step!("leave.masks");
        // Before its bits are cleared: otherwise a publisher could clear a bit that the next subscriber in the slot has set.
        self.deferred.hold(topic, slot, &self.control);
        step!("leave.deferred_releases");
        let freed = clear_holds(&self.control, topic, slot);
        step!("leave.holders");
        let words = view.subscriber(slot as usize);
        topic.past.add_subscriber(&words);
        words.incarnation().store(0, Ordering::Release);
        // Last: a successor that finds the record does all this again.
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

    /// Drops the history that publishers of a topic left.
    pub(crate) fn forget_history(&mut self, index: u32) -> Forgotten {
        let topic = &mut self.topics[index];
        let (control, memory) = (&self.control, &mut self.memory);
        let forgotten = self.history.forget(topic, control, memory, &self.registry);
        self.maintain_topic(index);
        forgotten
    }

    /// Removes a topic that has neither members nor orphans. True: it did.
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

    /// Whether `maintain` may have something to do.
    pub(crate) fn needs_maintenance(&self) -> bool {
        self.topics_to_maintain().next().is_some()
            || self.adoption.has_set_aside()
            || self.control.timelines.unclaimed
    }

    fn topics_to_maintain(&self) -> impl Iterator<Item = u32> + '_ {
        self.history.topics().chain(self.deferred.topics())
    }

    /// Puts a dead client into quarantine: closes its subscribers, so that no publisher waits for them, and keeps all that it holds.
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

    /// Whether a client may have work on a GPU that touches what the zone shares.
    pub(crate) fn may_have_gpu_work(&self, client: u32) -> bool {
        let timelines = &self.control.timelines;
        // Until a predecessor's clients have handed back their timelines, any client may have some.
        if timelines.unclaimed || !timelines.of(client).is_empty() {
            return true;
        }
        if self.clients.get(client).is_some_and(|c| c.has_devices) {
            return true;
        }
        let members = self.topics.members_of(client).into_iter();
        let mut pools = members.flat_map(|(topic, side, slot)| {
            pools_of(self.topics.get(topic), side, slot, &self.memory)
        });
        pools.any(|pool| {
            let pool = self.memory.get(pool);
            pool.is_some_and(|pool| matches!(pool.domain, Domain::Cuda(_)))
        })
    }
}

/// Pools in which a member may read, or write messages and copies of them.
fn pools_of(topic: Option<&Topic>, side: Side, slot: u32, memory: &Memory) -> BTreeSet<u32> {
    let Some(topic) = topic else {
        return BTreeSet::new();
    };
    let mut pools: BTreeSet<u32> = topic.pool.into_iter().collect();
    match side {
        Side::Subscriber => pools.extend(topic.subscriber(slot).and_then(|s| s.pool)),
        Side::Publisher => {
            pools.extend(topic.foreign_pools());
            let owner = topic.granule_owner(slot);
            let all = memory.iter().map(|pool| pool.index);
            pools.extend(all.filter(|pool| memory.leased(*pool, owner) > 0));
        }
    }
    pools
}
