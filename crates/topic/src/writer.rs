//! A publisher's side of its ring: loans, publishing, eviction, and collecting returned blocks.

use crate::deferred_release::claim_finished;
use crate::dropped::Dropped;
use crate::holder::{self, Holders, Outcome, PRODUCER, RING};
use crate::step::step;
use crate::wake::Foresight;
use crate::{
    progress, ring_ahead, ring_sleepers, wanted_from, Copied, DescriptorView, Metadata, Point,
    Progress, PublisherView, RegionView, Storage, TopicView,
};
use rgaps_layout::{
    BlockWord, DType, ElementWord, ReplicaPair, DESCRIPTOR_COPIED, DESCRIPTOR_METADATA,
    DESCRIPTOR_MISSED, DESCRIPTOR_QUEUED, DESCRIPTOR_TYPED, HISTORY_LANDING, MAX_DIMS,
    MAX_PUBLISHERS, MAX_REPLICAS, SEQUENCE_END,
};
use rgaps_sync::atomic::{fence, AtomicU64, Ordering};
use rgaps_sync::{demote, prefetch_for_write};
use std::collections::VecDeque;

/// Messages published at most this long after the one before are a burst.
const BURST_NS: u64 = 400;

/// Callback with the number of each block that became free; the caller frees its memory.
pub trait Freed: FnMut(u32) {}
impl<F: FnMut(u32)> Freed for F {}

/// A block that is being filled.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a loan is published or abandoned"]
pub struct Loan {
    block: u32,
    generation: u64,
}

impl Loan {
    /// Number of the block.
    pub fn block(&self) -> u32 {
        self.block
    }
}

/// Why there is no loan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoanError {
    /// All entries of the block table are in use: loans, history and held samples.
    NoBlocks,
}

/// Why a message was not published. The loan is consumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishError {
    /// Another process changed the block's holder word, in violation of the protocol. The block is lost.
    LoanLost,
}

/// Element type, shape and strides of a message that is a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Number of dimensions, 0 to 8.
    pub ndim: u8,
    /// Elements per dimension.
    pub shape: [u64; MAX_DIMS],
    /// Elements (not bytes) from one index to the next, per dimension.
    pub strides: [i64; MAX_DIMS],
}

/// The main fields of a message's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// Index of the pool in the zone.
    pub pool: u16,
    /// First byte, from the start of the pool.
    pub offset: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// `CLOCK_MONOTONIC` when publish was called.
    pub publish_ns: u64,
    /// The number that the user set; 0 if none.
    pub tag: u64,
    /// The point at which the bytes are complete.
    pub point: Point,
    /// How many earlier messages of the other host's publisher never reached this host: a running sum, which does not fall. 0 except
    /// for publishers of the links.
    pub missed_so_far: u64,
}

/// The optional parts of a message.
#[derive(Clone, Copy, Debug)]
pub struct With<'a, C> {
    /// The tensor. None: the message is not a tensor.
    pub tensor: Option<&'a Tensor>,
    /// Attachment and parts. None: the message has neither.
    pub metadata: Option<&'a Metadata>,
    /// The point after which no GPU work of the publisher writes the message, or reads it for a replica.
    pub read: Point,
    /// Replicas in other pools, at most [`MAX_REPLICAS`].
    pub copies: C,
}

/// The publisher's own record of a block, in private memory, which no other process can change.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    generation: u64,
    live: bool,
    /// As in the block's entry: 0 for the publisher's own pool, otherwise the pool plus 1.
    pool: u32,
}

/// The publisher's own record of a message in its ring.
#[derive(Clone, Copy, Debug, Default)]
struct Retained {
    block: u32,
    generation: u64,
    /// Payload bytes of all messages up to this one, wrapping.
    end_bytes: u64,
    copies: Copies,
}

/// The blocks of a message's replicas.
#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    are_any: bool,
    /// Their numbers plus 1; 0 for none.
    blocks: [u32; MAX_REPLICAS],
}

/// A block that the publisher's GPU work may still use, until the timeline reaches `value`.
#[derive(Clone, Copy, Debug)]
struct Queued {
    value: u64,
    block: u32,
    generation: u64,
}

/// A publisher's ring and blocks. Exactly one exists per publisher.
#[derive(Debug)]
pub struct Writer<S> {
    topic: TopicView<S>,
    slot: PublisherView<S>,
    region: RegionView<S>,
    slot_index: u32,
    incarnation: u64,
    start: u64,
    depth: u64,
    max_bytes: u64,
    head: u64,
    tail: u64,
    /// `publish_ns` of the last message.
    last_ns: u64,
    /// Payload bytes ever published and ever evicted, both wrapping.
    published_bytes: u64,
    evicted_bytes: u64,
    retained: Vec<Retained>,
    records: Vec<Record>,
    /// Blocks that wait for the publisher's GPU work: by timeline, in the order of their points.
    queued: Vec<(u32, VecDeque<Queued>)>,
    unused: Vec<u32>,
    blocks_used: u32,
    /// No reliable subscriber reads below this, as of `epoch_seen`.
    slowest: u64,
    epoch_seen: u32,
    sweep_seen: u32,
    /// Slow reliable subscribers for which the publisher does not wait until they have caught up.
    dropped: Dropped,
    /// Mask of the subscribers that were woken ahead of the next message.
    rung_ahead: u64,
    foresight: Foresight,
    is_quiet: bool,
}

fn write_point<S: Storage>(descriptor: &DescriptorView<S>, dtype: DType, point: Point) {
    let element = ElementWord::new(dtype, point.timeline).to_word();
    descriptor.element().store(element, Ordering::Relaxed);
    descriptor.point().store(point.value, Ordering::Relaxed);
}

fn write_copies<S: Storage>(descriptor: &DescriptorView<S>, copies: &Copies) {
    for (index, pair) in copies.blocks.chunks_exact(2).enumerate() {
        let (first, second) = (pair[0], pair[1]);
        let word = ReplicaPair { first, second }.to_word();
        descriptor.replicas(index).store(word, Ordering::Relaxed);
    }
}

fn write_shape<S: Storage>(descriptor: &DescriptorView<S>, tensor: &Tensor) {
    for dim in 0..usize::from(tensor.ndim).min(MAX_DIMS) {
        descriptor
            .shape(dim)
            .store(tensor.shape[dim], Ordering::Relaxed);
        let stride = tensor.strides[dim] as u64;
        descriptor.strides(dim).store(stride, Ordering::Relaxed);
    }
}

impl<S: Storage> Writer<S> {
    /// The writer of publisher slot `slot_index`, as the daemon granted it: `start` is the
    /// sequence number of the first message, `depth` how many messages the ring keeps and
    /// `max_bytes` how many bytes of payload they may have. None: the grant is invalid.
    pub fn new(
        topic: TopicView<S>,
        slot_index: u32,
        region: RegionView<S>,
        incarnation: u64,
        start: u64,
        depth: u32,
        max_bytes: u64,
    ) -> Option<Writer<S>> {
        let geometry = region.geometry();
        let makes_sense = (slot_index as usize) < MAX_PUBLISHERS
            && (1..geometry.ring_capacity).contains(&depth)
            && start < SEQUENCE_END;
        if !makes_sense {
            return None;
        }
        let slot = topic.publisher(slot_index as usize);
        let blocks = geometry.block_capacity as usize;
        Some(Writer {
            sweep_seen: slot.sweep().load(Ordering::Acquire),
            topic,
            slot,
            slot_index,
            incarnation,
            start,
            depth: u64::from(depth),
            max_bytes,
            head: start,
            tail: start,
            last_ns: 0,
            published_bytes: 0,
            evicted_bytes: 0,
            retained: vec![Retained::default(); geometry.ring_capacity as usize],
            records: vec![Record::default(); blocks],
            queued: Vec::new(),
            // A stack: reusing the last block first keeps few blocks in few cache lines.
            unused: (0..geometry.block_capacity).rev().collect(),
            blocks_used: 0,
            region,
            slowest: start,
            epoch_seen: 0,
            dropped: Dropped::default(),
            rung_ahead: 0,
            foresight: Foresight::default(),
            is_quiet: false,
        })
    }

    /// Sequence number of the next message.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Sequence number of the first message.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Messages that the ring holds.
    pub fn retained(&self) -> u64 {
        self.head - self.tail
    }

    /// The topic.
    pub fn topic(&self) -> &TopicView<S> {
        &self.topic
    }

    /// Announces that the history of another host's publisher has landed: all messages so far are history, later ones are live. Only the
    /// first call has an effect.
    pub fn end_history(&mut self) {
        let end = self.slot.history_end();
        if end.load(Ordering::Relaxed) == HISTORY_LANDING {
            // Release: a reader that sees the end sees all messages below it (SYNC: history).
            end.store(self.head, Ordering::Release);
            ring_sleepers(&self.topic, &self.slot);
        }
    }

    /// Loans a block for `bytes` bytes of memory at `offset` of the publisher's pool.
    pub fn loan(&mut self, offset: u64, bytes: u64) -> Result<Loan, LoanError> {
        self.begin(0, offset, bytes)
    }

    /// The same in another pool, for a replica.
    pub fn loan_in(&mut self, pool: u16, offset: u64, bytes: u64) -> Result<Loan, LoanError> {
        self.begin(u32::from(pool) + 1, offset, bytes)
    }

    fn begin(&mut self, pool: u32, offset: u64, bytes: u64) -> Result<Loan, LoanError> {
        let block = self.unused.pop().ok_or(LoanError::NoBlocks)?;
        let record = &mut self.records[block as usize];
        record.live = true;
        let generation = record.generation;
        let entry = self.region.block(block).expect("our own block");
        entry.offset().store(offset, Ordering::Relaxed);
        entry.bytes().store(bytes, Ordering::Relaxed);
        if record.pool != 0 || pool != 0 {
            record.pool = pool;
            entry.pool().store(pool, Ordering::Relaxed);
            // The block may have been a replica, for which slow readers may still look.
            entry.replica_of().store(0, Ordering::Relaxed);
        }
        step!("loan.extent");
        if block >= self.blocks_used {
            self.blocks_used = block + 1;
            self.slot
                .blocks_used()
                .store(self.blocks_used, Ordering::Release);
        }
        step!("loan.used");
        holder::begin(
            self.region.holders(block).expect("our own block"),
            generation,
        );
        step!("loan.begun");
        Ok(Loan { block, generation })
    }

    /// Gives back a loan that is not published, once the work that may still write its bytes has reached `point`.
    pub fn abandon(&mut self, loan: Loan, point: Point, freed: &mut impl Freed) {
        let Loan { block, generation } = loan;
        match point.is_none() {
            true => self.drop_bit(block, generation, PRODUCER, freed),
            false => self.queue(block, generation, point),
        }
    }

    /// Keeps the publisher's bit on a block until `point` has passed.
    fn queue(&mut self, block: u32, generation: u64, point: Point) {
        let queued = Queued {
            value: point.value,
            block,
            generation,
        };
        let known = self.queued.iter_mut().find(|(t, _)| *t == point.timeline);
        match known {
            Some((_, blocks)) => blocks.push_back(queued),
            None => self.queued.push((point.timeline, VecDeque::from([queued]))),
        }
    }

    /// Whether blocks wait for the publisher's GPU work, as of the last [`collect_queued`](Self::collect_queued).
    pub fn has_queued(&self) -> bool {
        self.queued.iter().any(|(_, blocks)| !blocks.is_empty())
    }

    /// Clears the publisher's bit on the blocks whose GPU work has finished. Costs a load per timeline with queued blocks.
    #[inline]
    pub fn collect_queued(&mut self, freed: &mut impl Freed) {
        for index in 0..self.queued.len() {
            if !self.queued[index].1.is_empty() {
                self.collect_timeline(index, freed);
            }
        }
    }

    fn collect_timeline(&mut self, index: usize, freed: &mut impl Freed) {
        let timeline = self.queued[index].0;
        while let Some(&Queued {
            value,
            block,
            generation,
        }) = self.queued[index].1.front()
        {
            let point = Point { timeline, value };
            if progress(self.topic.storage(), point) == Progress::Pending {
                return;
            }
            self.queued[index].1.pop_front();
            self.drop_bit(block, generation, PRODUCER, freed);
        }
    }

    /// Clears the bits of deferred releases on this publisher's blocks whose points have passed. Costs a load when there are none.
    pub fn collect_deferred_releases(&mut self, freed: &mut impl Freed) {
        let topic = self.topic.clone();
        claim_finished(&topic, self.slot_index, self.incarnation, |passed| {
            // An entry may name any block.
            if passed.block < self.region.geometry().block_capacity {
                let bit = 1 << passed.subscriber;
                self.drop_bit(passed.block, passed.generation, bit, freed);
            }
        });
    }

    /// Whether subscribers of the topic have deferred releases.
    pub fn has_deferred_releases(&self) -> bool {
        self.topic.deferring().load(Ordering::Acquire) != 0
    }

    /// Whether a message of `bytes` bytes can be published without removing messages that a reliable subscriber has not read.
    pub fn has_room(&mut self, bytes: u64) -> bool {
        if self.dropped.are_any() {
            self.readmit();
        }
        let Some(last) = self.pushed_out(bytes) else {
            return true;
        };
        if last < self.slowest && self.epoch_seen == self.epoch() {
            return true;
        }
        self.epoch_seen = self.epoch();
        self.slowest = self.slowest_reliable();
        last < self.slowest
    }

    /// The subscribers, as a mask, that back-pressure a message of `bytes` bytes.
    pub fn held_back_by(&self, bytes: u64) -> u64 {
        let Some(last) = self.pushed_out(bytes) else {
            return 0;
        };
        let reliable = self.reliable();
        (0..64)
            .filter(|bit| reliable >> bit & 1 != 0 && self.wanted_from(*bit, self.head + 1) <= last)
            .fold(0, |mask, bit| mask | 1 << bit)
    }

    /// Stops waiting for the subscribers that back-pressure a message of `bytes` bytes. They learn from their rings how many messages they
    /// missed. The publisher waits for each of them again once that has read everything published.
    ///
    /// The publisher decides from private memory for whom it waits; the word in shared memory is only for listings.
    pub fn drop_slow(&mut self, bytes: u64) {
        let slow = self.held_back_by(bytes);
        for slot in (0..64).filter(|slot| slow >> slot & 1 != 0) {
            let incarnation = self.subscriber_incarnation(slot);
            self.dropped.add(slot, incarnation);
        }
        let drops = self.slot.drops().load(Ordering::Relaxed);
        let drops = drops.wrapping_add(u64::from(slow.count_ones()));
        self.slot.drops().store(drops, Ordering::Relaxed);
        self.show_dropped();
    }

    /// Waits again for the subscribers that have caught up, and for others in the slots of those that left.
    #[cold]
    fn readmit(&mut self) {
        let mut dropped = std::mem::take(&mut self.dropped);
        dropped.retain(|slot, incarnation| {
            let stayed = self.subscriber_incarnation(slot) == incarnation;
            stayed && self.wanted_from(slot, self.head) < self.head
        });
        self.dropped = dropped;
        // A subscriber that counts again may be at any message, so compute this anew.
        self.slowest = 0;
        self.show_dropped();
    }

    fn subscriber_incarnation(&self, slot: u32) -> u64 {
        let slot = self.topic.subscriber(slot as usize);
        slot.incarnation().load(Ordering::Acquire)
    }

    fn show_dropped(&self) {
        self.slot
            .dropped()
            .store(self.dropped.mask(), Ordering::Relaxed);
    }

    /// Announces that this publisher is about to sleep until a reliable subscriber reads. Check [`has_room`](Self::has_room) once more
    /// before sleeping.
    pub fn announce_blocked(&self) {
        self.topic
            .blocked()
            .fetch_or(1 << self.slot_index, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Announces whether this publisher sleeps until blocks are returned. Try once more before sleeping.
    pub fn announce_wants_blocks(&self, wants: bool) {
        self.slot
            .wants_blocks()
            .store(u32::from(wants), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Payload bytes of the messages that the ring holds.
    fn retained_bytes(&self) -> u64 {
        self.published_bytes.wrapping_sub(self.evicted_bytes)
    }

    /// Sequence number of the newest message that a further message of `bytes` bytes would remove. None: it would remove none.
    fn pushed_out(&self, bytes: u64) -> Option<u64> {
        let by_count = (self.head + 1).saturating_sub(self.depth).max(self.tail);
        let excess = self
            .retained_bytes()
            .saturating_add(bytes)
            .saturating_sub(self.max_bytes);
        let first_kept = match excess {
            0 => by_count,
            _ => by_count.max(self.first_beyond(excess)),
        };
        (first_kept > self.tail).then(|| first_kept - 1)
    }

    /// Sequence number of the first message that stays if the oldest ones with together at least `bytes` bytes are removed. An exponential
    /// search: takes the logarithm of their number in steps.
    fn first_beyond(&self, bytes: u64) -> u64 {
        let freed_through = |sequence| {
            self.retained_at(sequence)
                .end_bytes
                .wrapping_sub(self.evicted_bytes)
        };
        let mut stride = 1;
        while self.tail + stride < self.head && freed_through(self.tail + stride - 1) < bytes {
            stride *= 2;
        }
        let (mut low, mut high) = (self.tail + stride / 2, (self.tail + stride).min(self.head));
        while low < high {
            let middle = low + (high - low) / 2;
            if freed_through(middle) < bytes {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low + 1).min(self.head)
    }

    fn epoch(&self) -> u32 {
        self.topic.membership_epoch().load(Ordering::Acquire)
    }

    /// The subscribers for which this publisher waits.
    fn reliable(&self) -> u64 {
        self.topic.reliable().load(Ordering::Acquire) & self.matched() & !self.dropped.mask()
    }

    /// The subscribers that match this publisher. Load the topic's masks before this: the daemon matches a subscriber before it adds it to
    /// any of them (SYNC: matched).
    fn matched(&self) -> u64 {
        self.slot.matched().load(Ordering::Acquire) & holder::SUBSCRIBERS
    }

    /// First message that a subscriber may still read when there are `head` of them.
    fn wanted_from(&self, subscriber: u32, head: u64) -> u64 {
        let slot = self.topic.subscriber(subscriber as usize);
        wanted_from(&slot, self.slot_index as usize, head)
    }

    fn slowest_reliable(&self) -> u64 {
        let mut reliable = self.reliable();
        let mut slowest = u64::MAX;
        while reliable != 0 {
            // Plus 1: the head after the message that needs room.
            let wanted = self.wanted_from(reliable.trailing_zeros(), self.head + 1);
            slowest = slowest.min(wanted);
            reliable &= reliable - 1;
        }
        slowest
    }

    /// Sets whether publishing wakes no subscriber. The caller must then call [`ring_sleepers`] after its last message, before it waits for
    /// anything.
    pub fn set_quiet(&mut self, is_quiet: bool) {
        self.is_quiet = is_quiet;
    }

    /// Rings for a sleeper ahead of the next message, if all matched subscribers sleep and it helps: see
    /// [`ring_ahead`].
    #[inline]
    pub fn ring_ahead(&mut self) {
        let any = self.topic.sleepers().load(Ordering::Relaxed) != 0;
        if any && !self.is_quiet && self.foresight.advises() {
            self.rung_ahead = ring_ahead(&self.topic, &self.slot);
        }
    }

    /// Announces the message in a loan, wakes sleeping subscribers, and removes messages for which the history has no room. Returns the
    /// sequence number.
    pub fn publish(
        &mut self,
        loan: Loan,
        message: &Message,
        freed: &mut impl Freed,
    ) -> Result<u64, PublishError> {
        let with = With {
            tensor: None,
            metadata: None,
            read: message.point,
            copies: [],
        };
        self.publish_with(loan, message, with, freed)
    }

    /// The same for a message with optional parts.
    pub fn publish_with(
        &mut self,
        loan: Loan,
        message: &Message,
        with: With<'_, impl IntoIterator<Item = Copied>>,
        freed: &mut impl Freed,
    ) -> Result<u64, PublishError> {
        let Loan { block, generation } = loan;
        let With {
            tensor,
            metadata,
            read,
            copies,
        } = with;
        // A polling subscriber has the slot's cache line; it arrives while the publisher does the rest.
        prefetch_for_write(self.region.descriptor(self.head).committed());
        let word = self.region.holders(block).expect("our own block");
        // Set the ring's bit before writing the descriptor: if the publisher dies in between, the daemon finds the bit without a
        // descriptor and clears it.
        let queued = !read.is_none();
        let committed = holder::commit(word, generation, queued);
        // A subscriber that waits for this message writes the word next, so move its cache line away from this core. Not in a burst: then
        // subscribers lag, and this publisher writes the word next, when the message leaves the ring.
        if message.publish_ns.wrapping_sub(self.last_ns) > BURST_NS {
            demote(word);
        }
        let copies = self.commit_copies(copies, committed, freed);
        if !committed {
            return Err(PublishError::LoanLost);
        }
        self.last_ns = message.publish_ns;
        if queued {
            self.queue(block, generation, read);
        }
        step!("publish.in_ring");
        let sequence = self.head;
        let now = Retained {
            block,
            generation,
            end_bytes: self.published_bytes.wrapping_add(message.bytes),
            copies,
        };
        self.write_descriptor(sequence, &now, message, tensor, metadata);
        step!("publish.committed");
        self.head = sequence + 1;
        self.slot.head().store(self.head, Ordering::Release);
        step!("publish.announced");
        let slept = match self.is_quiet {
            true => 0,
            false => ring_sleepers(&self.topic, &self.slot),
        };
        step!("publish.rung");

        self.retain(sequence, now, slept, freed);
        Ok(sequence)
    }

    /// Records a published message in the history, and evicts older ones. After the announcement, so that no subscriber waits for this.
    #[inline]
    fn retain(&mut self, sequence: u64, now: Retained, slept: u64, freed: &mut impl Freed) {
        if self.rung_ahead != 0 {
            self.foresight.learn(slept & self.rung_ahead != 0);
            self.rung_ahead = 0;
        }
        self.published_bytes = now.end_bytes;
        let at = (sequence & (self.retained.len() as u64 - 1)) as usize;
        self.retained[at] = now;
        self.slot
            .published_bytes()
            .store(self.published_bytes, Ordering::Relaxed);
        while self.retained() > self.depth
            || (self.retained_bytes() > self.max_bytes && self.retained() > 1)
        {
            self.evict_oldest(freed);
        }
    }

    /// Hands replicas to the ring. If the message was not `committed`, gives them back.
    #[inline]
    fn commit_copies(
        &mut self,
        copies: impl IntoIterator<Item = Copied>,
        committed: bool,
        freed: &mut impl Freed,
    ) -> Copies {
        let mut done = Copies::default();
        for (index, copied) in copies.into_iter().enumerate() {
            let Copied {
                loan,
                point,
                part_bytes,
            } = copied;
            let Loan { block, generation } = loan;
            let word = self.region.holders(block).expect("our own block");
            let entry = self.region.block(block).expect("our own block");
            entry.timeline().store(point.timeline, Ordering::Relaxed);
            entry.point().store(point.value, Ordering::Relaxed);
            entry.part_bytes().store(part_bytes, Ordering::Relaxed);
            entry.replica_of().store(self.head + 1, Ordering::Relaxed);
            let fits = committed && index < MAX_REPLICAS;
            if !fits || !holder::commit(word, generation, !point.is_none()) {
                entry.replica_of().store(0, Ordering::Relaxed);
                self.abandon(Loan { block, generation }, point, freed);
                continue;
            }
            if !point.is_none() {
                self.queue(block, generation, point);
            }
            done.blocks[index] = block + 1;
            done.are_any = true;
        }
        done
    }

    #[inline]
    fn write_descriptor(
        &self,
        sequence: u64,
        retained: &Retained,
        message: &Message,
        tensor: Option<&Tensor>,
        metadata: Option<&Metadata>,
    ) {
        let copies = &retained.copies;
        let descriptor = self.region.descriptor(sequence);
        let put = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        put(descriptor.committed(), 0);
        // A reader that sees any of the new fields does not find the old value when it loads `committed` again (SYNC: descriptor).
        fence(Ordering::Release);
        step!("publish.invalidated");
        let mut flags = 0;
        if let Some(tensor) = tensor {
            flags |= DESCRIPTOR_TYPED;
            write_shape(&descriptor, tensor);
        }
        if !message.point.is_none() {
            flags |= DESCRIPTOR_QUEUED;
        }
        if message.missed_so_far > 0 {
            flags |= DESCRIPTOR_MISSED;
            put(descriptor.missed_so_far(), message.missed_so_far);
        }
        if copies.are_any {
            flags |= DESCRIPTOR_COPIED;
            write_copies(&descriptor, copies);
        }
        if let Some(metadata) = metadata {
            flags |= DESCRIPTOR_METADATA;
            put(descriptor.metadata(), metadata.lengths().to_word());
            metadata.write(&self.region, sequence);
            step!("publish.metadata");
        }
        put(descriptor.generation(), retained.generation);
        put(descriptor.incarnation(), self.incarnation);
        let (block, pool) = (retained.block, message.pool);
        let ndim = tensor.map_or(0, |tensor| tensor.ndim);
        let word = BlockWord {
            block,
            pool,
            ndim,
            flags,
        };
        put(descriptor.block(), word.to_word());
        put(descriptor.offset(), message.offset);
        put(descriptor.bytes(), message.bytes);
        put(descriptor.publish_ns(), message.publish_ns);
        put(descriptor.tag(), message.tag);
        if flags != 0 {
            let dtype = tensor.map_or(DType::default(), |tensor| tensor.dtype);
            write_point(&descriptor, dtype, message.point);
        }
        step!("publish.described");
        let committed = descriptor.committed();
        committed.store(sequence + 1, Ordering::Release);
    }

    /// Removes the oldest message from the ring. False: the ring is empty.
    pub fn evict_oldest(&mut self, freed: &mut impl Freed) -> bool {
        if self.tail == self.head {
            return false;
        }
        let Retained {
            block,
            generation,
            end_bytes,
            copies,
        } = self.retained_at(self.tail);
        self.tail += 1;
        self.evicted_bytes = end_bytes;
        self.slot.tail().store(self.tail, Ordering::Release);
        step!("evict.tail");
        self.drop_bit(block, generation, RING, freed);
        if copies.are_any {
            self.evict_copies(copies, freed);
        }
        step!("evict.released");
        true
    }

    #[cold]
    fn evict_copies(&mut self, copies: Copies, freed: &mut impl Freed) {
        let blocks = copies.blocks.into_iter();
        for block in blocks.filter_map(|block| block.checked_sub(1)) {
            // The ring still holds the block, so its generation is the one with which it was published.
            let generation = self.records[block as usize].generation;
            self.drop_bit(block, generation, RING, freed);
        }
    }

    /// Removes from the ring the messages that all matched subscribers have read. For a volatile publisher that is short of memory. Returns
    /// how many.
    pub fn evict_consumed(&mut self, freed: &mut impl Freed) -> u64 {
        let mut subscribers = self.topic.subscribers().load(Ordering::Acquire) & self.matched();
        let mut read = self.head;
        while subscribers != 0 {
            read = read.min(self.wanted_from(subscribers.trailing_zeros(), self.head));
            subscribers &= subscribers - 1;
        }
        let before = self.tail;
        while self.tail < read && self.evict_oldest(freed) {}
        self.tail - before
    }

    fn retained_at(&self, sequence: u64) -> Retained {
        self.retained[(sequence & (self.retained.len() as u64 - 1)) as usize]
    }

    fn drop_bit(&mut self, block: u32, generation: u64, bit: u64, freed: &mut impl Freed) {
        let word = self.region.holders(block).expect("our own block");
        // A process that overwrites holder words can make a block look emptied twice. The private record shows whether this generation has
        // ended already.
        let record = self.records[block as usize];
        let ours = record.live && record.generation == generation;
        if holder::release(word, generation, bit) == Outcome::Emptied && ours {
            self.retire(block, freed);
        }
    }

    fn retire(&mut self, block: u32, freed: &mut impl Freed) {
        let record = &mut self.records[block as usize];
        record.live = false;
        record.generation = record.generation.wrapping_add(1);
        self.unused.push(block);
        freed(block);
    }

    /// Frees a block that another process marked as returned, if the block's holder word confirms that.
    fn retire_if_returned(&mut self, block: u32, freed: &mut impl Freed) {
        let record = self.records[block as usize];
        let now = Holders::load(self.region.holders(block).expect("our own block"));
        let ended = Holders {
            generation: record.generation.wrapping_add(1),
            mask: 0,
        };
        if record.live && now == ended {
            self.retire(block, freed);
        }
    }

    /// Frees the blocks that other processes returned. Costs a load per summary word when there are none.
    #[inline]
    pub fn collect_returned(&mut self, freed: &mut impl Freed) {
        for word in 0..self.region.geometry().summary_words() {
            if self.region.summary(word).load(Ordering::Relaxed) != 0 {
                self.collect_summary(word, freed);
            }
        }
        let sweep = self.slot.sweep().load(Ordering::Relaxed);
        if sweep != self.sweep_seen {
            self.sweep(sweep, freed);
        }
    }

    #[cold]
    fn sweep(&mut self, sweep: u32, freed: &mut impl Freed) {
        // The daemon asks for a sweep because a holder may have died between emptying a block's word and marking it as returned.
        fence(Ordering::Acquire);
        self.sweep_seen = sweep;
        for block in 0..self.blocks_used {
            self.retire_if_returned(block, freed);
        }
    }

    fn collect_summary(&mut self, word: u32, freed: &mut impl Freed) {
        // SYNC: returned.
        let mut words = self.region.summary(word).swap(0, Ordering::AcqRel);
        while words != 0 {
            let index = word * 64 + words.trailing_zeros();
            words &= words - 1;
            if index >= self.region.geometry().block_capacity / 64 {
                return;
            }
            let mut bits = self.region.returned(index).swap(0, Ordering::AcqRel);
            while bits != 0 {
                self.retire_if_returned(index * 64 + bits.trailing_zeros(), freed);
                bits &= bits - 1;
            }
        }
    }
}
