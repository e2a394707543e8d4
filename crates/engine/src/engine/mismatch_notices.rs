//! Tells clients which members of a topic do not match their own.

use super::Engine;
use crate::clients::Clients;
use crate::sessions::SessionId;
use crate::topic::{PublisherOwner, Topic};
use rgaps_session::{Member, Notice, Side, ZoneId, MAX_REASON_BYTES};

/// How many mismatches a member is told of when it joins; a listing has all.
const MAX_NOTIFIED: usize = 4;

impl Engine {
    /// Tells the clients of a member that has joined, and of the members that do not match it.
    pub(super) fn notify_mismatches(&mut self, zone_id: ZoneId, member: &Member) {
        let zone = self.zones.get(zone_id);
        let found = zone.and_then(|zone| Some((zone, zone.topics().get(member.topic)?)));
        let Some((zone, topic)) = found else {
            return;
        };
        let notices: Vec<(Option<SessionId>, String)> =
            mismatch_notices(topic, member, zone.clients())
                .into_iter()
                .map(|(client, reason)| {
                    let client = zone.clients().get(client);
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

/// The mismatches of a member, as pairs of a client and what to tell it: first to the member's own client, at most
/// [`MAX_NOTIFIED`] of them, then to the clients of the others.
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
