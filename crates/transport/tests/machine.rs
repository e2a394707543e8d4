//! A simulation of two link machines with seeded delay, order between lanes, lost lanes and their late copies, crashes, cancellations
//! and slow consumers.
//!
//! Time is virtual, so a run cannot wait; one that does not end within its steps has stalled and fails. `SEEDS=n` runs n seeds, `SEED=n`
//! only this one. A lost RDMA lane goes on writing into granted buffers until the receiver has closed it, as a card may.
#![forbid(unsafe_code)]
#[path = "machine/content.rs"]
mod content;
#[path = "machine/frames.rs"]
mod frames;
#[path = "machine/host.rs"]
mod host;
#[path = "machine/liars.rs"]
mod liars;
#[path = "machine/scenarios.rs"]
mod scenarios;
#[path = "machine/wire.rs"]
mod wire;
#[path = "machine/world.rs"]
mod world;

use world::{Counts, Faults, World};

/// Seeds of each test; `SEEDS=` sets another number.
const SEEDS: u64 = 60;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn seeds(faults: Faults) {
    let one = number("SEED");
    let seeds = one.map_or(0..number("SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let mut total = Counts::default();
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed, faults).run());
        match run {
            Ok(counts) => total.add(&counts),
            Err(panic) => {
                eprintln!("failed with {faults:?}; again: SEED={seed} cargo test -p rgaps-transport --test machine");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{faults:?}: {total:?}");
    if one.is_none() {
        // Each event that the test is about has happened.
        assert!(total.small > 0 && total.large > 0 && total.grown > 0);
        assert!(total.back_pressured > 0);
        assert_eq!(total.lanes_lost > 0, faults.lanes);
        assert!(total.from_chunk > 0 || faults.delays || !faults.lanes);
        assert_eq!(total.crashes > 0, faults.crashes);
        assert_eq!(total.cancelled > 0 && total.missed > 0, faults.cancels);
        assert_eq!(total.refused > 0 && total.cut > 0, faults.refusals);
        assert_eq!(total.direct > 0, faults.cards);
        assert_eq!(total.late > 0, faults.cards && faults.lanes);
        assert_eq!(total.delayed > 0, faults.lanes);
        // Rare without delays; with delays it is what they are meant to cause.
        assert!(!faults.delays || total.delayed_after_end > 0);
    }
}

const NONE: Faults = Faults {
    lanes: false,
    crashes: false,
    cancels: false,
    cards: false,
    refusals: false,
    delays: false,
};

#[test]
fn without_faults_everything_arrives_once_and_in_order() {
    seeds(NONE);
}

#[test]
fn lost_lanes_lose_and_duplicate_nothing() {
    seeds(Faults {
        lanes: true,
        ..NONE
    });
}

#[test]
fn late_writes_of_lost_rdma_lanes_damage_nothing() {
    seeds(Faults {
        lanes: true,
        cards: true,
        ..NONE
    });
}

#[test]
fn crashes_of_either_end_lose_nothing() {
    seeds(Faults {
        lanes: true,
        crashes: true,
        cards: true,
        ..NONE
    });
}

#[test]
fn cancelled_messages_become_gaps_and_no_others() {
    seeds(Faults {
        lanes: true,
        cancels: true,
        ..NONE
    });
}

#[test]
fn flows_that_are_refused_or_cut_end_and_leave_nothing() {
    seeds(Faults {
        lanes: true,
        refusals: true,
        ..NONE
    });
}

#[test]
fn late_copies_from_lost_lanes_are_delivered_once_and_in_order() {
    seeds(Faults {
        lanes: true,
        delays: true,
        ..NONE
    });
}

#[test]
fn late_copies_of_what_was_given_up_or_refused_change_nothing() {
    seeds(Faults {
        lanes: true,
        cancels: true,
        cards: true,
        refusals: true,
        delays: true,
        ..NONE
    });
}

#[test]
fn all_faults_together() {
    seeds(Faults {
        lanes: true,
        crashes: true,
        cancels: true,
        cards: true,
        refusals: true,
        ..NONE
    });
}

#[test]
fn late_copies_and_all_other_faults_together() {
    seeds(Faults {
        lanes: true,
        crashes: true,
        cancels: true,
        cards: true,
        refusals: true,
        delays: true,
    });
}
