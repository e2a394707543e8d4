//! A daemon in a folder of its own, and clients that speak the bare protocol with it.
#![allow(dead_code)] // each test file uses a part of it

use rgaps_layout::LAYOUT_VERSION;
use rgaps_session::{
    Answer, Channel, ClientPacket, Config, DaemonPacket, Demand, History, Member, Notice, Offer,
    Refusal, Request, Role, ZoneGrant, PROTOCOL_VERSION,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Daemon {
    pub folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Daemon {
    /// A running daemon.
    pub fn start() -> Daemon {
        Daemon::start_with(&[])
    }

    /// A running daemon with settings from the environment.
    pub fn start_with(settings: &[(&str, &str)]) -> Daemon {
        let mut daemon = Daemon {
            folder: tempfile::tempdir().unwrap(),
            child: None,
        };
        daemon.restart_with(settings);
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("r.sock")
    }

    pub fn config(&self) -> Config {
        Config {
            socket: Some(self.socket()),
            ..Config::default()
        }
    }

    pub fn restart(&mut self) {
        self.restart_with(&[]);
    }

    pub fn restart_with(&mut self, settings: &[(&str, &str)]) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_rgapsd"))
            .arg("--socket")
            .arg(self.socket())
            .current_dir(self.folder.path())
            .env("RUST_LOG", "debug")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        wait_for("the daemon to listen", || {
            Channel::connect(&self.socket()).is_ok()
        });
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM.
    pub fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(self.child.as_ref().unwrap());
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        wait_for("the daemon to end", || {
            status = self.child.as_mut().unwrap().try_wait().unwrap();
            status.is_some()
        });
        self.child = None;
        status.unwrap()
    }

    pub fn client(&self, name: &str) -> Client {
        Client::connect(Channel::connect(&self.socket()).unwrap(), name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

/// Looks until it is so.
pub fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct Joined {
    pub member: Member,
    pub grant: Option<ZoneGrant>,
    pub answer: Answer,
    pub fds: Vec<OwnedFd>,
}

pub struct Client {
    pub channel: Channel,
    next: u64,
    pub notices: Vec<Notice>,
}

impl Client {
    pub fn connect(channel: Channel, name: &str) -> Client {
        Client::connect_to(channel, hello(name))
    }

    pub fn connect_to(channel: Channel, hello: Request) -> Client {
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
        came_over: None,
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
