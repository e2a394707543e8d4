//! The numbers of the flows that a peer has opened, as ranges. A flow whose number is here and not in the table of flows has ended.
//! So the receiver keeps no tombstone for each ended flow.

use super::limits::FLOWS_MAX;
use std::collections::BTreeMap;

/// The most ranges that a correct peer causes, by the two kinds of holes that [`FlowNumbers::insert`] names.
const RANGES_MAX: usize = 2 * FLOWS_MAX;

/// A set of numbers from 1 on, as ranges.
#[derive(Debug, Default)]
pub(super) struct FlowNumbers {
    /// By a range's first number: the number after its last one.
    ranges: BTreeMap<u64, u64>,
}

impl FlowNumbers {
    pub(super) fn contains(&self, number: u64) -> bool {
        let before = self.ranges.range(..=number).next_back();
        before.is_some_and(|(_, end)| number < *end)
    }

    /// Adds a number that is not in the set. False if there are more ranges than a correct peer causes. A hole between ranges has one of
    /// two causes. Either the peer has not opened that flow here yet; it has at most [`FLOWS_MAX`] that have not ended. Or those flows
    /// ended before this end restarted; at most one such hole lies before each flow that the peer then reopened.
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
