//! A client that speaks the bare protocol: it asks nobody whom it tests but the daemon.

use anyhow::{anyhow, bail, Context};
use rgaps_layout::LAYOUT_VERSION;
use rgaps_session::{
    Answer, ClientPacket, ClientRow, DaemonPacket, Demand, Member, PoolRow, Request, Role,
    SessionSocket, SocketError, Status, TopicRow, PROTOCOL_VERSION,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::OwnedFd;
use std::path::Path;

/// How long the daemon may take to answer.
const PATIENCE: Timespec = Timespec {
    tv_sec: 120,
    tv_nsec: 0,
};
/// The topic through which the checker comes into the zone.
pub const TOPIC: &str = "chaos/checker";

/// A session.
pub struct Raw {
    channel: SessionSocket,
    next_id: u64,
    member: Option<Member>,
}

impl Raw {
    pub fn connect(socket: &Path) -> anyhow::Result<Raw> {
        let channel = SessionSocket::connect(socket)?;
        channel.set_nonblocking(true)?;
        let mut raw = Raw {
            channel,
            next_id: 1,
            member: None,
        };
        raw.call(Request::Hello {
            protocol: PROTOCOL_VERSION,
            layout: LAYOUT_VERSION,
            realm: "default".to_owned(),
            name: "checker".to_owned(),
        })?;
        Ok(raw)
    }

    pub fn call(&mut self, request: Request) -> anyhow::Result<(Answer, Vec<OwnedFd>)> {
        let id = self.next_id;
        self.next_id += 1;
        self.channel.send(&ClientPacket { id, request }, &[])?;
        loop {
            match self.channel.receive::<DaemonPacket>() {
                Ok(Some((DaemonPacket::Answer { id: to, result }, fds))) if to == id => {
                    return Ok((result?, fds));
                }
                Ok(Some(_)) => {}
                Ok(None) => bail!("the daemon closed the session"),
                Err(SocketError::WouldBlock) => self.wait()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(&self) -> anyhow::Result<()> {
        let mut polled = [PollFd::new(&self.channel, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&PATIENCE)))
            .context("poll")?;
        if ready == 0 {
            bail!("the daemon does not answer");
        }
        Ok(())
    }

    pub fn status(&mut self) -> anyhow::Result<Status> {
        match self.call(Request::Status)?.0 {
            Answer::Status(status) => Ok(status),
            other => Err(anyhow!("a status: {other:?}")),
        }
    }

    pub fn pools(&mut self) -> anyhow::Result<Vec<PoolRow>> {
        match self.call(Request::Pools)?.0 {
            Answer::Pools(pools) => Ok(pools),
            other => Err(anyhow!("pools: {other:?}")),
        }
    }

    /// The first page of client processes; the test has far fewer.
    pub fn clients(&mut self) -> anyhow::Result<Vec<ClientRow>> {
        match self.call(Request::Clients { from: 0 })?.0 {
            Answer::Clients(clients) => Ok(clients),
            other => Err(anyhow!("clients: {other:?}")),
        }
    }

    pub fn topics(&mut self) -> anyhow::Result<Vec<TopicRow>> {
        match self.call(Request::Topics { from: 0 })?.0 {
            Answer::Topics(topics) => Ok(topics),
            other => Err(anyhow!("topics: {other:?}")),
        }
    }

    /// Joins a topic of its own, for the descriptors of registry and control segment.
    pub fn enter_zone(&mut self) -> anyhow::Result<[OwnedFd; 2]> {
        let demand = Demand {
            reliable: false,
            transient_local: false,
            depth: 0,
        };
        let (answer, fds) = self.call(Request::Join {
            topic: TOPIC.to_owned(),
            type_name: String::new(),
            domain: None,
            role: Role::Subscriber(demand),
            require: None,
            arrives_over: None,
        })?;
        let Answer::Joined { member, .. } = answer else {
            bail!("a join: {answer:?}");
        };
        self.member = Some(member);
        <[OwnedFd; 2]>::try_from(fds).map_err(|fds| anyhow!("{} descriptors", fds.len()))
    }

    /// Bytes of memory that the segments of the zone's first pool take.
    pub fn pool_memory(&mut self) -> anyhow::Result<u64> {
        let zone = self.member.context("the zone is not entered")?.zone;
        let mut bytes = 0;
        let mut from = 0;
        loop {
            let (_, fds) = self.call(Request::Segments {
                zone,
                pool: 0,
                from,
                writable: false,
            })?;
            if fds.is_empty() {
                return Ok(bytes);
            }
            from += fds.len() as u32;
            for fd in fds {
                bytes += rustix::fs::fstat(&fd)?.st_blocks as u64 * 512;
            }
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The process goes on, so the daemon would wait for its end. If the daemon is gone, so is
        // the membership.
        if let Some(member) = self.member.take() {
            let _ = self.call(Request::Leave(member));
        }
    }
}
