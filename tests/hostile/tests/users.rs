//! Several users of one daemon: none of them takes the turns or descriptors of the others. Only root may be several users.

use rgaps_hostile::daemon;
use rgaps_hostile::honest::{Expect, Pair};
use rgaps_hostile::liar::{publisher, send_bytes, subscriber, Liar};
use rgaps_session::{Answer, ClientPacket, DaemonPacket, RefusalCode, Request, KERNEL_FDS_MAX};
use rgaps_testkit::{lingering, until, Daemon};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

/// A daemon that all users may use, with many small segments.
fn daemon_for_all() -> Daemon {
    let daemon = daemon::start_with(&[
        ("RGAPS_SOCKET_MODE", "0666"),
        ("RGAPS_POOL__HOST__SEGMENT", "2MiB"),
    ]);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(daemon.folder(), open).expect("the socket's folder");
    daemon
}

/// Under this limit of open files, a few packets would take all that the daemon may have.
const FEW_FDS: u64 = 1024;

fn limit_fds(daemon: &Daemon) {
    let few = rustix::process::Rlimit {
        current: Some(FEW_FDS),
        maximum: Some(FEW_FDS),
    };
    let pid = rustix::process::Pid::from_raw(daemon.id() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, few).expect("a limit");
}

/// An honest client is served.
fn answers(daemon: &Daemon) {
    Liar::welcomed(&daemon.socket())
        .ask(Request::Status)
        .expect("not cut off")
        .expect("a status");
}

/// Sessions of a user. None: this process may not be another user.
fn sessions_of(daemon: &Daemon, uid: u32, count: usize) -> Option<Vec<Liar>> {
    let socket = daemon.socket();
    let connecting = std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(uid);
        // Of this thread alone.
        rustix::thread::set_thread_res_uid(uid, uid, uid).ok()?;
        Some((0..count).map(|_| Liar::welcomed(&socket)).collect())
    });
    connecting.join().expect("sessions")
}

#[test]
fn users_take_turns_however_many_sessions_one_of_them_has() {
    const SESSIONS: usize = 50;
    const REQUESTS: usize = 60;
    let mut daemon = daemon_for_all();
    let (Some(mut many), Some(mut one)) = (
        sessions_of(&daemon, 4001, SESSIONS),
        sessions_of(&daemon, 4002, 1),
    ) else {
        return eprintln!("left out: this process may not be another user");
    };
    let mut zone = 0;
    for liar in many.iter_mut().chain(&mut one) {
        let seat = liar.join("t", subscriber(false)).expect("not cut off");
        zone = seat.expect("a seat").member.zone;
    }
    let send = |liar: &Liar| {
        let packet = ClientPacket {
            id: 9,
            request: Request::TakeDoorbell { zone },
        };
        liar.channel.send(&packet, &[]).expect("sent");
    };
    // Doorbells are given in order, so the number says how many requests were served before.
    daemon.stop();
    for liar in &many {
        (0..REQUESTS).for_each(|_| send(liar));
    }
    (0..8).for_each(|_| send(&one[0]));
    daemon.resume();
    let mut last = None;
    for _ in 0..8 {
        until("an answer", || {
            match one[0].channel.receive::<DaemonPacket>() {
                Ok(Some((DaemonPacket::Answer { result, .. }, _))) => {
                    last = result.ok();
                    true
                }
                _ => false,
            }
        });
    }
    let Some(Answer::Doorbell { doorbell }) = last else {
        panic!("{last:?}");
    };
    // One turn has one request of a session and eight of a user: eight turns and those of the first answers. If sessions took
    // turns, and not users, it would be 50 for each of the eight.
    assert!(doorbell < 200, "{doorbell} requests came first");
    daemon.assert_well();
}

#[test]
fn what_one_user_does_not_read_leaves_others_their_descriptors() {
    let mut daemon = daemon_for_all();
    limit_fds(&daemon);
    let mut owner = Liar::welcomed(&daemon.socket());
    let seat = owner.join("t", publisher()).expect("not cut off");
    let member = seat.expect("a seat").member;
    for _ in 0..40 {
        let lease = Request::Lease {
            publisher: member,
            pool: 0,
            bytes: 2 << 20,
        };
        owner.ask(lease).expect("not cut off").expect("a lease");
    }
    let segments = Request::Segments {
        zone: member.zone,
        pool: 0,
        from: 0,
        writable: false,
    };
    let (Some(mut silent), Some(mut other)) = (
        sessions_of(&daemon, 4001, 25),
        sessions_of(&daemon, 4002, 1),
    ) else {
        return eprintln!("left out: this process may not be another user");
    };
    // The last one of the user reads, and learns why it gets none.
    let mut asks = silent.pop().expect("25 sessions");
    for liar in silent.iter_mut().chain([&mut asks, &mut other[0]]) {
        let seat = liar.join("t", subscriber(false)).expect("not cut off");
        seat.expect("a seat");
    }
    // Few enough that no session is cut off, which would give its share back; all together more than the user's share.
    for liar in silent.iter().chain(&silent) {
        let packet = ClientPacket {
            id: 9,
            request: segments.clone(),
        };
        liar.channel.send(&packet, &[]).expect("not cut off");
    }
    until("the user's share to be unread", || {
        let (answer, _) = asks.ask_with(segments.clone(), &[]).expect("not cut off");
        answer.is_err_and(|refusal| {
            assert_eq!(refusal.code, RefusalCode::LimitReached);
            refusal.message.contains("user 4001")
        })
    });
    let (answer, fds) = other[0].ask_with(segments, &[]).expect("not cut off");
    answer.expect("segments");
    assert!(fds.len() > 10, "{} descriptors", fds.len());
    daemon.assert_well();
}

/// The kernel counts descriptors in flight for each user but root, over all processes.
#[test]
fn an_answer_waits_while_the_kernel_lets_the_daemons_user_send_no_descriptors() {
    const OWNER: u32 = 4003;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("left out: this process may not be another user");
    }
    let mut daemon = daemon::start_as(OWNER, FEW_FDS, &[("RGAPS_SOCKET_MODE", "0666")]);
    let mut honest = Liar::welcomed(&daemon.socket());
    let in_flight = std::thread::spawn(|| {
        let uid = rustix::process::Uid::from_raw(OWNER);
        // Of this thread alone.
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("another user");
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let packets = 0..=FEW_FDS as usize / KERNEL_FDS_MAX;
        let sockets = packets.map(|_| {
            let (to, from) = UnixStream::pair().expect("sockets");
            assert!(send_bytes(
                to.as_fd(),
                b"x",
                &[null.as_fd(); KERNEL_FDS_MAX]
            ));
            from
        });
        sockets.collect::<Vec<_>>()
    });
    let in_flight = in_flight.join().expect("descriptors in flight");
    let joining = std::thread::spawn(move || honest.join("t", publisher()));
    let mut looks = Liar::welcomed(&daemon.socket());
    until("the daemon to have the publisher", || {
        let topics = looks.ask(Request::Topics { from: 0 });
        let Ok(Ok(Answer::Topics(topics))) = topics else {
            panic!("{topics:?}");
        };
        topics.iter().any(|row| row.publishers == 1)
    });
    assert!(!joining.is_finished(), "descriptors were sent");
    drop(in_flight);
    let joined = joining.join().expect("a join").expect("not cut off");
    assert!(!joined.expect("a seat").fds.is_empty());
    daemon.assert_well();
}

/// Packets with as many descriptors as the kernel takes, of which one lingers. What a packet holds behind that one stays open as
/// long as it lingers; what there is no room for, the kernel would close on the thread that receives the packet.
#[test]
fn open_sessions_that_send_more_than_can_be_closed_or_received_stop_nobody() {
    let mut daemon = daemon_for_all();
    limit_fds(&daemon);
    let Some(liars) = sessions_of(&daemon, 4001, 24) else {
        return eprintln!("left out: this process may not be another user");
    };
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let mut peers = Vec::new();
    // Stopped once for all of them, since a signal ends the wait in `close`.
    daemon.stop();
    for (at, liar) in liars.iter().enumerate() {
        let (socket, peer) = lingering();
        peers.push(peer);
        let mut fds = vec![null.as_fd(); KERNEL_FDS_MAX];
        fds[[0, KERNEL_FDS_MAX - 1][at / 8 % 2]] = socket.as_fd();
        assert!(liar.send_bytes(b"none", &fds));
    }
    daemon.resume();
    // The daemon has looked at all of them.
    for _ in 0..3 {
        answers(&daemon);
    }
    until("few descriptors to be open", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.id()));
        open.expect("/proc").count() < FEW_FDS as usize / 2
    });
    let pair = Pair::start(&daemon.config(), "honest", Expect::Perfection, 1);
    pair.goes_on(20);
    pair.end();
    daemon.assert_well();
    drop((liars, peers));
    until("all sessions of the other user to end", || {
        !daemon
            .node("looks")
            .clients()
            .expect("clients")
            .iter()
            .any(|row| row.name == "liar")
    });
}
