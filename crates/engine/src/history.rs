//! The history that publishers leave when they close or die: how long it stays, and what replaces it.
//!
//! A *volatile* publisher's messages stay until all subscribers have passed them. A *transient-local*
//! publisher's stay for late joiners, until one of these happens:
//! - They are superseded. A later publisher continues a topic's history: a message of a publisher that
//!   kept the last `n` is evicted when `n` newer ones of the same type are in the topic's history, whoever published those.
//! - More than [`ORPHANS_MAX`] publishers of the topic have left history. The oldest is evicted.
//! - A pool, or a topic's publisher slots, are full. The oldest is evicted.
//! - Somebody asks for it (`rgaps topic forget`).
//! - The daemon ends.
//!
//! A message that a reliable subscriber has still to read stays in all these cases but the last.

use crate::control::Control;
use crate::departed::Departed;
use crate::membership::{announce, empty_publisher, has_reached, pass_over};
use crate::memory::Memory;
use crate::registry::{log_failure, RegistryFile};
use crate::step::step;
use crate::topic::{Orphan, Publisher, PublisherOwner, Topic};
use crate::topics::Topics;
use rgaps_layout::{Descriptor, MAX_PUBLISHERS, PUBLISHER_ORPHAN, RECORD_FREE, RECORD_ORPHAN};
use rgaps_session::Forgotten;
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{
    abandon, clear_deferred_releases, clear_strangers, evict_lost, evict_through, last_of_gaps,
    published_after, published_ns, wanted_from, PublisherView, Shared,
};
use std::collections::{BTreeMap, BTreeSet};

/// How many publishers of a topic may have left history for late joiners. The other slots stay free for living publishers.
const ORPHANS_MAX: usize = MAX_PUBLISHERS / 2;

/// What history is evicted for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HistoryRoom {
    /// A publisher slot of this topic.
    InTopic(u32),
    /// Memory of this pool.
    InPool(u32),
}

/// Which subscribers keep an orphan's messages from being evicted, as long as they have not read them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readers {
    All,
    Reliable,
}

/// The region of a publisher that has ended. Subscribers may still read it.
#[derive(Clone, Copy, Debug)]
struct RetiredRegion {
    offset: u64,
    bytes: u64,
    /// Membership epoch of the topic when the publisher was taken out of it.
    epoch: u32,
}

/// The orphans of a zone, and what else publishers left.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Topics with orphans.
    orphaned: BTreeSet<u32>,
    /// `Orphan::order` of the next orphan.
    next_order: u64,
    /// By topic: regions that cannot be handed out yet.
    retired: BTreeMap<u32, Vec<RetiredRegion>>,
    departed: Departed,
}

impl History {
    /// A history without orphans. `departed`: the publishers of links that a predecessor saved.
    pub(crate) fn load(departed: &[(u64, u64)]) -> History {
        let mut history = History::default();
        for (incarnation, published) in departed {
            history.departed.add(*incarnation, *published);
        }
        history
    }

    /// Makes a publisher that left or died an orphan. Returns how many blocks that freed.
    pub(crate) fn take_over(
        &mut self,
        topic: &mut Topic,
        slot: u32,
        control: &mut Control,
        registry: &RegistryFile,
    ) -> u64 {
        let index = topic.index;
        // First: from here on a successor knows that nobody writes the ring any more.
        registry.set_publisher_state(index, slot, RECORD_ORPHAN);
        let view = control.topic(topic.region);
        let Some(publisher) = topic.publisher_mut(slot) else {
            return 0;
        };
        control.doorbells.give(publisher.doorbell);
        publisher.doorbell = 0;
        let words = view.publisher(slot as usize);
        words.doorbell().store(0, Ordering::Relaxed);
        words.state().store(PUBLISHER_ORPHAN, Ordering::Release);
        view.blocked().fetch_and(!(1 << slot), Ordering::AcqRel);
        step!("orphan.begin");
        let freed = self.add(index, publisher, &words, control);
        let region = control.ring(publisher);
        let released = clear_deferred_releases(&view, &region, slot, publisher.incarnation);
        step!("orphan.deferred_releases");
        announce(control, topic);
        freed + released
    }

    /// Finds the messages that a publisher left in its ring, and makes it an orphan in memory. Nobody writes the ring any more.
    /// Returns how many blocks that freed.
    pub(crate) fn add(
        &mut self,
        topic: u32,
        publisher: &mut Publisher,
        words: &PublisherView<Shared>,
        control: &Control,
    ) -> u64 {
        let region = control.ring(publisher);
        let left = abandon(words, &region, publisher.incarnation, publisher.ring.start);
        step!("orphan.abandoned");
        self.departed.note(publisher, left.head);
        publisher.owner = PublisherOwner::Orphan(Orphan {
            order: self.next_order,
            tail: left.tail,
            head: left.head,
            pending: 0,
        });
        self.next_order += 1;
        control.settle(publisher);
        step!("orphan.settled");
        self.orphaned.insert(topic);
        left.freed
    }

    /// Orders the orphans of a topic that a predecessor left, by their newest messages.
    pub(crate) fn order(&mut self, topic: &mut Topic, control: &Control) {
        let newest_ns = |(publisher, orphan): (&Publisher, Orphan)| {
            let newest = orphan.head.checked_sub(1);
            let region = control.ring(publisher);
            let ns = newest.and_then(|at| published_ns(&region, publisher.incarnation, at));
            (ns, publisher.slot)
        };
        let mut orphans: Vec<(Option<i64>, u32)> = topic.orphans().map(newest_ns).collect();
        orphans.sort_unstable();
        for (_, slot) in orphans {
            let owner = topic.publisher_mut(slot).map(|orphan| &mut orphan.owner);
            if let Some(PublisherOwner::Orphan(orphan)) = owner {
                orphan.order = self.next_order;
                self.next_order += 1;
            }
        }
    }

    /// Maintains a topic's orphans, and the regions of those that have ended. True: something changed.
    pub(crate) fn maintain(
        &mut self,
        topic: &mut Topic,
        control: &mut Control,
        memory: &mut Memory,
        registry: &RegistryFile,
    ) -> bool {
        let mut changed = false;
        let slots: Vec<u32> = topic.orphans().map(|(orphan, _)| orphan.slot).collect();
        for slot in slots {
            if let Some(orphan) = topic.publisher_mut(slot) {
                changed |= orphan.has_pending_points() && control.settle(orphan);
                let (region, incarnation) = (control.ring(orphan), orphan.incarnation);
                let view = control.topic(topic.region);
                changed |= clear_deferred_releases(&view, &region, slot, incarnation) > 0;
            }
            let through = needed_from(topic, slot, control);
            changed |= evict(topic, slot, through, Readers::All, control);
            changed |= self.settle(topic, slot, control, memory, registry);
        }
        changed |= self.limit_orphans(topic, control, memory, registry);
        changed | self.release_retired(topic, control)
    }

    /// Evicts an orphan's messages, except those that a reliable subscriber has still to read. True: something changed.
    fn drop_orphan(
        &mut self,
        topic: &mut Topic,
        slot: u32,
        control: &Control,
        memory: &mut Memory,
        registry: &RegistryFile,
    ) -> bool {
        let evicted = evict(topic, slot, u64::MAX, Readers::Reliable, control);
        self.settle(topic, slot, control, memory, registry) || evicted
    }

    /// Evicts the messages of orphans whose bytes are lost: those in `pool` behind its first `left` bytes.
    pub(crate) fn evict_lost(&self, topics: &mut Topics, control: &Control, pool: u32, left: u64) {
        for index in &self.orphaned {
            let Some(topic) = topics.get_mut(*index) else {
                continue;
            };
            let view = control.topic(topic.region);
            for publisher in &mut topic.publishers {
                let (region, own) = (control.ring(publisher), publisher.pool);
                let PublisherOwner::Orphan(orphan) = &mut publisher.owner else {
                    continue;
                };
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

    /// Makes room: of the orphans that occupy it, drops the history of the oldest one that has messages which no reliable
    /// subscriber still needs. False: there is none.
    pub(crate) fn evict_oldest(
        &mut self,
        room: HistoryRoom,
        topics: &mut Topics,
        control: &Control,
        memory: &mut Memory,
        registry: &RegistryFile,
    ) -> bool {
        let mut orphans: Vec<(u64, u32, u32)> = Vec::new();
        for topic in self.orphaned_topics(topics) {
            let takes = |slot| match room {
                HistoryRoom::InTopic(index) => topic.index == index,
                HistoryRoom::InPool(pool) => memory.leased(pool, topic.granule_owner(slot)) > 0,
            };
            let taking = topic
                .orphans()
                .filter(|(publisher, _)| takes(publisher.slot));
            orphans.extend(taking.map(|(of, orphan)| (orphan.order, topic.index, of.slot)));
        }
        orphans.sort_unstable();
        orphans.into_iter().any(|(_, index, slot)| {
            let topic = topics.get_mut(index);
            topic.is_some_and(|topic| self.drop_orphan(topic, slot, control, memory, registry))
        })
    }

    /// Drops the oldest history where more than [`ORPHANS_MAX`] publishers of a topic have left some.
    fn limit_orphans(
        &mut self,
        topic: &mut Topic,
        control: &Control,
        memory: &mut Memory,
        registry: &RegistryFile,
    ) -> bool {
        let keeping = topic
            .orphans()
            .filter(|(orphan, _)| orphan.kept().is_some());
        let mut orphans: Vec<(u64, u32)> =
            keeping.map(|(p, orphan)| (orphan.order, p.slot)).collect();
        orphans.sort_unstable();
        let excess = orphans.len().saturating_sub(ORPHANS_MAX);
        let mut changed = false;
        for (_, slot) in orphans.into_iter().take(excess) {
            changed |= self.drop_orphan(topic, slot, control, memory, registry);
        }
        changed
    }

    /// Drops the history that publishers of a topic left. A message that a reliable subscriber has still to read stays until it
    /// has read it.
    pub(crate) fn forget(
        &mut self,
        topic: &mut Topic,
        control: &Control,
        memory: &mut Memory,
        registry: &RegistryFile,
    ) -> Forgotten {
        let keeping = topic
            .orphans()
            .filter_map(|(p, _)| Some((p.slot, p.kept()?)));
        let keeping: Vec<(u32, u64)> = keeping.collect();
        for (slot, _) in &keeping {
            let words = control.publisher(topic, *slot);
            let index = topic.index;
            if let Some(publisher) = topic.publisher_mut(*slot) {
                // Only present subscribers may read the history from here on, also under a successor. They go on reading, so
                // the publisher's offer stays as it was.
                publisher.forgotten = true;
                words.transient_local().store(0, Ordering::Release);
                let written = registry.set_publisher(index, publisher);
                log_failure(written, "a forgotten history");
            }
            self.drop_orphan(topic, *slot, control, memory, registry);
        }
        Forgotten {
            publishers: keeping.len() as u32,
            messages: keeping.iter().map(|(_, kept)| kept).sum(),
        }
    }

    /// Frees an orphan's granules without live blocks, and ends the orphan when it has neither live blocks nor messages. True:
    /// something changed.
    fn settle(
        &mut self,
        topic: &mut Topic,
        slot: u32,
        control: &Control,
        memory: &mut Memory,
        registry: &RegistryFile,
    ) -> bool {
        let Some((publisher, orphan)) = topic.orphan(slot) else {
            return false;
        };
        let is_drained = orphan.tail >= orphan.head;
        if is_drained {
            let words = control.publisher(topic, slot);
            clear_strangers(&words, &control.ring(publisher), topic.subscriber_bits());
        }
        let live = control.live_granules(topic, publisher);
        let owner = topic.granule_owner(slot);
        let freed = memory.free_except(registry, owner, |pool| live.of(pool));
        if live.is_empty() && is_drained {
            self.end(topic, slot, control, registry);
            return true;
        }
        freed > 0
    }

    /// Removes an orphan of which nothing is left from its topic, and retires its region.
    fn end(&mut self, topic: &mut Topic, slot: u32, control: &Control, registry: &RegistryFile) {
        let Some(at) = topic.publishers.iter().position(|p| p.slot == slot) else {
            return;
        };
        let publisher = topic.publishers.remove(at);
        let view = control.topic(topic.region);
        let words = view.publisher(slot as usize);
        topic.past.add_publisher(&publisher, &words);
        if let Some(orphan) = publisher.orphan() {
            pass_over(&view, topic, &publisher, orphan.head);
        }
        empty_publisher(&view, slot);
        step!("end.emptied");
        announce(control, topic);
        registry.set_publisher_state(topic.index, slot, RECORD_FREE);
        step!("end.recorded");
        let region = RetiredRegion {
            offset: publisher.ring.region_offset,
            bytes: publisher.geometry().bytes(),
            epoch: topic.epoch,
        };
        discard(control, &publisher);
        self.retired.entry(topic.index).or_default().push(region);
        if topic.orphans().next().is_none() {
            self.orphaned.remove(&topic.index);
        }
    }

    /// Frees the regions of ended publishers that no subscriber of their topic reads any more. True: there were some.
    pub(crate) fn release_retired(&mut self, topic: &Topic, control: &mut Control) -> bool {
        let Some(regions) = self.retired.get_mut(&topic.index) else {
            return false;
        };
        let view = control.topic(topic.region);
        let seen = topic.subscribers.iter().map(|subscriber| {
            let words = view.subscriber(subscriber.slot as usize);
            words.seen_epoch().load(Ordering::Acquire)
        });
        let seen: Vec<u32> = seen.collect();
        let before = regions.len();
        regions.retain(|region| {
            let waits = seen.iter().any(|seen| !has_reached(*seen, region.epoch));
            if !waits {
                control.give(region.offset, region.bytes);
            }
            waits
        });
        let changed = regions.len() != before;
        if regions.is_empty() {
            self.retired.remove(&topic.index);
        }
        changed
    }

    /// Topics with orphans or retired regions.
    pub(crate) fn topics(&self) -> impl Iterator<Item = u32> + '_ {
        self.orphaned.iter().chain(self.retired.keys()).copied()
    }

    /// Topics with orphans.
    pub(crate) fn orphaned_topics<'a>(
        &'a self,
        topics: &'a Topics,
    ) -> impl Iterator<Item = &'a Topic> {
        self.orphaned.iter().filter_map(|index| topics.get(*index))
    }

    /// Whether late joiners can get anything of publishers that left or died.
    pub(crate) fn is_kept(&self, topics: &Topics) -> bool {
        let mut orphans = self.orphaned_topics(topics).flat_map(Topic::orphans);
        orphans.any(|(orphan, _)| orphan.kept().is_some())
    }

    /// Publishers of links that left or died.
    pub(crate) fn departed(&self) -> &Departed {
        &self.departed
    }

    /// Notes that the state file has the departed publishers, or that the engine will write all of it again.
    pub(crate) fn note_saved(&mut self) {
        self.departed.note_saved();
    }
}

/// The oldest message of an orphan that late joiners may want; `head` if they want none, as of a volatile publisher.
fn needed_from(topic: &Topic, slot: u32, control: &Control) -> u64 {
    let Some((publisher, Orphan { mut tail, head, .. })) = topic.orphan(slot) else {
        return 0;
    };
    if !publisher.keeps_history() {
        return head;
    }
    let depth = u64::from(publisher.offer.history.depth());
    while tail < head && newer(topic, publisher, tail, head, control) >= depth {
        tail += 1;
    }
    tail
}

/// How many messages of the topic's history are newer than message `sequence` of an orphan; `u64::MAX` if its ring has lost it.
fn newer(topic: &Topic, orphan: &Publisher, sequence: u64, head: u64, control: &Control) -> u64 {
    let own = head - sequence - 1;
    let Some(ns) = published_ns(&control.ring(orphan), orphan.incarnation, sequence) else {
        // Its ring does not hold it: no late joiner can get it.
        return u64::MAX;
    };
    let view = control.topic(topic.region);
    let others = topic.publishers.iter();
    // Messages of another type are for other readers.
    let others = others
        .filter(|p| p.slot != orphan.slot && p.keeps_history() && p.type_name == orphan.type_name);
    others.fold(own, |newer, other| {
        let words = view.publisher(other.slot as usize);
        let after = published_after(&words, &control.ring(other), other.incarnation, ns);
        newer.saturating_add(after)
    })
}

/// Evicts an orphan's messages before `through`, as far as `readers` have read them. True: there were some.
fn evict(topic: &mut Topic, slot: u32, through: u64, readers: Readers, control: &Control) -> bool {
    let words = control.publisher(topic, slot);
    let Some((publisher, orphan)) = topic.orphan(slot) else {
        return false;
    };
    let through = read_through(topic, control, publisher, orphan.head, readers).min(through);
    if through <= orphan.tail {
        return false;
    }
    let evicted = orphan.tail..through;
    evict_through(
        &words,
        &control.ring(publisher),
        publisher.incarnation,
        evicted,
    );
    step!("orphan.evicted");
    if let Some(publisher) = topic.publisher_mut(slot) {
        publisher.owner = PublisherOwner::Orphan(Orphan {
            tail: through,
            ..orphan
        });
    }
    true
}

/// The first message of a publisher, up to `head`, that one of `readers` that match it has still to read.
fn read_through(
    topic: &Topic,
    control: &Control,
    publisher: &Publisher,
    head: u64,
    readers: Readers,
) -> u64 {
    let view = control.topic(topic.region);
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

/// Returns the memory of an ended publisher's region to the system, so that the region reads as zeros. Nobody waits for a holder
/// word that is zero. Keeps the descriptor of the last message if subscribers that have not seen the end yet count gaps by it.
fn discard(control: &Control, publisher: &Publisher) {
    let geometry = publisher.geometry();
    let begin = publisher.ring.region_offset;
    let end = begin + geometry.bytes();
    let kept = match last_of_gaps(&control.ring(publisher), publisher.incarnation) {
        Some(sequence) => {
            let descriptor = begin + geometry.descriptor(sequence);
            descriptor..descriptor + size_of::<Descriptor>() as u64
        }
        None => end..end,
    };
    for range in [begin..kept.start, kept.end..end] {
        if !range.is_empty() {
            control.discard(range.start, range.end - range.start);
        }
    }
}
