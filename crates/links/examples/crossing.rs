//! Sends messages between machines, and checks every byte. tests/vm runs it in its guests.
//!
//! `crossing publish TOPIC FROM TO OPTION...` waits for four subscribers and publishes the messages with these numbers.
//! `kept=N` keeps so many; `transient` keeps them for late subscribers; `until=FILE` stays until the file exists.
//!
//! `crossing subscribe TOPIC FROM TO OPTION...` fails if one of these messages is missed, out of order or wrong, or arrives twice.
//! `twice=N` allows so many to arrive twice. `cut=N`: those below N are of a publisher that is killed, and only the first ones of
//! them need arrive, without a gap. `late` asks for kept messages; `hold` never releases the large message.
//!
//! Both get the number and size of a large message, `at=N mib=N`, and print where they are: `near` 16 messages before it, when it may
//! be on its way already; `large` at it; and the counts at the end.
#![forbid(unsafe_code)]

use anyhow::{bail, ensure, Context};
use rgaps::{Late, Node, Sample};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The limit for each wait.
const LIMIT: Duration = Duration::from_secs(150);
/// How long to wait for messages that should not arrive.
const QUIET: Duration = Duration::from_secs(1);
const SUBSCRIBERS: u32 = 4;
const SEED: u64 = 20_261_122;
/// Messages consist of pieces of the same bytes, so that a debug build makes and compares them fast.
const PIECE: usize = 16 << 10;
const BYTES: usize = 128 << 10;

/// Mixes all bits, as splitmix64 does.
fn mixed(number: u64) -> u64 {
    let mut word = (number ^ SEED).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

struct Messages {
    numbers: Range<u64>,
    /// The number of the large message, and its size in bytes.
    large: (u64, usize),
    bytes: Vec<u8>,
}

impl Messages {
    fn new(numbers: Range<u64>, large: u64, mib: u64) -> Self {
        let mut bytes = vec![0; BYTES + PIECE];
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&mixed(at as u64).to_le_bytes());
        }
        Messages {
            numbers,
            large: (large, (mib << 20) as usize),
            bytes,
        }
    }

    /// The size of a message in bytes: from 0 to a little more than 1 MiB, mostly small; or that of the large one.
    fn size(&self, number: u64) -> usize {
        const SMALL: [usize; 8] = [0, 1, 8, 64, 300, 1000, 4000, 9000];
        let random = mixed(!number) as usize;
        match random % 500 {
            _ if number == self.large.0 => self.large.1,
            0 => (1 << 20) + 1,
            1..=4 => 300_000 + random % 1000,
            5..=14 => (64 << 10) + 3,
            _ => SMALL[random / 500 % SMALL.len()],
        }
    }

    /// The pieces of a message, each with its offset.
    fn pieces(&self, number: u64) -> impl Iterator<Item = (usize, &[u8])> {
        let size = self.size(number);
        (0..size).step_by(PIECE).map(move |at| {
            let from = mixed(number << 24 ^ at as u64) as usize % BYTES;
            (at, &self.bytes[from..from + PIECE.min(size - at)])
        })
    }

    fn is(&self, number: u64, bytes: &[u8]) -> bool {
        bytes.len() == self.size(number)
            && self
                .pieces(number)
                .all(|(at, piece)| bytes[at..at + piece.len()] == *piece)
    }

    /// Prints `near` and `large`, for a script that kills a process there.
    fn say_where(&self, number: u64) {
        if Some(number) == self.large.0.checked_sub(16) {
            println!("near");
        } else if number == self.large.0 {
            println!("large");
        }
    }
}

/// The options after the numbers.
struct Options<'a>(&'a [&'a str]);

impl<'a> Options<'a> {
    fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.0.iter().filter_map(|option| option.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str, otherwise: u64) -> anyhow::Result<u64> {
        let text = self.text(name);
        text.map_or(Ok(otherwise), |text| text.parse().context("a number"))
    }
}

fn publish(topic: &str, messages: &Messages, options: &Options) -> anyhow::Result<()> {
    let node = Node::new("crossing-publish")?;
    let kept = options.number("kept", 32)?;
    let mut publisher = node.publisher(topic).keep_last(kept as u32).deadline(LIMIT);
    if options.has("transient") {
        publisher = publisher.transient_local();
    }
    let publisher = publisher.create()?;
    ensure!(
        publisher.wait_for_subscribers(SUBSCRIBERS, LIMIT)?,
        "there are {} of {SUBSCRIBERS} subscribers",
        publisher.subscribers()
    );
    let begun = Instant::now();
    let mut sum = 0;
    for number in messages.numbers.clone() {
        let size = messages.size(number);
        let mut loan = publisher.loan(size as u64)?;
        for (at, piece) in messages.pieces(number) {
            loan.write(at as u64, piece)?;
        }
        loan.set_tag(number);
        if let Err(unpublished) = loan.publish() {
            bail!("message {number}: {}", unpublished.error);
        }
        messages.say_where(number);
        sum += size;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let count = messages.numbers.end - messages.numbers.start;
    println!("{{\"topic\": \"{topic}\", \"published\": {count}, \"bytes\": {sum}, \"seconds\": {seconds:.3}}}");
    // Restarted links can take the kept messages as long as their publisher exists.
    options.text("until").map_or(Ok(()), wait)
}

fn wait(file: impl AsRef<Path>) -> anyhow::Result<()> {
    let file: PathBuf = file.as_ref().into();
    let begun = Instant::now();
    while !file.exists() {
        ensure!(begun.elapsed() < LIMIT, "no {}", file.display());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The messages that a subscriber has received.
#[derive(Default)]
struct Taken {
    numbers: BTreeSet<u64>,
    /// The last number by publishers on this host: restarted links are another publisher. Each has an order of its own.
    last: BTreeMap<u64, u64>,
    twice: u64,
    bytes: u64,
}

impl Taken {
    fn take(&mut self, messages: &Messages, sample: &Sample) -> anyhow::Result<u64> {
        let (number, missed) = (sample.tag(), sample.missed());
        ensure!(
            messages.numbers.contains(&number) && missed == 0,
            "message {number} with {missed} missed"
        );
        let bytes = sample.as_slice()?;
        ensure!(
            messages.is(number, bytes),
            "message {number} of {} bytes is wrong; it has {}",
            messages.size(number),
            bytes.len()
        );
        let last = self.last.insert(sample.publisher_id(), number);
        ensure!(
            last.is_none_or(|last| last < number),
            "message {number} came after {last:?}"
        );
        self.bytes += bytes.len() as u64;
        self.twice += u64::from(!self.numbers.insert(number));
        Ok(number)
    }

    /// How many messages of the killed publisher were received: those below `cut`.
    fn of_first(&self, cut: u64) -> u64 {
        self.numbers.range(..cut).count() as u64
    }

    /// Whether all messages of the last publisher were received.
    fn is_complete(&self, numbers: &Range<u64>, cut: u64) -> bool {
        self.numbers.range(cut..).count() as u64 == numbers.end - cut
    }
}

fn subscribe(topic: &str, messages: &Messages, options: &Options) -> anyhow::Result<()> {
    let node = Node::new("crossing-subscribe")?;
    let mut subscriber = node.subscriber(topic).reliable();
    if options.has("late") {
        subscriber = subscriber.late(Late::AllKept);
    }
    let subscriber = subscriber.create()?;
    let numbers = &messages.numbers;
    let cut = options.number("cut", numbers.start)?;
    let mut taken = Taken::default();
    while !taken.is_complete(numbers, cut) {
        let next = || format!("message {} and on", taken.numbers.len());
        let sample = subscriber.recv_timeout(LIMIT).with_context(next)?;
        let number = taken.take(messages, &sample)?;
        messages.say_where(number);
        if options.has("hold") && number == messages.large.0 {
            println!("holds");
            std::thread::sleep(LIMIT);
            bail!("it was to be killed");
        }
    }
    while let Ok(sample) = subscriber.recv_timeout(QUIET) {
        taken.take(messages, &sample)?;
    }
    let first = taken.of_first(cut);
    // The highest number is right only if no number below it is missing: the numbers are different and increase.
    let highest = taken.numbers.range(..cut).next_back();
    ensure!(
        highest.is_none_or(|highest| highest + 1 == numbers.start + first),
        "{first} messages of the first publisher up to {highest:?}"
    );
    let may = options.number("twice", 0)?;
    ensure!(taken.twice <= may, "{} came twice", taken.twice);
    let (received, bytes, twice) = (taken.numbers.len(), taken.bytes, taken.twice);
    println!(
        "{{\"topic\": \"{topic}\", \"received\": {received}, \"bytes\": {bytes}, \"twice\": {twice}, \"of_first\": {first}}}"
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [what, topic, from, to, ref options @ ..] = arguments[..] else {
        bail!("crossing publish|subscribe TOPIC FROM TO OPTION...");
    };
    let options = Options(options);
    let large = (options.number("at", u64::MAX)?, options.number("mib", 0)?);
    let messages = Messages::new(from.parse()?..to.parse()?, large.0, large.1);
    match what {
        "publish" => publish(topic, &messages, &options),
        "subscribe" => subscribe(topic, &messages, &options),
        other => bail!("it can publish and subscribe, not {other}"),
    }
}
