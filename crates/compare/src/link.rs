//! `rgaps-compare link`: `rgaps bench link`, and in turns with it two designs without rgaps, on the same two hosts and in
//! the same memory: RGAPS's order of stages, and the baseline with which the thesis compares RGAPS.

use crate::device::Device;
use crate::staged::{self, Schedule, StageOrder, StagedHost, StagedSubscriber, TIMES};
use crate::CompareJob;
use anyhow::Context;
use rgaps::Config;
use rgaps_bench::board::{Board, Field, Geometry};
use rgaps_bench::crew::{Crew, MemberOrders, PATIENCE};
use rgaps_bench::link::{link_beside, Round, GROWING, SOURCE};
use rgaps_bench::summary::{median, round};
use rgaps_bench::{LinkOptions, LinkReport, Wait};
use rgaps_sync::{futex_wait, monotonic_ns};
use serde::Serialize;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most messages of a design in a round.
const MESSAGES_MAX: u64 = 8;
/// Pause before each message, so that blocking subscribers have gone to sleep.
const SETTLE: Duration = Duration::from_micros(200);

/// The printed report: the fields of `rgaps bench link`, and `thesis`.
#[derive(Debug, Serialize)]
pub struct LinkComparison {
    #[serde(flatten)]
    link: LinkReport,
    thesis: Thesis,
}

impl LinkComparison {
    /// Fails unless every message arrived once and with the right bytes: otherwise the figures do not count.
    pub fn is_valid(&self) -> anyhow::Result<()> {
        let (lost, corrupt) = (self.link.lost + self.link.duplicate, self.link.corrupt);
        anyhow::ensure!(
            lost == 0 && corrupt == 0,
            "{lost} messages were lost or repeated and {corrupt} had wrong contents, so the figures are not valid"
        );
        Ok(())
    }
}

/// Medians of both designs, in microseconds.
#[derive(Debug, Serialize)]
struct Thesis {
    messages: usize,
    /// From the start of the first copy until the last subscriber has its bytes on the GPU.
    baseline_us: f64,
    /// The same with the mean of all subscribers instead of the last one, as in the thesis.
    baseline_mean_us: f64,
    baseline_stages: BaselineStages,
    series_us: f64,
    series_mean_us: f64,
    series_stages: SeriesStages,
    /// The designs' medians divided by the median latency of rgaps.
    baseline_of_rgaps: f64,
    series_of_rgaps: f64,
}

#[derive(Debug, Serialize)]
struct BaselineStages {
    d2h_pageable_us: f64,
    unix_socket_us: f64,
    wire_us: f64,
    /// The copy of each subscriber to its own memory on the GPU.
    h2d_each_us: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct SeriesStages {
    d2h_pinned_us: f64,
    wire_us: f64,
    h2d_once_us: f64,
}

pub fn compare(user: &Config, options: &LinkOptions) -> anyhow::Result<LinkComparison> {
    let mut staged: Option<Staged> = None;
    let mut link = link_beside(user, options, &mut |round| {
        if staged.is_none() {
            staged = Some(Staged::start(round)?);
        }
        staged.as_mut().context("it has just begun")?.round(round)
    })?;
    let staged = staged.context("there were no rounds")?;
    link.corrupt += staged.corrupt();
    let thesis = staged.report(link.latency.p50_us);
    Ok(LinkComparison { link, thesis })
}

/// When a message began, and when its stages ended.
#[derive(Clone, Copy, Debug)]
struct StageTimes {
    begun_ns: u64,
    /// The copy from the GPU ended.
    copied_ns: u64,
    /// The first connection began to send.
    sending_ns: u64,
    /// The message was in shared memory of the other host.
    crossed_ns: u64,
    /// The message was on the other host's GPU. Only in RGAPS's order.
    on_gpu_ns: u64,
}

/// The processes of both designs on two hosts, and the benchmark's part.
struct Staged {
    schedule: Schedule,
    board: Board,
    crew: Crew,
    device: Device,
    bytes: Board,
    private: Vec<u8>,
    unix: UnixStream,
    series: Vec<StageTimes>,
    baseline: Vec<StageTimes>,
    answers: u64,
    done: u64,
}

impl Staged {
    fn start(round: &Round<'_>) -> anyhow::Result<Staged> {
        let (plan, hosts) = (round.plan, round.hosts);
        let schedule = Schedule {
            plan: plan.clone(),
            messages: plan.single.min(MESSAGES_MAX),
        };
        let geometry = Geometry {
            members: plan.subscribers + 2,
            samples: 3 * schedule.total() as usize,
        };
        let board = Board::create(geometry)?;
        let socket = hosts.folder.path().join("baseline.sock");
        let host = |listens| {
            let host = if listens { &hosts.b } else { &hosts.a };
            let job = StagedHost {
                schedule: schedule.clone(),
                listens,
                netns: host.netns.clone(),
                address: hosts.b.address,
                bytes: round.shared.clone(),
                socket: socket.clone(),
            };
            (&host.config, CompareJob::from(job))
        };
        let subscriber = || StagedSubscriber {
            schedule: schedule.clone(),
            bytes: round.shared.clone(),
        };
        let subscribers =
            (0..plan.subscribers).map(|_| (&hosts.b.config, CompareJob::Subscribe(subscriber())));
        let jobs = subscribers.chain([host(true), host(false)]);
        let mut crew = Crew::default();
        for (member, (config, job)) in jobs.enumerate() {
            let orders = MemberOrders {
                member,
                geometry,
                config: config.clone(),
                topic: String::new(),
                job,
            };
            crew.add(&orders, &board)?;
        }
        let ready = |member| board.field(member, Field::Done).load(Ordering::Acquire) > 0;
        crew.wait_until("all processes", || (0..geometry.members).all(ready))?;
        let bytes = round.shared.open()?;
        let unix = UnixStream::connect(socket)?;
        Ok(Staged {
            device: Device::pinned(plan.domain, plan.size, &bytes)?,
            bytes,
            private: vec![0; plan.size as usize],
            unix,
            schedule,
            board,
            crew,
            series: Vec::new(),
            baseline: Vec::new(),
            answers: 0,
            done: 1,
        })
    }

    fn round(&mut self, round: &Round<'_>) -> anyhow::Result<()> {
        staged::begin_round(&self.board, round.number, round.plan.subscribers);
        self.wait_for_subscribers()?;
        for order in [StageOrder::Series, StageOrder::Baseline] {
            for index in 0..self.schedule.messages {
                let number = self.schedule.number(round.number, order, index);
                self.device.fill(staged::seed(number))?;
                if round.plan.wait == Wait::Block {
                    std::thread::sleep(SETTLE);
                }
                let times = self.message(order, number)?;
                match order {
                    StageOrder::Series => self.series.push(times),
                    StageOrder::Baseline => self.baseline.push(times),
                }
            }
        }
        Ok(())
    }

    fn message(&mut self, order: StageOrder, number: u64) -> anyhow::Result<StageTimes> {
        let begun_ns = monotonic_ns();
        match order {
            StageOrder::Series => {
                let to = self.bytes.data_offset(SOURCE, 0);
                self.device.copy_out(&self.bytes, to)?;
            }
            StageOrder::Baseline => self.device.copy_out_pageable(&mut self.private)?,
        }
        let copied_ns = monotonic_ns();
        self.answers += staged::command(&self.board, &self.schedule, order, number);
        if order == StageOrder::Baseline {
            for chunk in self.private.chunks(1 << 20) {
                self.unix.write_all(chunk)?;
            }
        }
        self.wait_for_subscribers()?;
        let answers = self.answers;
        self.wait_until("the hosts' processes", |board| {
            staged::answers(board) >= answers
        })?;
        let [sending_ns, crossed_ns, on_gpu_ns] = staged::stamps(&self.board);
        Ok(StageTimes {
            begun_ns,
            copied_ns,
            sending_ns,
            crossed_ns,
            on_gpu_ns,
        })
    }

    /// Waits until each subscriber has finished one more step.
    fn wait_for_subscribers(&mut self) -> anyhow::Result<()> {
        self.done += 1;
        let (done, subscribers) = (self.done, self.schedule.plan.subscribers);
        self.wait_until("a subscriber", |board| {
            (0..subscribers)
                .all(|member| board.field(member, Field::Done).load(Ordering::Acquire) >= done)
        })
    }

    /// Sleeps until `is_so` holds. Every process that changes the board rings the bell.
    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Board) -> bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        let bell = self.board.bell(staged::MAIN_BELL);
        loop {
            let rings = bell.load(Ordering::Acquire);
            if is_so(&self.board) {
                return Ok(());
            }
            futex_wait(bell, rings, 20_000_000);
            if begun.elapsed() > Duration::from_millis(20) {
                self.crew.check()?;
                anyhow::ensure!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
            }
        }
    }

    fn corrupt(&self) -> u64 {
        let of = |member| {
            self.board
                .field(member, Field::Corrupt)
                .load(Ordering::Acquire)
        };
        (0..self.board.members()).map(of).sum()
    }

    /// Makes the report, without the first [`GROWING`] rounds. `p50_us` is the median latency of rgaps.
    fn report(&self, p50_us: f64) -> Thesis {
        let all = self.schedule.total() as usize;
        let growing = (GROWING * self.schedule.messages) as usize;
        let own: Vec<Vec<u64>> = (0..self.schedule.plan.subscribers)
            .map(|member| self.board.results(member, TIMES, 3 * all))
            .collect();
        // Medians of the last subscriber's time and of the mean time, from part `part` of each subscriber's results.
        let ended = |times: &[StageTimes], part: usize| {
            let took = |at: usize| {
                own.iter()
                    .map(move |own| own[part * all + at].saturating_sub(times[at].begun_ns))
            };
            let last = |at: usize| took(at).max().unwrap_or(0);
            let mean = |at: usize| took(at).sum::<u64>() / own.len().max(1) as u64;
            (
                median_us((growing..all).map(last)),
                median_us((growing..all).map(mean)),
            )
        };
        let stage =
            |times: &[StageTimes], from: fn(&StageTimes) -> u64, to: fn(&StageTimes) -> u64| {
                median_us(
                    times[growing..]
                        .iter()
                        .map(|t| to(t).saturating_sub(from(t))),
                )
            };
        let (baseline, series) = (&self.baseline[..], &self.series[..]);
        let (baseline_us, baseline_mean_us) = ended(baseline, 0);
        let (series_us, series_mean_us) = ended(series, 2);
        let own_copy = |own: &Vec<u64>| median_us(own[all + growing..2 * all].iter().copied());
        Thesis {
            messages: all - growing,
            baseline_us,
            baseline_mean_us,
            baseline_stages: BaselineStages {
                d2h_pageable_us: stage(baseline, |t| t.begun_ns, |t| t.copied_ns),
                unix_socket_us: stage(baseline, |t| t.copied_ns, |t| t.sending_ns),
                wire_us: stage(baseline, |t| t.sending_ns, |t| t.crossed_ns),
                h2d_each_us: own.iter().map(own_copy).collect(),
            },
            series_us,
            series_mean_us,
            series_stages: SeriesStages {
                d2h_pinned_us: stage(series, |t| t.begun_ns, |t| t.copied_ns),
                wire_us: stage(series, |t| t.copied_ns, |t| t.crossed_ns),
                h2d_once_us: stage(series, |t| t.crossed_ns, |t| t.on_gpu_ns),
            },
            baseline_of_rgaps: round(baseline_us / p50_us.max(1e-3), 3),
            series_of_rgaps: round(series_us / p50_us.max(1e-3), 3),
        }
    }
}

fn median_us(ns: impl Iterator<Item = u64>) -> f64 {
    round(median(ns.map(|ns| ns as f64 / 1e3).collect()), 3)
}
