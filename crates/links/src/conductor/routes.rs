//! Routes to other hosts, and the trees by which messages reach several of them.

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
pub(super) struct HostRoute {
    /// The hosts on the path: the next one first, the host itself last.
    pub(super) path: Vec<String>,
    /// Since when there is no path. The route stays for a while: its first host still has messages for the host, and may come back. None:
    /// there is a path.
    lost: Option<Instant>,
}

impl HostRoute {
    /// The next hop: the host itself, if this one is linked with it.
    pub(super) fn next(&self) -> &String {
        &self.path[0]
    }
}

/// The hosts between on a path, in words. Empty: there are none.
pub(super) fn through(path: &[String]) -> String {
    match path.split_last() {
        Some((_, between)) if !between.is_empty() => format!("through {}: ", between.join(", ")),
        _ => String::new(),
    }
}

/// How each host is reached.
#[derive(Default)]
pub(super) struct Routes {
    hops: BTreeMap<String, HostRoute>,
}

impl Routes {
    pub(super) fn hop(&self, end: &str) -> Option<&HostRoute> {
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
        let hops: BTreeMap<String, HostRoute> = hops.collect();
        let is_changed = hops != self.hops;
        self.hops = hops;
        is_changed
    }

    fn found(&self, end: &str, path: Vec<String>) -> HostRoute {
        let through = &path[0];
        let is_known = |known: &HostRoute| known.next() == through;
        if through != end && !self.hop(end).is_some_and(is_known) {
            tracing::info!(
                host = end,
                through,
                "the route to a host goes through another host"
            );
        }
        HostRoute { path, lost: None }
    }

    /// The route to a host that has no path. None: the host is given up.
    fn without_path(
        &self,
        end: &str,
        kept: &BTreeSet<&String>,
        outage: Duration,
    ) -> Option<HostRoute> {
        let last = self.hop(end).filter(|hop| kept.contains(hop.next()));
        let last = last.map(|hop| HostRoute {
            lost: Some(hop.lost.unwrap_or_else(Instant::now)),
            ..hop.clone()
        });
        let is_over = |hop: &HostRoute| hop.lost.is_some_and(|since| since.elapsed() >= outage);
        let last = last.filter(|hop| hop.next() == end || !is_over(hop));
        let itself = || HostRoute {
            path: vec![end.to_owned()],
            lost: None,
        };
        last.or_else(|| kept.iter().any(|host| *host == end).then(itself))
    }
}

impl LinksConductor {
    /// Sends the messages about routes and interest that are due.
    pub(super) fn exchange(&mut self) {
        for (host, message) in self.network.poll(self.config.links.relay) {
            if let Some(peer) = self.peers.get(&host) {
                peer.say(&message);
            }
        }
    }

    /// Updates the route to each host. Sets `dirty` if one has changed.
    pub(super) fn update_routes(&mut self) {
        self.exchange();
        let outage = Duration::from_millis(self.config.links.outage_ms);
        let kept = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.reach().is_given_up());
        let kept: BTreeSet<&String> = kept.map(|(host, _)| host).collect();
        self.dirty |= self.network.expire(outage, kept.iter().copied());
        self.dirty |= self.routes.update(&self.network, &kept, outage);
        self.landings.forget_unused();
    }

    /// By topics and final hosts, what the hosts that this one can send to want.
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

    /// Size in bytes of the largest message to plan trees for: less than twice the largest so far. `u64::MAX`: trees are off.
    pub(super) fn bytes_planned(&self, largest: u64) -> u64 {
        let links = &self.config.links;
        match (links.fanout, links.tree_min.0) {
            (0, _) => u64::MAX,
            (_, min) if largest < min => min - 1,
            _ => u64::MAX >> largest.max(1).leading_zeros(),
        }
    }

    /// By hosts, the paths of a tree for messages of up to so many bytes. Hosts that are not in the result are reached by their shortest
    /// path.
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

    /// Adds the hosts that are reached through others to a listing.
    pub(super) fn led_rows(&self, rows: &mut Vec<PeerRow>) {
        for (end, hop) in &self.routes.hops {
            let next = self.peers.get(hop.next());
            let is_up = hop.lost.is_none() && next.is_some_and(|next| next.reach().is_up());
            if hop.next() == end || !is_up {
                continue;
            }
            let topics = self.topics.values();
            let goes = topics.filter(|topic| {
                let branch = topic.branches().get(hop.next());
                branch.is_some_and(|branch| branch.tree().ends_at(end))
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
