//! Models of the protocol, explored by loom: the shipped `Writer`, `Reader`, `Held`, `Sleeper` and
//! daemon's functions over cells that loom watches. `make loom` runs them.
//!
//! What is explored: all orders of steps with up to a named number of preemptions (a switch away
//! from a thread that could have gone on), and for every load all values that the memory model
//! allows it to see. `LOOM_MAX_PREEMPTIONS` overrides the bounds. The ring has two slots and a
//! history of one, so every second message goes round it. Sleeping is spinning: a lost wake-up is
//! a loop that never ends, which loom reports. Payloads are `UnsafeCell`s that the publisher writes
//! in its loan and a holder reads: a block that is reused too early is a data race, which loom
//! reports; so is a region that is reused while someone may still access it.
//!
//! `docs/decisions/0007-holder-words.md` lists the mutations of the shipped code that the models catch, and
//! `0013-several-domains.md` those about replicas.
#![cfg(loom)]

mod blocks;
mod cells;
mod deferred_release;
mod descriptors;
mod free_slots;
mod history;
mod membership;
mod points;
mod replicas;
mod waking;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Runs a model with at most `preemptions` preemptions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    // A model that does not end has lost a wake-up. The longest of those that end take some hundred steps.
    builder.max_branches = 5_000;
    let executions = Arc::new(AtomicU64::new(0));
    let counter = executions.clone();
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{} executions", executions.load(Ordering::Relaxed));
}
