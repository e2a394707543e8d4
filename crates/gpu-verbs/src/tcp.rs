//! A carrier over a TCP connection. It sends works as requests to the peer's card, whose thread carries them out in the peer's memory.
//!
//! ```text
//! request  kind (u8), 3 zeros, bytes (u32), remote key (u32), 0 (u32), remote address, operands (u64 each); then what a write writes
//! reply    0x80, syndrome (0: none), 2 zeros, bytes (u32); then what was read
//! ```
//! Numbers are little-endian. Replies come in the order of the requests. The connection is trusted as much as one of RDMA: the peer
//! may do whatever its keys allow. All its bytes are checked.

use crate::carrier::*;
use crate::entry::{Work, WorkKind};
use crate::view::{Syndrome, CAN_CHANGE, CAN_READ, CAN_WRITE, WORK_BYTES_MAX};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

const REQUEST_BYTES: usize = 40;
const REPLY_BYTES: usize = 8;
const IS_REPLY: u8 = 0x80;
/// Most works in flight, and so most requests of the peer that wait here.
const IN_FLIGHT_MAX: usize = 256;
/// With this many unsent bytes, the carrier takes no more works and serves no more requests.
const UNSENT_MAX: usize = 8 << 20;
/// With this many bytes in waiting requests, the carrier reads nothing more from the connection.
const WAITING_MAX: usize = 8 << 20;
/// Most bytes of one read from the socket.
const READ_AT_ONCE: usize = 256 << 10;

/// A work in flight; with a syndrome if it failed on this side and was not sent.
type InFlight = (Work, Option<Syndrome>);

pub(crate) struct TcpCarrier {
    stream: TcpStream,
    responder: Arc<Responder>,
    in_flight: VecDeque<InFlight>,
    unsent: VecDeque<u8>,
    unread: Vec<u8>,
    /// Requests of the peer that are not served yet: the first waits for a receive, or for room in `unsent`.
    requests: VecDeque<(Request, Vec<u8>)>,
    is_broken: bool,
}

impl TcpCarrier {
    pub(crate) fn new(stream: TcpStream, responder: Arc<Responder>) -> std::io::Result<TcpCarrier> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(TcpCarrier {
            stream,
            responder,
            in_flight: VecDeque::new(),
            unsent: VecDeque::new(),
            unread: Vec::new(),
            requests: VecDeque::new(),
            is_broken: false,
        })
    }

    fn break_off(&mut self) {
        self.is_broken = true;
        // An error means that the connection is closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn send(&mut self) {
        while !self.unsent.is_empty() && !self.is_broken {
            let (front, _) = self.unsent.as_slices();
            match self.stream.write(front) {
                Ok(0) => self.is_broken = true,
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_broken = true,
            }
        }
    }

    fn receive(&mut self) {
        let before = self.unread.len();
        self.unread.resize(before + READ_AT_ONCE, 0);
        let got = match self.stream.read(&mut self.unread[before..]) {
            Ok(0) => {
                self.is_broken = true;
                0
            }
            Ok(got) => got,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                0
            }
            Err(_) => {
                self.is_broken = true;
                0
            }
        };
        self.unread.truncate(before + got);
    }

    /// Handles the complete messages in `unread`. Returns None if the peer broke the protocol.
    fn parse(&mut self, events: &mut VecDeque<Event>) -> Option<()> {
        let mut at = 0;
        while let Some(first) = self.unread.get(at) {
            let is_reply = *first == IS_REPLY;
            let head = if is_reply { REPLY_BYTES } else { REQUEST_BYTES };
            let Some(bytes) = self.unread.get(at..at + head) else {
                break;
            };
            let length = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
            if length > WORK_BYTES_MAX {
                return None;
            }
            let request = match is_reply {
                true => None,
                false => Some(decode(bytes)?),
            };
            let has_data = request.is_none_or(|request| is_write(request.kind));
            let end = at + head + if has_data { length as usize } else { 0 };
            let Some(data) = self.unread.get(at + head..end) else {
                break;
            };
            match request {
                Some(request) => {
                    if self.requests.len() >= IN_FLIGHT_MAX {
                        return None;
                    }
                    self.requests.push_back((request, data.to_vec()));
                }
                None => {
                    let syndrome = self.unread[at + 1];
                    report_failed(&mut self.in_flight, events);
                    let (work, _) = self.in_flight.pop_front()?;
                    let result = finish(&self.responder, &work, syndrome, data)?;
                    events.push_back(Event::Done(result));
                }
            }
            at = end;
        }
        self.unread.drain(..at);
        Some(())
    }

    fn enqueue(&mut self, work: &Work, data: &[u8]) {
        let (code, first, second) = kind_code(work.kind);
        self.unsent.extend([code, 0, 0, 0]);
        for half in [work.bytes, work.remote_key, 0] {
            self.unsent.extend(half.to_le_bytes());
        }
        for word in [work.remote, first, second] {
            self.unsent.extend(word.to_le_bytes());
        }
        self.unsent.extend(data);
    }

    /// Carries out the peer's requests in order, until one has to wait.
    fn serve(&mut self) {
        while self.unsent.len() < UNSENT_MAX {
            let Some((request, data)) = self.requests.front() else {
                return;
            };
            let (syndrome, found) = match self.responder.serve(request, data) {
                Ok(found) => (0, found),
                Err(Refusal::Failed(syndrome)) => (syndrome as u8, Vec::new()),
                Err(Refusal::NotReady) => return,
            };
            self.requests.pop_front();
            self.unsent.extend([IS_REPLY, syndrome, 0, 0]);
            self.unsent.extend((found.len() as u32).to_le_bytes());
            self.unsent.extend(found);
        }
    }
}

/// Reports the works at the front that failed on this side: all works before them have ended.
fn report_failed(in_flight: &mut VecDeque<InFlight>, events: &mut VecDeque<Event>) {
    while let Some((_, Some(syndrome))) = in_flight.front() {
        events.push_back(Event::Done(Err(*syndrome)));
        in_flight.pop_front();
    }
}

fn is_write(kind: WorkKind) -> bool {
    matches!(kind, WorkKind::Write | WorkKind::WriteImmediate(_))
}

fn decode(bytes: &[u8]) -> Option<Request> {
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    Some(Request {
        kind: kind_of_code(bytes[0], word(24), word(32))?,
        bytes: half(4),
        key: half(8),
        address: word(16),
    })
}

/// Ends a work with its reply. Returns None if the reply does not go with the work.
fn finish(
    responder: &Responder,
    work: &Work,
    syndrome: u8,
    data: &[u8],
) -> Option<Result<(), Syndrome>> {
    if syndrome != 0 {
        return Some(Err(Syndrome::from_code(syndrome)?));
    }
    let wanted = match work.kind {
        WorkKind::Read | WorkKind::Change(_) => work.bytes as usize,
        _ => 0,
    };
    (data.len() == wanted).then(|| scatter(responder.regions(), work, data))
}

impl Carrier for TcpCarrier {
    fn abilities(&self) -> u32 {
        CAN_WRITE | CAN_READ | CAN_CHANGE
    }

    fn post(&mut self, work: &Work) -> bool {
        if self.in_flight.len() >= IN_FLIGHT_MAX || self.unsent.len() >= UNSENT_MAX {
            return false;
        }
        match gather(self.responder.regions(), work) {
            Ok(data) => {
                self.enqueue(work, &data);
                self.in_flight.push_back((*work, None));
            }
            Err(syndrome) => self.in_flight.push_back((*work, Some(syndrome))),
        }
        true
    }

    fn add_receives(&mut self, count: u32) {
        self.responder.add_receives(count);
    }

    fn progress(&mut self, events: &mut VecDeque<Event>) {
        self.responder.take_received(events);
        report_failed(&mut self.in_flight, events);
        if self.is_broken {
            let lost = self.in_flight.drain(..);
            events.extend(lost.map(|_| Event::Done(Err(Syndrome::Unreachable))));
            return;
        }
        self.send();
        let waiting: usize = self.requests.iter().map(|(_, data)| data.len()).sum();
        if self.requests.len() < IN_FLIGHT_MAX && waiting < WAITING_MAX {
            self.receive();
        }
        if self.parse(events).is_none() {
            self.break_off();
        }
        self.serve();
        self.send();
    }

    fn fail(&mut self) {
        // The replies to the abandoned works would be taken for those of later ones.
        self.break_off();
        self.in_flight.clear();
    }
}
