//! The other processes of a benchmark: this program again, with orders on its command line.

use crate::board::{Board, Geometry};
use crate::{alloc, copied, exchange, fanin, handoff, handover, link, path, spread, throughput};
use anyhow::{bail, Context};
use rgaps::Config;
use rustix::process::{set_parent_process_death_signal, Signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How long a member may take for one step before the benchmark gives up.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long a wait spins before it leaves the processor to others.
const SPIN: Duration = Duration::from_micros(50);
/// How long it then sleeps at a time.
const NAP: Duration = Duration::from_micros(50);

/// The jobs that the members of a program do.
pub trait MemberJob: Serialize + DeserializeOwned {
    /// The hidden command of the program that runs a member.
    const COMMAND: &'static str;

    /// Does the job, in the member's process.
    fn run(&self, orders: &MemberOrders<Self>, board: &Board) -> anyhow::Result<()>;
}

/// The orders of a member: JSON on its command line. Its standard input is the board.
#[derive(Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct MemberOrders<J> {
    pub member: usize,
    pub geometry: Geometry,
    pub config: Config,
    pub topic: String,
    pub job: J,
}

/// The orders of a member of `rgaps bench`.
pub(crate) type Orders = MemberOrders<Job>;

/// The jobs of members of `rgaps bench`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Job {
    Listen(exchange::ExchangePlan),
    Publish(fanin::FaninPlan),
    Receive(throughput::ThroughputPlan),
    Allocate(alloc::AllocPlan),
    Release(alloc::AllocPlan),
    Walk(path::PathPlan),
    HandOver(handover::HandoverPlan),
    HandBack(handoff::HandoffPlan),
    Read(spread::SpreadPlan),
    CopyIn(copied::CopiedPlan),
    Become(link::Program),
    Wire(Box<link::WireHost>),
    Subscribe(link::Subscribe),
}

impl MemberJob for Job {
    const COMMAND: &'static str = "bench-member";

    fn run(&self, orders: &Orders, board: &Board) -> anyhow::Result<()> {
        match self {
            Job::Listen(plan) => exchange::listen(orders, plan, board),
            Job::Publish(plan) => fanin::publish(orders, plan, board),
            Job::Receive(plan) => throughput::receive(orders, plan, board),
            Job::Allocate(plan) => alloc::allocate(orders, plan, board),
            Job::Release(plan) => alloc::release(orders, plan, board),
            Job::Walk(plan) => path::walk(orders, plan, board),
            Job::HandOver(plan) => handover::hand_over(orders, plan, board),
            Job::HandBack(plan) => handoff::hand_back(orders, plan, board),
            Job::Read(plan) => spread::read(orders, plan, board),
            Job::CopyIn(plan) => copied::copy_in(orders, plan, board),
            Job::Become(program) => program.become_it(),
            Job::Wire(host) => host.run(orders, board),
            Job::Subscribe(subscribe) => link::subscribe(orders, subscribe, board),
        }
    }
}

/// Runs a member with the orders that are the hidden command's argument.
pub fn member<J: MemberJob>(orders: &str) -> anyhow::Result<()> {
    // The kernel kills this member when the benchmark's process dies.
    set_parent_process_death_signal(Some(Signal::KILL)).context("prctl(PR_SET_PDEATHSIG)")?;
    let orders: MemberOrders<J> =
        serde_json::from_str(orders).context("not meant to be run by hand")?;
    let fd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let board = Board::open(fd, orders.geometry)?;
    orders.job.run(&orders, &board)
}

/// The members that were started. Dropping it kills them.
#[derive(Default)]
pub struct Crew(Vec<Child>);

impl Crew {
    /// Starts a member.
    pub fn add<J: MemberJob>(
        &mut self,
        orders: &MemberOrders<J>,
        board: &Board,
    ) -> anyhow::Result<()> {
        self.add_with(orders, board, &[])
    }

    /// Starts a member with additional variables in its environment.
    pub fn add_with<J: MemberJob>(
        &mut self,
        orders: &MemberOrders<J>,
        board: &Board,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        let child = Command::new(std::env::current_exe()?)
            .arg(J::COMMAND)
            .arg(serde_json::to_string(orders)?)
            .envs(environment.iter().copied())
            .stdin(board.share()?)
            .spawn()
            .context("this program cannot be started again")?;
        self.0.push(child);
        Ok(())
    }

    /// The process id of the member that was added last; 0 if there is none.
    pub fn last_pid(&self) -> u32 {
        self.0.last().map_or(0, Child::id)
    }

    /// Waits until `so` holds; `what` names it in the error. Fails as soon as a member has failed.
    pub fn wait_until(&mut self, what: &str, so: impl Fn() -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut looked = begun;
        while !so() {
            let now = Instant::now();
            if now - begun < SPIN {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(NAP);
            if now - looked > Duration::from_millis(20) {
                looked = now;
                self.check()?;
                anyhow::ensure!(now - begun < PATIENCE, "waited in vain for {what}");
            }
        }
        Ok(())
    }

    /// Fails if a member has failed.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for child in &mut self.0 {
            if let Some(status) = child.try_wait()? {
                if !status.success() {
                    bail!("a process of the benchmark failed ({status}), see above");
                }
            }
        }
        Ok(())
    }

    /// Waits until all members have ended. Fails if one fails.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.0.is_empty() {
            self.check()?;
            self.0
                .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            anyhow::ensure!(
                Instant::now() < deadline,
                "a process of the benchmark does not end"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
