//! One publisher, some subscribers, one message at a time: the measurement behind `bench latency` and `bench fanout`.
//!
//! Each round exchanges a batch. The publisher fills a batch of loans, sends as many hops of the floor, then
//! publishes the messages. Before the next hop or message it waits until all subscribers have counted this one on
//! the board. At the end of the round the subscribers verify all bytes. Filling and verifying large messages evicts
//! the caches, so each round has some hops and small messages that warm up and are not timed. The first message
//! after filling is reported apart (`first`).
//!
//! With a header, some rounds have messages without a header, and some with one. The time of the publish call then
//! includes setting the header, and that of the message includes reading it.
//!
//! On a GPU, kernels fill and verify. A kernel that takes some time may be in flight on the publisher's stream
//! whenever it publishes or sends a hop.

use crate::board::{Board, Field, Geometry};
use crate::contents;
use crate::crew::{Crew, Job, Orders};
use crate::floor::{self, NAP};
use crate::gpu::Gpu;
use crate::stage::{node, Stage};
use rgaps::{
    Domain, Header, Loan, Publisher, PublisherQos, RecvError, Sample, Stream, Subscriber,
    SubscriberQos,
};
use rgaps_cuda::DeviceBuffer;
use rgaps_sync::{monotonic_ns, spin_hint};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most messages of a round.
const BATCH_MAX: u64 = 64;
/// Most bytes of a round's messages.
const BATCH_BYTES: u64 = 2 << 30;
/// Hops, and small messages, of a round that warm up and are not timed.
const WARM_UP: usize = 16;
/// Bytes of a message that warms up.
const WARM_UP_BYTES: u64 = 64;
/// How long the publisher spins before each hop and message, so that blocking subscribers have gone to sleep.
const SETTLE_NS: u64 = 100_000;
/// How long a subscriber waits for a message before the benchmark fails.
const RECV_TIMEOUT: Duration = Duration::from_secs(60);

/// Line of the board with the number of messages that subscribers may verify and release.
const LET_GO: usize = 0;
/// Result areas of a subscriber: the times of messages, of each round's first message, of hops.
const MESSAGES: usize = 0;
const FIRST: usize = 1;
const FLOOR: usize = 2;

/// How subscribers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Polls without a pause.
    Poll,
    /// Sleeps on a futex.
    Block,
    /// Polls with pauses. The publisher sees a subscriber that is awake, and the subscriber needs no core of its own.
    Nap,
}

/// The parameters of an exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExchangePlan {
    pub size: u64,
    pub messages: usize,
    pub wait: Wait,
    pub subscribers: usize,
    pub domain: Domain,
    /// How long the kernel runs that is in flight when a message is published or a hop is sent; 0: there is none.
    pub kernel_ns: u64,
    /// How long the publisher sleeps before each message and each hop, like a publisher that waits for its next
    /// frame; 0: it does not.
    pub pause_ns: u64,
    /// Whether messages are published on the stream that wrote them. Otherwise the publisher waits for the bytes and
    /// publishes without a stream.
    pub on_stream: bool,
    /// Most bytes of the header that messages have in half of the rounds; 0: there are no such rounds.
    pub header_bytes: usize,
}

impl ExchangePlan {
    fn batch(&self) -> usize {
        let fit = (BATCH_BYTES / self.size.max(1)).clamp(1, BATCH_MAX) as usize;
        fit.min(self.messages.max(1))
    }

    fn rounds(&self) -> usize {
        let kinds = match self.header_bytes {
            0 => 1,
            _ => 2,
        };
        kinds * self.messages.div_ceil(self.batch())
    }

    /// Whether the messages of a round have a header. The order is no, yes, yes, no, so that neither kind comes
    /// always first.
    fn has_header(&self, round: usize) -> bool {
        self.header_bytes > 0 && matches!(round % 4, 1 | 2)
    }

    /// The largest header that fits into `header_bytes`.
    fn header(&self) -> anyhow::Result<Header> {
        let padded = |padding: usize| {
            let header = Header::default().frame_id("camera/front");
            let mut header = header.value("padding", "x".repeat(padding));
            header.capture_ns = Some(1 << 60);
            header
        };
        for padding in (0..self.header_bytes).rev() {
            let header = padded(padding);
            if header.encode()?.len() <= self.header_bytes {
                return Ok(header);
            }
        }
        anyhow::bail!("no header has {} bytes", self.header_bytes)
    }

    /// Messages of a round: the first, those that warm up, the batch.
    fn messages_per_round(&self) -> usize {
        1 + WARM_UP + self.batch()
    }

    /// The GPU that fills and verifies. None if messages are on the host, or are not whole words, which kernels need.
    fn gpu(&self) -> anyhow::Result<Option<Gpu>> {
        match self.size % 8 {
            0 => Gpu::of(self.domain),
            _ => Ok(None),
        }
    }

    /// Bytes of message `index` of a round.
    fn bytes(&self, index: usize) -> u64 {
        match index {
            1..=WARM_UP => WARM_UP_BYTES.min(self.size),
            _ => self.size,
        }
    }
}

/// The results of an exchange. All times are in nanoseconds, and of messages without a header unless `header` has them.
pub struct Outcome {
    /// How long each publish call took.
    pub publish: Vec<u64>,
    /// How long each send of the floor took.
    pub floor_send: Vec<u64>,
    /// From publish call to handler, per subscriber.
    pub messages: Vec<Vec<u64>>,
    /// The same for each round's first message, of all subscribers.
    pub first: Vec<u64>,
    pub header: WithHeader,
    /// From send to receive of each hop of the floor, of all subscribers.
    pub floor: Vec<u64>,
    pub lost: u64,
    pub corrupt: u64,
    /// Bytes in use in the publisher's memory while all subscribers hold all messages of a round.
    pub used_bytes: u64,
    /// Bytes of the messages of a round.
    pub message_bytes: u64,
}

/// Times of messages with a header, in nanoseconds.
#[derive(Default)]
pub struct WithHeader {
    /// How long it took to set the header and to publish.
    pub publish: Vec<u64>,
    /// From publish call until the subscriber has read the header, of all subscribers.
    pub messages: Vec<u64>,
}

/// The publisher's side: starts the subscribers and exchanges.
pub fn run(stage: &Stage, topic: &str, plan: &ExchangePlan) -> anyhow::Result<Outcome> {
    let (batch, rounds) = (plan.batch(), plan.rounds());
    let geometry = Geometry {
        members: plan.subscribers,
        samples: batch * rounds,
    };
    let board = Board::create(geometry)?;
    let crew = start_listeners(stage, topic, plan, &board, geometry)?;
    let publisher = publisher(stage, topic, plan)?;
    let gpu = plan.gpu()?;
    let mut used_bytes = 0;
    let mut sender = Sender {
        gpu: gpu.as_ref(),
        crew,
        board: &board,
        plan,
        done: 1,
        publish: Vec::with_capacity(batch * rounds),
        publish_with_header: Vec::with_capacity(batch * rounds),
        floor_send: Vec::with_capacity(batch * rounds),
    };
    // Each subscriber counts 1 when it has joined.
    sender.wait()?;
    let header = match plan.header_bytes {
        0 => None,
        _ => Some(plan.header()?),
    };
    let mut sequence = 0;
    for round in 0..rounds {
        let header = header.as_ref().filter(|_| plan.has_header(round));
        let loans = filled_loans(&publisher, gpu.as_ref(), plan, sequence)?;
        sequence += loans.len() as u64;
        let hops = WARM_UP + batch;
        for hop in 0..hops {
            sender.hop((round * hops + hop + 1) as u64, hop >= WARM_UP)?;
        }
        for (index, loan) in loans.into_iter().enumerate() {
            sender.message(loan, header, index > WARM_UP)?;
        }
        if round == 0 {
            publisher.trim(u64::MAX)?;
            used_bytes = publisher.used_bytes();
        }
        sender.allow(sequence);
        // Each subscriber counts 1 when it has verified the round's bytes.
        sender.done += 1;
        sender.wait()?;
    }
    sender.crew.finish()?;
    let mut outcome = outcome(&board, plan);
    outcome.publish = sender.publish;
    outcome.header.publish = sender.publish_with_header;
    outcome.floor_send = sender.floor_send;
    outcome.used_bytes = used_bytes;
    Ok(outcome)
}

fn start_listeners(
    stage: &Stage,
    topic: &str,
    plan: &ExchangePlan,
    board: &Board,
    geometry: Geometry,
) -> anyhow::Result<Crew> {
    let mut crew = Crew::default();
    for member in 0..plan.subscribers {
        let orders = Orders {
            member,
            geometry,
            config: stage.config.clone(),
            topic: topic.to_owned(),
            job: Job::Listen(plan.clone()),
        };
        crew.add(&orders, board)?;
    }
    Ok(crew)
}

fn publisher(stage: &Stage, topic: &str, plan: &ExchangePlan) -> anyhow::Result<Publisher> {
    let qos = PublisherQos {
        max_loans: plan.messages_per_round() as u32,
        loan_timeout: Duration::from_secs(60),
        ..PublisherQos::default()
    };
    let builder = stage.node.publisher(topic).domain(stage.domain).qos(qos);
    Ok(builder.keep_last(1).create()?)
}

/// Loans and fills the messages of a round. The first has number `sequence`.
fn filled_loans(
    publisher: &Publisher,
    gpu: Option<&Gpu>,
    plan: &ExchangePlan,
    sequence: u64,
) -> anyhow::Result<Vec<Loan>> {
    let mut loans = Vec::with_capacity(plan.messages_per_round());
    for index in 0..plan.messages_per_round() {
        let mut loan = publisher.loan(plan.bytes(index))?;
        let seed = contents::seed(0, sequence + index as u64);
        match gpu {
            Some(gpu) => gpu.fill(&mut loan, seed)?,
            None => contents::fill(&mut loan, seed)?,
        }
        loans.push(loan);
    }
    if let Some(gpu) = gpu {
        gpu.finish("the messages' bytes")?;
    }
    Ok(loans)
}

/// Reads what the subscribers wrote on the board. The publisher's own fields stay empty.
fn outcome(board: &Board, plan: &ExchangePlan) -> Outcome {
    let (rounds, all) = (plan.rounds(), plan.rounds() * plan.batch());
    let members = 0..plan.subscribers;
    let sum = |field| {
        members
            .clone()
            .map(|m| board.field(m, field).load(Ordering::Acquire))
            .sum()
    };
    let (lost, corrupt) = (sum(Field::Lost), sum(Field::Corrupt));
    // A member's results of all rounds with, or without, a header; `each` results per round.
    let of_kind = |member, area, each: usize, with_header: bool| -> Vec<u64> {
        let results = board.results(member, area, rounds * each);
        let rounds = results.chunks(each).enumerate();
        let rounds = rounds.filter(|(round, _)| plan.has_header(*round) == with_header);
        rounds.flat_map(|(_, results)| results.to_vec()).collect()
    };
    Outcome {
        publish: Vec::new(),
        floor_send: Vec::new(),
        messages: members
            .clone()
            .map(|m| of_kind(m, MESSAGES, plan.batch(), false))
            .collect(),
        first: members
            .clone()
            .flat_map(|m| of_kind(m, FIRST, 1, false))
            .collect(),
        header: WithHeader {
            publish: Vec::new(),
            messages: members
                .clone()
                .flat_map(|m| of_kind(m, MESSAGES, plan.batch(), true))
                .collect(),
        },
        floor: members.flat_map(|m| board.results(m, FLOOR, all)).collect(),
        lost,
        corrupt,
        used_bytes: 0,
        message_bytes: (0..plan.messages_per_round())
            .map(|index| plan.bytes(index))
            .sum(),
    }
}

struct Sender<'a> {
    gpu: Option<&'a Gpu>,
    crew: Crew,
    board: &'a Board,
    plan: &'a ExchangePlan,
    /// The count that every subscriber must reach in [`Field::Done`] before the next step.
    done: u64,
    publish: Vec<u64>,
    publish_with_header: Vec<u64>,
    floor_send: Vec<u64>,
}

impl Sender<'_> {
    /// Lets subscribers verify and release the first `messages` messages.
    fn allow(&self, messages: u64) {
        self.board.line(LET_GO)[0].store(messages, Ordering::Release);
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let (board, done) = (self.board, self.done);
        let behind = |m: usize| board.field(m, Field::Done).load(Ordering::Acquire) < done;
        self.crew
            .wait_until("a subscriber", || !(0..board.members()).any(behind))?;
        if self.plan.pause_ns > 0 {
            std::thread::sleep(Duration::from_nanos(self.plan.pause_ns));
        } else if self.plan.wait == Wait::Block {
            let begun = monotonic_ns();
            while monotonic_ns() - begun < SETTLE_NS {
                spin_hint();
            }
        }
        Ok(())
    }

    fn keep_busy(&self) -> anyhow::Result<()> {
        match self.gpu {
            Some(gpu) => gpu.spin(self.plan.kernel_ns),
            None => Ok(()),
        }
    }

    fn hop(&mut self, number: u64, counts: bool) -> anyhow::Result<()> {
        self.keep_busy()?;
        let begun = monotonic_ns();
        floor::send(
            self.board,
            0,
            number,
            begun,
            self.plan.wait,
            0..self.board.members(),
        );
        let took = monotonic_ns() - begun;
        if counts {
            self.floor_send.push(took);
        }
        self.done += 1;
        self.wait()
    }

    fn message(
        &mut self,
        mut loan: Loan,
        header: Option<&Header>,
        counts: bool,
    ) -> anyhow::Result<()> {
        self.keep_busy()?;
        let begun = monotonic_ns();
        if let Some(header) = header {
            loan.set_header(header)?;
        }
        let published = match self.gpu {
            Some(gpu) if self.plan.on_stream => loan.publish_on(gpu.handle()),
            // `filled_loans` has waited for the bytes.
            _ => loan.publish_on(Stream::NONE),
        };
        published.map_err(|unpublished| unpublished.error)?;
        let took = monotonic_ns() - begun;
        if counts {
            match header {
                Some(_) => self.publish_with_header.push(took),
                None => self.publish.push(took),
            }
        }
        self.done += 1;
        self.wait()
    }
}

/// A subscriber's side.
pub fn listen(orders: &Orders, plan: &ExchangePlan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-listener")?;
    let subscriber = node
        .subscriber(&orders.topic)
        .qos(SubscriberQos {
            max_held: plan.messages_per_round() as u32,
            spin: Duration::ZERO,
            ..SubscriberQos::default()
        })
        .create()?;
    let gpu = plan.gpu()?;
    let wrong = gpu.as_ref().map(|gpu| gpu.numbers(1)).transpose()?;
    let listener = Listener {
        gpu: gpu.as_ref().zip(wrong.as_ref()),
        orders,
        plan,
        board,
        subscriber,
    };
    listener.has_done();
    let header = match plan.header_bytes {
        0 => None,
        _ => Some(plan.header()?),
    };
    let mut sequence = 0;
    for round in 0..plan.rounds() {
        listener.hops(round)?;
        let samples = listener.messages(round)?;
        listener.wait_to_let_go(sequence + samples.len() as u64)?;
        let header = header.as_ref().filter(|_| plan.has_header(round));
        for (index, sample) in samples.iter().enumerate() {
            listener.verify(sample, sequence, plan.bytes(index))?;
            let same_header = sample.header()?.as_ref() == header;
            listener.count(Field::Corrupt, u64::from(!same_header));
            sequence += 1;
        }
        if let Some((gpu, _)) = listener.gpu {
            gpu.finish("the check of the bytes")?;
        }
        listener.has_done();
    }
    if let Some((gpu, wrong)) = listener.gpu {
        listener.count(Field::Corrupt, gpu.read_numbers(wrong)?[0]);
    }
    let missed = listener.subscriber.missed();
    listener.count(Field::Lost, missed);
    Ok(())
}

struct Listener<'a> {
    gpu: Option<(&'a Gpu, &'a DeviceBuffer)>,
    orders: &'a Orders,
    plan: &'a ExchangePlan,
    board: &'a Board,
    subscriber: Subscriber,
}

impl Listener<'_> {
    /// Receives the hops of a round.
    fn hops(&self, round: usize) -> anyhow::Result<()> {
        let (batch, member) = (self.plan.batch(), self.orders.member);
        let hops = WARM_UP + batch;
        for hop in 0..hops {
            let took = self.hop((round * hops + hop) as u64 + 1)?;
            if hop >= WARM_UP {
                let index = round * batch + hop - WARM_UP;
                self.board.data(member, FLOOR)[index].store(took, Ordering::Relaxed);
            }
            self.has_done();
        }
        Ok(())
    }

    /// Receives the messages of a round.
    fn messages(&self, round: usize) -> anyhow::Result<Vec<Sample>> {
        let (batch, member) = (self.plan.batch(), self.orders.member);
        let mut samples = Vec::with_capacity(self.plan.messages_per_round());
        for index in 0..self.plan.messages_per_round() {
            let (sample, took) = self.message(self.plan.has_header(round))?;
            let result = match index {
                0 => Some((FIRST, round)),
                1..=WARM_UP => None,
                _ => Some((MESSAGES, round * batch + index - WARM_UP - 1)),
            };
            if let Some((area, at)) = result {
                self.board.data(member, area)[at].store(took, Ordering::Relaxed);
            }
            samples.push(sample);
            self.has_done();
        }
        Ok(samples)
    }

    fn has_done(&self) {
        self.count(Field::Done, 1);
    }

    fn count(&self, field: Field, n: u64) {
        let word = self.board.field(self.orders.member, field);
        word.fetch_add(n, Ordering::AcqRel);
    }

    fn wait_to_let_go(&self, messages: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.board.line(LET_GO)[0].load(Ordering::Acquire) < messages {
            anyhow::ensure!(
                begun.elapsed() < RECV_TIMEOUT,
                "the publisher does not go on"
            );
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// Waits for a hop of the floor, in the same way as for a message. Returns how long it took.
    fn hop(&self, number: u64) -> anyhow::Result<u64> {
        let sent_ns = floor::receive(self.board, 0, number, self.plan.wait, self.orders.member)?;
        Ok(monotonic_ns() - sent_ns)
    }

    fn message(&self, has_header: bool) -> anyhow::Result<(Sample, u64)> {
        let sample = match self.plan.wait {
            Wait::Block => self.subscriber.recv_timeout(RECV_TIMEOUT)?,
            wait => self.look(wait)?,
        };
        if has_header {
            std::hint::black_box(sample.header()?);
        }
        let took = monotonic_ns() - sample.publish_ns();
        Ok((sample, took))
    }

    fn look(&self, wait: Wait) -> anyhow::Result<Sample> {
        let begun = monotonic_ns();
        let mut looks = 0u32;
        loop {
            if let Some(sample) = self.subscriber.try_recv()? {
                return Ok(sample);
            }
            match wait {
                Wait::Nap => std::thread::sleep(NAP),
                _ => spin_hint(),
            }
            looks = looks.wrapping_add(1);
            if looks % 4096 == 0 && monotonic_ns() - begun > RECV_TIMEOUT.as_nanos() as u64 {
                return Err(RecvError::TimedOut(self.orders.topic.clone()).into());
            }
        }
    }

    fn verify(&self, sample: &Sample, sequence: u64, bytes: u64) -> anyhow::Result<()> {
        let expected = contents::seed(0, sequence);
        let mut right = sample.sequence() == sequence && sample.len() == bytes;
        match self.gpu {
            Some((gpu, wrong)) => {
                sample.wait_on(gpu.handle())?;
                gpu.check(sample, expected, wrong, 0)?;
            }
            None => right &= contents::verify(sample, expected, bytes)?,
        }
        self.count(Field::Corrupt, u64::from(!right));
        Ok(())
    }
}
