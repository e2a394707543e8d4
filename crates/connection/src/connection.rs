//! A connection: bytes in order, there and back, plain or encrypted.

use crate::tls::{in_words, Session, Tls};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Bytes that a socket takes ahead of what it sends. More would only wait there: a message that goes on to other hosts would leave each hop
/// so much later, and a small one would wait behind large ones.
const UNSENT_MAX: u32 = 256 << 10;

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until there is something, or room.
    Yes,
    /// It returns at once.
    No,
}

/// One TCP connection. One thread reads and one writes at a time; they may be two.
#[derive(Debug)]
pub struct Connection {
    tcp: TcpStream,
    peer: SocketAddr,
    session: Option<Box<Session>>,
    spin: Duration,
}

impl Connection {
    /// Plain bytes. The kernel's own choice of buffers stays: a size that is set ends their growth, and is
    /// limited to `net.core.rmem_max`, which is smaller.
    pub fn plain(tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        // What was sent and is not acknowledged for so long ends the connection; quiet lanes end sooner.
        rustix::net::sockopt::set_tcp_user_timeout(&tcp, 30_000)?;
        socket2::SockRef::from(&tcp).set_tcp_notsent_lowat(UNSENT_MAX)?;
        let peer = tcp.peer_addr()?;
        Ok(Self {
            tcp,
            peer,
            session: None,
            spin: Duration::ZERO,
        })
    }

    /// Encrypted; the peer has to prove that it has the name that this end dials, or who it is.
    pub fn encrypt(&mut self, tls: &Tls, dials: Option<&str>, limit: Duration) -> io::Result<()> {
        let session = tls.begin(&self.tcp, dials, limit);
        let session = session.map_err(|error| io::Error::new(error.kind(), in_words(&error)))?;
        self.session = Some(Box::new(session));
        Ok(())
    }

    /// Whether the peer may be who has this name: without encryption nobody proves anything.
    pub fn may_be(&self, name: &str) -> bool {
        self.session.as_ref().is_none_or(|session| session.is(name))
    }

    /// Whether it has been encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// Readable when the peer said something or is gone.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }

    /// The address of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Both ends are on this host.
    pub fn is_loopback(&self) -> bool {
        let local = self.tcp.local_addr();
        self.peer.ip().is_loopback() && local.is_ok_and(|local| local.ip().is_loopback())
    }

    /// How long a call may wait; none: until the connection is closed.
    pub fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        self.tcp.set_read_timeout(limit)?;
        self.tcp.set_write_timeout(limit)
    }

    /// Whoever reads looks for bytes for so long before it sleeps.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// Some bytes; none if the peer closed.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.session {
            None => self.receive(into),
            Some(session) => session.read(into, |into| self.receive(into)),
        }
    }

    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let end = (!self.spin.is_zero()).then(|| Instant::now() + self.spin);
        loop {
            let sleeps = end.is_none_or(|end| Instant::now() >= end);
            let flags = match sleeps {
                true => RecvFlags::empty(),
                false => RecvFlags::DONTWAIT,
            };
            match rustix::net::recv(&self.tcp, &mut *into, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if !sleeps => std::hint::spin_loop(),
                other => return Ok(other?.0),
            }
        }
    }

    /// Some of these bytes are taken; none if it may not wait and would have to.
    pub fn write(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        match &self.session {
            None => self.send(slices, wait),
            Some(session) => session.write(slices, |bytes| self.send(&[IoSlice::new(bytes)], wait)),
        }
    }

    /// Whether all that was taken is with the kernel.
    pub fn flush(&self, wait: Wait) -> io::Result<bool> {
        let send = |bytes: &[u8]| self.send(&[IoSlice::new(bytes)], wait);
        self.session
            .as_ref()
            .map_or(Ok(true), |session| session.flush(send))
    }

    fn send(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        if wait == Wait::No {
            flags |= SendFlags::DONTWAIT;
        }
        let mut control = SendAncillaryBuffer::default();
        loop {
            match rustix::net::sendmsg(&self.tcp, slices, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if wait == Wait::No => return Ok(0),
                other => return Ok(other?),
            }
        }
    }

    /// All of these bytes.
    pub fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let wrote = self.write(&[IoSlice::new(bytes)], Wait::Yes)?;
            bytes = &bytes[wrote..];
        }
        self.flush(Wait::Yes)?;
        Ok(())
    }

    /// Whoever reads or writes gets an end.
    pub fn close(&self) {
        // It may be closed already.
        let _ = self.tcp.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_socket_takes_little_ahead_of_what_it_sends() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let connection = Connection::plain(tcp).unwrap();
        let socket = socket2::SockRef::from(&connection.tcp);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), UNSENT_MAX);
    }
}
