//! What members report: the hosts that a subscriber of the links stands for, and the device topic that a bridge forwards.

use super::Zone;
use crate::clients::{Clients, QUARANTINED};
use crate::membership::announce;
use crate::refuse::bad;
use crate::topic::Device;
use rgaps_layout::is_device_owner_in;
use rgaps_session::{DeviceRow, DeviceSeatRow, Member, Refusal, RemoteRow, SeatEnd, Side, ZoneId};
use rgaps_sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// By seat that the publisher waits for: the message that it wants next, and since when.
type Stalled = BTreeMap<u32, (u64, Instant)>;

impl Zone {
    /// Sets the hosts that a subscriber of the links stands for, and in its slot the number of their subscribers.
    pub(crate) fn set_remote(
        &mut self,
        member: &Member,
        client: u32,
        hosts: Vec<RemoteRow>,
    ) -> Result<(), Refusal> {
        self.topics.check_member(member, client)?;
        let Some(topic) = self.topics.get_mut(member.topic) else {
            return Err(bad("there is no such topic"));
        };
        let ready = hosts.iter().filter(|row| row.ready);
        let count = ready.fold(0u32, |sum, row| sum.saturating_add(row.subscribers));
        let view = self.control.topic(topic.region);
        let word = view.subscriber(member.slot as usize);
        let before = word
            .stands_for()
            .swap(count.saturating_add(1), Ordering::AcqRel);
        if let Some(subscriber) = topic.subscriber_mut(member.slot) {
            subscriber.remote = hosts;
        }
        if before != count.saturating_add(1) {
            // Wakes publishers that wait for subscribers.
            announce(&self.control, topic);
        }
        Ok(())
    }

    /// Keeps a bridge's report of its device topic, and returns the seats that end. A seat that the publisher has waited for
    /// longer than `stall_limit` is evicted; `None` evicts none for that.
    pub(crate) fn report_device(
        &mut self,
        client: u32,
        member: &Member,
        row: DeviceRow,
        fds: [OwnedFd; 3],
        now: Instant,
        stall_limit: Option<Duration>,
    ) -> Result<Vec<SeatEnd>, Refusal> {
        self.topics.check_member(member, client)?;
        let topic = &mut self.topics[member.topic];
        let name = topic.name.clone();
        let device = match member.side {
            Side::Publisher => topic.publisher_mut(member.slot).map(|p| &mut p.device),
            Side::Subscriber => topic.subscriber_mut(member.slot).map(|s| &mut s.device),
        };
        let device = device.ok_or_else(|| bad("there is no such member"))?;
        let before = device.as_ref().map(|device| &device.stalled);
        let stalled = stalled(&row, before, now);
        let mut ends = Vec::new();
        for seat in &row.seats {
            let waited = stalled.get(&seat.seat).map(|(_, since)| now - *since);
            let is_stalled = waited
                .zip(stall_limit)
                .is_some_and(|(waited, limit)| waited >= limit);
            ends.extend(end_of(seat, self.id, &mut self.clients, is_stalled, &name));
        }
        *device = Some(Arc::new(Device { row, fds, stalled }));
        Ok(ends)
    }
}

/// The seats that the publisher waits for, and since when each has wanted the same message.
fn stalled(row: &DeviceRow, before: Option<&Stalled>, now: Instant) -> Stalled {
    // Subscribers that hold blocks may themselves wait for the publisher. So only the seats that hold most blocks count as stalled.
    let most = row.seats.iter().map(|seat| seat.held).max();
    let waited_for = row.seats.iter().filter(|seat| Some(seat.held) == most);
    // A bridge waits for other hosts, and back-pressure from those is intended.
    let waited_for = waited_for.filter(|seat| !seat.is_bridge && row.waits_for(seat));
    let since = waited_for.map(|seat| {
        let known = before.and_then(|before| before.get(&seat.seat));
        let same = known.filter(|(wanted, _)| *wanted == seat.next_sequence);
        (
            seat.seat,
            same.copied().unwrap_or((seat.next_sequence, now)),
        )
    });
    since.collect()
}

/// How a seat ends, if it does: its owner has died, or the publisher has waited for it for too long.
fn end_of(
    seat: &DeviceSeatRow,
    zone: ZoneId,
    clients: &mut Clients,
    is_stalled: bool,
    topic: &str,
) -> Option<SeatEnd> {
    let end = |is_free| {
        Some(SeatEnd {
            seat: seat.seat,
            owner: seat.owner,
            is_free,
        })
    };
    let mut name = "a process that the daemon does not know".to_owned();
    // For owners in another zone, which may be a lost one, the daemon does not know who lives.
    if is_device_owner_in(zone, seat.owner) {
        let Some(client) = clients.owner_of_seat(zone, seat.owner) else {
            tracing::warn!(
                topic,
                seat = seat.seat,
                "the process of a device topic's subscriber has ended; its seat is free"
            );
            return end(true);
        };
        // A predecessor may have let the client in, so the note may be missing.
        client.has_devices = true;
        name = format!("'{}' (process {})", client.name, client.pid);
        if client.session == Some(QUARANTINED) && !seat.evicted {
            tracing::warn!(topic, seat = seat.seat, client = name, "a device topic's subscriber is evicted: its process has ended, and its seat is free when its work on the GPU has");
            return end(false);
        }
    }
    if !is_stalled || seat.evicted {
        return None;
    }
    tracing::warn!(topic, seat = seat.seat, client = name, "a device topic's subscriber is evicted: the publisher waited for it for longer than limits.device_stall_ms");
    end(false)
}
