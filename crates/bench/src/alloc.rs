//! `bench alloc`: loan and release by 1, 2, 4, 8 processes at once, beside one TLSF that all of
//! them share under a semaphore (GAPS's design, the paper's Table I) and under a ticket lock.
//!
//! Each process takes batches of blocks of mixed sizes and gives them back in another order.
//! Every second batch is timed call by call; the others, without reading the clock in between,
//! give the processor time per operation, which is what a machine with fewer cores than processes
//! can be judged by. Nothing touches the blocks' bytes.

use crate::board::{Board, Field, Geometry};
use crate::crew::{Crew, Job, Orders};
use crate::locks::{Lock, Semaphore, Ticket, Unshared};
use crate::machine::Machine;
use crate::shared_tlsf::SharedTlsf;
use crate::stage::{node, Stage};
use crate::summary::{round, Nanos};
use anyhow::Context;
use rgaps::{Config, Domain, Loan, Publisher, PublisherQos, Sample, SubscriberQos};
use rgaps_pool::Tlsf;
use rgaps_sync::monotonic_ns;
use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Blocks that a process holds at a time.
const BATCH: usize = 64;
/// Sizes are spread evenly over their logarithms between these.
const SIZE_MIN: u64 = 4 << 10;
/// See [`SIZE_MIN`].
const SIZE_MAX: u64 = 1 << 20;
/// Memory of the shared allocator; enough for all that 32 processes hold.
const SHARED_BYTES: u64 = 4 << 30;
/// A process stops after this long, whatever it has done: with more processes than cores a spinning
/// lock goes on only when the scheduler happens to run the one whose turn it is.
const TIME_MAX: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// Result areas.
const LOANS: usize = 0;
const RELEASES: usize = 1;
/// Lines of the board.
const SEMAPHORE: usize = 3;
const TICKET_NEXT: usize = 4;
const TICKET_SERVING: usize = 5;
const GO: usize = 6;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Design {
    /// A publisher's loans, dropped by itself.
    Own,
    /// A publisher's loans, published and released last by another process.
    ByOther,
    Semaphore,
    TicketLock,
    /// A TLSF of the process's own: the floor.
    Private,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub design: Design,
    pub processes: usize,
    pub batches: usize,
}

/// What `bench alloc` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Alloc {
    pub batch: usize,
    pub size_min: u64,
    pub size_max: u64,
    pub counts: Vec<Count>,
    /// Processor time per operation with most processes over that with fewest.
    pub cpu_ratio: Ratio,
    pub machine: Machine,
}

/// Of each operation.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Ratio {
    pub loan: f64,
    pub release: f64,
    pub release_by_other: f64,
}

/// So many processes.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Count {
    pub processes: usize,
    pub loan: Nanos,
    pub release: Nanos,
    /// Loans whose blocks other processes returned.
    pub loan_after_other: Nanos,
    /// Releases by a process that is not the publisher, which return the block.
    pub release_by_other: Nanos,
    pub semaphore: Pair,
    pub ticket_lock: Pair,
    /// TLSF alone, in each process's own memory.
    pub floor: Pair,
}

/// Both operations of a design.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Pair {
    pub loan: Nanos,
    pub release: Nanos,
    /// Of each operation, by all processes.
    pub operations: u64,
}

/// Times `operations` loans and releases by each process, per count of processes.
pub fn alloc(user: &Config, processes: &[usize], operations: usize) -> anyhow::Result<Alloc> {
    let machine = Machine::describe();
    let stage = Stage::new(user, Domain::Host)?;
    let batches = (operations / BATCH).max(4).next_multiple_of(2);
    let mut counts = Vec::new();
    for &count in processes {
        let run = |design| {
            let plan = Plan {
                design,
                processes: count,
                batches,
            };
            run(&stage, &plan).with_context(|| format!("{design:?} with {count} processes"))
        };
        let (own, by_other) = (run(Design::Own)?, run(Design::ByOther)?);
        counts.push(Count {
            processes: count,
            loan: own.loan,
            release: own.release,
            loan_after_other: by_other.loan,
            release_by_other: by_other.release,
            semaphore: run(Design::Semaphore)?,
            ticket_lock: run(Design::TicketLock)?,
            floor: run(Design::Private)?,
        });
    }
    let ratio = |of: fn(&Count) -> f64| match (counts.first(), counts.last()) {
        (Some(first), Some(last)) => round(of(last) / of(first), 3),
        _ => 1.0,
    };
    Ok(Alloc {
        batch: BATCH,
        size_min: SIZE_MIN,
        size_max: SIZE_MAX,
        cpu_ratio: Ratio {
            loan: ratio(|count| count.loan.cpu_ns),
            release: ratio(|count| count.release.cpu_ns),
            release_by_other: ratio(|count| count.release_by_other.cpu_ns),
        },
        counts,
        machine,
    })
}

fn run(stage: &Stage, plan: &Plan) -> anyhow::Result<Pair> {
    let others = plan.design == Design::ByOther;
    let members = plan.processes * if others { 2 } else { 1 };
    let stamps = plan.batches / 2 * BATCH;
    let shared = SharedTlsf::words(plan.processes * BATCH * 2 + 64);
    let geometry = Geometry {
        members,
        samples: stamps.max(shared),
    };
    let board = Board::create(geometry)?;
    Semaphore::new(board.line(SEMAPHORE), true);
    shared_tlsf(&board, plan).init(SHARED_BYTES);
    let mut crew = Crew::default();
    for member in 0..members {
        let publisher = member % plan.processes;
        let job = match member < plan.processes {
            true => Job::Allocate(plan.clone()),
            false => Job::Release(plan.clone()),
        };
        let orders = Orders {
            member,
            geometry,
            config: stage.config.clone(),
            topic: format!(
                "bench/alloc/{}/{publisher}/{:?}",
                plan.processes, plan.design
            ),
            job,
        };
        crew.add(&orders, &board)?;
    }
    let ready = |m: usize| board.field(m, Field::Done).load(Ordering::Acquire) > 0;
    crew.wait_until("all processes", || (0..members).all(ready))?;
    board.line(GO)[0].store(1, Ordering::Release);
    crew.finish()?;
    let loaners = 0..plan.processes;
    let releasers = match others {
        true => plan.processes..members,
        false => 0..plan.processes,
    };
    let nanos = |mut who: std::ops::Range<usize>, area, cpu| {
        let load = |m, field| board.field(m, field).load(Ordering::Acquire);
        let times = who
            .clone()
            .flat_map(|m| board.results(m, area, load(m, Field::Results) as usize));
        let times = times.collect();
        let cpu = who.clone().map(|m| load(m, cpu)).sum();
        let operations = who.by_ref().map(|m| load(m, Field::Operations)).sum();
        (Nanos::of(times, cpu, operations), operations)
    };
    let (loan, operations) = nanos(loaners, LOANS, Field::Cpu);
    let (release, _) = nanos(releasers, RELEASES, Field::Cpu2);
    Ok(Pair {
        loan,
        release,
        operations,
    })
}

/// The allocator in the board's last area, which no results reach.
fn shared_tlsf<'a>(board: &'a Board, plan: &Plan) -> SharedTlsf<'a> {
    let words = SharedTlsf::words(plan.processes * BATCH * 2 + 64);
    SharedTlsf::new(&board.data(0, 3)[..words])
}

/// Sizes of blocks, the same for every design.
struct Sizes(u64);

impl Sizes {
    fn next_random(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn next(&mut self) -> u64 {
        let random = self.next_random();
        let log = SIZE_MIN.ilog2() + (random % u64::from((SIZE_MAX / SIZE_MIN).ilog2())) as u32;
        (1 << log) + (random >> 32) % (1 << log)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.next_random() as usize % (last + 1));
        }
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes down times and processor time of one kind of operation.
struct Record<'a> {
    times: &'a [AtomicU64],
    count: usize,
    cpu_ns: u64,
    operations: u64,
}

impl<'a> Record<'a> {
    fn new(times: &'a [AtomicU64]) -> Record<'a> {
        Record {
            times,
            count: 0,
            cpu_ns: 0,
            operations: 0,
        }
    }

    /// Does something for each item: timed one by one, or by the processor time of all.
    fn each<T, R>(&mut self, timed: bool, items: Vec<T>, mut work: impl FnMut(T) -> R) -> Vec<R> {
        let mut results = Vec::with_capacity(items.len());
        if timed {
            for item in items {
                let begun = monotonic_ns();
                let result = work(item);
                let took = monotonic_ns() - begun;
                results.push(result);
                if let Some(word) = self.times.get(self.count) {
                    word.store(took, Ordering::Relaxed);
                    self.count += 1;
                }
            }
        } else {
            self.operations += items.len() as u64;
            let begun = cpu_ns();
            results.extend(items.into_iter().map(work));
            self.cpu_ns += cpu_ns() - begun;
        }
        results
    }
}

fn wait_for_go(board: &Board, member: usize) {
    board.field(member, Field::Done).store(1, Ordering::Release);
    while board.line(GO)[0].load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// What a process allocates with.
trait Blocks {
    type Block;
    fn loan(&mut self, bytes: u64) -> anyhow::Result<Self::Block>;
    fn release(&mut self, block: Self::Block);
}

struct Loans(Publisher);

impl Blocks for Loans {
    type Block = Loan;
    fn loan(&mut self, bytes: u64) -> anyhow::Result<Loan> {
        Ok(self.0.loan(bytes)?)
    }
    fn release(&mut self, block: Loan) {
        drop(block);
    }
}

struct Shared<'a, L>(SharedTlsf<'a>, L);

impl<L: Lock> Blocks for Shared<'_, L> {
    type Block = u64;
    fn loan(&mut self, bytes: u64) -> anyhow::Result<u64> {
        let block = self.1.with(|| self.0.allocate(bytes));
        Ok(block.context("the shared allocator is full")?.0)
    }
    fn release(&mut self, block: u64) {
        self.1.with(|| self.0.free(block));
    }
}

struct Private(Tlsf, Unshared);

impl Blocks for Private {
    type Block = u32;
    fn loan(&mut self, bytes: u64) -> anyhow::Result<u32> {
        let block = self
            .1
            .with(|| self.0.allocate(bytes, rgaps_layout::BLOCK_ALIGN));
        Ok(block.context("the private allocator is full")?.handle)
    }
    fn release(&mut self, block: u32) {
        let freed = self.0.free(block);
        debug_assert!(freed.is_ok());
    }
}

/// The side of a process that allocates.
pub fn allocate(orders: &Orders, plan: &Plan, board: &Board) -> anyhow::Result<()> {
    let shared = || shared_tlsf(board, plan);
    match plan.design {
        Design::Own => churn(orders, plan, board, Loans(publisher(orders)?)),
        Design::ByOther => lend(orders, plan, board),
        Design::Semaphore => {
            let lock = Semaphore::new(board.line(SEMAPHORE), false);
            churn(orders, plan, board, Shared(shared(), lock))
        }
        Design::TicketLock => {
            let lock = Ticket::new(board.line(TICKET_NEXT), board.line(TICKET_SERVING));
            churn(orders, plan, board, Shared(shared(), lock))
        }
        Design::Private => {
            let mut tlsf = Tlsf::with_blocks(4 * BATCH as u32);
            tlsf.add_region(0, SHARED_BYTES)?;
            churn(orders, plan, board, Private(tlsf, Unshared))
        }
    }
}

fn publisher(orders: &Orders) -> anyhow::Result<Publisher> {
    let node = node(&orders.config, "rgaps-bench-alloc")?;
    let qos = PublisherQos {
        max_loans: BATCH as u32 + 1,
        deadline: PATIENCE,
        loan_timeout: PATIENCE,
        ..PublisherQos::default()
    };
    Ok(node
        .publisher(&orders.topic)
        .qos(qos)
        .keep_last(BATCH as u32)
        .create()?)
}

fn sizes(orders: &Orders) -> Sizes {
    Sizes(0x2545_f491_4f6c_dd1d + orders.member as u64)
}

/// Loans and releases by the same process.
fn churn<B: Blocks>(
    orders: &Orders,
    plan: &Plan,
    board: &Board,
    mut blocks: B,
) -> anyhow::Result<()> {
    let mut sizes = sizes(orders);
    let mut loans = Record::new(board.data(orders.member, LOANS));
    let mut releases = Record::new(board.data(orders.member, RELEASES));
    let mut batch =
        |sizes: &mut Sizes, timed, loans: &mut Record<'_>, releases: &mut Record<'_>| {
            let wanted: Vec<u64> = (0..BATCH).map(|_| sizes.next()).collect();
            let taken = loans.each(timed, wanted, |bytes| blocks.loan(bytes));
            let mut taken = taken.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            sizes.shuffle(&mut taken);
            releases.each(timed, taken, |block| blocks.release(block));
            anyhow::Ok(())
        };
    // Memory is leased before it counts.
    for timed in [true, false] {
        batch(
            &mut sizes,
            timed,
            &mut Record::new(&[]),
            &mut Record::new(&[]),
        )?;
    }
    wait_for_go(board, orders.member);
    let begun = Instant::now();
    for number in 0..plan.batches {
        batch(&mut sizes, number % 2 == 0, &mut loans, &mut releases)?;
        if begun.elapsed() > TIME_MAX && number % 2 == 1 {
            break;
        }
    }
    tell(board, orders.member, &loans, &releases);
    Ok(())
}

fn tell(board: &Board, member: usize, loans: &Record<'_>, releases: &Record<'_>) {
    let set = |field, value| board.field(member, field).store(value, Ordering::Release);
    set(Field::Results, loans.count.max(releases.count) as u64);
    set(Field::Cpu, loans.cpu_ns);
    set(Field::Cpu2, releases.cpu_ns);
    set(Field::Operations, loans.operations.max(releases.operations));
}

/// Loans that another process releases: a batch is out when the one before it comes back.
fn lend(orders: &Orders, plan: &Plan, board: &Board) -> anyhow::Result<()> {
    let publisher = publisher(orders)?;
    let mut sizes = sizes(orders);
    let mut loans = Record::new(board.data(orders.member, LOANS));
    let mut unrecorded = Record::new(&[]);
    anyhow::ensure!(
        publisher.wait_for_subscribers(1, PATIENCE)?,
        "no releaser came"
    );
    wait_for_go(board, orders.member);
    let releaser = orders.member + plan.processes;
    for number in 0..plan.batches + 2 {
        let wanted: Vec<u64> = (0..BATCH).map(|_| sizes.next()).collect();
        // Two batches until blocks come back.
        let record = if number < 2 {
            &mut unrecorded
        } else {
            &mut loans
        };
        let taken = record.each(number % 2 == 0, wanted, |bytes| publisher.loan(bytes));
        for loan in taken {
            loan?.publish().map_err(|unpublished| unpublished.error)?;
        }
        wait_for_count(board, releaser, number as u64 + 2)?;
    }
    tell(board, orders.member, &loans, &Record::new(&[]));
    Ok(())
}

fn wait_for_count(board: &Board, member: usize, count: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    while board.field(member, Field::Done).load(Ordering::Acquire) < count {
        std::thread::sleep(Duration::from_micros(20));
        anyhow::ensure!(
            begun.elapsed() < PATIENCE,
            "the other process does not go on"
        );
    }
    Ok(())
}

/// The side of a process that releases what another one published: the ring has let go of a batch
/// when the next one has come, so each release is the last and returns the block.
pub fn release(orders: &Orders, plan: &Plan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-release")?;
    let qos = SubscriberQos {
        reliable: true,
        max_held: 2 * BATCH as u32,
        ..SubscriberQos::default()
    };
    let subscriber = node.subscriber(&orders.topic).qos(qos).create()?;
    let mut releases = Record::new(board.data(orders.member, RELEASES));
    let mut sizes = sizes(orders);
    wait_for_go(board, orders.member);
    let mut held: Vec<Sample> = Vec::new();
    for number in 0..plan.batches + 2 {
        let mut next = Vec::with_capacity(BATCH);
        while next.len() < BATCH {
            next.push(subscriber.recv_timeout(PATIENCE)?);
        }
        sizes.shuffle(&mut held);
        releases.each(number % 2 == 0, std::mem::replace(&mut held, next), drop);
        board
            .field(orders.member, Field::Done)
            .fetch_add(1, Ordering::AcqRel);
    }
    tell(board, orders.member, &Record::new(&[]), &releases);
    Ok(())
}
