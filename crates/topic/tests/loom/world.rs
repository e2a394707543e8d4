//! A small topic with the daemon's actions, and a publisher and subscribers of which loom checks every access to a
//! payload.

use crate::cells::{region_offset, Cells, Shape, Watched, GEOMETRY, TOPIC};
use rgaps_layout::{HISTORY_LANDING, PUBLISHER_ACTIVE};
use rgaps_sync::atomic::{fence, Ordering};
use rgaps_topic::{
    timeline, Copied, Loan, Message, Metadata, Point, PublisherView, Reader, RegionView,
    ReleaseList, Start, Taken, TopicView, With, Writer,
};
use std::sync::Arc;

/// A topic and the memory of its blocks.
#[derive(Clone)]
pub struct World {
    pub cells: Cells,
    pub topic: TopicView<Cells>,
    /// The payloads, by region and block.
    payloads: Arc<Vec<Vec<Watched>>>,
    /// The daemon's copy of the topic's `membership_epoch`. The daemon must not read the topic's own: loom remembers only
    /// the last access to a word, and would overlook the subscribers' reads.
    epoch: Arc<std::sync::atomic::AtomicU32>,
}

impl World {
    /// A topic without members.
    pub fn new(shape: Shape) -> World {
        let cells = Cells::new(shape);
        let payload = |_| (0..shape.blocks).map(|_| Watched::new(0)).collect();
        World {
            topic: TopicView::new(cells.clone(), TOPIC).unwrap(),
            cells,
            payloads: Arc::new((0..shape.publishers).map(payload).collect()),
            epoch: Arc::default(),
        }
    }

    /// Overwrites the memory of a publisher's blocks, as its next owner does. loom reports a race if anyone may still
    /// read it.
    pub fn reuse_memory(&self, region: usize) {
        self.payloads[region]
            .iter()
            .for_each(|payload| payload.set(0));
    }

    pub fn slot(&self, index: usize) -> PublisherView<Cells> {
        self.topic.publisher(index)
    }

    pub fn region(&self, index: usize) -> RegionView<Cells> {
        RegionView::new(self.cells.clone(), region_offset(index), GEOMETRY).unwrap()
    }

    /// The incarnation of the publisher with this region. It differs from that of others in the same slot.
    pub fn incarnation(region: usize) -> u64 {
        100 + region as u64
    }

    /// Lets a publisher that all subscribers match join, as the daemon does, with this slot and region.
    pub fn add_publisher(&self, slot: usize, region: usize, start: u64) {
        self.add_matched_publisher(slot, region, start, u64::MAX);
    }

    /// Like `add_publisher`, but only the subscribers in the mask `matched` match. As in the engine's `fill_publisher`.
    pub fn add_matched_publisher(&self, slot: usize, region: usize, start: u64, matched: u64) {
        let words = self.slot(slot);
        words.incarnation().store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        words.head().store(start, Ordering::Relaxed);
        words.tail().store(start, Ordering::Relaxed);
        words.blocks_used().store(0, Ordering::Relaxed);
        words
            .region_offset()
            .store(region_offset(region), Ordering::Relaxed);
        words
            .ring_capacity()
            .store(GEOMETRY.ring_capacity, Ordering::Relaxed);
        words
            .block_capacity()
            .store(GEOMETRY.block_capacity, Ordering::Relaxed);
        words.start().store(start, Ordering::Relaxed);
        words.matched().store(matched, Ordering::Relaxed);
        words.transient_local().store(1, Ordering::Relaxed);
        words
            .incarnation()
            .store(Self::incarnation(region), Ordering::Release);
        self.announce(1 << slot);
    }

    /// Removes a publisher, as the daemon does. Returns the epoch from which on it is absent.
    pub fn remove_publisher(&self, slot: usize) -> u32 {
        self.slot(slot).incarnation().store(0, Ordering::Release);
        self.announce(0)
    }

    fn announce(&self, publishers: u64) -> u32 {
        self.topic.publishers().store(publishers, Ordering::Release);
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        self.topic
            .membership_epoch()
            .store(epoch, Ordering::Release);
        epoch
    }

    /// A publisher in slot and region 0 that keeps one message.
    pub fn publisher(&self) -> Publisher {
        self.add_publisher(0, 0, 0);
        self.publisher_at(0, 0, 0)
    }

    /// Like `publisher`, but it stands for one on another host, whose history has not arrived yet.
    pub fn landing_publisher(&self) -> Publisher {
        let words = self.slot(0);
        words
            .history_end()
            .store(HISTORY_LANDING, Ordering::Relaxed);
        words.state().store(PUBLISHER_ACTIVE, Ordering::Relaxed);
        self.publisher()
    }

    /// Makes the publisher that the daemon has let join with this slot, region and start.
    pub fn publisher_at(&self, slot: usize, region: usize, start: u64) -> Publisher {
        let writer = Writer::new(
            self.topic.clone(),
            slot as u32,
            self.region(region),
            Self::incarnation(region),
            start,
            1,
            u64::MAX,
        );
        Publisher {
            writer: writer.unwrap(),
            memory: Memory {
                world: self.clone(),
                region,
                places: vec![None; self.payloads[region].len()],
                freed: 0,
            },
        }
    }

    /// A subscriber in slot `index`, reading live messages.
    pub fn subscriber(&self, index: u32, reliable: bool) -> Reader<Cells> {
        self.subscriber_from(index, reliable, Start::Live)
    }

    /// A subscriber in slot `index` that begins at `start`.
    pub fn subscriber_from(&self, index: u32, reliable: bool, start: Start) -> Reader<Cells> {
        self.topic
            .subscribers()
            .fetch_or(1 << index, Ordering::AcqRel);
        if reliable {
            self.topic.reliable().fetch_or(1 << index, Ordering::AcqRel);
        }
        // A subscriber's doorbell has its slot's number; publishers have the numbers behind them.
        self.topic
            .subscriber(index as usize)
            .doorbell()
            .store(index, Ordering::Relaxed);
        Reader::new(self.topic.clone(), index, reliable, start).unwrap()
    }

    /// Checks that a message's fields and its block's payload belong together, and returns the tag. The caller holds the
    /// block.
    pub fn verify(&self, taken: &Taken<Cells>) -> u64 {
        let Message {
            tag, offset, point, ..
        } = taken.message;
        // The daemon replaces a point that was reached by `POINT_NONE`.
        assert!(
            point.is_none() || point == behind(tag),
            "a mixture of two messages"
        );
        let expected = Message {
            point,
            ..message(tag, offset)
        };
        assert_eq!(taken.message, expected, "a mixture of two messages");
        let region = (taken.incarnation - Self::incarnation(0)) as usize;
        let payload = self.payloads[region][offset as usize].get();
        assert_eq!(payload, tag, "the block was reused while it is held");
        tag
    }

    /// Like `consume`, for a message that may be a replica in [`ELSEWHERE`]. Returns the tag, and the pool it was read in.
    pub fn consume_copy(&self, mut taken: Taken<Cells>) -> (u64, u16) {
        let pool = taken.message.pool;
        if pool == ELSEWHERE {
            taken.message.pool = taken.message.tag as u16;
        }
        (self.consume(taken), pool)
    }

    /// The payload of message `taken`, for GPU work.
    pub fn payload(&self, taken: &Taken<Cells>) -> Payload {
        let region = (taken.incarnation - Self::incarnation(0)) as usize;
        Payload {
            world: self.clone(),
            region,
            place: taken.message.offset as usize,
        }
    }

    /// The release list of subscriber `index`.
    pub fn deferred_releases(&self, index: u32) -> ReleaseList<Cells> {
        ReleaseList::new(self.topic.clone(), index)
    }

    /// Advances a timeline to `point`, as a GPU does behind the work of a stream.
    pub fn reach(&self, point: Point) {
        let timeline = timeline(&self.cells, point.timeline).unwrap();
        timeline.value().store(point.value, Ordering::Release);
    }

    /// Verifies a message, releases it, and returns its tag.
    pub fn consume(&self, taken: Taken<Cells>) -> u64 {
        let tag = self.verify(&taken);
        taken.held.release();
        tag
    }
}

/// The pool of the replicas.
pub const ELSEWHERE: u16 = 9;

/// A message whose fields all depend on `tag` and `offset`, so that tests detect a mixture of two.
pub fn message(tag: u64, offset: u64) -> Message {
    Message {
        pool: tag as u16,
        offset,
        bytes: tag,
        publish_ns: tag,
        missed_so_far: 0,
        tag,
        point: Point::NONE,
    }
}

/// An attachment that contains `tag`.
pub fn attachment(tag: u64) -> [u8; 8] {
    tag.to_le_bytes()
}

/// The point of the work that writes message `tag`, on timeline 1.
pub fn behind(tag: u64) -> Point {
    Point {
        timeline: 1,
        value: tag,
    }
}

/// The payload of a block, for GPU work that uses it after the CPU has published or released the block.
pub struct Payload {
    world: World,
    region: usize,
    place: usize,
}

impl Payload {
    pub fn get(&self) -> u64 {
        self.world.payloads[self.region][self.place].get()
    }
    pub fn set(&self, value: u64) {
        self.world.payloads[self.region][self.place].set(value)
    }
}

/// A writer, and its memory.
pub struct Publisher {
    pub writer: Writer<Cells>,
    pub memory: Memory,
}

/// The memory of a publisher's blocks: one place for each payload.
pub struct Memory {
    world: World,
    region: usize,
    /// The block in each place; None: the place is free.
    places: Vec<Option<u32>>,
    pub freed: u32,
}

impl Memory {
    fn free(&mut self, block: u32) {
        let place = self.places.iter().position(|place| *place == Some(block));
        let place = place.unwrap_or_else(|| panic!("block {block} is freed twice"));
        self.places[place] = None;
        self.freed += 1;
    }
}

impl Publisher {
    /// Takes a loan in the first free place. Returns the loan and its place.
    fn lend(&mut self) -> (Loan, usize) {
        self.lend_in(None)
    }

    /// Like `lend`; `Some`: in this pool, for a replica.
    fn lend_in(&mut self, pool: Option<u16>) -> (Loan, usize) {
        let Publisher { writer, memory } = self;
        let place = memory
            .places
            .iter()
            .position(Option::is_none)
            .expect("memory");
        let loan = match pool {
            None => writer.loan(place as u64, 1).unwrap(),
            Some(pool) => writer.loan_in(pool, place as u64, 1).unwrap(),
        };
        assert!(
            !memory.places.contains(&Some(loan.block())),
            "a block is lent that is in use"
        );
        memory.places[place] = Some(loan.block());
        (loan, place)
    }

    /// Fills a block and publishes it as message `tag`.
    pub fn publish(&mut self, tag: u64) {
        let (loan, place) = self.lend();
        let Publisher { writer, memory } = self;
        memory.world.payloads[memory.region][place].set(tag);
        let message = message(tag, place as u64);
        writer
            .publish(loan, &message, &mut |block| memory.free(block))
            .unwrap();
    }

    /// Fills a block and publishes it as message `tag`, which wakes nobody.
    pub fn publish_quietly(&mut self, tag: u64) {
        let (loan, place) = self.lend();
        let Publisher { writer, memory } = self;
        memory.world.payloads[memory.region][place].set(tag);
        let message = message(tag, place as u64);
        writer.set_quiet(true);
        writer
            .publish(loan, &message, &mut |block| memory.free(block))
            .unwrap();
        writer.set_quiet(false);
    }

    /// Fills a block and publishes it as message `tag` with an attachment that contains `tag`.
    pub fn publish_attached(&mut self, tag: u64) {
        let (loan, place) = self.lend();
        let Publisher { writer, memory } = self;
        memory.world.payloads[memory.region][place].set(tag);
        let mut metadata = Metadata::default();
        assert!(metadata.set_attachment(&attachment(tag), false));
        let with = With {
            tensor: None,
            metadata: Some(&metadata),
            read: Point::NONE,
            copies: [],
        };
        let message = message(tag, place as u64);
        writer
            .publish_with(loan, &message, with, &mut |block| memory.free(block))
            .unwrap();
    }

    /// Fills a block and a replica of it in [`ELSEWHERE`], and publishes both as message `tag`.
    pub fn publish_copied(&mut self, tag: u64) {
        // Lends the replica first, so that its block is reused for the next message's replica.
        let (copy, copy_place) = self.lend_in(Some(ELSEWHERE));
        let (loan, place) = self.lend();
        let Publisher { writer, memory } = self;
        for place in [place, copy_place] {
            memory.world.payloads[memory.region][place].set(tag);
        }
        let copied = Copied {
            loan: copy,
            point: Point::NONE,
            part_bytes: 0,
        };
        let message = message(tag, place as u64);
        let with = With {
            tensor: None,
            metadata: None,
            read: Point::NONE,
            copies: [copied],
        };
        writer
            .publish_with(loan, &message, with, &mut |block| memory.free(block))
            .unwrap();
    }

    /// Takes a loan that GPU work fills.
    pub fn lend_to_gpu(&mut self) -> (Loan, Payload) {
        let (loan, place) = self.lend();
        let payload = Payload {
            world: self.memory.world.clone(),
            region: self.memory.region,
            place,
        };
        (loan, payload)
    }

    /// Publishes a loan as message `tag`, behind the queued GPU work that fills it.
    pub fn publish_behind(&mut self, loan: Loan, payload: &Payload, tag: u64) {
        let Publisher { writer, memory } = self;
        let message = Message {
            point: behind(tag),
            ..message(tag, payload.place as u64)
        };
        writer
            .publish(loan, &message, &mut |block| memory.free(block))
            .unwrap();
    }

    /// Gives a loan back unpublished, behind the queued GPU work that fills it.
    pub fn abandon_behind(&mut self, loan: Loan, point: Point) {
        let Publisher { writer, memory } = self;
        writer.abandon(loan, point, &mut |block| memory.free(block));
    }

    /// Fills a block and gives it back.
    pub fn reuse(&mut self) {
        let (loan, place) = self.lend();
        let Publisher { writer, memory } = self;
        memory.world.payloads[memory.region][place].set(u64::MAX);
        writer.abandon(loan, Point::NONE, &mut |block| memory.free(block));
    }

    /// Fills all blocks whose memory is free, and gives them back.
    pub fn reuse_all(&mut self) {
        let vacant = self.memory.places.iter().filter(|place| place.is_none());
        let loans: Vec<_> = (0..vacant.count()).map(|_| self.lend()).collect();
        let Publisher { writer, memory } = self;
        for (loan, place) in loans {
            memory.world.payloads[memory.region][place].set(u64::MAX);
            writer.abandon(loan, Point::NONE, &mut |block| memory.free(block));
        }
    }

    pub fn collect(&mut self) {
        let Publisher { writer, memory } = self;
        writer.collect_returned(&mut |block| memory.free(block));
    }

    /// Collects all free blocks, also those for which GPU work of subscribers or of this publisher has passed.
    pub fn collect_all(&mut self) {
        let Publisher { writer, memory } = self;
        let freed = &mut |block| memory.free(block);
        writer.collect_queued(freed);
        writer.collect_deferred_releases(freed);
        writer.collect_returned(freed);
    }

    pub fn evict(&mut self) -> bool {
        let Publisher { writer, memory } = self;
        writer.evict_oldest(&mut |block| memory.free(block))
    }

    /// Evicts all messages, and checks that all blocks are free. Call when nobody holds a block and no work is queued.
    pub fn finish(mut self) {
        while self.evict() {}
        self.collect();
        assert!(
            self.memory.places.iter().all(Option::is_none),
            "a block is lost"
        );
    }
}
