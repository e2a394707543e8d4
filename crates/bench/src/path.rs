//! `bench path`: loan, fill, publish, receive, verify, release, between two marks.
//!
//! It measures nothing. A test runs it under strace, and checks that neither process makes a system call between the
//! marks. The mark is a call of `getppid`, which nothing else here calls.

use crate::board::{Board, Field, Geometry};
use crate::contents;
use crate::crew::{Crew, Job, Orders};
use crate::stage::{node, Stage};
use rgaps::{Config, Domain};
use rgaps_sync::spin_hint;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

/// Messages before the first mark. They lease the memory and touch its pages.
const WARM_UP: u64 = 256;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathPlan {
    pub size: u64,
    pub messages: u64,
}

/// What `bench path` reports.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Path {
    pub messages: u64,
    pub lost: u64,
    pub corrupt: u64,
}

fn mark() {
    std::hint::black_box(rustix::process::getppid());
}

/// Sends `messages` messages between the marks.
pub fn path(user: &Config, size: u64, messages: u64) -> anyhow::Result<Path> {
    let stage = Stage::new(user, Domain::Host)?;
    let plan = PathPlan { size, messages };
    let geometry = Geometry {
        members: 1,
        samples: 1,
    };
    let board = Board::create(geometry)?;
    let topic = "bench/path";
    let publisher = stage.node.publisher(topic).create()?;
    let mut crew = Crew::default();
    let orders = Orders {
        member: 0,
        geometry,
        config: stage.config.clone(),
        topic: topic.to_owned(),
        job: Job::Walk(plan),
    };
    crew.add(&orders, &board)?;
    let done = board.field(0, Field::Done);
    crew.wait_until("the subscriber", || done.load(Ordering::Acquire) == 1)?;
    for sequence in 0..WARM_UP + messages {
        if sequence == WARM_UP {
            mark();
        }
        // A loan that is dropped unpublished must make no system call either.
        drop(publisher.loan(size)?);
        let mut loan = publisher.loan(size)?;
        contents::fill(&mut loan, contents::seed(0, sequence))?;
        loan.publish().map_err(|unpublished| unpublished.error)?;
        while done.load(Ordering::Acquire) < sequence + 2 {
            spin_hint();
        }
    }
    mark();
    crew.finish()?;
    Ok(Path {
        messages,
        lost: board.field(0, Field::Lost).load(Ordering::Acquire),
        corrupt: board.field(0, Field::Corrupt).load(Ordering::Acquire),
    })
}

/// Runs the subscriber.
pub fn walk(orders: &Orders, plan: &PathPlan, board: &Board) -> anyhow::Result<()> {
    let node = node(&orders.config, "rgaps-bench-walker")?;
    let subscriber = node.subscriber(&orders.topic).create()?;
    let done = board.field(orders.member, Field::Done);
    done.store(1, Ordering::Release);
    for sequence in 0..WARM_UP + plan.messages {
        if sequence == WARM_UP {
            mark();
        }
        let sample = loop {
            match subscriber.try_recv()? {
                Some(sample) => break sample,
                None => spin_hint(),
            }
        };
        if !contents::verify(&sample, contents::seed(0, sequence), plan.size)? {
            board
                .field(orders.member, Field::Corrupt)
                .fetch_add(1, Ordering::AcqRel);
        }
        drop(sample);
        done.store(sequence + 2, Ordering::Release);
    }
    mark();
    board
        .field(orders.member, Field::Lost)
        .store(subscriber.missed(), Ordering::Release);
    Ok(())
}
