//! What the links reported to this host's daemon. They report only what has changed since.

use crate::ingress::RemotePublisher;
use crate::remote_host::RemoteHost;
use rgaps_client::links::{CameOver, LinksNode};
use rgaps_client::{ClientError, Node, PeersInfo, RemoteRow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two reports about the other hosts and their links.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Report {
    peers: Option<PeersInfo>,
    /// When other hosts were reported, if the daemon knew them all.
    reported_at: Option<Instant>,
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
        (self.peers, self.reported_at) = (None, None);
        self.unserved.clear();
        self.incoming.clear();
    }

    /// Reports other hosts, if it is time. Figures come first: those of a host that is linked count its link.
    pub(super) fn peers<'a>(
        &mut self,
        node: &Node,
        info: impl FnOnce() -> PeersInfo,
        peers: impl Iterator<Item = &'a RemoteHost>,
    ) {
        let now = Instant::now();
        if self.reported_at.is_some_and(|at| now - at < EVERY) {
            return;
        }
        let mut is_reported = true;
        for peer in peers {
            is_reported &= report_figures(node, peer);
        }
        self.reported_at = is_reported.then_some(now);
        let info = info();
        if self.peers.as_ref() == Some(&info) {
            return;
        }
        match node.set_peers(info.clone()) {
            Ok(()) => self.peers = Some(info),
            Err(error) => tracing::debug!(%error, "telling the daemon about other hosts failed"),
        }
    }

    /// Reports which topics do not come across, and why, and where those land of which it is configured.
    pub(super) fn unserved(&mut self, node: &Node, mut all: BTreeMap<String, Vec<RemoteRow>>) {
        for ended in self.unserved.keys() {
            all.entry(ended.clone()).or_default();
        }
        changes(&mut self.unserved, all, |topic, rows| {
            node.unserved(topic, rows.clone())
        });
        self.unserved.retain(|_, rows| !rows.is_empty());
    }

    pub(super) fn incoming(&mut self, node: &Node, all: IncomingPaths) {
        self.incoming.retain(|id, _| all.contains_key(id));
        let paths = all.iter().map(|(id, (_, over))| (*id, over.clone()));
        changes(&mut self.incoming, paths.collect(), |id, over| {
            node.comes_over(all[id].0.publisher(), over.clone())
        });
    }
}

/// Reports what is not known as it is now.
fn changes<K: Ord, V: PartialEq>(
    known: &mut BTreeMap<K, V>,
    all: BTreeMap<K, V>,
    report: impl Fn(&K, &V) -> Result<(), ClientError>,
) {
    for (key, value) in all {
        if known.get(&key) == Some(&value) {
            continue;
        }
        match report(&key, &value) {
            Ok(()) => {
                known.insert(key, value);
            }
            Err(error) => tracing::debug!(%error, "telling the daemon about other hosts failed"),
        }
    }
}

/// Whether the daemon took them: it does only for hosts that it knows of.
fn report_figures(node: &Node, peer: &RemoteHost) -> bool {
    let reported = node.set_figures(peer.figures());
    if let Err(error) = &reported {
        tracing::debug!(%error, host = peer.node.host, "telling the daemon the figures of a link failed");
    }
    reported.is_ok()
}
