//! What is known of a flow's entries is what counting them says, whatever was done with them.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Push { bytes: u64 },
    Sent { at: usize },
    Asked { at: usize },
    Granted { at: usize, sent: bool },
    Waits { at: usize },
    Pop { entries: u64 },
    Gap { at: usize },
    Lost { lane: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0usize..100;
    prop_oneof![
        6 => (1u64..3 << 20).prop_map(|bytes| Step::Push { bytes }),
        2 => at.clone().prop_map(|at| Step::Sent { at }),
        2 => at.clone().prop_map(|at| Step::Asked { at }),
        2 => (at.clone(), any::<bool>()).prop_map(|(at, sent)| Step::Granted { at, sent }),
        1 => at.clone().prop_map(|at| Step::Waits { at }),
        2 => (0u64..4).prop_map(|entries| Step::Pop { entries }),
        1 => at.prop_map(|at| Step::Gap { at }),
        1 => (0u32..2).prop_map(|lane| Step::Lost { lane }),
    ]
}

fn granted(bytes: u64, sent: bool) -> State {
    State::Granted {
        grant: 1,
        place: 0,
        remote: None,
        lanes: Lanes::new(&[1]).unwrap(),
        used: [false; LANES_MAX],
        sent: if sent { bytes } else { 0 },
    }
}

fn carry_out(entries: &mut Entries, next: &mut u64, step: Step) {
    let is_there = |at: usize| at < entries.all.len();
    let lane = (*next % 2) as u32;
    match step {
        Step::Push { bytes } => {
            let message = Kind::Message {
                span: Span { offset: 0, bytes },
                meta: Meta::default(),
                busy: 0,
            };
            entries.push(Entry::new(*next, *next + 1, message));
            *next += 1;
        }
        Step::Sent { at } if is_there(at) => entries.set(at, State::Sent { lane }),
        Step::Asked { at } if is_there(at) => entries.set(at, State::Asked { lane }),
        Step::Granted { at, sent } if is_there(at) => {
            let bytes = entries.at(at).bytes();
            entries.set(at, granted(bytes, sent));
        }
        Step::Waits { at } if is_there(at) => entries.set(at, State::Waiting),
        Step::Pop { entries: count } => {
            let below = entries.front().map_or(0, |entry| entry.first + count);
            while entries.pop_below(below).is_some() {}
        }
        Step::Gap { at } if is_there(at) && entries.at(at).bytes() > 0 => entries.make_gap(at),
        Step::Lost { lane: lost } => entries.change(|entry| match entry.state {
            State::Sent { lane } | State::Asked { lane } if lane == lost => {
                entry.state = State::Waiting;
            }
            _ => {}
        }),
        _ => {}
    }
}

proptest! {
    #[test]
    fn what_is_known_is_what_counting_says(steps in proptest::collection::vec(step(), 1..300)) {
        let (mut entries, mut next) = (Entries::default(), 0);
        for step in steps {
            carry_out(&mut entries, &mut next, step);
            let asked: Vec<u64> = entries
                .all
                .iter()
                .filter(|entry| entry.state.asks())
                .map(Entry::bytes)
                .collect();
            prop_assert_eq!(entries.asks, asked.len());
            prop_assert_eq!(entries.asked_bytes, asked.iter().sum::<u64>());
            let work = |entries: &Entries, from: usize, all_busy: bool| {
                (from..entries.all.len().min(LOOK_AHEAD)).find(|at| {
                    let entry = &entries.all[*at];
                    let is_granted = matches!(entry.state, State::Granted { .. });
                    entry.has_work() && !(all_busy && is_granted)
                })
            };
            for (from, all_busy) in [(0, false), (0, true), (3, false), (70, true)] {
                let expected = work(&entries, from, all_busy);
                prop_assert_eq!(entries.work_from(from, all_busy), expected);
            }
            let expected = work(&entries, 0, false).is_some();
            prop_assert_eq!(entries.has_work(), expected);
            for (at, entry) in entries.all.iter().enumerate() {
                let is_message = matches!(entry.kind, Kind::Message { .. });
                prop_assert!(!is_message || entries.position(entry.first) == Some(at));
            }
        }
    }
}
