//! A publisher's process.

use crate::actor::{is_passing, until_joined, Part};
use crate::board::{PAUSE, PAUSED, RUN, RUNNING};
use crate::domain::{across, domain};
use crate::gpu::Lanes;
use crate::pattern::{fill, Identity};
use crate::places::Places;
use crate::topics::Kind;
use rgaps::{Loan, LoanError, PublishError, Publisher, Stream};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Loans that a survivor has at once in the beginning, so that it leases what it will need: while
/// there is no daemon nobody can.
const FIRST_LOANS: usize = 14;
const FIRST_LOAN_BYTES: u64 = 3 << 20;
/// Pause where there is no memory, or nothing to do.
const PAUSE_TIME: Duration = Duration::from_millis(2);

/// An open loan, and its entry in the scoreboard.
struct Open {
    loan: Loan,
    bytes: u64,
    entered: Option<usize>,
}

struct Work {
    part: Part,
    kind: &'static Kind,
    publisher: Publisher,
    places: Places,
    /// Where messages live on a GPU.
    lanes: Option<Lanes>,
    published: u32,
}

pub fn run(part: Part) -> anyhow::Result<()> {
    let kind = part.kind();
    let publisher = until_joined(|| kind.publisher(&part.node))?;
    let mut work = Work {
        part,
        kind,
        publisher,
        places: Places::default(),
        lanes: Lanes::new(domain())?,
        published: 0,
    };
    if work.part.spec.survivor {
        let first: Vec<_> = (0..FIRST_LOANS)
            .map(|_| work.publisher.loan(FIRST_LOAN_BYTES))
            .collect::<Result<_, _>>()?;
        drop(first);
    }
    work.part.actor.phase.store(RUNNING, Ordering::Release);
    loop {
        match work.part.actor.command.load(Ordering::Acquire) {
            RUN => work.publish_some(),
            PAUSE => work.pause(),
            _ => return Ok(()),
        }
    }
}

impl Work {
    fn publish_some(&mut self) {
        let loans = match self.part.random.below(10) {
            0 => 1 + self.part.random.below(3),
            _ => 1,
        };
        let mut open: Vec<Open> = Vec::new();
        for _ in 0..loans {
            open.extend(self.loan(&open));
        }
        if open.is_empty() {
            std::thread::sleep(PAUSE_TIME);
        }
        for loan in open {
            self.settle(loan);
        }
        if self.part.random.percent(70) {
            let pause_us = self.part.random.below(3_000);
            std::thread::sleep(Duration::from_micros(pause_us));
        }
    }

    fn loan(&mut self, open: &[Open]) -> Option<Open> {
        let bytes = self.kind.message_bytes(&mut self.part.random);
        let loan = match self.publisher.loan(bytes) {
            Ok(loan) => loan,
            Err(LoanError::PoolFull { .. } | LoanError::NoBlocks { .. }) => return None,
            Err(LoanError::Client(error)) if is_passing(&error) => return None,
            Err(error) => {
                let actor = self.part.actor;
                self.part.complain(&actor.errors, error);
                return None;
            }
        };
        let own = open.iter().any(|other| {
            let (a, b) = (other.loan.address(), loan.address());
            a < b + bytes && b < a + other.bytes
        });
        let place = (bytes > 0)
            .then(|| self.places.of(loan.address()))
            .flatten();
        let others = place.is_some_and(|(file, start)| {
            let own = self.part.spec.index;
            self.part.board.overlaps(own, file, start, start + bytes)
        });
        if own || others {
            let actor = self.part.actor;
            self.part.complain(
                &actor.doubled,
                format!("a block of {bytes} bytes is somebody's already"),
            );
        }
        let entered = place.and_then(|(file, at)| self.part.actor.enter(file, at, at + bytes));
        Some(Open {
            loan,
            bytes,
            entered,
        })
    }

    /// Publishes a loan, or drops it.
    fn settle(&mut self, open: Open) {
        let Open {
            mut loan, entered, ..
        } = open;
        let actor = self.part.actor;
        let identity = Identity {
            actor: self.part.spec.index,
            sequence: self.published,
        };
        let filled = match &mut self.lanes {
            Some(lanes) => lanes.write(identity, &mut loan, &mut self.part.random),
            None => {
                let bytes = loan.as_mut_slice();
                bytes.map(|bytes| fill(identity, bytes)).map(|()| Stream(0))
            }
        };
        let stream = match filled {
            Ok(stream) => stream,
            Err(error) => return self.part.complain(&actor.errors, error),
        };
        if let Some(entered) = entered {
            actor.take_out(entered);
        }
        if self.part.random.percent(5) {
            return loan.discard_on(stream);
        }
        loan.set_tag(identity.tag());
        match loan.publish_on(stream) {
            Ok(sequence) if sequence == u64::from(self.published) => {
                self.published += 1;
                actor
                    .published
                    .store(u64::from(self.published), Ordering::Release);
                actor.progress.fetch_add(1, Ordering::Release);
            }
            Ok(sequence) => self.part.complain(
                &actor.disorder,
                format!("message {} was published as {sequence}", self.published),
            ),
            Err(unpublished) if across().is_some() && has_no_copy(&unpublished.error) => {
                // Its stream may still write it.
                if let Some(loan) = unpublished.loan {
                    loan.discard_on(stream);
                }
                std::thread::sleep(PAUSE_TIME);
            }
            Err(error) => self.part.complain(&actor.errors, error),
        }
    }

    fn pause(&mut self) {
        let actor = self.part.actor;
        match self.publisher.trim(0) {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => self.part.complain(&actor.errors, error),
        }
        actor
            .used_bytes
            .store(self.publisher.used_bytes(), Ordering::Relaxed);
        actor
            .leased_bytes
            .store(self.publisher.leased_bytes(), Ordering::Relaxed);
        actor.phase.store(PAUSED, Ordering::Release);
        std::thread::sleep(PAUSE_TIME);
    }
}

/// Whether there was no memory for a copy, or no daemon to have it from.
fn has_no_copy(error: &PublishError) -> bool {
    match error {
        PublishError::Replica(error) => matches!(
            **error,
            LoanError::PoolFull { .. } | LoanError::NoBlocks { .. }
        ),
        PublishError::Client(error) => is_passing(error),
        _ => false,
    }
}
