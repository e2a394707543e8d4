//! Which hosts are reached through which: what is said about that, and what comes of it.

use super::LinksConductor;
use crate::keys::TopicInterest;
use crate::network::Network;
use crate::remote_host::RemoteHost;
use crate::wire::clip;
use rgaps_client::{PeerRow, PeerState};
use rgaps_routing::Load;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hop {
    /// The hosts on the path: the next one first, the host itself last.
    pub(super) path: Vec<String>,
    /// Since when there is no path. Whoever led there last has what it was sent, and may be back.
    lost: Option<Instant>,
}

impl Hop {
    /// The host that leads there: itself, if it is linked with.
    pub(super) fn next(&self) -> &String {
        &self.path[0]
    }
}

/// How messages come to a host by these others, in words.
pub(super) fn through(path: &[String]) -> String {
    match path.split_last() {
        Some((_, between)) if !between.is_empty() => format!("through {}: ", between.join(", ")),
        _ => String::new(),
    }
}

/// How each host is reached.
#[derive(Default)]
pub(super) struct Routes {
    hops: BTreeMap<String, Hop>,
}

impl Routes {
    pub(super) fn hop(&self, end: &str) -> Option<&Hop> {
        self.hops.get(end)
    }

    /// Finds out how each host is reached: by its path, or as before for `outage` without one. `kept`: the hosts that are linked
    /// with, or may be again. Whether that has changed.
    fn update(&mut self, network: &Network, kept: &BTreeSet<&String>, outage: Duration) -> bool {
        let ends = network.reached().chain(kept.iter().copied());
        let ends: BTreeSet<&String> = ends.chain(self.hops.keys()).collect();
        let hops = ends.into_iter().filter_map(|end| {
            let hop = match network.path(end) {
                Some(path) => self.found(end, path),
                None => self.without_path(end, kept, outage)?,
            };
            Some((end.clone(), hop))
        });
        let hops: BTreeMap<String, Hop> = hops.collect();
        let is_changed = hops != self.hops;
        self.hops = hops;
        is_changed
    }

    fn found(&self, end: &str, path: Vec<String>) -> Hop {
        let through = &path[0];
        let is_known = |known: &Hop| known.next() == through;
        if through != end && !self.hop(end).is_some_and(is_known) {
            tracing::info!(
                host = end,
                through,
                "the route to a host goes through another host"
            );
        }
        Hop { path, lost: None }
    }

    /// None: the host is given up.
    fn without_path(&self, end: &str, kept: &BTreeSet<&String>, outage: Duration) -> Option<Hop> {
        let last = self.hop(end).filter(|hop| kept.contains(hop.next()));
        let last = last.map(|hop| Hop {
            lost: Some(hop.lost.unwrap_or_else(Instant::now)),
            ..hop.clone()
        });
        let is_over = |hop: &Hop| hop.lost.is_some_and(|since| since.elapsed() >= outage);
        let last = last.filter(|hop| hop.next() == end || !is_over(hop));
        let itself = || Hop {
            path: vec![end.to_owned()],
            lost: None,
        };
        last.or_else(|| kept.iter().any(|host| *host == end).then(itself))
    }
}

impl LinksConductor {
    /// Sends what there is to say of routes and interest.
    pub(super) fn exchange(&mut self) {
        for (host, said) in self.network.poll(self.config.links.relay) {
            if let Some(peer) = self.peers.get(&host) {
                peer.say(&said);
            }
        }
    }

    /// Finds out how each host is reached. Whether that has changed is in `dirty`.
    pub(super) fn update_routes(&mut self) {
        self.exchange();
        let outage = Duration::from_millis(self.config.links.outage_ms);
        let kept = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.reach.is_given_up());
        let kept: BTreeSet<&String> = kept.map(|(host, _)| host).collect();
        self.dirty |= self.network.expire(outage, kept.iter().copied());
        self.dirty |= self.routes.update(&self.network, &kept, outage);
        self.landings.forget_unused();
    }

    pub(super) fn all_wants(&self) -> BTreeMap<String, BTreeMap<String, TopicInterest>> {
        let mut all: BTreeMap<String, BTreeMap<String, TopicInterest>> = BTreeMap::new();
        for (end, hop) in &self.routes.hops {
            let next = self.peers.get(hop.next());
            if !next.is_some_and(RemoteHost::is_usable) {
                continue;
            }
            for (topic, want) in self.network.wants(end) {
                let hosts = all.entry(topic.clone()).or_default();
                hosts.insert(end.clone(), *want);
            }
        }
        all
    }

    /// The largest message that trees are planned for: below twice the largest so far. `u64::MAX`: trees are off.
    pub(super) fn bytes_planned(&self, largest: u64) -> u64 {
        let links = &self.config.links;
        match (links.fanout, links.tree_min.0) {
            (0, _) => u64::MAX,
            (_, min) if largest < min => min - 1,
            _ => u64::MAX >> largest.max(1).leading_zeros(),
        }
    }

    /// The paths of a tree to hosts for messages of up to so many bytes; none: each host is reached by its shortest path.
    pub(super) fn tree_paths<'a>(
        &self,
        ends: impl Iterator<Item = &'a String>,
        bytes: u64,
    ) -> BTreeMap<String, Vec<String>> {
        let links = &self.config.links;
        if bytes == u64::MAX || bytes < links.tree_min.0 {
            return BTreeMap::new();
        }
        let load = Load {
            message_bytes: bytes,
            tree_bytes_min: links.tree_min.0,
            fanout: links.fanout as usize,
            lanes: links.lanes.into(),
        };
        self.network.tree_paths(ends, load)
    }

    /// Hosts that are reached through others, for the listing.
    pub(super) fn led_rows(&self, rows: &mut Vec<PeerRow>) {
        for (end, hop) in &self.routes.hops {
            let next = self.peers.get(hop.next());
            let is_up = hop.lost.is_none() && next.is_some_and(|next| next.reach.is_up());
            if hop.next() == end || !is_up {
                continue;
            }
            let topics = self.topics.values();
            let goes = topics.filter(|topic| {
                let branch = topic.branches.get(hop.next());
                branch.is_some_and(|branch| branch.tree.ends_at(end))
            });
            let detail = clip(through(&hop.path).trim_end_matches(": "));
            let topics_out = goes.count() as u32;
            match rows.iter_mut().find(|row| row.host == *end) {
                Some(row) => {
                    (row.state, row.detail, row.topics_out) =
                        (PeerState::Through, detail, topics_out);
                }
                None => rows.push(PeerRow {
                    host: end.clone(),
                    state: PeerState::Through,
                    detail,
                    topics_out,
                    ..PeerRow::default()
                }),
            }
        }
        rows.sort_by(|a, b| a.host.cmp(&b.host));
        rows.truncate(rgaps_client::links::MAX_REMOTE_HOSTS);
    }
}
