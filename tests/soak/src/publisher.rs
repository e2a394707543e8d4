//! A publisher's process.

use crate::board::{is_passing, until_joined, Counter, Spec};
use crate::pattern::{fill, Identity};
use crate::topics::KINDS;
use anyhow::{bail, Context};
use rgaps::{LoanError, PublishError, Publisher};
use rgaps_testkit::Random;
use std::time::Duration;

/// Longest pause between two messages.
const PAUSE_MAX_US: u64 = 20_000;
/// Pause where there is no memory, and between messages once disturbances are over.
const REST: Duration = Duration::from_millis(100);

/// Publishes until it is told to leave. Once disturbances are over it goes on slowly, so that each gap is followed by a
/// message that tells of it.
pub fn run(spec: &Spec) -> anyhow::Result<()> {
    let kind = &KINDS[spec.topic];
    let mut random = Random::new(spec.seed);
    // Whoever joins after this knows of us.
    let counter = Counter::create(spec)?;
    let node = spec.node()?;
    let publisher = until_joined(|| kind.publisher(&node))?;
    let (mut published, mut is_finishing) = (0, false);
    while !spec.is_leaving() {
        let bytes = kind.message_bytes(&mut random);
        let identity = Identity {
            actor: spec.id,
            sequence: u32::try_from(published).context("too many messages")?,
        };
        counter.begun(published + 1)?;
        if publish(&publisher, identity, bytes)? {
            published += 1;
            counter.done(published)?;
        } else {
            std::thread::sleep(REST);
        }
        if !is_finishing && spec.is_finishing() && published > 0 {
            is_finishing = true;
            counter.at_finish(published)?;
        }
        match is_finishing {
            true => std::thread::sleep(REST),
            false => std::thread::sleep(Duration::from_micros(random.below(PAUSE_MAX_US))),
        }
    }
    Ok(())
}

/// Publishes one message. False: there was no memory, or readers did not make room in time, and nothing was published.
fn publish(publisher: &Publisher, identity: Identity, bytes: u64) -> anyhow::Result<bool> {
    let mut loan = match publisher.loan(bytes) {
        Ok(loan) => loan,
        Err(LoanError::PoolFull { .. } | LoanError::NoBlocks { .. }) => return Ok(false),
        Err(LoanError::Client(error)) if is_passing(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    fill(identity, loan.as_mut_slice()?);
    loan.set_tag(identity.tag());
    match loan.publish() {
        Ok(sequence) if sequence == u64::from(identity.sequence) => Ok(true),
        Ok(sequence) => bail!("message {} was published as {sequence}", identity.sequence),
        Err(unpublished) => match unpublished.error {
            PublishError::BackPressured { .. } => Ok(false),
            PublishError::Client(error) if is_passing(&error) => Ok(false),
            error => Err(error.into()),
        },
    }
}
