//! `bench spread`: messages that are published in one domain and read in another by several processes.
//!
//! It times each message from the publish call until the last reader finds the bytes in its domain. The floor, in
//! turns with that, is a bare copy of as many bytes by the same GPU between memory of the same kinds.

use crate::board::{Board, Field, Geometry};
use crate::contents;
use crate::crew::{Crew, Job, Orders};
use crate::gpu::{CopyMemory, Gpu, LIMIT};
use crate::machine::Machine;
use crate::stage::{node, Stage};
use crate::summary::{round, Micros, Short};
use rgaps::{Config, Domain, Publisher, RecvError, Sample, Subscriber, SubscriberQos};
use rgaps_session::PeerUse;
use rgaps_sync::{monotonic_ns, spin_hint};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Untimed messages before the timed ones. During them memory is leased and mapped, and readers' memory is pinned.
const WARM_UP: usize = 3;
const SOON: Duration = Duration::from_secs(60);
/// Line of the board with the count of messages that readers may release.
const LET_GO: usize = 0;
/// Result areas of a reader.
const ARRIVED: usize = 0;
const CONSUMED: usize = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpreadPlan {
    to: Domain,
    size: u64,
    messages: usize,
}

impl SpreadPlan {
    fn total(&self) -> usize {
        WARM_UP + self.messages
    }
}

/// What `bench spread` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Spread {
    pub from: String,
    pub to: String,
    pub peer: PeerUse,
    pub readers: usize,
    pub size: u64,
    pub messages: usize,
    /// From the publish call until the last reader finds the bytes in its domain.
    pub arrived: Micros,
    /// From the publish call until the last reader has verified all bytes.
    pub consumed: Short,
    /// A message's bytes divided by the median of `arrived`, in units of 10^9 bytes per second.
    pub gb_per_s: f64,
    /// The floor: a bare copy.
    pub bare: Short,
    pub bare_gb_per_s: f64,
    /// The median of `bare` divided by that of `arrived`: 1 is as fast as a bare copy.
    pub of_bare: f64,
    /// Replicas of the message that the publisher holds memory for.
    pub copies: u64,
    pub used_bytes: u64,
    pub lost: u64,
    pub corrupt: u64,
    pub machine: Machine,
}

const TOPIC: &str = "bench/spread";

/// Has `readers` processes read `messages` messages in `to` that are published in `from`.
pub fn spread(
    user: &Config,
    from: Domain,
    to: Domain,
    peer: PeerUse,
    readers: usize,
    size: u64,
    messages: usize,
) -> anyhow::Result<Spread> {
    anyhow::ensure!(
        size > 0 && size % 8 == 0,
        "a message has whole words of 8 bytes, not {size} bytes"
    );
    let machine = Machine::describe();
    let mut config = user.clone();
    config.pool.cuda.peer = peer;
    let stage = Stage::new(&config, from)?;
    let plan = SpreadPlan { to, size, messages };
    let geometry = Geometry {
        members: readers,
        samples: plan.total(),
    };
    let board = Board::create(geometry)?;
    let crew = start_readers(&stage, &plan, &board, geometry)?;
    let publisher = stage
        .node
        .publisher(TOPIC)
        .domain(from)
        .keep_last(1)
        .loan_timeout(SOON)
        .create()?;
    let bare = Bare::new(from, to, size)?;
    let (used_bytes, bare_ns) = exchange(crew, &board, &publisher, &bare, from, &plan)?;
    let (arrived, consumed, bare) = (
        last(&board, &plan, ARRIVED),
        last(&board, &plan, CONSUMED).short(),
        Micros::of(bare_ns).short(),
    );
    let speed = |us: f64| size as f64 / us.max(1e-3) / 1e3;
    Ok(Spread {
        from: from.to_string(),
        to: to.to_string(),
        peer,
        readers,
        size,
        messages,
        gb_per_s: round(speed(arrived.p50_us), 2),
        bare_gb_per_s: round(speed(bare.p50_us), 2),
        of_bare: round(bare.p50_us / arrived.p50_us.max(1e-3), 3),
        arrived,
        consumed,
        bare,
        // Blocks are rounded up by much less than half.
        copies: ((used_bytes + size / 2) / size).saturating_sub(1),
        used_bytes,
        lost: sum(&board, Field::Lost),
        corrupt: sum(&board, Field::Corrupt),
        machine,
    })
}

/// Returns, for each timed message, the time of the slowest reader.
fn last(board: &Board, plan: &SpreadPlan, area: usize) -> Micros {
    let times: Vec<_> = (0..board.members())
        .map(|member| board.results(member, area, plan.total()))
        .collect();
    let most = |message: usize| times.iter().map(|t| t[message]).max().unwrap_or(0);
    Micros::of((WARM_UP..plan.total()).map(most).collect())
}

/// Adds a field up over all readers.
fn sum(board: &Board, field: Field) -> u64 {
    (0..board.members())
        .map(|member| board.field(member, field).load(Ordering::Acquire))
        .sum()
}

fn start_readers(
    stage: &Stage,
    plan: &SpreadPlan,
    board: &Board,
    geometry: Geometry,
) -> anyhow::Result<Crew> {
    let mut crew = Crew::default();
    for member in 0..geometry.members {
        let orders = Orders {
            member,
            geometry,
            config: stage.config.clone(),
            topic: TOPIC.to_owned(),
            job: Job::Read(plan.clone()),
        };
        crew.add(&orders, board)?;
    }
    Ok(crew)
}

/// Sends all messages, in turns with bare copies. Returns the bytes of memory that the publisher held while everybody held the first
/// message, and the times of the copies.
fn exchange(
    mut crew: Crew,
    board: &Board,
    publisher: &Publisher,
    bare: &Bare,
    from: Domain,
    plan: &SpreadPlan,
) -> anyhow::Result<(u64, Vec<u64>)> {
    let (mut used_bytes, mut bare_ns) = (0, Vec::new());
    let done = |count: u64| {
        let behind = |m: usize| board.field(m, Field::Done).load(Ordering::Acquire) < count;
        !(0..board.members()).any(behind)
    };
    crew.wait_until("the readers", || done(1))?;
    for message in 0..plan.total() {
        publish(publisher, bare, from, plan, message)?;
        crew.wait_until("the readers", || done(message as u64 + 2))?;
        if message == 0 {
            // Every reader still holds the message.
            publisher.trim(u64::MAX)?;
            used_bytes = publisher.used_bytes();
        }
        board.line(LET_GO)[0].store(message as u64 + 1, Ordering::Release);
        let took = bare.copy()?;
        if message >= WARM_UP {
            bare_ns.push(took);
        }
    }
    crew.finish()?;
    Ok((used_bytes, bare_ns))
}

fn publish(
    publisher: &Publisher,
    bare: &Bare,
    from: Domain,
    plan: &SpreadPlan,
    message: usize,
) -> anyhow::Result<()> {
    let contents = contents::seed(0, message as u64);
    let mut loan = publisher.loan(plan.size)?;
    let published = match from {
        Domain::Host => {
            contents::fill(&mut loan, contents)?;
            loan.publish()
        }
        Domain::Cuda(_) => {
            bare.gpu.fill(&mut loan, contents)?;
            bare.gpu.finish("the message's bytes")?;
            loan.publish_on(bare.gpu.handle())
        }
    };
    published.map_err(|unpublished| unpublished.error)?;
    Ok(())
}

/// The floor: a copy without rgaps.
struct Bare {
    from: CopyMemory,
    to: CopyMemory,
    size: u64,
    gpu: Gpu,
}

impl Bare {
    fn new(from: Domain, to: Domain, size: u64) -> anyhow::Result<Bare> {
        let gpu = match (Gpu::of(from)?, to) {
            (Some(gpu), _) => gpu,
            (None, Domain::Cuda(uuid)) => Gpu::open(uuid)?,
            (None, Domain::Host) => anyhow::bail!("one of --from and --to has to be a GPU"),
        };
        Ok(Bare {
            from: CopyMemory::new(from, &gpu, size)?,
            to: CopyMemory::new(to, &gpu, size)?,
            size,
            gpu,
        })
    }

    /// Copies, and returns the nanoseconds until the CPU sees that the copy has ended.
    fn copy(&self) -> anyhow::Result<u64> {
        let begun = monotonic_ns();
        self.gpu.copy_between(&self.to, &self.from, self.size)?;
        self.gpu.finish("a bare copy")?;
        Ok(monotonic_ns() - begun)
    }
}

/// Runs a reader.
pub fn read(orders: &Orders, plan: &SpreadPlan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-reader")?;
    let gpu = Gpu::of(plan.to)?;
    let wrong = gpu
        .as_ref()
        .map(|gpu| gpu.numbers(plan.total()))
        .transpose()?;
    let subscriber = node
        .subscriber(&orders.topic)
        .domain(plan.to)
        .qos(SubscriberQos {
            spin: Duration::ZERO,
            ..SubscriberQos::default()
        })
        .create()?;
    let count = |field: Field, n| {
        board
            .field(orders.member, field)
            .fetch_add(n, Ordering::AcqRel)
    };
    count(Field::Done, 1);
    for message in 0..plan.total() {
        let sample = next(&subscriber, &orders.topic)?;
        let result = |area: usize| -> &AtomicU64 { &board.data(orders.member, area)[message] };
        let since = || monotonic_ns() - sample.publish_ns();
        result(ARRIVED).store(since(), Ordering::Relaxed);
        let contents = contents::seed(0, message as u64);
        let mut right = sample.sequence() == message as u64 && sample.len() == plan.size;
        match (&gpu, &wrong) {
            (Some(gpu), Some(wrong)) => {
                sample.wait_on(gpu.handle())?;
                gpu.check(&sample, contents, wrong, message)?;
                gpu.finish("a reader's kernel")?;
            }
            _ => right &= contents::verify(&sample, contents, plan.size)?,
        }
        result(CONSUMED).store(since(), Ordering::Relaxed);
        count(Field::Corrupt, u64::from(!right));
        count(Field::Done, 1);
        let deadline = Instant::now() + SOON;
        while board.line(LET_GO)[0].load(Ordering::Acquire) <= message as u64 {
            anyhow::ensure!(Instant::now() < deadline, "the publisher does not go on");
            std::thread::yield_now();
        }
    }
    if let (Some(gpu), Some(wrong)) = (&gpu, &wrong) {
        let wrong = gpu.read_numbers(wrong)?;
        count(
            Field::Corrupt,
            wrong.iter().filter(|words| **words > 0).count() as u64,
        );
    }
    count(Field::Lost, subscriber.missed());
    Ok(())
}

/// Waits for the next message, and until its bytes are complete.
fn next(subscriber: &Subscriber, topic: &str) -> anyhow::Result<Sample> {
    let begun = Instant::now();
    let mut sample = None;
    loop {
        for _ in 0..256 {
            match &sample {
                None => sample = subscriber.try_recv()?,
                Some(there) => {
                    if Sample::is_ready(there)? {
                        return Ok(sample.expect("just looked at"));
                    }
                }
            }
            spin_hint();
        }
        if begun.elapsed() > LIMIT {
            return Err(RecvError::TimedOut(topic.to_owned()).into());
        }
        std::thread::yield_now();
    }
}
