//! A subscriber's side: taking messages in order, noticing what was missed, releasing.
//!
//! A late joiner first reads the history, merged by the time of publishing over all publishers ([`history`]), then takes
//! what is published from then on: of publishers that have ended first, of the others in turn.

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

/// Messages that [`Reader::poll`] finds gone at one publisher before it looks at the next one.
///
/// Who sleeps after that misses no doorbell: after the first skip whatever is gone was pushed out
/// by a message that came after the sleeper had said so, and that message rings.
const SKIPS_MAX: u32 = 64;

const _: () = assert!(MAX_PUBLISHERS == u16::BITS as usize);

/// Where a subscriber begins to read publishers that were there before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With what comes next.
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
    /// What the descriptor says. `pool`, `offset` and `bytes` are a peer's words: the caller
    /// checks them against the pools that are mapped.
    pub message: Message,
    /// Of a copy that is made in parts: see [`BlockEntry::part_bytes`](rgaps_layout::BlockEntry::part_bytes).
    pub part_bytes: u64,
    /// The pool of the message itself, where `message` says where its copy is.
    pub home: u16,
    /// The hold on the block.
    pub held: Held<S>,
}

/// A subscriber's hold on a block: its bit in the holder word. Not a guard: whoever drops one
/// without [`release`](Held::release) keeps the block until the subscriber's process ends.
#[derive(Debug)]
#[must_use = "a block is held until `release`"]
pub struct Held<S: Storage> {
    source: Arc<Source<S>>,
    bit: u64,
    block: u32,
    generation: u64,
}

impl<S: Storage> Held<S> {
    /// Another name for the same hold, for clones that are counted inside the process: exactly
    /// one of them all is released.
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

    /// Is done with the block's word, whose bit is cleared.
    pub(crate) fn forget(self) {
        // Last: until then the daemon does not reuse the region. Release: what we did in it comes
        // before (SYNC: region).
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
        // The publisher says that it waits, then looks; we say, then look (SYNC: sleep).
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
    /// Holds taken on blocks of the region, ever; written by the reader alone.
    acquired: AtomicU64,
    /// Those of them that were let go, by any thread.
    released: AtomicU64,
}

impl<S> Source<S> {
    /// Whether there is a hold on a block of the region. Ask from the reader's thread.
    fn is_held(&self) -> bool {
        // Acquire: what was done under the holds comes before (SYNC: region).
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
    /// Pool in which copies are read, where there are such.
    pool: Option<u16>,
    sources: [Option<Arc<Source<S>>>; MAX_PUBLISHERS],
    /// A bit for each of those that are there.
    known: u16,
    /// Those of them that have ended, as far as something of theirs may be unread.
    ended: u16,
    /// Publishers that left while blocks of theirs are held here.
    leaving: Vec<Arc<Source<S>>>,
    cursors: [u64; MAX_PUBLISHERS],
    /// Below these the cursors in shared memory do not go back, while a successor reads again what they have passed.
    floors: [u64; MAX_PUBLISHERS],
    /// Messages lost since the last one taken, per publisher.
    missed: [u64; MAX_PUBLISHERS],
    /// What publishers have said of messages that never reached this host, as far as it is counted.
    counted: [CountedBefore; MAX_PUBLISHERS],
    /// Numbers of the messages from which on a loss counts, per publisher.
    counts_from: [u64; MAX_PUBLISHERS],
    backlog: Backlog,
    /// Messages of former publishers that did not match, as far as they are accounted for, per slot.
    skipped: [u64; MAX_PUBLISHERS],
    /// How many messages wait at most; 0: as many as publishers keep.
    depth: u64,
    /// It took the seat of one that has ended.
    resumes: bool,
    closed: bool,
    epoch_seen: u32,
    next: usize,
    received: u64,
    missed_total: u64,
    /// Whether the message taken last is a tensor, and the last one that was. It stays here, so that
    /// messages that are none do not carry room for one from hand to hand.
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
    /// Still that of one lap before: the publisher has not come here.
    Untouched,
    /// Being written, or never used.
    Unsure,
    Overrun,
}

/// What a look at the next message of a publisher leads to.
#[allow(clippy::large_enum_variant)] // lives on the stack for a moment; a box would allocate
enum Look<S: Storage> {
    Taken(Taken<S>),
    /// It is gone; the cursor has moved on.
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
    /// The daemon sets them before, not above where `start` will be: a publisher may push out
    /// what no reliable subscriber's cursor is at or below, and does not look again.
    ///
    /// Of a subscriber that took the seat of one that has ended it begins with the oldest message that each ring still
    /// has, where that is before the former one's cursor.
    pub fn new(
        topic: TopicView<S>,
        slot_index: u32,
        reliable: bool,
        start: Start,
    ) -> Option<Reader<S>> {
        Self::begin(topic, slot_index, reliable, start, true)
    }

    /// The same for the links, which carry messages on to other hosts. They take the history of publishers on other hosts
    /// as it lands, whatever `start` is: the subscribers that they carry it to choose from it.
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

    /// Where it begins to read a publisher.
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

    /// Takes the copies in `pool` from now on, of messages that have one there.
    pub fn read_in(&mut self, pool: u16) {
        self.pool = Some(pool);
    }

    /// Messages missed so far.
    pub fn missed(&self) -> u64 {
        self.missed_total
    }

    /// How many publishers it reads, as of the last [`poll`](Self::poll), without those that are gone and left history.
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

    /// What the message is that the last [`poll`](Self::poll) took, if it is a tensor.
    #[inline]
    pub fn tensor(&self) -> Option<&Tensor> {
        self.is_tensor.then_some(&self.tensor)
    }

    /// Hands over the metadata of the message that the last [`poll`](Self::poll) took, in exchange for a buffer
    /// that is used for a later message. False: the message has none, and the buffer stays.
    #[inline]
    pub fn swap_metadata(&mut self, with: &mut Metadata) -> bool {
        let had = std::mem::take(&mut self.has_metadata);
        if had {
            std::mem::swap(&mut self.metadata, with);
        }
        had
    }

    /// Takes the next message: of the history the oldest, after it of publishers that have ended, then of the others in turn. None:
    /// there is nothing new.
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
        // Bit n stands for the publisher n places after that whose turn it is.
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

    /// Takes the next message of a publisher that has ended. They come first: links that restart go on with a publisher of another
    /// host under a new one.
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

    /// Whether [`poll`](Self::poll) has something to do: a message, or one that was missed.
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

    /// Says that this subscriber is about to sleep. Poll once more before sleeping.
    pub fn announce_sleep(&self) {
        self.topic
            .sleepers()
            .fetch_or(1 << self.slot_index, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes no more messages. Publishers wait for this subscriber no longer, nor keep messages for it; what it
    /// holds stays.
    pub fn close(&mut self) {
        self.closed = true;
        self.slot.closed().store(1, Ordering::Release);
        // Whoever waits for it looks again.
        ring_publishers(&self.topic, u64::MAX);
        self.leaving
            .extend(self.sources.iter_mut().filter_map(Option::take));
        self.known = 0;
        self.backlog.close();
        self.note_membership();
    }

    /// Acts on publishers that came and left, as [`poll`](Self::poll) does. For a reader that is closed, after the
    /// release of something it held.
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

    /// Tells the daemon that the regions of publishers that left are not touched any more from
    /// here, once that is so.
    fn acknowledge_epoch(&mut self) {
        self.leaving.retain(|source| source.is_held());
        if self.leaving.is_empty() {
            // Release: so does what we did (SYNC: region).
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
            // After the number: the daemon matches a publisher before it writes that. Where it did so
            // for another one meanwhile, the next epoch brings us here again.
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

    /// Whether a publisher is one that this subscriber reads.
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
        // The daemon writes another number before it writes anything else to the slot
        // (SYNC: incarnation). If it did so meanwhile, the next epoch brings us here again.
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

    /// Puts the cursor of a publisher that is new to us where its messages begin. Of what was published
    /// in the slot in between, `for_others` messages were of publishers that do not match.
    fn start_at(&mut self, index: usize, start: u64, head: u64, for_others: u64) {
        let cursor = self.cursors[index];
        if cursor < start {
            // What we had not read of the slot's last publisher went with it.
            self.count_missed(index, (start - cursor).saturating_sub(for_others));
        }
        // Above its head we can only be because the slot's last publisher lied about its own, and
        // would wait there for ever.
        if cursor < start || cursor > head {
            self.move_cursor(index, start);
        }
    }

    /// Begins to count gaps with the one before message `next`: older ones are no loss.
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

    /// Takes the next message of one publisher, skipping what it has overrun.
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

    /// Has a descriptor mean the message's copy in our pool, if it has one there. Bytes of the copy's parts.
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
            // Copies in other pools only, or none that is still of this message: then the message
            // itself is gone, too, which holding it will tell.
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
            // One writer, so no read-modify-write. Relaxed: the counts meet only after this thread
            // has handed the hold on.
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

    /// Whether a slot that is not ready is one that the publisher has gone round and is writing
    /// anew, rather than one that it has not reached.
    fn is_behind(&self, index: usize, cursor: u64) -> bool {
        self.oldest_kept(index) > cursor
    }

    /// Sequence number of the oldest message that a publisher keeps, as far as it can be believed.
    fn oldest_kept(&self, index: usize) -> u64 {
        let publisher = self.topic.publisher(index);
        let tail = publisher.tail().load(Ordering::Acquire);
        tail.min(publisher.head().load(Ordering::Acquire))
            .min(SEQUENCE_END)
    }

    /// Skips the oldest of the messages that wait, where there are more than the subscriber's queue holds.
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

    /// Moves past a message that is gone, to the oldest one that is still kept.
    fn skip(&mut self, index: usize, cursor: u64) {
        // At least one on, so that a peer that lies about its tail cannot hold us here.
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

    /// Counts the gaps before messages that are skipped, where the ring still has the last one of these. Otherwise the next message
    /// that is taken tells of them.
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
        // A publisher that lies about its cursors can make any number of them.
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

/// Copies the descriptor of `cursor`, if it is there and stays there while it is copied. The shape of a tensor
/// goes to `tensor`, the metadata of a message that has some to `metadata`.
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
        // The publisher lies, or has begun to write the slot anew: the message is skipped.
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

/// A slot without the message of `cursor`: the usual answer to a poll. It comes without a look at `head` and `tail`, so
/// that the publisher, who writes them with every message, has their cache line to itself.
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

/// False: the lengths are beyond the limits.
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
