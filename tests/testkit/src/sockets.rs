use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Longer than a test waits: whoever waits for this has failed.
const LINGER: Duration = Duration::from_secs(3600);

/// A socket whose last `close` blocks for an hour, since its peer does not read; and the peer.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // Smaller than what the socket holds, and of a fixed size: the peer never has all of it.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).expect("SO_RCVBUF");
    let mut socket =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    socket.set_nonblocking(true).expect("nonblocking");
    while socket.write(&[0; 1 << 16]).is_ok() {}
    // A socket that has nothing yet may take more than its buffer holds at once. What follows it does not take.
    peer.peek(&mut [0]).expect("some of it");
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.set_nonblocking(false).expect("blocking");
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).expect("SO_LINGER");
    (socket.into(), peer)
}
