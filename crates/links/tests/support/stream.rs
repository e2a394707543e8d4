//! Messages that are published and read all the time, while something happens to the hosts.
#![allow(dead_code)]

use super::{content, receive, until, wait_for_subscribers, LIMIT};
use rgaps::{Node, PeerState, Publisher, Subscriber};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a host is reached, and through which.
pub fn state(node: &Node, host: &str) -> Option<(PeerState, String)> {
    let peers = node.peers().unwrap().peers;
    let row = peers.into_iter().find(|peer| peer.host == host)?;
    Some((row.state, row.detail))
}

/// Messages that crossed the link with a host.
pub fn crossed(node: &Node, host: &str) -> u64 {
    let peers = node.peers().unwrap().peers;
    let row = peers.iter().find(|peer| peer.host == host);
    row.map_or(0, |row| row.messages_out)
}

/// Reads all that is published; fails where something is missed, comes twice or is wrong.
pub struct Reader(JoinHandle<()>);

/// How many are published, as long as nobody knows.
const NOT_KNOWN: u64 = u64::MAX;

impl Reader {
    pub fn start(subscriber: Subscriber, bytes: usize, published: &Arc<AtomicU64>) -> Reader {
        let published = published.clone();
        Reader(std::thread::spawn(move || {
            let mut next = 0u64;
            let mut quiet = Instant::now();
            loop {
                let all = published.load(Ordering::Relaxed);
                if next == all {
                    break;
                }
                assert!(
                    all == NOT_KNOWN || quiet.elapsed() < LIMIT,
                    "{next} of {all} messages of topic '{}', and nothing for {LIMIT:?}",
                    subscriber.topic()
                );
                let Ok(sample) = subscriber.recv_timeout(Duration::from_millis(100)) else {
                    continue;
                };
                assert_eq!(
                    (sample.tag(), sample.missed()),
                    (next, 0),
                    "of topic '{}'",
                    subscriber.topic()
                );
                assert!(sample.as_slice().unwrap() == content(next, bytes));
                next += 1;
                quiet = Instant::now();
            }
            // What comes twice would be one more.
            let more = subscriber.recv_timeout(Duration::from_millis(300));
            assert!(more.is_err(), "{more:?}");
        }))
    }

    pub fn end(self) {
        // It has a limit of its own.
        self.0.join().unwrap();
    }
}

/// Publishes with increasing tags until it is stopped; how many.
pub fn publish(publisher: Publisher, bytes: usize, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let mut number = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let mut loan = publisher.loan(bytes as u64).unwrap();
            loan.write(0, &content(number, bytes)).unwrap();
            loan.set_tag(number);
            loan.publish().unwrap();
            number += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        number
    })
}

/// Publishes to these subscribers while something happens: each gets all of it, in order and once. How many messages
/// there were.
pub fn nothing_is_lost(
    publisher: Publisher,
    subscribers: Vec<Subscriber>,
    bytes: usize,
    what: impl FnOnce(),
) -> u64 {
    let (stop, all) = (Arc::default(), Arc::new(AtomicU64::new(NOT_KNOWN)));
    let readers: Vec<_> = subscribers
        .into_iter()
        .map(|subscriber| Reader::start(subscriber, bytes, &all))
        .collect();
    let publishing = publish(publisher, bytes, &stop);
    std::thread::sleep(Duration::from_millis(300));
    what();
    stop.store(true, Ordering::Relaxed);
    until("the publisher", || publishing.is_finished());
    let published = publishing.join().unwrap();
    all.store(published, Ordering::Relaxed);
    readers.into_iter().for_each(Reader::end);
    published
}

/// All publish `count` messages on the same topic and subscribe it, and each gets each message once, in its publisher's order.
/// `ready` is called when all paths are there, before anything is published.
pub fn all_talk(nodes: &[Node], count: u64, ready: impl FnOnce()) {
    let subscribers: Vec<_> = nodes
        .iter()
        .map(|node| node.subscriber("chat").reliable().create().unwrap())
        .collect();
    let publishers: Vec<_> = nodes
        .iter()
        .map(|node| {
            let publisher = node.publisher("chat").deadline(LIMIT);
            // All are published before any is read.
            publisher.keep_last(count as u32).create().unwrap()
        })
        .collect();
    for publisher in &publishers {
        wait_for_subscribers(publisher, nodes.len() as u32);
    }
    ready();
    for number in 0..count {
        for (at, publisher) in publishers.iter().enumerate() {
            publisher.put(&[at as u8, number as u8]).unwrap();
        }
    }
    for subscriber in &subscribers {
        let mut next = vec![0u8; nodes.len()];
        for _ in 0..nodes.len() as u64 * count {
            let sample = receive(subscriber);
            let bytes = sample.as_slice().unwrap();
            assert_eq!(bytes[1], next[bytes[0] as usize], "of host {}", bytes[0]);
            next[bytes[0] as usize] += 1;
        }
        // An echo would be one more.
        let more = subscriber.recv_timeout(Duration::from_millis(300));
        assert!(more.is_err(), "{more:?}");
    }
}

/// Waits until hosts are reached so.
pub fn reached(node: &Node, host: &str, how: PeerState) {
    until("a way", || {
        state(node, host).is_some_and(|(state, _)| state == how)
    });
}
