//! A subscriber's process.

use crate::actor::{is_passing, until_joined, Part};
use crate::board::{Actor, ACTORS, LEAVE, PAUSE, PAUSED, RUNNING};
use crate::domain::on_gpu;
use crate::gpu::Lanes;
use crate::pattern::{holds, Identity};
use crate::places::Places;
use crate::topics::MAX_HELD;
use rgaps::{Domain, RecvError, Sample, Subscriber, WaitSet};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it waits until a message is whole: reading alone waits for 10 s, and a busy machine may take longer to start a daemon again.
const FINISH_LIMIT: Duration = Duration::from_secs(100);
/// How long a wait for a message is, between looks at the command.
const WAIT: Duration = Duration::from_millis(5);
/// Longest time that a sample is held.
const HOLD_MAX_US: u64 = 40_000;

/// How a subscriber waits.
enum Waiting {
    Polls,
    Blocks,
    Set(WaitSet),
}

/// A sample that is held, with its clones.
struct Kept {
    samples: Vec<Sample>,
    identity: Identity,
    entered: Option<usize>,
    until: Instant,
}

struct Work {
    part: Arc<Part>,
    subscriber: Subscriber,
    reliable: bool,
    waiting: Waiting,
    places: Places,
    /// Where it reads on a GPU.
    lanes: Option<Lanes>,
    kept: VecDeque<Kept>,
    /// Takes samples that another thread is to drop, and counts them.
    dropper: Sender<Kept>,
    with_dropper: Arc<AtomicU32>,
    random: rgaps_testkit::Random,
}

pub fn run(mut part: Part) -> anyhow::Result<()> {
    let kind = part.kind();
    let survivor = part.spec.survivor;
    // From a copy each time, so that tries do not change what becomes of the seed.
    let random = part.random.clone();
    let (subscriber, reliable, reads) =
        until_joined(|| kind.subscriber(&part.node, survivor, &mut random.clone()))?;
    let waiting = match part.random.below(4) {
        0 => Waiting::Polls,
        1 => {
            let mut set = part.node.wait_set();
            match set.attach(&subscriber) {
                Ok(_) => Waiting::Set(set),
                // No daemon at this moment to get a doorbell from.
                Err(_) => Waiting::Blocks,
            }
        }
        _ => Waiting::Blocks,
    };
    let random = part.random.clone();
    let part = Arc::new(part);
    let with_dropper = Arc::new(AtomicU32::new(0));
    let mut work = Work {
        dropper: start_dropper(part.clone(), with_dropper.clone()),
        part: part.clone(),
        subscriber,
        reliable,
        waiting,
        places: Places::default(),
        lanes: Lanes::new(reads)?,
        kept: VecDeque::new(),
        with_dropper,
        random,
    };
    part.actor.phase.store(RUNNING, Ordering::Release);
    loop {
        let command = part.actor.command.load(Ordering::Acquire);
        let now = Instant::now();
        while let Some(kept) = work.kept.pop_front() {
            if kept.until > now && command < PAUSE {
                work.kept.push_front(kept);
                break;
            }
            let_go(&part, kept);
        }
        let idle = work.kept.is_empty() && work.with_dropper.load(Ordering::Acquire) == 0;
        if command >= PAUSE {
            work.finish_reading();
        }
        if command == LEAVE && idle {
            return Ok(());
        }
        if command == PAUSE && idle {
            part.actor.phase.store(PAUSED, Ordering::Release);
        }
        work.take(command < PAUSE);
    }
}

/// A thread that drops samples, as programs do that hand them on.
fn start_dropper(part: Arc<Part>, count: Arc<AtomicU32>) -> Sender<Kept> {
    let (sender, receiver) = channel::<Kept>();
    std::thread::spawn(move || {
        for kept in receiver {
            let now = Instant::now();
            std::thread::sleep(kept.until.saturating_duration_since(now) / 4);
            let_go(&part, kept);
            count.fetch_sub(1, Ordering::AcqRel);
        }
    });
    sender
}

/// Looks at the bytes once more, and drops all clones.
fn let_go(part: &Part, kept: Kept) {
    check(part, &kept.samples[0], kept.identity, "while it was held");
    if let Some(entered) = kept.entered {
        part.actor.take_out(entered);
    }
    for sample in kept.samples {
        drop(sample);
    }
}

fn check(part: &Part, sample: &Sample, identity: Identity, when: &str) {
    let mut copy = Vec::new();
    let finished = sample.synchronize(FINISH_LIMIT);
    let bytes = if sample.domain() != Domain::Host {
        copy.resize(sample.len() as usize, 0);
        let read = finished.and_then(|()| sample.read(0, &mut copy));
        read.map(|()| &copy[..])
    } else {
        finished.and_then(|()| sample.as_slice())
    };
    match bytes {
        Ok(bytes) if holds(identity, bytes) => {}
        Ok(bytes) => part.complain(
            &part.actor.corrupt,
            format!(
                "message {} of {} with {} bytes changed {when}",
                identity.sequence,
                identity.actor,
                bytes.len()
            ),
        ),
        // Whoever died did not finish it; whoever lives does.
        Err(RecvError::Aborted { .. }) if !part.board.lives(identity.actor) => {}
        Err(error) => part.complain(&part.actor.errors, error),
    }
}

impl Work {
    /// Looks at what streams have read meanwhile.
    fn finish_reading(&mut self) {
        if let Some(lanes) = &mut self.lanes {
            lanes.finish();
            for wrong in lanes.take_wrong() {
                self.was_wrong(wrong);
            }
        }
    }

    /// A stream has read a message that was not what it should be. Of a publisher that died, it may be
    /// one that was never finished.
    fn was_wrong(&self, identity: Identity) {
        if self.part.board.lives(identity.actor) {
            let Identity { actor, sequence } = identity;
            let what = format!("message {sequence} of {actor} was wrong on a stream");
            self.part.complain(&self.part.actor.corrupt, what);
        }
    }

    /// Has a stream read a message that it waits for.
    fn read_on_stream(&mut self, sample: Sample, identity: Identity) {
        let Some(lanes) = &mut self.lanes else { return };
        let queued = lanes.read(identity, sample, &mut self.random);
        for wrong in lanes.take_wrong() {
            self.was_wrong(wrong);
        }
        match queued {
            Ok(()) => {}
            Err(RecvError::Aborted { .. }) if !self.part.board.lives(identity.actor) => {}
            Err(error) => self.part.complain(&self.part.actor.errors, error),
        }
    }

    fn take(&mut self, may_hold: bool) {
        let taken = match &self.waiting {
            Waiting::Polls => self.subscriber.try_recv(),
            Waiting::Blocks => match self.subscriber.recv_timeout(WAIT) {
                Err(RecvError::TimedOut(_)) => Ok(None),
                taken => taken.map(Some),
            },
            Waiting::Set(set) => set.wait(WAIT).and_then(|ready| match ready.is_empty() {
                true => Ok(None),
                false => self.subscriber.try_recv(),
            }),
        };
        let asks = on_gpu() && matches!(&taken, Err(RecvError::Client(error)) if is_passing(error));
        self.part.actor.asks.store(asks.into(), Ordering::Release);
        match taken {
            Ok(Some(sample)) => self.receive(sample, may_hold),
            Ok(None) if matches!(self.waiting, Waiting::Polls) => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Ok(None) => {}
            Err(RecvError::TooManyHeld { .. }) => {
                if let Some(oldest) = self.kept.pop_front() {
                    let_go(&self.part, oldest);
                }
            }
            // It has to map memory of a GPU, and there is no daemon to ask: nobody of its domain had needed it, or the daemon
            // told of it without descriptors, for too many were unread.
            Err(_) if asks => std::thread::sleep(WAIT),
            Err(error) => self.part.complain(&self.part.actor.errors, error),
        }
    }

    fn receive(&mut self, sample: Sample, may_hold: bool) {
        let part = self.part.clone();
        let identity = Identity::from_tag(sample.tag());
        if identity.actor as usize >= ACTORS || identity.sequence != sample.sequence() as u32 {
            return part.complain(
                &part.actor.corrupt,
                format!("{identity:?} came as message {}", sample.sequence()),
            );
        }
        self.check_order(&sample, identity);
        if self.lanes.is_some() && self.random.percent(60) {
            part.actor.progress.fetch_add(1, Ordering::Release);
            return self.read_on_stream(sample, identity);
        }
        check(&part, &sample, identity, "before it was received");
        part.actor.progress.fetch_add(1, Ordering::Release);
        if !may_hold || !self.random.percent(40) {
            return;
        }
        if self.kept.len() as u32 >= MAX_HELD - 4 {
            return;
        }
        self.keep(sample, identity);
    }

    fn check_order(&mut self, sample: &Sample, identity: Identity) {
        let actor: &Actor = self.part.actor;
        let next = actor.next[identity.actor as usize].load(Ordering::Relaxed);
        let sequence = sample.sequence();
        // Before the first message of a publisher, `missed` is about those that had its slot.
        let first = next == 0;
        if sequence < next || (!first && sequence - next != sample.missed()) {
            self.part.complain(
                &actor.disorder,
                format!(
                    "message {sequence} of {} came when {next} was next, with {} missed",
                    identity.actor,
                    sample.missed()
                ),
            );
        }
        if self.reliable && sample.missed() > 0 {
            self.part.complain(
                &actor.lost,
                format!("reliable, it missed {} messages", sample.missed()),
            );
        }
        if self.reliable && self.part.spec.survivor && first && sequence != 0 {
            self.part.complain(
                &actor.lost,
                format!(
                    "its first message of {} is number {sequence}",
                    identity.actor
                ),
            );
        }
        actor.next[identity.actor as usize].store(sequence + 1, Ordering::Release);
    }

    fn keep(&mut self, sample: Sample, identity: Identity) {
        let place = (!sample.is_empty())
            .then(|| self.places.of(sample.address()))
            .flatten();
        let entered = place.and_then(|(file, at)| {
            let actor = self.part.actor;
            actor.enter(file, at, at + sample.len())
        });
        let clones = self.random.below(3) as usize;
        let mut samples = vec![sample];
        for _ in 0..clones {
            samples.push(samples[0].clone());
        }
        let hold_us = self.random.below(HOLD_MAX_US);
        let kept = Kept {
            samples,
            identity,
            entered,
            until: Instant::now() + Duration::from_micros(hold_us),
        };
        let busy = self.with_dropper.load(Ordering::Acquire);
        if self.random.percent(25) && busy < 4 {
            self.with_dropper.fetch_add(1, Ordering::AcqRel);
            // The thread lives as long as the sender.
            let _ = self.dropper.send(kept);
        } else {
            self.kept.push_back(kept);
        }
    }
}
