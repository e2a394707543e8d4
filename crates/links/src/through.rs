//! What a host was told of messages that come from it and go on from here.

use crate::host_link::Flow;
use crate::wire::{LinkMessage, MAX_CONFIRMED};
use std::collections::BTreeMap;

/// Whether streams reach hosts, or why not.
pub type Reached = BTreeMap<(u64, String), Result<(), String>>;

/// What was said to another host about hosts behind this one.
#[derive(Default)]
pub struct Through {
    sent_reached: Reached,
    sent_confirmed: BTreeMap<Flow, u64>,
}

impl Through {
    /// Says which of its streams reach which hosts, as far as that is new.
    pub fn send_reached(&mut self, all: Reached) -> Vec<LinkMessage> {
        let news = all
            .iter()
            .filter(|(of, outcome)| self.sent_reached.get(*of) != Some(outcome));
        let said = news
            .map(|((stream, host), outcome)| {
                LinkMessage::Reached(*stream, host.clone(), outcome.clone())
            })
            .collect();
        self.sent_reached = all;
        said
    }

    /// Says how far its messages are that are carried on, as far as that is new; those that are not any more, are all
    /// where they are to go.
    pub fn send_confirmed(&mut self, all: BTreeMap<Flow, u64>) -> Vec<LinkMessage> {
        let reported = &self.sent_confirmed;
        let ended = reported.keys().filter(|of| !all.contains_key(*of));
        let news = all
            .iter()
            .filter(|(of, next)| reported.get(of) != Some(next));
        let confirmed = news.map(|(of, next)| (*of, *next));
        let confirmed: Vec<(Flow, u64)> =
            confirmed.chain(ended.map(|of| (*of, u64::MAX))).collect();
        self.sent_confirmed = all;
        let parts = confirmed.chunks(MAX_CONFIRMED);
        parts
            .map(|part| LinkMessage::Confirmed(part.to_vec()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_not_told_again() {
        let mut here = Through::default();
        let reached = |outcome| BTreeMap::from([((3, "c".to_owned()), outcome)]);
        assert_eq!(here.send_reached(reached(Ok(()))).len(), 1);
        assert_eq!(here.send_reached(reached(Ok(()))).len(), 0);
        assert_eq!(here.send_reached(reached(Err(String::new()))).len(), 1);
        let flow = Flow {
            topic: 3,
            incarnation: 4,
        };
        let confirmed = |next| BTreeMap::from([(flow, next)]);
        assert_eq!(here.send_confirmed(confirmed(7)).len(), 1);
        assert_eq!(here.send_confirmed(confirmed(7)).len(), 0);
        assert_eq!(here.send_confirmed(confirmed(8)).len(), 1);
        let last = LinkMessage::Confirmed(vec![(flow, u64::MAX)]);
        assert_eq!(here.send_confirmed(BTreeMap::new()), [last]);
        assert_eq!(here.send_confirmed(BTreeMap::new()).len(), 0);
    }
}
