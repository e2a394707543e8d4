//! Device topics that processes of this host forward to and from ordinary topics: the daemon keeps their descriptors for processes that
//! open them by name, lists them, and decides which seats end.
//!
//! The daemon maps no memory of a device topic. The forwarding process reports to it, and ends the seats that the answer names. While no
//! process forwards, the topic's publisher waits in any case.

use crate::clients::{Client, Clients, QUARANTINED};
use crate::engine::Engine;
use crate::refuse::{bad, refuse, system};
use crate::registry::reopen;
use crate::sessions::SessionId;
use crate::topic::Device;
use rgaps_layout::{is_device_owner_in, Domain, MAX_DEVICE_SUBSCRIBERS};
use rgaps_session::{
    bare_topic_name, Answer, DeviceRow, DeviceSeatRow, Member, Refusal, RefusalCode, SeatEnd, Side,
    ZoneGrant, ZoneId,
};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The seats that a publisher waits for: the message that each wants, and since when.
type Stalled = BTreeMap<u32, (u64, Instant)>;

impl Engine {
    /// Takes a report in, and says which seats end. Whoever opens the device topic checks what the descriptors are.
    pub(crate) fn set_device(
        &mut self,
        session: SessionId,
        member: &Member,
        row: DeviceRow,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let fds = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|_| bad("a device topic has three descriptors"))?;
        if row.seats.len() > MAX_DEVICE_SUBSCRIBERS as usize {
            return Err(bad("a device topic has not as many seats"));
        }
        let (now, stall_ms) = (self.now, self.setup.config.limits.device_stall_ms);
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.topics.check_member(member, client)?;
        let topic = &mut zone.topics[member.topic];
        let name = topic.name.clone();
        let device = match member.side {
            Side::Publisher => topic.publisher_mut(member.slot).map(|p| &mut p.device),
            Side::Subscriber => topic.subscriber_mut(member.slot).map(|s| &mut s.device),
        };
        let device = device.ok_or_else(|| bad("there is no such member"))?;
        let before = device.as_ref().map(|device| &device.stalled);
        let stalled = stalled(&row, before, now);
        let mut ends = Vec::new();
        let limit = Duration::from_millis(stall_ms);
        for seat in &row.seats {
            let waited = stalled.get(&seat.seat).map(|(_, since)| now - *since);
            let is_stalled = stall_ms > 0 && waited.is_some_and(|waited| waited >= limit);
            ends.extend(end_of(seat, zone.id, &mut zone.clients, is_stalled, &name));
        }
        *device = Some(Arc::new(Device { row, fds, stalled }));
        Ok(Answer::Seats(ends))
    }

    /// Gives the descriptors out, to who may publish or subscribe to the topic. Seats that it takes are its own.
    pub(crate) fn open_device(
        &mut self,
        session: SessionId,
        name: &str,
        publishes: bool,
        out: &mut Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let name = bare_topic_name(name);
        let class = self.check_access(session, name, publishes)?;
        let zone = self.zones.of_class(&class);
        let found = zone.and_then(|zone| {
            let topic = zone.topics.get(zone.topics.find(name)?)?;
            Some((zone.id, topic.device()?.clone()))
        });
        let (zone, device) = found.ok_or_else(|| {
            refuse(
                RefusalCode::NotFound,
                format!(
                    "no process forwards to or from a device topic '{name}'; start the one that makes it, and its bridge"
                ),
            )
        })?;
        let fail = |error: std::io::Error| system("duplicate a descriptor", error);
        let [control, ring, words] = &device.fds;
        let ring = match (device.row.domain, publishes) {
            (Domain::Host, false) => reopen(ring.as_fd(), OFlags::RDONLY),
            _ => ring.try_clone(),
        };
        for fd in [control.try_clone(), ring, words.try_clone()] {
            out.push(fd.map_err(fail)?);
        }
        let grant = self.admit_owner(session, zone, out)?;
        Ok(Answer::Device {
            device: Box::new(device.row.clone()),
            zone,
            grant,
        })
    }

    /// Has the session's client in the zone, as one that may have seats. The grant is for who was not in it.
    fn admit_owner(
        &mut self,
        session: SessionId,
        zone_id: ZoneId,
        out: &mut Vec<OwnedFd>,
    ) -> Result<Option<ZoneGrant>, Refusal> {
        self.note_process(session);
        let known = self.sessions.require(session)?;
        let zone = self.zones.get_mut(zone_id);
        let zone = zone.expect("it has the device topic");
        let in_zone = known.zones.get(&zone_id).copied();
        let grant = match in_zone {
            Some(_) => None,
            None => {
                let grant = zone.admit(Client::of(session, known), out)?;
                known.zones.insert(zone_id, grant.client_index);
                Some(grant)
            }
        };
        let index = in_zone.or(grant.map(|grant| grant.client_index));
        if let Some(client) = index.and_then(|index| zone.clients.get_mut(index)) {
            client.has_devices = true;
        }
        if grant.is_some() {
            // A successor would take the zone for one of the dead, if this one alone lived.
            self.write_state();
        }
        Ok(grant)
    }
}

/// Which seats the publisher waits for now, and since when they want the same message.
fn stalled(row: &DeviceRow, before: Option<&Stalled>, now: Instant) -> Stalled {
    // Subscribers that hold blocks may themselves wait for the publisher. So when no block is left, the one that holds most is to blame.
    let most = row.seats.iter().map(|seat| seat.held).max();
    let waited_for = row.seats.iter().filter(|seat| Some(seat.held) == most);
    // A bridge waits for its hosts, which hold the publisher back by right.
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

/// How a seat ends, if it does: its owner has died, or it has received nothing for too long.
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
    // Of a zone that was lost the daemon does not know who lives.
    if is_device_owner_in(zone, seat.owner) {
        let Some(client) = clients.owner_of_seat(zone, seat.owner) else {
            tracing::warn!(
                topic,
                seat = seat.seat,
                "the process of a device topic's subscriber has ended; its seat is free"
            );
            return end(true);
        };
        // Also of one that a predecessor let in.
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
