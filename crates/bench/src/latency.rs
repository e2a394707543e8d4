//! `bench latency`: from the publish call to the handler.

use crate::exchange::{self, Plan, Wait};
use crate::machine::Machine;
use crate::stage::Stage;
use crate::summary::{Micros, Short};
use rgaps::{Config, Domain};
use serde::Serialize;

/// What `bench latency` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Latency {
    pub domain: String,
    pub size: u64,
    pub subscribers: usize,
    pub wait: Wait,
    #[serde(flatten)]
    pub latency: Micros,
    /// Messages timed, by each subscriber.
    pub messages: usize,
    pub lost: u64,
    pub corrupt: u64,
    /// The first message after filling and verifying, which wash the caches; not in the above.
    pub first: Short,
    pub floor: Short,
    pub machine: Machine,
}

/// Times `messages` messages of `size` bytes.
pub fn latency(
    user: &Config,
    domain: Domain,
    size: u64,
    subscribers: usize,
    messages: usize,
    wait: Wait,
) -> anyhow::Result<Latency> {
    let machine = Machine::describe();
    let stage = Stage::new(user, domain)?;
    let plan = Plan {
        size,
        messages,
        wait,
        subscribers,
    };
    let outcome = exchange::run(&stage, "bench/latency", &plan)?;
    Ok(Latency {
        domain: domain.to_string(),
        size,
        subscribers,
        wait,
        messages: outcome.publish.len(),
        latency: Micros::of(outcome.messages.concat()),
        lost: outcome.lost,
        corrupt: outcome.corrupt,
        first: Micros::of(outcome.first).short(),
        floor: Micros::of(outcome.floor).short(),
        machine,
    })
}
