//! Device topics that processes of this host forward to and from ordinary topics: their descriptors, for who opens them by
//! name, and what listings say of them.

use crate::engine::Engine;
use crate::refuse::{bad, refuse, system};
use crate::registry::reopen;
use crate::sessions::SessionId;
use crate::topic::Device;
use rgaps_layout::{Domain, MAX_DEVICE_SUBSCRIBERS};
use rgaps_session::{bare_topic_name, Answer, DeviceRow, Member, Refusal, RefusalCode, Side};
use rustix::fs::OFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

impl Engine {
    /// Takes a report in. Whoever opens the device topic checks what the descriptors are.
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
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.topics.check_member(member, client)?;
        let device = Some(Arc::new(Device { row, fds }));
        let topic = &mut zone.topics[member.topic];
        match member.side {
            Side::Publisher => {
                let publisher = topic.publisher_mut(member.slot);
                publisher.map(|publisher| publisher.device = device)
            }
            Side::Subscriber => {
                let subscriber = topic.subscriber_mut(member.slot);
                subscriber.map(|subscriber| subscriber.device = device)
            }
        }
        .map(|()| Answer::Done)
        .ok_or_else(|| bad("there is no such member"))
    }

    /// Gives the descriptors out, to who may publish or subscribe to the topic.
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
        let topic = zone.and_then(|zone| zone.topics.get(zone.topics.find(name)?));
        let device = topic.and_then(|topic| topic.device()).ok_or_else(|| {
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
        Ok(Answer::Device(Box::new(device.row.clone())))
    }
}
