//! The daemon under test, and clients that send its protocol's requests directly.
#![allow(dead_code)] // each test file uses a part of it

use rgaps_layout::LAYOUT_VERSION;
use rgaps_session::{
    Answer, ClientPacket, DaemonPacket, Demand, History, Member, Notice, Offer, Refusal, Request,
    Role, SessionSocket, ZoneGrant, PROTOCOL_VERSION,
};
#[allow(unused_imports, reason = "every test program uses a part of it")]
pub use rgaps_testkit::{until, Daemon, LIMIT};
use std::os::fd::{AsFd, OwnedFd};

/// A running daemon.
pub fn start() -> Daemon {
    start_with(&[])
}

/// A running daemon with settings from the environment.
pub fn start_with(settings: &[(&str, &str)]) -> Daemon {
    Daemon::builder()
        .program(env!("CARGO_BIN_EXE_rgapsd"))
        .log_level("debug")
        .settings(settings)
        .start()
}

/// A client of this daemon.
pub fn connect(daemon: &Daemon, name: &str) -> Client {
    Client::connect(SessionSocket::connect(&daemon.socket()).unwrap(), name)
}

pub struct Joined {
    pub member: Member,
    pub grant: Option<ZoneGrant>,
    pub answer: Answer,
    pub fds: Vec<OwnedFd>,
}

pub struct Client {
    pub channel: SessionSocket,
    next: u64,
    pub notices: Vec<Notice>,
}

impl Client {
    pub fn connect(channel: SessionSocket, name: &str) -> Client {
        Client::connect_to(channel, hello(name))
    }

    pub fn connect_to(channel: SessionSocket, hello: Request) -> Client {
        let mut client = Client {
            channel,
            next: 1,
            notices: Vec::new(),
        };
        client.ask(hello).unwrap();
        client
    }

    pub fn ask(&mut self, request: Request) -> Result<Answer, Refusal> {
        self.ask_with(request, &[]).0
    }

    pub fn ask_with(
        &mut self,
        request: Request,
        fds: &[&OwnedFd],
    ) -> (Result<Answer, Refusal>, Vec<OwnedFd>) {
        let id = self.next;
        self.next += 1;
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.channel
            .send(&ClientPacket { id, request }, &fds)
            .unwrap();
        loop {
            match self.channel.receive::<DaemonPacket>().unwrap() {
                Some((DaemonPacket::Answer { id: of, result }, fds)) => {
                    assert_eq!(of, id);
                    return (result, fds);
                }
                Some((DaemonPacket::Notice(notice), _)) => self.notices.push(notice),
                None => panic!("the daemon closed the session"),
            }
        }
    }

    pub fn join(&mut self, topic: &str, role: Role) -> Joined {
        let (answer, fds) = self.ask_with(join(topic, role), &[]);
        let answer = answer.unwrap();
        match answer {
            Answer::Joined { member, grant, .. } => Joined {
                member,
                grant,
                answer,
                fds,
            },
            other => panic!("{other:?}"),
        }
    }
}

pub fn hello(name: &str) -> Request {
    hello_in("default", name)
}

pub fn hello_in(realm: &str, name: &str) -> Request {
    Request::Hello {
        protocol: PROTOCOL_VERSION,
        layout: LAYOUT_VERSION,
        realm: realm.into(),
        name: name.into(),
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
        history: History::KeepLast(4),
        reliable: true,
        transient_local: true,
        loans: 2,
    })
}

pub fn subscriber() -> Role {
    Role::Subscriber(Demand {
        reliable: false,
        transient_local: false,
        depth: 0,
    })
}
