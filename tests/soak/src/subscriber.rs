//! A subscriber's process.

use crate::board::{is_passing, publishers, until_joined, Spec};
use crate::journal::{Content, Message, Record, Writer};
use crate::pattern::{holds, Identity};
use crate::topics::{KINDS, MAX_HELD};
use rgaps::{Node, RecvError, Sample, Subscriber, WaitSet};
use rgaps_testkit::Random;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long one wait for a message is, between looks at what it is to do.
const WAIT: Duration = Duration::from_millis(20);
/// Longest time that a sample is held.
const HOLD_MAX_MS: u64 = 100;
/// Longest time that it reads nothing, and how often that happens.
const ABSENT_MAX_MS: u64 = 1_500;
const ABSENT_ONCE_IN: u64 = 2_000;

/// How a subscriber waits.
enum Waiting {
    Polls,
    Blocks,
    Set(WaitSet),
}

impl Waiting {
    fn choose(node: &Node, subscriber: &Subscriber, random: &mut Random) -> Waiting {
        match random.below(3) {
            0 => Waiting::Polls,
            1 => Waiting::Blocks,
            _ => {
                let mut set = node.wait_set();
                match set.attach(subscriber) {
                    Ok(_) => Waiting::Set(set),
                    // No daemon at this moment to get a doorbell from.
                    Err(_) => Waiting::Blocks,
                }
            }
        }
    }

    fn take(&self, subscriber: &Subscriber) -> Result<Option<Sample>, RecvError> {
        match self {
            Waiting::Polls => {
                let taken = subscriber.try_recv()?;
                if taken.is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(taken)
            }
            Waiting::Blocks => match subscriber.recv_timeout(WAIT) {
                Err(RecvError::TimedOut(_)) => Ok(None),
                taken => taken.map(Some),
            },
            Waiting::Set(set) => match set.wait(WAIT)?.is_empty() {
                true => Ok(None),
                false => subscriber.try_recv(),
            },
        }
    }
}

/// A sample that is held, and until when.
struct Kept {
    sample: Sample,
    message: Message,
    until: Instant,
}

/// Receives until it is told to leave.
pub fn run(spec: &Spec) -> anyhow::Result<()> {
    let kind = &KINDS[spec.topic];
    let mut journal = Writer::create(&spec.folder, spec.id)?;
    let node = spec.node()?;
    let before = publishers(&spec.folder, spec.topic, spec.host);
    let subscriber = until_joined(|| kind.subscriber(&node, kind.wish(spec.seed)))?;
    for (publisher, now) in publishers(&spec.folder, spec.topic, spec.host) {
        let earlier = before.iter().find(|(id, _)| *id == publisher);
        journal.write(Record::Joined {
            publisher,
            done: earlier.map_or(0, |(_, earlier)| earlier.done),
            begun: now.begun,
        })?;
    }
    journal.write(Record::Ready)?;
    let mut random = Random::new(spec.seed ^ 1);
    let waiting = Waiting::choose(&node, &subscriber, &mut random);
    let mut kept = VecDeque::<Kept>::new();
    while !spec.is_leaving() {
        while kept
            .front()
            .is_some_and(|kept| kept.until <= Instant::now())
        {
            release(kept.pop_front(), &mut journal)?;
        }
        let sample = match waiting.take(&subscriber) {
            Ok(Some(sample)) => sample,
            Ok(None) => continue,
            Err(RecvError::TooManyHeld { .. }) => {
                release(kept.pop_front(), &mut journal)?;
                continue;
            }
            Err(RecvError::Client(error)) if is_passing(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        let message = describe(&sample, subscriber.missed());
        journal.write(Record::Message(message))?;
        if random.percent(20) && kept.len() < MAX_HELD as usize {
            let until = Instant::now() + Duration::from_millis(random.below(HOLD_MAX_MS));
            kept.push_back(Kept {
                sample,
                message,
                until,
            });
        }
        if random.below(ABSENT_ONCE_IN) == 0 {
            std::thread::sleep(Duration::from_millis(random.below(ABSENT_MAX_MS)));
        }
    }
    for kept in kept {
        release(Some(kept), &mut journal)?;
    }
    Ok(())
}

fn describe(sample: &Sample, missed_in_all: u64) -> Message {
    let identity = Identity::from_tag(sample.tag());
    Message {
        content: content(sample, identity),
        publisher: identity.actor,
        sequence: identity.sequence.into(),
        missed: sample.missed(),
        missed_in_all,
        from: sample.publisher_id(),
        bytes: sample.len(),
    }
}

fn content(sample: &Sample, identity: Identity) -> Content {
    match sample.as_slice() {
        Ok(bytes) if holds(identity, bytes) => Content::Whole,
        Err(RecvError::Aborted { .. }) => Content::Aborted,
        Ok(_) | Err(_) => Content::Wrong,
    }
}

/// Looks at the bytes once more: nobody may have changed them while the sample was held.
fn release(kept: Option<Kept>, journal: &mut Writer) -> anyhow::Result<()> {
    let Some(Kept {
        sample, message, ..
    }) = kept
    else {
        return Ok(());
    };
    let now = content(&sample, Identity::from_tag(sample.tag()));
    if message.content == Content::Whole && now == Content::Wrong {
        journal.write(Record::Message(Message {
            content: now,
            ..message
        }))?;
    }
    Ok(())
}
