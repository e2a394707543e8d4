//! Where a server listens, and a connection to it.

use crate::limits::HELLO_TIMEOUT;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

/// The port where servers listen if nothing else is said.
pub const PORT: u16 = 7462;

/// Where a server listens: `host:port`, `host`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// TCP, by host and port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err("'unix:' has no path".to_owned()),
                false => Ok(Endpoint::Unix(path.into())),
            };
        }
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address in brackets may have a port.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let port = port
                    .parse()
                    .map_err(|_| format!("'{port}' is not a port"))?;
                (host, port)
            }
            _ => (text, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match host.is_empty() {
            true => Err(format!("'{text}' names no host")),
            false => Ok(Endpoint::Tcp(host.to_owned(), port)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp(host, port) => write!(f, "{host}:{port}"),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// Connects, in no more than [`HELLO_TIMEOUT`] for each address of the host.
    pub fn connect(to: &Endpoint) -> io::Result<Socket> {
        match to {
            Endpoint::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
            Endpoint::Tcp(host, port) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, HELLO_TIMEOUT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Socket::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Ends reads and writes that take longer; `None` lets them.
    pub fn limit(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    /// Where the other end is, for people.
    pub fn peer(&self) -> String {
        match self {
            Socket::Tcp(stream) => stream
                .peer_addr()
                .map_or_else(|_| "?".to_owned(), |a| a.to_string()),
            Socket::Unix(_) => "this host".to_owned(),
        }
    }

    /// The socket of this descriptor, which a parent handed down.
    pub fn of_descriptor(descriptor: OwnedFd, is_tcp: bool) -> Socket {
        match is_tcp {
            true => Socket::Tcp(descriptor.into()),
            false => Socket::Unix(descriptor.into()),
        }
    }

    /// Whether both ends are on one host, and descriptors can be sent.
    pub fn is_local(&self) -> bool {
        matches!(self, Socket::Unix(_))
    }

    /// Ends both directions, also for a thread that waits in a read.
    pub fn shut_down(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }
}

/// Takes over an open descriptor by its number.
///
/// # Safety
/// The descriptor is open, and nobody else closes or uses it.
pub unsafe fn inherited(number: i32) -> OwnedFd {
    // SAFETY: open and ours alone, as the caller promises.
    unsafe { OwnedFd::from_raw_fd(number) }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(to),
            Socket::Unix(stream) => (&*stream).read(to),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(from),
            Socket::Unix(stream) => (&*stream).write(from),
        }
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write_vectored(from),
            Socket::Unix(stream) => (&*stream).write_vectored(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where a server takes connections.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Listens there. A Unix socket that nobody listens at any more is replaced.
    pub fn bind(at: &Endpoint) -> io::Result<Listener> {
        match at {
            Endpoint::Tcp(host, port) => {
                TcpListener::bind((host.as_str(), *port)).map(Listener::Tcp)
            }
            Endpoint::Unix(path) => {
                if UnixStream::connect(path)
                    .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
                {
                    std::fs::remove_file(path)?;
                }
                UnixListener::bind(path).map(Listener::Unix)
            }
        }
    }

    /// Where it listens, with the port that the system chose.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Listener::Tcp(listener) => {
                let address = listener.local_addr()?;
                Ok(Endpoint::Tcp(address.ip().to_string(), address.port()))
            }
            Listener::Unix(listener) => {
                let address = listener.local_addr()?;
                Ok(Endpoint::Unix(
                    address.as_pathname().unwrap_or("".as_ref()).to_owned(),
                ))
            }
        }
    }

    /// The next connection.
    pub fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
        }
    }
}

/// Writes all of several pieces, as one system call where the system takes them.
pub(crate) fn write_all(to: &Socket, pieces: [&[u8]; 2]) -> io::Result<usize> {
    let total: usize = pieces.iter().map(|piece| piece.len()).sum();
    let (mut done, mut calls) = (0, 0);
    while done < total {
        let first = pieces[0].get(done..).unwrap_or_default();
        let second = &pieces[1][done.saturating_sub(pieces[0].len())..];
        match (&mut &*to).write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                done += count;
                calls += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(calls)
}

/// Writes memory that others may be writing.
///
/// # Safety
/// `bytes` bytes at `start` are mapped, or the process accepts that the write fails.
pub(crate) unsafe fn write_memory(to: &Socket, start: *const u8, bytes: usize) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        let (from, left) = (start.wrapping_add(done).cast(), bytes - done);
        // SAFETY: only the kernel reads the memory, as the caller allows.
        let sent = unsafe { libc::send(to.as_fd().as_raw_fd(), from, left, libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_shown() {
        for (text, shown) in [
            ("gpu7", "gpu7:7462"),
            ("gpu7:99", "gpu7:99"),
            ("10.0.0.1:5", "10.0.0.1:5"),
            ("[::1]:5", "[::1]:5"),
            ("::1", "[::1]:7462"),
            ("unix:/run/x", "unix:/run/x"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown);
        }
        for wrong in ["", "unix:", ":5", "host:port"] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn pieces_are_written_whole_and_in_order() {
        let (one, other) = UnixStream::pair().unwrap();
        let to = Socket::Unix(one);
        let big = vec![7u8; 1 << 20];
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 3 + (1 << 20)];
            (&other).read_exact(&mut all).unwrap();
            all
        });
        write_all(&to, [b"abc", &big]).unwrap();
        let all = reader.join().unwrap();
        assert_eq!((&all[..3], &all[3..]), (&b"abc"[..], &big[..]));
    }
}
