//! Messages that are published and read continuously while a test disturbs the hosts.
#![allow(dead_code)]

use super::{content, is_last, last_message, receive, until, wait_for_subscribers, LIMIT};
use rgaps::{Node, PeerState, Publisher, Subscriber};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// How a host is reached, with details such as the hosts on the route.
pub fn state(node: &Node, host: &str) -> Option<(PeerState, String)> {
    let peers = node.peers().unwrap().peers;
    let row = peers.into_iter().find(|peer| peer.host == host)?;
    Some((row.state, row.detail))
}

/// How many messages were sent over the link to a host.
pub fn crossed(node: &Node, host: &str) -> u64 {
    let peers = node.peers().unwrap().peers;
    let row = peers.iter().find(|peer| peer.host == host);
    row.map_or(0, |row| row.messages_out)
}

/// Traffic during a test: how many messages were published, and how many each reader has.
pub struct Traffic {
    published: Arc<AtomicU64>,
    read: Vec<Arc<AtomicU64>>,
}

impl Traffic {
    /// Waits until every reader has a message that was published after this call.
    pub fn flows(&self) {
        let published = self.published.load(Ordering::SeqCst);
        until("messages to come through", || {
            self.read
                .iter()
                .all(|read| read.load(Ordering::SeqCst) > published)
        });
    }
}

/// Reads until the last message; panics if a message is missed, arrives twice or has wrong bytes.
struct Reader {
    read: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn start(subscriber: Subscriber, bytes: usize) -> Reader {
        let read: Arc<AtomicU64> = Arc::default();
        let counter = read.clone();
        let thread = std::thread::spawn(move || {
            let topic = subscriber.topic().to_owned();
            loop {
                // Has no time limit: an outage may last, and the test limits its own waits.
                let sample = subscriber.recv().unwrap();
                let next = counter.load(Ordering::SeqCst);
                let got = (sample.tag(), sample.missed());
                assert_eq!(got, (next, 0), "of topic '{topic}'");
                let payload = sample.as_slice().unwrap();
                if is_last(payload) {
                    break;
                }
                assert!(payload == content(next, bytes), "message {next}");
                counter.store(next + 1, Ordering::SeqCst);
            }
        });
        Reader { read, thread }
    }

    fn end(self) {
        let Reader { read, thread } = self;
        let mut seen = (read.load(Ordering::SeqCst), std::time::Instant::now());
        while !thread.is_finished() {
            let now = read.load(Ordering::SeqCst);
            if now > seen.0 {
                seen = (now, std::time::Instant::now());
            }
            assert!(
                seen.1.elapsed() < LIMIT,
                "{now} messages were read, and none more for {LIMIT:?}"
            );
            std::thread::sleep(super::LOOK_AGAIN);
        }
        thread.join().unwrap();
    }
}

/// Publishes with increasing tags until it is stopped, and then the last message. Returns how many messages were before that.
fn publish(
    publisher: Publisher,
    bytes: usize,
    published: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let send = |tag: u64, payload: &[u8]| {
            let mut loan = publisher.loan(payload.len() as u64).unwrap();
            loan.write(0, payload).unwrap();
            loan.set_tag(tag);
            loan.publish().unwrap();
        };
        let mut number = 0u64;
        while !stop.load(Ordering::SeqCst) {
            send(number, &content(number, bytes));
            number += 1;
            published.store(number, Ordering::SeqCst);
            // Leaves the processor to the hosts; nothing depends on how long.
            std::thread::sleep(super::LOOK_AGAIN);
        }
        send(number, last_message());
        number
    })
}

/// Publishes while `what` happens, and checks that each subscriber gets every message, in order and once. Returns how many messages
/// there were, including the last one.
pub fn nothing_is_lost(
    publisher: Publisher,
    subscribers: Vec<Subscriber>,
    bytes: usize,
    what: impl FnOnce(&Traffic),
) -> u64 {
    let stop: Arc<AtomicBool> = Arc::default();
    let readers: Vec<_> = subscribers
        .into_iter()
        .map(|subscriber| Reader::start(subscriber, bytes))
        .collect();
    let traffic = Traffic {
        published: Arc::default(),
        read: readers.iter().map(|reader| reader.read.clone()).collect(),
    };
    let publishing = publish(publisher, bytes, traffic.published.clone(), stop.clone());
    traffic.flows();
    what(&traffic);
    stop.store(true, Ordering::SeqCst);
    until("the publisher", || publishing.is_finished());
    let published = publishing.join().unwrap();
    readers.into_iter().for_each(Reader::end);
    published + 1
}

/// Lets all nodes publish `count` messages on the same topic and subscribe to it, and checks that each gets each message once, in its
/// publisher's order. Calls `ready` when all paths exist, before anything is published.
pub fn all_talk(nodes: &[Node], count: u64, ready: impl FnOnce()) {
    let subscribers: Vec<_> = nodes
        .iter()
        .map(|node| node.subscriber("chat").reliable().create().unwrap())
        .collect();
    let publishers: Vec<_> = nodes
        .iter()
        .map(|node| {
            let publisher = node.publisher("chat").deadline(LIMIT);
            // Keeps all messages, since all are published before any is read.
            publisher.keep_last(count as u32).create().unwrap()
        })
        .collect();
    for publisher in &publishers {
        wait_for_subscribers(publisher, nodes.len() as u32);
    }
    ready();
    let mut next = vec![vec![0u8; nodes.len()]; nodes.len()];
    // If messages of the first round echoed, the echoes would arrive among those of the second.
    for numbers in [0..count - 1, count - 1..count] {
        for number in numbers.clone() {
            for (at, publisher) in publishers.iter().enumerate() {
                publisher.put(&[at as u8, number as u8]).unwrap();
            }
        }
        for (subscriber, next) in subscribers.iter().zip(&mut next) {
            for _ in 0..nodes.len() as u64 * (numbers.end - numbers.start) {
                let sample = receive(subscriber);
                let bytes = sample.as_slice().unwrap();
                assert_eq!(bytes[1], next[bytes[0] as usize], "of host {}", bytes[0]);
                next[bytes[0] as usize] += 1;
            }
        }
    }
    for subscriber in &subscribers {
        assert!(matches!(subscriber.try_recv(), Ok(None)), "an echo");
    }
}

/// Waits until a host is reached neither directly nor through others.
pub fn lost(node: &Node, host: &str) {
    until("a host to be lost", || {
        !state(node, host)
            .is_some_and(|(state, _)| matches!(state, PeerState::Linked | PeerState::Through))
    });
}

/// Waits until a host is reached in this state.
pub fn reached(node: &Node, host: &str, how: PeerState) {
    until("a way", || {
        state(node, host).is_some_and(|(state, _)| state == how)
    });
}
