//! What the process with the links to other hosts asks, and what it tells. It is a client with a name of
//! its own; its members are left out of what it is told, so that no interest and no message comes back.

use crate::engine::{Engine, SessionId};
use crate::membership::announce;
use crate::refuse::{bad, refuse};
use crate::requests::{bad_path, is_path};
use crate::topic::Topic;
use crate::zone::Zone;
use rgaps_layout::MAX_TOPIC_NAME;
use rgaps_session::{
    Answer, CameOver, Demand, InterestPublisher, InterestRow, LinkFigures, LinksFailure, LinksInfo,
    LinksState, Member, PeersInfo, Refusal, RefusalCode, RemoteRow, Side, FIGURES_ROWS,
    INTEREST_ROWS, LINKS_CLIENT, MAX_DEPARTED, MAX_HOST_NAME, MAX_PEER_TEXT, MAX_PEER_TOPICS,
    MAX_REMOTE_HOSTS, MAX_TROUBLES,
};
use rgaps_sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Topics that do not cross, of which it is known why.
const MAX_UNSERVED: usize = 8192;
/// Longest advice, and longest reason, of links that do not run; both fit a packet with all else.
const MAX_FAILURE_CHARS: usize = 4096;

impl Engine {
    /// The daemon keeps the links' process running, and puts here why it does not run.
    pub fn watch_links(&mut self, failure: Arc<Mutex<Option<LinksFailure>>>) {
        self.links_failure = Some(failure);
    }

    pub(crate) fn links_info(&self) -> LinksInfo {
        let Some(failure) = &self.links_failure else {
            return LinksInfo::default();
        };
        // What failed before it joined is over.
        if self.sessions.keys().any(|session| self.is_links(*session)) {
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
                    advice: clip(&failure.advice),
                    reason: clip(&failure.reason),
                })
            }),
        }
    }

    /// Refuses those who call themselves links and are not of the daemon's user.
    pub(crate) fn check_links(&self, session: SessionId, name: &str) -> Result<(), Refusal> {
        let uid = self.sessions.get(&session).map(|s| s.peer.credentials.uid);
        let own = rustix::process::geteuid().as_raw();
        if name == LINKS_CLIENT && !uid.is_some_and(|uid| uid == 0 || uid == own) {
            return Err(refuse(
                RefusalCode::NotPermitted,
                format!("only the daemon's own user and root may call a client '{LINKS_CLIENT}'"),
            ));
        }
        Ok(())
    }

    fn require_links(&self, session: SessionId) -> Result<(), Refusal> {
        match self.is_links(session) {
            true => Ok(()),
            false => Err(refuse(
                RefusalCode::NotPermitted,
                format!("only the client '{LINKS_CLIENT}' may send this request"),
            )),
        }
    }

    pub(crate) fn is_links(&self, session: SessionId) -> bool {
        // `check_links` has seen to it that nobody else is called so.
        let known = self.sessions.get(&session);
        known.is_some_and(|session| session.welcomed && session.name == LINKS_CLIENT)
    }

    pub(crate) fn interest(
        &self,
        session: SessionId,
        known: u64,
        from: u32,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        // Topics that nobody seems to subscribe to now would be given up on other hosts.
        self.check_all_recovered()?;
        let version = self.zones.values().fold(0u64, |version, zone| {
            zone.topics.values().fold(version, |version, topic| {
                mix(version, topic.id ^ u64::from(topic.epoch).rotate_left(32))
            })
        });
        // 0 is what is known of nothing.
        let version = version | 1;
        let mut rows = Vec::new();
        if version != known || from > 0 {
            let by_name: BTreeMap<&str, (&Zone, &Topic)> = self
                .zones
                .values()
                .flat_map(|zone| zone.topics.values().map(move |topic| (zone, topic)))
                .map(|(zone, topic)| (topic.name.as_str(), (zone, topic)))
                .collect();
            let page = by_name.values().skip(from as usize).take(INTEREST_ROWS);
            rows.extend(page.map(|(zone, topic)| zone.interest_row(topic)));
        }
        let departed = match (known, from) {
            (0, 0) => {
                let all = self.zones.values().flat_map(|zone| zone.departed.iter());
                all.take(MAX_DEPARTED).copied().collect()
            }
            _ => Vec::new(),
        };
        Ok(Answer::Interest {
            version,
            daemon: self.daemon,
            rows,
            departed,
        })
    }

    pub(crate) fn stands_for(
        &mut self,
        session: SessionId,
        member: &Member,
        hosts: Vec<RemoteRow>,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        if member.side != Side::Subscriber
            || hosts.len() > MAX_REMOTE_HOSTS
            || !hosts.iter().all(row_fits)
        {
            return Err(bad("the list of a topic's hosts is invalid"));
        }
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.check_member(member, client)?;
        let Some(topic) = zone.topics.get_mut(&member.topic) else {
            return Err(bad("there is no such topic"));
        };
        let ready = hosts.iter().filter(|row| row.ready);
        let count = ready.fold(0u32, |sum, row| sum.saturating_add(row.subscribers));
        let view = zone.control.topic(topic.region);
        let word = view.subscriber(member.slot as usize);
        let before = word
            .stands_for()
            .swap(count.saturating_add(1), Ordering::AcqRel);
        if let Some(subscriber) = topic.subscribers.iter_mut().find(|s| s.slot == member.slot) {
            subscriber.remote = hosts;
        }
        if before != count.saturating_add(1) {
            // For those who wait for subscribers.
            announce(&zone.control, topic);
        }
        Ok(Answer::Done)
    }

    pub(crate) fn comes_over(
        &mut self,
        session: SessionId,
        member: &Member,
        over: CameOver,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        if member.side != Side::Publisher || !is_path(&over.why) {
            return Err(bad_path());
        }
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.check_member(member, client)?;
        let topic = zone.topics.get_mut(&member.topic);
        let publisher = topic.and_then(|topic| topic.publisher_mut(member.slot));
        if let Some(publisher) = publisher {
            publisher.came_over = Some(over);
        }
        Ok(Answer::Done)
    }

    pub(crate) fn set_unserved(
        &mut self,
        session: SessionId,
        topic: String,
        hosts: Vec<RemoteRow>,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        let full = self.unserved.len() >= MAX_UNSERVED && !self.unserved.contains_key(&topic);
        if topic.len() > MAX_TOPIC_NAME
            || hosts.len() > MAX_REMOTE_HOSTS
            || !hosts.iter().all(row_fits)
        {
            return Err(bad("the list of a topic's hosts is invalid"));
        }
        match hosts.is_empty() {
            true => {
                self.unserved.remove(&topic);
            }
            // Of more than that nobody reads the reasons.
            false if full => {}
            false => {
                self.unserved.insert(topic, (session, hosts));
            }
        }
        Ok(Answer::Done)
    }

    /// Hosts between which and this one a topic does not cross.
    pub(crate) fn unserved_rows(&self, topic: &str) -> Vec<RemoteRow> {
        let told = self.unserved.get(topic);
        told.filter(|(session, _)| self.sessions.contains_key(session))
            .map_or_else(Vec::new, |(_, rows)| rows.clone())
    }

    pub(crate) fn set_peers(
        &mut self,
        session: SessionId,
        peers: PeersInfo,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        let fits = |text: &str, most| text.len() <= most && !text.chars().any(char::is_control);
        let rows = &peers.peers;
        let mut topics = rows.iter().flat_map(|row| &row.topics);
        if rows.len() > MAX_REMOTE_HOSTS
            || !fits(&peers.host, MAX_HOST_NAME)
            || !fits(&peers.traces.endpoint, MAX_PEER_TEXT)
            || !fits(&peers.traces.error, MAX_PEER_TEXT)
            || peers.troubles.len() > MAX_TROUBLES
            || !peers.troubles.iter().all(|line| fits(line, MAX_PEER_TEXT))
            || rows.iter().map(|row| row.topics.len()).sum::<usize>() > MAX_PEER_TOPICS
            || !topics.all(|row| fits(&row.topic, MAX_TOPIC_NAME) && fits(&row.why, MAX_PEER_TEXT))
            || !rows.iter().all(|row| {
                let texts = [&row.detail, &row.over, &row.why_not];
                fits(&row.host, MAX_HOST_NAME) && texts.iter().all(|text| fits(text, MAX_PEER_TEXT))
            })
        {
            return Err(bad("the list of hosts is invalid"));
        }
        self.peers = Some((session, peers));
        Ok(Answer::Done)
    }

    pub(crate) fn set_figures(
        &mut self,
        session: SessionId,
        figures: LinkFigures,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        let known = self.list_peers().peers;
        if !known.iter().any(|row| row.host == figures.host) {
            return Err(bad(
                "these figures are of a host that is not in the list of hosts",
            ));
        }
        // No more than there are hosts in the listing.
        self.figures
            .retain(|host, (of, _)| *of == session && known.iter().any(|row| row.host == *host));
        self.figures
            .insert(figures.host.clone(), (session, figures));
        Ok(Answer::Done)
    }

    pub(crate) fn list_figures(&self, from: u32) -> Answer {
        let page = self.link_figures().skip(from as usize).take(FIGURES_ROWS);
        Answer::Figures(page.cloned().collect())
    }

    /// Of links that run, by hosts.
    pub(crate) fn link_figures(&self) -> impl Iterator<Item = &LinkFigures> {
        let known = self.figures.values();
        let there = |session| self.sessions.contains_key(session);
        known
            .filter(move |(session, _)| there(session))
            .map(|(_, figures)| figures)
    }

    /// What the links said of other hosts, as long as they are there.
    fn told_peers(&self) -> Option<&PeersInfo> {
        let told = self.peers.as_ref();
        told.filter(|(session, _)| self.sessions.contains_key(session))
            .map(|(_, peers)| peers)
    }

    pub(crate) fn list_peers(&self) -> PeersInfo {
        self.told_peers().cloned().unwrap_or_default()
    }
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_FAILURE_CHARS).collect()
}

fn row_fits(row: &RemoteRow) -> bool {
    row.host.len() <= MAX_HOST_NAME && is_path(&row.path)
}

/// Order matters: a change that undoes another still counts.
fn mix(version: u64, number: u64) -> u64 {
    (version.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Zone {
    pub(crate) fn is_links_client(&self, client: u32) -> bool {
        let client = self.clients.get(&client);
        client.is_some_and(|client| client.name == LINKS_CLIENT)
    }

    fn interest_row(&self, topic: &Topic) -> InterestRow {
        let (landed, publishers): (Vec<_>, Vec<_>) = topic
            .publishers
            .iter()
            .partition(|publisher| publisher.of_links);
        let own = topic
            .subscribers
            .iter()
            .filter(|subscriber| !subscriber.closed && !self.is_links_client(subscriber.client));
        let mut demand: Option<Demand> = None;
        let (mut subscribers, mut readers) = (0, BTreeSet::new());
        for subscriber in own {
            subscribers += 1;
            let reads = subscriber.pool.map(|pool| self.pools[pool as usize].domain);
            readers.extend(reads);
            let own = subscriber.demand;
            demand = Some(demand.unwrap_or(own).and(own));
        }
        InterestRow {
            name: topic.name.clone(),
            domain: topic.pool.map(|pool| self.pools[pool as usize].domain),
            publishers: publishers
                .into_iter()
                .map(|publisher| InterestPublisher {
                    incarnation: publisher.incarnation,
                    type_name: publisher.type_name.clone(),
                    offer: publisher.offer,
                    orphan: publisher.is_orphan(),
                    require: publisher.require,
                })
                .collect(),
            landed: landed.into_iter().map(|p| p.incarnation).collect(),
            subscribers,
            demand: demand.unwrap_or_default(),
            readers: readers.into_iter().collect(),
        }
    }
}
