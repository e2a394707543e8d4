//! `bench fanout`: what each further subscriber costs the publisher, and how far apart in time subscribers get a message.

use crate::exchange::{self, ExchangePlan, Outcome, Wait};
use crate::machine::Machine;
use crate::stage::Stage;
use crate::summary::{round, slope, Micros, Short};
use rgaps::{Config, Domain};
use serde::Serialize;

/// What `bench fanout` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Fanout {
    pub domain: String,
    pub size: u64,
    pub messages: usize,
    /// The publisher's time per further subscriber, from a line through all counts.
    pub per_subscriber_us: PerSubscriber,
    pub counts: Vec<Count>,
    pub lost: u64,
    pub corrupt: u64,
    pub machine: Machine,
}

/// Slopes in microseconds per subscriber.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct PerSubscriber {
    pub awake: f64,
    pub sleeping: f64,
    pub floor: FloorSlope,
}

/// Slopes of the floor, which makes one store, and for sleepers a futex call for each.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct FloorSlope {
    pub awake: f64,
    pub sleeping: f64,
}

/// Figures for one number of subscribers.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Count {
    pub subscribers: usize,
    pub awake: WaitReport,
    pub sleeping: WaitReport,
}

/// Figures for subscribers that are all awake, or all asleep.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct WaitReport {
    /// How the subscribers waited.
    pub wait: Wait,
    /// How long the publish call took.
    pub publish: Short,
    /// From the publish call until a subscriber has the message, over all subscribers.
    pub latency: Short,
    /// The same for each subscriber.
    pub pairs: Vec<Short>,
    /// From the publish call until the last subscriber has the message.
    pub last: Short,
    /// Slowest minus fastest subscriber, per message.
    pub spread: Short,
    /// Bytes in use in the publisher's memory while all subscribers hold all messages of a round, divided by the bytes of
    /// these messages: 1 means one copy of each.
    pub memory: f64,
    pub floor: Floor,
}

/// The same figures of the floor.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Floor {
    pub send: Short,
    pub latency: Short,
}

/// Times `messages` messages per count of subscribers, awake and sleeping.
pub fn fanout(
    user: &Config,
    domain: Domain,
    size: u64,
    subscribers: &[usize],
    messages: usize,
) -> anyhow::Result<Fanout> {
    let machine = Machine::describe();
    let stage = Stage::new(user, domain)?;
    let (mut lost, mut corrupt) = (0, 0);
    let mut counts = Vec::new();
    for &count in subscribers {
        // Subscribers that poll need a core each. Otherwise they would keep the publisher from running.
        let awake = if count < machine.cores {
            Wait::Poll
        } else {
            Wait::Nap
        };
        let mut run = |wait| {
            let plan = ExchangePlan {
                size,
                messages,
                wait,
                subscribers: count,
                domain,
                kernel_ns: 0,
                pause_ns: 0,
                on_stream: false,
                header_bytes: 0,
            };
            let topic = format!("bench/fanout/{count}/{wait:?}");
            let outcome = exchange::run(&stage, &topic, &plan)?;
            lost += outcome.lost;
            corrupt += outcome.corrupt;
            anyhow::Ok(wait_report(wait, outcome))
        };
        counts.push(Count {
            subscribers: count,
            awake: run(awake)?,
            sleeping: run(Wait::Block)?,
        });
    }
    Ok(Fanout {
        domain: domain.to_string(),
        size,
        messages,
        per_subscriber_us: per_subscriber(&counts),
        counts,
        lost,
        corrupt,
        machine,
    })
}

fn per_subscriber(counts: &[Count]) -> PerSubscriber {
    let line = |of: fn(&Count) -> f64| {
        let points = counts.iter().map(|c| (c.subscribers as f64, of(c)));
        round(slope(&points.collect::<Vec<_>>()), 4)
    };
    PerSubscriber {
        awake: line(|c| c.awake.publish.p50_us),
        sleeping: line(|c| c.sleeping.publish.p50_us),
        floor: FloorSlope {
            awake: line(|c| c.awake.floor.send.p50_us),
            sleeping: line(|c| c.sleeping.floor.send.p50_us),
        },
    }
}

fn wait_report(wait: Wait, outcome: Outcome) -> WaitReport {
    let of = |message: usize| outcome.messages.iter().map(move |times| times[message]);
    let messages = 0..outcome.publish.len();
    let most = |message| of(message).max().unwrap_or(0);
    let last = messages.clone().map(most).collect();
    let spread = messages
        .map(|message| most(message) - of(message).min().unwrap_or(0))
        .collect();
    let pairs = outcome.messages.iter();
    WaitReport {
        wait,
        pairs: pairs
            .map(|times| Micros::of(times.clone()).short())
            .collect(),
        last: Micros::of(last).short(),
        spread: Micros::of(spread).short(),
        memory: round(
            outcome.used_bytes as f64 / outcome.message_bytes.max(1) as f64,
            4,
        ),
        publish: Micros::of(outcome.publish).short(),
        latency: Micros::of(outcome.messages.concat()).short(),
        floor: Floor {
            send: Micros::of(outcome.floor_send).short(),
            latency: Micros::of(outcome.floor).short(),
        },
    }
}
