//! The backend's ends of a client's stripes. The server's front takes their connections, and hands them over through a socket whose name
//! only the client knows. The backend takes them from no process but the front's.

use crate::descriptor::{receive, Waiting};
use crate::limits::{HELLO_TIMEOUT, STRIPES_MAX};
use crate::socket::Socket;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Names a session in the hellos of its stripes.
pub(crate) type Token = [u8; 16];

/// Kinds of sockets, by their numbers in the front's message.
const KINDS: [&str; 3] = ["tcp", "unix", "relay"];

fn address(token: &Token) -> io::Result<SocketAddr> {
    let name: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("rgaps-gpu-stripes-{name}"))
}

/// The stripes of a client that have arrived, by index.
#[derive(Default)]
pub(crate) struct Stripes {
    all: Mutex<[Option<Arc<Socket>>; STRIPES_MAX]>,
    arrived: Condvar,
}

impl Stripes {
    /// Listens for stripes; gives the token that they have to name.
    pub(crate) fn listen(self: &Arc<Self>, parent: u32) -> io::Result<Token> {
        let mut token = [0; 16];
        // SAFETY: the kernel writes at most `token.len()` bytes to `token`.
        let filled = unsafe { libc::getrandom(token.as_mut_ptr().cast(), token.len(), 0) };
        if filled != token.len() as isize {
            return Err(io::Error::last_os_error());
        }
        let listener = UnixListener::bind_addr(&address(&token)?)?;
        let stripes = self.clone();
        std::thread::Builder::new()
            .name("stripes".to_owned())
            .spawn(move || loop {
                if let Ok((stream, _)) = listener.accept() {
                    if let Err(error) = stripes.take(&stream, parent) {
                        tracing::debug!(%error, "no stripe");
                    }
                }
            })?;
        Ok(token)
    }

    fn take(&self, from: &UnixStream, parent: u32) -> io::Result<()> {
        if peer_of(from)? != parent {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (mut message, waiting) = ([0; 2], Waiting::default());
        let count = receive(from.as_fd(), &mut message, &waiting)?;
        let [index, kind] = message.map(usize::from);
        let (Some(descriptor), Some(kind)) = (waiting.take(), KINDS.get(kind)) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if count != message.len() || index >= STRIPES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all[index] = Some(Arc::new(Socket::of_descriptor(descriptor, kind)));
        self.arrived.notify_all();
        Ok(())
    }

    /// The stripes that have arrived, up to the first gap.
    pub(crate) fn here(&self) -> Vec<Arc<Socket>> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map_while(Clone::clone).collect()
    }

    /// The first `count` stripes, which are waited for if they are still on their way.
    pub(crate) fn get(&self, count: usize) -> io::Result<Vec<Arc<Socket>>> {
        let until = Instant::now() + HELLO_TIMEOUT;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let found: Option<Vec<_>> = all.iter().take(count).cloned().collect();
            if let Some(found) = found {
                return Ok(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let waited = self.arrived.wait_timeout(all, left);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The process at the other end.
fn peer_of(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `peer`, which has the type that this option gives, and the length to `length`.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &mut length,
        )
    } != 0;
    match failed {
        true => Err(io::Error::last_os_error()),
        false => Ok(peer.pid as u32),
    }
}

/// Hands a connection to the backend whose session has this token.
pub(crate) fn hand_over(
    token: &Token,
    index: u8,
    kind: &str,
    connection: std::os::fd::BorrowedFd<'_>,
) -> io::Result<()> {
    let backend = UnixStream::connect_addr(&address(token)?)?;
    let kind = KINDS.iter().position(|known| *known == kind);
    let kind = kind.ok_or(io::ErrorKind::InvalidInput)? as u8;
    let sent = crate::descriptor::send(backend.as_fd(), &[index, kind], connection)?;
    match sent {
        2 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
