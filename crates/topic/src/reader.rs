//! A subscriber's side of the rings: takes messages in order, counts missed ones, and releases blocks.
//!
//! A late joiner first reads the history, merged by the time of publishing over all publishers ([`history`]), then live messages: first
//! those of publishers that have ended, then those of the others in turn.

mod history;

use self::history::Backlog;
use crate::backlog::published_ns;
use crate::holder::{self, Outcome};
use crate::missed_so_far::{last_sum, sum_of, CountedBefore};
use crate::queue::newest;
use crate::replica;
use crate::step::step;
use crate::{
    ring, ring_publishers, DescriptorView, Message, Metadata, Point, PublisherView, RegionView,
    Storage, SubscriberView, Tensor, TopicView,
};
use rgaps_layout::{
    BlockWord, ElementWord, MetadataLengths, PublisherRegion, DESCRIPTOR_COPIED,
    DESCRIPTOR_METADATA, DESCRIPTOR_MISSED, DESCRIPTOR_QUEUED, DESCRIPTOR_TYPED, MAX_DIMS,
    MAX_PUBLISHERS, MAX_SUBSCRIBERS, PUBLISHER_ACTIVE, PUBLISHER_ORPHAN, REPLICA_PAIRS,
    SEQUENCE_END,
};
use rgaps_sync::atomic::{fence, AtomicU64, Ordering};
use std::ops::Range;
use std::sync::Arc;

/// How many messages that have left the ring [`Reader::poll`] skips at one publisher before it turns to the next one.
///
/// A subscriber that sleeps after that misses no doorbell: after the first skip, each skipped message was removed by a message published
/// after the subscriber had announced its sleep, and that one rings.
const SKIPS_MAX: u32 = 64;

const _: () = assert!(MAX_PUBLISHERS == u16::BITS as usize);

/// Where a subscriber begins to read publishers that joined before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With the next message.
    Live,
    /// With the newest `n` messages that are kept for late joiners, over all publishers that match, in the order of
    /// publishing.
    Kept(u64),
}

/// A message whose block this subscriber now holds.
#[derive(Debug)]
pub struct Taken<S: Storage> {
    /// Slot of its publisher.
    pub publisher: u32,
    /// Random number of its publisher.
    pub incarnation: u64,
    /// Its number among the publisher's messages, from 0.
    pub sequence: u64,
    /// Messages of this publisher that were lost just before it.
    pub missed: u64,
    /// The fields of the descriptor. A peer wrote `pool`, `offset` and `bytes`: the caller must check them against the mapped pools.
    pub message: Message,
    /// Bytes of each part of a replica that is copied in parts, otherwise 0: see
    /// [`BlockEntry::part_bytes`](rgaps_layout::BlockEntry::part_bytes).
    pub part_bytes: u64,
    /// The pool of the message itself; differs from `message.pool` if the subscriber took a replica.
    pub home: u16,
    /// The hold on the block.
    pub held: Held<S>,
}

/// A subscriber's hold on a block: its bit in the holder word. Not a guard: dropping it without [`release`](Held::release) keeps the block
/// until the subscriber's process ends.
#[derive(Debug)]
#[must_use = "a block is held until `release`"]
pub struct Held<S: Storage> {
    source: Arc<Source<S>>,
    bit: u64,
    block: u32,
    generation: u64,
}

impl<S: Storage> Held<S> {
    /// Another handle of the same hold, for callers that count clones themselves: they must release exactly one of all handles.
    pub fn duplicate(&self) -> Held<S> {
        Held {
            source: self.source.clone(),
            bit: self.bit,
            block: self.block,
            generation: self.generation,
        }
    }

    /// Releases the block. May be called from any thread, also while another polls.
    pub fn release(self) {
        step!("release.begin");
        self.clear();
        self.forget();
    }

    /// Clears the bit. Idempotent.
    pub(crate) fn clear(&self) {
        if let Some(word) = self.source.region.holders(self.block) {
            if holder::release(word, self.generation, self.bit) == Outcome::Emptied {
                self.give_back();
            }
        }
    }

    /// Counts the hold as released, after its bit was cleared.
    pub(crate) fn forget(self) {
        // Last: until then the daemon does not reuse the region. Release: after this thread's last access to it (SYNC: region).
        self.source.released.fetch_add(1, Ordering::Release);
    }

    /// Slot and incarnation of the publisher, block and generation.
    pub(crate) fn names(&self) -> (u32, u64, u32, u64) {
        let Source {
            slot, incarnation, ..
        } = *self.source;
        (slot, incarnation, self.block, self.generation)
    }

    fn give_back(&self) {
        let Source {
            region, publisher, ..
        } = &*self.source;
        holder::announce_return(region, self.block);
        // The publisher announces that it waits, then checks for blocks; here the block is returned first, then checked whether the
        // publisher waits. So one of both sees the other (SYNC: sleep).
        fence(Ordering::SeqCst);
        if publisher.wants_blocks().load(Ordering::Relaxed) != 0 {
            ring(
                &region.storage,
                publisher.doorbell().load(Ordering::Relaxed),
            );
        }
    }
}

/// A publisher as the subscriber knows it.
#[derive(Debug)]
struct Source<S> {
    slot: u32,
    incarnation: u64,
    start: u64,
    region: RegionView<S>,
    publisher: PublisherView<S>,
    /// How many holds on blocks of the region were ever taken. Only the reader writes this.
    acquired: AtomicU64,
    /// How many of these were released, by any thread.
    released: AtomicU64,
}

impl<S> Source<S> {
    /// Whether this subscriber holds a block of the region. Only for the reader's thread.
    fn is_held(&self) -> bool {
        // Acquire: after all accesses under released holds (SYNC: region).
        self.released.load(Ordering::Acquire) != self.acquired.load(Ordering::Relaxed)
    }
}

/// A subscriber's cursors. Exactly one exists per subscriber.
#[derive(Debug)]
pub struct Reader<S: Storage> {
    topic: TopicView<S>,
    slot: SubscriberView<S>,
    slot_index: u32,
    reliable: bool,
    /// The pool in which this subscriber reads replicas. None: it reads the messages themselves.
    pool: Option<u16>,
    sources: [Option<Arc<Source<S>>>; MAX_PUBLISHERS],
    /// A bit for each of `sources` that is set.
    known: u16,
    /// Those of `known` that have ended and may have unread messages.
    ended: u16,
    /// Publishers that left while this subscriber holds blocks of theirs.
    leaving: Vec<Arc<Source<S>>>,
    cursors: [u64; MAX_PUBLISHERS],
    /// The cursors in shared memory stay at least here, while a subscriber that took over a seat reads earlier messages again.
    floors: [u64; MAX_PUBLISHERS],
    /// Messages lost since the last one taken, per publisher.
    missed: [u64; MAX_PUBLISHERS],
    /// Per publisher, the running sum of messages that never reached this host, up to which they are counted.
    counted: [CountedBefore; MAX_PUBLISHERS],
    /// Per publisher, the sequence number from which on lost messages count as missed.
    counts_from: [u64; MAX_PUBLISHERS],
    backlog: Backlog,
    /// Per slot, the value of `passed_over` that is accounted for: messages of former publishers that did not match.
    skipped: [u64; MAX_PUBLISHERS],
    /// How many messages may wait; 0: as many as publishers keep.
    depth: u64,
    /// Whether this subscriber took over the seat of one that has ended.
    resumes: bool,
    closed: bool,
    epoch_seen: u32,
    next: usize,
    received: u64,
    missed_total: u64,
    /// Whether the message taken last is a tensor; `tensor` is that of the last one that was. Kept here so that `Taken` stays small for
    /// other messages.
    is_tensor: bool,
    tensor: Tensor,
    /// The same for a message with metadata.
    has_metadata: bool,
    metadata: Metadata,
}

/// A slot of a ring, as a reader finds it.
#[allow(clippy::large_enum_variant)] // lives on the stack for a moment; a box would allocate
enum Slot {
    Ready(Descriptor),
    /// It has the message of one lap before: the publisher has not reached it.
    Untouched,
    /// The publisher is writing it, or has never used it.
    Unsure,
    /// It has a later message, or changed while it was read.
    Overrun,
}

/// The result of trying to take the next message of a publisher.
#[allow(clippy::large_enum_variant)] // lives on the stack for a moment; a box would allocate
enum Look<S: Storage> {
    Taken(Taken<S>),
    /// The message has left the ring; the cursor has moved on.
    Skipped,
    Nothing,
}

/// A descriptor's fields, copied.
struct Descriptor {
    generation: u64,
    incarnation: u64,
    block: u32,
    /// Words of `replicas`.
    copies: [u64; REPLICA_PAIRS],
    message: Message,
    is_tensor: bool,
    has_metadata: bool,
}

impl<S: Storage> Reader<S> {
    /// The reader of subscriber slot `slot_index`, if there is such a slot. Sets its cursors in
    /// the topic.
    ///
    /// The daemon has set the cursors before, not beyond the positions that `start` leads to: a publisher may remove any message that is
    /// below the cursors of all reliable subscribers.
    ///
    /// A subscriber that took over a seat begins with the oldest message that each ring still has, if that is before the former
    /// subscriber's cursor.
    pub fn new(
        topic: TopicView<S>,
        slot_index: u32,
        reliable: bool,
        start: Start,
    ) -> Option<Reader<S>> {
        Self::begin(topic, slot_index, reliable, start, true)
    }

    /// The same for the links, which send messages on to other hosts. They take the history of publishers on other hosts as it lands,
    /// whatever `start` is: the subscribers on those hosts choose from it.
    pub fn of_links(
        topic: TopicView<S>,
        slot_index: u32,
        reliable: bool,
        start: Start,
    ) -> Option<Reader<S>> {
        Self::begin(topic, slot_index, reliable, start, false)
    }

    fn begin(
        topic: TopicView<S>,
        slot_index: u32,
        reliable: bool,
        start: Start,
        waits: bool,
    ) -> Option<Reader<S>> {
        if slot_index as usize >= MAX_SUBSCRIBERS {
            return None;
        }
        let slot = topic.subscriber(slot_index as usize);
        let resumes = slot.resumes().load(Ordering::Relaxed) != 0;
        let depth = u64::from(slot.depth().load(Ordering::Relaxed));
        let start = match start {
            Start::Kept(n) if depth > 0 => Start::Kept(n.min(depth)),
            start => start,
        };
        let mut reader = Reader {
            slot,
            depth,
            resumes,
            slot_index,
            reliable,
            pool: None,
            sources: std::array::from_fn(|_| None),
            known: 0,
            ended: 0,
            leaving: Vec::new(),
            cursors: [0; MAX_PUBLISHERS],
            floors: [0; MAX_PUBLISHERS],
            missed: [0; MAX_PUBLISHERS],
            counted: [CountedBefore::NOTHING; MAX_PUBLISHERS],
            counts_from: [0; MAX_PUBLISHERS],
            backlog: match start {
                Start::Live => Backlog::new(0, waits),
                Start::Kept(n) => Backlog::new(n, waits),
            },
            skipped: [0; MAX_PUBLISHERS],
            closed: false,
            epoch_seen: topic.membership_epoch().load(Ordering::Acquire),
            next: 0,
            received: 0,
            missed_total: 0,
            is_tensor: false,
            tensor: Tensor::default(),
            has_metadata: false,
            metadata: Metadata::default(),
            topic,
        };
        for index in 0..MAX_PUBLISHERS {
            let cursor = reader.first_cursor(index, start);
            reader.move_cursor(index, cursor);
        }
        reader.learn_sources();
        reader.join_backlog();
        reader.acknowledge_epoch();
        Some(reader)
    }

    /// The sequence number with which this subscriber begins to read a publisher.
    fn first_cursor(&mut self, index: usize, start: Start) -> u64 {
        let publisher = self.topic.publisher(index);
        let head = publisher.head().load(Ordering::Acquire).min(SEQUENCE_END);
        let tail = publisher.tail().load(Ordering::Acquire).min(head);
        let keeps = || publisher.transient_local().load(Ordering::Acquire) != 0;
        let at = self.slot.cursor(index).load(Ordering::Acquire).min(head);
        if self.resumes {
            self.floors[index] = at;
            // What it reads again may be pushed out meanwhile, which is no loss.
            self.counts_from[index] = at;
        }
        match start {
            Start::Kept(_) if self.matches(&publisher) && keeps() => {
                if self.reliable {
                    // A publisher that looked before it was a member may still push out what it kept then.
                    self.counts_from[index] = head;
                }
                self.backlog.ends[index] = head;
                tail
            }
            _ if self.resumes => tail.min(at),
            // From where it became a member on, as the daemon saw it: whoever counts members and then publishes
            // counts on this one.
            _ => at,
        }
    }

    /// From now on takes the replica in `pool` of each message that has one there.
    pub fn read_in(&mut self, pool: u16) {
        self.pool = Some(pool);
    }

    /// Messages missed so far.
    pub fn missed(&self) -> u64 {
        self.missed_total
    }

    /// How many active publishers this subscriber reads, as of the last [`poll`](Self::poll). Does not count orphans.
    pub fn publishers(&self) -> u32 {
        let is_active = |source: &&Arc<Source<S>>| {
            source.publisher.state().load(Ordering::Relaxed) == PUBLISHER_ACTIVE
        };
        let sources = self.sources.iter().flatten();
        sources.filter(is_active).count() as u32
    }

    /// The topic.
    pub fn topic(&self) -> &TopicView<S> {
        &self.topic
    }

    /// The tensor of the message that the last [`poll`](Self::poll) took. None: it is not a tensor.
    #[inline]
    pub fn tensor(&self) -> Option<&Tensor> {
        self.is_tensor.then_some(&self.tensor)
    }

    /// Swaps the metadata of the message that the last [`poll`](Self::poll) took into `with`, and keeps the buffer of `with` for a later
    /// message. False: the message has none, and `with` is unchanged.
    #[inline]
    pub fn swap_metadata(&mut self, with: &mut Metadata) -> bool {
        let had = std::mem::take(&mut self.has_metadata);
        if had {
            std::mem::swap(&mut self.metadata, with);
        }
        had
    }

    /// Takes the next message: first the oldest of the history, then those of publishers that have ended, then those of the others in turn.
    /// None: no message is waiting.
    #[inline]
    pub fn poll(&mut self) -> Option<Taken<S>> {
        let epoch = self.topic.membership_epoch().load(Ordering::Acquire);
        if epoch != self.epoch_seen || !self.leaving.is_empty() {
            self.follow_membership(epoch);
        }
        if self.backlog.held != 0 {
            self.follow_landing();
        }
        if self.depth != 0 {
            self.skip_surplus();
        }
        if self.backlog.unread != 0 {
            if let Some(taken) = self.poll_backlog() {
                return Some(taken);
            }
        }
        let open = self.known & !self.backlog.held;
        if self.ended != 0 {
            if let Some(taken) = self.poll_ended(open) {
                return Some(taken);
            }
        }
        // Bit n is the publisher n slots after the one whose turn it is.
        let mut turns = open.rotate_right(self.next as u32);
        while turns != 0 {
            let index = (self.next + turns.trailing_zeros() as usize) % MAX_PUBLISHERS;
            turns &= turns - 1;
            if let Some(taken) = self.take(index) {
                self.next = (index + 1) % MAX_PUBLISHERS;
                return Some(taken);
            }
        }
        None
    }

    /// Takes the next message of a publisher that has ended. These come first, since links that restart continue another host's publisher
    /// as a new publisher, whose messages are later.
    #[cold]
    fn poll_ended(&mut self, open: u16) -> Option<Taken<S>> {
        let mut ended = self.ended & open;
        while ended != 0 {
            let index = ended.trailing_zeros() as usize;
            ended &= ended - 1;
            if let Some(taken) = self.take(index) {
                return Some(taken);
            }
            self.ended &= !(1 << index);
        }
        None
    }

    /// Whether [`poll`](Self::poll) would take a message or skip a missed one.
    pub fn is_ready(&mut self) -> bool {
        let epoch = self.topic.membership_epoch().load(Ordering::Acquire);
        if epoch != self.epoch_seen {
            self.follow_membership(epoch);
        }
        if self.backlog.held != 0 {
            self.follow_landing();
        }
        let held = self.backlog.held;
        let mut open = (0..MAX_PUBLISHERS).filter(|index| held >> index & 1 == 0);
        open.any(|index| {
            let cursor = self.cursors[index];
            self.sources[index].as_ref().is_some_and(|source| {
                let descriptor = source.region.descriptor(cursor);
                let committed = descriptor.committed().load(Ordering::Acquire);
                committed > cursor || self.is_behind(index, cursor)
            })
        })
    }

    /// Announces that this subscriber is about to sleep. Poll once more before sleeping.
    pub fn announce_sleep(&self) {
        self.topic
            .sleepers()
            .fetch_or(1 << self.slot_index, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Closes the subscriber: it takes no more messages, and publishers neither wait for it nor keep messages for it. Its holds stay.
    pub fn close(&mut self) {
        self.closed = true;
        self.slot.closed().store(1, Ordering::Release);
        // Wake the publishers that wait for it, so that they check again.
        ring_publishers(&self.topic, u64::MAX);
        self.leaving
            .extend(self.sources.iter_mut().filter_map(Option::take));
        self.known = 0;
        self.backlog.close();
        self.note_membership();
    }

    /// Handles publishers that joined or left, as [`poll`](Self::poll) does. For a closed reader, after it has released a hold.
    pub fn note_membership(&mut self) {
        let epoch = self.topic.membership_epoch().load(Ordering::Acquire);
        self.follow_membership(epoch);
    }

    #[cold]
    fn follow_membership(&mut self, epoch: u32) {
        if epoch != self.epoch_seen {
            self.epoch_seen = epoch;
            self.learn_sources();
        }
        self.acknowledge_epoch();
    }

    /// Tells the daemon that this subscriber no longer accesses the regions of publishers that left, once it holds no blocks there.
    fn acknowledge_epoch(&mut self) {
        self.leaving.retain(|source| source.is_held());
        if self.leaving.is_empty() {
            // Release: after all accesses to those regions (SYNC: region).
            self.slot
                .seen_epoch()
                .store(self.epoch_seen, Ordering::Release);
        }
    }

    fn learn_sources(&mut self) {
        if self.closed {
            return;
        }
        let present = self.topic.publishers().load(Ordering::Acquire);
        for index in 0..MAX_PUBLISHERS {
            let known = self.sources[index]
                .as_ref()
                .map(|source| source.incarnation);
            let publisher = self.topic.publisher(index);
            let incarnation = publisher.incarnation().load(Ordering::Acquire);
            // Check the match after loading the incarnation: the daemon matches a publisher before it writes that. If another publisher
            // got the slot meanwhile, the next epoch brings this subscriber here again.
            let is_source =
                present >> index & 1 != 0 && incarnation != 0 && self.matches(&publisher);
            let there = is_source.then_some(incarnation);
            if known != there {
                if let Some(source) = self.sources[index].take() {
                    self.count_rest(index, &source);
                    self.leaving.push(source);
                }
                self.sources[index] = there.and_then(|incarnation| self.learn(index, incarnation));
                self.backlog.forget(index);
                if self.sources[index].is_some() {
                    self.learn_history(index);
                }
                self.known &= !(1 << index);
                self.known |= u16::from(self.sources[index].is_some()) << index;
            }
            let has_ended = self.sources[index].is_some()
                && publisher.state().load(Ordering::Relaxed) == PUBLISHER_ORPHAN;
            self.ended &= !(1 << index);
            self.ended |= u16::from(has_ended) << index;
        }
    }

    /// Whether a publisher matches this subscriber.
    fn matches(&self, publisher: &PublisherView<S>) -> bool {
        publisher.matched().load(Ordering::Acquire) >> self.slot_index & 1 != 0
    }

    fn learn(&mut self, index: usize, incarnation: u64) -> Option<Arc<Source<S>>> {
        let publisher = self.topic.publisher(index);
        let geometry = PublisherRegion {
            ring_capacity: publisher.ring_capacity().load(Ordering::Relaxed),
            block_capacity: publisher.block_capacity().load(Ordering::Relaxed),
        };
        let base = publisher.region_offset().load(Ordering::Relaxed);
        let start = publisher.start().load(Ordering::Relaxed).min(SEQUENCE_END);
        let passed_over = self.slot.passed_over(index).load(Ordering::Relaxed);
        // The daemon writes a new incarnation before it writes anything else to the slot (SYNC: incarnation). If it did so meanwhile, the
        // next epoch brings this subscriber here again.
        fence(Ordering::Acquire);
        if publisher.incarnation().load(Ordering::Relaxed) != incarnation {
            return None;
        }
        let region = RegionView::new(self.topic.storage().clone(), base, geometry)?;
        let before = std::mem::replace(&mut self.skipped[index], passed_over);
        let for_others = passed_over.wrapping_sub(before);
        let head = publisher.head().load(Ordering::Acquire);
        self.start_at(index, start, head, for_others);
        let cursor = self.cursors[index];
        self.counted[index] = match cursor > start {
            true => CountedBefore::before(&region, incarnation, cursor),
            false => CountedBefore::NOTHING,
        };
        Some(Arc::new(Source {
            slot: index as u32,
            incarnation,
            start,
            region,
            publisher,
            acquired: AtomicU64::new(0),
            released: AtomicU64::new(0),
        }))
    }

    /// Moves the cursor of a new publisher to its first message. Of the messages published in the slot since the cursor, `for_others`
    /// were of publishers that did not match.
    fn start_at(&mut self, index: usize, start: u64, head: u64, for_others: u64) {
        let cursor = self.cursors[index];
        if cursor < start {
            // Unread messages of the slot's last matching publisher are lost.
            self.count_missed(index, (start - cursor).saturating_sub(for_others));
        }
        // The cursor is above the head only if the slot's last publisher violated the protocol; the subscriber would wait there for ever.
        if cursor < start || cursor > head {
            self.move_cursor(index, start);
        }
    }

    /// Begins to count gaps with the one just before message `next`; earlier gaps do not count as missed.
    #[cold]
    fn begin_sum(&mut self, index: usize, next: u64) {
        if let Some(source) = &self.sources[index] {
            self.counted[index] = CountedBefore::before(&source.region, source.incarnation, next);
        }
    }

    /// Counts the gaps that a publisher which has left found since the message that this subscriber took last: before messages
    /// that it has not read, or that its own depth passed over. [`start_at`](Self::start_at) counts the unread messages.
    fn count_rest(&mut self, index: usize, source: &Source<S>) {
        if let Some(sum) = last_sum(&source.region, source.incarnation) {
            self.count_gaps(index, sum);
        }
    }

    /// Takes the next message of one publisher, and skips messages that have left the ring.
    fn take(&mut self, index: usize) -> Option<Taken<S>> {
        for _ in 0..SKIPS_MAX {
            match self.look(index) {
                Look::Taken(taken) => return Some(taken),
                Look::Skipped => {}
                Look::Nothing => return None,
            }
        }
        None
    }

    /// Takes the next message of one publisher, or moves past it if it is gone.
    #[inline]
    fn look(&mut self, index: usize) -> Look<S> {
        let cursor = self.cursors[index];
        let Some(source) = self.sources[index].as_ref() else {
            return Look::Nothing;
        };
        match read_slot(&source.region, cursor, &mut self.tensor, &mut self.metadata) {
            Slot::Ready(mut descriptor) => {
                let home = descriptor.message.pool;
                let part_bytes = self.turn_to_copy(source, cursor, &mut descriptor);
                if let Some(held) = self.hold(source, &descriptor) {
                    self.is_tensor = descriptor.is_tensor;
                    self.has_metadata = descriptor.has_metadata;
                    let mut taken = self.taken(index, cursor, held, home, descriptor.message);
                    taken.part_bytes = part_bytes;
                    return Look::Taken(taken);
                }
            }
            Slot::Untouched => return Look::Nothing,
            Slot::Unsure if !self.is_behind(index, cursor) => return Look::Nothing,
            Slot::Unsure | Slot::Overrun => {}
        }
        self.skip(index, cursor);
        Look::Skipped
    }

    /// Changes a descriptor to the message's replica in this subscriber's pool, if there is one. Returns the bytes of the replica's parts,
    /// or 0.
    #[inline]
    fn turn_to_copy(&self, source: &Source<S>, cursor: u64, descriptor: &mut Descriptor) -> u64 {
        let Some(pool) = self.pool.filter(|pool| *pool != descriptor.message.pool) else {
            return 0;
        };
        if descriptor.copies == [0; REPLICA_PAIRS] {
            return 0;
        }
        let blocks = replica::named(descriptor.copies);
        let Some(found) = replica::find(&source.region, blocks, cursor, pool) else {
            // The message has replicas only in other pools; or it has left the ring with them, and then acquiring the message fails.
            return 0;
        };
        descriptor.block = found.block;
        descriptor.generation = found.generation;
        descriptor.message.pool = pool;
        descriptor.message.offset = found.offset;
        descriptor.message.point = found.point;
        found.part_bytes
    }

    fn hold(&self, source: &Arc<Source<S>>, descriptor: &Descriptor) -> Option<Held<S>> {
        let Descriptor {
            incarnation,
            block,
            generation,
            ..
        } = *descriptor;
        let word = source.region.holders(block)?;
        let bit = 1 << self.slot_index;
        (incarnation == source.incarnation && holder::acquire(word, generation, bit)).then(|| {
            // Only this thread writes the count, so no read-modify-write. Relaxed: `is_held` loads it in this thread.
            let acquired = source.acquired.load(Ordering::Relaxed) + 1;
            source.acquired.store(acquired, Ordering::Relaxed);
            Held {
                source: source.clone(),
                bit,
                block,
                generation,
            }
        })
    }

    fn taken(
        &mut self,
        index: usize,
        cursor: u64,
        held: Held<S>,
        home: u16,
        message: Message,
    ) -> Taken<S> {
        step!("take.acquired");
        self.move_cursor(index, cursor + 1);
        step!("take.cursor");
        self.count_gaps(index, message.missed_so_far);
        self.received += 1;
        self.slot.received().store(self.received, Ordering::Relaxed);
        Taken {
            publisher: index as u32,
            incarnation: held.source.incarnation,
            sequence: cursor.wrapping_sub(held.source.start),
            missed: std::mem::take(&mut self.missed[index]),
            message,
            part_bytes: 0,
            home,
            held,
        }
    }

    /// Whether the publisher has removed the message at `cursor`, so that a slot that is not ready is being rewritten. False: the publisher
    /// has not reached it.
    fn is_behind(&self, index: usize, cursor: u64) -> bool {
        self.oldest_kept(index) > cursor
    }

    /// Sequence number of the oldest message that a publisher keeps, limited to possible values.
    fn oldest_kept(&self, index: usize) -> u64 {
        let publisher = self.topic.publisher(index);
        let tail = publisher.tail().load(Ordering::Acquire);
        tail.min(publisher.head().load(Ordering::Acquire))
            .min(SEQUENCE_END)
    }

    /// Skips the oldest waiting messages if more wait than the subscriber's queue may hold.
    fn skip_surplus(&mut self) {
        let waiting: [Range<u64>; MAX_PUBLISHERS] = std::array::from_fn(|index| {
            let is_held = self.backlog.held >> index & 1 != 0;
            let Some(source) = self.sources[index].as_ref().filter(|_| !is_held) else {
                return 0..0;
            };
            let head = source.publisher.head().load(Ordering::Acquire);
            let head = head.min(SEQUENCE_END);
            self.cursors[index].max(self.oldest_kept(index)).min(head)..head
        });
        let lengths = waiting.iter().map(|range| range.end - range.start);
        if lengths.fold(0, u64::saturating_add) <= self.depth {
            return;
        }
        let begin = newest(self.depth, &waiting, |index, sequence| {
            let source = self.sources[index].as_ref()?;
            published_ns(&source.region, source.incarnation, sequence)
        });
        for (index, begin) in begin.into_iter().enumerate() {
            let cursor = self.cursors[index];
            if begin > cursor && self.sources[index].is_some() {
                self.skip_to(index, cursor, begin);
            }
        }
    }

    /// Moves past a message that has left the ring, to the oldest one that is kept.
    fn skip(&mut self, index: usize, cursor: u64) {
        // At least by one, so that a publisher with a false tail cannot stop this subscriber here.
        let next = self.oldest_kept(index).max(cursor + 1);
        self.skip_to(index, cursor, next);
    }

    fn skip_to(&mut self, index: usize, cursor: u64, next: u64) {
        self.count_missed(
            index,
            next.saturating_sub(cursor.max(self.counts_from[index])),
        );
        if cursor < self.counts_from[index] {
            // Where skipped messages do not count, gaps between them do not, either.
            self.begin_sum(index, next.min(self.counts_from[index]));
        }
        self.count_gaps_before(index, next);
        self.move_cursor(index, next);
    }

    /// Counts the gaps before skipped messages, if the ring still has the last of these. Otherwise the next message taken counts them.
    #[cold]
    fn count_gaps_before(&mut self, index: usize, next: u64) {
        let Some(source) = &self.sources[index] else {
            return;
        };
        let last = next.checked_sub(1);
        let sum = last.and_then(|last| sum_of(&source.region, source.incarnation, last));
        if let Some(sum) = sum {
            self.count_gaps(index, sum);
        }
    }

    /// Counts the messages that never reached this host up to one with this running sum.
    #[inline]
    fn count_gaps(&mut self, index: usize, so_far: u64) {
        let gaps = self.counted[index].rise_to(so_far);
        if gaps > 0 {
            self.count_missed(index, gaps);
        }
    }

    fn count_missed(&mut self, index: usize, count: u64) {
        // Saturating: a publisher with false cursors can cause any count.
        self.missed[index] = self.missed[index].saturating_add(count);
        self.missed_total = self.missed_total.saturating_add(count);
        self.slot
            .missed()
            .store(self.missed_total, Ordering::Relaxed);
    }

    fn move_cursor(&mut self, index: usize, cursor: u64) {
        self.cursors[index] = cursor;
        if cursor < self.floors[index] {
            return;
        }
        self.slot.cursor(index).store(cursor, Ordering::Release);
        if self.reliable {
            ring_publishers(&self.topic, 1 << index);
        }
    }
}

/// Copies the descriptor of message `cursor`, and checks that it did not change meanwhile (a seqlock). Stores the shape of a tensor in
/// `tensor`, and metadata in `metadata`.
#[inline]
fn read_slot<S: Storage>(
    region: &RegionView<S>,
    cursor: u64,
    tensor: &mut Tensor,
    metadata: &mut Metadata,
) -> Slot {
    let descriptor = region.descriptor(cursor);
    let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let committed = descriptor.committed().load(Ordering::Acquire);
    if committed != cursor + 1 {
        return unready_slot(committed, cursor, region.geometry().ring_capacity);
    }
    let word = BlockWord::of_word(get(descriptor.block()));
    let flags = word.flags;
    let has = |flag| flags & flag != 0;
    let point = match has(DESCRIPTOR_QUEUED) {
        true => read_point(&descriptor),
        false => Point::NONE,
    };
    let is_tensor = has(DESCRIPTOR_TYPED);
    if is_tensor {
        *tensor = read_tensor(&descriptor, word.ndim);
    }
    let has_metadata = has(DESCRIPTOR_METADATA);
    let lengths = descriptor.metadata();
    if has_metadata && !read_metadata(region, cursor, get(lengths), metadata) {
        // The publisher violates the protocol, or is rewriting the slot: skip the message.
        return Slot::Overrun;
    }
    let copy = |pair| match has(DESCRIPTOR_COPIED) {
        true => get(descriptor.replicas(pair)),
        false => 0,
    };
    let found = Descriptor {
        generation: get(descriptor.generation()),
        incarnation: get(descriptor.incarnation()),
        block: word.block,
        copies: std::array::from_fn(copy),
        message: Message {
            pool: word.pool,
            offset: get(descriptor.offset()),
            bytes: get(descriptor.bytes()),
            publish_ns: get(descriptor.publish_ns()),
            tag: get(descriptor.tag()),
            point,
            missed_so_far: match has(DESCRIPTOR_MISSED) {
                true => get(descriptor.missed_so_far()),
                false => 0,
            },
        },
        is_tensor,
        has_metadata,
    };
    // SYNC: descriptor.
    fence(Ordering::Acquire);
    match get(descriptor.committed()) == committed {
        true => Slot::Ready(found),
        false => Slot::Overrun,
    }
}

fn read_point<S: Storage>(descriptor: &DescriptorView<S>) -> Point {
    let element = descriptor.element().load(Ordering::Relaxed);
    Point {
        timeline: ElementWord::of_word(element).timeline,
        value: descriptor.point().load(Ordering::Relaxed),
    }
}

/// Classifies a slot that does not have the message `cursor`, the usual result of a poll. Does not load `head` and `tail`: the publisher
/// writes them with every message, and keeps their cache line if no subscriber reads it.
#[inline]
fn unready_slot(committed: u64, cursor: u64, capacity: u32) -> Slot {
    if committed.wrapping_add(u64::from(capacity)) == cursor + 1 {
        Slot::Untouched
    } else if committed > cursor + 1 {
        Slot::Overrun
    } else {
        Slot::Unsure
    }
}

/// Copies the metadata of message `cursor`. False: the lengths are beyond the limits.
#[cold]
fn read_metadata<S: Storage>(
    region: &RegionView<S>,
    cursor: u64,
    lengths: u64,
    metadata: &mut Metadata,
) -> bool {
    let lengths = MetadataLengths::from_word(lengths);
    lengths.inspect(|lengths| metadata.read(region, cursor, *lengths));
    lengths.is_some()
}

fn read_tensor<S: Storage>(descriptor: &DescriptorView<S>, ndim: u8) -> Tensor {
    let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let ndim = ndim.min(MAX_DIMS as u8);
    let mut tensor = Tensor {
        dtype: ElementWord::of_word(get(descriptor.element())).dtype(),
        ndim,
        ..Tensor::default()
    };
    for dim in 0..usize::from(ndim) {
        tensor.shape[dim] = get(descriptor.shape(dim));
        tensor.strides[dim] = get(descriptor.strides(dim)) as i64;
    }
    tensor
}
