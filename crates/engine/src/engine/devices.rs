//! Device topics that processes of this host forward to and from ordinary topics: the daemon keeps their descriptors for processes that
//! open them by name, lists them, and decides which seats end.
//!
//! The daemon maps no memory of a device topic. The forwarding process reports the topic's state, and ends the seats that the answer
//! names. While no process forwards, no seat ends, and the topic's publisher waits for all of them.

use super::Engine;
use crate::clients::Client;
use crate::refuse::{bad, refuse, system};
use crate::registry::reopen;
use crate::sessions::SessionId;
use rgaps_layout::{Domain, MAX_DEVICE_SUBSCRIBERS};
use rgaps_session::{
    bare_topic_name, Answer, DeviceRow, Member, Refusal, RefusalCode, ZoneGrant, ZoneId,
};
use rustix::fs::OFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

impl Engine {
    /// Keeps a bridge's report of its device topic, and answers with the seats that the bridge has to end. Does not check what the
    /// descriptors are: whoever opens the device topic does.
    pub(super) fn set_device(
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
        let limit = (stall_ms > 0).then(|| Duration::from_millis(stall_ms));
        let (zone, client) = self.zone_of(session, member.zone)?;
        let ends = zone.report_device(client, member, row, fds, now, limit)?;
        Ok(Answer::Seats(ends))
    }

    /// Gives the descriptors of a device topic to a client that may publish or subscribe to the topic. The client takes seats
    /// by itself.
    pub(super) fn open_device(
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
            let device = zone.topic_named(name)?.device()?;
            Some((zone.id(), device.clone()))
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

    /// Lets the session's client into the zone, and notes that it may have seats. Returns a grant if it was not in the zone.
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
        if let Some(client) = index.and_then(|index| zone.clients_mut().get_mut(index)) {
            client.has_devices = true;
        }
        if grant.is_some() {
            // Without this, a successor would take the zone for dead if only this client lived.
            self.write_state();
        }
        Ok(grant)
    }
}
