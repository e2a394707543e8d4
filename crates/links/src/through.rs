//! What a host was told of messages that come from it and go on from here.

use crate::host_link::Flow;
use crate::wire::{Said, MAX_PASSED_SAID};
use std::collections::BTreeMap;

/// Whether streams reach hosts, or why not.
pub type Reached = BTreeMap<(u64, String), Result<(), String>>;

/// What was said to another host about hosts behind this one.
#[derive(Default)]
pub struct Through {
    told_reached: Reached,
    told_passed: BTreeMap<Flow, u64>,
}

impl Through {
    /// Says which of its streams reach which hosts, as far as that is new.
    pub fn tell_reached(&mut self, all: Reached) -> Vec<Said> {
        let news = all
            .iter()
            .filter(|(of, outcome)| self.told_reached.get(*of) != Some(outcome));
        let said = news
            .map(|((stream, host), outcome)| Said::Reached(*stream, host.clone(), outcome.clone()))
            .collect();
        self.told_reached = all;
        said
    }

    /// Says how far its messages are that are carried on, as far as that is new; those that are not any more, are all
    /// where they are to go.
    pub fn tell_passed(&mut self, all: BTreeMap<Flow, u64>) -> Vec<Said> {
        let told = &self.told_passed;
        let gone = told.keys().filter(|of| !all.contains_key(*of));
        let news = all.iter().filter(|(of, next)| told.get(of) != Some(next));
        let passed = news.map(|(of, next)| (*of, *next));
        let passed: Vec<(Flow, u64)> = passed.chain(gone.map(|of| (*of, u64::MAX))).collect();
        self.told_passed = all;
        let parts = passed.chunks(MAX_PASSED_SAID);
        parts.map(|part| Said::Passed(part.to_vec())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_not_told_again() {
        let mut here = Through::default();
        let reached = |outcome| BTreeMap::from([((3, "c".to_owned()), outcome)]);
        assert_eq!(here.tell_reached(reached(Ok(()))).len(), 1);
        assert_eq!(here.tell_reached(reached(Ok(()))).len(), 0);
        assert_eq!(here.tell_reached(reached(Err(String::new()))).len(), 1);
        let flow = Flow {
            topic: 3,
            incarnation: 4,
        };
        let passed = |next| BTreeMap::from([(flow, next)]);
        assert_eq!(here.tell_passed(passed(7)).len(), 1);
        assert_eq!(here.tell_passed(passed(7)).len(), 0);
        assert_eq!(here.tell_passed(passed(8)).len(), 1);
        let last = Said::Passed(vec![(flow, u64::MAX)]);
        assert_eq!(here.tell_passed(BTreeMap::new()), [last]);
        assert_eq!(here.tell_passed(BTreeMap::new()).len(), 0);
    }
}
