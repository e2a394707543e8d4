//! A session's socket, with the packets that wait to be sent.

use crate::sessions::Peer;
use rgaps_session::{ClientPacket, DaemonPacket, Notice, SessionSocket, SocketError};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Packets that wait for room in a client's socket: notices and one answer, since no request is read before the answer is sent. A
/// client with more does not read its notices, and is cut off.
const MAX_QUEUED: usize = 128;
/// Bytes of packets that the kernel keeps for a client that does not read.
const MAX_UNREAD_BYTES: usize = 96 << 10;
/// Descriptors that one client may leave unread. A client that waits for each answer has far fewer.
pub(super) const MAX_UNREAD_FDS: usize = 128;
/// Unread descriptors that notices may carry: the others are for answers.
const MAX_UNREAD_NOTICE_FDS: usize = 64;
/// Of how many sent packets the number of descriptors is remembered: more packets than the kernel keeps for one client.
const MAX_SENT: usize = 512;

/// `ETOOMANYREFS`.
const TOO_MANY_REFERENCES: i32 = rustix::io::Errno::TOOMANYREFS.raw_os_error();

/// What to do about a socket after writing to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    /// Nothing.
    Same,
    /// True: watch for room to write. False: stop watching for it.
    Wait(bool),
    /// The kernel takes no descriptors now: send again in a while.
    Pause,
    /// End the session: all its packets are sent, or nothing more can be sent.
    Finished,
}

/// What the next packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ahead {
    /// Bytes alone, or it is the session's end.
    Bytes,
    /// Bytes and descriptors.
    Descriptors,
}

/// A session's socket.
pub(super) struct Connection {
    channel: SessionSocket,
    /// Whether the client was welcomed; only then may it send descriptors.
    welcomed: bool,
    queue: VecDeque<(DaemonPacket, Vec<OwnedFd>)>,
    /// How many descriptors each of the last packets carried, the newest last.
    sent: VecDeque<u8>,
    /// Whether the reactor watches for room to write, or retries after a pause.
    waiting: bool,
    /// Whether the session ends once `queue` is empty.
    leaving: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Connection {
    /// A connection over an accepted channel.
    pub(super) fn new(channel: SessionSocket) -> Connection {
        Connection {
            channel,
            welcomed: false,
            queue: VecDeque::new(),
            sent: VecDeque::new(),
            waiting: false,
            leaving: false,
        }
    }

    /// The client's credentials, and a descriptor of its process, which becomes readable when the process ends.
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

    /// Lets the client send descriptors.
    pub(super) fn welcome(&mut self) {
        self.welcomed = true;
        self.channel.accept_descriptors(true);
    }

    /// What the next packet carries. The packet stays in the socket.
    pub(super) fn look_ahead(&self) -> Result<Ahead, SocketError> {
        match (self.channel.carries_descriptors()?, self.welcomed) {
            (true, false) => Err(SocketError::UnexpectedDescriptors),
            (true, true) => Ok(Ahead::Descriptors),
            (false, _) => Ok(Ahead::Bytes),
        }
    }

    /// Receives the next request. `discard` gets the descriptors of a packet that is no request.
    pub(super) fn receive(
        &self,
        discard: &mut dyn FnMut(Vec<OwnedFd>),
    ) -> Result<Option<(ClientPacket, Vec<OwnedFd>)>, SocketError> {
        self.channel.receive_or_discard(discard)
    }

    /// Ends the session. Returns the socket if it holds unread descriptors of the client, because closing it may block then.
    pub(super) fn end(self) -> Option<OwnedFd> {
        match self.channel.discard_unread() {
            true => None,
            false => Some(self.channel.into()),
        }
    }

    /// Queues a packet and sends as much as the socket takes. A notice that would have to wait drops its descriptors: the client asks
    /// for them. `Err`: why to cut the client off.
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

    /// How many descriptors the client has not read: those in the socket, estimated from above, and those that wait to be sent.
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

    /// How many descriptors wait to be sent. This process keeps them open until then.
    pub(super) fn queued_fds(&self) -> usize {
        self.queue.iter().map(|(_, fds)| fds.len()).sum()
    }

    /// Ends the session once its packets are sent.
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
                // The kernel holds too many descriptors in flight. A notice goes without its own, which the client asks for; an
                // answer waits.
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
