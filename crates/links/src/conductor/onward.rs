//! Publishers of other hosts whose messages go on from here.

use crate::keys::TopicInterest;
use crate::wire::FlowDescription;
use rgaps_client::links::{InterestPublisher, InterestRow};
use rgaps_routing::MAX_HOPS;
use std::collections::{BTreeMap, BTreeSet};

/// A publisher of another host's whose messages go on from here.
pub(super) struct Onward {
    /// The host that they come from.
    pub(super) peer: String,
    pub(super) source: FlowDescription,
}

/// The publishers of a topic: this host's, and those of others whose messages go on.
pub(super) fn publishers(row: Option<&InterestRow>, onward: &[Onward]) -> Vec<InterestPublisher> {
    let of_others = onward
        .iter()
        .map(|Onward { source, .. }| InterestPublisher {
            incarnation: source.publisher,
            type_name: source.type_name.clone(),
            offer: source.offer,
            orphan: false,
            require: None,
        });
    let here = row.map_or_else(Vec::new, |row| row.publishers.clone());
    let mut all: Vec<InterestPublisher> = here.into_iter().chain(of_others).collect();
    all.sort_by_key(|publisher| publisher.incarnation);
    all.dedup_by_key(|publisher| publisher.incarnation);
    all
}

/// The publishers of a stream to `to`, which leads to these hosts: those elsewhere.
pub(super) fn carried(
    onward: &[Onward],
    to: &str,
    leads_to: &BTreeMap<String, TopicInterest>,
    read: &Result<(), String>,
) -> Vec<FlowDescription> {
    let mut all: BTreeMap<u64, FlowDescription> = BTreeMap::new();
    for Onward { peer, source, .. } in onward {
        let mut via = source.via.clone();
        via.push(peer.clone());
        let goes = source
            .destinations
            .iter()
            .any(|host| leads_to.contains_key(host));
        if !goes || via.iter().any(|host| host == to) || via.len() >= MAX_HOPS {
            continue;
        }
        let on = source.destinations.iter();
        let on = on.filter(|host| *host != to && leads_to.contains_key(*host));
        let destinations: BTreeSet<String> = on.cloned().collect();
        let known = all
            .entry(source.publisher)
            .or_insert_with(|| FlowDescription {
                via: via.clone(),
                destinations: Vec::new(),
                read: read.clone(),
                ..source.clone()
            });
        known.history = known.history.max(source.history);
        if (via.len(), &via) < (known.via.len(), &known.via) {
            known.via = via;
        }
        let both: BTreeSet<String> = known.destinations.drain(..).chain(destinations).collect();
        known.destinations = both.into_iter().collect();
    }
    all.into_values().collect()
}
