//! The daemon as a process: starting, serving, ending.

mod support;

use rgaps_layout::{Domain, GRANULE_BYTES};
use rgaps_pool::{Access, HostMapping, Mapping};
use rgaps_session::{
    Answer, ClientPacket, DaemonPacket, Notice, RefusalCode, Request, SessionSocket, SocketError,
    Status,
};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use support::*;

fn status(client: &mut Client) -> Status {
    match client.ask(Request::Status).unwrap() {
        Answer::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_publisher_and_a_subscriber_share_a_lease() {
    let daemon = start();
    let (mut publisher_client, mut subscriber_client) =
        (connect(&daemon, "p"), connect(&daemon, "s"));
    let reader = subscriber_client.join("camera/left", subscriber());
    let writer = publisher_client.join("camera/left", publisher());
    assert_eq!(
        writer.fds.len(),
        2,
        "registry and control segment come with the first join"
    );
    let zone = writer.member.zone;

    let bytes = GRANULE_BYTES + 1;
    let leased = publisher_client
        .ask(Request::Lease {
            publisher: writer.member,
            pool: 0,
            bytes,
        })
        .unwrap();
    let Answer::Leased { ranges } = leased else {
        panic!("{leased:?}")
    };
    assert_eq!(ranges[0].bytes, 2 * GRANULE_BYTES);

    let segments = |client: &mut Client, writable| {
        client.ask_with(
            Request::Segments {
                zone,
                pool: 0,
                from: 0,
                writable,
            },
            &[],
        )
    };
    let map = |client: &mut Client, access| {
        let (answer, fds) = segments(client, access == Access::ReadWrite);
        let Answer::Segments { bytes } = answer.unwrap() else {
            panic!()
        };
        let Answer::Pool(grant) = client.ask(Request::Pool { zone, pool: 0 }).unwrap() else {
            panic!()
        };
        assert_eq!(grant.domain, Domain::Host);
        let mapping = HostMapping::new(grant.cap_bytes, access).unwrap();
        for (fd, bytes) in fds.iter().zip(bytes) {
            mapping.extend(fd.as_fd(), bytes).unwrap();
        }
        mapping
    };
    assert_eq!(
        segments(&mut subscriber_client, true).0.unwrap_err().code,
        RefusalCode::NotPermitted
    );
    let written = map(&mut publisher_client, Access::ReadWrite);
    let read = map(&mut subscriber_client, Access::ReadOnly);
    written
        .write(ranges[0].offset + GRANULE_BYTES - 2, b"over the edge")
        .unwrap();
    let mut bytes = [0; 13];
    read.read(ranges[0].offset + GRANULE_BYTES - 2, &mut bytes)
        .unwrap();
    assert_eq!(&bytes, b"over the edge");

    publisher_client.ask(Request::Leave(writer.member)).unwrap();
    subscriber_client
        .ask(Request::Leave(reader.member))
        .unwrap();
    let now = status(&mut subscriber_client);
    assert_eq!((now.topics, now.clients, now.clients_reaped), (0, 2, 0));
}

#[test]
fn a_numa_node_that_is_not_known_is_said_of_the_pool() {
    let daemon = start_with(&[
        ("RGAPS_LINKS__LISTEN", "127.0.0.1:0"),
        ("RGAPS_POOL__HOST__NUMA_NODE", "nic"),
    ]);
    let node = daemon.node("p");
    let publisher = node.publisher("t").create().unwrap();
    publisher.put(b"goes on").unwrap();
    let pools = node.pools().unwrap();
    assert_eq!(pools[0].numa, None);
    let warnings = pools[0].warnings.join("; ");
    for part in [
        "numa_node = \"nic\" has no effect",
        "'lo'",
        "is not a network card",
    ] {
        assert!(warnings.contains(part), "{warnings}");
    }
}

#[test]
fn the_dead_leave_their_topics() {
    let daemon = start();
    let mut watcher = connect(&daemon, "watcher");
    // In a process of its own, since the daemon cleans up at the end of the process, not of the socket.
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_that_joins_and_is_killed",
            "--ignored",
            "--nocapture",
        ])
        .env("RGAPSD_TEST_SOCKET", daemon.socket())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the child to join", || status(&mut watcher).topics == 2);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the topics to go", || status(&mut watcher).topics == 0);
    assert_eq!(status(&mut watcher).clients_reaped, 1);
}

#[test]
#[ignore = "started by `the_dead_leave_their_topics`"]
fn child_that_joins_and_is_killed() {
    let Some(socket) = std::env::var_os("RGAPSD_TEST_SOCKET") else {
        return;
    };
    let mut client = Client::connect(SessionSocket::connect(socket.as_ref()).unwrap(), "child");
    client.join("a", publisher());
    client.join("b", subscriber());
    std::thread::sleep(LIMIT);
}

#[test]
fn a_closed_session_of_a_living_process_keeps_what_it_holds() {
    let daemon = start();
    let mut watcher = connect(&daemon, "watcher");
    let mut client = connect(&daemon, "careless");
    client.join("kept", subscriber());
    drop(client);
    until("the daemon to notice", || {
        status(&mut watcher)
            .warnings
            .iter()
            .any(|warning| warning.contains("detached"))
    });
    assert_eq!(status(&mut watcher).topics, 1);
}

#[test]
fn it_leaves_when_nobody_needs_it() {
    let mut daemon = start_with(&[("RGAPS_IDLE_EXIT_MS", "300")]);
    let mut client = connect(&daemon, "short");
    let joined = client.join("t", publisher());
    // `idle` becomes idle later than `daemon` would be without its client, and ends: so `daemon` does not count as idle.
    let mut idle = start_with(&[("RGAPS_IDLE_EXIT_MS", "300")]);
    drop(connect(&idle, "shorter"));
    assert!(idle.wait().success());
    let since = Instant::now();
    client.ask(Request::Leave(joined.member)).unwrap();
    drop(client);
    assert!(daemon.wait().success());
    assert!(since.elapsed() >= Duration::from_millis(300));
    assert!(!daemon.socket().exists(), "the socket is removed");
    assert!(
        !daemon.folder().join("r.sock.state").exists(),
        "and the state file"
    );
}

#[test]
fn it_stops_when_its_owner_says_so() {
    let mut daemon = start();
    let (mut client, other) = (connect(&daemon, "a"), connect(&daemon, "b"));
    client.join("t", publisher());
    assert!(daemon.folder().join("r.sock.state").exists());
    assert_eq!(client.ask(Request::Stop).unwrap(), Answer::Done);
    assert!(daemon.wait().success());
    assert!(!daemon.socket().exists());
    assert!(
        daemon.folder().join("r.sock.state").exists(),
        "what its clients are in is for the next one"
    );
    let id = 99;
    let _ = other.channel.send(
        &ClientPacket {
            id,
            request: Request::Status,
        },
        &[],
    );
    match other.channel.receive::<DaemonPacket>().unwrap() {
        Some((DaemonPacket::Notice(Notice::Stopping), _)) => {}
        unexpected => panic!("{unexpected:?}"),
    }
}

#[test]
fn sigterm_is_an_orderly_end() {
    let mut daemon = start();
    let mut client = connect(&daemon, "a");
    client.join("t", publisher());
    daemon.terminate();
    assert!(daemon.wait().success());
    assert!(!daemon.socket().exists());
}

#[test]
fn protocol_breakers_are_cut_off_and_others_are_not() {
    let daemon = start();
    let mut good = connect(&daemon, "good");
    let before = status(&mut good).sessions_cut_off;
    // A request before hello.
    let unwelcomed = SessionSocket::connect(&daemon.socket()).unwrap();
    unwelcomed
        .send(
            &ClientPacket {
                id: 1,
                request: Request::Status,
            },
            &[],
        )
        .unwrap();
    assert!(unwelcomed.receive::<DaemonPacket>().unwrap().is_none());
    // Bytes that are no packet.
    let garbage = SessionSocket::connect(&daemon.socket()).unwrap();
    garbage.send(&[0xffu8; 32], &[]).unwrap();
    assert!(garbage.receive::<DaemonPacket>().unwrap().is_none());
    // Descriptors with a request that takes none.
    let flood = connect(&daemon, "flood");
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = vec![null.as_fd(); 32];
    flood
        .channel
        .send(
            &ClientPacket {
                id: 9,
                request: Request::Status,
            },
            &fds,
        )
        .unwrap();
    assert!(flood.channel.receive::<DaemonPacket>().unwrap().is_none());
    // The daemon stops reading from a client that never reads its answers, and serves the others.
    let deaf = connect(&daemon, "deaf");
    deaf.channel.set_nonblocking(true).unwrap();
    let packet = ClientPacket {
        id: 5,
        request: Request::Pools,
    };
    let mut full = 0;
    until("the deaf one's socket to be full", || {
        full = match deaf.channel.send(&packet, &[]) {
            Err(SocketError::WouldBlock) => full + 1,
            _ => 0,
        };
        assert_eq!(status(&mut good).sessions_cut_off, before + 3);
        full == 10
    });
}

#[test]
fn who_says_nothing_is_cut_off() {
    let daemon = start();
    let since = Instant::now();
    let silent = SessionSocket::connect(&daemon.socket()).unwrap();
    assert!(silent.receive::<DaemonPacket>().unwrap().is_none());
    assert!(since.elapsed() >= Duration::from_secs(4));
}

#[test]
fn sessions_of_a_user_are_limited() {
    let daemon = start_with(&[("RGAPS_LIMITS__CONNECTIONS_PER_USER", "3")]);
    // The daemon may still count the session by which `start` saw that it listens.
    let mut clients = Vec::new();
    until("three to be admitted", || {
        let channel = SessionSocket::connect(&daemon.socket()).unwrap();
        channel
            .send(
                &ClientPacket {
                    id: 7,
                    request: hello("x"),
                },
                &[],
            )
            .unwrap();
        if let Some((DaemonPacket::Answer { result: Ok(_), .. }, _)) = channel.receive().unwrap() {
            clients.push(channel);
        }
        clients.len() == 3
    });
    let fourth = SessionSocket::connect(&daemon.socket()).unwrap();
    fourth
        .send(
            &ClientPacket {
                id: 7,
                request: hello("x"),
            },
            &[],
        )
        .unwrap();
    match fourth.receive().unwrap() {
        Some((
            DaemonPacket::Answer {
                id: 7,
                result: Err(refusal),
            },
            _,
        )) => {
            assert_eq!(refusal.code, RefusalCode::LimitReached);
            assert!(refusal.message.contains("connections_per_user"));
        }
        other => panic!("{other:?}"),
    }
    assert!(fourth.receive::<DaemonPacket>().unwrap().is_none());
}

#[test]
fn a_second_daemon_says_who_is_there() {
    let daemon = start();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_rgapsd"))
        .arg("--socket")
        .arg(daemon.socket())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("process {}", daemon.id())), "{said}");
}

#[test]
fn the_socket_has_its_mode_and_the_daemon_is_small() {
    let daemon = start_with(&[("RGAPS_SOCKET_MODE", "0640")]);
    let mode = std::fs::metadata(daemon.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
    let mut client = connect(&daemon, "many");
    for topic in 0..1000 {
        client.join(&format!("t/{topic}"), publisher());
    }
    let rss = status(&mut client).rss_bytes;
    assert!(rss < 20 << 20, "{rss} bytes resident");
}

/// Receives a datagram. Repeats the call after EINTR: a call with a time-out also ends when this process is stopped and continued.
fn receive(socket: &std::os::unix::net::UnixDatagram, into: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match socket.recv(into) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

#[test]
fn systemd_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let _daemon = start_with(&[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let mut said = [0; 64];
    let bytes = receive(&socket, &mut said).unwrap();
    assert_eq!(&said[..bytes], b"READY=1\n");
}

/// Values of a key in a systemd unit's file.
fn values(unit: &str, key: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key));
    let values = lines.filter_map(|rest| rest.strip_prefix('='));
    values
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

/// The units' restrictions also apply to the daemon's children, and `rgaps-links` needs to open connections.
#[test]
fn the_units_that_are_shipped_leave_links_and_metrics_the_network() {
    let units = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for name in ["rgapsd.service", "user/rgapsd.service"] {
        let unit = std::fs::read_to_string(units.join(name)).unwrap();
        let families = values(&unit, "RestrictAddressFamilies");
        for wanted in ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"] {
            assert!(
                families.iter().any(|family| family == wanted),
                "{name}: {families:?}"
            );
        }
    }
}

/// The daemon starts with the command lines of the shipped units, tells systemd that it is ready, and serves at their sockets.
#[test]
fn the_units_that_are_shipped_start_it() {
    let units = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for name in ["rgapsd.service", "user/rgapsd.service"] {
        let unit = std::fs::read_to_string(units.join(name)).unwrap();
        assert_eq!(values(&unit, "Type"), ["notify"]);
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("rgaps");
        // As RuntimeDirectory= does.
        if let Some(mode) = values(&unit, "RuntimeDirectoryMode").first() {
            std::fs::create_dir(&run).unwrap();
            let mode = std::fs::Permissions::from_mode(u32::from_str_radix(mode, 8).unwrap());
            std::fs::set_permissions(&run, mode).unwrap();
        }
        // The user's unit serves where clients without configuration look.
        let realm = format!("test-unit-{}", std::process::id());
        let own = rgaps_session::Config {
            realm: realm.clone(),
            ..rgaps_session::Config::default()
        };
        let is_users = name.starts_with("user");
        let socket = match is_users {
            true => own.socket_path(),
            false => run.join("default.sock"),
        };
        let notified = folder.path().join("notify");
        let notify = std::os::unix::net::UnixDatagram::bind(&notified).unwrap();
        notify.set_read_timeout(Some(LIMIT)).unwrap();
        let command = values(&unit, "ExecStart");
        assert_eq!(command[0], "/usr/bin/rgapsd");
        let settings = values(&unit, "Environment").into_iter().map(|setting| {
            let (key, value) = setting.split_once('=').unwrap();
            let here = value.replace("/run", folder.path().to_str().unwrap());
            (key.to_owned(), here)
        });
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_rgapsd"))
            .args(&command[1..])
            .env_clear()
            .envs(settings)
            .envs(is_users.then_some(("RGAPS_REALM", &realm)))
            .env("NOTIFY_SOCKET", &notified)
            .current_dir(folder.path())
            .stdin(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut said = [0; 64];
        let told = receive(&notify, &mut said);
        let served = SessionSocket::connect(&socket).map(|channel| {
            let realm = if is_users { &realm } else { "default" };
            Client::connect_to(channel, hello_in(realm, "unit"))
        });
        let idle_exit_ms = served.map(|mut client| status(&mut client).idle_exit_ms);
        let mode = std::fs::metadata(&socket).map(|meta| meta.permissions().mode() & 0o777);
        // As systemd ends it.
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let mut ended = None;
        let end = std::time::Instant::now() + LIMIT;
        while ended.is_none() && std::time::Instant::now() < end {
            ended = child.try_wait().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        for file in std::fs::read_dir(socket.parent().unwrap())
            .unwrap()
            .flatten()
        {
            if file.file_name().to_string_lossy().starts_with(&realm) {
                std::fs::remove_file(file.path()).unwrap();
            }
        }
        assert_eq!(&said[..told.unwrap()], b"READY=1\n", "{name}");
        assert_eq!(idle_exit_ms.unwrap(), None, "{name}: it stays");
        let wanted = if is_users { 0o600 } else { 0o660 };
        assert_eq!(mode.unwrap(), wanted, "{name}");
        assert!(
            ended.is_some_and(|status| status.success()),
            "{name}: {ended:?}"
        );
    }
}
