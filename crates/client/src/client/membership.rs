//! The conductor's commands for joining and leaving, for doorbells of wait sets and timelines of streams, and for device topics.

use super::conductor::{Joined, OpenedDevice};
use super::daemon_session::DaemonSession;
use super::session::CallError;
use super::worker::{reason, unexpected, Worker};
use super::zone_records::{MemberBook, ZoneBook};
use super::{ClientError, ZoneView};
use rgaps_session::{Answer, DeviceRow, Member, Request, Ring, SeatEnd, ZoneGrant, ZoneId};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

impl Worker {
    pub(super) fn join(&mut self, request: &Request) -> Result<Joined, ClientError> {
        let (answer, fds) = self.ask(request)?;
        let Answer::Joined {
            member,
            grant,
            region_offset,
            topic_id,
            doorbell,
            ring,
            pool,
            reads,
        } = answer
        else {
            return Err(unexpected("a join", &answer));
        };
        let zone = match self.enter_zone(member.zone, grant, fds) {
            Ok(zone) => zone,
            Err(error) => {
                self.undo_join(member);
                return Err(error);
            }
        };
        let book = self.zone(member.zone)?;
        for pool in pool.iter().chain(&reads) {
            book.pool(pool);
        }
        // A subscriber's ring is all zeros.
        let own = pool.filter(|_| ring != Ring::default());
        book.members.insert(
            member,
            MemberBook {
                arena: None,
                leases: own
                    .map(|pool| (pool.pool, Vec::new()))
                    .into_iter()
                    .collect(),
                reads: reads.map(|pool| pool.pool),
                path: None,
            },
        );
        Ok(Joined {
            member,
            zone,
            region_offset,
            topic_id,
            doorbell,
            ring,
            pool,
            reads,
        })
    }

    /// The view of a zone. The first join of this process in a zone brings `grant` and descriptors, from which this makes the view.
    fn enter_zone(
        &mut self,
        id: ZoneId,
        grant: Option<ZoneGrant>,
        fds: Vec<OwnedFd>,
    ) -> Result<Arc<ZoneView>, ClientError> {
        if let Some(book) = self.zones.get(&id) {
            if grant.is_some_and(|grant| grant != book.view.grant()) {
                return Err(ClientError::Protocol("it granted a zone twice".to_owned()));
            }
            return Ok(book.view.clone());
        }
        let Some(grant) = grant else {
            return Err(ClientError::Protocol(
                "it granted no access to a new zone".to_owned(),
            ));
        };
        let Ok([registry, control]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(ClientError::Protocol(
                "it granted a zone without its memory".to_owned(),
            ));
        };
        let view = Arc::new(ZoneView::new(
            id,
            grant,
            registry,
            control,
            self.guard.clone(),
        )?);
        self.zones.insert(id, ZoneBook::new(view.clone()));
        Ok(view)
    }

    fn undo_join(&mut self, member: Member) {
        if let DaemonSession::Up(session) = &mut self.link {
            if let Err(error) = session.call(&Request::Leave(member), &[]) {
                // End the session: in it the daemon would keep a member that this process does not have.
                self.lose(reason(error));
            }
        }
    }

    /// Tells the daemon. Without one, the next daemon finds in shared memory that the subscriber is closed.
    pub(super) fn close_subscriber(&mut self, member: Member) -> Result<(), ClientError> {
        self.give_up(&Request::Close(member))
    }

    pub(super) fn leave(&mut self, member: Member) -> Result<(), ClientError> {
        let known = self.zone(member.zone)?.members.remove(&member);
        if known.is_none() {
            return Ok(());
        }
        let left = self.give_up(&Request::Leave(member));
        self.forget_if_lost(member.zone);
        left
    }

    /// Removes the records of a lost zone when no member or doorbell of this process is left in it.
    fn forget_if_lost(&mut self, zone: ZoneId) {
        let over = self
            .zones
            .get(&zone)
            .is_some_and(|b| b.view.lost().is_some() && b.is_empty());
        if over {
            self.zones.remove(&zone);
        }
    }

    pub(super) fn take_doorbell(&mut self, zone: ZoneId) -> Result<u32, ClientError> {
        let (answer, _) = self.ask(&Request::TakeDoorbell { zone })?;
        let Answer::Doorbell { doorbell } = answer else {
            return Err(unexpected("a request for a doorbell", &answer));
        };
        self.zone(zone)?.doorbells.insert(doorbell);
        Ok(doorbell)
    }

    pub(super) fn return_doorbell(
        &mut self,
        zone: ZoneId,
        doorbell: u32,
    ) -> Result<(), ClientError> {
        if !self.zone(zone)?.doorbells.remove(&doorbell) {
            return Ok(());
        }
        let returned = self.give_up(&Request::ReturnDoorbell { zone, doorbell });
        self.forget_if_lost(zone);
        returned
    }

    pub(super) fn take_timeline(&mut self, zone: ZoneId) -> Result<u32, ClientError> {
        // Do not wait for a daemon: publishing a message waits for this call, and without a timeline it can wait for the stream.
        let answer = self.ask_now(&Request::TakeTimeline { zone })?;
        let Answer::Timeline { timeline } = answer else {
            return Err(unexpected("a request for a timeline", &answer));
        };
        self.zone(zone)?.timelines.insert(timeline);
        Ok(timeline)
    }

    pub(super) fn return_timeline(
        &mut self,
        zone: ZoneId,
        timeline: u32,
    ) -> Result<(), ClientError> {
        if !self.zone(zone)?.timelines.remove(&timeline) {
            return Ok(());
        }
        self.give_up(&Request::ReturnTimeline { zone, timeline })
    }

    pub(super) fn report_path(&mut self, member: Member, path: String) -> Result<(), ClientError> {
        if let Some(book) = self.zone(member.zone)?.members.get_mut(&member) {
            book.path = Some(path.clone());
        }
        self.give_up(&Request::Path { member, path })
    }

    pub(super) fn report_device(
        &mut self,
        member: Member,
        device: DeviceRow,
        fds: &[OwnedFd],
    ) -> Result<Vec<SeatEnd>, ClientError> {
        let DaemonSession::Up(session) = &mut self.link else {
            return Ok(Vec::new());
        };
        let device = Box::new(device);
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(OwnedFd::as_fd).collect();
        match session.call(&Request::Device { member, device }, &fds) {
            Ok((Answer::Seats(ends), _)) => Ok(ends),
            Ok((other, _)) => Err(unexpected("a device topic", &other)),
            Err(error @ (CallError::Lost(_) | CallError::NoAnswer { .. })) => {
                self.lose(reason(error));
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the device topic that a bridge forwards to or from `topic`. This process enters the topic's zone, if it is not in it.
    pub(super) fn open_device(
        &mut self,
        topic: String,
        publishes: bool,
    ) -> Result<OpenedDevice, ClientError> {
        let request = Request::OpenDevice { topic, publishes };
        let (answer, mut fds) = self.ask(&request)?;
        let Answer::Device {
            device,
            zone,
            grant,
        } = answer
        else {
            return Err(unexpected("a request for a device topic", &answer));
        };
        let of_zone = fds.split_off(fds.len().min(3));
        let zone = self.enter_zone(zone, grant, of_zone)?;
        let fds = <[OwnedFd; 3]>::try_from(fds).map_err(|_| {
            ClientError::Protocol("it gave a device topic without its memory".to_owned())
        })?;
        Ok(OpenedDevice {
            row: *device,
            fds,
            zone,
        })
    }

    pub(super) fn gpu_lost(&mut self, zone: ZoneId) -> Result<(), ClientError> {
        self.zone(zone)?.timelines.clear();
        self.give_up(&Request::GpuLost { zone })
    }
}
