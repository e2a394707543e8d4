//! Detects that the other end of a TCP connection is silent, since its host is off or the cable is out.
//!
//! A call has no limit of time, since a kernel has none: the connection is idle as long as it runs. And it is full while the server waits
//! for the GPU before it takes more bytes. The kernel asks a peer on an idle connection whether it is there (keepalive). If a peer does
//! not acknowledge bytes, the kernel sends them again for a quarter of an hour; [`watch`] ends such a connection sooner.

use super::Communicator;
use crate::limits::{SILENCE_LOOK, SILENCE_MAX};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// On an idle connection the kernel asks after so many seconds, then each time after as many, and so often.
const KEEPALIVE_S: libc::c_int = 5;
const KEEPALIVE_COUNT: libc::c_int = 3;
/// `TCP_CLOSE` of the kernel's states.
const CLOSED: u8 = 7;

/// Makes the kernel ask a peer on an idle connection, and give no connection up for another reason: bytes may wait for room as long as the
/// server waits.
pub(crate) fn prepare(connection: &impl AsFd) -> io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_S),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_S),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_COUNT),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
    ];
    let set = |(level, name, value): (libc::c_int, libc::c_int, libc::c_int)| {
        let socket = connection.as_fd().as_raw_fd();
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel reads an integer of this function.
        let failed = unsafe {
            libc::setsockopt(socket, level, name, std::ptr::from_ref(&value).cast(), size)
        };
        match failed {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    options.into_iter().try_for_each(set)
}

/// What the kernel knows of a connection.
#[derive(Clone, Copy, Debug)]
struct ConnectionState {
    is_closed: bool,
    /// The kernel asks the peer again for an acknowledgement that is due.
    is_asking: bool,
    /// How long ago the peer answered anything.
    answered: Duration,
}

impl ConnectionState {
    fn of(connection: BorrowedFd<'_>) -> io::Result<ConnectionState> {
        // SAFETY: `tcp_info` is a structure of integers, for which zeros are values.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes to a variable of this function.
        let failed = unsafe {
            libc::getsockopt(
                connection.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                std::ptr::from_mut(&mut info).cast(),
                &mut size,
            )
        };
        match failed {
            0 => Ok(ConnectionState {
                is_closed: info.tcpi_state == CLOSED,
                is_asking: info.tcpi_retransmits > 0 || info.tcpi_probes > 0,
                answered: Duration::from_millis(info.tcpi_last_ack_recv.into()),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Since when the peer of a connection owes an answer, as the last look found.
#[derive(Default)]
pub(crate) struct Silence(Option<Instant>);

impl Silence {
    /// Looks now: whether the connection is open, and its peer not silent.
    pub(crate) fn is_alive(&mut self, connection: BorrowedFd<'_>) -> bool {
        match ConnectionState::of(connection) {
            Ok(state) => !state.is_closed && !self.is_over(state, Instant::now()),
            Err(_) => false,
        }
    }

    /// Whether the peer has owed an answer for too long.
    fn is_over(&mut self, state: ConnectionState, now: Instant) -> bool {
        if !state.is_asking {
            self.0 = None;
            return false;
        }
        let since = *self.0.get_or_insert(now);
        if state.answered < now - since {
            self.0 = Some(now);
            return false;
        }
        now - since >= SILENCE_MAX
    }
}

/// Looks at all connections of a session from time to time, until one of them is dropped. Calls `end` when one has ended or its peer is
/// silent: the kernel ends an idle connection, and a thread that waits for room on another one does not see it. Watches TCP connections
/// only: others end with their peer, or with a TCP connection that they keep.
pub(crate) fn watch(
    all: &[Arc<dyn Communicator>],
    end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let tcp = all.iter().filter(|one| one.tcp().is_some());
    let mut watched: Vec<_> = tcp
        .map(|one| (Arc::downgrade(one), Silence::default()))
        .collect();
    if watched.is_empty() {
        return Ok(());
    }
    let look = move || loop {
        std::thread::sleep(SILENCE_LOOK);
        for (connection, silence) in &mut watched {
            let Some(connection) = connection.upgrade() else {
                return;
            };
            if !connection.tcp().is_some_and(|tcp| silence.is_alive(tcp)) {
                return end();
            }
        }
    };
    std::thread::Builder::new()
        .name("rgaps-gpu-watch".to_owned())
        .spawn(look)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn state(is_asking: bool, answered: Duration) -> ConnectionState {
        ConnectionState {
            is_closed: false,
            is_asking,
            answered,
        }
    }

    #[test]
    fn a_peer_that_owes_an_answer_for_too_long_is_silent() {
        let begun = Instant::now();
        let long = Duration::from_secs(3600);
        let mut silence = Silence::default();
        // An idle connection may be quiet for ever.
        assert!(!silence.is_over(state(false, long), begun));
        assert!(!silence.is_over(state(true, long), begun + SILENCE_LOOK));
        let until = begun + SILENCE_LOOK + SILENCE_MAX;
        assert!(!silence.is_over(state(true, long), until - SILENCE_LOOK));
        assert!(silence.is_over(state(true, long), until));
    }

    #[test]
    fn a_peer_that_answers_is_not() {
        let begun = Instant::now();
        let mut silence = Silence::default();
        for look in 0..100 {
            // The kernel asks at each look, and the peer has answered since the last: a slow network, or a server that waits for the GPU.
            let now = begun + SILENCE_LOOK * look;
            assert!(!silence.is_over(state(true, SILENCE_LOOK / 2), now));
        }
    }

    #[test]
    fn a_connection_is_seen_to_live_and_to_be_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        prepare(&one).unwrap();
        let mut silence = Silence::default();
        assert!(silence.is_alive(one.as_fd()));
        one.shutdown(std::net::Shutdown::Both).unwrap();
        drop(other);
        while silence.is_alive(one.as_fd()) {
            std::thread::yield_now();
        }
    }
}
