//! A client that speaks the bare protocol, and need not speak the truth.

use rgaps_layout::LAYOUT_VERSION;
use rgaps_session::{
    Answer, ClientPacket, DaemonPacket, Demand, History, Member, Offer, Refusal, Request, Role,
    SessionSocket, ZoneGrant, KERNEL_FDS_MAX, MAX_PACKET_BYTES, PROTOCOL_VERSION,
};
use rgaps_testkit::until;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Longest wait for an answer.
const PATIENCE: Timespec = Timespec {
    tv_sec: 120,
    tv_nsec: 0,
};

/// The session was ended by the daemon.
#[derive(Debug)]
pub struct CutOff;

/// A session.
pub struct Liar {
    pub channel: SessionSocket,
    next_id: u64,
}

/// What came of a join.
pub struct Joined {
    pub member: Member,
    pub grant: Option<ZoneGrant>,
    pub answer: Answer,
    pub fds: Vec<OwnedFd>,
}

impl Liar {
    /// A session that has not said hello.
    pub fn connect(socket: &Path) -> Liar {
        let channel = SessionSocket::connect(socket).expect("the daemon listens");
        channel.set_nonblocking(true).expect("a nonblocking socket");
        Liar {
            channel,
            next_id: 1,
        }
    }

    /// A session that has. While the daemon closes many descriptors of this user, it refuses the user's connections.
    pub fn welcomed(socket: &Path) -> Liar {
        let mut liar = Liar::connect(socket);
        until("a welcome", || match liar.ask(hello()) {
            Ok(answer) => {
                answer.expect("welcome");
                true
            }
            Err(CutOff) => {
                liar = Liar::connect(socket);
                false
            }
        });
        liar
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: Request) -> Result<Result<Answer, Refusal>, CutOff> {
        self.ask_with(request, &[]).map(|(answer, _)| answer)
    }

    #[allow(clippy::type_complexity)] // an answer and its descriptors, said once
    pub fn ask_with(
        &mut self,
        request: Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Result<Answer, Refusal>, Vec<OwnedFd>), CutOff> {
        let id = self.next_id;
        self.next_id += 1;
        let sent = self.channel.send(&ClientPacket { id, request }, fds);
        sent.map_err(|_| CutOff)?;
        loop {
            match self.channel.receive::<DaemonPacket>() {
                Ok(Some((DaemonPacket::Answer { id: of, result }, fds))) if of == id => {
                    return Ok((result, fds));
                }
                Ok(Some(_)) => {}
                Err(rgaps_session::SocketError::WouldBlock) => self.wait(),
                Ok(None) | Err(_) => return Err(CutOff),
            }
        }
    }

    fn wait(&self) {
        let mut polled = [PollFd::new(&self.channel, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&PATIENCE)));
        assert_ne!(ready.expect("poll"), 0, "the daemon does not answer");
    }

    /// Whether the daemon ends the session, of itself, soon.
    pub fn is_cut_off(&self) -> bool {
        loop {
            match self.channel.receive::<DaemonPacket>() {
                Ok(Some(_)) => {}
                Err(rgaps_session::SocketError::WouldBlock) => {
                    let mut polled = [PollFd::new(&self.channel, PollFlags::IN)];
                    let ready = rustix::event::poll(&mut polled, Some(&PATIENCE));
                    if ready.expect("poll") == 0 {
                        return false;
                    }
                }
                Ok(None) | Err(_) => return true,
            }
        }
    }

    pub fn join(&mut self, topic: &str, role: Role) -> Result<Result<Joined, Refusal>, CutOff> {
        let (answer, fds) = self.ask_with(join(topic, role), &[])?;
        Ok(answer.map(|answer| match answer {
            Answer::Joined { member, grant, .. } => Joined {
                member,
                grant,
                answer,
                fds,
            },
            other => panic!("an answer to a join: {other:?}"),
        }))
    }

    /// Sends bytes that may be no packet. False: there is no room, or the session has ended.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        send_bytes(self.channel.as_fd(), bytes, fds)
    }
}

/// Sends bytes and descriptors over a socket. False: there is no room, or nobody is at its other end.
pub fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let data = [IoSlice::new(bytes)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &data, &mut control, flags).is_ok()
}

pub fn hello() -> Request {
    Request::Hello {
        protocol: PROTOCOL_VERSION,
        layout: LAYOUT_VERSION,
        realm: "default".into(),
        name: "liar".into(),
    }
}

pub fn join(topic: &str, role: Role) -> Request {
    Request::Join {
        topic: topic.into(),
        type_name: String::new(),
        domain: None,
        role,
        require: None,
        arrives_over: None,
    }
}

pub fn publisher() -> Role {
    Role::Publisher(Offer {
        history: History::KeepLast(8),
        reliable: true,
        transient_local: false,
        loans: 4,
    })
}

pub fn subscriber(reliable: bool) -> Role {
    Role::Subscriber(Demand {
        reliable,
        transient_local: false,
        depth: 0,
    })
}

/// Longer than a packet may be.
pub const OVERSIZE: usize = MAX_PACKET_BYTES + 1;
