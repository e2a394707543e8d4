//! Which subscribers read which publishers.
//!
//! As in DDS, a publisher and a subscriber of a topic whose types or qualities of service do not go together
//! are not matched: no message goes from one to the other, and neither is refused. Each pair is judged by
//! itself ([`qos`](crate::qos)), so nobody is kept out by somebody else. The daemon derives
//! the words in the control segment from this ([`write_matches`](crate::membership::write_matches)).

use crate::qos::mismatch;
use crate::topic::{Publisher, Subscriber, Topic};
use rgaps_session::{MismatchRow, MAX_MISMATCHES};

impl Topic {
    /// Why a publisher and a subscriber of this topic do not match.
    pub(crate) fn mismatch(publisher: &Publisher, subscriber: &Subscriber) -> Option<String> {
        let demand = (!subscriber.observer).then_some(&subscriber.demand);
        mismatch(
            (&publisher.offer, &publisher.type_name),
            (demand, &subscriber.type_name),
        )
    }

    /// Whether a subscriber reads a publisher.
    pub(crate) fn matches(publisher: &Publisher, subscriber: &Subscriber) -> bool {
        !subscriber.closed && Topic::mismatch(publisher, subscriber).is_none()
    }

    /// What `PublisherSlot::matched` of a publisher should be.
    pub(crate) fn matched_subscribers(&self, publisher: &Publisher) -> u64 {
        let matched = self.subscribers.iter();
        let matched = matched.filter(|subscriber| Topic::matches(publisher, subscriber));
        matched.fold(0, |bits, subscriber| bits | 1 << subscriber.slot)
    }

    /// Slots of the publishers that a subscriber reads.
    pub(crate) fn matched_publishers(&self, subscriber: &Subscriber) -> u64 {
        let matched = self.publishers.iter();
        let matched = matched.filter(|publisher| Topic::matches(publisher, subscriber));
        matched.fold(0, |bits, publisher| bits | 1 << publisher.slot)
    }

    /// How many subscribers do not match a publisher. Observers do not count.
    pub(crate) fn mismatched_subscribers(&self, publisher: &Publisher) -> u32 {
        let others = self.subscribers.iter().filter(|s| !s.observer);
        let others = others.filter(|other| Topic::mismatch(publisher, other).is_some());
        others.count() as u32
    }

    /// How many publishers do not match a subscriber.
    pub(crate) fn mismatched_publishers(&self, subscriber: &Subscriber) -> u32 {
        let others = self.publishers.iter();
        let others = others.filter(|other| Topic::mismatch(other, subscriber).is_some());
        others.count() as u32
    }

    /// Whether the topic has publishers, and the subscriber matches none of them.
    pub(crate) fn matches_no_publisher(&self, subscriber: &Subscriber) -> bool {
        self.mismatched_publishers(subscriber) > 0
            && !self
                .publishers
                .iter()
                .any(|publisher| Topic::matches(publisher, subscriber))
    }

    /// Pairs that do not match, and why.
    pub(crate) fn mismatch_rows(&self) -> Vec<MismatchRow> {
        let rows = self.pairs().filter_map(|(publisher, subscriber)| {
            Some(MismatchRow {
                publisher: publisher.slot,
                subscriber: subscriber.slot,
                reason: Topic::mismatch(publisher, subscriber)?,
            })
        });
        rows.take(MAX_MISMATCHES).collect()
    }

    /// All pairs of a publisher and a subscriber.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&Publisher, &Subscriber)> {
        let subscribers = &self.subscribers;
        let publishers = self.publishers.iter();
        publishers.flat_map(move |publisher| {
            subscribers
                .iter()
                .map(move |subscriber| (publisher, subscriber))
        })
    }
}
