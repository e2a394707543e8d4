//! Clients that send descriptors, and clients that do not read: neither stops the daemon for others.

use rgaps_hostile::daemon::{wait_for, Daemon};
use rgaps_hostile::liar::Liar;
use rgaps_session::{ClientPacket, Request};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Longer than a test waits: whoever waits for this has failed.
const LINGER: Duration = Duration::from_secs(3600);

/// A socket whose last `close` blocks for [`LINGER`], since its peer does not read; and the peer.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut socket =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    socket.set_nonblocking(true).expect("nonblocking");
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.set_nonblocking(false).expect("blocking");
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).expect("SO_LINGER");
    (socket.into(), peer)
}

/// Sends a socket that lingers, and closes ours before the daemon reads on: the last `close` is the daemon's. False:
/// the kernel refuses.
fn leave_behind(daemon: &Daemon, liar: &Liar, bytes: &[u8], socket: OwnedFd) -> bool {
    daemon.stop();
    let sent = liar.send_bytes(bytes, &[socket.as_fd()]);
    if !sent {
        rustix::net::sockopt::set_socket_linger(&socket, None).expect("SO_LINGER");
    }
    drop(socket);
    daemon.go_on();
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
    let (here, there) = rgaps_session::Channel::pair().expect("a pair");
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
    let mut daemon = Daemon::start();
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

#[test]
fn descriptors_of_strangers_are_closed_in_the_end() {
    let mut daemon = Daemon::start();
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let open = || {
        std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
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
    wait_for("the descriptors to be closed", || open() <= before + 2);
    daemon.assert_well();
}
