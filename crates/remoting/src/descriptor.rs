//! Descriptors that travel with bytes over a Unix socket (`SCM_RIGHTS`).
//!
//! The kernel hands a descriptor over no later than the first byte that was sent with it. So whoever has read the header of a
//! frame has the descriptor that came with the frame.

use crate::communicator::Communicator;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Most descriptors of one message.
const MESSAGE_MAX: usize = 1;
/// Descriptors that have come and that nobody has taken yet; more are closed.
const WAITING_MAX: usize = 64;
const RIGHTS_BYTES: u32 = (MESSAGE_MAX * size_of::<RawFd>()) as u32;
// SAFETY: arithmetic on a number.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(RIGHTS_BYTES) } as usize;

/// Room for a control message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Sends bytes with a descriptor; gives how many were sent, at least one.
pub(crate) fn send(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: the message has room for one control message with one descriptor, which is written there; all that it points to
    // stays until the call returns, and the kernel only reads the bytes.
    let sent = unsafe {
        let first = libc::CMSG_FIRSTHDR(&message);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(RIGHTS_BYTES) as _;
        libc::CMSG_DATA(first)
            .cast::<RawFd>()
            .write_unaligned(descriptor.as_raw_fd());
        libc::sendmsg(to.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        Ok(count) => Ok(count),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Reads a connection, keeps the descriptors that come, and counts its calls.
pub(crate) struct Receiver {
    from: Arc<dyn Communicator>,
    waiting: Arc<Waiting>,
    calls: u64,
}

/// Descriptors that have come, in their order.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<VecDeque<OwnedFd>>);

impl Waiting {
    /// The next one.
    pub(crate) fn take(&self) -> Option<OwnedFd> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    fn add(&self, descriptor: OwnedFd) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < WAITING_MAX {
            all.push_back(descriptor);
        }
    }
}

impl Receiver {
    pub(crate) fn new(from: Arc<dyn Communicator>, waiting: Arc<Waiting>) -> Receiver {
        Receiver {
            from,
            waiting,
            calls: 0,
        }
    }

    /// How many calls it has made since it was asked last.
    pub(crate) fn take_calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }
}

impl Read for Receiver {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        match self.from.socket().filter(|socket| socket.is_local()) {
            Some(socket) => receive(socket.as_fd(), to, &self.waiting),
            None => self.from.read(to),
        }
    }
}

/// Reads some bytes of a Unix socket, and keeps the descriptors that come with them.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    to: &mut [u8],
    waiting: &Waiting,
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut piece = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    // SAFETY: zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: the message points to `to` and to `control`, with their lengths; both are borrowed until the call returns.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has written whole control messages; those of SCM_RIGHTS hold descriptors that are this process's
    // since now, and that nobody else knows.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&message);
        while !next.is_null() {
            if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(next).cast::<RawFd>();
                for at in 0..bytes / size_of::<RawFd>() {
                    waiting.add(OwnedFd::from_raw_fd(first.add(at).read_unaligned()));
                }
            }
            next = libc::CMSG_NXTHDR(&message, next);
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::{Communication, Endpoint};
    use crate::socket::write_all;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn a_descriptor_is_there_with_the_first_byte() {
        let folder = std::env::temp_dir().join(format!("rgaps-descriptor-{}", std::process::id()));
        let at = Communication::of(&rgaps_session::Config::default());
        let make = || at.communicator(&Endpoint::Unix(folder.clone())).unwrap();
        let (server, client) = (make(), make());
        server.serve().unwrap();
        client.connect().unwrap();
        let other = server.accept().unwrap();
        std::fs::remove_file(&folder).unwrap();
        let one = client.socket().unwrap();
        let (mut end, begin) = std::io::pipe().unwrap();
        write_all(one, [b"before", b""]).unwrap();
        assert_eq!(send(one.as_fd(), b"with", begin.as_fd()).unwrap(), 4);
        drop(begin);
        write_all(one, [b"behind", b""]).unwrap();
        let waiting = Arc::new(Waiting::default());
        let mut receiver = Receiver::new(other, waiting.clone());
        let mut bytes = [0; 16];
        receiver.read_exact(&mut bytes[..6]).unwrap();
        assert!(waiting.take().is_none());
        receiver.read_exact(&mut bytes[..1]).unwrap();
        let mut got = File::from(waiting.take().unwrap());
        assert!(waiting.take().is_none());
        receiver.read_exact(&mut bytes[..9]).unwrap();
        assert_eq!(&bytes[..9], b"ithbehind");
        assert!((3..=4).contains(&receiver.take_calls()));
        assert_eq!(receiver.take_calls(), 0);
        got.write_all(b"x").unwrap();
        drop(got);
        let mut all = Vec::new();
        end.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"x");
    }
}
