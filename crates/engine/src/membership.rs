//! Writes the daemon's words in a topic's region: its members, and the epoch that announces each change.

use crate::control::Control;
use crate::step::step;
use crate::topic::{Publisher, Subscriber, Topic};
use rgaps_layout::{
    HISTORY_LANDING, MAX_PUBLISHERS, PUBLISHER_ACTIVE, PUBLISHER_EMPTY, PUBLISHER_ORPHAN,
    TOPIC_MAGIC,
};
use rgaps_sync::atomic::{fence, Ordering};
use rgaps_sync::futex_wake_all;
use rgaps_topic::{
    admit_subscriber, clear_holder, ring, Admission, PublisherView, Shared, TopicView,
};

/// Writes the head of a topic's region. A new region is zeros.
pub(crate) fn begin_topic(control: &Control, topic: &Topic) {
    let view = control.topic(topic.region);
    view.topic_id().store(topic.id, Ordering::Relaxed);
    view.magic().store(TOPIC_MAGIC, Ordering::Release);
}

/// Fills a publisher's slot. `announce` then sets its bit.
pub(crate) fn fill_publisher(view: &TopicView<Shared>, topic: &Topic, publisher: &Publisher) {
    let slot = view.publisher(publisher.slot as usize);
    let start = publisher.ring.start;
    slot.incarnation().store(0, Ordering::Relaxed);
    // A subscriber that sees any of the new fields finds the old incarnation cleared when it looks again (SYNC: incarnation).
    fence(Ordering::Release);
    slot.head().store(start, Ordering::Relaxed);
    slot.tail().store(start, Ordering::Relaxed);
    slot.wants_blocks().store(0, Ordering::Relaxed);
    slot.blocks_used().store(0, Ordering::Relaxed);
    slot.published_bytes().store(0, Ordering::Relaxed);
    slot.dropped().store(0, Ordering::Relaxed);
    slot.drops().store(0, Ordering::Relaxed);
    slot.waiting().store(0, Ordering::Relaxed);
    // The links write the end of the history when it has arrived, at once if there is none.
    let lands_history = publisher.of_links && publisher.keeps_history();
    let history_end = if lands_history { HISTORY_LANDING } else { 0 };
    slot.history_end().store(history_end, Ordering::Relaxed);
    describe_publisher(&slot, topic, publisher);
}

/// Writes the fields of a publisher's slot that only the daemon writes.
pub(crate) fn describe_publisher(
    slot: &PublisherView<Shared>,
    topic: &Topic,
    publisher: &Publisher,
) {
    let state = if publisher.is_orphan() {
        PUBLISHER_ORPHAN
    } else {
        PUBLISHER_ACTIVE
    };
    slot.region_offset()
        .store(publisher.ring.region_offset, Ordering::Relaxed);
    slot.ring_capacity()
        .store(publisher.ring.ring_capacity, Ordering::Relaxed);
    slot.block_capacity()
        .store(publisher.ring.block_capacity, Ordering::Relaxed);
    slot.start().store(publisher.ring.start, Ordering::Relaxed);
    slot.depth().store(publisher.ring.depth, Ordering::Relaxed);
    slot.doorbell().store(publisher.doorbell, Ordering::Relaxed);
    slot.matched()
        .store(topic.matched_subscribers(publisher), Ordering::Relaxed);
    let keeps = u32::from(publisher.keeps_history());
    slot.transient_local().store(keeps, Ordering::Relaxed);
    slot.state().store(state, Ordering::Release);
    // Last: whoever sees the incarnation sees the other fields (SYNC: incarnation).
    slot.incarnation()
        .store(publisher.incarnation, Ordering::Release);
}

/// Empties a publisher's slot. Its cursors stay, so that the next publisher goes on from them.
pub(crate) fn empty_publisher(view: &TopicView<Shared>, slot: u32) {
    let slot = view.publisher(slot as usize);
    slot.state().store(PUBLISHER_EMPTY, Ordering::Release);
    slot.incarnation().store(0, Ordering::Release);
}

/// Fills a subscriber's slot, and has publishers wait for it if it is reliable. `announce` then sets its bit among the
/// subscribers.
pub(crate) fn fill_subscriber(
    view: &TopicView<Shared>,
    topic: &mut Topic,
    subscriber: &Subscriber,
    stands_for: u32,
) {
    let slot = view.subscriber(subscriber.slot as usize);
    view.sleepers()
        .fetch_and(!(1 << subscriber.slot), Ordering::AcqRel);
    slot.doorbell()
        .store(subscriber.doorbell, Ordering::Relaxed);
    // It never reads the regions of publishers that left before it joined.
    slot.seen_epoch().store(topic.epoch, Ordering::Relaxed);
    slot.received().store(0, Ordering::Relaxed);
    slot.missed().store(0, Ordering::Relaxed);
    slot.held().store(0, Ordering::Relaxed);
    slot.closed().store(0, Ordering::Relaxed);
    slot.resumes().store(0, Ordering::Relaxed);
    for publisher in 0..MAX_PUBLISHERS {
        slot.passed_over(publisher).store(0, Ordering::Relaxed);
    }
    slot.stands_for().store(stands_for, Ordering::Relaxed);
    slot.depth()
        .store(subscriber.demand.depth, Ordering::Relaxed);
    // Before any mask has its bit: a publisher that sees the bit also sees in which pool it reads.
    let pool = subscriber.pool.map_or(0, |pool| pool + 1);
    slot.pool().store(pool, Ordering::Relaxed);
    if subscriber.pool.is_some_and(|pool| topic.pool != Some(pool)) {
        view.elsewhere()
            .fetch_or(1 << subscriber.slot, Ordering::Release);
    }
    slot.incarnation()
        .store(subscriber.incarnation, Ordering::Release);
    topic.epoch = topic.epoch.wrapping_add(1);
    let admission = Admission {
        reliable: subscriber.demand.reliable,
        late: subscriber.demand.transient_local,
        matched: topic.matched_publishers(subscriber),
        epoch: topic.epoch,
    };
    admit_subscriber(view, subscriber.slot as usize, admission);
}

/// Gives the slot of former links to new ones. Its bit and its cursors stay as they are.
pub(crate) fn take_over_subscriber(view: &TopicView<Shared>, subscriber: &Subscriber) {
    let words = view.subscriber(subscriber.slot as usize);
    words.received().store(0, Ordering::Relaxed);
    words.missed().store(0, Ordering::Relaxed);
    words.held().store(0, Ordering::Relaxed);
    words
        .depth()
        .store(subscriber.demand.depth, Ordering::Relaxed);
    words.resumes().store(1, Ordering::Relaxed);
    words
        .doorbell()
        .store(subscriber.doorbell, Ordering::Relaxed);
    words
        .incarnation()
        .store(subscriber.incarnation, Ordering::Release);
}

/// Writes the fields of a subscriber's slot that only the daemon writes. `subscriber`: None if the slot is empty.
pub(crate) fn describe_subscriber(
    view: &TopicView<Shared>,
    slot: u32,
    subscriber: Option<&Subscriber>,
) {
    let words = view.subscriber(slot as usize);
    let pool = subscriber.and_then(|subscriber| subscriber.pool);
    words
        .pool()
        .store(pool.map_or(0, |pool| pool + 1), Ordering::Relaxed);
    let depth = subscriber.map_or(0, |subscriber| subscriber.demand.depth);
    words.depth().store(depth, Ordering::Relaxed);
    let incarnation = subscriber.map_or(0, |subscriber| subscriber.incarnation);
    words.incarnation().store(incarnation, Ordering::Release);
}

/// Writes which members match, and how many do not. Whether a pair matches never changes while both are there, so this changes
/// only the bits of members that join or leave.
pub(crate) fn write_matches(view: &TopicView<Shared>, topic: &Topic) {
    for publisher in &topic.publishers {
        let slot = view.publisher(publisher.slot as usize);
        slot.matched()
            .store(topic.matched_subscribers(publisher), Ordering::Release);
        let mismatched = topic.mismatched_subscribers(publisher);
        slot.mismatched().store(mismatched, Ordering::Release);
        let keeps = u32::from(publisher.keeps_history());
        slot.transient_local().store(keeps, Ordering::Release);
    }
    for subscriber in &topic.subscribers {
        let slot = view.subscriber(subscriber.slot as usize);
        let mismatched = topic.mismatched_publishers(subscriber);
        slot.mismatched().store(mismatched, Ordering::Release);
    }
}

/// Has subscribers that do not match an ending publisher pass over its messages. After a crash in here, a successor does this
/// again and may count messages twice, which only people see.
pub(crate) fn pass_over(view: &TopicView<Shared>, topic: &Topic, publisher: &Publisher, head: u64) {
    let others = topic.subscribers.iter();
    for subscriber in others.filter(|subscriber| !Topic::matches(publisher, subscriber)) {
        let slot = view.subscriber(subscriber.slot as usize);
        // The cursor has not moved since the later of the two joined.
        let cursor = slot.cursor(publisher.slot as usize).load(Ordering::Acquire);
        let end = head.max(publisher.ring.start);
        let messages = end - cursor.clamp(publisher.ring.start, end);
        let passed_over = slot.passed_over(publisher.slot as usize);
        passed_over.fetch_add(messages, Ordering::Relaxed);
    }
}

/// Writes the topic's bits from what the daemon knows, raises the epoch and wakes everyone.
pub(crate) fn announce(control: &Control, topic: &mut Topic) {
    let view = control.topic(topic.region);
    step!("announce.begin");
    write_matches(&view, topic);
    view.publishers()
        .store(topic.publisher_bits(), Ordering::Release);
    view.elsewhere()
        .store(topic.replica_bits(), Ordering::Release);
    view.subscribers()
        .store(topic.subscriber_bits(), Ordering::Release);
    view.reliable()
        .store(topic.reliable_bits(), Ordering::Release);
    step!("announce.masks");
    topic.epoch = topic.epoch.wrapping_add(1);
    view.membership_epoch()
        .store(topic.epoch, Ordering::Release);
    step!("announce.epoch");
    futex_wake_all(view.membership_epoch());
    // A subscriber writes at which doorbell it waits, then reads the epoch. The daemon has written the epoch, and then reads
    // the doorbell (SYNC: sleep).
    fence(Ordering::SeqCst);
    for publisher in topic
        .publishers
        .iter()
        .filter(|publisher| publisher.doorbell != 0)
    {
        ring(control.words(), publisher.doorbell);
    }
    for subscriber in &topic.subscribers {
        // The subscriber chose it: it may be the doorbell of its wait set. `ring` checks the number.
        let slot = view.subscriber(subscriber.slot as usize);
        ring(control.words(), slot.doorbell().load(Ordering::Acquire));
    }
}

/// Clears the bits of a subscriber that has left in the holder words of all publishers. Returns how many blocks that
/// freed.
pub(crate) fn clear_holds(control: &Control, topic: &Topic, slot: u32) -> u64 {
    let view = control.topic(topic.region);
    let mut freed = 0;
    for publisher in &topic.publishers {
        let words = view.publisher(publisher.slot as usize);
        freed += clear_holder(&words, &control.ring(publisher), slot);
        // The subscriber may have died between two steps of a deferred release that frees a block: has the publisher look at
        // all its blocks.
        words.sweep().fetch_add(1, Ordering::AcqRel);
    }
    freed
}

/// Whether epoch `seen` is at or past `epoch`. Epochs wrap around.
pub(crate) fn has_reached(seen: u32, epoch: u32) -> bool {
    seen.wrapping_sub(epoch) as i32 >= 0
}

#[cfg(test)]
mod tests {
    use super::has_reached;

    #[test]
    fn epochs_wrap_around() {
        assert!(has_reached(5, 5) && has_reached(6, 5) && !has_reached(4, 5));
        assert!(has_reached(2, u32::MAX) && !has_reached(u32::MAX, 2));
    }
}
