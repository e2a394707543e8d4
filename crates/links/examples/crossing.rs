//! Messages that cross between machines, each byte of each checked: what tests/vm runs in its guests.
//!
//! `crossing publish TOPIC MESSAGES SUBSCRIBERS` waits for so many subscribers and publishes;
//! `crossing subscribe TOPIC MESSAGES` fails where a message is missed, comes twice, is out of order or wrong, and says on
//! standard output what came.
#![forbid(unsafe_code)]

use anyhow::{bail, ensure, Context};
use rgaps::Node;
use std::time::{Duration, Instant};

/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(150);
/// Messages that a late machine may be behind.
const KEPT: u32 = 32;

/// Sizes from nothing to 64 MiB, most of them small.
fn bytes_of(number: u64) -> usize {
    const SMALL: [usize; 7] = [0, 1, 64, 300, 1000, 4000, 9000];
    match number {
        _ if number % 4000 == 1500 => 64 << 20,
        _ if number % 400 == 77 => (1 << 20) + 1,
        _ if number % 100 == 33 => 300_000,
        _ if number % 50 == 9 => (64 << 10) + 3,
        _ => SMALL[(number % 7) as usize],
    }
}

fn content(number: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|at| {
        let mixed = (number << 32 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).to_le_bytes()
    });
    let mut content: Vec<u8> = words.flatten().collect();
    content.truncate(bytes);
    content
}

fn publish(node: &Node, topic: &str, messages: u64, subscribers: u32) -> anyhow::Result<()> {
    let publisher = node.publisher(topic).keep_last(KEPT).deadline(LIMIT);
    let publisher = publisher.create()?;
    publisher.wait_for_subscribers(subscribers, LIMIT)?;
    let begun = Instant::now();
    let mut sum = 0;
    for number in 0..messages {
        let bytes = bytes_of(number);
        let mut loan = publisher.loan(bytes as u64)?;
        loan.write(0, &content(number, bytes))?;
        loan.set_tag(number);
        if let Err(unpublished) = loan.publish() {
            bail!("message {number}: {}", unpublished.error);
        }
        sum += bytes;
    }
    // Reliable subscribers have all when nothing of ours is kept for them.
    let seconds = begun.elapsed().as_secs_f64();
    println!("{{\"published\": {messages}, \"bytes\": {sum}, \"seconds\": {seconds:.3}}}");
    Ok(())
}

fn subscribe(node: &Node, topic: &str, messages: u64) -> anyhow::Result<()> {
    let subscriber = node.subscriber(topic).reliable().create()?;
    let mut sum = 0;
    for number in 0..messages {
        let sample = subscriber
            .recv_timeout(LIMIT)
            .with_context(|| format!("message {number}"))?;
        let (tag, missed) = (sample.tag(), sample.missed());
        ensure!(
            (tag, missed) == (number, 0),
            "message {tag} with {missed} missed instead of {number}"
        );
        let bytes = bytes_of(number);
        ensure!(
            sample.as_slice()? == content(number, bytes),
            "message {number} of {bytes} bytes is wrong"
        );
        sum += bytes;
    }
    if let Ok(sample) = subscriber.recv_timeout(Duration::from_millis(300)) {
        bail!("message {} came beyond the last", sample.tag());
    }
    println!("{{\"received\": {messages}, \"bytes\": {sum}}}");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["publish", topic, messages, subscribers] => {
            let node = Node::new("crossing-publish")?;
            publish(&node, topic, messages.parse()?, subscribers.parse()?)?;
            // The links take what is kept as long as its publisher is there.
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        }
        ["subscribe", topic, messages] => {
            subscribe(&Node::new("crossing-subscribe")?, topic, messages.parse()?)
        }
        _ => bail!(
            "crossing publish TOPIC MESSAGES SUBSCRIBERS, or crossing subscribe TOPIC MESSAGES"
        ),
    }
}
