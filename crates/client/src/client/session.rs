//! One connection to one daemon: sends requests one at a time, waits for each answer, and keeps the notices that arrive in
//! between.

use super::inherited::NotInherited;
use super::ClientError;
use rgaps_layout::{LAYOUT_VERSION, MAX_CLIENT_NAME};
use rgaps_session::{
    Answer, ClientPacket, Config, DaemonPacket, MpsControl, Notice, Refusal, Request,
    SessionSocket, SocketError, PROTOCOL_VERSION,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How many notices may wait. A daemon that sends more violates the protocol.
const NOTICES_MAX: usize = 4096;
/// How long to wait for an answer. Creating a large segment takes seconds if the daemon touches its pages.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for an answer before checking whether the daemon's process is stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(5);

/// How a request failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// The daemon refused.
    Refused(Refusal),
    /// The session has ended, or must not be used again.
    Lost(String),
    /// No answer in time; the session must not be used again. `stopped`: the daemon's process, if it is stopped.
    NoAnswer { stopped: Option<u32> },
    /// The request cannot be sent at all.
    Unsendable(SocketError),
}

/// A notice and the descriptors that came with it.
pub(super) type ReceivedNotice = (Notice, Vec<OwnedFd>);

#[derive(Debug)]
pub(super) struct Session {
    channel: NotInherited<SessionSocket>,
    next_id: u64,
    /// Notices that nobody has handled yet.
    notices: VecDeque<ReceivedNotice>,
    /// Whether the daemon said that it ends, or was told to.
    stopping: bool,
}

impl Session {
    /// Introduces this process to a daemon that was just connected to.
    pub(super) fn open(
        channel: SessionSocket,
        config: &Config,
        name: &str,
    ) -> Result<Session, ClientError> {
        let broken = |error: SocketError| ClientError::DaemonLost {
            reason: error.to_string(),
        };
        channel.set_nonblocking(true).map_err(broken)?;
        let channel = NotInherited::new(channel);
        let mut session = Session {
            channel,
            next_id: 1,
            notices: VecDeque::new(),
            stopping: false,
        };
        let hello = Request::Hello {
            protocol: PROTOCOL_VERSION,
            layout: LAYOUT_VERSION,
            realm: config.realm.clone(),
            name: shown_name(name),
        };
        match session.call(&hello, &[]) {
            Ok((
                Answer::Welcome {
                    version,
                    pid,
                    daemon,
                    ..
                },
                _,
            )) => {
                tracing::debug!(version, pid, daemon, "session opened");
                session.say_if_under_mps()?;
                Ok(session)
            }
            Ok((other, _)) => Err(ClientError::Protocol(format!(
                "it answered a hello with {other:?}"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells the daemon if this process uses CUDA through MPS: then its GPU work may outlive it.
    fn say_if_under_mps(&mut self) -> Result<(), ClientError> {
        let Some(control) = MpsControl::of_this_process() else {
            return Ok(());
        };
        // Lossy is enough: MPS accepts no directory that is not UTF-8.
        let pipe_directory = control.directory().to_string_lossy().into_owned();
        match self.call(&Request::UnderMps { pipe_directory }, &[]) {
            Ok(_) => Ok(()),
            // The path is too long, also for MPS's own sockets.
            Err(CallError::Refused(refusal)) => {
                tracing::warn!(%refusal, "the daemon refuses to use this process's MPS");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The notices that nobody has handled when the session ends, and whether the daemon was stopped on purpose.
    pub(super) fn last_words(&mut self) -> (VecDeque<ReceivedNotice>, bool) {
        // If sending failed, unread notices may have arrived. An error is expected: the session has ended.
        let _ = self.take_in();
        (std::mem::take(&mut self.notices), self.stopping)
    }

    pub(super) fn next_notice(&mut self) -> Option<ReceivedNotice> {
        self.notices.pop_front()
    }

    /// Sends a request and waits for its answer.
    pub(super) fn call(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let id = self.next_id;
        self.next_id += 1;
        self.send(
            &ClientPacket {
                id,
                request: request.clone(),
            },
            fds,
            deadline,
        )?;
        loop {
            match self.receive(Some(deadline))? {
                (
                    DaemonPacket::Answer {
                        id: answered,
                        result,
                    },
                    fds,
                ) if answered == id => {
                    return result
                        .map(|answer| (answer, fds))
                        .map_err(CallError::Refused);
                }
                (DaemonPacket::Answer { id: answered, .. }, _) => {
                    return Err(CallError::Lost(format!(
                        "it answered request {answered} instead of {id}"
                    )));
                }
                (DaemonPacket::Notice(notice), fds) => self.keep(notice, fds)?,
            }
        }
    }

    /// Reads the notices that have arrived, without waiting.
    pub(super) fn take_in(&mut self) -> Result<(), CallError> {
        loop {
            match self.channel.receive::<DaemonPacket>() {
                Ok(Some((DaemonPacket::Notice(notice), fds))) => self.keep(notice, fds)?,
                Ok(Some((DaemonPacket::Answer { id, .. }, _))) => {
                    return Err(CallError::Lost(format!("it answered request {id} twice")));
                }
                Ok(None) => return Err(ended()),
                Err(SocketError::WouldBlock) => return Ok(()),
                Err(error) => return Err(CallError::Lost(error.to_string())),
            }
        }
    }

    /// Waits until a daemon that was told to stop has ended the session.
    pub(super) fn wait_for_end(&mut self) -> Result<(), CallError> {
        self.stopping = true;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.receive(Some(deadline)) {
                Ok((DaemonPacket::Notice(notice), fds)) => self.keep(notice, fds)?,
                Ok(_) => {}
                Err(CallError::Lost(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn keep(&mut self, notice: Notice, fds: Vec<OwnedFd>) -> Result<(), CallError> {
        if self.notices.len() == NOTICES_MAX {
            return Err(CallError::Lost(
                "it floods this client with notices".to_owned(),
            ));
        }
        self.stopping |= notice == Notice::Stopping;
        self.notices.push_back((notice, fds));
        Ok(())
    }

    fn send(
        &mut self,
        packet: &ClientPacket,
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), CallError> {
        loop {
            match self.channel.send(packet, fds) {
                Ok(()) => return Ok(()),
                Err(SocketError::WouldBlock) => self.wait(PollFlags::OUT, Some(deadline))?,
                Err(SocketError::Closed) => return Err(ended()),
                Err(error @ SocketError::System { .. }) => {
                    return Err(CallError::Lost(error.to_string()));
                }
                Err(error) => return Err(CallError::Unsendable(error)),
            }
        }
    }

    fn receive(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<(DaemonPacket, Vec<OwnedFd>), CallError> {
        let look = Instant::now() + STOPPED_AFTER;
        loop {
            match self.channel.receive() {
                Ok(Some(received)) => return Ok(received),
                Ok(None) => return Err(ended()),
                Err(SocketError::WouldBlock) if Instant::now() < look => {
                    let soon = deadline.map_or(look, |deadline| deadline.min(look));
                    match self.wait(PollFlags::IN, Some(soon)) {
                        Err(CallError::NoAnswer { .. }) => self.check_stopped()?,
                        other => other?,
                    }
                }
                Err(SocketError::WouldBlock) => self.wait(PollFlags::IN, deadline)?,
                Err(error) => return Err(CallError::Lost(error.to_string())),
            }
        }
    }

    /// An error if the daemon's process is stopped (SIGSTOP, a debugger): it answers only once somebody continues it.
    fn check_stopped(&self) -> Result<(), CallError> {
        let pid = self.channel.peer().ok().and_then(|peer| peer.pid);
        let stat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        let state = stat.as_deref().and_then(|stat| stat.rsplit_once(") "));
        match (pid, state) {
            (Some(pid), Some((_, state))) if state.starts_with(['T', 't']) => {
                Err(CallError::NoAnswer { stopped: Some(pid) })
            }
            _ => Ok(()),
        }
    }

    fn wait(&self, events: PollFlags, deadline: Option<Instant>) -> Result<(), CallError> {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), events)];
        match poll_until(&mut polled, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(CallError::NoAnswer { stopped: None }),
            Err(error) => Err(CallError::Lost(format!("poll: {error}"))),
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl From<CallError> for ClientError {
    fn from(error: CallError) -> ClientError {
        match error {
            CallError::Refused(refusal) => ClientError::Refused(refusal),
            CallError::Lost(reason) => ClientError::DaemonLost { reason },
            CallError::NoAnswer { stopped: None } => ClientError::NoAnswer {
                seconds: ANSWER_TIMEOUT.as_secs(),
                advice: "see 'rgaps status' and its log".to_owned(),
            },
            CallError::NoAnswer { stopped: Some(pid) } => ClientError::NoAnswer {
                seconds: STOPPED_AFTER.as_secs(),
                advice: format!(
                    "its process {pid} is stopped; continue it with 'kill -CONT {pid}', or end it"
                ),
            },
            CallError::Unsendable(error) => ClientError::Protocol(error.to_string()),
        }
    }
}

fn ended() -> CallError {
    CallError::Lost("its socket was closed".to_owned())
}

/// Waits until one of the descriptors is ready. False: the deadline has passed. A signal does not end the wait.
pub(super) fn poll_until(
    polled: &mut [PollFd<'_>],
    deadline: Option<Instant>,
) -> std::io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: left.subsec_nanos() as _,
            }
        });
        match rustix::event::poll(polled, left.as_ref()) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The name as the daemon accepts it: without control characters, and at most `MAX_CLIENT_NAME` bytes.
fn shown_name(name: &str) -> String {
    let mut shown = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if shown.len() + c.len_utf8() > MAX_CLIENT_NAME {
            break;
        }
        shown.push(c);
    }
    shown
}
