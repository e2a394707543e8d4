//! A small topic: what the daemon does to it, and a publisher and subscribers whose every use of a
//! payload is checked.

use crate::cells::{region_offset, Cells, Shape, Watched, GEOMETRY, TOPIC};
use rgaps_layout::{HISTORY_LANDING, PUBLISHER_ACTIVE};
use rgaps_sync::atomic::{fence, Ordering};
use rgaps_topic::{
    timeline, Copied, Loan, Message, Metadata, Point, PublisherView, Reader, RegionView,
    ReleaseList, Start, Taken, TopicView, With, Writer,
};
use std::sync::Arc;

/// A topic and the memory that its blocks stand for.
#[derive(Clone)]
pub struct World {
    pub cells: Cells,
    pub topic: TopicView<Cells>,
    /// Per publisher, per block.
    payloads: Arc<Vec<Vec<Watched>>>,
    /// The daemon's copy of the topic's `membership_epoch`. (If it read the topic's, loom would
    /// overlook that subscribers read it too: of a word it remembers one last access.)
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

    /// What the daemon does when it hands the memory of a publisher's blocks to another one. A
    /// race, if anyone may still read it.
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

    /// Number of the publisher whose region is `region`, to tell it from others of its slot.
    pub fn incarnation(region: usize) -> u64 {
        100 + region as u64
    }

    /// The daemon lets a publisher join slot `slot` with region `region`, that all subscribers match.
    pub fn add_publisher(&self, slot: usize, region: usize, start: u64) {
        self.add_matched_publisher(slot, region, start, u64::MAX);
    }

    /// The same for one that `matched` subscribers match, as in the engine's `fill_publisher`.
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

    /// The daemon takes a publisher out. Returns the epoch of its leaving.
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

    /// The same, of one that stands for one on another host, whose history is on its way.
    pub fn landing_publisher(&self) -> Publisher {
        let words = self.slot(0);
        words
            .history_end()
            .store(HISTORY_LANDING, Ordering::Relaxed);
        words.state().store(PUBLISHER_ACTIVE, Ordering::Relaxed);
        self.publisher()
    }

    /// What a publisher makes of the daemon's grant.
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

    /// The same, beginning there.
    pub fn subscriber_from(&self, index: u32, reliable: bool, start: Start) -> Reader<Cells> {
        self.topic
            .subscribers()
            .fetch_or(1 << index, Ordering::AcqRel);
        if reliable {
            self.topic.reliable().fetch_or(1 << index, Ordering::AcqRel);
        }
        // Each has the doorbell of its slot's number, publishers the next.
        self.topic
            .subscriber(index as usize)
            .doorbell()
            .store(index, Ordering::Relaxed);
        Reader::new(self.topic.clone(), index, reliable, start).unwrap()
    }

    /// Reads what a message says and what its block holds, and that both belong together. The
    /// block has to be held.
    pub fn verify(&self, taken: &Taken<Cells>) -> u64 {
        let Message {
            tag, offset, point, ..
        } = taken.message;
        // `POINT_NONE` is what the daemon writes over a point that was reached.
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

    /// The same for a message that may have been taken from its copy in [`ELSEWHERE`], and lets go of it.
    pub fn consume_copy(&self, mut taken: Taken<Cells>) -> (u64, u16) {
        let pool = taken.message.pool;
        if pool == ELSEWHERE {
            taken.message.pool = taken.message.tag as u16;
        }
        (self.consume(taken), pool)
    }

    /// What stands for the payload of message `taken`, for work on the GPU.
    pub fn payload(&self, taken: &Taken<Cells>) -> Payload {
        let region = (taken.incarnation - Self::incarnation(0)) as usize;
        Payload {
            world: self.clone(),
            region,
            place: taken.message.offset as usize,
        }
    }

    /// The list of what subscriber `index` lets go of.
    pub fn deferred_releases(&self, index: u32) -> ReleaseList<Cells> {
        ReleaseList::new(self.topic.clone(), index)
    }

    /// What a GPU does behind the work of a stream.
    pub fn reach(&self, point: Point) {
        let timeline = timeline(&self.cells, point.timeline).unwrap();
        timeline.value().store(point.value, Ordering::Release);
    }

    /// Verifies a message and lets go of it.
    pub fn consume(&self, taken: Taken<Cells>) -> u64 {
        let tag = self.verify(&taken);
        taken.held.release();
        tag
    }
}

/// A pool that copies are in.
pub const ELSEWHERE: u16 = 9;

/// A message whose fields all depend on `tag` and its place, so that a mixture of two is noticed.
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

/// An attachment that says `tag`.
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

/// The payload of a block, for work that outlives what the CPU does with the block.
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

/// The memory of a publisher's blocks: as many places as there are payloads.
pub struct Memory {
    world: World,
    region: usize,
    /// Which block lies in each place.
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
    /// Lends a block, and says where it is.
    fn lend(&mut self) -> (Loan, usize) {
        self.lend_in(None)
    }

    /// The same in another pool, for a copy.
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

    /// Fills a block and publishes it as message `tag` with an attachment that says the same.
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

    /// Fills a block and a copy of it in [`ELSEWHERE`], and publishes both as message `tag`.
    pub fn publish_copied(&mut self, tag: u64) {
        // In this order the block of one message's copy becomes that of the next one's.
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

    /// A block for work on the GPU to fill.
    pub fn lend_to_gpu(&mut self) -> (Loan, Payload) {
        let (loan, place) = self.lend();
        let payload = Payload {
            world: self.memory.world.clone(),
            region: self.memory.region,
            place,
        };
        (loan, payload)
    }

    /// Publishes a block as message `tag` when work that fills it is queued.
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

    /// Gives a block back when work that fills it is queued.
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

    /// What a publisher does when it wants a block: with what subscribers and its own work passed.
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

    /// Takes everything out of the ring. All blocks are free then, if nobody holds one and no work
    /// is queued.
    pub fn finish(mut self) {
        while self.evict() {}
        self.collect();
        assert!(
            self.memory.places.iter().all(Option::is_none),
            "a block is lost"
        );
    }
}
