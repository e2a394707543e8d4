//! Seats of the links that nobody sits in: after the links' process has ended, its reliable subscribers stay in their
//! topics and hold publishers back until the next links take their places. See
//! `docs/decisions/0035-seats-of-the-links.md`.

use crate::leave::clear_holds;
use crate::step::step;
use crate::topic::Subscriber;
use crate::zone::Zone;
use rgaps_session::{Demand, Side};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{empty_deferred_releases, ring_publishers};
use std::time::Duration;

/// How long a seat stays empty before it is taken away.
pub(crate) const SEAT_KEPT: Duration = Duration::from_secs(30);

impl Zone {
    /// Whether a subscriber's seat outlives its process.
    fn is_seat(&self, subscriber: &Subscriber) -> bool {
        let waits = subscriber.demand.reliable && !subscriber.closed;
        waits && self.clients.is_links(subscriber.client)
    }

    /// Whether that is a member whose seat does.
    pub(crate) fn leaves_a_seat(&self, topic: u32, side: Side, slot: u32) -> bool {
        let topic = self.topics.get(topic).filter(|_| side == Side::Subscriber);
        let subscriber = topic.and_then(|topic| topic.subscriber(slot));
        subscriber.is_some_and(|subscriber| self.is_seat(subscriber))
    }

    /// The process of a subscriber has ended: what it held goes, and its seat stays. Returns how many blocks that freed; none:
    /// the seat cannot stay.
    pub(crate) fn vacate(&mut self, index: u32, slot: u32) -> Option<u64> {
        let topic = self.topics.get(index)?;
        let view = self.control.topic(topic.region);
        view.sleepers().fetch_and(!(1 << slot), Ordering::AcqRel);
        // Before its bits: no publisher begins to clear one that is the successor's by then.
        if !empty_deferred_releases(&view, slot, |slot, number| topic.publishes(slot, number)) {
            return None;
        }
        step!("vacate.deferred_releases");
        let freed = clear_holds(&self.control, topic, slot);
        step!("vacate.holders");
        ring_publishers(&view, u64::MAX);
        Some(freed)
    }

    /// An empty seat of the topic for links that demand this and read there; they sit down. Other empty seats of the topic
    /// are taken away: the next links have none but one subscriber.
    pub(crate) fn take_seat(
        &mut self,
        index: u32,
        demand: Demand,
        pool: Option<u32>,
    ) -> Option<Subscriber> {
        let topic = self.topics.get(index)?;
        let empty = topic.subscribers.iter().filter(|s| self.is_empty(s));
        let empty: Vec<Subscriber> = empty.cloned().collect();
        let mut taken = None;
        for seat in empty {
            let fits = demand.reliable && seat.pool == pool && taken.is_none();
            match fits && self.vacate(index, seat.slot).is_some() {
                true => taken = Some(seat),
                // The topic stays, for it is being joined.
                false => {
                    self.remove_subscriber(index, seat.slot);
                }
            }
        }
        taken
    }

    /// Whether it is a seat whose client's process is gone, although perhaps nobody has looked yet.
    fn is_empty(&self, subscriber: &Subscriber) -> bool {
        let Some(client) = self.clients.get(subscriber.client) else {
            return false;
        };
        let is_gone = || self.registry.is_locked(subscriber.client);
        let is_gone = || client.session.is_none() && matches!(is_gone(), Ok(false));
        self.is_seat(subscriber) && (client.vacant_until.is_some() || is_gone())
    }

    /// Clients whose last seat was taken are nobody any more.
    pub(crate) fn forget_seatless(&mut self) {
        for index in self.clients.vacant() {
            if self.members_of(index).is_empty() {
                self.remove_client(index);
            }
        }
    }
}
