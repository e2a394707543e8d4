//! RDMA: bytes travel in frames of a channel of `rgaps-verbs`, which one end writes into the other's registered ring (WRITE_WITH_IMM).
//!
//! Both ends find each other over TCP, with or without TLS, and exchange the addresses of their channels there. That connection then
//! stays open and idle: its end is the end of the peer. RDMA is not encrypted, so `links.trusted_fabric` has to be set.
//!
//! A thread that waits for bytes or for room makes the channel's progress for all who wait ("leader and followers", as in `client`).

use super::{not_connected, read_exact, write_all, Communicator};
use rgaps_session::Links;
use rgaps_sync::lock;
use rgaps_verbs::{frames, Channel, ChannelAddress, ChannelConfig, Device, Verbs, ADDRESS_BYTES};
use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The ring that the peer writes.
const RING_BYTES: u64 = 4 << 20;
/// Most bytes of a frame; several are in flight.
const FRAME_BYTES: usize = 256 << 10;
/// Most bytes that have arrived and that nobody has read; then nobody takes more of the channel.
const UNREAD_BYTES_MAX: usize = 64 << 20;
/// A thread that sleeps looks again after this.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How long [`Communicator::close`] waits until the peer has what was written.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// What each end sends first, and what it sends when it is connected.
const WORD: [u8; 4] = *b"rga1";
const READY: [u8; 4] = *b"redy";
/// Longest reason for which an end has no channel.
const REASON_BYTES_MAX: usize = 255;

pub(super) struct Rdma {
    /// Listens, or is connected.
    tcp: Arc<dyn Communicator>,
    card: Arc<Device>,
    stream: OnceLock<Stream>,
    /// Held while an accepted connection agrees with its client on a channel, at its first use: so a slow client keeps no other waiting.
    opening: Mutex<()>,
    is_accepted: bool,
}

/// The card that connections use: the first of `links.rdma_devices`, or else the first that is up.
pub(super) fn card(links: &Links) -> io::Result<Arc<Device>> {
    let denied = |text: &str| io::Error::new(io::ErrorKind::PermissionDenied, text);
    if !links.trusted_fabric {
        return Err(denied(
            "RDMA is not encrypted; set links.trusted_fabric = true in the configuration if you trust everyone on its network",
        ));
    }
    let none = |text: String| io::Error::new(io::ErrorKind::Unsupported, text);
    let verbs = Verbs::load().map_err(|error| none(error.to_string()))?;
    let wanted = links.rdma_devices.first();
    let ports = Verbs::ports();
    let mut ready = ports
        .iter()
        .filter(|port| port.is_up && port.address.is_some());
    let port = ready.find(|port| wanted.is_none_or(|name| port.device == *name));
    let port = port.ok_or_else(|| {
        none(match wanted {
            Some(name) => format!("links.rdma_devices: there is no card '{name}' that is up and has an address of RoCE v2"),
            None => "this host has no card with RDMA that is up and has an address of RoCE v2; use another communicator".to_owned(),
        })
    })?;
    verbs
        .open(port)
        .map_err(|error| none(format!("{}: {error}", port.device)))
}

impl Rdma {
    /// Over a communicator that connects both ends, and a card.
    pub(super) fn at(tcp: Arc<dyn Communicator>, card: Arc<Device>) -> Rdma {
        Rdma {
            tcp,
            card,
            stream: OnceLock::new(),
            opening: Mutex::new(()),
            is_accepted: false,
        }
    }

    fn connected(&self) -> io::Result<&Stream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        if !self.is_accepted {
            return Err(not_connected());
        }
        let _opening = lock(&self.opening);
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream = Stream::agree(&self.tcp, &self.card, true)?;
        Ok(self.stream.get_or_init(|| stream))
    }
}

impl Communicator for Rdma {
    fn serve(&self) -> io::Result<()> {
        self.tcp.serve()
    }

    fn accept(&self) -> io::Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Rdma {
            is_accepted: true,
            ..Rdma::at(self.tcp.accept()?, self.card.clone())
        }))
    }

    fn connect(&self) -> io::Result<()> {
        self.tcp.connect()?;
        let stream = Stream::agree(&self.tcp, &self.card, false)?;
        self.stream
            .set(stream)
            .map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        self.connected()?.0.read(to)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connected()?.0.write(pieces)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn close(&self) {
        match self.stream.get() {
            Some(stream) => stream.0.close(),
            None => self.tcp.close(),
        }
    }

    fn to_string(&self) -> String {
        match self.is_accepted {
            true => self.tcp.to_string(),
            false => format!("rdma/{}", self.tcp.to_string()),
        }
    }

    fn admit(&self) -> Result<(), String> {
        self.tcp.admit()
    }
}

/// A connection, which ends when this is dropped.
struct Stream(Arc<Flow>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Flow {
    channel: Channel,
    tcp: Arc<dyn Communicator>,
    state: Mutex<CommunicatorState>,
    changed: Condvar,
}

#[derive(Default)]
struct CommunicatorState {
    /// Bytes that have arrived; those up to `taken` were read.
    arrived: Vec<u8>,
    taken: usize,
    /// A thread makes the channel's progress.
    is_driven: bool,
    /// The peer's connection has ended, or this end was closed.
    has_ended: bool,
    /// Frames that were sent.
    sent: u64,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Stream {
    /// Both ends agree on a channel over the connection that they have. The client speaks first.
    fn agree(
        tcp: &Arc<dyn Communicator>,
        card: &Arc<Device>,
        is_server: bool,
    ) -> io::Result<Stream> {
        let config = ChannelConfig {
            ring_bytes: RING_BYTES,
            ..ChannelConfig::default()
        };
        let made = Channel::new(card, config).map_err(|error| format!("{}: {error}", card.name()));
        let channel = match (made, is_server) {
            (Ok(channel), true) => {
                let peer = receive_address(&**tcp)?;
                let connected = channel.connect(&peer).map_err(|error| error.to_string());
                send_address(&**tcp, connected.map(|()| channel.address()))?;
                channel
            }
            (Ok(channel), false) => {
                send_address(&**tcp, Ok(channel.address()))?;
                let peer = receive_address(&**tcp)?;
                channel.connect(&peer).map_err(other)?;
                channel
            }
            (Err(reason), is_server) => {
                if is_server {
                    receive_address(&**tcp)?;
                }
                send_address(&**tcp, Err(reason.clone()))?;
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
        };
        // The peer's frames may come when it knows that this end is connected.
        let mut word = [0; READY.len()];
        write_all(&**tcp, [&READY, &[]])?;
        read_exact(&**tcp, &mut word)?;
        if word != READY {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let flow = Arc::new(Flow {
            channel,
            tcp: tcp.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (watched, watching) = (Arc::downgrade(&flow), tcp.clone());
        std::thread::Builder::new()
            .name("rgaps-gpu-rdma".to_owned())
            .spawn(move || watch(&watched, &*watching))?;
        Ok(Stream(flow))
    }
}

/// Sends the address of this end's channel, or why there is none.
fn send_address(to: &dyn Communicator, what: Result<ChannelAddress, String>) -> io::Result<()> {
    let (bytes, is_address) = match &what {
        Ok(address) => (address.encode().to_vec(), 1),
        Err(reason) => {
            let bytes = reason.as_bytes();
            (bytes[..bytes.len().min(REASON_BYTES_MAX)].to_vec(), 0)
        }
    };
    let head = [&WORD[..], &[is_address, bytes.len() as u8]].concat();
    write_all(to, [&head, &bytes])?;
    what.map(drop)
        .map_err(|reason| io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// Receives the address of the peer's channel.
fn receive_address(from: &dyn Communicator) -> io::Result<ChannelAddress> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut head = [0; WORD.len() + 2];
    read_exact(from, &mut head)?;
    if head[..WORD.len()] != WORD {
        let text = "the other end speaks no RDMA; both name it with rdma/ before the address";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let [.., is_address, length] = head;
    let mut bytes = vec![0; length.into()];
    read_exact(from, &mut bytes)?;
    if is_address == 0 {
        let reason = String::from_utf8_lossy(&bytes).escape_debug().to_string();
        let text = format!("the other end has no RDMA: {reason}");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    ChannelAddress::decode(&bytes).ok_or_else(invalid)
}

const _: () = assert!(ADDRESS_BYTES <= REASON_BYTES_MAX);

/// Runs on a thread of its own: waits for the end of the TCP connection, over which no more bytes come.
fn watch(flow: &Weak<Flow>, tcp: &dyn Communicator) {
    let _ = tcp.read(&mut [0; 1]);
    if let Some(flow) = flow.upgrade() {
        flow.end();
    }
}

impl Flow {
    /// Takes the bytes that the channel has, or waits until it has some, and appends them to `arrived`.
    fn drive<'a>(
        &'a self,
        mut state: MutexGuard<'a, CommunicatorState>,
    ) -> MutexGuard<'a, CommunicatorState> {
        if state.is_driven || state.arrived.len() >= UNREAD_BYTES_MAX {
            return self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.is_driven = true;
        let has_ended = state.has_ended;
        drop(state);
        let mut received = Vec::new();
        let mut take = frames(|bytes: &[u8]| {
            received.extend_from_slice(bytes);
            Ok(())
        });
        let progress = match has_ended {
            // Takes what the peer wrote before it ended.
            true => self.channel.progress(&mut take),
            false => self.channel.serve(&mut take, SLEEP_MAX),
        };
        drop(take);
        state = lock(&self.state);
        state.is_driven = false;
        state.arrived.append(&mut received);
        state.has_ended |= progress.is_err();
        self.changed.notify_all();
        state
    }

    fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        let mut state = lock(&self.state);
        // Whether the channel was read once more after the end.
        let mut is_last = false;
        while state.taken == state.arrived.len() {
            if is_last {
                return Ok(0);
            }
            is_last = state.has_ended && !state.is_driven;
            state = self.drive(state);
        }
        let rest = &state.arrived[state.taken..];
        let count = rest.len().min(to.len());
        to[..count].copy_from_slice(&rest[..count]);
        state.taken += count;
        if state.taken == state.arrived.len() {
            let was_full = state.arrived.len() >= UNREAD_BYTES_MAX;
            state.arrived.clear();
            state.taken = 0;
            if was_full {
                self.changed.notify_all();
            }
        }
        Ok(count)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let most = FRAME_BYTES.min(self.channel.frame_bytes_max() as usize);
        let mut parts = Vec::with_capacity(pieces.len());
        let mut count = 0;
        for piece in pieces {
            let part = &piece[..piece.len().min(most - count)];
            count += part.len();
            parts.push(IoSlice::new(part));
        }
        let mut state = lock(&self.state);
        while !state.has_ended {
            // This thread holds the lock until it waits, so it cannot miss the notice of the thread that makes room.
            if let Some(number) = self.channel.send(&parts, None).map_err(other)? {
                state.sent = number;
                return Ok(count);
            }
            state = self.drive(state);
        }
        Err(io::ErrorKind::BrokenPipe.into())
    }

    /// Waits a limited time until the peer has what was written.
    fn flush(&self) {
        let until = Instant::now() + FLUSH_LIMIT;
        let mut state = lock(&self.state);
        let mut is_asked = false;
        while !state.has_ended && self.channel.completed() < state.sent && Instant::now() < until {
            // A channel that fails has ended.
            is_asked = is_asked || self.channel.report().unwrap_or(true);
            state = match state.is_driven || state.arrived.len() >= UNREAD_BYTES_MAX {
                true => {
                    let waited = self.changed.wait_timeout(state, FLUSH_LIMIT);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                false => self.drive(state),
            };
        }
    }

    fn close(&self) {
        self.flush();
        self.tcp.close();
        self.end();
    }

    fn end(&self) {
        lock(&self.state).has_ended = true;
        self.channel.ring();
        self.changed.notify_all();
    }
}
