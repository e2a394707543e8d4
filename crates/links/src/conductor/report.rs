//! What the links reported to this host's daemon. They report only what has changed since.

use crate::ingress::RemotePublisher;
use crate::remote_host::RemoteHost;
use rgaps_client::links::{CameOver, LinksNode};
use rgaps_client::{Node, PeersInfo, RemoteRow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two reports about the other hosts.
const PEERS_EVERY: Duration = Duration::from_millis(500);
/// Time between two reports of the figures of all links.
const FIGURES_EVERY: Duration = Duration::from_secs(1);

/// What was reported, and when.
#[derive(Default)]
pub(super) struct Report {
    peers: Option<(PeersInfo, Instant)>,
    figures: Option<Instant>,
    /// Of topics that do not come across, and of those whose landing is configured.
    unserved: BTreeMap<String, Vec<RemoteRow>>,
    /// Over what messages come, by the publishers here.
    incoming: BTreeMap<u64, CameOver>,
}

/// Over what publishers' messages come, by their numbers here.
pub(super) type IncomingPaths = BTreeMap<u64, (Arc<RemotePublisher>, CameOver)>;

impl Report {
    /// Forgets all reports: another daemon has received none.
    pub(super) fn forget(&mut self) {
        self.peers = None;
        self.unserved.clear();
        self.incoming.clear();
    }

    /// Reports how it is with other hosts, if it is time.
    pub(super) fn peers(&mut self, node: &Node, info: impl FnOnce() -> PeersInfo) {
        let now = Instant::now();
        let reported = self.peers.as_ref();
        if reported.is_some_and(|(_, at)| now - *at < PEERS_EVERY) {
            return;
        }
        let info = info();
        if reported.is_some_and(|(reported, _)| *reported == info) {
            return;
        }
        match node.set_peers(info.clone()) {
            Ok(()) => self.peers = Some((info, now)),
            Err(error) => tracing::debug!(%error, "telling the daemon about other hosts failed"),
        }
    }

    /// Reports the figures of all links, if it is time.
    pub(super) fn figures<'a>(&mut self, node: &Node, peers: impl Iterator<Item = &'a RemoteHost>) {
        if self.figures.is_some_and(|at| at.elapsed() < FIGURES_EVERY) {
            return;
        }
        self.figures = Some(Instant::now());
        for peer in peers {
            // It takes those of hosts only that it was told of.
            if let Err(error) = node.set_figures(peer.figures()) {
                tracing::debug!(%error, host = peer.node.host, "telling the daemon the figures of a link failed");
            }
        }
    }

    /// Reports which topics do not come across, and why, and where those land of which it is configured.
    pub(super) fn unserved(&mut self, node: &Node, all: BTreeMap<String, Vec<RemoteRow>>) {
        let ended = self.unserved.keys().filter(|name| !all.contains_key(*name));
        for name in ended.cloned().collect::<Vec<_>>() {
            if node.unserved(&name, Vec::new()).is_ok() {
                self.unserved.remove(&name);
            }
        }
        for (name, rows) in all {
            if self.unserved.get(&name) == Some(&rows) {
                continue;
            }
            match node.unserved(&name, rows.clone()) {
                Ok(()) => {
                    self.unserved.insert(name, rows);
                }
                Err(error) => {
                    tracing::debug!(%error, "telling the daemon about other hosts failed")
                }
            }
        }
    }

    /// Reports over what messages come.
    pub(super) fn incoming(&mut self, node: &Node, all: IncomingPaths) {
        self.incoming.retain(|id, _| all.contains_key(id));
        for (id, (landing, over)) in all {
            if self.incoming.get(&id) == Some(&over) {
                continue;
            }
            match node.comes_over(landing.publisher(), over.clone()) {
                Ok(()) => {
                    self.incoming.insert(id, over);
                }
                Err(error) => {
                    tracing::debug!(%error, "telling the daemon the path of a topic failed")
                }
            }
        }
    }
}
