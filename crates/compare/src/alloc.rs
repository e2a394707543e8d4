//! `rgaps-compare alloc`: `rgaps bench alloc`, with one TLSF that all processes share under a semaphore
//! (GAPS's design, the paper's Table I) and under a ticket lock.
//!
//! The processes, their batches and their sizes are those of `rgaps bench alloc`. The allocator's state lies in an
//! area of the board that times do not use. Each lock has lines of the board to itself.

use crate::locks::{Lock, Semaphore, Ticket};
use crate::shared_tlsf::SharedTlsf;
use crate::CompareJob;
use anyhow::Context;
use rgaps::Config;
use rgaps_bench::alloc::{self, Blocks, Count, Pair, Ratio, ARENA_BYTES, BATCH};
use rgaps_bench::board::{Board, Geometry, AREAS};
use rgaps_bench::crew::MemberOrders;
use rgaps_bench::Machine;
use serde::{Deserialize, Serialize};

/// Lines of the board with the words of the locks.
const SEMAPHORE: usize = 3;
const TICKET_NEXT: usize = 4;
const TICKET_SERVING: usize = 5;

/// The lock that the processes share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum SharedLock {
    Semaphore,
    Ticket,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedPlan {
    lock: SharedLock,
    processes: usize,
    batches: usize,
}

/// The printed report: the fields of `rgaps bench alloc`, and two more for each count.
#[derive(Debug, Serialize)]
pub struct AllocComparison {
    batch: usize,
    size_min: u64,
    size_max: u64,
    counts: Vec<ComparedCount>,
    cpu_ratio: Ratio,
    machine: Machine,
}

#[derive(Debug, Serialize)]
struct ComparedCount {
    #[serde(flatten)]
    rgaps: Count,
    semaphore: Pair,
    ticket_lock: Pair,
}

pub fn compare(
    user: &Config,
    processes: &[usize],
    operations: usize,
) -> anyhow::Result<AllocComparison> {
    let mut shared = Vec::new();
    let report = alloc::alloc_beside(user, processes, operations, &mut |processes, batches| {
        let run = |lock| {
            let plan = SharedPlan {
                lock,
                processes,
                batches,
            };
            run(user, &plan).with_context(|| format!("{lock:?} with {processes} processes"))
        };
        shared.push((run(SharedLock::Semaphore)?, run(SharedLock::Ticket)?));
        Ok(())
    })?;
    let counts = report.counts.into_iter().zip(shared);
    let counts = counts.map(|(rgaps, (semaphore, ticket_lock))| ComparedCount {
        rgaps,
        semaphore,
        ticket_lock,
    });
    Ok(AllocComparison {
        batch: report.batch,
        size_min: report.size_min,
        size_max: report.size_max,
        counts: counts.collect(),
        cpu_ratio: report.cpu_ratio,
        machine: report.machine,
    })
}

fn run(user: &Config, plan: &SharedPlan) -> anyhow::Result<Pair> {
    let geometry = Geometry {
        members: plan.processes,
        samples: alloc::timed_operations(plan.batches).max(words(plan)),
    };
    let board = Board::create(geometry)?;
    Semaphore::new(board.line(SEMAPHORE), true);
    shared_tlsf(&board, plan).init(ARENA_BYTES);
    let orders = (0..plan.processes).map(|member| MemberOrders {
        member,
        geometry,
        config: user.clone(),
        topic: String::new(),
        job: CompareJob::Allocate(plan.clone()),
    });
    alloc::trial(&board, orders.collect(), plan.processes)
}

fn words(plan: &SharedPlan) -> usize {
    SharedTlsf::words(plan.processes * BATCH * 2 + 64)
}

/// The allocator, in the first member's last area, into which no times are written.
fn shared_tlsf<'a>(board: &'a Board, plan: &SharedPlan) -> SharedTlsf<'a> {
    SharedTlsf::new(&board.data(0, AREAS - 1)[..words(plan)])
}

/// An allocator that is used under a lock.
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

/// Runs a member that loans and releases blocks of the shared allocator.
pub fn allocate(member: usize, plan: &SharedPlan, board: &Board) -> anyhow::Result<()> {
    let tlsf = shared_tlsf(board, plan);
    match plan.lock {
        SharedLock::Semaphore => {
            let lock = Semaphore::new(board.line(SEMAPHORE), false);
            alloc::churn(member, plan.batches, board, Shared(tlsf, lock))
        }
        SharedLock::Ticket => {
            let lock = Ticket::new(board.line(TICKET_NEXT), board.line(TICKET_SERVING));
            alloc::churn(member, plan.batches, board, Shared(tlsf, lock))
        }
    }
}
