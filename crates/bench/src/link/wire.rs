//! The floor of a link: one process per host, joined by as many TCP connections as the link has lanes, with a thread for
//! each at both ends. The benchmark commands the sending threads through lines of the board:
//!
//! - [`CommandKind::Hop`] carries one message as a link does. A futex wakes the sender, which writes from shared memory
//!   into the socket; the receiver reads into shared memory and wakes the subscribers by futexes.
//! - [`CommandKind::Rate`] carries many messages without a pause.
//! - [`CommandKind::RoundTrip`] sends small messages there and back.

use super::hosts::{enter, Certificates};
use super::{bell, LinkPlan, LANES_MAX};
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
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The region of [`FloorBytes`] from which messages are sent.
pub const SOURCE: usize = 0;
/// The region of [`FloorBytes`] into which messages are received.
pub const TARGET: usize = 1;
/// Bytes of a message of a round trip.
const SMALL: usize = 64;
/// Most bytes of a message that is copied behind its header, to be written in one piece.
const ONE_PIECE: u64 = 4096;
/// Most bytes of a `read` or `write`.
const CHUNK: u64 = 1 << 20;
const HEADER_WORDS: usize = 7;
const HEADER_BYTES: usize = HEADER_WORDS * 8;

/// Line of the board with the command for a lane: word 0 is the command's number, 1 to 6 are the [`WireCommand`], 7 is
/// when the lane began with it.
fn command_line(lane: usize) -> usize {
    8 + lane
}
/// Line of the board with the time at which the other host had all messages of a lane's [`CommandKind::Rate`].
fn end_line(lane: usize) -> usize {
    8 + 2 * LANES_MAX + lane
}
/// Line of the board with the number of commands that the sending lanes have executed, and with the listener's port.
const ANSWERS: usize = 4;

/// The floor's process on one of the two hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WireHost {
    pub plan: LinkPlan,
    pub listens: bool,
    pub netns: Option<PathBuf>,
    /// The listening host's address.
    pub address: IpAddr,
    /// The certificates of the host that listens, then of the host that connects. None: there are no TLS lanes.
    pub certificates: Option<[Certificates; 2]>,
    pub bytes: FloorBytes,
}

/// How a process opens the second board, whose areas hold the floor's messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct FloorBytes {
    pub path: PathBuf,
    pub geometry: Geometry,
}

impl FloorBytes {
    /// Maps the board in this process.
    pub fn open(&self) -> anyhow::Result<Board> {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&self.path)?;
        Board::open(file.into(), self.geometry)
    }
}

/// What a command makes a lane do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum CommandKind {
    Hop = 1,
    Rate = 2,
    RoundTrip = 3,
}

/// A command to a lane. It lies in the lane's line of the board, behind its number, and is sent to the other host as a
/// header.
#[derive(Clone, Copy, Debug)]
pub struct WireCommand {
    pub kind: u64,
    /// The number of the hop, or the number that determines the contents of the messages.
    pub number: u64,
    /// Where the lane's part of each message begins.
    pub offset: u64,
    /// Bytes of that part.
    pub bytes: u64,
    /// Number of messages. For a hop: number of lanes that carry a part of it.
    pub count: u64,
    pub sent_ns: u64,
}

impl WireCommand {
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

    fn of(words: [u64; HEADER_WORDS - 1]) -> WireCommand {
        let [kind, number, offset, bytes, count, sent_ns] = words;
        WireCommand {
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

    fn decode(bytes: &[u8]) -> WireCommand {
        let mut words = [0; HEADER_WORDS - 1];
        for (word, field) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(field.try_into().expect("eight bytes"));
        }
        WireCommand::of(words)
    }
}

/// The benchmark's side of the floor: commands the lanes of the sending host.
pub struct WireLanes<'a> {
    pub board: &'a Board,
    pub plan: &'a LinkPlan,
    commanded: u64,
    executed: u64,
}

impl<'a> WireLanes<'a> {
    pub fn new(board: &'a Board, plan: &'a LinkPlan) -> Self {
        WireLanes {
            board,
            plan,
            commanded: 0,
            executed: 0,
        }
    }

    /// Divides a message among the lanes: offset and bytes of each part. A message below [`CHUNK`] stays on one lane.
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

    /// Commands the lanes that carry a part of a message, plain or TLS.
    pub fn command(&mut self, kind: CommandKind, number: u64, count: u64, tls: bool, sent_ns: u64) {
        let parts = match kind {
            CommandKind::RoundTrip => vec![(0, SMALL as u64)],
            _ => self.parts(),
        };
        self.commanded += 1;
        self.executed += parts.len() as u64;
        let first = if tls { LANES_MAX } else { 0 };
        for (lane, (offset, bytes)) in parts.iter().enumerate() {
            let command = WireCommand {
                kind: kind as u64,
                number,
                offset: *offset,
                bytes: *bytes,
                count: if kind == CommandKind::Hop {
                    parts.len() as u64
                } else {
                    count
                },
                sent_ns,
            };
            let line = self.board.line(command_line(first + lane));
            for (word, value) in line[1..].iter().zip(command.words()) {
                word.store(value, Ordering::Relaxed);
            }
            line[0].store(self.commanded, Ordering::Release);
            ring(self.board, bell::lane(first + lane));
        }
    }

    /// Whether all commands are executed.
    pub fn is_done(&self) -> bool {
        self.board.line(ANSWERS)[0].load(Ordering::Acquire) >= self.executed
    }

    /// Duration of the last [`CommandKind::Rate`]: from the first lane's begin until the last lane's messages have arrived.
    pub fn took_ns(&self, tls: bool) -> u64 {
        let first = if tls { LANES_MAX } else { 0 };
        let lanes = first..first + self.parts().len();
        let begun = lanes
            .clone()
            .map(|lane| self.board.line(command_line(lane))[7].load(Ordering::Acquire));
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

trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

struct WireLane<'a> {
    wire: Box<dyn Connection>,
    number: usize,
    board: &'a Board,
    bytes: &'a Board,
    orders: &'a Orders,
    plan: &'a LinkPlan,
    /// Parts of the present hop that have arrived, over all lanes.
    arrived: &'a AtomicU64,
}

impl WireHost {
    /// Runs until the benchmark ends.
    pub fn run(&self, orders: &Orders, board: &Board) -> anyhow::Result<()> {
        enter(self.netns.as_deref())?;
        let bytes = self.bytes.open()?;
        let wires = match self.listens {
            true => accept(self, board)?,
            false => dial(self, board)?,
        };
        let arrived = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, wire) in wires {
                let lane = WireLane {
                    wire,
                    number,
                    board,
                    bytes: &bytes,
                    orders,
                    plan: &self.plan,
                    arrived: &arrived,
                };
                threads.push(scope.spawn(move || match self.listens {
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
                    .map_err(|_| anyhow::anyhow!("a thread of the floor's process failed"))??;
            }
            Ok(())
        })
    }
}

fn prepared(tcp: TcpStream) -> anyhow::Result<TcpStream> {
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// Returns the numbers of a host's lanes. TLS lanes begin at [`LANES_MAX`].
fn numbers(host: &WireHost) -> Vec<usize> {
    let lanes = 0..host.plan.lanes as usize;
    let encrypted = lanes.clone().map(|lane| LANES_MAX + lane);
    let encrypted = encrypted.filter(|_| host.certificates.is_some());
    lanes.chain(encrypted).collect()
}

fn accept(host: &WireHost, board: &Board) -> anyhow::Result<Vec<(usize, Box<dyn Connection>)>> {
    let listener = TcpListener::bind((host.address, 0))?;
    let port = u64::from(listener.local_addr()?.port());
    board.line(ANSWERS)[1].store(port, Ordering::Release);
    let tls = host
        .certificates
        .as_ref()
        .map(|both| server(&both[0]))
        .transpose()?;
    let mut wires: Vec<(usize, Box<dyn Connection>)> = Vec::new();
    for _ in numbers(host) {
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

fn dial(host: &WireHost, board: &Board) -> anyhow::Result<Vec<(usize, Box<dyn Connection>)>> {
    let deadline = Instant::now() + PATIENCE;
    let port = loop {
        match board.line(ANSWERS)[1].load(Ordering::Acquire) {
            0 => anyhow::ensure!(
                Instant::now() < deadline,
                "the other host's process does not listen"
            ),
            port => break port as u16,
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let tls = host
        .certificates
        .as_ref()
        .map(|both| client(&both[1]))
        .transpose()?;
    let mut wires: Vec<(usize, Box<dyn Connection>)> = Vec::new();
    for number in numbers(host) {
        let mut tcp = prepared(TcpStream::connect((host.address, port))?)?;
        tcp.write_all(&[number as u8])?;
        match &tls {
            Some(config) if number >= LANES_MAX => {
                let name = ServerName::from(host.address);
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

impl WireLane<'_> {
    /// The offset of the lane's part of a message in a region. Messages take the slots in turn.
    fn offset(&self, region: usize, message: u64, command: WireCommand) -> u64 {
        self.bytes.data_offset(region, 0)
            + message % self.plan.slots * self.plan.slot_bytes()
            + command.offset
    }

    /// Executes commands until the benchmark ends.
    fn send(mut self) -> anyhow::Result<()> {
        let (line, bell) = (
            self.board.line(command_line(self.number)),
            self.board.bell(bell::lane(self.number)),
        );
        let mut last = 0;
        loop {
            let rings = bell.load(Ordering::Acquire);
            let now = line[0].load(Ordering::Acquire);
            if now == last {
                // This process is the benchmark's child and is killed at its end.
                futex_wait(bell, rings, rgaps_layout::WAIT_SLICE_NS);
                continue;
            }
            last = now;
            let mut words = [0; HEADER_WORDS - 1];
            for (word, found) in words.iter_mut().zip(&line[1..]) {
                *word = found.load(Ordering::Relaxed);
            }
            let command = WireCommand::of(words);
            // The last word of the line is free once the command is read.
            line[7].store(monotonic_ns(), Ordering::Release);
            match command.kind {
                hop if hop == CommandKind::Hop as u64 => {
                    self.write(command, 0, Some(command.header()))?
                }
                rate if rate == CommandKind::Rate as u64 => {
                    self.wire.write_all(&command.header())?;
                    for message in 0..command.count {
                        self.write(command, message, None)?;
                    }
                }
                _ => self.go_to_and_fro(command)?,
            }
            if command.kind != CommandKind::RoundTrip as u64 {
                // The other end answers when it has received, and after a rate verified, everything.
                self.wire.read_exact(&mut [0])?;
            }
            self.board.line(ANSWERS)[0].fetch_add(1, Ordering::AcqRel);
            ring(self.board, bell::MAIN);
        }
    }

    fn write(
        &mut self,
        command: WireCommand,
        message: u64,
        header: Option<[u8; HEADER_BYTES]>,
    ) -> anyhow::Result<()> {
        let at = self.offset(SOURCE, message, command);
        let (bytes, wire) = (self.bytes, &mut self.wire);
        bytes.bytes(at, command.bytes, |payload| -> std::io::Result<()> {
            let Some(header) = header else {
                return payload
                    .chunks(CHUNK as usize)
                    .try_for_each(|chunk| wire.write_all(chunk));
            };
            if command.bytes <= ONE_PIECE {
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

    fn go_to_and_fro(&mut self, command: WireCommand) -> anyhow::Result<()> {
        self.wire.write_all(&command.header())?;
        let mut bytes = [7; SMALL];
        for round in 0..command.count as usize {
            let begun = monotonic_ns();
            self.wire.write_all(&bytes)?;
            self.wire.read_exact(&mut bytes)?;
            let half = (monotonic_ns() - begun) / 2;
            self.board.data(self.orders.member, 0)[round].store(half, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Receives until the sending host closes the connection.
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
            let command = WireCommand::decode(&buffer);
            let head = buffer[HEADER_BYTES..filled].to_vec();
            match command.kind {
                hop if hop == CommandKind::Hop as u64 => self.take_hop(command, &head)?,
                rate if rate == CommandKind::Rate as u64 => self.take_many(command, &head)?,
                _ => {
                    let mut bytes = [0; SMALL];
                    let mut head = &head[..];
                    for _ in 0..command.count {
                        let had = head.read(&mut bytes)?;
                        self.wire.read_exact(&mut bytes[had..])?;
                        self.wire.write_all(&bytes)?;
                    }
                }
            }
        }
    }

    fn read(&mut self, command: WireCommand, message: u64, head: &mut &[u8]) -> anyhow::Result<()> {
        let at = self.offset(TARGET, message, command);
        let (bytes, wire) = (self.bytes, &mut self.wire);
        bytes.bytes(at, command.bytes, |payload| -> std::io::Result<()> {
            let had = head.read(payload)?;
            payload[had..]
                .chunks_mut(CHUNK as usize)
                .try_for_each(|chunk| wire.read_exact(chunk))
        })?;
        Ok(())
    }

    fn take_hop(&mut self, command: WireCommand, mut head: &[u8]) -> anyhow::Result<()> {
        self.read(command, 0, &mut head)?;
        // The last part completes the hop. The benchmark starts the next hop only after all parts were answered.
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        if arrived % command.count == 0 {
            self.arrived.store(0, Ordering::Release);
            self.board.slot(1).send(command.number, command.sent_ns);
            for subscriber in 0..self.plan.subscribers {
                ring(self.board, bell::subscriber(subscriber));
            }
        }
        self.wire.write_all(&[1])?;
        self.wire.flush()?;
        Ok(())
    }

    fn take_many(&mut self, command: WireCommand, mut head: &[u8]) -> anyhow::Result<()> {
        for message in 0..command.count {
            self.read(command, message, &mut head)?;
        }
        self.board.line(end_line(self.number))[0].store(monotonic_ns(), Ordering::Release);
        for slot in 0..command.count.min(self.plan.slots) {
            let at = self.offset(TARGET, slot, command);
            let seed = contents::seed(command.number, slot);
            let right = self.bytes.bytes(at, command.bytes, |bytes| {
                contents::is(seed, command.offset, bytes)
            });
            let wrong = self.board.field(self.orders.member, Field::Corrupt);
            wrong.fetch_add(u64::from(!right), Ordering::AcqRel);
        }
        self.wire.write_all(&[1])?;
        self.wire.flush().context("an answer to the sending host")
    }
}
