//! What this host's daemon is told.

use super::Coordinator;
use crate::peer::{Over, Peer};
use crate::wire::clip_to;
use rgaps_client::links::{LinksNode, MAX_REMOTE_HOSTS};
use rgaps_client::{Domain, PathKind, PeersInfo, RemoteRow};
use rgaps_session::{MAX_PATH_BYTES, MAX_PEER_TOPICS};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often the daemon is told of the other hosts.
const TELL: Duration = Duration::from_millis(500);

impl Coordinator {
    /// Tells the daemon whom the topic's subscriber stands for.
    pub(super) fn tell_remote(&mut self, name: &str) {
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        let mut by_host: BTreeMap<String, RemoteRow> = BTreeMap::new();
        for (next, ends) in &topic.hosts {
            let stream = topic.streams.get(next).zip(self.peers.get(next));
            let Some(((stream, _), peer)) = stream else {
                continue;
            };
            let barred = topic.limits.get(next).and_then(|(_, why)| why.as_ref());
            for (end, want) in ends {
                let failed = topic.failed.as_ref().map(|(why, _)| why);
                let (ready, path) = match (failed.or(barred), peer.reaches(*stream, end)) {
                    (Some(why), _) => (false, format!("not: {why}")),
                    (None, Err(why)) => (false, format!("not: {why}")),
                    (None, Ok(())) => {
                        let through = match end == next {
                            true => String::new(),
                            false => format!("through {}: ", self.routes.way(end, next).join(", ")),
                        };
                        let Over { words, why_not, .. } = &peer.over;
                        let no_better = match why_not.is_empty() {
                            true => String::new(),
                            false => format!(" (no RDMA: {why_not})"),
                        };
                        let on_gpu = self.rows.get(name).and_then(|row| row.domain);
                        let on_gpu = matches!(on_gpu, Some(Domain::Cuda(_)));
                        let read = match (topic.is_read(), peer.over.path) {
                            (Ok(()), _) => ", read on the GPU by the card (GPUDirect)".to_owned(),
                            (Err(why), PathKind::Rdma) if on_gpu => {
                                format!(", through pinned memory (no GPUDirect: {why})")
                            }
                            _ => String::new(),
                        };
                        let path = format!(
                            "{through}{words}{read}, once for the host; zero copy there{no_better}"
                        );
                        (true, path)
                    }
                };
                let row = RemoteRow {
                    host: end.clone(),
                    subscribers: want.subscribers,
                    ready,
                    path: clip_to(&path, MAX_PATH_BYTES),
                };
                // Of two ways the one that is there, and else the one that is to be.
                let better = by_host.get(end).is_none_or(|known| {
                    ready && !known.ready
                        || ready == known.ready
                            && self.routes.hop(end).is_some_and(|hop| hop.next == *next)
                });
                if better {
                    by_host.insert(end.clone(), row);
                }
            }
        }
        let mut rows: Vec<RemoteRow> = by_host.into_values().collect();
        rows.truncate(MAX_REMOTE_HOSTS);
        if topic.told.as_ref() == Some(&rows) {
            return;
        }
        let Some((_, _, subscriber)) = &topic.has else {
            return;
        };
        match self.node.stands_for(subscriber, rows.clone()) {
            Ok(()) => topic.told = Some(rows),
            Err(error) => tracing::debug!(%error, "telling the daemon about other hosts failed"),
        }
    }

    /// Tells the daemon which topics do not come across, and why, and where those land of which it is configured.
    pub(super) fn tell_unserved(&mut self) {
        let mut all: BTreeMap<String, Vec<RemoteRow>> = BTreeMap::new();
        let mut push = |topic: &str, host: &str, subscribers, path: Result<String, &str>| {
            let rows = all.entry(topic.to_owned()).or_default();
            let ready = path.is_ok();
            let path = path.unwrap_or_else(|why| format!("not: {why}"));
            if rows.len() < MAX_REMOTE_HOSTS {
                rows.push(RemoteRow {
                    host: host.to_owned(),
                    subscribers,
                    ready,
                    path: clip_to(&path, MAX_PATH_BYTES),
                });
            }
        };
        for (name, topic) in &self.topics {
            for (host, (subscribers, why)) in &topic.refused {
                push(name, host, *subscribers, Err(why));
            }
        }
        for row in self.rows.values().filter(|row| row.subscribers > 0) {
            if let Err(why) = self.config.links.may_come(&row.name) {
                push(&row.name, "*", 0, Err(&why));
            }
        }
        for (host, peer) in &self.peers {
            for incoming in peer.incoming_streams() {
                let topic = &incoming.description.topic;
                match (&incoming.refused, self.landing_row(peer, incoming)) {
                    (Some((why, _)), None) => push(topic, host, 0, Err(why)),
                    (_, Some(where_it_lands)) => push(topic, host, 0, Ok(where_it_lands)),
                    (None, None) => {}
                }
            }
        }
        let gone = self.unserved.keys().filter(|name| !all.contains_key(*name));
        let gone: Vec<String> = gone.cloned().collect();
        for name in gone {
            if self.node.unserved(&name, Vec::new()).is_ok() {
                self.unserved.remove(&name);
            }
        }
        for (name, rows) in all {
            if self.unserved.get(&name) == Some(&rows) {
                continue;
            }
            match self.node.unserved(&name, rows.clone()) {
                Ok(()) => {
                    self.unserved.insert(name, rows);
                }
                Err(error) => {
                    tracing::debug!(%error, "telling the daemon about other hosts failed")
                }
            }
        }
    }

    /// Tells the daemon how it is with other hosts.
    pub(super) fn tell(&mut self) {
        let now = Instant::now();
        if let Some(why) = self.endpoint.take_refusal() {
            tracing::debug!("a lane was refused: {why}");
        }
        if self.told.as_ref().is_some_and(|(_, at)| now - *at < TELL) {
            return;
        }
        let mut info = PeersInfo {
            host: self.own.host.clone(),
            peers: self.peers.values().map(Peer::row).collect(),
            not_reached: self.probe.not_reached(),
            dma_bufs: self.known.as_ref().and_then(|known| known.dma_bufs()),
            traces: self
                .tracer
                .as_ref()
                .map_or_else(Default::default, |t| t.figures()),
        };
        self.led_rows(&mut info.peers);
        let mut left = MAX_PEER_TOPICS;
        for row in &mut info.peers {
            row.topics.truncate(left);
            left -= row.topics.len();
        }
        if self.told.as_ref().is_some_and(|(told, _)| *told == info) {
            return;
        }
        match self.node.set_peers(info.clone()) {
            Ok(()) => self.told = Some((info, now)),
            Err(error) => tracing::debug!(%error, "telling the daemon about other hosts failed"),
        }
    }
}
