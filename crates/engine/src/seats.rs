//! Empty seats of the links: after the links' process has ended, its reliable subscribers stay in their
//! topics and hold publishers back until the next links take their seats. See
//! `docs/decisions/0035-seats-of-the-links.md`.

use crate::clients::Clients;
use crate::control::Control;
use crate::deferred_release::finish;
use crate::membership::clear_holds;
use crate::registry::RegistryFile;
use crate::step::step;
use crate::topic::{Subscriber, Topic};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::ring_publishers;
use std::time::Duration;

/// How long a seat stays empty before it is taken away.
pub(crate) const SEAT_KEPT: Duration = Duration::from_secs(30);

/// Whether a subscriber's seat outlives its process.
fn is_seat(subscriber: &Subscriber, clients: &Clients) -> bool {
    let waits = subscriber.demand.reliable && !subscriber.closed;
    waits && clients.is_links(subscriber.client)
}

/// The process of a subscriber has ended: what it held is freed, and its seat stays. Returns how many blocks that freed;
/// none: it has no seat that could stay.
pub(crate) fn vacate_seat(
    topic: &Topic,
    slot: u32,
    clients: &Clients,
    control: &Control,
) -> Option<u64> {
    topic
        .subscriber(slot)
        .filter(|subscriber| is_seat(subscriber, clients))?;
    let view = control.topic(topic.region);
    view.sleepers().fetch_and(!(1 << slot), Ordering::AcqRel);
    // Before its bits: no publisher begins to clear one that is the successor's by then.
    if !finish(topic, slot, control) {
        return None;
    }
    step!("vacate.deferred_releases");
    let freed = clear_holds(control, topic, slot);
    step!("vacate.holders");
    ring_publishers(&view, u64::MAX);
    Some(freed)
}

/// Seats whose client's process has ended, although perhaps nobody has looked yet.
pub(crate) fn empty_seats(
    topic: &Topic,
    clients: &Clients,
    registry: &RegistryFile,
) -> Vec<Subscriber> {
    let is_empty = |subscriber: &&Subscriber| {
        let Some(client) = clients.get(subscriber.client) else {
            return false;
        };
        let is_unlocked = || matches!(registry.is_locked(subscriber.client), Ok(false));
        let has_ended = || client.session.is_none() && is_unlocked();
        is_seat(subscriber, clients) && (client.vacant_until.is_some() || has_ended())
    };
    topic.subscribers.iter().filter(is_empty).cloned().collect()
}
