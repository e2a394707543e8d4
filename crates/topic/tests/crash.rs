//! Publishers and subscribers that die between any two of their steps. `Host` then cleans up as the daemon does, and
//! no message or block is lost, freed twice or stuck.
//!
//! A death is a panic that a hook raises at a chosen step. It discards the member's private state with its stack; of
//! shared memory only the words that it wrote before remain.
#![cfg(not(loom))]

mod host;

use host::{Host, Publisher, Subscriber};
use rgaps_testkit::Random;
use rgaps_topic::set_crash_hook;
use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// More steps than any scenario here has.
const STEPS_MAX: u64 = 400;

thread_local! {
    /// Steps until this thread's member dies. None: it does not die.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Death;

fn count_down(_step: &'static str) {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            resume_unwind(Box::new(Death));
        }
        Some(left) => LEFT.set(Some(left - 1)),
        None => {}
    }
}

/// Runs `act` as a member that dies after `steps` steps. None: it died. Otherwise returns the result, and sets `steps`
/// to the steps that are left.
fn mortal<R>(steps: &mut u64, act: impl FnOnce() -> R) -> Option<R> {
    set_crash_hook(count_down);
    LEFT.set(Some(*steps));
    let outcome = catch_unwind(AssertUnwindSafe(act));
    *steps = LEFT.replace(None).unwrap_or(0);
    match outcome {
        Ok(result) => Some(result),
        Err(death) if death.is::<Death>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Publishes more messages than the history keeps while a reliable subscriber reads, and gives a loan back. None: the
/// publisher died.
fn publish(
    host: &Host,
    publisher: &mut Publisher<'_>,
    subscriber: &mut Subscriber<'_>,
    steps: &mut u64,
) -> Option<()> {
    for nth in 0..7 {
        mortal(steps, || publisher.publish())?;
        subscriber.step(2);
        if nth % 2 == 1 {
            host.run_each();
        }
    }
    mortal(steps, || publisher.abandon())
}

#[test]
fn a_publisher_dies_between_any_two_steps() {
    publisher_dies(Host::new);
}

#[test]
fn a_publisher_with_work_queued_dies_between_any_two_steps() {
    publisher_dies(Host::with_gpu);
}

fn publisher_dies(host: fn() -> Host) {
    for after in 0..STEPS_MAX {
        let host = host();
        let mut subscriber = host.join_subscriber(0, true);
        let mut publisher = host.join_publisher(0);
        let died = publish(&host, &mut publisher, &mut subscriber, &mut { after }).is_none();
        drop(publisher);
        let announced = thread::scope(|scope| {
            let daemon = scope.spawn(|| host.bury_publisher(0));
            while !daemon.is_finished() {
                subscriber.step(0);
            }
            daemon.join().unwrap()
        });
        assert_eq!(subscriber.received, announced, "after {after} steps");
        subscriber.finish();
        assert!(host.all_is_back());
        if !died {
            assert_eq!(announced, 7);
            assert!(after > 50, "the steps are not built in");
            return;
        }
    }
    panic!("the publisher has more steps than {STEPS_MAX}");
}

/// Receives messages, holds two while they leave the ring, and releases them last. None: the subscriber died.
fn read(
    host: &Host,
    publisher: &mut Publisher<'_>,
    subscriber: &mut Subscriber<'_>,
    steps: &mut u64,
) -> Option<()> {
    for most in [2, 2, 2, 2, 2, 0] {
        publisher.publish();
        host.run_each();
        mortal(steps, || subscriber.step(most))?;
    }
    Some(())
}

#[test]
fn a_subscriber_dies_between_any_two_steps() {
    subscriber_dies(Host::new);
}

#[test]
fn a_subscriber_with_work_queued_dies_between_any_two_steps() {
    subscriber_dies(Host::with_gpu);
}

fn subscriber_dies(host: fn() -> Host) {
    for after in 0..STEPS_MAX {
        let host = host();
        let mut publisher = host.join_publisher(0);
        let mut alive = host.join_subscriber(1, false);
        let mut mortal = host.join_subscriber(0, true);
        let died = read(&host, &mut publisher, &mut mortal, &mut { after }).is_none();
        alive.step(1);
        drop(mortal);
        host.bury_subscriber(0);
        // The dead subscriber does not back-pressure the publisher, and the other subscriber reads on.
        for _ in 0..8 {
            publisher.publish();
            alive.step(1);
        }
        alive.finish();
        publisher.finish();
        host.bury_publisher(0);
        assert!(host.all_is_back());
        if !died {
            assert!(after > 15, "the steps are not built in");
            return;
        }
    }
    panic!("the subscriber has more steps than {STEPS_MAX}");
}

/// Publishes until `end`, in a loop of joining and dying at a random step.
fn publish_and_die(host: &Host, slot: usize, random: &mut Random, end: Instant) {
    while Instant::now() < end {
        let mut publisher = host.join_publisher(slot);
        let mut steps = random.below(STEPS_MAX);
        let mut lives = true;
        while lives && Instant::now() < end {
            lives = mortal(&mut steps, || publisher.publish()).is_some();
        }
        drop(publisher);
        host.bury_publisher(slot);
    }
}

fn read_and_die(host: &Host, slot: u32, random: &mut Random) {
    while !host.stop.load(SeqCst) {
        let mut subscriber = host.join_subscriber(slot, slot % 2 == 0);
        let mut steps = random.below(STEPS_MAX);
        let mut lives = true;
        while lives && !host.stop.load(SeqCst) {
            let most = random.below(4) as usize;
            lives = mortal(&mut steps, || {
                if !subscriber.step(most) {
                    subscriber.sleep();
                }
            })
            .is_some();
        }
        drop(subscriber);
        host.bury_subscriber(slot);
    }
}

#[test]
fn members_die_at_random_steps_under_load() {
    members_die(Host::new());
}

#[test]
fn members_with_work_queued_die_at_random_steps_under_load() {
    members_die(Host::with_gpu());
}

fn members_die(host: Host) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(now, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let end = Instant::now() + Duration::from_millis(1500);
    thread::scope(|scope| {
        let host = &host;
        let publishing: Vec<_> = (0..3)
            .map(|slot| {
                let mut random = Random::new(seed.wrapping_add(slot as u64));
                scope.spawn(move || publish_and_die(host, slot, &mut random, end))
            })
            .collect();
        for slot in 0..4 {
            let mut random = Random::new(seed.wrapping_add(100 + u64::from(slot)));
            scope.spawn(move || read_and_die(host, slot, &mut random));
        }
        let ends: Vec<_> = publishing.into_iter().map(|it| it.join()).collect();
        host.stop_subscribers();
        ends.into_iter().for_each(|end| end.unwrap());
    });
    assert!(host.all_is_back());
}
