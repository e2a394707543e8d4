//! `bench fanin`: several publishers, one subscriber.
//!
//! In each round all publishers publish one message at the same moment, and the subscriber takes
//! all of them before the next; so a pair's time holds what the others cost it. The floor's
//! rounds are the same with a slot per publisher.

use crate::board::{Board, Field, Geometry};
use crate::contents;
use crate::crew::{Crew, Job, Orders};
use crate::exchange::Wait;
use crate::machine::Machine;
use crate::stage::{node, Stage};
use crate::summary::{Micros, Short};
use rgaps::{Config, Domain, RecvError, Sample, Subscriber, SubscriberQos};
use rgaps_sync::{futex_wait, futex_wake_all, monotonic_ns, spin_hint};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bell that starts a round.
const TURN: usize = 0;
/// Bell of the subscriber, for the floor.
const READER: usize = 1;
/// A pause before each turn, in which the publishers fall asleep on [`TURN`].
const SETTLE: Duration = Duration::from_micros(100);
const RECV_TIMEOUT: Duration = Duration::from_secs(60);

/// The orders of the publishers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaninPlan {
    pub domain: Domain,
    pub size: u64,
    pub rounds: usize,
    pub wait: Wait,
}

/// What `bench fanin` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Fanin {
    pub domain: String,
    pub size: u64,
    pub wait: Wait,
    pub counts: Vec<Count>,
    pub lost: u64,
    pub corrupt: u64,
    pub machine: Machine,
}

/// The results for one number of publishers.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Count {
    pub publishers: usize,
    pub pairs: Vec<Pair>,
    /// The times of all pairs together.
    #[serde(flatten)]
    pub latency: Micros,
    pub floor: Short,
}

/// The results for one publisher and the subscriber.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Pair {
    pub publisher: usize,
    pub messages: usize,
    #[serde(flatten)]
    pub latency: Micros,
    pub floor: Short,
}

/// Times `messages` messages of each publisher, per count of publishers.
pub fn fanin(
    user: &Config,
    domain: Domain,
    size: u64,
    publishers: &[usize],
    messages: usize,
    wait: Wait,
) -> anyhow::Result<Fanin> {
    let machine = Machine::describe();
    let stage = Stage::new(user, domain)?;
    let plan = FaninPlan {
        domain,
        size,
        rounds: messages,
        wait,
    };
    let (mut lost, mut corrupt) = (0, 0);
    let mut counts = Vec::new();
    for &count in publishers {
        let gathered = gather(&stage, &plan, count)?;
        lost += gathered.lost;
        corrupt += gathered.corrupt;
        counts.push(summarise(gathered));
    }
    Ok(Fanin {
        domain: domain.to_string(),
        size,
        wait,
        counts,
        lost,
        corrupt,
        machine,
    })
}

fn summarise(gathered: Gathered) -> Count {
    let pairs = gathered.messages.iter().zip(&gathered.floor).enumerate();
    Count {
        publishers: gathered.messages.len(),
        pairs: pairs
            .map(|(publisher, (messages, floor))| Pair {
                publisher,
                messages: messages.len(),
                latency: Micros::of(messages.clone()),
                floor: Micros::of(floor.clone()).short(),
            })
            .collect(),
        latency: Micros::of(gathered.messages.concat()),
        floor: Micros::of(gathered.floor.concat()).short(),
    }
}

/// Times per publisher, in nanoseconds.
struct Gathered {
    messages: Vec<Vec<u64>>,
    floor: Vec<Vec<u64>>,
    lost: u64,
    corrupt: u64,
}

struct Reader<'a> {
    board: &'a Board,
    plan: &'a FaninPlan,
    subscriber: Subscriber,
    crew: Crew,
    /// Publishers by the random id that their messages carry. `publisher_of` learns them from the messages' contents.
    known: HashMap<u64, usize>,
    gathered: Gathered,
    turn: u32,
}

fn gather(stage: &Stage, plan: &FaninPlan, count: usize) -> anyhow::Result<Gathered> {
    let geometry = Geometry {
        members: count,
        samples: 1,
    };
    let board = Board::create(geometry)?;
    let topic = format!("bench/fanin/{count}");
    let qos = SubscriberQos {
        max_held: count as u32 + 1,
        spin: Duration::ZERO,
        ..SubscriberQos::default()
    };
    let mut reader = Reader {
        board: &board,
        plan,
        subscriber: stage
            .node
            .subscriber(&topic)
            .domain(stage.domain)
            .qos(qos)
            .create()?,
        crew: Crew::default(),
        known: HashMap::new(),
        gathered: Gathered {
            messages: vec![Vec::with_capacity(plan.rounds); count],
            floor: vec![Vec::with_capacity(plan.rounds); count],
            lost: 0,
            corrupt: 0,
        },
        turn: 0,
    };
    for member in 0..count {
        let orders = Orders {
            member,
            geometry,
            config: stage.config.clone(),
            topic: topic.clone(),
            job: Job::Publish(plan.clone()),
        };
        reader.crew.add(&orders, &board)?;
    }
    for round in 0..plan.rounds {
        reader.wait_until_ready()?;
        reader.floor_round();
        reader.wait_until_ready()?;
        reader.message_round(round as u64)?;
    }
    reader.gathered.lost = reader.subscriber.missed();
    reader.crew.finish()?;
    Ok(reader.gathered)
}

impl Reader<'_> {
    /// Waits until all publishers wait for the next turn.
    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let (board, turn) = (self.board, u64::from(self.turn));
        let behind = |m: usize| board.field(m, Field::Done).load(Ordering::Acquire) <= turn;
        self.crew
            .wait_until("a publisher", || !(0..board.members()).any(behind))?;
        std::thread::sleep(SETTLE);
        Ok(())
    }

    fn start_turn(&mut self) {
        self.turn += 1;
        let bell = self.board.bell(TURN);
        bell.store(self.turn, Ordering::Release);
        futex_wake_all(bell);
    }

    fn floor_round(&mut self) {
        self.start_turn();
        let number = u64::from(self.turn);
        let bell = self.board.bell(READER);
        let mut taken = 0u64;
        while taken.count_ones() < self.board.members() as u32 {
            let rings = bell.load(Ordering::Acquire);
            let before = taken;
            for member in 0..self.board.members() {
                if taken >> member & 1 != 0 {
                    continue;
                }
                if let Some(sent_ns) = self.board.slot(member).receive(number) {
                    self.gathered.floor[member].push(monotonic_ns() - sent_ns);
                    taken |= 1 << member;
                }
            }
            if taken != before {
                continue;
            }
            match self.plan.wait {
                Wait::Block => {
                    futex_wait(bell, rings, rgaps_layout::WAIT_SLICE_NS);
                }
                _ => spin_hint(),
            }
        }
    }

    fn message_round(&mut self, round: u64) -> anyhow::Result<()> {
        self.start_turn();
        let count = self.board.members();
        let mut samples: Vec<(Sample, u64)> = Vec::with_capacity(count);
        while samples.len() < count {
            let sample = match self.plan.wait {
                Wait::Block => self.subscriber.recv_timeout(RECV_TIMEOUT)?,
                _ => self.look()?,
            };
            let took = monotonic_ns() - sample.publish_ns();
            samples.push((sample, took));
        }
        for (sample, took) in samples {
            let publisher = self.publisher_of(&sample, round)?;
            match publisher {
                Some(publisher) => self.gathered.messages[publisher].push(took),
                None => self.gathered.corrupt += 1,
            }
        }
        Ok(())
    }

    fn look(&self) -> anyhow::Result<Sample> {
        let begun = monotonic_ns();
        loop {
            if let Some(sample) = self.subscriber.try_recv()? {
                return Ok(sample);
            }
            if monotonic_ns() - begun > RECV_TIMEOUT.as_nanos() as u64 {
                return Err(RecvError::TimedOut(self.subscriber.topic().to_owned()).into());
            }
        }
    }

    /// Returns the publisher of the message, or None if its bytes are not those of any publisher in this round.
    fn publisher_of(&mut self, sample: &Sample, round: u64) -> anyhow::Result<Option<usize>> {
        let candidates = match self.known.get(&sample.publisher_id()) {
            Some(publisher) => *publisher..*publisher + 1,
            None => 0..self.board.members(),
        };
        for publisher in candidates {
            let seed = contents::seed(publisher as u64, round);
            if contents::verify(sample, seed, self.plan.size)? && sample.sequence() == round {
                self.known.insert(sample.publisher_id(), publisher);
                return Ok(Some(publisher));
            }
        }
        Ok(None)
    }
}

/// Runs a publisher.
pub fn publish(orders: &Orders, plan: &FaninPlan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-publisher")?;
    let publisher = node
        .publisher(&orders.topic)
        .domain(plan.domain)
        .keep_last(2)
        .create()?;
    let member = orders.member as u64;
    let mut turn = 0;
    for round in 0..plan.rounds {
        turn = wait_for_turn(board, orders.member, turn);
        board
            .slot(orders.member)
            .send(u64::from(turn), monotonic_ns());
        if plan.wait == Wait::Block {
            let bell = board.bell(READER);
            bell.fetch_add(1, Ordering::Release);
            futex_wake_all(bell);
        }
        let mut loan = publisher.loan(plan.size)?;
        contents::fill(&mut loan, contents::seed(member, round as u64))?;
        turn = wait_for_turn(board, orders.member, turn);
        loan.publish().map_err(|unpublished| unpublished.error)?;
    }
    // The daemon keeps the messages of a publisher that left until they are read.
    Ok(())
}

/// Reports that this publisher is ready, and waits for the turn after `last`.
fn wait_for_turn(board: &Board, member: usize, last: u32) -> u32 {
    board
        .field(member, Field::Done)
        .store(u64::from(last) + 1, Ordering::Release);
    let bell = board.bell(TURN);
    loop {
        let turn = bell.load(Ordering::Acquire);
        if turn != last {
            return turn;
        }
        futex_wait(bell, turn, rgaps_layout::WAIT_SLICE_NS);
    }
}
