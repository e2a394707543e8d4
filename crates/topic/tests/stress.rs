//! Publishers and subscribers at full speed on real threads: order, no lost wake-up, no byte
//! reused while it is held, every block freed once.
#![cfg(not(loom))]

mod host;

use host::Host;
use rgaps_testkit::Random;
use std::thread;
use std::time::{Duration, Instant};

const RUN: Duration = Duration::from_millis(1500);
const PUBLISHERS: usize = 3;

#[test]
#[cfg_attr(miri, ignore = "too slow to interpret; ThreadSanitizer runs it")]
fn publishers_and_subscribers_that_come_and_go() {
    come_and_go(Host::new());
}

#[test]
#[cfg_attr(miri, ignore = "too slow to interpret; ThreadSanitizer runs it")]
fn publishers_and_subscribers_with_work_queued_that_come_and_go() {
    come_and_go(Host::with_gpu());
}

fn come_and_go(host: Host) {
    let end = Instant::now() + RUN;
    thread::scope(|scope| {
        let publishing: Vec<_> = (0..PUBLISHERS)
            .map(|slot| {
                let mut publisher = host.join_publisher(slot);
                scope.spawn(move || {
                    // Publishes at least once, even if the process was stopped until `end`.
                    loop {
                        publisher.publish();
                        if publisher.published % 64 == 0 {
                            publisher.abandon();
                        }
                        if Instant::now() >= end {
                            break publisher;
                        }
                    }
                })
            })
            .collect();
        let reading: Vec<_> = (0..4)
            .map(|slot| {
                let host = &host;
                scope.spawn(move || read(host, slot))
            })
            .collect();
        let publishers: Vec<_> = publishing
            .into_iter()
            .map(|it| it.join().unwrap())
            .collect();
        host.stop_subscribers();
        reading.into_iter().for_each(|it| it.join().unwrap());
        for publisher in publishers {
            let slot = publisher.slot;
            assert!(publisher.published > 0);
            publisher.finish();
            host.bury_publisher(slot);
        }
    });
    assert!(host.all_is_back());
}

/// Reads in slot `slot`. Subscribers in even slots are reliable; the others now and then die while they hold samples.
fn read(host: &Host, slot: u32) {
    let reliable = slot % 2 == 0;
    let mut random = Random::new(u64::from(slot));
    while !host.stop.load(std::sync::atomic::Ordering::SeqCst) {
        let mut subscriber = host.join_subscriber(slot, reliable);
        let mut left = if reliable {
            u64::MAX
        } else {
            random.below(5000)
        };
        while left > 0 && !host.stop.load(std::sync::atomic::Ordering::SeqCst) {
            left -= 1;
            if !subscriber.step(random.below(4) as usize) {
                subscriber.sleep();
            }
        }
        if left > 0 {
            return subscriber.finish();
        }
        drop(subscriber);
        host.bury_subscriber(slot);
    }
}
