//! The requests of the process with the links to other hosts. It is a client with a name of its own. The engine leaves
//! that client's members out of its answers, so that no interest and no message returns to the host from which it came.

use super::Engine;
use crate::links_report::{are_hosts, bad_hosts};
use crate::qos::check_path;
use crate::refuse::{bad, refuse};
use crate::sessions::{is_owner, Session, SessionId};
use crate::topic::Topic;
use crate::zone::Zone;
use rgaps_session::{
    Answer, ArrivalPath, Demand, InterestPublisher, InterestRow, LinksFailure, LinksInfo, Member,
    Refusal, RefusalCode, RemoteRow, Side, INTEREST_ROWS, LINKS_CLIENT, MAX_DEPARTED,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

impl Engine {
    /// Notes that the daemon keeps the links' process running. The thread that starts it puts the reason into `failure` when it does
    /// not run.
    pub fn watch_links(&mut self, failure: Arc<Mutex<Option<LinksFailure>>>) {
        self.links.watch(failure);
    }

    pub(super) fn links_info(&self) -> LinksInfo {
        self.links.info(self.sessions.have_links())
    }

    /// Refuses those who call themselves links and are not of the daemon's user.
    pub(super) fn check_links(&self, session: SessionId, name: &str) -> Result<(), Refusal> {
        let uid = self.sessions.get(session).map(Session::uid);
        if name == LINKS_CLIENT && !uid.is_some_and(is_owner) {
            return Err(refuse(
                RefusalCode::NotPermitted,
                format!("only the daemon's own user and root may call a client '{LINKS_CLIENT}'"),
            ));
        }
        Ok(())
    }

    pub(super) fn require_links(&self, session: SessionId) -> Result<(), Refusal> {
        match self.sessions.is_links(session) {
            true => Ok(()),
            false => Err(refuse(
                RefusalCode::NotPermitted,
                format!("only the client '{LINKS_CLIENT}' may send this request"),
            )),
        }
    }

    /// Lists the topics for the links, with their subscribers and publishers on this host. Without rows if the links have seen
    /// version `known`.
    pub(super) fn interest(
        &self,
        session: SessionId,
        known: u64,
        from: u32,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        // Other hosts would give up topics whose subscribers have not returned yet.
        self.check_all_recovered()?;
        let version = self.zones.iter().fold(0u64, |version, zone| {
            zone.topics().iter().fold(version, |version, topic| {
                mix(version, topic.id ^ u64::from(topic.epoch).rotate_left(32))
            })
        });
        // 0 is the version of a client that knows nothing.
        let version = version | 1;
        let mut rows = Vec::new();
        if version != known || from > 0 {
            let by_name: BTreeMap<&str, (&Zone, &Topic)> = self
                .zones
                .iter()
                .flat_map(|zone| zone.topics().iter().map(move |topic| (zone, topic)))
                .map(|(zone, topic)| (topic.name.as_str(), (zone, topic)))
                .collect();
            let page = by_name.values().skip(from as usize).take(INTEREST_ROWS);
            rows.extend(page.map(|(zone, topic)| interest_row(topic, zone)));
        }
        let departed = match (known, from) {
            (0, 0) => {
                let all = self.zones.iter().flat_map(|zone| zone.departed().iter());
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

    /// Sets the hosts that a subscriber of the links stands for.
    pub(super) fn stands_for(
        &mut self,
        session: SessionId,
        member: &Member,
        hosts: Vec<RemoteRow>,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        if member.side != Side::Subscriber || !are_hosts(&hosts) {
            return Err(bad_hosts());
        }
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.set_remote(member, client, hosts)?;
        Ok(Answer::Done)
    }

    /// Sets how the messages of a publisher of the links reach this host.
    pub(super) fn comes_over(
        &mut self,
        session: SessionId,
        member: &Member,
        over: ArrivalPath,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        if member.side != Side::Publisher {
            return Err(bad(
                "only what publishers of the links publish comes over one",
            ));
        }
        check_path(&over.why)?;
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.topics().check_member(member, client)?;
        let topic = zone.topics_mut().get_mut(member.topic);
        let publisher = topic.and_then(|topic| topic.publisher_mut(member.slot));
        if let Some(publisher) = publisher {
            publisher.remote_path = Some(over);
        }
        Ok(Answer::Done)
    }
}

/// Mixes a number into a version. The order of the numbers matters, too.
fn mix(version: u64, number: u64) -> u64 {
    (version.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn interest_row(topic: &Topic, zone: &Zone) -> InterestRow {
    let (clients, memory) = (zone.clients(), zone.memory());
    let (landed, publishers): (Vec<_>, Vec<_>) = topic
        .publishers
        .iter()
        .partition(|publisher| publisher.of_links);
    let own = topic
        .subscribers
        .iter()
        .filter(|subscriber| !subscriber.closed && !clients.is_links(subscriber.client));
    let mut demand: Option<Demand> = None;
    let (mut subscribers, mut readers) = (0, BTreeSet::new());
    for subscriber in own {
        subscribers += 1;
        let reads = subscriber.pool.map(|pool| memory.domain(pool));
        readers.extend(reads);
        let own = subscriber.demand;
        demand = Some(demand.unwrap_or(own).and(own));
    }
    InterestRow {
        name: topic.name.clone(),
        domain: topic.pool.map(|pool| memory.domain(pool)),
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
