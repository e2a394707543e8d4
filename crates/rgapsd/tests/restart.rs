//! Clients of a daemon that is killed, that many clients start at once, or that is about to end.

mod support;

use rgaps_layout::GRANULE_BYTES;
use rgaps_session::{
    connect_or_start, Answer, ClientPacket, Config, DaemonPacket, Member, Range, RefusalCode,
    Request, SessionSocket, ZoneGrant,
};
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use support::*;

/// What a client keeps for the next daemon.
struct Kept {
    grant: ZoneGrant,
    fds: Vec<OwnedFd>,
    segments: Vec<OwnedFd>,
}

impl Kept {
    /// Takes the lock on the registry by which the daemon sees that this client lives. Call after the client's first join.
    fn of(joined: Joined) -> Kept {
        let kept = Kept {
            grant: joined.grant.unwrap(),
            fds: joined.fds,
            segments: vec![],
        };
        let mut lock = libc::flock {
            l_type: libc::F_RDLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: kept.grant.client_index.into(),
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: `kept.fds[0]` keeps the descriptor open, and `lock` is a local `flock`, which is what F_OFD_SETLK reads.
        let rc = unsafe { libc::fcntl(kept.fds[0].as_raw_fd(), libc::F_OFD_SETLK, &mut lock) };
        assert_eq!(rc, 0);
        kept
    }

    fn hand_back(&self, client: &mut Client, member: Member, ranges: Vec<Range>) {
        let zone = member.zone;
        let ZoneGrant {
            client_index,
            client_id,
        } = self.grant;
        let fds: Vec<&OwnedFd> = self.fds.iter().collect();
        let request = Request::HandBack {
            zone,
            client_index,
            client_id,
        };
        let answer = client.ask_with(request, &fds).0.unwrap();
        if answer
            == (Answer::Zone {
                wants_segments: true,
            })
        {
            let fds: Vec<&OwnedFd> = self.segments.iter().collect();
            let request = Request::HandBackSegments {
                zone,
                pool: 0,
                from: 0,
            };
            client.ask_with(request, &fds).0.unwrap();
        }
        client
            .ask(Request::Claim {
                member,
                pool: 0,
                ranges,
            })
            .unwrap();
        client
            .ask(Request::HandedBack {
                zone,
                doorbells: vec![],
                timelines: vec![],
            })
            .unwrap();
    }
}

/// Starts a client in a process of its own, which joins `topic` and waits to be killed.
fn bystander(daemon: &Daemon, topic: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_that_joins_and_waits",
            "--ignored",
            "--nocapture",
        ])
        .env("RGAPSD_TEST_SOCKET", daemon.socket())
        .env("RGAPSD_TEST_TOPIC", topic)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("joined")));
    child
}

#[test]
#[ignore = "started by other tests"]
fn child_that_joins_and_waits() {
    let Some(socket) = std::env::var_os("RGAPSD_TEST_SOCKET") else {
        return;
    };
    let topic = std::env::var("RGAPSD_TEST_TOPIC").unwrap();
    let mut client = Client::connect(SessionSocket::connect(socket.as_ref()).unwrap(), "child");
    let _kept = Kept::of(client.join(&topic, subscriber()));
    println!("\njoined");
    std::thread::sleep(LIMIT);
}

fn subscribers(client: &mut Client, topic: &str) -> usize {
    match client
        .ask(Request::Topic {
            topic: topic.into(),
        })
        .unwrap()
    {
        Answer::Topic(info) => info.subscribers.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_next_daemon_takes_over() {
    let mut daemon = start();
    let mut client = connect(&daemon, "keeper");
    let joined = client.join("t", publisher());
    let member = joined.member;
    let zone = member.zone;
    let mut kept = Kept::of(joined);
    let leased = client
        .ask(Request::Lease {
            publisher: member,
            pool: 0,
            bytes: GRANULE_BYTES,
        })
        .unwrap();
    let Answer::Leased { ranges } = leased else {
        panic!("{leased:?}")
    };
    let request = Request::Segments {
        zone,
        pool: 0,
        from: 0,
        writable: true,
    };
    kept.segments = client.ask_with(request, &[]).1;
    let mut dies_before = bystander(&daemon, "t");
    let mut dies_between = bystander(&daemon, "t");
    let mut dies_after = bystander(&daemon, "t");
    assert_eq!(subscribers(&mut client, "t"), 3);
    dies_before.kill().unwrap();
    dies_before.wait().unwrap();
    until("the first to be cleaned up", || {
        subscribers(&mut client, "t") == 2
    });

    daemon.kill();
    assert!(client.channel.receive::<DaemonPacket>().unwrap().is_none());
    dies_between.kill().unwrap();
    dies_between.wait().unwrap();
    daemon.restart();

    let mut client = connect(&daemon, "keeper");
    let refusal = client.ask(join("u", publisher())).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Recovering);
    kept.hand_back(&mut client, member, ranges.clone());
    until("the second to be cleaned up", || {
        subscribers(&mut client, "t") == 1
    });
    // The third client's subscriber stays: the client has not returned, but holds its lock.
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(subscribers(&mut client, "t"), 1);
    let leased = client
        .ask(Request::Lease {
            publisher: member,
            pool: 0,
            bytes: 1,
        })
        .unwrap();
    let Answer::Leased { ranges: more } = leased else {
        panic!("{leased:?}")
    };
    assert_eq!(more[0].offset, ranges[0].offset + GRANULE_BYTES);
    dies_after.kill().unwrap();
    dies_after.wait().unwrap();
    until("the third to be cleaned up", || {
        subscribers(&mut client, "t") == 0
    });
    client.ask(Request::Leave(member)).unwrap();
    match client.ask(Request::Pools).unwrap() {
        Answer::Pools(pools) => assert_eq!((pools.len(), pools[0].leased_bytes), (1, 0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_waits_for_the_dead() {
    let mut daemon = start();
    let mut child = bystander(&daemon, "t");
    daemon.kill();
    child.kill().unwrap();
    child.wait().unwrap();
    daemon.restart();
    // All clients have ended, so the daemon waits for nobody.
    connect(&daemon, "new").join("t", publisher());
}

fn program_folder() -> Vec<PathBuf> {
    vec![PathBuf::from(env!("CARGO_BIN_EXE_rgapsd"))
        .parent()
        .unwrap()
        .to_owned()]
}

fn welcome(channel: &SessionSocket) -> Option<u64> {
    channel
        .send(
            &ClientPacket {
                id: 1,
                request: hello("x"),
            },
            &[],
        )
        .ok()?;
    match channel.receive().ok()?? {
        (
            DaemonPacket::Answer {
                result: Ok(Answer::Welcome { daemon, .. }),
                ..
            },
            _,
        ) => Some(daemon),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ten_clients_start_one_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        socket: Some(folder.path().join("r.sock")),
        ..Config::default()
    };
    let start = std::sync::Barrier::new(10);
    let clients: Vec<(SessionSocket, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let channel = connect_or_start(&config, &program_folder()).unwrap();
                    let daemon = welcome(&channel).unwrap();
                    (channel, daemon)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let daemons: HashSet<u64> = clients.iter().map(|(_, daemon)| *daemon).collect();
    assert_eq!(daemons.len(), 1);
    let stop = ClientPacket {
        id: 2,
        request: Request::Stop,
    };
    clients[0].0.send(&stop, &[]).unwrap();
    until("the daemon to go", || {
        !folder.path().join("r.sock").exists()
    });
}

#[test]
fn a_daemon_that_is_about_to_leave_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        socket: Some(folder.path().join("r.sock")),
        // The daemon ends as soon as it has no client, also right after its start.
        idle_exit_ms: 1,
        ..Config::default()
    };
    for _ in 0..20 {
        until("a daemon to serve", || {
            let channel = connect_or_start(&config, &program_folder()).ok();
            channel.is_some_and(|channel| welcome(&channel).is_some())
        });
    }
    until("the last to go", || !folder.path().join("r.sock").exists());
}
