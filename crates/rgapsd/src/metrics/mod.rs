//! Serves the daemon's figures to Prometheus, on a thread of its own. It asks the reactor's thread for snapshots, so no message waits
//! for it. A connection gets one answer, and ends within [`CONNECTION_LIMIT`].
//!
//! Whoever reaches the port may open as many connections as they like. There are at most [`MAX_CONNECTIONS`]; a newcomer takes
//! the place of the oldest connection of the address that has the most, so idle ones keep no honest scrape waiting.

mod http;
mod text;

use http::{Wants, MAX_HEAD_BYTES};
use rgaps_engine::{Snapshot, SnapshotAsker};
use rgaps_session::Metrics;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::time::Timespec;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most connections that are open at once.
const MAX_CONNECTIONS: usize = 32;
/// Most connections that wait to be accepted. The client of one more tries again after 1 s, and the standard library allows only 128.
const BACKLOG: i32 = 4096;
/// How much of an answer the kernel buffers for a slow reader. The rest stays in this process.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// How long a connection may last.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// How long the engine may take for a snapshot.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(2);
/// How long a page is served again before the next snapshot. So requests without pause cost the engine at most ten snapshots a second.
const FRESH: Duration = Duration::from_millis(100);
/// How long to wait after accepting a connection has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The thread. Dropping this ends it.
pub struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens and serves. None: no address is configured.
    pub fn start(config: &Metrics, asker: SnapshotAsker) -> std::io::Result<Option<Server>> {
        let Some(address) = config.listen else {
            return Ok(None);
        };
        let listener = TcpListener::bind(address)?;
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let serving = Serving {
            listener,
            address,
            stop: stop.clone(),
            asker,
            connections: Vec::new(),
            page: None,
            accepts_again: None,
        };
        let thread = std::thread::Builder::new()
            .name("rgapsd-metrics".to_owned())
            .spawn(move || serving.run())?;
        tracing::info!(%address, "serving metrics at http://{address}/metrics");
        Ok(Some(Server {
            stop,
            thread: Some(thread),
        }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Connection {
    stream: TcpStream,
    from: IpAddr,
    /// When it is closed.
    until: Instant,
    /// The bytes of the request so far.
    head: Vec<u8>,
    /// The answer, and how many of its bytes are written. None: the request is not complete.
    answer: Option<(Vec<u8>, usize)>,
}

struct Serving {
    listener: TcpListener,
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    asker: SnapshotAsker,
    /// The oldest first.
    connections: Vec<Connection>,
    /// The last page, and when it was made.
    page: Option<(String, Instant)>,
    /// Set while no connection is accepted: until when.
    accepts_again: Option<Instant>,
}

impl Serving {
    fn run(mut self) {
        loop {
            let (mut readable, stopped) = match self.wait() {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    tracing::error!(error = %errno, address = %self.address, "metrics are not served any more");
                    return;
                }
            };
            if stopped {
                return;
            }
            let now = Instant::now();
            if self.accepts_again.is_some_and(|at| now >= at) {
                self.accepts_again = None;
            }
            let mut kept = Vec::with_capacity(MAX_CONNECTIONS);
            for mut connection in std::mem::take(&mut self.connections) {
                let ready = readable.next().unwrap_or(false);
                let goes_on = !ready || self.serve(&mut connection);
                if goes_on && now < connection.until {
                    kept.push(connection);
                }
            }
            self.connections = kept;
            self.accept(now);
        }
    }

    /// Waits for events. Returns for each connection whether it is ready, and whether the thread is to end.
    fn wait(&self) -> Result<(std::vec::IntoIter<bool>, bool), Errno> {
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        for connection in &self.connections {
            let flags = match connection.answer {
                Some(_) => PollFlags::OUT,
                None => PollFlags::IN,
            };
            fds.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), flags));
        }
        if self.accepts_again.is_none() {
            fds.push(PollFd::from_borrowed_fd(
                self.listener.as_fd(),
                PollFlags::IN,
            ));
        }
        let ends = self.connections.iter().map(|connection| connection.until);
        let next = ends.chain(self.accepts_again).min();
        let wait = next.map(|at| {
            let wait = at.saturating_duration_since(Instant::now());
            let wait = wait + Duration::from_millis(1);
            Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: wait.subsec_nanos().into(),
            }
        });
        poll(&mut fds, wait.as_ref())?;
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let connections = fds[1..].iter().take(self.connections.len());
        let connections: Vec<bool> = connections.map(ready).collect();
        Ok((connections.into_iter(), ready(&fds[0])))
    }

    /// Accepts at most [`MAX_CONNECTIONS`] newcomers in a turn, so that present connections get their turns.
    fn accept(&mut self, now: Instant) {
        for _ in 0..MAX_CONNECTIONS {
            if self.accepts_again.is_some() {
                return;
            }
            let (stream, from) = match self.listener.accept() {
                Ok((stream, from)) => (stream, from.ip().to_canonical()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!(%error, "accepting connections for metrics failed; trying again shortly");
                    self.accepts_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            let limited = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
            if limited.is_err() || stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut newcomer = Connection {
                stream,
                from,
                until: now + CONNECTION_LIMIT,
                head: Vec::new(),
                answer: None,
            };
            // Its request has usually arrived already.
            if !self.serve(&mut newcomer) {
                continue;
            }
            if self.connections.len() >= MAX_CONNECTIONS {
                let addresses = self.connections.iter().map(|connection| connection.from);
                let Some(victim) = victim(addresses, from) else {
                    continue;
                };
                self.connections.remove(victim);
            }
            self.connections.push(newcomer);
        }
    }

    /// Reads from and writes to a connection without blocking. False: it has ended.
    fn serve(&mut self, connection: &mut Connection) -> bool {
        if connection.answer.is_none() {
            match read(connection) {
                Some(Wants::More) => return true,
                None => return false,
                Some(Wants::Other(status)) => {
                    connection.answer = Some((http::refusal(status), 0));
                }
                Some(Wants::Metrics { body }) => {
                    let answer = match self.page() {
                        Some(text) => http::page(text, body),
                        None => http::refusal("503 Service Unavailable"),
                    };
                    connection.answer = Some((answer, 0));
                }
            }
        }
        let Some((answer, done)) = &mut connection.answer else {
            return true;
        };
        while *done < answer.len() {
            match connection.stream.write(&answer[*done..]) {
                Ok(0) => return false,
                Ok(wrote) => *done += wrote,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// The page, from the last snapshot or a new one. None: the engine did not answer in time.
    fn page(&mut self) -> Option<&str> {
        let fresh = |(_, made): &(String, Instant)| made.elapsed() < FRESH;
        if !self.page.as_ref().is_some_and(fresh) {
            let snapshot: Snapshot = self.asker.ask(SNAPSHOT_LIMIT)?;
            let text = text::text(snapshot).ok()?;
            self.page = Some((text, Instant::now()));
        }
        self.page.as_ref().map(|(text, _)| text.as_str())
    }
}

/// Which connection makes room for a newcomer: the oldest one of the address with the most connections, the newcomer included. If
/// several addresses have the most, the oldest of all of theirs. None: the newcomer itself.
fn victim(by_age: impl Iterator<Item = IpAddr>, newcomer: IpAddr) -> Option<usize> {
    // By address: its oldest connection, and how many it has.
    let mut addresses = HashMap::from([(newcomer, (None, 1usize))]);
    for (at, from) in by_age.enumerate() {
        let (oldest, count) = addresses.entry(from).or_default();
        oldest.get_or_insert(at);
        *count += 1;
    }
    let most = addresses.into_values().max_by_key(|(oldest, count)| {
        let age = oldest.map_or(0, |oldest| usize::MAX - oldest);
        (*count, age)
    });
    most.and_then(|(oldest, _)| oldest)
}

/// Reads what has arrived of a request, and parses it. None: the client has closed the connection, or reading failed.
fn read(connection: &mut Connection) -> Option<Wants> {
    let mut bytes = [0; MAX_HEAD_BYTES];
    loop {
        let room = MAX_HEAD_BYTES - connection.head.len();
        match connection.stream.read(&mut bytes[..room]) {
            Ok(0) => return None,
            Ok(count) => {
                connection.head.extend(&bytes[..count]);
                match http::wants(&connection.head) {
                    Wants::More => {}
                    wants => return Some(wants),
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(Wants::More),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn victim_of(by_age: &[u8], newcomer: u8) -> Option<usize> {
        let address = |number: &u8| IpAddr::from([10, 0, 0, *number]);
        victim(by_age.iter().map(address), address(&newcomer))
    }

    #[test]
    fn the_oldest_of_the_address_with_the_most_makes_room() {
        assert_eq!(victim_of(&[2, 1, 1, 1], 3), Some(1));
        assert_eq!(victim_of(&[2, 1, 1, 1], 1), Some(1));
        assert_eq!(victim_of(&[1, 2, 3, 4], 5), Some(0));
        assert_eq!(victim_of(&[1, 2, 3, 4], 2), Some(1));
        assert_eq!(victim_of(&[2, 2, 1, 1], 3), Some(0));
    }
}
