//! A session's socket: what came, and what is still to go out.

use crate::engine::Peer;
use rgaps_session::{Channel, ClientPacket, DaemonPacket, Notice, SocketError};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Packets that wait for a client to read. A client sends a request and waits for its answer; one
/// that lets so many pile up is broken.
const MAX_QUEUED: usize = 128;

/// `ETOOMANYREFS`.
const TOO_MANY_REFERENCES: i32 = rustix::io::Errno::TOOMANYREFS.raw_os_error();

/// What to do about a socket after writing to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    /// As before.
    Same,
    /// Tell when there is room to write, or stop telling.
    Wait(bool),
    /// All is sent that was to be sent, or nothing more can be.
    Finished,
}

/// A session's socket.
pub(super) struct Connection {
    channel: Channel,
    queue: VecDeque<(DaemonPacket, Vec<OwnedFd>)>,
    waiting: bool,
    leaving: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Connection {
    /// A connection over an accepted channel, and who is at its other end.
    pub(super) fn new(
        channel: Channel,
    ) -> Result<(Connection, Peer, Option<OwnedFd>), SocketError> {
        channel.set_nonblocking(true)?;
        let process = channel.peer_pidfd();
        let peer = Peer {
            credentials: channel.peer()?,
            groups: channel.peer_groups()?,
            process_is_watched: process.is_some(),
        };
        let connection = Connection {
            channel,
            queue: VecDeque::new(),
            waiting: false,
            leaving: false,
        };
        Ok((connection, peer, process))
    }

    pub(super) fn receive(&mut self) -> Result<Option<(ClientPacket, Vec<OwnedFd>)>, SocketError> {
        self.channel.receive()
    }

    /// Sends a packet as soon as it can be.
    pub(super) fn push(
        &mut self,
        packet: DaemonPacket,
        fds: Vec<OwnedFd>,
    ) -> Result<Flow, &'static str> {
        if self.queue.len() >= MAX_QUEUED {
            return Err("it does not read its answers");
        }
        self.queue.push_back((packet, fds));
        Ok(self.flush())
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
                    self.queue.pop_front();
                }
                // Too many descriptors are under way to clients that do not read: this one asks.
                Err(SocketError::System { source, .. })
                    if source.raw_os_error() == Some(TOO_MANY_REFERENCES) && !fds.is_empty() =>
                {
                    let DaemonPacket::Notice(Notice::PoolGrown { bytes, .. }) = packet else {
                        tracing::error!(%source, "an answer could not be sent");
                        return Flow::Finished;
                    };
                    bytes.clear();
                    fds.clear();
                }
                Err(SocketError::WouldBlock) => return self.wait(true),
                Err(SocketError::Closed) => return Flow::Finished,
                Err(error) => {
                    tracing::error!(%error, "an answer could not be sent");
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
