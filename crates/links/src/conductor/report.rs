//! Reports to the daemon about other hosts and the topics that cross, for listings. The links report only changes.

use super::egress_plan::EgressPlan;
use super::routes::through;
use super::LinksConductor;
use crate::ingress::RemotePublisher;
use crate::remote_host::{LinkPath, OutgoingStream, RemoteHost};
use crate::wire::clip_to;
use rgaps_client::links::{ArrivalPath, LinksNode, MAX_REMOTE_HOSTS};
use rgaps_client::{ClientError, Domain, LinkFigures, Node, PathKind, PeersInfo, RemoteRow};
use rgaps_session::{MAX_PATH_BYTES, MAX_PEER_TOPICS};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const REPORT_EVERY: Duration = Duration::from_millis(500);

/// The last reports to the current daemon. A new daemon has none.
#[derive(Default)]
pub(super) struct Report {
    peers: Option<PeersInfo>,
    /// When the links reported other hosts last. None: never, or the daemon did not know all of them.
    reported_at: Option<Instant>,
    /// By topics: why they do not cross, or where they land by configuration.
    unserved: BTreeMap<String, Vec<RemoteRow>>,
    /// The paths by which messages come, by the numbers of the landings' publishers.
    incoming: BTreeMap<u64, ArrivalPath>,
}

/// Landings and the paths by which their messages come, by the numbers of their publishers.
pub(super) type IncomingPaths = BTreeMap<u64, (Arc<RemotePublisher>, ArrivalPath)>;

impl Report {
    /// Reports topics that do not cross, and why, and where topics land that have a rule for it.
    fn unserved(&mut self, node: &Node, mut all: BTreeMap<String, Vec<RemoteRow>>) {
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
            node.comes_over(&all[id].0.publisher, over.clone())
        });
    }

    /// Whether the links have to report other hosts now.
    fn is_due(&self) -> bool {
        let reported_at = self.reported_at;
        reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY)
    }

    /// Reports other hosts, and the figures of their links. Figures come first: those of a host that is linked count its link.
    fn peers(&mut self, node: &Node, figures: Vec<LinkFigures>, info: PeersInfo) {
        let mut is_reported = true;
        for figures in figures {
            // The daemon takes figures only for hosts that it knows.
            is_reported &= reported(node.set_figures(figures));
        }
        self.reported_at = is_reported.then(Instant::now);
        if self.peers.as_ref() != Some(&info) && reported(node.set_peers(info.clone())) {
            self.peers = Some(info);
        }
    }
}

fn reported(outcome: Result<(), ClientError>) -> bool {
    let log = |error: &ClientError| tracing::debug!(%error, "telling the daemon about other hosts failed");
    outcome.inspect_err(log).is_ok()
}

/// Reports the values that differ from the known ones, and notes them as known if that succeeds.
fn changes<K: Ord, V: PartialEq>(
    known: &mut BTreeMap<K, V>,
    all: BTreeMap<K, V>,
    report: impl Fn(&K, &V) -> Result<(), ClientError>,
) {
    for (key, value) in all {
        if known.get(&key) != Some(&value) && reported(report(&key, &value)) {
            known.insert(key, value);
        }
    }
}

fn row(host: &str, subscribers: u32, path: Result<String, &str>) -> RemoteRow {
    let ready = path.is_ok();
    let path = path.unwrap_or_else(|why| format!("not: {why}"));
    RemoteRow {
        host: host.to_owned(),
        subscribers,
        ready,
        path: clip_to(&path, MAX_PATH_BYTES),
    }
}

impl LinksConductor {
    /// Tells the daemon for which hosts' subscribers the topic's subscriber stands.
    pub(super) fn report_remote(&self, name: &str, topic: &mut EgressPlan) {
        let rows = self.remote_rows(name, topic);
        let node = &self.daemon.node;
        topic.report(rows, |subscriber, rows| {
            reported(node.stands_for(subscriber, rows))
        });
    }

    fn remote_rows(&self, name: &str, topic: &EgressPlan) -> Vec<RemoteRow> {
        let mut by_host: BTreeMap<&String, RemoteRow> = BTreeMap::new();
        for (next, branch) in topic.branches() {
            let Some(peer) = self.peers.get(next) else {
                continue;
            };
            let barred = topic.barred(branch);
            let ends = branch.tree().ends();
            for (end, want) in ends.filter_map(|end| topic.wants().get_key_value(end)) {
                let reaches = || branch.reaches(peer, end);
                let reaches = barred.map_or_else(reaches, |why| Err(why));
                let path = reaches.map(|()| self.path_in_words(name, topic, (peer, branch), end));
                let row = row(end, want.subscribers, path);
                // Of two routes to a host, the row shows the ready one, or else the planned one.
                let is_better = by_host.get(end).is_none_or(|known| {
                    let is_to_be = || self.routes.hop(end).is_some_and(|hop| hop.next() == next);
                    row.ready && !known.ready || row.ready == known.ready && is_to_be()
                });
                if is_better {
                    by_host.insert(end, row);
                }
            }
        }
        by_host.into_values().take(MAX_REMOTE_HOSTS).collect()
    }

    /// The path of a topic's messages to `end`, in words. `peer`: the next hop.
    fn path_in_words(
        &self,
        name: &str,
        topic: &EgressPlan,
        (peer, branch): (&RemoteHost, &OutgoingStream),
        end: &str,
    ) -> String {
        let mut path = branch.tree().path(end);
        path.insert(0, peer.name().to_owned());
        let through = through(&path);
        let LinkPath { words, why_not, .. } = peer.over();
        let no_better = match why_not.is_empty() {
            true => String::new(),
            false => format!(" (no RDMA: {why_not})"),
        };
        let domain = self.daemon.row(name).and_then(|row| row.domain);
        let read = match (topic.is_read(), peer.over().path, domain) {
            (Ok(()), ..) => ", read on the GPU by the card (GPUDirect)".to_owned(),
            (Err(why), PathKind::Rdma, Some(Domain::Cuda(_))) => {
                format!(", through pinned memory (no GPUDirect: {why})")
            }
            _ => String::new(),
        };
        format!("{through}{words}{read}, once for the host; zero copy there{no_better}")
    }

    /// Tells the daemon which topics do not cross, and why, and where topics land that have a rule for it.
    pub(super) fn report_unserved(&mut self) {
        let mut all: BTreeMap<String, Vec<RemoteRow>> = BTreeMap::new();
        let mut push = |topic: &str, row: RemoteRow| {
            let rows = all.entry(topic.to_owned()).or_default();
            if rows.len() < MAX_REMOTE_HOSTS {
                rows.push(row);
            }
        };
        for (name, topic) in self.topics.iter() {
            for (host, (subscribers, why)) in topic.refused() {
                push(name, row(host, *subscribers, Err(why)));
            }
        }
        for wanted in self.daemon.wanted() {
            if let Err(why) = self.config.links.may_arrive(&wanted.name) {
                push(&wanted.name, row("*", 0, Err(&why)));
            }
        }
        for (host, peer) in &self.peers {
            for incoming in peer.incoming_streams() {
                let topic = &incoming.description().topic;
                match (incoming.refused(), self.landing_row(peer, incoming)) {
                    (Some(why), None) => push(topic, row(host, 0, Err(why))),
                    (_, Some(where_it_lands)) => push(topic, row(host, 0, Ok(where_it_lands))),
                    (None, None) => {}
                }
            }
        }
        self.daemon.report.unserved(&self.daemon.node, all);
    }

    /// Reports other hosts and the figures of their links to the daemon, if it is time.
    pub(super) fn report_peers(&mut self) {
        if let Some(why) = self.endpoint.take_refusal() {
            tracing::debug!("a lane was refused: {why}");
        }
        let probe = &self.presence.probe;
        probe.set_knows_hosts(!self.peers.is_empty());
        if !self.daemon.report.is_due() {
            return;
        }
        let figures = self.peers.values().map(RemoteHost::figures);
        let (figures, info) = (figures.collect(), self.peers_info());
        let node = &self.daemon.node;
        self.daemon.report.peers(node, figures, info);
    }

    /// How many topics of this host another host takes, plus the streams of other hosts that this host forwards to it.
    fn topics_out(&self, host: &str) -> u32 {
        let own = self.topics.values();
        let own = own.filter_map(|topic| topic.branches().get(host));
        let own = own.filter(|branch| branch.is_taken()).count();
        (own + self.transits.streams_taken_by(host)) as u32
    }

    fn peers_info(&self) -> PeersInfo {
        let tracer = self.tracer.as_ref();
        let rows = self.peers.iter();
        let rows = rows.map(|(host, peer)| peer.row(self.topics_out(host)));
        let mut info = PeersInfo {
            host: self.own.host.clone(),
            peers: rows.collect(),
            not_reached: self.presence.probe.not_reached(),
            dma_bufs: self.cards.dma_bufs(),
            traces: tracer.map_or_else(Default::default, |tracer| tracer.figures()),
        };
        self.led_rows(&mut info.peers);
        let mut left = MAX_PEER_TOPICS;
        for row in &mut info.peers {
            row.topics.truncate(left);
            left -= row.topics.len();
        }
        info
    }
}
