//! Links between two or three hosts with seeded delay, order between lanes, lost lanes and crashes.
//!
//! Time is virtual, so a run cannot wait; one that does not come to its end within its steps has stalled
//! and fails. `SEEDS=n` runs more, `SEED=n` one. A lost lane goes on writing into granted places until the
//! receiver has closed it, as a NIC may.
#![forbid(unsafe_code)]
mod sim {
    pub mod content;
    pub mod host;
    pub mod world;
}
use sim::world::{Faults, World};

/// For each test; more with `SEEDS=`.
const SEEDS: u64 = 60;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

fn seeds(faults: Faults) {
    let one = number("SEED");
    let seeds = one.map_or(0..number("SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let mut total = sim::world::Counts::default();
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed, faults).run());
        match run {
            Ok(counts) => total.add(&counts),
            Err(panic) => {
                eprintln!("failed with {faults:?}; again: SEED={seed} cargo test -p rgaps-transport --test sim");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{faults:?}: {total:?}");
    if one.is_none() {
        // What is to be tested has happened.
        assert!(total.committed_eager > 0 && total.committed_large > 0);
        assert_eq!(total.lanes_lost > 0, faults.lanes);
        assert_eq!(total.crashes > 0, faults.crashes);
        assert_eq!(total.missed > 0, faults.best_effort);
        assert!(total.grown > 0);
        assert_eq!(total.broke_off > 0, faults.best_effort);
    }
}

#[test]
fn without_faults_everything_arrives_once_and_in_order() {
    seeds(Faults {
        lanes: false,
        crashes: false,
        best_effort: false,
    });
}

#[test]
fn lost_lanes_lose_and_duplicate_nothing() {
    seeds(Faults {
        lanes: true,
        crashes: false,
        best_effort: false,
    });
}

#[test]
fn crashes_of_either_end_lose_and_duplicate_nothing() {
    seeds(Faults {
        lanes: true,
        crashes: true,
        best_effort: false,
    });
}

#[test]
fn best_effort_reports_what_it_gave_up() {
    seeds(Faults {
        lanes: true,
        crashes: true,
        best_effort: true,
    });
}
