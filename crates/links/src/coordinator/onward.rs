//! Publishers of other hosts whose messages go on from here.

use crate::keys::Want;
use crate::ways::MAX_HOPS;
use crate::wire::Source;
use rgaps_client::links::InterestPublisher;
use std::collections::{BTreeMap, BTreeSet};

/// A publisher of another host's whose messages go on from here.
pub(super) struct Onward {
    /// The host that they come from.
    pub(super) peer: String,
    pub(super) source: Source,
}

impl Onward {
    /// As one of this host's.
    pub(super) fn publisher(&self) -> InterestPublisher {
        InterestPublisher {
            incarnation: self.source.publisher,
            type_name: self.source.type_name.clone(),
            offer: self.source.offer,
            orphan: false,
            require: None,
        }
    }
}

/// The publishers of a stream to `to`, which leads to these hosts: those elsewhere.
pub(super) fn carried(
    onward: &[Onward],
    to: &str,
    leads_to: &BTreeMap<String, Want>,
) -> Vec<Source> {
    let mut all: BTreeMap<u64, Source> = BTreeMap::new();
    for Onward { peer, source, .. } in onward {
        let mut way = source.way.clone();
        way.push(peer.clone());
        let goes = source.carry.iter().any(|host| leads_to.contains_key(host));
        if !goes || way.iter().any(|host| host == to) || way.len() >= MAX_HOPS {
            continue;
        }
        let on = source.carry.iter();
        let on = on.filter(|host| *host != to && leads_to.contains_key(*host));
        let carry: BTreeSet<String> = on.cloned().collect();
        let known = all.entry(source.publisher).or_insert_with(|| Source {
            publisher: source.publisher,
            offer: source.offer,
            type_name: source.type_name.clone(),
            way: way.clone(),
            carry: Vec::new(),
            history: source.history,
        });
        known.history = known.history.max(source.history);
        if (way.len(), &way) < (known.way.len(), &known.way) {
            known.way = way;
        }
        let both: BTreeSet<String> = known.carry.drain(..).chain(carry).collect();
        known.carry = both.into_iter().collect();
    }
    all.into_values().collect()
}
