//! One WebSocket client, in a thread of its own.
//!
//! The thread alone uses the socket, which does not block. It polls for three things: bytes from the client, room for bytes to the
//! client, and messages in its outbox. It takes a message from the outbox only when the kernel has taken the last one.

use crate::http::is_for_later;
use crate::hub::Hub;
use crate::outbox::{NoRoom, Out, Outbox};
use crate::protocol::{self, Command};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tungstenite::error::{CapacityError, Error, ProtocolError};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

/// Most bytes of a frame that a client sends.
const FRAME_MAX: usize = 256 << 10;
/// Time between two looks whether the server stops.
const SLICE: Duration = Duration::from_millis(100);
/// The server drops a client that takes no byte for this long while bytes wait for it.
const STALL_MAX: Duration = Duration::from_secs(30);
/// How long a client may take to answer a WebSocket close.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// Most bytes of the reason in a WebSocket close.
const REASON_MAX: usize = 120;

/// The connection, and when it last took bytes.
struct Stream {
    tcp: TcpStream,
    took: Instant,
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.tcp.read(bytes)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.tcp.write(bytes)?;
        self.took = Instant::now();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

pub(crate) struct Client<'a> {
    socket: WebSocket<Stream>,
    outbox: Arc<Outbox>,
    hub: &'a Hub,
    /// Whether bytes wait until the kernel has room for them.
    is_blocked: bool,
    /// When to drop the connection, after the server has sent a close. None: it has sent none.
    closing: Option<Instant>,
    /// Whether the client violated WebSocket's framing, so that the server cannot read further frames.
    is_broken: bool,
}

/// Why the thread ends.
type Ended = Box<Error>;

impl<'a> Client<'a> {
    /// `rest`: bytes that came behind the handshake.
    pub(crate) fn new(tcp: TcpStream, rest: Vec<u8>, outbox: Arc<Outbox>, hub: &'a Hub) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(8 << 10)
            // No buffer: each frame goes to the kernel at once.
            .write_buffer_size(0)
            .max_message_size(Some(FRAME_MAX))
            .max_frame_size(Some(FRAME_MAX));
        let took = Instant::now();
        let stream = Stream { tcp, took };
        Client {
            socket: WebSocket::from_partially_read(stream, rest, Role::Server, Some(config)),
            outbox,
            hub,
            is_blocked: false,
            closing: None,
            is_broken: false,
        }
    }

    /// Serves the client until it or the server ends.
    pub(crate) fn run(mut self, stop: &AtomicBool) {
        let _ = self.socket.get_ref().tcp.set_nonblocking(true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&self.socket.get_ref().tcp, true);
        loop {
            if let Err(error) = self.turn(stop) {
                tracing::debug!("a client of the view ended: {error}");
                return;
            }
            let now = Instant::now();
            let is_stalled = self.is_blocked && now - self.socket.get_ref().took > STALL_MAX;
            if is_stalled || self.closing.is_some_and(|until| now > until) {
                return;
            }
        }
    }

    /// One turn: reads all bytes that have come, sends what the kernel has room for, and waits for the next event.
    fn turn(&mut self, stop: &AtomicBool) -> Result<(), Ended> {
        self.read_all()?;
        if stop.load(Ordering::Relaxed) {
            self.close(CloseCode::Away, "the server ends");
        }
        if self.outbox.is_overrun() {
            self.close(CloseCode::Policy, "the client does not read announcements");
        }
        self.outbox.clear_event();
        self.write_all()?;
        self.wait().map_err(Error::Io)?;
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let mut flags = PollFlags::IN;
        if self.is_blocked {
            flags |= PollFlags::OUT;
        }
        let event = self.outbox.event();
        let socket = PollFd::new(&self.socket.get_ref().tcp, flags);
        let mut both = [socket, PollFd::new(&event, PollFlags::IN)];
        // While the kernel has no room, new messages in the outbox need not wake this thread.
        let count = if self.is_blocked { 1 } else { 2 };
        let timeout = Timespec::try_from(SLICE).map_err(io::Error::other)?;
        match poll(&mut both[..count], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read_all(&mut self) -> Result<(), Ended> {
        if self.is_broken {
            return self.discard_all();
        }
        loop {
            match self.socket.read() {
                Ok(Message::Text(text)) if self.closing.is_none() => self.handle(&text),
                Ok(Message::Binary(_)) => {
                    self.close(
                        CloseCode::Unsupported,
                        "a client sends no binary frames here",
                    );
                }
                // tungstenite answers pings and closes.
                Ok(_) => {}
                Err(Error::Io(error)) if is_for_later(&error) => return Ok(()),
                Err(error) => match refusal(&error) {
                    Some((code, reason)) if self.closing.is_none() => {
                        self.is_broken = true;
                        self.close(code, &reason);
                        return Ok(());
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// Reads and drops the client's bytes. The kernel resets a connection that is closed with unread bytes, and the reset could
    /// overtake the reason in the close.
    fn discard_all(&mut self) -> Result<(), Ended> {
        let mut bytes = [0; 8 << 10];
        loop {
            match self.socket.get_mut().read(&mut bytes) {
                Ok(0) => return Err(Error::ConnectionClosed.into()),
                Ok(_) => {}
                Err(error) if is_for_later(&error) => return Ok(()),
                Err(error) => return Err(Error::Io(error).into()),
            }
        }
    }

    fn handle(&mut self, text: &str) {
        let command = match protocol::parse(text) {
            Ok(command) => command,
            Err(reason) => return self.close(CloseCode::Invalid, &reason),
        };
        match command {
            Command::Subscribe(wishes) => {
                for wish in wishes {
                    match self.hub.subscribe(&self.outbox, wish) {
                        Ok(Ok(())) => {}
                        // The channel may have ended a moment ago, so this is no violation.
                        Err(warning) => self.outbox.announce(protocol::warning(&warning)),
                        Ok(Err(NoRoom::Taken)) => {
                            let reason = format!("subscription {} exists", wish.id);
                            return self.close(CloseCode::Policy, &reason);
                        }
                        Ok(Err(NoRoom::TooMany)) => {
                            return self.close(CloseCode::Policy, "too many subscriptions");
                        }
                    }
                }
            }
            Command::Unsubscribe(ids) => {
                for id in ids {
                    self.hub.unsubscribe(&self.outbox, id);
                }
            }
            Command::FollowGraph(follows) => self.hub.follow_graph(&self.outbox, follows),
            Command::NotOffered(op) => {
                let text = format!("this server does not offer {op}: it only shows topics");
                self.outbox.announce(protocol::warning(&text));
            }
        }
    }

    /// Begins to close the connection, and sends the client the reason.
    fn close(&mut self, code: CloseCode, reason: &str) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(Instant::now() + CLOSE_MAX);
        let mut end = reason.len().min(REASON_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = reason[..end].into();
        // The next flush sends the close, or returns the error.
        let _ = self.socket.close(Some(CloseFrame { code, reason }));
    }

    fn write_all(&mut self) -> Result<(), Ended> {
        loop {
            if let Err(error) = self.socket.flush() {
                return self.stay_blocked(error);
            }
            if std::mem::take(&mut self.is_blocked) {
                self.socket.get_mut().took = Instant::now();
            }
            if self.closing.is_some() {
                if self.is_broken {
                    let _ = self.socket.get_ref().tcp.shutdown(Shutdown::Write);
                }
                return Ok(());
            }
            let message = match self.outbox.next() {
                Some(Out::Text(text)) => Message::text(text),
                Some(Out::Message(bytes)) => Message::binary(bytes),
                None => return Ok(()),
            };
            self.socket.get_mut().took = Instant::now();
            if let Err(error) = self.socket.write(message) {
                return self.stay_blocked(error);
            }
        }
    }

    fn stay_blocked(&mut self, error: Error) -> Result<(), Ended> {
        match error {
            Error::Io(error) if is_for_later(&error) => {
                self.is_blocked = true;
                Ok(())
            }
            error => Err(error.into()),
        }
    }
}

/// The close code and the reason for a client that violated the protocol. None: the connection is gone.
fn refusal(error: &Error) -> Option<(CloseCode, String)> {
    let code = match error {
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => return None,
        Error::Protocol(_) => CloseCode::Protocol,
        Error::Utf8(_) => CloseCode::Invalid,
        Error::Capacity(CapacityError::MessageTooLong { .. }) => CloseCode::Size,
        _ => return None,
    };
    Some((code, error.to_string()))
}
