//! `bench alloc`: loan and release by 1, 2, 4, 8 processes at once, beside a TLSF of each process's own.
//!
//! Each process takes batches of blocks of mixed sizes and gives them back in another order.
//! Every second batch is timed call by call. The others give the CPU time per operation, without reading the clock in
//! between; on a machine with fewer cores than processes only this figure is meaningful. Nothing touches the blocks'
//! bytes.

use crate::board::{Board, Field, Geometry};
use crate::crew::{Crew, Job, MemberJob, MemberOrders, Orders};
use crate::machine::Machine;
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
pub const BATCH: usize = 64;
/// The smallest size of a block. The logarithms of sizes are evenly spread up to that of [`SIZE_MAX`].
const SIZE_MIN: u64 = 4 << 10;
/// No block has this size or a larger one.
const SIZE_MAX: u64 = 1 << 20;
/// Memory of an allocator without rgaps; enough for all that 32 processes hold.
pub const ARENA_BYTES: u64 = 4 << 30;
/// A process stops after this long, even if batches are left: with more processes than cores, a spinning ticket lock
/// advances only when the scheduler happens to run the process whose turn it is.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Limit of each wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Result areas: the time of each loan, and of each release.
const LOANS: usize = 0;
const RELEASES: usize = 1;
/// Line of the board that starts all processes at once.
const GO: usize = 6;

/// The design that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Design {
    /// A publisher's loans, which it drops itself.
    Own,
    /// A publisher's loans, which it publishes, and another process releases last.
    ByOther,
    /// A TLSF of the process's own: the floor.
    Private,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AllocPlan {
    design: Design,
    processes: usize,
    batches: usize,
}

/// What `bench alloc` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Alloc {
    pub batch: usize,
    pub size_min: u64,
    pub size_max: u64,
    pub counts: Vec<Count>,
    /// CPU time per operation with the last of `counts`, divided by that with the first.
    pub cpu_ratio: Ratio,
    pub machine: Machine,
}

/// The ratio for each operation.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Ratio {
    pub loan: f64,
    pub release: f64,
    pub release_by_other: f64,
}

/// The results for one number of processes.
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
    /// TLSF alone, in each process's own memory.
    pub floor: Pair,
}

/// The times of loans and releases of a design.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Pair {
    pub loan: Nanos,
    pub release: Nanos,
    /// Operations of each kind behind the CPU times, of all processes.
    pub operations: u64,
}

/// Times `operations` loans and releases by each process, per count of processes.
pub fn alloc(user: &Config, processes: &[usize], operations: usize) -> anyhow::Result<Alloc> {
    alloc_beside(user, processes, operations, &mut |_, _| Ok(()))
}

/// Does what [`alloc`] does, and calls `beside` after each number of processes, with that number and the batches of
/// each process, so that the caller can measure another design in turns.
pub fn alloc_beside(
    user: &Config,
    processes: &[usize],
    operations: usize,
    beside: &mut dyn FnMut(usize, usize) -> anyhow::Result<()>,
) -> anyhow::Result<Alloc> {
    let machine = Machine::describe();
    let stage = Stage::new(user, Domain::Host)?;
    let batches = (operations / BATCH).max(4).next_multiple_of(2);
    let mut counts = Vec::new();
    for &count in processes {
        let run = |design| {
            let plan = AllocPlan {
                design,
                processes: count,
                batches,
            };
            run(&stage, &plan).with_context(|| format!("{design:?} with {count} processes"))
        };
        let (own, by_other) = (run(Design::Own)?, run(Design::ByOther)?);
        beside(count, batches)?;
        counts.push(Count {
            processes: count,
            loan: own.loan,
            release: own.release,
            loan_after_other: by_other.loan,
            release_by_other: by_other.release,
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

fn run(stage: &Stage, plan: &AllocPlan) -> anyhow::Result<Pair> {
    let members = match plan.design {
        Design::ByOther => 2 * plan.processes,
        Design::Own | Design::Private => plan.processes,
    };
    let geometry = Geometry {
        members,
        samples: timed_operations(plan.batches),
    };
    let board = Board::create(geometry)?;
    let orders = (0..members).map(|member| Orders {
        member,
        geometry,
        config: stage.config.clone(),
        topic: format!(
            "bench/alloc/{}/{}/{:?}",
            plan.processes,
            member % plan.processes,
            plan.design
        ),
        job: match member < plan.processes {
            true => Job::Allocate(plan.clone()),
            false => Job::Release(plan.clone()),
        },
    });
    trial(&board, orders.collect(), plan.processes)
}

/// Returns how many operations of a process are timed one by one: those of every second batch.
pub fn timed_operations(batches: usize) -> usize {
    batches / 2 * BATCH
}

/// Starts members, lets all begin at once, and collects their times. The first `loaners` members loan. The others
/// release; without others, the loaners release too.
pub fn trial<J: MemberJob>(
    board: &Board,
    orders: Vec<MemberOrders<J>>,
    loaners: usize,
) -> anyhow::Result<Pair> {
    let members = orders.len();
    let mut crew = Crew::default();
    for orders in &orders {
        crew.add(orders, board)?;
    }
    let ready = |m: usize| board.field(m, Field::Done).load(Ordering::Acquire) > 0;
    crew.wait_until("all processes", || (0..members).all(ready))?;
    board.line(GO)[0].store(1, Ordering::Release);
    crew.finish()?;
    let releasers = match members > loaners {
        true => loaners..members,
        false => 0..loaners,
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
    let (loan, operations) = nanos(0..loaners, LOANS, Field::Cpu);
    let (release, _) = nanos(releasers, RELEASES, Field::Cpu2);
    Ok(Pair {
        loan,
        release,
        operations,
    })
}

/// A random sequence of block sizes (xorshift), the same for every design.
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

/// Records the times and the CPU time of one kind of operation.
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

    /// Calls `work` for each item. Times each call if `timed`, and otherwise the CPU time of all together.
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

/// An allocator of blocks, as a design under test provides it.
pub trait Blocks {
    /// An allocated block.
    type Block;
    /// Allocates a block of `bytes` bytes.
    fn loan(&mut self, bytes: u64) -> anyhow::Result<Self::Block>;
    /// Gives a block back.
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

struct Private(Tlsf);

impl Blocks for Private {
    type Block = u32;
    fn loan(&mut self, bytes: u64) -> anyhow::Result<u32> {
        let block = self.0.allocate(bytes, rgaps_layout::BLOCK_ALIGN);
        Ok(block.context("the private allocator is full")?.handle)
    }
    fn release(&mut self, block: u32) {
        let freed = self.0.free(block);
        debug_assert!(freed.is_ok());
    }
}

/// Runs a member that loans.
pub(crate) fn allocate(orders: &Orders, plan: &AllocPlan, board: &Board) -> anyhow::Result<()> {
    match plan.design {
        Design::Own => churn(
            orders.member,
            plan.batches,
            board,
            Loans(publisher(orders)?),
        ),
        Design::ByOther => lend(orders, plan, board),
        Design::Private => {
            let mut tlsf = Tlsf::with_blocks(4 * BATCH as u32);
            tlsf.add_region(0, ARENA_BYTES)?;
            churn(orders.member, plan.batches, board, Private(tlsf))
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

fn sizes(member: usize) -> Sizes {
    Sizes(0x2545_f491_4f6c_dd1d + member as u64)
}

/// Runs a member that loans and releases the blocks itself.
pub fn churn<B: Blocks>(
    member: usize,
    batches: usize,
    board: &Board,
    mut blocks: B,
) -> anyhow::Result<()> {
    let mut sizes = sizes(member);
    let mut loans = Record::new(board.data(member, LOANS));
    let mut releases = Record::new(board.data(member, RELEASES));
    let mut batch =
        |sizes: &mut Sizes, timed, loans: &mut Record<'_>, releases: &mut Record<'_>| {
            let wanted: Vec<u64> = (0..BATCH).map(|_| sizes.next()).collect();
            let taken = loans.each(timed, wanted, |bytes| blocks.loan(bytes));
            let mut taken = taken.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
            sizes.shuffle(&mut taken);
            releases.each(timed, taken, |block| blocks.release(block));
            anyhow::Ok(())
        };
    // Two batches that do not count, so that the publisher has leased its memory.
    for timed in [true, false] {
        batch(
            &mut sizes,
            timed,
            &mut Record::new(&[]),
            &mut Record::new(&[]),
        )?;
    }
    wait_for_go(board, member);
    let begun = Instant::now();
    for number in 0..batches {
        batch(&mut sizes, number % 2 == 0, &mut loans, &mut releases)?;
        if begun.elapsed() > TIME_MAX && number % 2 == 1 {
            break;
        }
    }
    publish_records(board, member, &loans, &releases);
    Ok(())
}

fn publish_records(board: &Board, member: usize, loans: &Record<'_>, releases: &Record<'_>) {
    let set = |field, value| board.field(member, field).store(value, Ordering::Release);
    set(Field::Results, loans.count.max(releases.count) as u64);
    set(Field::Cpu, loans.cpu_ns);
    set(Field::Cpu2, releases.cpu_ns);
    set(Field::Operations, loans.operations.max(releases.operations));
}

/// Runs a member that loans and publishes, while another process releases the blocks. It publishes a batch only when
/// the other process has released the last but one, so two batches are out at a time.
fn lend(orders: &Orders, plan: &AllocPlan, board: &Board) -> anyhow::Result<()> {
    let publisher = publisher(orders)?;
    let mut sizes = sizes(orders.member);
    let mut loans = Record::new(board.data(orders.member, LOANS));
    let mut unrecorded = Record::new(&[]);
    anyhow::ensure!(
        publisher.wait_for_subscribers(1, PATIENCE)?,
        "no process that releases has joined"
    );
    wait_for_go(board, orders.member);
    let releaser = orders.member + plan.processes;
    for number in 0..plan.batches + 2 {
        let wanted: Vec<u64> = (0..BATCH).map(|_| sizes.next()).collect();
        // No block has come back yet when the first two batches are loaned.
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
    publish_records(board, orders.member, &loans, &Record::new(&[]));
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

/// Runs a member that releases what another process published. The ring keeps one batch, so once the next batch has
/// been published, this member is the last holder of the previous one, and each release returns a block.
pub(crate) fn release(orders: &Orders, plan: &AllocPlan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-release")?;
    let qos = SubscriberQos {
        reliable: true,
        max_held: 2 * BATCH as u32,
        ..SubscriberQos::default()
    };
    let subscriber = node.subscriber(&orders.topic).qos(qos).create()?;
    let mut releases = Record::new(board.data(orders.member, RELEASES));
    let mut sizes = sizes(orders.member);
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
    publish_records(board, orders.member, &Record::new(&[]), &releases);
    Ok(())
}
