//! The socket that carries a connection's bytes, as a backend process gets it.

use crate::limits::{SPIN, SPIN_PROCESSORS_MIN};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A connection.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket, whose other end is the client.
    Unix(UnixStream),
    /// A Unix socket whose other end is the server, which relays.
    Relay(UnixStream),
}

impl Socket {
    /// The socket of a descriptor from the parent process; `kind` is what [`kind`](Self::kind) gave there.
    pub fn of_descriptor(descriptor: OwnedFd, kind: &str) -> Socket {
        match kind {
            "tcp" => Socket::Tcp(descriptor.into()),
            "unix" => Socket::Unix(descriptor.into()),
            _ => Socket::Relay(descriptor.into()),
        }
    }

    /// The kind of the socket, as text.
    pub fn kind(&self) -> &'static str {
        match self {
            Socket::Tcp(_) => "tcp",
            Socket::Unix(_) => "unix",
            Socket::Relay(_) => "relay",
        }
    }

    /// Whether both ends are on one host, and descriptors can be sent.
    pub fn is_local(&self) -> bool {
        matches!(self, Socket::Unix(_))
    }

    /// Looks for bytes for a while, so that a read behind it need not sleep; whether there are any.
    pub(crate) fn spin(&self) -> bool {
        static MAY_SPIN: OnceLock<bool> = OnceLock::new();
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let may_spin = MAY_SPIN.get_or_init(|| processors() >= SPIN_PROCESSORS_MIN);
        *may_spin && self.has_bytes_within(SPIN)
    }

    fn has_bytes_within(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let mut polled = libc::pollfd {
                fd: self.as_fd().as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one structure of this function; the descriptor is open while this value is.
            if unsafe { libc::poll(&mut polled, 1, 0) } != 0 {
                return true;
            }
            if begun.elapsed() >= limit {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Ends both directions, also for a thread that waits in a read.
    pub fn shut_down(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Socket::Unix(stream) | Socket::Relay(stream) => {
                stream.shutdown(std::net::Shutdown::Both)
            }
        };
    }
}

/// Takes over an open descriptor by its number.
///
/// # Safety
/// The descriptor is open, and nobody else closes or uses it.
pub unsafe fn inherited(number: i32) -> OwnedFd {
    // SAFETY: our caller promises that the descriptor `number` is open, and that nobody else closes or uses it. So the result is its only
    // owner.
    unsafe { OwnedFd::from_raw_fd(number) }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) | Socket::Relay(stream) => stream.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(to),
            Socket::Unix(stream) | Socket::Relay(stream) => (&*stream).read(to),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    /// Raises no signal: the client is inside programs that know nothing of the socket, and SIGPIPE would end them.
    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: `msghdr` is a structure of integers and pointers, for which zeros are values: an empty message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // An `IoSlice` is an iovec, as its documentation promises.
        message.msg_iov = from.as_ptr().cast_mut().cast();
        message.msg_iovlen = from.len();
        let socket = self.as_fd().as_raw_fd();
        // SAFETY: the message points to `from`, whose slices are iovecs and are borrowed until the call returns. The kernel only reads
        // them.
        let sent = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

/// Writes memory that other processes or a GPU may write meanwhile.
///
/// # Safety
/// `bytes` bytes at `start` are mapped, or the process accepts that the write fails.
pub(crate) unsafe fn write_memory(to: &Socket, start: *const u8, bytes: usize) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        let (from, left) = (start.wrapping_add(done).cast(), bytes - done);
        // SAFETY: no reference to the memory is made: only the kernel reads it, and fails where nothing is mapped, which our caller
        // accepts. `from` and `left` stay inside the `bytes` bytes at `start`.
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
    fn bytes_and_the_end_of_a_connection_are_seen_without_sleep() {
        let (one, other) = UnixStream::pair().unwrap();
        let at = Socket::Unix(one);
        assert!(!at.has_bytes_within(Duration::from_micros(10)));
        (&other).write_all(b"x").unwrap();
        assert!(at.has_bytes_within(Duration::ZERO));
        (&at).read_exact(&mut [0]).unwrap();
        drop(other);
        assert!(at.has_bytes_within(Duration::ZERO));
    }

    /// A blocked signal stays pending even where it is ignored, as it is in programs of Rust.
    #[test]
    fn a_peer_that_is_gone_is_an_error_and_no_signal() {
        let (one, other) = UnixStream::pair().unwrap();
        drop(other);
        let to = Socket::Unix(one);
        // SAFETY: sets of signals of this thread, which are on its stack.
        let raised = unsafe {
            let (mut pipe, mut before, mut pending) = std::mem::zeroed();
            libc::sigemptyset(&mut pipe);
            libc::sigaddset(&mut pipe, libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
            let error = write_all(&to, [b"abc", b"d"]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            let error = (&to).write(b"abc").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            libc::sigpending(&mut pending);
            let raised = libc::sigismember(&pending, libc::SIGPIPE);
            // A pending signal that is ignored vanishes when it is unblocked.
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            raised
        };
        assert_eq!(raised, 0);
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
