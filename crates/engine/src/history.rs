//! The history that publishers leave when they close or die: how long it stays, and what replaces it.
//!
//! A *volatile* publisher's messages stay until all subscribers have passed them. A *transient-local*
//! publisher's stay for late joiners, until one of these happens:
//! - They are superseded. A topic's history goes on where a publisher left it: a message of a publisher that
//!   kept the last `n` goes when `n` newer ones of the same type are in the topic's history, whoever published those.
//! - More than [`ORPHANS_MAX`] publishers of the topic have left history. The oldest goes.
//! - A pool, or a topic's publisher slots, are full. The oldest goes.
//! - Somebody asks for it (`rgaps topic forget`).
//! - The daemon ends.
//!
//! A message that a reliable subscriber has still to read stays in all these cases but the last.

use crate::control::Control;
use crate::engine::Engine;
use crate::refuse::{bad, refuse};
use crate::sessions::SessionId;
use crate::step::step;
use crate::topic::{Orphan, Owner, Publisher, Topic};
use crate::zone::Zone;
use rgaps_layout::MAX_PUBLISHERS;
use rgaps_session::{check_topic_name, Answer, Forgotten, KeptHistory, Refusal, RefusalCode};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{
    evict_lost, evict_through, published_after, published_ns, wanted_from, Shared, TopicView,
};

/// Publishers of a topic that left history for late joiners: as many slots stay free for those that live.
const ORPHANS_MAX: usize = MAX_PUBLISHERS / 2;
/// Topics that a status names.
const NAMES_MAX: usize = 8;

/// What orphans are to make room for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    /// A publisher of this topic.
    InTopic(u32),
    /// Memory of this pool.
    InPool(u32),
}

/// Whose reading keeps an orphan's messages from being evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readers {
    All,
    Reliable,
}

impl Publisher {
    /// How many messages it left for late joiners, if it is gone.
    fn kept(&self) -> Option<u64> {
        match self.owner {
            Owner::Orphan(orphan) if self.keeps_history() => {
                Some(orphan.head.saturating_sub(orphan.tail)).filter(|kept| *kept > 0)
            }
            _ => None,
        }
    }
}

impl Zone {
    /// Evicts of an orphan's messages those that nobody needs.
    pub(crate) fn evict_read(&mut self, index: u32, slot: u32) -> bool {
        let through = match self.topics.get(index) {
            Some(topic) => self.needed_from(topic, slot),
            None => return false,
        };
        self.evict(index, slot, through, Readers::All)
    }

    /// The oldest message of an orphan that late joiners may want: of a volatile one, none.
    fn needed_from(&self, topic: &Topic, slot: u32) -> u64 {
        let Some(publisher) = topic.publisher(slot) else {
            return 0;
        };
        let Owner::Orphan(Orphan { mut tail, head, .. }) = publisher.owner else {
            return 0;
        };
        if !publisher.keeps_history() {
            return head;
        }
        let depth = u64::from(publisher.offer.history.depth());
        while tail < head && self.newer(topic, publisher, tail, head) >= depth {
            tail += 1;
        }
        tail
    }

    /// How many messages of the topic's history are newer than a message of an orphan.
    fn newer(&self, topic: &Topic, orphan: &Publisher, sequence: u64, head: u64) -> u64 {
        let region = |publisher: &Publisher| {
            let (at, geometry) = (publisher.ring.region_offset, publisher.geometry());
            self.control.region(at, geometry)
        };
        let own = head - sequence - 1;
        let Some(ns) = published_ns(&region(orphan), orphan.incarnation, sequence) else {
            // Its ring does not hold it: no late joiner can get it.
            return u64::MAX;
        };
        let view = self.control.topic(topic.region);
        let others = topic.publishers.iter();
        // Messages of another type are for other readers.
        let others = others.filter(|p| {
            p.slot != orphan.slot && p.keeps_history() && p.type_name == orphan.type_name
        });
        others.fold(own, |newer, other| {
            let words = view.publisher(other.slot as usize);
            newer.saturating_add(published_after(
                &words,
                &region(other),
                other.incarnation,
                ns,
            ))
        })
    }

    /// Evicts an orphan's messages before `through`, as far as they have been read.
    fn evict(&mut self, index: u32, slot: u32, through: u64, readers: Readers) -> bool {
        let Some(topic) = self.topics.get_mut(index) else {
            return false;
        };
        let view = self.control.topic(topic.region);
        let Some(publisher) = topic.publisher(slot) else {
            return false;
        };
        let Owner::Orphan(orphan) = publisher.owner else {
            return false;
        };
        let through = read_through(topic, &view, publisher, orphan.head, readers).min(through);
        if through <= orphan.tail {
            return false;
        }
        let region = self
            .control
            .region(publisher.ring.region_offset, publisher.geometry());
        let words = view.publisher(slot as usize);
        evict_through(&words, &region, publisher.incarnation, orphan.tail..through);
        step!("orphan.evicted");
        if let Some(publisher) = topic.publisher_mut(slot) {
            publisher.owner = Owner::Orphan(Orphan {
                tail: through,
                ..orphan
            });
        }
        true
    }

    /// Evicts all of an orphan's history that no reliable subscriber has still to read. True: something went.
    fn drop_history(&mut self, index: u32, slot: u32) -> bool {
        let evicted = self.evict(index, slot, u64::MAX, Readers::Reliable);
        let settled = self.settle_orphan(index, slot);
        evicted || settled
    }
    /// Evicts of orphans what was in memory that is lost: that of `pool` from byte `left` on.
    pub(crate) fn evict_lost(&mut self, pool: u32, left: u64) {
        for index in &self.orphaned {
            let Some(topic) = self.topics.get_mut(*index) else {
                continue;
            };
            let view = self.control.topic(topic.region);
            for publisher in &mut topic.publishers {
                let geometry = publisher.geometry();
                let Owner::Orphan(orphan) = &mut publisher.owner else {
                    continue;
                };
                let own = publisher.pool;
                let region = self.control.region(publisher.ring.region_offset, geometry);
                orphan.tail = evict_lost(
                    &view.publisher(publisher.slot as usize),
                    &region,
                    publisher.incarnation,
                    orphan.tail..orphan.head,
                    |at, offset, bytes| {
                        at.unwrap_or(own) == pool && offset.saturating_add(bytes) > left
                    },
                );
            }
        }
    }

    /// Makes room: evicts, of the orphans that take it, the oldest whose messages no reliable
    /// subscriber still needs. False: there is none.
    pub(crate) fn evict_oldest_orphan(&mut self, room: Room) -> bool {
        let mut orphans: Vec<(u64, u32, u32)> = Vec::new();
        for topic in self
            .orphaned
            .iter()
            .filter_map(|index| self.topics.get(*index))
        {
            for publisher in &topic.publishers {
                if let Owner::Orphan(orphan) = publisher.owner {
                    let takes = match room {
                        Room::InTopic(index) => topic.index == index,
                        Room::InPool(pool) => self.leased(topic, publisher.slot, pool) > 0,
                    };
                    if takes {
                        orphans.push((orphan.order, topic.index, publisher.slot));
                    }
                }
            }
        }
        orphans.sort_unstable();
        orphans
            .into_iter()
            .any(|(_, topic, slot)| self.drop_history(topic, slot))
    }

    /// Drops the oldest history where more than [`ORPHANS_MAX`] publishers of a topic have left some.
    pub(crate) fn limit_orphans(&mut self, index: u32) -> bool {
        let Some(topic) = self.topics.get(index) else {
            return false;
        };
        let mut orphans: Vec<(u64, u32)> = Vec::new();
        for publisher in topic.publishers.iter().filter(|p| p.kept().is_some()) {
            if let Owner::Orphan(orphan) = publisher.owner {
                orphans.push((orphan.order, publisher.slot));
            }
        }
        orphans.sort_unstable();
        let excess = orphans.len().saturating_sub(ORPHANS_MAX);
        let mut changed = false;
        for (_, slot) in orphans.into_iter().take(excess) {
            changed |= self.drop_history(index, slot);
        }
        changed
    }

    /// Drops the history that publishers of a topic left. What a reliable subscriber has still to read goes once
    /// it has.
    fn forget(&mut self, index: u32) -> Forgotten {
        let mut forgotten = Forgotten {
            publishers: 0,
            messages: 0,
        };
        for slot in self.orphans_of(index) {
            let Some(topic) = self.topics.get_mut(index) else {
                break;
            };
            let words = self.control.topic(topic.region).publisher(slot as usize);
            let Some(publisher) = topic.publisher_mut(slot) else {
                continue;
            };
            let Some(kept) = publisher.kept() else {
                continue;
            };
            forgotten.publishers += 1;
            forgotten.messages += kept;
            // From now on nobody but those who are there may want it, also if this daemon dies.
            // Those who are there go on reading it, so what it offers stays.
            publisher.forgotten = true;
            words.transient_local().store(0, Ordering::Release);
            let record = publisher.record();
            let type_name = publisher.type_name.clone();
            let written = self
                .registry
                .set_publisher(index, slot, &record, &type_name);
            if let Err(error) = written {
                tracing::error!(%error, "recording a forgotten history failed");
            }
            self.drop_history(index, slot);
        }
        self.maintain_topic(index);
        forgotten
    }

    pub(crate) fn keeps_history(&self) -> bool {
        let mut topics = self.orphaned.iter().filter_map(|at| self.topics.get(*at));
        topics.any(|topic| topic.publishers.iter().any(|p| p.kept().is_some()))
    }
}

impl Engine {
    /// What publishers that are gone left for late joiners; with the names of topics that the session may see.
    pub(crate) fn kept_history(&self, session: Option<SessionId>) -> KeptHistory {
        let mut all = KeptHistory::default();
        for zone in self.zones.iter() {
            let may_see = session.is_some_and(|session| self.may_see(session, zone));
            for topic in zone.orphaned.iter().filter_map(|at| zone.topics.get(*at)) {
                let messages: u64 = topic.publishers.iter().filter_map(Publisher::kept).sum();
                if messages == 0 {
                    continue;
                }
                all.topics += 1;
                all.messages += messages;
                if may_see && all.names.len() < NAMES_MAX {
                    all.names.push(topic.name.clone());
                }
            }
        }
        all
    }

    /// Drops the history of a topic's publishers that are gone, for somebody who may publish there.
    pub(crate) fn forget_topic(
        &mut self,
        session: SessionId,
        name: &str,
    ) -> Result<Answer, Refusal> {
        check_topic_name(name).map_err(|error| bad(error.to_string()))?;
        let peer = self.sessions.require(session)?.peer.clone();
        let class = self.access.class_of(name);
        if !class.may_publish(&peer.credentials, &peer.groups) {
            return Err(refuse(
                RefusalCode::NotPermitted,
                format!(
                    "user {} may not publish to topic '{name}', and so may not drop its history: access rule '{}' of \
                     the daemon's rgaps.toml does not name them",
                    peer.credentials.uid,
                    class.name()
                ),
            ));
        }
        let class = class.name().to_owned();
        let zone = self.zones.of_class_mut(&class);
        let found = zone.and_then(|zone| Some((zone.topics.find(name)?, zone)));
        let Some((index, zone)) = found else {
            self.check_recovered(&class)?;
            return Err(refuse(
                RefusalCode::NotFound,
                format!("there is no topic '{name}'; see 'rgaps topic list'"),
            ));
        };
        Ok(Answer::Forgotten(zone.forget(index)))
    }
}

/// Orders the orphans of a topic that a predecessor left, by their newest messages: the number `from` is the
/// first's. Returns how many there are.
pub(crate) fn order_orphans(control: &Control, topic: &mut Topic, from: u64) -> u64 {
    let mut orphans: Vec<(Option<i64>, usize)> = Vec::new();
    for (at, publisher) in topic.publishers.iter().enumerate() {
        if let Owner::Orphan(orphan) = publisher.owner {
            let region = control.region(publisher.ring.region_offset, publisher.geometry());
            let newest = orphan.head.checked_sub(1);
            let ns = newest.and_then(|at| published_ns(&region, publisher.incarnation, at));
            orphans.push((ns, at));
        }
    }
    orphans.sort_unstable();
    for (order, (_, at)) in orphans.iter().enumerate() {
        if let Owner::Orphan(orphan) = &mut topic.publishers[*at].owner {
            orphan.order = from + order as u64;
        }
    }
    orphans.len() as u64
}

/// Up to where the subscribers that match a publisher have read the `head` messages of it, or skip them.
fn read_through(
    topic: &Topic,
    view: &TopicView<Shared>,
    publisher: &Publisher,
    head: u64,
    readers: Readers,
) -> u64 {
    topic
        .subscribers
        .iter()
        .filter(|subscriber| Topic::matches(publisher, subscriber))
        .filter(|subscriber| subscriber.demand.reliable || readers == Readers::All)
        .map(|s| {
            let slot = view.subscriber(s.slot as usize);
            wanted_from(&slot, publisher.slot as usize, head)
        })
        .fold(head, u64::min)
}
