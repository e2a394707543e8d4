//! The last reports of the links' process: its hosts, the figures of its links, and the topics that do not cross.
//!
//! A report is kept as long as the session that sent it: [`LinksReport::forget`] drops it. The thread that starts the links'
//! process shares here why the process does not run.

use crate::qos::check_path;
use crate::refuse::bad;
use crate::sessions::SessionId;
use rgaps_layout::MAX_TOPIC_NAME;
use rgaps_session::{
    LinkFigures, LinksFailure, LinksInfo, LinksState, NotReached, PeerRow, PeersInfo, Refusal,
    RemoteRow, MAX_HOST_NAME, MAX_NOT_REACHED, MAX_PEER_TEXT, MAX_PEER_TOPICS, MAX_REMOTE_HOSTS,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// For how many topics that do not cross the reasons are kept.
const MAX_UNSERVED: usize = 8192;
/// Most characters of the advice, and of the reason, why the links do not run. A status with both fits one packet.
const MAX_FAILURE_CHARS: usize = 4096;

/// The last reports of the links' process, each with the session that sent it.
#[derive(Default)]
pub(crate) struct LinksReport {
    peers: Option<(SessionId, PeersInfo)>,
    /// By host.
    figures: BTreeMap<String, (SessionId, LinkFigures)>,
    /// By topic: the hosts that it does not reach, and why.
    unserved: BTreeMap<String, (SessionId, Vec<RemoteRow>)>,
    /// Why the links' process does not run; None inside: it runs or starts. None: links are not enabled.
    failure: Option<Arc<Mutex<Option<LinksFailure>>>>,
}

impl LinksReport {
    /// Notes that the links' process is meant to run. Its starter puts the reason into `failure` when it does not.
    pub(crate) fn watch(&mut self, failure: Arc<Mutex<Option<LinksFailure>>>) {
        self.failure = Some(failure);
    }

    /// The state of the links' process. `joined`: it has a session.
    pub(crate) fn info(&self, joined: bool) -> LinksInfo {
        let Some(failure) = &self.failure else {
            return LinksInfo::default();
        };
        // It has joined, so it has recovered from any failure.
        if joined {
            return LinksInfo {
                state: LinksState::Running,
                failure: None,
            };
        }
        let failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
        LinksInfo {
            state: match *failure {
                Some(_) => LinksState::Failed,
                None => LinksState::Starting,
            },
            failure: failure.as_ref().map(|failure| {
                Box::new(LinksFailure {
                    advice: shorten(&failure.advice),
                    reason: shorten(&failure.reason),
                })
            }),
        }
    }

    /// Drops the reports of a session that has ended.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.peers.take_if(|(of, _)| *of == session);
        self.figures.retain(|_, (of, _)| *of != session);
        self.unserved.retain(|_, (of, _)| *of != session);
    }

    /// Replaces the list of hosts.
    pub(crate) fn set_peers(
        &mut self,
        session: SessionId,
        peers: PeersInfo,
    ) -> Result<(), Refusal> {
        if !is_within_limits(&peers) {
            return Err(bad("the list of hosts is invalid"));
        }
        self.peers = Some((session, peers));
        Ok(())
    }

    pub(crate) fn peers(&self) -> PeersInfo {
        let peers = self.peers.as_ref();
        peers.map_or_else(PeersInfo::default, |(_, peers)| peers.clone())
    }

    /// Replaces the figures of the link with one host.
    pub(crate) fn set_figures(
        &mut self,
        session: SessionId,
        figures: LinkFigures,
    ) -> Result<(), Refusal> {
        let known: &[PeerRow] = self.peers.as_ref().map_or(&[], |(_, peers)| &peers.peers);
        if !known.iter().any(|row| row.host == figures.host) {
            return Err(bad(
                "these figures are of a host that is not in the list of hosts",
            ));
        }
        // So there are at most as many figures as hosts in the list.
        self.figures
            .retain(|host, (of, _)| *of == session && known.iter().any(|row| row.host == *host));
        self.figures
            .insert(figures.host.clone(), (session, figures));
        Ok(())
    }

    /// The figures of all links, ordered by host.
    pub(crate) fn figures(&self) -> impl Iterator<Item = &LinkFigures> {
        self.figures.values().map(|(_, figures)| figures)
    }

    /// Replaces the hosts that a topic does not reach.
    pub(crate) fn set_unserved(
        &mut self,
        session: SessionId,
        topic: String,
        hosts: Vec<RemoteRow>,
    ) -> Result<(), Refusal> {
        if topic.len() > MAX_TOPIC_NAME || !are_hosts(&hosts) {
            return Err(bad_hosts());
        }
        let full = self.unserved.len() >= MAX_UNSERVED && !self.unserved.contains_key(&topic);
        if hosts.is_empty() {
            self.unserved.remove(&topic);
        // More reasons than that are dropped.
        } else if !full {
            self.unserved.insert(topic, (session, hosts));
        }
        Ok(())
    }

    /// Hosts that a topic does not reach.
    pub(crate) fn unserved_rows(&self, topic: &str) -> Vec<RemoteRow> {
        let unserved = self.unserved.get(topic);
        unserved.map_or_else(Vec::new, |(_, rows)| rows.clone())
    }
}

/// Whether a list of hosts can be kept and shown.
pub(crate) fn are_hosts(hosts: &[RemoteRow]) -> bool {
    let is_row = |row: &RemoteRow| row.host.len() <= MAX_HOST_NAME && check_path(&row.path).is_ok();
    hosts.len() <= MAX_REMOTE_HOSTS && hosts.iter().all(is_row)
}

pub(crate) fn bad_hosts() -> Refusal {
    bad("the list of a topic's hosts is invalid")
}

fn is_within_limits(peers: &PeersInfo) -> bool {
    let fits = |text: &str, most| text.len() <= most && !text.chars().any(char::is_control);
    let is_row = |row: &PeerRow| {
        let texts = [&row.detail, &row.over, &row.why_not];
        fits(&row.host, MAX_HOST_NAME) && texts.iter().all(|text| fits(text, MAX_PEER_TEXT))
    };
    let is_not_reached = |of: &NotReached| {
        let texts = [&of.endpoint, &of.reason];
        texts.iter().all(|text| fits(text, MAX_PEER_TEXT))
    };
    let rows = &peers.peers;
    let mut topics = rows.iter().flat_map(|row| &row.topics);
    let traces = &peers.traces;
    let dma_bufs = match &peers.dma_bufs {
        Some(Err(why)) => why,
        _ => "",
    };
    rows.len() <= MAX_REMOTE_HOSTS
        && rows.iter().all(is_row)
        && rows.iter().map(|row| row.topics.len()).sum::<usize>() <= MAX_PEER_TOPICS
        && topics.all(|row| fits(&row.topic, MAX_TOPIC_NAME) && fits(&row.why, MAX_PEER_TEXT))
        && fits(&peers.host, MAX_HOST_NAME)
        && fits(dma_bufs, MAX_PEER_TEXT)
        && fits(&traces.endpoint, MAX_PEER_TEXT)
        && fits(&traces.error, MAX_PEER_TEXT)
        && peers.not_reached.len() <= MAX_NOT_REACHED
        && peers.not_reached.iter().all(is_not_reached)
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_FAILURE_CHARS).collect()
}
