//! Runs a fuzz target with seeded changes of a corpus, for where there is no libFuzzer: briefly in tests, longer with
//! `FUZZ_SECONDS=60`. What fails is printed as hexadecimal bytes: put it into `fuzz/corpus`.
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

/// What is in `fuzz/corpus`.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// Some inputs at least, and then until the time is over. The corpus begins with `seeds`.
pub fn run(target: &str, seeds: Vec<Vec<u8>>, check: fn(&[u8]), inputs: usize) {
    let text = std::env::var("FUZZ_SECONDS").unwrap_or_else(|_| "2".into());
    let until =
        Instant::now() + Duration::from_secs(text.parse().expect("FUZZ_SECONDS is a number"));
    let mut corpus = seeds;
    corpus.extend(kept(target));
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
