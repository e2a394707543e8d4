//! Messages that are published and read all the time, while something happens to the hosts.
#![allow(dead_code)]

use super::{content, until};
use rgaps::{Node, PeerState, Publisher, Subscriber};
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Reads what is published until there is a pause; fails where something is missed, comes twice or is wrong.
pub struct Reader(std::thread::JoinHandle<u64>);

impl Reader {
    pub fn start(subscriber: Subscriber, bytes: usize, stop: &Arc<AtomicBool>) -> Reader {
        let stop = stop.clone();
        Reader(std::thread::spawn(move || {
            let mut next = 0u64;
            let mut quiet = Instant::now();
            while !stop.load(Ordering::Relaxed) || quiet.elapsed() < Duration::from_secs(3) {
                let Ok(sample) = subscriber.recv_timeout(Duration::from_millis(100)) else {
                    continue;
                };
                assert_eq!(
                    sample.tag(),
                    next,
                    "of topic '{}', after {} missed",
                    subscriber.topic(),
                    sample.missed()
                );
                assert!(sample.as_slice().unwrap() == content(next, bytes));
                next += 1;
                quiet = Instant::now();
            }
            next
        }))
    }

    pub fn end(self) -> u64 {
        until("a subscriber", || self.0.is_finished());
        self.0.join().unwrap()
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

/// Waits until hosts are reached so.
pub fn reached(node: &Node, host: &str, how: PeerState) {
    until("a way", || {
        state(node, host).is_some_and(|(state, _)| state == how)
    });
}
