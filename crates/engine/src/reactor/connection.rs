//! A session's socket: what came, and what is still to go out.

use crate::sessions::Peer;
use rgaps_session::{Channel, ClientPacket, DaemonPacket, Notice, SocketError};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Packets that wait for room in a client's socket: one answer, for no request is read before it is gone, and news. A
/// client that lets so many pile up is broken.
const MAX_QUEUED: usize = 128;
/// Bytes that the system keeps for a client that does not read.
const MAX_UNREAD_BYTES: usize = 96 << 10;
/// Descriptors that one client has not read. A client that waits for each answer before it asks again stays far below.
pub(super) const MAX_UNREAD_FDS: usize = 128;
/// Of these, with news that nobody asked for: the rest is for answers.
const MAX_UNREAD_NOTICE_FDS: usize = 64;
/// More packets than the system keeps for one client.
const MAX_SENT: usize = 512;

/// `ETOOMANYREFS`.
const TOO_MANY_REFERENCES: i32 = rustix::io::Errno::TOOMANYREFS.raw_os_error();

/// What to do about a socket after writing to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    /// As before.
    Same,
    /// Tell when there is room to write, or stop telling.
    Wait(bool),
    /// The kernel takes no descriptors now: send again in a while.
    Pause,
    /// All is sent that was to be sent, or nothing more can be.
    Finished,
}

/// What the next packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ahead {
    /// Bytes alone, or it is the session's end.
    Bytes,
    /// Descriptors, too.
    Descriptors,
}

/// A session's socket.
pub(super) struct Connection {
    channel: Channel,
    /// Whether the client was welcomed; only then may it send descriptors.
    welcomed: bool,
    queue: VecDeque<(DaemonPacket, Vec<OwnedFd>)>,
    /// How many descriptors the last packets carried, the newest last.
    sent: VecDeque<u8>,
    waiting: bool,
    leaving: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Connection {
    /// A connection over an accepted channel.
    pub(super) fn new(channel: Channel) -> Connection {
        Connection {
            channel,
            welcomed: false,
            queue: VecDeque::new(),
            sent: VecDeque::new(),
            waiting: false,
            leaving: false,
        }
    }

    /// Who is at the other end, and what tells when its process ends.
    pub(super) fn identify(&self) -> Result<(Peer, Option<OwnedFd>), SocketError> {
        self.channel.set_nonblocking(true)?;
        self.channel.limit_unread(MAX_UNREAD_BYTES)?;
        let process = self.channel.peer_pidfd();
        let peer = Peer {
            credentials: self.channel.peer()?,
            groups: self.channel.peer_groups()?,
            process_is_watched: process.is_some(),
        };
        Ok((peer, process))
    }

    /// The client may send descriptors from now on.
    pub(super) fn welcome(&mut self) {
        self.welcomed = true;
        self.channel.accept_descriptors(true);
    }

    /// What to do with the next packet, which stays where it is.
    pub(super) fn look_ahead(&self) -> Result<Ahead, SocketError> {
        match (self.channel.carries_descriptors()?, self.welcomed) {
            (true, false) => Err(SocketError::UnexpectedDescriptors),
            (true, true) => Ok(Ahead::Descriptors),
            (false, _) => Ok(Ahead::Bytes),
        }
    }

    /// The next request. Descriptors of a packet that is none go to `discard`.
    pub(super) fn receive(
        &self,
        discard: &mut dyn FnMut(Vec<OwnedFd>),
    ) -> Result<Option<(ClientPacket, Vec<OwnedFd>)>, SocketError> {
        self.channel.receive_or_discard(discard)
    }

    /// Ends the session. Gives the socket if descriptors of the client's lie in it, so that closing it may block.
    pub(super) fn end(self) -> Option<OwnedFd> {
        match self.channel.discard_unread() {
            true => None,
            false => Some(self.channel.into()),
        }
    }

    /// Sends a packet as soon as it can be. News give up their descriptors rather than wait: the client asks for them.
    pub(super) fn push(
        &mut self,
        mut packet: DaemonPacket,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Flow, &'static str> {
        if let DaemonPacket::Notice(notice) = &mut packet {
            if self
                .queue
                .iter()
                .any(|(queued, _)| matches!(queued, DaemonPacket::Notice(same) if same == notice))
            {
                return Ok(Flow::Same);
            }
            let crowded = self.has_more() || self.unread_fds() + fds.len() > MAX_UNREAD_NOTICE_FDS;
            if let (Notice::PoolGrown { bytes, .. }, true, false) =
                (notice, crowded, fds.is_empty())
            {
                bytes.clear();
                fds.clear();
            }
        }
        if self.queue.len() >= MAX_QUEUED {
            return Err("the client does not read its notices");
        }
        self.queue.push_back((packet, fds));
        Ok(self.flush())
    }

    /// Descriptors that were sent and not read yet, at most; with those that wait to be sent.
    pub(super) fn unread_fds(&self) -> usize {
        let queued = self.queued_fds();
        if self.sent.iter().all(|count| *count == 0) {
            return queued;
        }
        let unread = self.channel.unread_packets_max();
        let sent: usize = self
            .sent
            .iter()
            .rev()
            .take(unread)
            .map(|count| usize::from(*count))
            .sum();
        queued + sent
    }

    /// Descriptors that wait to be sent, which this process has open.
    pub(super) fn queued_fds(&self) -> usize {
        self.queue.iter().map(|(_, fds)| fds.len()).sum()
    }

    /// Ends the session when all is sent.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    pub(super) fn has_more(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn flush(&mut self) -> Flow {
        while let Some((packet, fds)) = self.queue.front_mut() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.channel.send(packet, &borrowed) {
                Ok(()) => {
                    self.sent.push_back(fds.len() as u8);
                    if self.sent.len() > MAX_SENT {
                        self.sent.pop_front();
                    }
                    self.queue.pop_front();
                }
                // Too many descriptors are under way to clients that do not read. A client asks for those of news; an answer waits.
                Err(SocketError::System { source, .. })
                    if source.raw_os_error() == Some(TOO_MANY_REFERENCES) && !fds.is_empty() =>
                {
                    let DaemonPacket::Notice(Notice::PoolGrown { bytes, .. }) = packet else {
                        self.waiting = true;
                        return Flow::Pause;
                    };
                    bytes.clear();
                    fds.clear();
                }
                Err(SocketError::WouldBlock) => return self.wait(true),
                Err(SocketError::Closed) => return Flow::Finished,
                Err(error) => {
                    tracing::error!(%error, "sending an answer to a client failed");
                    return Flow::Finished;
                }
            }
        }
        if self.leaving {
            return Flow::Finished;
        }
        self.wait(false)
    }

    fn wait(&mut self, wait: bool) -> Flow {
        if self.waiting == wait {
            return Flow::Same;
        }
        self.waiting = wait;
        Flow::Wait(wait)
    }
}
