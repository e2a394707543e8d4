//! Tests of the socket with peers that keep to the protocol, and peers that violate it.

use rgaps_session::{
    Answer, ClientPacket, DaemonLock, DaemonPacket, Request, SessionListener, SessionSocket,
    SocketError, MAX_PACKET_BYTES, MAX_PACKET_FDS,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn lock(socket: &Path) -> DaemonLock {
    DaemonLock::take(&DaemonLock::path_for(socket), "default").unwrap()
}

/// How many descriptors of this file this process has (other tests open and close descriptors of other files).
fn descriptors_of(file: &std::fs::File) -> usize {
    let link = |fd: &Path| std::fs::read_link(fd).ok();
    let own = link(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter(|entry| link(&entry.as_ref().unwrap().path()) == own)
        .count()
}

/// Sends raw bytes, without the checks of `SessionSocket`.
fn send_raw(channel: &SessionSocket, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); 2048];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(
        channel,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
}

fn request() -> ClientPacket {
    ClientPacket {
        id: 7,
        request: Request::Topics { from: 3 },
    }
}

#[test]
fn a_packet_with_descriptors_arrives_whole() {
    let (a, b) = SessionSocket::pair().unwrap();
    let mut file = tempfile::tempfile().unwrap();
    write!(file, "hello").unwrap();
    let fds = vec![file.as_fd(); MAX_PACKET_FDS];
    a.send(&request(), &fds).unwrap();
    let (packet, received) = b.receive::<ClientPacket>().unwrap().unwrap();
    assert_eq!(packet, request());
    assert_eq!(received.len(), MAX_PACKET_FDS);
    for fd in &received {
        assert!(rustix::io::fcntl_getfd(fd)
            .unwrap()
            .contains(rustix::io::FdFlags::CLOEXEC));
    }
    let mut same = std::fs::File::from(received.into_iter().next_back().unwrap());
    same.rewind().unwrap();
    let mut text = String::new();
    same.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
}

#[test]
fn the_largest_packet_passes_and_a_larger_one_is_not_sent() {
    let (a, b) = SessionSocket::pair().unwrap();
    let packet = |bytes: usize| DaemonPacket::Answer {
        id: 1,
        result: Err(rgaps_session::Refusal {
            code: rgaps_session::RefusalCode::BadRequest,
            message: "x".repeat(bytes),
        }),
    };
    let overhead = 3 + 1 + 3;
    let largest = packet(MAX_PACKET_BYTES - overhead + 1);
    let largest = if a.send(&largest, &[]).is_ok() {
        largest
    } else {
        let smaller = packet(MAX_PACKET_BYTES - overhead);
        a.send(&smaller, &[]).unwrap();
        smaller
    };
    assert_eq!(b.receive::<DaemonPacket>().unwrap().unwrap().0, largest);
    let error = a.send(&packet(MAX_PACKET_BYTES), &[]).unwrap_err();
    assert!(matches!(error, SocketError::TooLarge { .. }), "{error}");
    let fds = vec![a.as_fd(); MAX_PACKET_FDS + 1];
    let error = a.send(&request(), &fds).unwrap_err();
    assert!(
        matches!(error, SocketError::TooManyDescriptors { .. }),
        "{error}"
    );
    b.set_nonblocking(true).unwrap();
    assert!(matches!(
        b.receive::<ClientPacket>(),
        Err(SocketError::WouldBlock)
    ));
}

#[test]
fn garbage_is_an_error_and_leaks_nothing() {
    let (a, b) = SessionSocket::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    let good = postcard::to_stdvec(&request()).unwrap();

    send_raw(&a, &[0xff; 40], &[file.as_fd()]);
    assert!(matches!(
        b.receive::<ClientPacket>(),
        Err(SocketError::Malformed(_))
    ));
    send_raw(&a, &good[..good.len() - 1], &[file.as_fd()]);
    assert!(matches!(
        b.receive::<ClientPacket>(),
        Err(SocketError::Malformed(_))
    ));
    let longer = [good.as_slice(), &[0]].concat();
    send_raw(&a, &longer, &[file.as_fd()]);
    assert!(matches!(
        b.receive::<ClientPacket>(),
        Err(SocketError::Malformed(_))
    ));
    // A list that claims to have 2^60 entries.
    let mut bomb = postcard::to_stdvec(&DaemonPacket::Answer {
        id: 1,
        result: Ok(Answer::Segments { bytes: vec![] }),
    })
    .unwrap();
    bomb.pop();
    bomb.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    send_raw(&a, &bomb, &[]);
    assert!(matches!(
        b.receive::<DaemonPacket>(),
        Err(SocketError::Malformed(_))
    ));

    send_raw(&a, &vec![0u8; MAX_PACKET_BYTES + 1], &[file.as_fd()]);
    assert!(matches!(
        b.receive::<ClientPacket>(),
        Err(SocketError::Truncated)
    ));
    for count in [MAX_PACKET_FDS + 1, 253] {
        send_raw(&a, &good, &vec![file.as_fd(); count]);
        let error = b.receive::<ClientPacket>().unwrap_err();
        assert!(
            matches!(
                error,
                SocketError::Truncated | SocketError::TooManyDescriptors { .. }
            ),
            "{count}: {error}"
        );
    }
    assert_eq!(
        descriptors_of(&file),
        1,
        "those that came with errors are closed"
    );

    // The session still works; the caller decides whether to continue it.
    a.send(&request(), &[]).unwrap();
    assert_eq!(b.receive::<ClientPacket>().unwrap().unwrap().0, request());
}

#[test]
fn the_end_is_told_from_errors() {
    let (a, b) = SessionSocket::pair().unwrap();
    a.send(&request(), &[]).unwrap();
    drop(a);
    assert!(
        b.receive::<ClientPacket>().unwrap().is_some(),
        "what was sent before arrives"
    );
    assert!(b.receive::<ClientPacket>().unwrap().is_none());
    // SIGPIPE would have ended the test.
    assert!(matches!(b.send(&request(), &[]), Err(SocketError::Closed)));

    let (a, b) = SessionSocket::pair().unwrap();
    b.send(&request(), &[]).unwrap();
    a.send(&request(), &[]).unwrap();
    drop(a);
    assert!(b.receive::<ClientPacket>().unwrap().is_some(), "also then");
    assert!(
        b.receive::<ClientPacket>().unwrap().is_none(),
        "closed over something unread"
    );
}

#[test]
fn a_full_socket_says_so() {
    let (a, b) = SessionSocket::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let error = loop {
        match a.send(&request(), &[]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SocketError::WouldBlock), "{error}");
    for _ in 0..sent {
        assert!(b.receive::<ClientPacket>().unwrap().is_some());
    }
    a.send(&request(), &[]).unwrap();
}

#[test]
fn who_the_peer_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sock");
    let listener = SessionListener::bind(&path, 0o600, &lock(&path)).unwrap();
    assert!(listener.accept().unwrap().is_none());

    // SAFETY: the child makes system calls only (connect, pause) and never returns.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let _channel = SessionSocket::connect(&path);
        loop {
            // SAFETY: waits for the signal that ends the child.
            unsafe { libc::pause() };
        }
    }
    let channel = loop {
        if let Some(channel) = listener.accept().unwrap() {
            break channel;
        }
        std::thread::yield_now();
    };
    let peer = channel.peer().unwrap();
    assert_eq!(peer.pid, Some(child as u32));
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    let own: Vec<u32> = rustix::process::getgroups()
        .unwrap()
        .into_iter()
        .map(|group| group.as_raw())
        .collect();
    assert_eq!(channel.peer_groups().unwrap(), own);

    let pidfd = channel.peer_pidfd().expect("this kernel has pidfds");
    let readable = |timeout_ms: i32| {
        let mut polled = libc::pollfd {
            fd: pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut polled, 1, timeout_ms) == 1 }
    };
    assert!(!readable(0));
    // SAFETY: our own child, which was not reaped yet.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(readable(5000), "the pidfd tells of the death");
    assert!(channel.receive::<ClientPacket>().unwrap().is_none());
    let mut status = 0;
    // SAFETY: `status` is ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
}

#[test]
fn the_listener_and_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.sock");
    let lock = lock(&path);
    let mut first = SessionListener::bind(&path, 0o640, &lock).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );
    let waiting = SessionSocket::connect(&path).unwrap();
    first.retire();
    assert!(!path.exists());
    assert!(SessionSocket::connect(&path).is_err());
    assert!(
        first.accept().unwrap().is_some(),
        "who waited is still served"
    );
    drop(waiting);

    // A daemon that was killed leaves its socket; the next replaces it, and the first one's
    // end does not remove what is the second's.
    let stale: OwnedFd = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&stale, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(stale);
    let refused = SessionSocket::connect(&path).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::ECONNREFUSED));
    let second = SessionListener::bind(&path, 0o600, &lock).unwrap();
    let third = SessionListener::bind(&path, 0o600, &lock).unwrap();
    drop(second);
    SessionSocket::connect(&path).unwrap();
    drop(third);
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(
        SessionListener::bind(&path, 0o600, &lock),
        Err(SocketError::Path { .. })
    ));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    let long = folder.path().join("x".repeat(120));
    let error = SessionSocket::connect(&long).unwrap_err();
    assert!(error.to_string().contains("shorter"), "{error}");
}
