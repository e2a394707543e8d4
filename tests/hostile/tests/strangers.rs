//! Clients that send descriptors, and clients that do not read: neither stops the daemon for others.

use rgaps_hostile::daemon;
use rgaps_hostile::fuse::Fuse;
use rgaps_hostile::honest::{Expect, Pair};
use rgaps_hostile::liar::{publisher, subscriber, Liar};
use rgaps_session::{Answer, ClientPacket, DaemonPacket, Request};
use rgaps_testkit::{lingering, until, Daemon};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Sends a socket that lingers, and closes ours before the daemon reads on: the last `close` is the daemon's. False:
/// the kernel refuses.
fn leave_behind(daemon: &Daemon, liar: &Liar, bytes: &[u8], socket: OwnedFd) -> bool {
    daemon.stop();
    let sent = liar.send_bytes(bytes, &[socket.as_fd()]);
    if !sent {
        rustix::net::sockopt::set_socket_linger(&socket, None).expect("SO_LINGER");
    }
    drop(socket);
    daemon.resume();
    sent
}

/// An honest client is served.
fn answers(daemon: &Daemon) {
    Liar::welcomed(&daemon.socket())
        .ask(Request::Status)
        .expect("not cut off")
        .expect("a status");
}

fn packet(request: Request) -> Vec<u8> {
    let (here, there) = rgaps_session::SessionSocket::pair().expect("a pair");
    here.send(&ClientPacket { id: 9, request }, &[])
        .expect("sent");
    let mut bytes = vec![0u8; 4096];
    let (read, _) = rustix::net::recv(&there, &mut bytes[..], rustix::net::RecvFlags::empty())
        .expect("received");
    bytes.truncate(read);
    bytes
}

#[test]
fn a_descriptor_that_lingers_on_close_stops_nobody() {
    let mut daemon = daemon::start();
    let mut peers = Vec::new();
    let status = packet(Request::Status);
    let hand_back = packet(Request::HandBack {
        zone: 1,
        client_index: 0,
        client_id: 1,
    });
    for welcomed in [false, true] {
        for bytes in [&b""[..], b"none", &status, &hand_back] {
            let (socket, peer) = lingering();
            peers.push(peer);
            let liar = match welcomed {
                true => Liar::welcomed(&daemon.socket()),
                false => Liar::connect(&daemon.socket()),
            };
            // Before the hello, a kernel with SO_PASSRIGHTS does not even let it through.
            let sent = leave_behind(&daemon, &liar, bytes, socket);
            assert!(sent || !welcomed);
            answers(&daemon);
            if sent {
                assert!(liar.is_cut_off());
            }
            answers(&daemon);
        }
    }
    // Behind a request that ends the session, so that nobody receives it.
    let (socket, peer) = lingering();
    peers.push(peer);
    let liar = Liar::welcomed(&daemon.socket());
    daemon.stop();
    assert!(liar.send_bytes(b"none", &[]) && liar.send_bytes(b"", &[]));
    leave_behind(&daemon, &liar, b"", socket);
    drop(liar);
    answers(&daemon);
    daemon.assert_well();
}

/// Sends this file in every place where the daemon takes descriptors. It must refuse it, and go on serving.
fn refused_everywhere(daemon: &mut Daemon, what: &str, file: &OwnedFd) {
    let hand_back = Request::HandBack {
        zone: 1,
        client_index: 0,
        client_id: 1,
    };
    let segments = Request::HandBackSegments {
        zone: 1,
        pool: 0,
        from: 0,
    };
    for request in [Request::Status, hand_back, segments] {
        let mut liar = Liar::welcomed(&daemon.socket());
        let answer = liar.ask_with(request.clone(), &[file.as_fd(), file.as_fd()]);
        assert!(
            !matches!(answer, Ok((Ok(_), _))),
            "{what}: {request:?} was served"
        );
        answers(daemon);
    }
    daemon.assert_well();
}

#[test]
fn strange_files_as_descriptors_stop_nobody() {
    let mut daemon = daemon::start();
    let folder = tempfile::tempdir().expect("a folder");
    let plain = std::fs::File::create(folder.path().join("plain")).expect("a file");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let (channel, _peer) = rgaps_session::SessionSocket::pair().expect("a pair");
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
    let open = |path: &str, flags| {
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).expect("a path")
    };
    let read = rustix::fs::OFlags::RDONLY;
    // Their own ends stay open: nothing is closed for good in the daemon.
    let strange: [(&str, OwnedFd); 9] = [
        ("a regular file", plain.into()),
        ("the reading end of a pipe", reader),
        ("the writing end of a pipe", writer),
        (
            "a socket",
            channel.as_fd().try_clone_to_owned().expect("a copy"),
        ),
        ("an epoll", epoll.expect("an epoll")),
        ("a folder", open("/", read)),
        ("a path", open("/", rustix::fs::OFlags::PATH)),
        (
            "a character device",
            open("/dev/zero", rustix::fs::OFlags::RDWR),
        ),
        ("a file of /proc", open("/proc/self/maps", read)),
    ];
    for (what, file) in &strange {
        refused_everywhere(&mut daemon, what, file);
    }
}

#[test]
fn a_file_of_a_fuse_that_never_answers_stops_nobody() {
    let mut daemon = daemon::start();
    let fuse = match Fuse::mount() {
        Ok(fuse) => fuse,
        Err(why) => return eprintln!("left out: {why}"),
    };
    let file: OwnedFd = fuse.open().into();
    refused_everywhere(&mut daemon, "a file of a FUSE", &file);
    let status = packet(Request::Status);
    for bytes in [&b""[..], b"none", &status] {
        let liar = Liar::welcomed(&daemon.socket());
        assert!(leave_behind(&daemon, &liar, bytes, fuse.open().into()));
        answers(&daemon);
        assert!(liar.is_cut_off());
    }
    // It did block: a thread of the daemon waits in `close`.
    until("the daemon to close one", || fuse.waiting() > 0);
    answers(&daemon);
    daemon.assert_well();
    drop(fuse);
    drop(file);
}

#[test]
fn descriptors_of_strangers_are_closed_in_the_end() {
    let mut daemon = daemon::start();
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let open = || {
        std::fs::read_dir(format!("/proc/{}/fd", daemon.id()))
            .expect("/proc")
            .count()
    };
    answers(&daemon);
    let before = open();
    for _ in 0..50 {
        let liar = Liar::welcomed(&daemon.socket());
        assert!(liar.send_bytes(b"none", &[null.as_fd(); 100]));
        assert!(liar.is_cut_off());
    }
    until("the descriptors to be closed", || open() <= before + 2);
    daemon.assert_well();
}

/// Sends requests until the socket takes no more, and reads nothing.
fn flood(liar: &Liar, request: &Request) {
    let bytes = packet(request.clone());
    // The daemon takes some; it must come to an end.
    until(
        "the daemon to read no more of a client that does not read",
        || {
            while liar.send_bytes(&bytes, &[]) {}
            std::thread::sleep(Duration::from_millis(20));
            !liar.send_bytes(&bytes, &[])
        },
    );
}

#[test]
fn a_member_that_does_not_read_takes_no_descriptors_of_others() {
    let mut daemon = daemon::start_with(&[("RGAPS_POOL__HOST__SEGMENT", "2MiB")]);
    let few = rustix::process::Rlimit {
        current: Some(1024),
        maximum: Some(1024),
    };
    let pid = rustix::process::Pid::from_raw(daemon.id() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, few).expect("a limit");
    let mut owner = Liar::welcomed(&daemon.socket());
    let seat = owner
        .join("t", publisher())
        .expect("not cut off")
        .expect("a seat");
    for _ in 0..40 {
        let lease = Request::Lease {
            publisher: seat.member,
            pool: 0,
            bytes: 2 << 20,
        };
        owner.ask(lease).expect("not cut off").expect("a lease");
    }
    let silent: Vec<Liar> = (0..25)
        .map(|_| {
            let mut liar = Liar::welcomed(&daemon.socket());
            liar.join("t", subscriber(false))
                .expect("not cut off")
                .expect("a seat");
            let segments = Request::Segments {
                zone: seat.member.zone,
                pool: 0,
                from: 0,
                writable: false,
            };
            let bytes = packet(segments);
            while liar.send_bytes(&bytes, &[]) {}
            liar
        })
        .collect();
    // All of them have been served as far as they will be.
    for _ in 0..3 {
        answers(&daemon);
    }
    until("few descriptors to be open", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.id()));
        open.expect("/proc").count() < 512
    });
    let pair = Pair::start(&daemon.config(), "honest", Expect::Perfection, 1);
    pair.goes_on(20);
    pair.end();
    assert!(!daemon.log().contains("was not written down"));
    drop(silent);
    daemon.assert_well();
}

#[test]
fn sessions_that_do_not_read_cost_little_memory() {
    let mut daemon = daemon::start();
    let mut owner = Liar::welcomed(&daemon.socket());
    for number in 0..64 {
        let topic = format!("{}/{number}", "long".repeat(50));
        owner
            .join(&topic, subscriber(false))
            .expect("not cut off")
            .expect("a seat");
    }
    let resident = || {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", daemon.id())).expect("/proc");
        let pages: u64 = statm
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .expect("pages");
        pages * 4096
    };
    let before = resident();
    let silent: Vec<Liar> = (0..100)
        .map(|_| {
            let liar = Liar::welcomed(&daemon.socket());
            flood(&liar, &Request::Topics { from: 0 });
            liar
        })
        .collect();
    let grown = resident().saturating_sub(before);
    assert!(
        grown < 24 << 20,
        "{grown} bytes for {} sessions",
        silent.len()
    );
    // Whoever reads in the end is served on.
    let mut reads = silent.into_iter().next().expect("one");
    until("it to be served", || {
        while matches!(reads.channel.receive::<DaemonPacket>(), Ok(Some(_))) {}
        matches!(reads.ask(Request::Status), Ok(Ok(Answer::Status(_))))
    });
    daemon.assert_well();
}

#[test]
fn a_flood_of_requests_leaves_others_their_turn() {
    let mut daemon = daemon::start();
    let mut members: Vec<(Liar, u128)> = (0..41)
        .map(|_| {
            let mut liar = Liar::welcomed(&daemon.socket());
            let seat = liar
                .join("t", subscriber(false))
                .expect("not cut off")
                .expect("a seat");
            (liar, seat.member.zone)
        })
        .collect();
    let (honest, zone) = members.pop().expect("the last");
    // Doorbells are given in order, so the number says how many requests were served before.
    let take = packet(Request::TakeDoorbell { zone });
    daemon.stop();
    for (liar, _) in &members {
        for _ in 0..100 {
            assert!(liar.send_bytes(&take, &[]));
        }
    }
    assert!(honest.send_bytes(&take, &[]));
    daemon.resume();
    let mut answer = None;
    until("the honest answer", || {
        answer = honest.channel.receive::<DaemonPacket>().ok().flatten();
        matches!(answer, Some((DaemonPacket::Answer { .. }, _)))
    });
    let Some((
        DaemonPacket::Answer {
            result: Ok(Answer::Doorbell { doorbell }),
            ..
        },
        _,
    )) = answer
    else {
        panic!("{answer:?}");
    };
    assert!(doorbell < 500, "{doorbell} requests came first");
    daemon.assert_well();
}

#[test]
fn who_connects_to_a_daemon_that_is_stopped_is_told_so() {
    let mut daemon = daemon::start();
    daemon.stop();
    let error = rgaps::Node::builder("asks")
        .config(daemon.config())
        .build()
        .expect_err("no answer");
    let stopped = format!("kill -CONT {}", daemon.id());
    assert!(error.to_string().contains(&stopped), "{error}");
    // Until as many wait as the system lets wait, nobody is told.
    let mut waiting = Vec::new();
    let refused = loop {
        match rgaps_session::SessionSocket::connect(&daemon.socket()) {
            Ok(channel) => waiting.push(channel),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10_000);
    };
    assert!(
        matches!(refused, rgaps_session::SocketError::NotAccepted { .. }),
        "{refused}"
    );
    drop(waiting);
    daemon.resume();
    // It accepts those that waited first, which are thousands.
    until("the daemon to accept connections", || {
        rgaps_session::SessionSocket::connect(&daemon.socket()).is_ok()
    });
    answers(&daemon);
    daemon.assert_well();
}
