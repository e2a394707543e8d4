//! Processes that carry a message to another host stage by stage, without rgaps: one on each host, joined by TCP
//! connections with a thread for each, and the subscribers.
//!
//! The benchmark writes a [`StagedCommand`] into a line of the board for each connection that takes part, and
//! rings its bell. The sending host writes a header and the bytes into the connection, and waits for one byte.
//! The other host reads them into shared memory, wakes the subscribers when all parts have arrived, and answers.

use crate::device::Device;
use crate::CompareJob;
use anyhow::Context;
use rgaps_bench::board::{Board, Field};
use rgaps_bench::contents;
use rgaps_bench::crew::PATIENCE;
use rgaps_bench::floor;
use rgaps_bench::link::{enter, FloorBytes, LinkPlan, SOURCE, SUBSCRIBERS_MAX, TARGET};
use rgaps_sync::{futex_wait, futex_wake_all, monotonic_ns};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of a `read` or `write`. Messages of at least this size are divided among the connections.
const CHUNK: u64 = 1 << 20;
const HEADER_WORDS: usize = 5;
const HEADER_BYTES: usize = HEADER_WORDS * 8;
/// Bell of the benchmark.
pub const MAIN_BELL: usize = 63;
/// Line with the number of commands that connections have executed, and with the listener's port.
const ANSWERS: usize = 0;
/// Line with the number of rounds that have begun.
const ROUNDS: usize = 1;
/// Line with the times at which the last message was in shared memory of the other host, and on its GPU.
const ARRIVED: usize = 2;
/// Line of the first connection's command; those of the others follow.
const COMMANDS: usize = 8;
/// Word of a command's line: when the connection began to send; in the baseline after it had read the bytes.
const BEGUN: usize = 7;

/// Result area of a subscriber. It has three parts, each with a word for every message of a design: when the
/// subscriber's own copy in the baseline ended, how long that copy took, when a message in RGAPS's order arrived.
pub const TIMES: usize = 0;

/// The order of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageOrder {
    /// RGAPS's order: from the GPU into pinned shared memory; through as many connections as the link has lanes into
    /// pinned shared memory; once to the GPU; then the subscribers are woken.
    Series,
    /// The order of its baseline: from the GPU into pageable memory; through a Unix socket to the sending process;
    /// through one connection into shared memory; then each subscriber copies to memory of its own on the GPU.
    Baseline,
}

/// The messages of both designs in all rounds. Each round has those in RGAPS's order first, then as many of the baseline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Schedule {
    pub plan: LinkPlan,
    /// Messages of each design in each round.
    pub messages: u64,
}

impl Schedule {
    /// Messages of each design in all rounds.
    pub fn total(&self) -> u64 {
        self.plan.rounds * self.messages
    }

    /// The number of a message. The first is 1.
    pub fn number(&self, round: u64, order: StageOrder, index: u64) -> u64 {
        let before = match order {
            StageOrder::Series => 0,
            StageOrder::Baseline => self.messages,
        };
        2 * round * self.messages + before + index + 1
    }

    /// Divides a message among the connections: offset and bytes of each part.
    fn parts(&self, order: StageOrder) -> Vec<(u64, u64)> {
        let size = self.plan.size;
        let connections = match order {
            StageOrder::Series if size >= CHUNK => u64::from(self.plan.lanes),
            _ => 1,
        };
        let part = size.div_ceil(connections).next_multiple_of(8);
        let begins = (0..connections).map(|at| (at * part).min(size));
        begins.map(|at| (at, part.min(size - at))).collect()
    }
}

/// Returns the seed of a message's contents. It differs from all seeds of the link's floor, which uses the same memory.
pub fn seed(number: u64) -> u64 {
    contents::seed(number, 1 << 32)
}

/// A command to a connection. It lies in a line of the board, behind the message's number, and is sent to the other host
/// as a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StagedCommand {
    order: StageOrder,
    number: u64,
    /// Where the connection's part of the message begins.
    offset: u64,
    /// Bytes of that part.
    bytes: u64,
    /// Connections that have a part of the message.
    parts: u64,
}

impl StagedCommand {
    fn words(self) -> [u64; HEADER_WORDS] {
        let order = match self.order {
            StageOrder::Series => 1,
            StageOrder::Baseline => 2,
        };
        [order, self.number, self.offset, self.bytes, self.parts]
    }

    fn of(words: [u64; HEADER_WORDS]) -> StagedCommand {
        let [order, number, offset, bytes, parts] = words;
        StagedCommand {
            order: match order {
                1 => StageOrder::Series,
                _ => StageOrder::Baseline,
            },
            number,
            offset,
            bytes,
            parts,
        }
    }

    fn header(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (field, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(header: &[u8; HEADER_BYTES]) -> StagedCommand {
        let mut words = [0; HEADER_WORDS];
        for (word, field) in words.iter_mut().zip(header.chunks_exact(8)) {
            *word = u64::from_le_bytes(field.try_into().expect("eight bytes"));
        }
        StagedCommand::of(words)
    }
}

fn subscriber_bell(member: usize) -> usize {
    member
}

fn connection_bell(number: usize) -> usize {
    SUBSCRIBERS_MAX + number
}

fn ring(board: &Board, bell: usize) {
    let bell = board.bell(bell);
    bell.fetch_add(1, Ordering::Release);
    futex_wake_all(bell);
}

/// Tells the subscribers that a round begins.
pub fn begin_round(board: &Board, round: u64, subscribers: usize) {
    board.line(ROUNDS)[0].store(round + 1, Ordering::Release);
    (0..subscribers).for_each(|member| ring(board, subscriber_bell(member)));
}

/// Commands the connections to carry a message. Returns how many answers will come.
pub fn command(board: &Board, schedule: &Schedule, order: StageOrder, number: u64) -> u64 {
    let parts = schedule.parts(order);
    for (connection, (offset, bytes)) in parts.iter().enumerate() {
        let command = StagedCommand {
            order,
            number,
            offset: *offset,
            bytes: *bytes,
            parts: parts.len() as u64,
        };
        let line = board.line(COMMANDS + connection);
        for (word, value) in line[1..].iter().zip(command.words()) {
            word.store(value, Ordering::Relaxed);
        }
        line[0].store(number, Ordering::Release);
        ring(board, connection_bell(connection));
    }
    parts.len() as u64
}

/// Returns how many answers there were so far.
pub fn answers(board: &Board) -> u64 {
    board.line(ANSWERS)[0].load(Ordering::Acquire)
}

/// Returns when the first connection began to send the last message, when the message was in shared memory of the other
/// host, and when it was on its GPU.
pub fn stamps(board: &Board) -> [u64; 3] {
    [(COMMANDS, BEGUN), (ARRIVED, 0), (ARRIVED, 1)]
        .map(|(line, word)| board.line(line)[word].load(Ordering::Acquire))
}

/// The process on one of the two hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StagedHost {
    pub schedule: Schedule,
    pub listens: bool,
    pub netns: Option<PathBuf>,
    /// The listening host's address.
    pub address: IpAddr,
    pub bytes: FloorBytes,
    /// The Unix socket on which the sending host gets the messages of the baseline.
    pub socket: PathBuf,
}

impl From<StagedHost> for CompareJob {
    fn from(host: StagedHost) -> CompareJob {
        CompareJob::Connect(Box::new(host))
    }
}

impl StagedHost {
    /// Runs until the benchmark ends.
    pub fn run(&self, member: usize, board: &Board) -> anyhow::Result<()> {
        enter(self.netns.as_deref())?;
        let bytes = self.bytes.open()?;
        let plan = &self.schedule.plan;
        let connections = match self.listens {
            true => self.accept(board)?,
            false => self.dial(board)?,
        };
        let device = match self.listens {
            true => Some(Device::pinned(plan.to, plan.size, &bytes)?),
            false => None,
        };
        let device = Mutex::new(device);
        let unix = match self.listens {
            true => None,
            false => Some(UnixListener::bind(&self.socket)?),
        };
        let arrived = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, tcp) in connections.into_iter().enumerate() {
                let lane = StagedLane {
                    tcp,
                    number,
                    board,
                    bytes: &bytes,
                    member,
                    plan,
                    arrived: &arrived,
                    device: &device,
                };
                let unix = unix.as_ref().filter(|_| number == 0);
                threads.push(scope.spawn(move || match self.listens {
                    true => lane.receive(),
                    false => lane.send(unix),
                }));
            }
            board
                .field(member, Field::Done)
                .fetch_add(1, Ordering::AcqRel);
            ring(board, MAIN_BELL);
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread of a host's process failed"))??;
            }
            Ok(())
        })
    }

    /// Accepts the connections, in the order of their numbers.
    fn accept(&self, board: &Board) -> anyhow::Result<Vec<TcpStream>> {
        let listener = TcpListener::bind((self.address, 0))?;
        let port = u64::from(listener.local_addr()?.port());
        board.line(ANSWERS)[1].store(port, Ordering::Release);
        (0..self.schedule.plan.lanes)
            .map(|_| prepared(listener.accept()?.0))
            .collect()
    }

    fn dial(&self, board: &Board) -> anyhow::Result<Vec<TcpStream>> {
        let deadline = Instant::now() + PATIENCE;
        let port = loop {
            match board.line(ANSWERS)[1].load(Ordering::Acquire) {
                0 => anyhow::ensure!(Instant::now() < deadline, "the other host does not listen"),
                port => break port as u16,
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        (0..self.schedule.plan.lanes)
            .map(|_| prepared(TcpStream::connect((self.address, port))?))
            .collect()
    }
}

fn prepared(tcp: TcpStream) -> anyhow::Result<TcpStream> {
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// One end of a connection.
struct StagedLane<'a> {
    tcp: TcpStream,
    number: usize,
    board: &'a Board,
    bytes: &'a Board,
    member: usize,
    plan: &'a LinkPlan,
    /// Parts of the present message that have arrived, over all connections.
    arrived: &'a AtomicU64,
    /// The memory to which the receiving host copies messages in RGAPS's order. None on the sending host.
    device: &'a Mutex<Option<Device>>,
}

impl StagedLane<'_> {
    /// Executes commands until the benchmark ends.
    fn send(mut self, unix: Option<&UnixListener>) -> anyhow::Result<()> {
        let line = self.board.line(COMMANDS + self.number);
        let bell = self.board.bell(connection_bell(self.number));
        let mut publisher = None;
        let mut private = Vec::new();
        let mut last = 0;
        loop {
            let rings = bell.load(Ordering::Acquire);
            let number = line[0].load(Ordering::Acquire);
            if number == last {
                // This process is the benchmark's child and is killed at its end.
                futex_wait(bell, rings, rgaps_layout::WAIT_SLICE_NS);
                continue;
            }
            last = number;
            let mut words = [0; HEADER_WORDS];
            for (word, found) in words.iter_mut().zip(&line[1..]) {
                *word = found.load(Ordering::Relaxed);
            }
            let command = StagedCommand::of(words);
            if command.order == StageOrder::Baseline {
                let unix = unix.context("a connection without a Unix socket")?;
                if publisher.is_none() {
                    publisher = Some(unix.accept()?.0);
                    private = vec![0; command.bytes as usize];
                }
                let publisher = publisher.as_mut().context("it has just connected")?;
                for chunk in private.chunks_mut(CHUNK as usize) {
                    publisher.read_exact(chunk)?;
                }
            }
            line[BEGUN].store(monotonic_ns(), Ordering::Release);
            let tcp = &mut self.tcp;
            match command.order {
                StageOrder::Series => {
                    let at = self.bytes.data_offset(SOURCE, 0) + command.offset;
                    self.bytes
                        .bytes(at, command.bytes, |part| write(tcp, command, part))?;
                }
                StageOrder::Baseline => write(tcp, command, &private)?,
            }
            // The other host answers when it has the part.
            self.tcp.read_exact(&mut [0])?;
            self.board.line(ANSWERS)[0].fetch_add(1, Ordering::AcqRel);
            ring(self.board, MAIN_BELL);
        }
    }

    /// Receives until the sending host closes the connection.
    fn receive(mut self) -> anyhow::Result<()> {
        let mut header = [0; HEADER_BYTES];
        loop {
            match self.tcp.read_exact(&mut header) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            let command = StagedCommand::decode(&header);
            let at = self.bytes.data_offset(TARGET, 0) + command.offset;
            let tcp = &mut self.tcp;
            self.bytes.bytes(at, command.bytes, |part| {
                part.chunks_mut(CHUNK as usize)
                    .try_for_each(|chunk| tcp.read_exact(chunk))
            })?;
            // The benchmark starts the next message only after all parts of this one were answered.
            if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == command.parts {
                self.arrived.store(0, Ordering::Release);
                self.whole(command)?;
            }
            self.tcp.write_all(&[1])?;
        }
    }

    /// Handles a message whose parts are all in shared memory: in RGAPS's order copies it to the GPU; then wakes the subscribers.
    fn whole(&self, command: StagedCommand) -> anyhow::Result<()> {
        let stamps = self.board.line(ARRIVED);
        stamps[0].store(monotonic_ns(), Ordering::Release);
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let mut device = device
            .as_mut()
            .filter(|_| command.order == StageOrder::Series);
        if let Some(device) = &mut device {
            device.copy_in(self.bytes, self.bytes.data_offset(TARGET, 0))?;
            stamps[1].store(monotonic_ns(), Ordering::Release);
        }
        self.board.slot(0).send(command.number, 0);
        for member in 0..self.plan.subscribers {
            ring(self.board, subscriber_bell(member));
        }
        if let Some(device) = device {
            let right = device.holds(seed(command.number))?;
            count_wrong(self.board, self.member, right);
        }
        Ok(())
    }
}

/// Writes a header and a part of a message into the connection.
fn write(tcp: &mut TcpStream, command: StagedCommand, part: &[u8]) -> std::io::Result<()> {
    let header = command.header();
    let first = &part[..part.len().min(CHUNK as usize)];
    let written = tcp.write_vectored(&[IoSlice::new(&header), IoSlice::new(first)])?;
    if written < HEADER_BYTES {
        tcp.write_all(&header[written..])?;
    }
    part[written.saturating_sub(HEADER_BYTES)..]
        .chunks(CHUNK as usize)
        .try_for_each(|chunk| tcp.write_all(chunk))
}

fn count_wrong(board: &Board, member: usize, is_right: bool) {
    let wrong = board.field(member, Field::Corrupt);
    wrong.fetch_add(u64::from(!is_right), Ordering::AcqRel);
}

/// A subscriber of both designs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StagedSubscriber {
    pub schedule: Schedule,
    pub bytes: FloorBytes,
}

impl StagedSubscriber {
    /// Runs until all rounds are over.
    pub fn run(&self, member: usize, board: &Board) -> anyhow::Result<()> {
        let bytes = self.bytes.open()?;
        let schedule = &self.schedule;
        let mut device = Device::new(schedule.plan.to, schedule.plan.size)?;
        let done = || {
            board
                .field(member, Field::Done)
                .fetch_add(1, Ordering::AcqRel);
            ring(board, MAIN_BELL);
        };
        done();
        let times = board.data(member, TIMES);
        let note = |at: u64, ns: u64| times[at as usize].store(ns, Ordering::Relaxed);
        for round in 0..schedule.plan.rounds {
            self.wait_for_round(member, board, round);
            done();
            for order in [StageOrder::Series, StageOrder::Baseline] {
                for index in 0..schedule.messages {
                    let number = schedule.number(round, order, index);
                    let bell = subscriber_bell(member);
                    floor::receive(board, 0, number, schedule.plan.wait, bell)?;
                    let now = monotonic_ns();
                    let at = round * schedule.messages + index;
                    match order {
                        // The host's process verifies the message that it copied to the GPU for all.
                        StageOrder::Series => note(2 * schedule.total() + at, now),
                        StageOrder::Baseline => {
                            let from = bytes.data_offset(TARGET, 0);
                            bytes.bytes(from, schedule.plan.size, |bytes| {
                                device.copy_in_pageable(bytes)
                            })?;
                            let ended = monotonic_ns();
                            note(at, ended);
                            note(schedule.total() + at, ended - now);
                            count_wrong(board, member, device.holds(seed(number))?);
                        }
                    }
                    done();
                }
            }
        }
        Ok(())
    }

    /// Sleeps until a round begins, so that the other measurements between rounds are not disturbed.
    fn wait_for_round(&self, member: usize, board: &Board, round: u64) {
        let bell = board.bell(subscriber_bell(member));
        loop {
            let rings = bell.load(Ordering::Acquire);
            if board.line(ROUNDS)[0].load(Ordering::Acquire) > round {
                return;
            }
            // This process is the benchmark's child and is killed at its end.
            futex_wait(bell, rings, rgaps_layout::WAIT_SLICE_NS);
        }
    }
}
