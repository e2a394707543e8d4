//! The fuzz targets with seeded changes of a corpus: briefly here, longer with `FUZZ_SECONDS=60`, and
//! with libFuzzer by `make fuzz`. What fails is printed as hexadecimal bytes: put it into `fuzz/corpus`.
#![forbid(unsafe_code)]
#[path = "../../../fuzz/targets.rs"]
mod targets;

use rgaps_transport::frame::{Frame, Wish, FRAME_BYTES_MAX};
use rgaps_transport::{Flow, LaneKey, Meta};
use std::panic::{catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

fn encoded(frames: &[Frame]) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in frames {
        let mut bytes = [0; FRAME_BYTES_MAX];
        let length = frame.encode(&mut bytes);
        all.extend_from_slice(&bytes[..length]);
    }
    all
}

/// What every corpus begins with, beside what is in `fuzz/corpus`.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let flow = Flow {
        topic: 0,
        incarnation: 1,
    };
    let hello = Frame::Hello {
        node: 1,
        realm: 7,
        lane: 1,
        ring_bytes: 1 << 20,
        rdma: Wish::No,
        to: 2,
        key: LaneKey([0; 32]),
    };
    let open = Frame::Open { flow, first: 0 };
    let meta = Meta::new(&[1, 2, 3]).unwrap();
    let ask = Frame::Request {
        flow,
        sequence: 0,
        charge_end: 0,
        bytes: 100,
        meta,
    };
    let mut all = match target {
        "ends" => vec![vec![
            0, 0, 7, 0, 0, 0, 0, 10, 0, 0, 0, 220, 0, 11, 0, 0, 1, 0, 220,
        ]],
        _ => vec![
            encoded(&[hello]),
            encoded(&[hello, open, ask]),
            encoded(&[open, ask, Frame::Goodbye]),
        ],
    };
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    all.extend(files.iter().map(|file| std::fs::read(file).unwrap()));
    all
}

/// Some inputs at least, and then until the time is over.
fn run(target: &str, check: fn(&[u8]), inputs: usize) {
    let text = std::env::var("FUZZ_SECONDS").unwrap_or_else(|_| "2".into());
    let until =
        Instant::now() + Duration::from_secs(text.parse().expect("FUZZ_SECONDS is a number"));
    let mut corpus = seeds(target);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut tried = 0;
    while tried < corpus.len() || tried < inputs || Instant::now() < until {
        let mut input = match corpus.get(tried) {
            Some(seed) => seed.clone(),
            None => corpus[random.below(corpus.len())].clone(),
        };
        if tried >= corpus.len() {
            for _ in 0..=random.below(8) {
                change(&mut input, &mut random);
            }
        }
        tried += 1;
        if let Err(panic) = catch_unwind(|| check(&input)) {
            eprintln!(
                "{target} fails with {}",
                input
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>()
            );
            resume_unwind(panic);
        }
        // Some of them are changed further.
        if corpus.len() < 2000
            && input.len() < 4096
            && random.below(20) == 0
            && tried > corpus.len()
        {
            corpus.push(input);
        }
    }
    println!("{target}: {tried} inputs");
}

fn change(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(input.len());
    match random.below(6) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = [0, 1, 7, 0x7f, 0x80, 0xff][random.below(6)],
        2 => input.insert(at, random.below(256) as u8),
        3 if !input.is_empty() => {
            input.remove(at);
        }
        4 => input.truncate(at),
        _ => {
            let more: Vec<u8> = (0..random.below(24))
                .map(|_| random.below(256) as u8)
                .collect();
            input.extend(more);
        }
    }
}

#[test]
fn frames() {
    run("frames", targets::frames, 20_000);
}

#[test]
fn hello() {
    run("hello", targets::hello, 100);
}

#[test]
fn ends() {
    run("ends", targets::ends, 20_000);
}
