//! Random delays: a publisher and two subscribers use random streams, blocks are reused at once, and every message is
//! checked. Runs `RGAPS_TEST_SEEDS` seeds, the first of which is `RGAPS_TEST_SEED`.

use crate::gpu::{gpu, role_node, Gpu, Pinned};
use crate::harness::{alone, is_alone, say, until, Process, SOON};
use rgaps::{Publisher, RecvError, Sample, Subscriber};
use rgaps_cuda::CudaStream;
use rgaps_testkit::{Daemon, Random};
use std::collections::VecDeque;

const MESSAGES: u64 = 120;
const BYTES: u64 = 1 << 16;
const END: u64 = u64::MAX;

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    text.parse().unwrap_or(otherwise)
}

/// Role: the publisher or one of the two subscribers, as `RGAPS_TEST_KIND` names it.
pub fn member() {
    let (seed, kind) = (
        number("RGAPS_TEST_SEED", 1),
        std::env::var("RGAPS_TEST_KIND"),
    );
    let kind = kind.unwrap();
    let salt = kind.bytes().map(u64::from).sum::<u64>();
    let mut random = Random::new(seed ^ salt << 32);
    let gpu = gpu();
    let node = role_node(&kind);
    if kind == "publisher" {
        let publisher = node.publisher("t").domain(gpu.domain).keep_last(2);
        let publisher = publisher
            .deadline(SOON)
            .loan_timeout(SOON)
            .create()
            .unwrap();
        assert!(publisher.wait_for_subscribers(2, SOON).unwrap());
        return publish(&gpu, &publisher, &mut random);
    }
    let mut builder = node.subscriber("t");
    if kind == "reliable" {
        builder = builder.reliable();
    }
    let wrong = subscribe(&gpu, &builder.create().unwrap(), &mut random);
    say(&format!("wrong: {wrong}"));
}

fn publish(gpu: &Gpu, publisher: &Publisher, random: &mut Random) {
    let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
    for message in 1..=MESSAGES {
        let stream = &streams[random.below(3) as usize];
        let value = (message % 251) as u8;
        let fill = |value| {
            let loan = publisher.loan(BYTES).unwrap();
            // SAFETY: the loan's bytes are ours until the stream has passed.
            unsafe { stream.fill(loan.address(), value, BYTES).unwrap() };
            loan
        };
        if random.below(4) == 0 {
            // No subscriber may ever read this value.
            fill(255).discard_on(stream.handle());
        }
        let mut loan = fill(value);
        loan.set_tag(u64::from(value));
        loan.publish_on(stream.handle()).unwrap();
    }
    let mut last = publisher.loan(1).unwrap();
    last.set_tag(END);
    last.publish().unwrap();
}

/// A queued copy of a message.
struct Copy {
    bytes: Pinned,
    stream: usize,
    value: u8,
}

/// Receives all messages, and returns how many copies of them had wrong bytes.
fn subscribe(gpu: &Gpu, subscriber: &Subscriber, random: &mut Random) -> u64 {
    let waits = std::env::var_os("RGAPS_TEST_SKIP_WAITS").is_none();
    let streams = [gpu.stream(), gpu.stream()];
    let mut spare: Vec<Pinned> = (0..8).map(|_| Pinned::new(gpu, BYTES as usize)).collect();
    let mut copies = VecDeque::new();
    let mut held: VecDeque<(Sample, usize)> = VecDeque::new();
    let mut wrong = 0;
    loop {
        let sample = match subscriber.recv_timeout(SOON) {
            Ok(sample) => sample,
            Err(RecvError::TooManyHeld { .. }) => {
                held.pop_front();
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        if sample.tag() == END {
            break;
        }
        let value = sample.tag() as u8;
        let number = random.below(2) as usize;
        let stream = &streams[number];
        if random.below(5) == 0 {
            // Reads on the CPU.
            let mut bytes = vec![0; BYTES as usize];
            sample.read(0, &mut bytes).unwrap();
            wrong += u64::from(bytes.iter().any(|byte| *byte != value));
            continue;
        }
        if spare.is_empty() {
            wrong += check(&mut copies, &mut spare, &streams);
        }
        let bytes = spare.pop().unwrap();
        if waits {
            sample.wait_on(stream.handle()).unwrap();
        }
        bytes.take(stream, &sample);
        copies.push_back(Copy {
            bytes,
            stream: number,
            value,
        });
        match random.below(4) {
            0 => held.push_back((sample, number)),
            1 => {
                // The other stream reads the message, too.
                let other = &streams[1 - number];
                let clone = sample.clone();
                if waits {
                    clone.wait_on(other.handle()).unwrap();
                }
                let again = Pinned::new(gpu, BYTES as usize);
                again.take(other, &clone);
                copies.push_back(Copy {
                    bytes: again,
                    stream: 1 - number,
                    value,
                });
                drop(sample);
                clone.release_on(other.handle());
            }
            2 if waits => drop(sample),
            _ => sample.release_on(stream.handle()),
        }
        if held.len() > 3 {
            let (sample, number) = held.pop_front().unwrap();
            sample.release_on(streams[number].handle());
        }
    }
    while !copies.is_empty() {
        wrong += check(&mut copies, &mut spare, &streams);
    }
    wrong
}

/// Waits for the oldest copy and checks it. Returns 1 if it is wrong, else 0.
fn check(copies: &mut VecDeque<Copy>, spare: &mut Vec<Pinned>, streams: &[CudaStream]) -> u64 {
    let Some(copy) = copies.pop_front() else {
        return 0;
    };
    until("a copy is made", || streams[copy.stream].is_idle().unwrap());
    let is_wrong = copy.bytes.value(BYTES as usize) != Some(copy.value);
    spare.push(copy.bytes);
    is_wrong.into()
}

/// Returns how many copies of both subscribers had wrong bytes.
fn run(seed: u64, skip_waits: bool) -> u64 {
    gpu();
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"16MiB\"\n");
    let seed = seed.to_string();
    let start = |kind| {
        let mut settings = vec![
            ("RGAPS_TEST_KIND", kind),
            ("RGAPS_TEST_SEED", &*seed),
            ("RGAPS_TEST_DRIVER_SEED", &*seed),
        ];
        match skip_waits {
            false => settings.push(("RGAPS_TEST_DRIVER_DELAY_US", "1500")),
            true => settings.extend([
                ("RGAPS_TEST_DRIVER_DELAY_US", "15000"),
                ("RGAPS_TEST_SKIP_WAITS", "1"),
            ]),
        }
        Process::role("seed", &daemon, &settings)
    };
    let subscribers = ["reliable", "best effort"].map(start);
    start("publisher").finish();
    let mut wrong = 0;
    for subscriber in subscribers {
        let said = subscriber.hear();
        wrong += said
            .strip_prefix("wrong: ")
            .unwrap()
            .parse::<u64>()
            .unwrap();
        subscriber.finish();
    }
    wrong
}

#[test]
fn no_message_is_read_too_early_or_overwritten_too_soon() {
    let first = number("RGAPS_TEST_SEED", 1);
    for seed in first..first + number("RGAPS_TEST_SEEDS", 5) {
        println!("seed {seed}");
        alone(&[("RGAPS_TEST_SEED", &seed.to_string())], || {
            assert_eq!(run(number("RGAPS_TEST_SEED", 1), false), 0);
        });
        if is_alone() {
            return;
        }
    }
}

/// Proves that the test above can fail.
#[test]
fn readers_that_skip_the_wait_are_caught() {
    if crate::gpu::is_real() {
        return println!("a real GPU is not slowed down");
    }
    alone(&[], || {
        // On a busy machine a reader may be as slow as the delays, and see no error: hence many seeds.
        let caught = (1..=20).any(|seed| run(seed, true) > 0);
        assert!(caught, "nobody was caught");
    });
}
