//! The requests of the process with the links to other hosts. It is a client with a name of its own. The engine leaves
//! that client's members out of its answers, so that no interest and no message returns to where it is from.

use crate::clients::Clients;
use crate::engine::Engine;
use crate::links_report::{are_hosts, bad_hosts};
use crate::membership::announce;
use crate::memory::Memory;
use crate::qos::check_path;
use crate::refuse::{bad, refuse};
use crate::sessions::{is_owner, Session, SessionId};
use crate::topic::Topic;
use crate::zone::Zone;
use rgaps_session::{
    Answer, ArrivalPath, Demand, InterestPublisher, InterestRow, LinksFailure, LinksInfo, Member,
    Refusal, RefusalCode, RemoteRow, Side, INTEREST_ROWS, LINKS_CLIENT, MAX_DEPARTED,
};
use rgaps_sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

impl Engine {
    /// The daemon keeps the links' process running, and puts the reason here when it does not run.
    pub fn watch_links(&mut self, failure: Arc<Mutex<Option<LinksFailure>>>) {
        self.links.watch(failure);
    }

    pub(crate) fn links_info(&self) -> LinksInfo {
        self.links.info(self.sessions.have_links())
    }

    /// Refuses those who call themselves links and are not of the daemon's user.
    pub(crate) fn check_links(&self, session: SessionId, name: &str) -> Result<(), Refusal> {
        let uid = self.sessions.get(session).map(Session::uid);
        if name == LINKS_CLIENT && !uid.is_some_and(is_owner) {
            return Err(refuse(
                RefusalCode::NotPermitted,
                format!("only the daemon's own user and root may call a client '{LINKS_CLIENT}'"),
            ));
        }
        Ok(())
    }

    pub(crate) fn require_links(&self, session: SessionId) -> Result<(), Refusal> {
        match self.sessions.is_links(session) {
            true => Ok(()),
            false => Err(refuse(
                RefusalCode::NotPermitted,
                format!("only the client '{LINKS_CLIENT}' may send this request"),
            )),
        }
    }

    pub(crate) fn interest(
        &self,
        session: SessionId,
        known: u64,
        from: u32,
    ) -> Result<Answer, Refusal> {
        self.require_links(session)?;
        // Topics that seem to have no subscribers now would be given up on other hosts.
        self.check_all_recovered()?;
        let version = self.zones.iter().fold(0u64, |version, zone| {
            zone.topics.iter().fold(version, |version, topic| {
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
                .flat_map(|zone| zone.topics.iter().map(move |topic| (zone, topic)))
                .map(|(zone, topic)| (topic.name.as_str(), (zone, topic)))
                .collect();
            let page = by_name.values().skip(from as usize).take(INTEREST_ROWS);
            rows.extend(page.map(|(zone, topic)| interest_row(topic, &zone.clients, &zone.memory)));
        }
        let departed = match (known, from) {
            (0, 0) => {
                let all = self
                    .zones
                    .iter()
                    .flat_map(|zone| zone.history.departed().iter());
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
        if member.side != Side::Subscriber || !are_hosts(&hosts) {
            return Err(bad_hosts());
        }
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.topics.check_member(member, client)?;
        let Some(topic) = zone.topics.get_mut(member.topic) else {
            return Err(bad("there is no such topic"));
        };
        let ready = hosts.iter().filter(|row| row.ready);
        let count = ready.fold(0u32, |sum, row| sum.saturating_add(row.subscribers));
        let view = zone.control.topic(topic.region);
        let word = view.subscriber(member.slot as usize);
        let before = word
            .stands_for()
            .swap(count.saturating_add(1), Ordering::AcqRel);
        if let Some(subscriber) = topic.subscriber_mut(member.slot) {
            subscriber.remote = hosts;
        }
        if before != count.saturating_add(1) {
            // Wakes publishers that wait for subscribers.
            announce(&zone.control, topic);
        }
        Ok(Answer::Done)
    }

    pub(crate) fn comes_over(
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
        zone.topics.check_member(member, client)?;
        let topic = zone.topics.get_mut(member.topic);
        let publisher = topic.and_then(|topic| topic.publisher_mut(member.slot));
        if let Some(publisher) = publisher {
            publisher.remote_path = Some(over);
        }
        Ok(Answer::Done)
    }
}

/// Order matters: a change that undoes another still counts.
fn mix(version: u64, number: u64) -> u64 {
    (version.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn interest_row(topic: &Topic, clients: &Clients, memory: &Memory) -> InterestRow {
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
