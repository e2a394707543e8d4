//! The benchmark's own process: it starts the hosts and members, publishes, commands the floor and makes the report.

use super::hosts::{cpu_ns, sent_bytes, Hosts, Wanted};
use super::report::{Cpu, LinkReport, Stages};
use super::subscribe::{BURSTS, DUPLICATE, HOPS, LET_GO, MESSAGES};
use super::wire::{CommandKind, FloorBytes, WireHost, WireLanes, SOURCE};
use super::{bell, LinkOptions, LinkPlan, Subscribe, GROWING, LANES_MAX, SUBSCRIBERS_MAX, WARM_UP};
use crate::board::{Board, Field, Geometry, AREAS};
use crate::contents;
use crate::crew::{Crew, Job, Orders, PATIENCE};
use crate::exchange::{self, Wait};
use crate::gpu::{CopyMemory, Gpu};
use crate::machine::Machine;
use crate::stage::{node, Stage};
use crate::summary::{at, median, round, Micros};
use anyhow::Context;
use rgaps::{Config, Domain, Loan, Publisher, PublisherQos, Stream};
use rgaps_sync::{futex_wait, monotonic_ns};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Round trips of small messages over bare TCP in each round.
const ROUND_TRIPS: u64 = 200;
/// How long the publishers wait for the paths to the subscribers, and for a loan.
const SOON: Duration = Duration::from_secs(30);
/// Pause before each message and hop, so that blocking subscribers have gone to sleep.
const SETTLE: Duration = Duration::from_micros(200);
/// Copies that time a stage alone; fewer if they would copy more than [`COPY_BYTES`].
const COPIES: u64 = 10;
const COPY_BYTES: u64 = 16 << 30;
/// Messages that time the notification of subscribers alone.
const NOTICES: usize = 200;

/// Measures a link.
pub fn link(user: &Config, options: &LinkOptions) -> anyhow::Result<LinkReport> {
    link_beside(user, options, &mut |_| Ok(()))
}

/// A round, for a caller of [`link_beside`]. It measures another design, with processes of its own, between the hops of
/// the floor and the messages.
#[allow(missing_docs)] // the names say it
pub struct Round<'a> {
    pub plan: &'a LinkPlan,
    pub hosts: &'a Hosts,
    pub number: u64,
    /// The board with the floor's messages, which nobody else uses meanwhile.
    pub bytes: &'a Board,
    /// How another process opens `bytes`.
    pub shared: &'a FloorBytes,
}

/// Measures a link, and calls `beside` in every round.
pub fn link_beside(
    user: &Config,
    options: &LinkOptions,
    beside: &mut dyn FnMut(&Round<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<LinkReport> {
    check(options)?;
    let machine = Machine::describe();
    let pool_bytes = match options.domain {
        Domain::Host => user.pool.host.cap_bytes(),
        Domain::Cuda(_) => user.pool.cuda.cap.map_or(u64::MAX, |cap| cap.0),
    };
    let plan = LinkPlan::new(options, machine.memory_bytes, pool_bytes);
    let hosts = Hosts::start(
        user,
        &Wanted {
            size: plan.size,
            held: 2 * plan.round_bytes(),
            lanes: plan.lanes,
            tls: options.tls,
            rdma: options.rdma,
            namespaces: options.namespaces,
        },
    )?;
    let singles = (plan.rounds * plan.single) as usize;
    let geometry = Geometry {
        members: plan.members() + 2,
        samples: singles.max(ROUND_TRIPS as usize).max(plan.rounds as usize),
    };
    let region = (plan.slots * plan.slot_bytes()) as usize;
    let bytes_geometry = Geometry {
        members: 2,
        samples: region.div_ceil(8 * AREAS) + 8,
    };
    let board = Board::create(geometry)?;
    let bytes = Board::create(bytes_geometry)?;
    let fd = bytes.share()?;
    let shared = FloorBytes {
        path: format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()).into(),
        geometry: bytes_geometry,
    };
    let mut measure = Measure::new(options, &plan, &board, &bytes, geometry);
    measure.start(&hosts, &shared)?;
    measure.publishers(&hosts.a.config)?;
    for number in 0..plan.rounds {
        measure.round(
            &Round {
                plan: &plan,
                hosts: &hosts,
                number,
                bytes: &bytes,
                shared: &shared,
            },
            beside,
        )?;
    }
    measure.report(user, hosts, machine)
}

fn check(options: &LinkOptions) -> anyhow::Result<()> {
    anyhow::ensure!(options.size > 0, "a message has bytes");
    anyhow::ensure!(
        (1..=LANES_MAX as u32).contains(&options.lanes),
        "--lanes is 1 to {LANES_MAX}"
    );
    anyhow::ensure!(
        options.subscribers * options.topics <= SUBSCRIBERS_MAX,
        "at most {SUBSCRIBERS_MAX} subscribers of all topics together"
    );
    Ok(())
}

struct Measure<'a> {
    options: &'a LinkOptions,
    plan: &'a LinkPlan,
    board: &'a Board,
    bytes: &'a Board,
    geometry: Geometry,
    crew: Crew,
    lanes: WireLanes<'a>,
    gpu: Option<Gpu>,
    publishers: Vec<Publisher>,
    /// The counts that the subscribers of the first topic, and those of the others, must reach in [`Field::Done`] before
    /// the next step.
    done: [u64; 2],
    /// The next message's tag, for each topic.
    tags: Vec<u64>,
    /// When each timed message, each timed hop and each burst began.
    published: Vec<u64>,
    hopped: Vec<u64>,
    bursts: Vec<u64>,
    /// How long each loan took.
    loans: Vec<u64>,
    /// Half of each round trip over bare TCP.
    round_trips: Vec<u64>,
    /// Gbit/s of bare TCP, and of bare TLS, in each round.
    raw: Vec<f64>,
    raw_tls: Vec<f64>,
    /// How long one message over bare TCP took, in each round.
    raw_one: Vec<u64>,
    /// Bytes that the publishing host sent during bursts.
    wire_bytes: u64,
    /// CPU time during bursts, as [`spent`] returns it.
    cpu: [u64; 3],
}

impl<'a> Measure<'a> {
    fn new(
        options: &'a LinkOptions,
        plan: &'a LinkPlan,
        board: &'a Board,
        bytes: &'a Board,
        geometry: Geometry,
    ) -> Self {
        Measure {
            options,
            plan,
            board,
            bytes,
            geometry,
            crew: Crew::default(),
            lanes: WireLanes::new(board, plan),
            gpu: None,
            publishers: Vec::new(),
            done: [1, 1],
            tags: vec![0; plan.topics],
            published: Vec::new(),
            hopped: Vec::new(),
            bursts: Vec::new(),
            loans: Vec::new(),
            round_trips: Vec::new(),
            raw: Vec::new(),
            raw_tls: Vec::new(),
            raw_one: Vec::new(),
            wire_bytes: 0,
            cpu: [0; 3],
        }
    }

    fn wire_member(&self, listens: bool) -> usize {
        self.plan.members() + usize::from(listens)
    }

    fn start(&mut self, hosts: &Hosts, shared: &FloorBytes) -> anyhow::Result<()> {
        for listens in [true, false] {
            let host = if listens { &hosts.b } else { &hosts.a };
            let wire = WireHost {
                plan: self.plan.clone(),
                listens,
                netns: host.netns.clone(),
                address: hosts.b.address,
                certificates: hosts.certificates.clone().map(|[a, b]| [b, a]),
                bytes: shared.clone(),
            };
            self.add(
                self.wire_member(listens),
                &host.config,
                Job::Wire(Box::new(wire)),
            )?;
        }
        for member in 0..self.plan.members() {
            let subscribe = Subscribe {
                plan: self.plan.clone(),
                bytes: shared.clone(),
            };
            self.add(member, &hosts.b.config, Job::Subscribe(subscribe))?;
        }
        self.wait_for("all processes", |m| {
            let all = 0..m.geometry.members;
            all.clone().all(|member| m.has_done(member, 1))
        })
    }

    fn add(&mut self, member: usize, config: &Config, job: Job) -> anyhow::Result<()> {
        let orders = Orders {
            member,
            geometry: self.geometry,
            config: config.clone(),
            topic: String::new(),
            job,
        };
        self.crew.add(&orders, self.board)
    }

    fn publishers(&mut self, config: &Config) -> anyhow::Result<()> {
        let node = node(config, "rgaps-bench-link")?;
        for topic in 0..self.plan.topics {
            let messages = self.plan.per_round(topic) as u32;
            let qos = PublisherQos {
                max_loans: messages,
                loan_timeout: SOON,
                deadline: PATIENCE,
                ..PublisherQos::default()
            };
            let publisher = node
                .publisher(&self.plan.name(topic))
                .domain(self.plan.domain)
                .qos(qos)
                .keep_last(messages)
                .create()?;
            self.publishers.push(publisher);
        }
        for publisher in &self.publishers {
            let count = self.plan.subscribers as u32;
            anyhow::ensure!(
                publisher.wait_for_subscribers(count, SOON)?,
                "the path to {count} subscribers of '{}' was not ready within {} s; there are {}",
                publisher.topic(),
                SOON.as_secs(),
                publisher.subscribers()
            );
        }
        if self.plan.size % 8 == 0 {
            self.gpu = Gpu::of(self.plan.domain)?;
        }
        Ok(())
    }

    fn has_done(&self, member: usize, count: u64) -> bool {
        self.board
            .field(member, Field::Done)
            .load(Ordering::Acquire)
            >= count
    }

    /// Sleeps until `so` holds. Every process that changes the board rings the bell.
    fn wait_for(&mut self, what: &str, so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let rings = self.board.bell(bell::MAIN).load(Ordering::Acquire);
            if so(self) {
                return Ok(());
            }
            futex_wait(self.board.bell(bell::MAIN), rings, 20_000_000);
            if begun.elapsed() > Duration::from_millis(20) {
                self.crew.check()?;
                anyhow::ensure!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
            }
        }
    }

    /// Waits until the subscribers of the first topic, or all, have finished one more step.
    fn subscribers(&mut self, all: bool) -> anyhow::Result<()> {
        self.done[0] += 1;
        self.done[1] += u64::from(all);
        self.wait_for("a subscriber", |m| {
            (0..m.plan.members()).all(|member| {
                let first = m.plan.topic(member) == 0;
                m.has_done(member, m.done[usize::from(!first)])
            })
        })
    }

    fn settle(&self) {
        if self.plan.wait == Wait::Block {
            std::thread::sleep(SETTLE);
        }
    }

    fn wires(&mut self) -> anyhow::Result<()> {
        self.wait_for("the floor's connections", |m| m.lanes.is_done())
    }

    fn round(
        &mut self,
        round: &Round<'_>,
        beside: &mut dyn FnMut(&Round<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let plan = self.plan;
        let counts = round.number >= GROWING;
        let mut alone = Vec::new();
        for index in 0..plan.alone(0) {
            alone.push(self.filled(0, plan.bytes(0, index))?);
        }
        let mut bursts = Vec::new();
        for topic in 0..plan.topics {
            for _ in 0..plan.burst {
                bursts.push((topic, self.filled(topic, plan.size)?));
            }
        }
        if let Some(gpu) = &self.gpu {
            gpu.finish("the messages' bytes")?;
        }
        for hop in 0..plan.hops() {
            self.hop(round.number * plan.hops() + hop + 1, hop >= WARM_UP)?;
        }
        beside(round)?;
        self.raw(round.number, counts)?;
        for (index, loan) in alone.into_iter().enumerate() {
            self.settle();
            let begun = monotonic_ns();
            publish(loan)?;
            if index as u64 >= WARM_UP {
                self.published.push(begun);
            }
            self.subscribers(false)?;
        }
        self.burst(round.hosts, bursts, counts)?;
        self.board.line(LET_GO)[0].store(round.number + 1, Ordering::Release);
        self.subscribers(true)
    }

    fn filled(&mut self, topic: usize, bytes: u64) -> anyhow::Result<Loan> {
        let begun = monotonic_ns();
        let mut loan = self.publishers[topic].loan(bytes)?;
        if bytes == self.plan.size {
            self.loans.push(monotonic_ns() - begun);
        }
        let tag = self.tags[topic];
        self.tags[topic] += 1;
        loan.set_tag(tag);
        let seed = contents::seed(topic as u64, tag);
        match &self.gpu {
            Some(gpu) => gpu.fill(&mut loan, seed)?,
            None => contents::fill(&mut loan, seed)?,
        }
        Ok(loan)
    }

    fn fill_source(&self, slot: u64, number: u64) {
        let at = self.bytes.data_offset(SOURCE, 0) + slot * self.plan.slot_bytes();
        let seed = contents::seed(number, slot);
        self.bytes
            .bytes(at, self.plan.size, |bytes| contents::make(seed, 0, bytes));
    }

    fn hop(&mut self, number: u64, counts: bool) -> anyhow::Result<()> {
        self.fill_source(0, number);
        self.settle();
        let begun = monotonic_ns();
        self.lanes
            .command(CommandKind::Hop, number, 1, self.options.tls, begun);
        if counts {
            self.hopped.push(begun);
        }
        self.subscribers(false)?;
        self.wires()
    }

    /// Measures bare TCP, and bare TLS if the link is encrypted: round trips, one message, as many messages as a burst.
    fn raw(&mut self, round: u64, counts: bool) -> anyhow::Result<()> {
        let number = round + 1;
        for slot in 0..self.plan.slots {
            self.fill_source(slot, number);
        }
        self.lanes
            .command(CommandKind::RoundTrip, number, ROUND_TRIPS, false, 0);
        self.wires()?;
        let member = self.wire_member(false);
        let halves = self.board.results(member, 0, ROUND_TRIPS as usize);
        let count = self.plan.burst * self.plan.topics as u64;
        let rate = |took: u64| (count * self.plan.size * 8) as f64 / took.max(1) as f64;
        self.lanes.command(CommandKind::Rate, number, 1, false, 0);
        self.wires()?;
        let one = self.lanes.took_ns(false);
        self.lanes
            .command(CommandKind::Rate, number, count, false, 0);
        self.wires()?;
        let plain = rate(self.lanes.took_ns(false));
        if self.options.tls {
            self.lanes
                .command(CommandKind::Rate, number, count, true, 0);
            self.wires()?;
            if counts {
                self.raw_tls.push(rate(self.lanes.took_ns(true)));
            }
        }
        if counts {
            self.round_trips.extend(halves);
            self.raw_one.push(one);
            self.raw.push(plain);
        }
        Ok(())
    }

    /// Publishes the messages of a burst without a pause, the topics in turn.
    fn burst(
        &mut self,
        hosts: &Hosts,
        loans: Vec<(usize, Loan)>,
        counts: bool,
    ) -> anyhow::Result<()> {
        let mut topics: Vec<_> = (0..self.plan.topics).map(|_| Vec::new()).collect();
        loans
            .into_iter()
            .for_each(|(topic, loan)| topics[topic].push(loan));
        let mut queues: Vec<_> = topics.into_iter().map(Vec::into_iter).collect();
        let before = (spent(hosts), sent_bytes(hosts.a.daemon, hosts.cable));
        self.settle();
        self.bursts.push(monotonic_ns());
        for _ in 0..self.plan.burst {
            for queue in &mut queues {
                publish(queue.next().context("a loan for each message")?)?;
            }
        }
        self.subscribers(true)?;
        let after = (spent(hosts), sent_bytes(hosts.a.daemon, hosts.cable));
        if counts {
            self.wire_bytes += after.1 - before.1;
            for (sum, (now, then)) in self.cpu.iter_mut().zip(after.0.into_iter().zip(before.0)) {
                *sum += now.saturating_sub(then);
            }
        }
        Ok(())
    }

    /// How long messages or hops took, for each of the first topic's subscribers.
    fn times(&self, area: usize, begun: &[u64], part: Range<usize>) -> Vec<Vec<u64>> {
        let since = |member| {
            let ended = self.board.results(member, area, begun.len());
            let took = ended.iter().zip(begun);
            let took = took.map(|(ended, begun)| ended.saturating_sub(*begun));
            took.skip(part.start).take(part.len()).collect()
        };
        (0..self.plan.subscribers).map(since).collect()
    }

    /// The median rate of bursts of `burst_bytes` bytes.
    fn gbit_s(&self, burst_bytes: u64) -> f64 {
        let rounds = self.plan.rounds as usize;
        let rate = |round: usize| {
            let ended = |member| self.board.results(member, BURSTS, rounds)[round];
            let ended = (0..self.plan.members()).map(ended).max().unwrap_or(0);
            (burst_bytes * 8) as f64 / ended.saturating_sub(self.bursts[round]).max(1) as f64
        };
        median((GROWING as usize..rounds).map(rate).collect())
    }

    fn stages(&self, user: &Config) -> anyhow::Result<Stages> {
        let (d2h_us, h2d_us) = copies_alone(self.plan)?;
        Ok(Stages {
            alloc_us: median_us(self.loans.clone()),
            d2h_us,
            wire_us: median_us(self.raw_one.clone()),
            h2d_us,
            notify_us: round(notice_alone(user, self.plan)?, 3),
        })
    }

    fn cpu_per_gb(&self, payload_bytes: u64) -> Cpu {
        let per_gb = |ns: u64| round(ns as f64 / payload_bytes as f64, 4);
        Cpu {
            daemons_s_per_gb: per_gb(self.cpu[0]),
            sending_links_s_per_gb: per_gb(self.cpu[1]),
            landing_links_s_per_gb: per_gb(self.cpu[2]),
        }
    }

    /// The sum of a field over all processes.
    fn sum(&self, field: Field) -> u64 {
        (0..self.geometry.members)
            .map(|member| self.board.field(member, field).load(Ordering::Acquire))
            .sum()
    }

    fn report(
        mut self,
        user: &Config,
        hosts: Hosts,
        machine: Machine,
    ) -> anyhow::Result<LinkReport> {
        let plan = self.plan;
        // The subscribers count once more when they have looked for duplicates.
        self.subscribers(true)?;
        let growing = (GROWING * plan.single) as usize;
        let messages = self.times(MESSAGES, &self.published, growing..self.published.len());
        let fresh = self.times(MESSAGES, &self.published, 0..growing);
        let hops = self.times(HOPS, &self.hopped, growing..self.hopped.len());
        let latency = Micros::of(last(&messages));
        let floor = Micros::of(last(&hops)).short();
        let payload_bytes = plan.size * plan.burst * plan.topics as u64;
        let gbit_s = self.gbit_s(payload_bytes);
        let raw = median(self.raw.clone());
        let raw_tls = self.options.tls.then(|| median(self.raw_tls.clone()));
        let stages = self.stages(user)?;
        let payload_bytes = payload_bytes * (plan.rounds - GROWING);
        Ok(LinkReport {
            transport: self.options.transport(),
            domain: plan.domain.to_string(),
            to: plan.to.to_string(),
            size: plan.size,
            subscribers: plan.subscribers,
            lanes: plan.lanes,
            topics: plan.topics,
            tls: self.options.tls,
            wait: plan.wait,
            namespaces: hosts.cable,
            without_namespaces: hosts.why.clone(),
            messages: messages[0].len(),
            each: Micros::of(messages.concat()).short(),
            of_floor: ratio(latency.p50_us, floor.p50_us),
            fresh_us: median_us(last(&fresh)),
            floor_us: floor.p50_us,
            floor,
            gbit_s: round(gbit_s, 3),
            messages_per_s: round(gbit_s * 1e9 / 8.0 / plan.size as f64, 1),
            burst: plan.burst,
            raw_tcp_gbit_s: round(raw, 3),
            of_raw_tcp: ratio(gbit_s, raw),
            of_raw_tls: raw_tls.map(|raw| ratio(gbit_s, raw)),
            raw_tls_gbit_s: raw_tls.map(|raw| round(raw, 3)),
            raw_tcp_half_rtt_us: median_us(self.round_trips.clone()),
            of_slowest_stage: ratio(latency.p50_us, stages.slowest_us()),
            stages,
            latency,
            wire_bytes: self.wire_bytes,
            payload_bytes,
            wire_of_payload: round(self.wire_bytes as f64 / payload_bytes as f64, 5),
            cpu: self.cpu_per_gb(payload_bytes),
            lost: self.sum(Field::Lost),
            duplicate: self.sum(DUPLICATE),
            corrupt: self.sum(Field::Corrupt),
            machine,
        })
    }
}

/// Returns how long each message took to the last subscriber.
fn last(times: &[Vec<u64>]) -> Vec<u64> {
    let of = |at: usize| times.iter().map(|times| times[at]).max().unwrap_or(0);
    (0..times[0].len()).map(of).collect()
}

fn ratio(a: f64, b: f64) -> f64 {
    round(a / b.max(1e-9), 3)
}

fn median_us(mut ns: Vec<u64>) -> f64 {
    ns.sort_unstable();
    round(at(&ns, 0.5) as f64 / 1e3, 3)
}

fn publish(loan: Loan) -> anyhow::Result<()> {
    // `round` has waited for the kernels that fill the messages.
    loan.publish_on(Stream::NONE)
        .map_err(|unpublished| unpublished.error)?;
    Ok(())
}

/// CPU time in nanoseconds of both daemons together, of the sending host's links, of the receiving host's links.
fn spent(hosts: &Hosts) -> [u64; 3] {
    [
        cpu_ns(hosts.a.daemon) + cpu_ns(hosts.b.daemon),
        cpu_ns(hosts.a.links),
        cpu_ns(hosts.b.links),
    ]
}

/// Medians in microseconds of a bare copy from the publisher's domain to pinned memory, and of one from there to the
/// subscribers' domain.
fn copies_alone(plan: &LinkPlan) -> anyhow::Result<(f64, f64)> {
    Ok((
        copy_alone(plan, plan.domain, true)?,
        copy_alone(plan, plan.to, false)?,
    ))
}

fn copy_alone(plan: &LinkPlan, domain: Domain, is_down: bool) -> anyhow::Result<f64> {
    let Some(gpu) = Gpu::of(domain)? else {
        return Ok(0.0);
    };
    let device = CopyMemory::new(domain, &gpu, plan.size)?;
    let pinned = CopyMemory::new(Domain::Host, &gpu, plan.size)?;
    let time = |to: &CopyMemory, from: &CopyMemory| -> anyhow::Result<f64> {
        let mut took = Vec::new();
        for _ in 0..COPIES.min(COPY_BYTES / plan.size).max(2) {
            let begun = monotonic_ns();
            gpu.copy_between(to, from, plan.size)?;
            gpu.finish("a bare copy")?;
            took.push((monotonic_ns() - begun) as f64 / 1e3);
        }
        Ok(round(median(took), 3))
    };
    match is_down {
        true => time(&pinned, &device),
        false => time(&device, &pinned),
    }
}

/// Median latency in microseconds of a small message to as many subscribers on one host.
fn notice_alone(user: &Config, plan: &LinkPlan) -> anyhow::Result<f64> {
    let stage = Stage::new(user, Domain::Host)?;
    let outcome = exchange::run(
        &stage,
        "bench/notice",
        &exchange::ExchangePlan {
            size: 64,
            messages: NOTICES,
            wait: plan.wait,
            subscribers: plan.subscribers,
            domain: Domain::Host,
            kernel_ns: 0,
            pause_ns: 0,
            on_stream: false,
            header_bytes: 0,
        },
    )?;
    Ok(Micros::of(outcome.messages.concat()).p50_us)
}
