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

/// How long a seat stays empty before its subscriber is removed.
pub(crate) const SEAT_KEPT: Duration = Duration::from_secs(30);

/// Whether a subscriber keeps its seat after its process has ended.
fn is_seat(subscriber: &Subscriber, clients: &Clients) -> bool {
    let waits = subscriber.demand.reliable && !subscriber.closed;
    waits && clients.is_links(subscriber.client)
}

/// Frees the blocks that a subscriber held whose process has ended, and keeps its seat. Returns how many blocks that freed. None:
/// it has no seat that can stay.
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
    // Before its bits are cleared: otherwise a publisher could clear a bit that the next subscriber in the slot has set.
    if !finish(topic, slot, control) {
        return None;
    }
    step!("vacate.deferred_releases");
    let freed = clear_holds(control, topic, slot);
    step!("vacate.holders");
    ring_publishers(&view, u64::MAX);
    Some(freed)
}

/// The subscribers of a topic whose seat is empty. Looks at the registry's locks, since the daemon may not have noticed the end of
/// the process yet.
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
