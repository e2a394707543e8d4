//! [`Connection`]: bytes in order in both directions, plain or encrypted, over TCP.

use crate::tls::{in_words, Session, Tls};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The most unsent bytes in a socket (`TCP_NOTSENT_LOWAT`). More would only wait there: each hop would delay a message in transit by the
/// time to send them, and a small message would wait behind large ones.
const UNSENT_MAX: u32 = 256 << 10;

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait until there are bytes, or room for them.
    Yes,
    /// Return at once.
    No,
}

/// One TCP connection. At a time one thread may read and one may write.
#[derive(Debug)]
pub struct Connection {
    tcp: TcpStream,
    peer: SocketAddr,
    session: Option<Box<Session>>,
    /// How long a read polls before it sleeps.
    spin: Duration,
}

impl Connection {
    /// A plain connection. It leaves the sizes of the socket's buffers to the kernel: setting one would end the kernel's tuning, and is
    /// limited to `net.core.rmem_max`, which is smaller than the tuned size.
    pub fn plain(tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        // The kernel ends the connection if bytes stay unacknowledged for this many ms. Users mostly notice a silent peer sooner.
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

    /// Encrypts the connection. `dials`: the name that the peer has to prove, if this end opened the connection; `None` if the peer did,
    /// which then has to show a certificate of the realm. The handshake takes no longer than `limit`.
    pub fn encrypt(&mut self, tls: &Tls, dials: Option<&str>, limit: Duration) -> io::Result<()> {
        let session = tls.begin(&self.tcp, dials, limit);
        let session = session.map_err(|error| io::Error::new(error.kind(), in_words(&error)))?;
        self.session = Some(Box::new(session));
        Ok(())
    }

    /// Whether the peer may have this name: its certificate is for the name, or the connection is plain, where peers prove nothing.
    pub fn may_be(&self, name: &str) -> bool {
        self.session.as_ref().is_none_or(|session| session.is(name))
    }

    /// Whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// The socket, which becomes readable when the peer has sent bytes or closed.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }

    /// The address of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether both ends have loopback addresses.
    pub fn is_loopback(&self) -> bool {
        let local = self.tcp.local_addr();
        self.peer.ip().is_loopback() && local.is_ok_and(|local| local.ip().is_loopback())
    }

    /// Sets how long a read or write may wait; `None`: until the connection is closed.
    pub fn set_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        self.tcp.set_read_timeout(limit)?;
        self.tcp.set_write_timeout(limit)
    }

    /// Sets how long a read polls before it sleeps.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// Waits for bytes and reads some; 0 if the peer has closed.
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

    /// Takes some of these bytes and returns how many; 0 if it would have to wait and `wait` is [`Wait::No`].
    pub fn write(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        match &self.session {
            None => self.send(slices, wait),
            Some(session) => session.write(slices, |bytes| self.send(&[IoSlice::new(bytes)], wait)),
        }
    }

    /// Passes bytes that were taken, and that encryption still buffers, to the kernel. False if it would have to wait and may not.
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

    /// Writes all of these bytes, and waits for room.
    pub fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let wrote = self.write(&[IoSlice::new(bytes)], Wait::Yes)?;
            bytes = &bytes[wrote..];
        }
        self.flush(Wait::Yes)?;
        Ok(())
    }

    /// Ends both directions. Threads that are reading or writing return.
    pub fn close(&self) {
        // Fails if the peer has closed already.
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
