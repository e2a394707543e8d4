//! Honest members: a publisher and a subscriber that check every byte, order and number.

use rgaps::{Config, Node, RecvError};
use rgaps_testkit::{mix, until, Random, LIMIT};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a wait is, between looks whether it is enough.
const WAIT: Duration = Duration::from_millis(20);
/// Largest message.
const BYTES_MAX: u64 = 40_000;
/// Samples that are held for a while.
const HELD: usize = 8;

/// Fills a message with what follows from its number and length.
pub fn fill(sequence: u64, bytes: &mut [u8]) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = byte_of(sequence, at);
    }
}

/// Whether the bytes are what `fill` wrote.
pub fn holds(sequence: u64, bytes: &[u8]) -> bool {
    let mut bytes = bytes.iter().enumerate();
    bytes.all(|(at, byte)| *byte == byte_of(sequence, at))
}

fn byte_of(sequence: u64, at: usize) -> u8 {
    (mix(sequence ^ (at as u64 >> 3) << 20) >> ((at & 7) * 8)) as u8
}

/// What the members are to make of what goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing goes wrong: every message arrives, in order, with its bytes.
    Perfection,
    /// Somebody scribbles on this very topic: errors and wrong messages may come, but every call
    /// returns and every byte can be read.
    Survival,
}

#[derive(Default)]
struct Counts {
    published: AtomicU64,
    received: AtomicU64,
    errors: AtomicU64,
}

/// A publisher and a reliable subscriber in threads of this process.
pub struct Pair {
    name: String,
    /// For the publisher; and for the subscriber, when the publisher has ended.
    stop: [Arc<AtomicBool>; 2],
    counts: Arc<Counts>,
    threads: [JoinHandle<()>; 2],
}

impl Pair {
    /// Members of `topic`, each with a node of its own.
    pub fn start(config: &Config, topic: &str, expect: Expect, seed: u64) -> Pair {
        let stop = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let counts = Arc::new(Counts::default());
        let node = |name: &str| {
            let builder = Node::builder(name).config(config.clone());
            builder.build().expect("a node")
        };
        let subscriber = node("honest-subscriber")
            .subscriber(topic)
            .reliable()
            .create()
            .expect("a subscriber");
        let publisher = node("honest-publisher")
            .publisher(topic)
            .keep_last(8)
            .deadline(match expect {
                Expect::Perfection => LIMIT,
                Expect::Survival => Duration::from_millis(50),
            })
            .create()
            .expect("a publisher");
        let (stopped, counted) = (stop[0].clone(), counts.clone());
        let publishing = std::thread::spawn(move || {
            publish(&publisher, expect, seed, &stopped, &counted);
        });
        let (stopped, counted) = (stop[1].clone(), counts.clone());
        let subscribing = std::thread::spawn(move || {
            subscribe(&subscriber, expect, &stopped, &counted);
        });
        Pair {
            name: topic.to_owned(),
            stop,
            counts,
            threads: [publishing, subscribing],
        }
    }

    /// Messages received so far.
    pub fn received(&self) -> u64 {
        self.counts.received.load(Ordering::Acquire)
    }

    /// Waits until this many more messages have come.
    pub fn goes_on(&self, messages: u64) {
        let before = self.received();
        until("honest members to go on", || {
            self.assert_alive();
            self.received() >= before + messages
        });
    }

    /// Fails if a member's thread has panicked.
    pub fn assert_alive(&self) {
        let ended = self.threads.iter().any(JoinHandle::is_finished);
        assert!(!ended, "a member of '{}' gave up", self.name);
    }

    /// Ends both. Returns messages published and received, and errors. Fails if one of them
    /// panicked, or does not come back.
    pub fn end(self) -> (u64, u64, u64) {
        for (thread, stop) in self.threads.into_iter().zip(self.stop) {
            stop.store(true, Ordering::Release);
            until("an honest member to come back", || thread.is_finished());
            thread.join().expect("an honest member panicked");
        }
        let get = |count: &AtomicU64| count.load(Ordering::Acquire);
        (
            get(&self.counts.published),
            get(&self.counts.received),
            get(&self.counts.errors),
        )
    }
}

fn publish(
    publisher: &rgaps::Publisher,
    expect: Expect,
    seed: u64,
    stop: &AtomicBool,
    counts: &Counts,
) {
    let mut random = Random::new(seed);
    let mut sequence = 0;
    while !stop.load(Ordering::Acquire) {
        let outcome = publish_one(publisher, sequence, random.below(BYTES_MAX));
        match (outcome, expect) {
            (Ok(_), _) => {
                sequence += 1;
                counts.published.store(sequence, Ordering::Release);
            }
            (Err(error), Expect::Perfection) => panic!("publishing: {error}"),
            (Err(_), Expect::Survival) => {
                counts.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(500)));
    }
}

fn publish_one(
    publisher: &rgaps::Publisher,
    sequence: u64,
    bytes: u64,
) -> Result<u64, Box<dyn std::error::Error>> {
    let mut loan = publisher.loan(bytes)?;
    fill(sequence, loan.as_mut_slice()?);
    loan.set_tag(sequence);
    Ok(loan.publish()?)
}

fn subscribe(subscriber: &rgaps::Subscriber, expect: Expect, stop: &AtomicBool, counts: &Counts) {
    let mut held = Vec::new();
    let mut next = 0;
    // A perfect subscriber takes all that was published before the end.
    let done = |next: u64| {
        stop.load(Ordering::Acquire)
            && (expect == Expect::Survival || next >= counts.published.load(Ordering::Acquire))
    };
    while !done(next) {
        match subscriber.recv_timeout(WAIT) {
            Ok(sample) => {
                let right = is_whole(&sample);
                if expect == Expect::Perfection {
                    assert!(right, "the bytes of message {} are wrong", sample.tag());
                    assert_eq!((sample.tag(), sample.missed()), (next, 0), "out of order");
                }
                next += 1;
                counts.received.fetch_add(1, Ordering::Release);
                held.push(sample);
            }
            Err(RecvError::TimedOut(_)) => {}
            Err(error) if expect == Expect::Perfection => panic!("receiving: {error}"),
            Err(_) => {
                counts.errors.fetch_add(1, Ordering::Relaxed);
                held.clear();
            }
        }
        if held.len() > HELD {
            for sample in held.drain(..) {
                let right = is_whole(&sample);
                assert!(
                    right || expect == Expect::Survival,
                    "bytes changed while held"
                );
            }
        }
    }
}

/// Whether a sample holds what belongs to its tag. A descriptor that is scribbled on may wait for work
/// that never was, and without a limit one would wait for ever with it.
fn is_whole(sample: &rgaps::Sample) -> bool {
    let there = sample.synchronize(WAIT).and_then(|()| sample.as_slice());
    there.is_ok_and(|bytes| holds(sample.tag(), bytes))
}
