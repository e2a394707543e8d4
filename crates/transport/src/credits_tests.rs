//! The books against simple ones.
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[test]
fn a_saturated_topic_leaves_the_others_their_reserve() {
    let mut shares = Shares::new("staging", 1000);
    shares.open(1, 100, 1000).unwrap();
    shares.open(2, 300, 500).unwrap();
    let mut greedy = 0;
    while shares.take(1, 50) == Take::Taken {
        greedy += 50;
    }
    assert_eq!(greedy, 700, "all but the reserve of 2");
    assert_eq!(shares.take(2, 300), Take::Taken);
    assert_eq!(shares.take(2, 1), Take::Full);
    assert_eq!(shares.take(2, 501), Take::Never);
    let error = shares.open(3, 1, 10).unwrap_err();
    assert!(error.to_string().starts_with("staging"), "{error}");
    assert!(!shares.close(1));
    shares.give(1, 700);
    assert!(shares.close(1));
    assert_eq!(shares.take(1, 1), Take::Never);
    assert_eq!(shares.take(2, 200), Take::Taken, "it grows to its cap");
    assert_eq!(shares.take(2, 1), Take::Full);
}

proptest! {
    #[test]
    fn reserves_are_never_refused_and_the_total_never_exceeded(
        reserves in proptest::collection::vec((0u64..300, 0u64..900), 1..8),
        steps in proptest::collection::vec((any::<bool>(), 0usize..8, 1u64..400), 1..300),
    ) {
        const TOTAL: u64 = 1000;
        let mut shares = Shares::new("landing", TOTAL);
        let mut open: Vec<(u64, u64, u64, Vec<u64>)> = Vec::new();
        for (topic, (reserve, more)) in (0..).zip(reserves) {
            let promised: u64 = open.iter().map(|share| share.1).sum();
            let cap = (reserve + more).min(TOTAL);
            let opened = shares.open(topic, reserve, cap);
            prop_assert_eq!(opened.is_ok(), promised + reserve <= TOTAL);
            if opened.is_ok() {
                open.push((topic, reserve, cap, Vec::new()));
            }
        }
        prop_assume!(!open.is_empty());
        for (takes, which, bytes) in steps {
            let which = which % open.len();
            let bound = |shares: &[(u64, u64, u64, Vec<u64>)]| -> u64 {
                shares.iter().map(|s| s.1.max(s.3.iter().sum())).sum()
            };
            if takes {
                let (topic, reserve, cap, _) = open[which];
                let used: u64 = open[which].3.iter().sum();
                let taken = shares.take(topic, bytes);
                open[which].3.push(bytes);
                let fits = used + bytes <= cap && bound(&open) <= TOTAL;
                prop_assert_eq!(taken == Take::Taken, fits);
                prop_assert_eq!(taken == Take::Never, bytes > cap);
                prop_assert!(fits || used + bytes > reserve, "a reserve was refused");
                if !fits {
                    open[which].3.pop();
                }
            } else if let Some(bytes) = open[which].3.pop() {
                shares.give(open[which].0, bytes);
            }
            for (topic, _, _, takes) in &open {
                prop_assert_eq!(shares.used(*topic), takes.iter().sum::<u64>());
            }
        }
        for (topic, _, _, takes) in &open {
            takes.iter().for_each(|bytes| shares.give(*topic, *bytes));
            prop_assert!(shares.close(*topic));
        }
        prop_assert_eq!(shares.bound, 0);
    }

    /// Messages arrive, are given up or released in any order; limits arrive late, twice or not at all.
    #[test]
    fn a_window_bounds_what_is_held_and_all_of_it_comes_back(
        steps in proptest::collection::vec((0u8..6, 1u64..120), 1..300),
    ) {
        const WINDOW: u64 = 256;
        let (mut sender, mut receiver) = (SendWindow::default(), ReceiveWindow::new(WINDOW));
        let mut limits = vec![WINDOW];
        let (mut flying, mut held) = (VecDeque::new(), Vec::new());
        for (step, number) in steps {
            match step {
                0 | 1 => {
                    if let Some(end) = sender.charge(number) {
                        flying.push_back((number, end));
                    }
                }
                2 => if let Some((bytes, end)) = flying.pop_front() {
                    prop_assert_eq!(receiver.arrive(bytes, end), Ok(()));
                    held.push(bytes);
                },
                3 => { flying.pop_front(); }
                4 => if !held.is_empty() {
                    let bytes = held.swap_remove(usize::try_from(number).unwrap() % held.len());
                    receiver.release(bytes);
                },
                _ => sender.raise(limits[usize::try_from(number).unwrap() % limits.len()]),
            }
            limits.push(receiver.limit());
            prop_assert!(receiver.held() <= WINDOW);
            prop_assert!(sender.charged() <= receiver.limit());
            prop_assert_eq!(receiver.held(), held.iter().sum::<u64>());
        }
        // Everything in flight is given up, everything held released: the whole window is free.
        receiver.give_up(sender.charged()).unwrap();
        held.iter().for_each(|bytes| receiver.release(*bytes));
        sender.raise(receiver.limit());
        prop_assert_eq!(sender.limit - sender.charged, WINDOW);
    }
}

#[test]
fn charges_over_the_limit_below_what_was_seen_or_below_zero_are_lies() {
    let mut window = ReceiveWindow::new(100);
    window.arrive(60, 60).unwrap();
    assert!(window.arrive(41, 101).is_err());
    assert!(
        window.arrive(30, 80).is_err(),
        "it overlaps what was charged before"
    );
    assert!(window.arrive(30, 10).is_err());
    assert!(window.give_up(101).is_err() && window.give_up(59).is_err());
    assert!(window.give_up(u64::MAX).is_err());
    window.arrive(40, 100).unwrap();
}
