//! What the links are compared with: one process per host, joined by as many connections, with a thread for
//! each. They carry single messages as a link does ([`Kind::Hop`]: woken by a futex, from shared memory into
//! the socket, from the socket into shared memory, and on by futexes), many at once ([`Kind::Rate`]), and
//! small ones to and fro ([`Kind::RoundTrip`]).

use super::baseline::Device;
use super::hosts::{enter, Certificates};
use super::{bell, Plan, LANES_MAX};
use crate::board::{Board, Field, Geometry};
use crate::contents;
use crate::crew::{Orders, PATIENCE};
use anyhow::Context;
use rgaps_sync::{futex_wait, futex_wake_all, monotonic_ns};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Regions of the board of bytes.
pub const SOURCE: usize = 0;
pub const TARGET: usize = 1;
/// Bytes of a small message to and fro.
const SMALL: usize = 64;
/// Up to here a header and the bytes are one piece.
const ONE_PIECE: u64 = 4096;
/// Bytes of a `read` or `write`.
const CHUNK: u64 = 1 << 20;
const HEADER_WORDS: usize = 7;
const HEADER_BYTES: usize = HEADER_WORDS * 8;

/// Line of the board with the orders of a lane, and that with when it had ended at the other end.
fn order_line(lane: usize) -> usize {
    8 + lane
}
fn end_line(lane: usize) -> usize {
    8 + 2 * LANES_MAX + lane
}
/// Line with what relays say to the benchmark: lanes that have obeyed; the listener's port.
const SAID: usize = 4;

/// Which end this is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Relay {
    pub plan: Plan,
    pub listens: bool,
    pub netns: Option<PathBuf>,
    /// Of the listener.
    pub address: IpAddr,
    /// Of the listener, and of who connects to it.
    pub certificates: Option<[Certificates; 2]>,
    pub bytes: Bytes,
    /// Where the publisher of the baseline connects to.
    pub socket: PathBuf,
}

/// A second board, with bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bytes {
    pub path: PathBuf,
    pub geometry: Geometry,
}

impl Bytes {
    pub fn open(&self) -> anyhow::Result<Board> {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&self.path)?;
        Board::open(file.into(), self.geometry)
    }
}

/// What a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    Hop = 1,
    Rate = 2,
    RoundTrip = 3,
    /// As a hop, but copied to the GPU before subscribers are told.
    Series = 4,
    /// From a Unix socket whole, then through one connection whole.
    Baseline = 5,
}

/// An order, as it lies in a line of the board behind its number, and as it crosses as a header.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub kind: u64,
    /// Of the hop; or of the contents.
    pub number: u64,
    /// Where its bytes begin in a message, and how many it has of each.
    pub offset: u64,
    pub bytes: u64,
    /// How many messages; of a hop, how many lanes have a part.
    pub count: u64,
    pub sent_ns: u64,
}

impl Order {
    fn words(self) -> [u64; HEADER_WORDS - 1] {
        [
            self.kind,
            self.number,
            self.offset,
            self.bytes,
            self.count,
            self.sent_ns,
        ]
    }

    fn of(words: [u64; HEADER_WORDS - 1]) -> Order {
        let [kind, number, offset, bytes, count, sent_ns] = words;
        Order {
            kind,
            number,
            offset,
            bytes,
            count,
            sent_ns,
        }
    }

    fn header(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (field, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Order {
        let mut words = [0; HEADER_WORDS - 1];
        for (word, field) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(field.try_into().expect("eight bytes"));
        }
        Order::of(words)
    }
}

/// The benchmark's side: orders to the lanes of the sending relay.
pub struct Lanes<'a> {
    pub board: &'a Board,
    pub plan: &'a Plan,
    ordered: u64,
    obeyed: u64,
}

impl<'a> Lanes<'a> {
    pub fn new(board: &'a Board, plan: &'a Plan) -> Self {
        Lanes {
            board,
            plan,
            ordered: 0,
            obeyed: 0,
        }
    }

    /// How a message's bytes are divided among the lanes.
    fn parts(&self) -> Vec<(u64, u64)> {
        let size = self.plan.size;
        let lanes = if size >= CHUNK {
            self.plan.lanes as u64
        } else {
            1
        };
        let part = size.div_ceil(lanes).next_multiple_of(8);
        let begins = (0..lanes).map(|lane| (lane * part).min(size));
        begins
            .map(|begin| (begin, part.min(size - begin)))
            .collect()
    }

    /// Has as many lanes as it takes do something with messages, over TLS or not.
    pub fn order(&mut self, kind: Kind, number: u64, count: u64, tls: bool, sent_ns: u64) {
        let parts = match kind {
            Kind::RoundTrip => vec![(0, SMALL as u64)],
            Kind::Baseline => vec![(0, self.plan.size)],
            _ => self.parts(),
        };
        self.ordered += 1;
        self.obeyed += parts.len() as u64;
        let first = if tls { LANES_MAX } else { 0 };
        for (lane, (offset, bytes)) in parts.iter().enumerate() {
            let order = Order {
                kind: kind as u64,
                number,
                offset: *offset,
                bytes: *bytes,
                count: if matches!(kind, Kind::Hop | Kind::Series) {
                    parts.len() as u64
                } else {
                    count
                },
                sent_ns,
            };
            let line = self.board.line(order_line(first + lane));
            for (word, value) in line[1..].iter().zip(order.words()) {
                word.store(value, Ordering::Relaxed);
            }
            line[0].store(self.ordered, Ordering::Release);
            ring(self.board, bell::lane(first + lane));
        }
    }

    /// All that was ordered is done.
    pub fn has_obeyed(&self) -> bool {
        self.board.line(SAID)[0].load(Ordering::Acquire) >= self.obeyed
    }

    /// When the first lane began with what was ordered last: of the baseline, when it had the bytes.
    pub fn began_ns(&self) -> u64 {
        self.board.line(order_line(0))[7].load(Ordering::Acquire)
    }

    /// Of the last message in RGAPS's order or its baseline's: when it had crossed, and when it was on the GPU.
    pub fn arrived_ns(&self) -> [u64; 2] {
        [1, 2].map(|word| self.board.line(end_line(0))[word].load(Ordering::Acquire))
    }

    /// From the first lane's begin to the last one's end at the other side, of what was ordered last.
    pub fn took_ns(&self, tls: bool) -> u64 {
        let first = if tls { LANES_MAX } else { 0 };
        let lanes = first..first + self.parts().len();
        let begun = lanes
            .clone()
            .map(|lane| self.board.line(order_line(lane))[7].load(Ordering::Acquire));
        let ended = lanes.map(|lane| self.board.line(end_line(lane))[0].load(Ordering::Acquire));
        ended
            .max()
            .unwrap_or(0)
            .saturating_sub(begun.min().unwrap_or(0))
    }
}

fn ring(board: &Board, index: usize) {
    let word = board.bell(index);
    word.fetch_add(1, Ordering::Release);
    futex_wake_all(word);
}

trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

struct Lane<'a> {
    wire: Box<dyn Wire>,
    number: usize,
    board: &'a Board,
    bytes: &'a Board,
    orders: &'a Orders,
    plan: &'a Plan,
    /// Parts of hops that have come, by all lanes.
    arrived: &'a AtomicU64,
    /// Where messages in RGAPS's order are copied to.
    device: &'a Mutex<Option<Device>>,
    /// Where the baseline's come from, and their memory.
    unix: Option<&'a UnixListener>,
    publisher: Option<UnixStream>,
    private: Vec<u8>,
}

/// A relay's whole life.
pub fn relay(orders: &Orders, relay: &Relay, board: &Board) -> anyhow::Result<()> {
    enter(relay.netns.as_deref())?;
    let bytes = relay.bytes.open()?;
    let wires = match relay.listens {
        true => accept(relay, board)?,
        false => dial(relay, board)?,
    };
    let arrived = AtomicU64::new(0);
    let thesis = relay.plan.thesis > 0;
    let device = match thesis && relay.listens {
        true => Some(Device::pinned(relay.plan.to, relay.plan.size, &bytes)?),
        false => None,
    };
    let device = Mutex::new(device);
    let unix = match thesis && !relay.listens {
        true => Some(UnixListener::bind(&relay.socket)?),
        false => None,
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, wire) in wires {
            let lane = Lane {
                wire,
                number,
                board,
                bytes: &bytes,
                orders,
                plan: &relay.plan,
                arrived: &arrived,
                device: &device,
                unix: unix.as_ref().filter(|_| number == 0),
                publisher: None,
                private: Vec::new(),
            };
            threads.push(scope.spawn(move || match relay.listens {
                true => lane.receive(),
                false => lane.send(),
            }));
        }
        board
            .field(orders.member, Field::Done)
            .fetch_add(1, Ordering::AcqRel);
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a relay's thread failed"))??;
        }
        Ok(())
    })
}

fn prepared(tcp: TcpStream) -> anyhow::Result<TcpStream> {
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// Lanes of both kinds, with their numbers.
fn numbers(relay: &Relay) -> Vec<usize> {
    let lanes = 0..relay.plan.lanes as usize;
    let encrypted = lanes.clone().map(|lane| LANES_MAX + lane);
    let encrypted = encrypted.filter(|_| relay.certificates.is_some());
    lanes.chain(encrypted).collect()
}

fn accept(relay: &Relay, board: &Board) -> anyhow::Result<Vec<(usize, Box<dyn Wire>)>> {
    let listener = TcpListener::bind((relay.address, 0))?;
    let port = u64::from(listener.local_addr()?.port());
    board.line(SAID)[1].store(port, Ordering::Release);
    let tls = relay
        .certificates
        .as_ref()
        .map(|both| server(&both[0]))
        .transpose()?;
    let mut wires: Vec<(usize, Box<dyn Wire>)> = Vec::new();
    for _ in numbers(relay) {
        let mut tcp = prepared(listener.accept()?.0)?;
        let mut number = [0];
        tcp.read_exact(&mut number)?;
        let number = usize::from(number[0]);
        match &tls {
            Some(config) if number >= LANES_MAX => {
                let session = ServerConnection::new(config.clone())?;
                wires.push((number, Box::new(rustls::StreamOwned::new(session, tcp))));
            }
            _ => wires.push((number, Box::new(tcp))),
        }
    }
    Ok(wires)
}

fn dial(relay: &Relay, board: &Board) -> anyhow::Result<Vec<(usize, Box<dyn Wire>)>> {
    let deadline = Instant::now() + PATIENCE;
    let port = loop {
        match board.line(SAID)[1].load(Ordering::Acquire) {
            0 => anyhow::ensure!(Instant::now() < deadline, "the other relay does not listen"),
            port => break port as u16,
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let tls = relay
        .certificates
        .as_ref()
        .map(|both| client(&both[1]))
        .transpose()?;
    let mut wires: Vec<(usize, Box<dyn Wire>)> = Vec::new();
    for number in numbers(relay) {
        let mut tcp = prepared(TcpStream::connect((relay.address, port))?)?;
        tcp.write_all(&[number as u8])?;
        match &tls {
            Some(config) if number >= LANES_MAX => {
                let name = ServerName::from(relay.address);
                let session = ClientConnection::new(config.clone(), name)?;
                wires.push((number, Box::new(rustls::StreamOwned::new(session, tcp))));
            }
            _ => wires.push((number, Box::new(tcp))),
        }
    }
    Ok(wires)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn server(files: &Certificates) -> anyhow::Result<Arc<ServerConfig>> {
    let chain = vec![CertificateDer::from_pem_file(&files.certificate)?];
    let key = PrivateKeyDer::from_pem_file(&files.key)?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}

fn client(files: &Certificates) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca)?)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

impl Lane<'_> {
    /// A message's place in a region.
    fn place(&self, region: usize, message: u64, order: Order) -> u64 {
        self.bytes.data_offset(region, 0)
            + message % self.plan.slots * self.plan.slot_bytes()
            + order.offset
    }

    /// Obeys until the benchmark ends.
    fn send(mut self) -> anyhow::Result<()> {
        let (line, bell) = (
            self.board.line(order_line(self.number)),
            self.board.bell(bell::lane(self.number)),
        );
        let mut last = 0;
        loop {
            let rings = bell.load(Ordering::Acquire);
            let now = line[0].load(Ordering::Acquire);
            if now == last {
                // It ends with the benchmark, whose child it is.
                futex_wait(bell, rings, rgaps_layout::WAIT_SLICE_NS);
                continue;
            }
            last = now;
            let mut words = [0; HEADER_WORDS - 1];
            for (word, found) in words.iter_mut().zip(&line[1..]) {
                *word = found.load(Ordering::Relaxed);
            }
            let order = Order::of(words);
            // The last word of the line is free once the order is read.
            line[7].store(monotonic_ns(), Ordering::Release);
            match order.kind {
                hop if hop == Kind::Hop as u64 || hop == Kind::Series as u64 => {
                    self.write(order, 0, Some(order.header()))?
                }
                baseline if baseline == Kind::Baseline as u64 => {
                    self.pass_on(order)?;
                }
                rate if rate == Kind::Rate as u64 => {
                    self.wire.write_all(&order.header())?;
                    for message in 0..order.count {
                        self.write(order, message, None)?;
                    }
                }
                _ => self.go_to_and_fro(order)?,
            }
            if order.kind != Kind::RoundTrip as u64 {
                // All of it is there, and was looked at.
                self.wire.read_exact(&mut [0])?;
            }
            self.board.line(SAID)[0].fetch_add(1, Ordering::AcqRel);
            ring(self.board, bell::MAIN);
        }
    }

    fn write(
        &mut self,
        order: Order,
        message: u64,
        header: Option<[u8; HEADER_BYTES]>,
    ) -> anyhow::Result<()> {
        let at = self.place(SOURCE, message, order);
        let (bytes, wire) = (self.bytes, &mut self.wire);
        bytes.bytes(at, order.bytes, |payload| -> std::io::Result<()> {
            let Some(header) = header else {
                return payload
                    .chunks(CHUNK as usize)
                    .try_for_each(|chunk| wire.write_all(chunk));
            };
            if order.bytes <= ONE_PIECE {
                wire.write_all(&[&header, &*payload].concat())?;
            } else {
                let first = payload.len().min(CHUNK as usize);
                let pieces = [IoSlice::new(&header), IoSlice::new(&payload[..first])];
                let written = wire.write_vectored(&pieces)?;
                if written < HEADER_BYTES {
                    wire.write_all(&header[written..])?;
                }
                wire.write_all(&payload[written.saturating_sub(HEADER_BYTES)..])?;
            }
            wire.flush()
        })?;
        Ok(())
    }

    /// As the baseline does: all of it from the publisher, then all of it to the other host.
    fn pass_on(&mut self, order: Order) -> anyhow::Result<()> {
        if self.publisher.is_none() {
            let unix = self.unix.context("a lane without a socket")?;
            self.publisher = Some(unix.accept()?.0);
            self.private = vec![0; order.bytes as usize];
        }
        let publisher = self.publisher.as_mut().context("it has just connected")?;
        for chunk in self.private.chunks_mut(CHUNK as usize) {
            publisher.read_exact(chunk)?;
        }
        self.board.line(order_line(self.number))[7].store(monotonic_ns(), Ordering::Release);
        self.wire.write_all(&order.header())?;
        for chunk in self.private.chunks(CHUNK as usize) {
            self.wire.write_all(chunk)?;
        }
        Ok(())
    }

    fn go_to_and_fro(&mut self, order: Order) -> anyhow::Result<()> {
        self.wire.write_all(&order.header())?;
        let mut bytes = [7; SMALL];
        for round in 0..order.count as usize {
            let begun = monotonic_ns();
            self.wire.write_all(&bytes)?;
            self.wire.read_exact(&mut bytes)?;
            let half = (monotonic_ns() - begun) / 2;
            self.board.data(self.orders.member, 0)[round].store(half, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The other end, until the first one is gone.
    fn receive(mut self) -> anyhow::Result<()> {
        let mut buffer = vec![0; ONE_PIECE as usize + HEADER_BYTES];
        loop {
            let mut filled = 0;
            while filled < HEADER_BYTES {
                match self.wire.read(&mut buffer[filled..]) {
                    Ok(0) => return Ok(()),
                    Ok(more) => filled += more,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => return Ok(()),
                }
            }
            let order = Order::decode(&buffer);
            let early = buffer[HEADER_BYTES..filled].to_vec();
            match order.kind {
                one if [Kind::Hop, Kind::Series, Kind::Baseline]
                    .map(|kind| kind as u64)
                    .contains(&one) =>
                {
                    self.take_hop(order, &early)?
                }
                rate if rate == Kind::Rate as u64 => self.take_many(order, &early)?,
                _ => {
                    let mut bytes = [0; SMALL];
                    let mut early = &early[..];
                    for _ in 0..order.count {
                        let had = early.read(&mut bytes)?;
                        self.wire.read_exact(&mut bytes[had..])?;
                        self.wire.write_all(&bytes)?;
                    }
                }
            }
        }
    }

    fn read(&mut self, order: Order, message: u64, early: &mut &[u8]) -> anyhow::Result<()> {
        let at = self.place(TARGET, message, order);
        let (bytes, wire) = (self.bytes, &mut self.wire);
        bytes.bytes(at, order.bytes, |payload| -> std::io::Result<()> {
            let had = early.read(payload)?;
            payload[had..]
                .chunks_mut(CHUNK as usize)
                .try_for_each(|chunk| wire.read_exact(chunk))
        })?;
        Ok(())
    }

    fn take_hop(&mut self, order: Order, mut early: &[u8]) -> anyhow::Result<()> {
        self.read(order, 0, &mut early)?;
        // The last lane's part makes it whole: parts of one hop are all there before the next begins.
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        if arrived % order.count == 0 {
            self.arrived.store(0, Ordering::Release);
            let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
            let copied = device
                .as_mut()
                .filter(|_| order.kind == Kind::Series as u64);
            let ends = self.board.line(end_line(0));
            ends[1].store(monotonic_ns(), Ordering::Release);
            if let Some(device) = copied {
                device.copy_in(self.bytes, self.bytes.data_offset(TARGET, 0))?;
                ends[2].store(monotonic_ns(), Ordering::Release);
            }
            self.board.slot(1).send(order.number, order.sent_ns);
            for subscriber in 0..self.plan.subscribers {
                ring(self.board, bell::subscriber(subscriber));
            }
            if let Some(device) = device
                .as_mut()
                .filter(|_| order.kind == Kind::Series as u64)
            {
                let right = device.is(contents::seed(order.number, 0))?;
                let wrong = self.board.field(self.orders.member, Field::Corrupt);
                wrong.fetch_add(u64::from(!right), Ordering::AcqRel);
            }
        }
        self.wire.write_all(&[1])?;
        self.wire.flush()?;
        Ok(())
    }

    fn take_many(&mut self, order: Order, mut early: &[u8]) -> anyhow::Result<()> {
        for message in 0..order.count {
            self.read(order, message, &mut early)?;
        }
        self.board.line(end_line(self.number))[0].store(monotonic_ns(), Ordering::Release);
        for slot in 0..order.count.min(self.plan.slots) {
            let at = self.place(TARGET, slot, order);
            let seed = contents::seed(order.number, slot);
            let right = self.bytes.bytes(at, order.bytes, |bytes| {
                contents::is(seed, order.offset, bytes)
            });
            let wrong = self.board.field(self.orders.member, Field::Corrupt);
            wrong.fetch_add(u64::from(!right), Ordering::AcqRel);
        }
        self.wire.write_all(&[1])?;
        self.wire.flush().context("a relay's answer")
    }
}
