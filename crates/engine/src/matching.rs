//! Which subscribers read which publishers, and who is notified of a pair that does not match.
//!
//! As in DDS, a publisher and a subscriber of a topic whose types or qualities of service do not go together
//! are not matched: no message goes from one to the other, and neither is refused. Each pair is judged by
//! itself ([`qos`](crate::qos)), so nobody is kept out by somebody else. The words in the control segment
//! follow from what is here ([`write_matches`](crate::membership::write_matches)).

use crate::clients::Clients;
use crate::engine::Engine;
use crate::qos::mismatch;
use crate::sessions::SessionId;
use crate::topic::{Publisher, PublisherOwner, Subscriber, Topic};
use rgaps_session::{Member, MismatchRow, Notice, Side, ZoneId, MAX_MISMATCHES, MAX_REASON_BYTES};

/// Others that a member is told of when it joins; a listing has the rest.
const MAX_NOTIFIED: usize = 4;

impl Topic {
    /// Why a publisher and a subscriber of this topic do not match.
    pub(crate) fn mismatch(publisher: &Publisher, subscriber: &Subscriber) -> Option<String> {
        let demand = (!subscriber.observer).then_some(&subscriber.demand);
        mismatch(
            (&publisher.offer, &publisher.type_name),
            (demand, &subscriber.type_name),
        )
    }

    /// Whether a subscriber reads a publisher.
    pub(crate) fn matches(publisher: &Publisher, subscriber: &Subscriber) -> bool {
        !subscriber.closed && Topic::mismatch(publisher, subscriber).is_none()
    }

    /// What `PublisherSlot::matched` of a publisher should be.
    pub(crate) fn matched_subscribers(&self, publisher: &Publisher) -> u64 {
        let matched = self.subscribers.iter();
        let matched = matched.filter(|subscriber| Topic::matches(publisher, subscriber));
        matched.fold(0, |bits, subscriber| bits | 1 << subscriber.slot)
    }

    /// Slots of the publishers that a subscriber reads.
    pub(crate) fn matched_publishers(&self, subscriber: &Subscriber) -> u64 {
        let matched = self.publishers.iter();
        let matched = matched.filter(|publisher| Topic::matches(publisher, subscriber));
        matched.fold(0, |bits, publisher| bits | 1 << publisher.slot)
    }

    /// How many subscribers do not match a publisher. Observers ask for nothing.
    pub(crate) fn mismatched_subscribers(&self, publisher: &Publisher) -> u32 {
        let others = self.subscribers.iter().filter(|s| !s.observer);
        let others = others.filter(|other| Topic::mismatch(publisher, other).is_some());
        others.count() as u32
    }

    /// How many publishers do not match a subscriber.
    pub(crate) fn mismatched_publishers(&self, subscriber: &Subscriber) -> u32 {
        let others = self.publishers.iter();
        let others = others.filter(|other| Topic::mismatch(other, subscriber).is_some());
        others.count() as u32
    }

    /// Whether the topic has publishers, and the subscriber matches none of them.
    pub(crate) fn matches_no_publisher(&self, subscriber: &Subscriber) -> bool {
        self.mismatched_publishers(subscriber) > 0
            && !self
                .publishers
                .iter()
                .any(|publisher| Topic::matches(publisher, subscriber))
    }

    /// Pairs that do not match, and why.
    pub(crate) fn mismatch_rows(&self) -> Vec<MismatchRow> {
        let rows = self.pairs().filter_map(|(publisher, subscriber)| {
            Some(MismatchRow {
                publisher: publisher.slot,
                subscriber: subscriber.slot,
                reason: Topic::mismatch(publisher, subscriber)?,
            })
        });
        rows.take(MAX_MISMATCHES).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Publisher, &Subscriber)> {
        let subscribers = &self.subscribers;
        let publishers = self.publishers.iter();
        publishers.flat_map(move |publisher| {
            subscribers
                .iter()
                .map(move |subscriber| (publisher, subscriber))
        })
    }
}

/// What clients are to be told of the members that do not match this one: itself first, of the first
/// few of them.
fn mismatch_notices(topic: &Topic, member: &Member, clients: &Clients) -> Vec<(u32, String)> {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for (publisher, subscriber) in topic.pairs() {
        let joined = match member.side {
            Side::Publisher => publisher.slot == member.slot,
            Side::Subscriber => subscriber.slot == member.slot,
        };
        let Some(why) = Topic::mismatch(publisher, subscriber).filter(|_| joined) else {
            continue;
        };
        let to_publisher = format!(
            "subscriber {} does not match: {why}",
            clients.describe(subscriber.client)
        );
        let to_subscriber = format!("{} does not match: {why}", publisher.describe());
        if let (PublisherOwner::Client(client), false) = (publisher.owner, subscriber.observer) {
            match member.side {
                Side::Publisher => own.push((client, to_publisher)),
                Side::Subscriber => others.push((client, to_publisher)),
            }
        }
        match member.side {
            Side::Publisher => others.push((subscriber.client, to_subscriber)),
            Side::Subscriber => own.push((subscriber.client, to_subscriber)),
        }
    }
    own.truncate(MAX_NOTIFIED);
    own.extend(others);
    own
}

impl Engine {
    /// Tells the processes of a member that has joined, and of those that do not match it.
    pub(crate) fn notify_mismatches(&mut self, zone_id: ZoneId, member: &Member) {
        let zone = self.zones.get(zone_id);
        let found = zone.and_then(|zone| Some((zone, zone.topics.get(member.topic)?)));
        let Some((zone, topic)) = found else {
            return;
        };
        let notices: Vec<(Option<SessionId>, String)> =
            mismatch_notices(topic, member, &zone.clients)
                .into_iter()
                .map(|(client, reason)| {
                    let client = zone.clients.get(client);
                    (client.and_then(|client| client.session), reason)
                })
                .collect();
        let topic = topic.name.clone();
        for (session, mut reason) in notices {
            tracing::info!(topic, "{reason}");
            let there = session.filter(|session| {
                let known = self.sessions.get(*session);
                known.is_some_and(|session| !session.detached)
            });
            let Some(session) = there else { continue };
            while reason.len() > MAX_REASON_BYTES {
                reason.pop();
            }
            let topic = topic.clone();
            self.notify(session, Notice::Mismatch { topic, reason }, Vec::new());
        }
    }
}
