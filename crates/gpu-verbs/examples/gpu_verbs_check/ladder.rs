//! `ladder`: measures what posting costs in steps, each with one more optimisation, against a card that completes works without carrying
//! them out. Then measures posting alone, without a card, with queues in host memory and in the kernels' memory.

use crate::jobs::{Job, Jobs, Task};
use crate::side::{Side, Sizes};
use crate::{kernels, Options};
use anyhow::{ensure, Result};
use rgaps_gpu_verbs::{Depths, QueueMemory, Rings, CAN_WRITE};
use rgaps_layout::Domain;
use serde_json::{json, Value};
use std::time::Duration;

const SIZES: Sizes = Sizes {
    slots: 1,
    slot_bytes: 8,
    ticks_max: 20_000_000_000,
};
const DEPTHS: Depths = Depths {
    sends_log2: 8,
    receives_log2: 2,
};
/// Latencies of the card in the steps that compare waiting with pipelining.
const LATENCIES_US: [u64; 3] = [2, 5, 10];
/// How many times posting alone fills the send queue.
const LAPS: u64 = 64;

struct Rung {
    name: String,
    task: Task,
    ring_every: u32,
    /// Groups that post at the same time.
    groups: usize,
    /// Queue pairs that the groups share.
    pairs: usize,
    warps_per_block: u32,
    messages: u64,
    /// Latency of the card, on top of its thread's own time.
    latency: Duration,
}

/// Runs all steps and posting alone.
pub fn run(jobs: &Jobs, options: &Options) -> Result<()> {
    let kernels = kernels(jobs)?;
    let messages = options.number("messages", 20_000)?;
    let blocks = options.number("blocks", 4)? as usize;
    let warps = options.number("warps", 2)? as u32;
    let mut rows = Vec::new();
    let mut naive = 0.0;
    for rung in rungs(messages, blocks, warps) {
        let row = climb(jobs, kernels, &rung)?;
        let rate = row["posts_per_s"].as_f64().unwrap_or(0.0);
        if naive == 0.0 {
            naive = rate;
        }
        println!(
            "{:32} {:>12.0} posts/s {:>7.2} of naive {:>9.0} {} per post {:>9} bytes of queues {:>8} doorbells",
            rung.name,
            rate,
            rate / naive,
            row["ticks_per_post"].as_f64().unwrap_or(0.0),
            if jobs.is_cuda { "cycles" } else { "ns" },
            row["queue_bytes"],
            row["doorbells"],
        );
        rows.push(row);
    }
    let alone = alone(jobs, kernels)?;
    let report = json!({
        "kernels": if jobs.is_cuda { "cuda" } else { "host" },
        "card": "null: completes, carries out nothing",
        "ladder": rows,
        "posting_alone": alone,
    });
    println!("{report}");
    Ok(())
}

fn rungs(messages: u64, blocks: usize, warps: u32) -> Vec<Rung> {
    let one = |name: &str, task, ring_every, messages| Rung {
        name: name.into(),
        task,
        ring_every,
        groups: 1,
        pairs: 1,
        warps_per_block: 1,
        messages,
        latency: Duration::ZERO,
    };
    // Steps that wait for the card at each message are slow, so they get fewer messages.
    let few = (messages / 10).max(1);
    let mut all = vec![
        one("one thread, waits for each", Task::Naive, 1, few),
        one("entries prepared, waits for each", Task::Prepared, 1, few),
        one("pipelined", Task::Pipelined, 1, messages),
    ];
    for every in [4, 16, 64] {
        let name = format!("a doorbell for {every}");
        all.push(one(&name, Task::Pipelined, every, messages));
    }
    all.push(one("a doorbell when full", Task::Pipelined, 0, messages));
    for us in LATENCIES_US {
        let late = |rung: Rung| Rung {
            name: format!("{}, card takes {us} us", rung.name),
            latency: Duration::from_micros(us),
            ..rung
        };
        all.push(late(one("waits for each", Task::Naive, 1, few)));
        all.push(late(one(
            "a doorbell for 16",
            Task::Pipelined,
            16,
            messages,
        )));
    }
    let groups = blocks * warps as usize;
    let many = |name: &str, task, pairs| Rung {
        name: name.into(),
        task,
        ring_every: 16,
        groups,
        pairs,
        warps_per_block: warps,
        messages: (messages / groups as u64).max(1),
        latency: Duration::ZERO,
    };
    all.push(many("a queue pair for the grid", Task::Shared, 1));
    all.push(many("a queue pair for each block", Task::Shared, blocks));
    all.push(many("a queue pair for each warp", Task::Pipelined, groups));
    all
}

fn climb(jobs: &Jobs, kernels: Domain, rung: &Rung) -> Result<Value> {
    let mut sides = Vec::new();
    for _ in 0..rung.groups.max(rung.pairs) {
        sides.push(Side::new(kernels, Domain::Host, DEPTHS, SIZES)?);
    }
    for side in &mut sides[..rung.pairs] {
        side.pair.connect_to_nothing(rung.latency)?;
    }
    let work: Vec<Job> = (0..rung.groups)
        .map(|group| {
            let shared = &sides[group * rung.pairs / rung.groups];
            Job {
                pair: shared.pair.view(),
                ring_every: rung.ring_every,
                ..sides[group].job(rung.task, rung.messages, sides[group].buffer())
            }
        })
        .collect();
    jobs.run(&work, rung.warps_per_block)?;
    for side in &sides[..rung.groups] {
        side.check(&rung.name, rung.messages)?;
    }
    let boards: Vec<_> = sides[..rung.groups].iter().map(Side::board).collect();
    let slowest = boards.iter().map(|board| board.nanoseconds).max();
    let ticks: u64 = boards.iter().map(|board| board.ticks).sum();
    let posts = rung.messages * rung.groups as u64;
    let pairs = &sides[..rung.pairs];
    let (mut works, mut doorbells) = (0, 0);
    for side in pairs {
        works += side.pair.counts().works;
        doorbells += side.pair.counts().doorbells;
    }
    ensure!(works >= posts, "the card has seen {works} works of {posts}");
    Ok(json!({
        "rung": rung.name,
        "groups": rung.groups,
        "queue_pairs": rung.pairs,
        "queue_bytes": pairs.iter().map(|side| side.pair.memory().bytes()).sum::<u64>(),
        "posts": posts,
        "posts_per_s": posts as f64 * 1e9 / slowest.unwrap_or(1).max(1) as f64,
        "ticks_per_post": ticks as f64 / posts as f64,
        "doorbells": doorbells,
        "back_pressured": boards.iter().map(|board| board.back_pressured).sum::<u64>(),
    }))
}

/// Measures posting on queues that no card serves: the kernel's own part, with queues where a proxy reads them, and where a card would.
fn alone(jobs: &Jobs, kernels: Domain) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for (name, rings) in [
        ("queues in host memory", Rings::Host),
        ("queues with the kernels", Rings::WithKernels),
    ] {
        for ring_every in [1, 16, 0] {
            let side = Side::new(kernels, Domain::Host, DEPTHS, SIZES)?;
            let queue = QueueMemory::new(kernels, rings, DEPTHS, 1)?;
            let posts = LAPS << DEPTHS.sends_log2;
            let job = Job {
                pair: queue.view(CAN_WRITE),
                ring_every,
                ..side.job(Task::Enqueue, posts, side.buffer())
            };
            jobs.run(&[job], 1)?;
            side.check(name, posts)?;
            let board = side.board();
            let ticks = board.ticks as f64 / board.messages as f64;
            println!(
                "{name:24} a doorbell for {ring_every:>2} (0: none) {ticks:>9.1} ticks per post"
            );
            rows.push(json!({
                "rings": name,
                "doorbell_for": ring_every,
                "ticks_per_post": ticks,
                "ns_per_post": board.nanoseconds as f64 / board.messages as f64,
            }));
        }
    }
    Ok(rows)
}
