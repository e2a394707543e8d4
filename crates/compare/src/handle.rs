//! `rgaps-compare handle`: what the locks cost under which the threads of one process share a publisher or subscriber.
//!
//! In each round one thread loans, publishes, receives and releases small messages; then it locks and unlocks an
//! uncontended mutex as often. The figures are medians over the rounds.

use anyhow::Context;
use rgaps::{Config, Node};
use rgaps_bench::summary::{median, round};
use rgaps_bench::Machine;
use serde::Serialize;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Number of rounds. Each times messages, then locks.
const ROUNDS: usize = 51;
/// Locks that a message in host memory takes from its loan to its release: one each for loan, publish and receive.
const LOCKS: u32 = 3;

/// The printed report.
#[derive(Debug, Serialize)]
pub struct HandleReport {
    /// From a loan of 64 bytes to the release of its sample.
    message_ns: f64,
    lock_ns: f64,
    locks: u32,
    /// The share of a message's time that its locks take.
    locks_of_message: f64,
    machine: Machine,
}

pub fn measure(user: &Config, messages: u32) -> anyhow::Result<HandleReport> {
    let node = Node::builder("rgaps-compare")
        .config(user.clone())
        .build()?;
    let topic = format!("rgaps_compare/handle_{}", std::process::id());
    let publisher = node.publisher(&topic).keep_last(4).create()?;
    let subscriber = node.subscriber(&topic).create()?;
    let lock = Mutex::new(0u64);
    let (mut of_messages, mut of_locks) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_messages.push(each(messages, || {
            let mut loan = publisher.loan(64)?;
            loan.set_tag(1);
            loan.publish()?;
            let sample = subscriber.try_recv()?;
            anyhow::ensure!(sample.context("no message")?.tag() == 1, "a wrong message");
            Ok(())
        })?);
        of_locks.push(each(messages, || {
            *black_box(&lock)
                .lock()
                .unwrap_or_else(PoisonError::into_inner) += 1;
            Ok(())
        })?);
    }
    let (message_ns, lock_ns) = (median(of_messages), median(of_locks));
    Ok(HandleReport {
        message_ns: round(message_ns, 1),
        lock_ns: round(lock_ns, 1),
        locks: LOCKS,
        locks_of_message: round(f64::from(LOCKS) * lock_ns / message_ns, 3),
        machine: Machine::describe(),
    })
}

/// Calls `work` `count` times. Returns the mean time of a call in nanoseconds.
fn each(count: u32, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let begun = Instant::now();
    for _ in 0..count {
        work()?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(count))
}
