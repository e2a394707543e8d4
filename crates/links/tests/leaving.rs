//! Publishers that leave while the route to another host changes: all their messages arrive, once and in order.
mod support;

use rgaps::{Node, PeerState, Sample, Subscriber};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use support::stream::reached;
use support::{
    content, is_last, last_message, ports, start_among, until, wait_for_subscribers, LIMIT,
    LOOK_AGAIN,
};

const BYTES: usize = 5_000;
/// Messages of each publisher.
const EACH: u64 = 6;
/// Publishers at the same time, including those that have left and whose messages are on their way. A topic may have 16 on a host.
/// The host where messages land has more of them than this one for a while, so some have to wait for a seat.
const AT_ONCE: usize = 13;
/// How many publishers come and leave between two kills.
const SOME: u64 = 30;

/// Creates publishers that publish and leave, until `stop` is set. `count`: how many have left so far.
fn come_and_go(node: Node, count: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            if node.topic("photos").unwrap().publishers.len() >= AT_ONCE {
                std::thread::sleep(LOOK_AGAIN);
                continue;
            }
            let publisher = node.publisher("photos").keep_last(EACH as u32);
            let publisher = publisher.deadline(LIMIT).create().unwrap();
            let number = count.load(Ordering::SeqCst);
            for tag in number * EACH..(number + 1) * EACH {
                let mut loan = publisher.loan(BYTES as u64).unwrap();
                loan.write(0, &content(tag, BYTES)).unwrap();
                loan.set_tag(tag);
                loan.publish().unwrap();
                // Leaves the processor to the hosts; nothing depends on how long.
                std::thread::sleep(Duration::from_millis(tag % 7));
            }
            count.store(number + 1, Ordering::SeqCst);
        }
    })
}

/// Reads until the last message and those that arrived with it. Returns how many messages there were of each publisher, and checks
/// that each publisher's come in order.
fn read(subscriber: Subscriber) -> JoinHandle<BTreeMap<u64, u64>> {
    std::thread::spawn(move || {
        let mut seen = BTreeMap::new();
        let mut take = |sample: Sample| {
            let bytes = sample.as_slice().unwrap();
            if is_last(bytes) {
                return false;
            }
            let (publisher, number) = (sample.tag() / EACH, sample.tag() % EACH);
            let next = seen.entry(publisher).or_default();
            assert_eq!(number, *next, "of publisher {publisher}");
            *next += 1;
            assert!(bytes == content(sample.tag(), BYTES));
            true
        };
        while take(subscriber.recv().unwrap()) {}
        while let Some(sample) = subscriber.try_recv().unwrap() {
            assert!(take(sample), "the last message came twice");
        }
        seen
    })
}

#[test]
fn what_publishers_published_that_left_while_the_way_changed_comes_through() {
    let ports = ports(4);
    // Two hosts lie between the first and the last, side by side.
    let around = [[1, 2], [0, 3], [0, 3], [1, 2]].into_iter().enumerate();
    let hosts = around.map(|(at, others)| start_among(&ports, at, &others, "outage_ms = 300000"));
    let mut hosts: Vec<_> = hosts.collect();
    let (here, there) = (hosts[0].node("here"), hosts[3].node("there"));
    let subscriber = there.subscriber("photos").reliable().create().unwrap();
    let stays = here.publisher("photos").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&stays, 1);
    let (count, stop): (Arc<AtomicU64>, Arc<AtomicBool>) = Default::default();
    let reading = read(subscriber);
    let publishing = come_and_go(here.clone(), count.clone(), stop.clone());
    // Waits until `SOME` more publishers have come and left.
    let some_more = || {
        let before = count.load(Ordering::SeqCst);
        until("publishers to come and leave", || {
            count.load(Ordering::SeqCst) >= before + SOME
        });
    };
    for (host, other) in [(1, "host-c"), (2, "host-b"), (1, "host-c"), (2, "host-b")] {
        some_more();
        hosts[host].kill_links();
        let way = format!("through {other}");
        until("the other way", || {
            let remote = here.topic("photos").unwrap().remote;
            let mut rows = remote.iter();
            rows.any(|row| row.ready && row.path.starts_with(&way))
        });
        hosts[host].start_links();
        reached(&here, &hosts[host].name, PeerState::Linked);
    }
    some_more();
    stop.store(true, Ordering::SeqCst);
    until("the publishers", || publishing.is_finished());
    publishing.join().unwrap();
    // A publisher is forgotten when all its messages are confirmed, and confirmed messages are published there.
    until("the publishers to be gone", || {
        here.topic("photos").unwrap().publishers.len() == 1
    });
    stays.put(last_message()).unwrap();
    until("the subscriber", || reading.is_finished());
    let seen = reading.join().unwrap();
    let count = count.load(Ordering::SeqCst);
    let all: BTreeMap<u64, u64> = (0..count).map(|publisher| (publisher, EACH)).collect();
    assert_eq!(seen, all, "of {count} publishers");
}
