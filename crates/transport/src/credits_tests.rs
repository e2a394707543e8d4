//! Checks windows against simple counts.
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

proptest! {
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
                    receiver.widen(bytes);
                },
                _ => sender.raise(limits[usize::try_from(number).unwrap() % limits.len()]),
            }
            limits.push(receiver.limit());
            prop_assert!(held.iter().sum::<u64>() <= WINDOW);
            prop_assert!(sender.charged <= receiver.limit());
        }
        // Everything in flight is given up, everything held released: the whole window is free.
        receiver.give_up(sender.charged).unwrap();
        held.iter().for_each(|bytes| receiver.widen(*bytes));
        sender.raise(receiver.limit());
        prop_assert_eq!(sender.limit - sender.charged, WINDOW);
    }
}

#[test]
fn charges_over_the_limit_below_what_was_seen_or_below_zero_are_violations() {
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
