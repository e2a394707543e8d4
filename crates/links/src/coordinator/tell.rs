//! What this host's daemon is told.

use super::Coordinator;
use crate::peer::Peer;
use rgaps::links::Links;
use rgaps::{PeersInfo, RemoteRow};
use std::time::{Duration, Instant};

/// How often the daemon is told of the other hosts.
const TELL: Duration = Duration::from_millis(500);

impl Coordinator {
    /// Tells the daemon whom the topic's subscriber stands for.
    pub(super) fn tell_remote(&mut self, name: &str) {
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        let rows: Vec<RemoteRow> = topic
            .streams
            .iter()
            .filter_map(|(host, (stream, want))| {
                let peer = self.peers.get(host)?;
                let said = peer.ready.get(stream);
                let (ready, path) = match (&topic.failed, said, peer.up) {
                    (Some((why, _)), ..) => (false, format!("not: {why}")),
                    (None, Some(Err(why)), _) => (false, format!("not: {why}")),
                    (None, _, false) => (false, "not now: the host is not linked".to_owned()),
                    (None, None, true) => (false, "not yet: the host prepares".to_owned()),
                    (None, Some(Ok(())), true) => (
                        true,
                        format!(
                            "{}, once for the host; zero copy there (there are no RDMA lanes yet)",
                            kind(&self.config.links)
                        ),
                    ),
                };
                let mut path = path;
                while path.len() > rgaps_session::MAX_PATH_BYTES {
                    path.pop();
                }
                Some(RemoteRow {
                    host: host.clone(),
                    subscribers: want.subscribers,
                    ready,
                    path,
                })
            })
            .collect();
        if topic.told.as_ref() == Some(&rows) {
            return;
        }
        let Some((_, subscriber)) = &topic.has else {
            return;
        };
        match self.node.stands_for(subscriber, rows.clone()) {
            Ok(()) => topic.told = Some(rows),
            Err(error) => tracing::debug!(%error, "the daemon does not know of other hosts"),
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
        let info = PeersInfo {
            host: self.own.host.clone(),
            peers: self.peers.values().map(Peer::row).collect(),
            troubles: self.probe.troubles(),
        };
        if self.told.as_ref().is_some_and(|(told, _)| *told == info) {
            return;
        }
        match self.node.set_peers(info.clone()) {
            Ok(()) => self.told = Some((info, now)),
            Err(error) => tracing::debug!(%error, "the daemon does not know of other hosts"),
        }
    }
}

/// What lanes are made of.
fn kind(links: &Links) -> &'static str {
    match links.has_tls() {
        true => "tcp with TLS",
        false => "tcp",
    }
}
