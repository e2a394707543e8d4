//! Publishers that leave while the way to another host changes: all that they published arrives, once and in order.
mod support;

use rgaps::{Node, Subscriber};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use support::{content, ports, start_among, until, wait_for_subscribers, LIMIT};

const BYTES: usize = 5_000;
/// Messages of each publisher.
const EACH: u64 = 6;
/// Publishers at the same time, those included that have left and whose messages are on their way. A topic may have 16 on
/// a host, and where they land are more of them than here for a while, so that some have to wait for a place.
const AT_ONCE: usize = 13;

/// Publishers come, publish and leave until it is stopped. How many there were.
fn come_and_go(node: Node, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            if node.topic("photos").unwrap().publishers.len() >= AT_ONCE {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            let publisher = node.publisher("photos").keep_last(EACH as u32);
            let publisher = publisher.deadline(LIMIT).create().unwrap();
            for tag in count * EACH..(count + 1) * EACH {
                let mut loan = publisher.loan(BYTES as u64).unwrap();
                loan.write(0, &content(tag, BYTES)).unwrap();
                loan.set_tag(tag);
                loan.publish().unwrap();
                std::thread::sleep(Duration::from_millis(tag % 7));
            }
            count += 1;
        }
        count
    })
}

/// Reads until it is stopped: how many messages there were of each publisher, which come in its order.
fn read(subscriber: Subscriber, stop: Arc<AtomicBool>) -> JoinHandle<BTreeMap<u64, u64>> {
    std::thread::spawn(move || {
        let mut seen = BTreeMap::new();
        while !stop.load(Ordering::Relaxed) {
            let Ok(sample) = subscriber.recv_timeout(Duration::from_millis(100)) else {
                continue;
            };
            let (publisher, number) = (sample.tag() / EACH, sample.tag() % EACH);
            let next = seen.entry(publisher).or_default();
            assert_eq!(number, *next, "of publisher {publisher}");
            *next += 1;
            assert!(sample.as_slice().unwrap() == content(sample.tag(), BYTES));
        }
        seen
    })
}

#[test]
fn what_publishers_published_that_left_while_the_way_changed_comes_through() {
    let ports = ports(4);
    // The first one and the last have two others between them.
    let around = [[1, 2], [0, 3], [0, 3], [1, 2]].into_iter().enumerate();
    let hosts = around.map(|(at, others)| start_among(&ports, at, &others, "outage_ms = 30000"));
    let mut hosts: Vec<_> = hosts.collect();
    let (here, there) = (hosts[0].node("here"), hosts[3].node("there"));
    let subscriber = there.subscriber("photos").reliable().create().unwrap();
    let stays = here.publisher("photos").create().unwrap();
    wait_for_subscribers(&stays, 1);
    let (stop, stop_reading): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
    let reading = read(subscriber, stop_reading.clone());
    let publishing = come_and_go(here.clone(), stop.clone());
    for (host, other) in [(1, "host-c"), (2, "host-b"), (1, "host-c"), (2, "host-b")] {
        std::thread::sleep(Duration::from_millis(1200));
        hosts[host].kill_links();
        let way = format!("through {other}");
        until("the other way", || {
            let remote = here.topic("photos").unwrap().remote;
            let mut rows = remote.iter();
            rows.any(|row| row.ready && row.path.starts_with(&way))
        });
        hosts[host].start_links();
    }
    std::thread::sleep(Duration::from_millis(1200));
    stop.store(true, Ordering::Relaxed);
    until("the publishers", || publishing.is_finished());
    let count = publishing.join().unwrap();
    // All are gone when all they published is confirmed.
    until("the publishers to be gone", || {
        here.topic("photos").unwrap().publishers.len() == 1
    });
    // What is confirmed is published there.
    std::thread::sleep(Duration::from_millis(500));
    stop_reading.store(true, Ordering::Relaxed);
    until("the subscriber", || reading.is_finished());
    let seen = reading.join().unwrap();
    let all: BTreeMap<u64, u64> = (0..count).map(|publisher| (publisher, EACH)).collect();
    assert_eq!(seen, all, "of {count} publishers");
}
