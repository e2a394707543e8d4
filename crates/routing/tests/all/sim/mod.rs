//! The simulation: hosts and cables in virtual time, with seeded faults.
pub mod network;
pub mod node;
pub mod origin;
pub mod shape;
pub mod traffic;
pub mod transit;
pub mod world;

/// Runs a test with many seeds: `SEEDS=n` runs n of them, from `FIRST=s` on; `SEED=s` only that one. A failure prints how to repeat it.
pub fn seeds(test: &str, count: u64, run: impl Fn(u64) + Sync) {
    let one = number("SEED");
    let count = number("SEEDS").unwrap_or(count);
    let first = number("FIRST").unwrap_or(0);
    let seeds = one.map_or(first..first + count, |seed| seed..seed + 1);
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if seed >= seeds.end {
                    break;
                }
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
                if let Err(panic) = outcome {
                    next.store(seeds.end, std::sync::atomic::Ordering::Relaxed);
                    eprintln!(
                        "seed {seed} failed; again: SEED={seed} cargo test -p rgaps-routing {test}"
                    );
                    std::panic::resume_unwind(panic);
                }
            });
        }
    });
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
