//! The numbers of flows that a peer has opened, as ranges. One of them that is not in the table of flows has ended.

use super::limits::FLOWS_MAX;
use std::collections::BTreeMap;

/// The most ranges with a correct peer, by the holes of both kinds that [`FlowNumbers::insert`] names.
const RANGES_MAX: usize = 2 * FLOWS_MAX;

/// A set of numbers from 1 on, as ranges.
#[derive(Debug, Default)]
pub(super) struct FlowNumbers {
    /// By its first number: the number behind its last one.
    ranges: BTreeMap<u64, u64>,
}

impl FlowNumbers {
    pub(super) fn contains(&self, number: u64) -> bool {
        let before = self.ranges.range(..=number).next_back();
        before.is_some_and(|(_, end)| number < *end)
    }

    /// Adds a number that it does not contain. False if there are more ranges than with a correct peer. A hole between ranges is a flow
    /// that the peer has not ended, of which it has at most [`FLOWS_MAX`]. Or it is flows that ended before this end took the place of a former one: at most one such hole
    /// lies before each flow that had not ended then.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let Some(behind) = number.checked_add(1) else {
            return false;
        };
        let end = self.ranges.remove(&behind).unwrap_or(behind);
        let before = self.ranges.range_mut(..number).next_back();
        match before.filter(|(_, before)| **before == number) {
            Some((_, before)) => *before = end,
            None => {
                self.ranges.insert(number, end);
            }
        }
        self.ranges.len() <= RANGES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_any_order_become_few_ranges() {
        let mut numbers = FlowNumbers::default();
        for number in [1, 3, 5, 4, 9, 2] {
            assert!(!numbers.contains(number));
            assert!(numbers.insert(number) && numbers.contains(number));
        }
        assert_eq!(numbers.ranges, BTreeMap::from([(1, 6), (9, 10)]));
        assert!(!numbers.contains(0) && !numbers.contains(6) && !numbers.contains(10));
        assert!(!numbers.insert(u64::MAX));
    }

    #[test]
    fn a_peer_that_leaves_too_many_holes_is_found_out() {
        let mut numbers = FlowNumbers::default();
        let mut odd = (1..).step_by(2);
        assert!(odd
            .by_ref()
            .take(RANGES_MAX)
            .all(|number| numbers.insert(number)));
        assert!(!numbers.insert(odd.next().unwrap()));
    }
}
