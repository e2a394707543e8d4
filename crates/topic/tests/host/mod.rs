//! A host in one process: a daemon that lets members join and leave a topic, publishers with memory, and subscribers
//! that check every byte. Members may die at any step; the daemon then cleans up after them.
//!
//! With a simulated GPU, queued work writes and reads payloads, and blocks are published and released behind it.
#![allow(dead_code)] // each test uses a part

mod gpu;

use gpu::Gpu;
use rgaps_layout::{PublisherRegion, TopicRegion, CONTROL_PAGE, DYNAMIC_OFFSET, MAX_PUBLISHERS};
use rgaps_sync::Wake;
use rgaps_topic::{
    abandon, admit_subscriber, clear_deferred_releases, clear_holder, empty_deferred_releases,
    evict_through, live_blocks, progress, ring, ring_publishers, ring_range, settle_points,
    Admission, Held, Message, Point, Progress, Reader, RegionView, ReleaseList, Shared, Sleeper,
    Start, Storage, Taken, TopicView, Writer,
};
use std::collections::VecDeque;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const GEOMETRY: PublisherRegion = PublisherRegion {
    ring_capacity: 8,
    block_capacity: 64,
};
const DEPTH: u32 = 4;
/// Regions that the daemon hands out. There are more than publishers, since some are in quarantine.
const REGIONS: usize = 2 * MAX_PUBLISHERS;
const TOPIC_BYTES: u64 = (size_of::<TopicRegion>() as u64).next_multiple_of(CONTROL_PAGE);
/// Places for payloads in a region: few, so publishers have to wait for them.
const PLACES: usize = 10;
const PAYLOAD_WORDS: usize = 8;
/// A wait of this length fails the test. A member is never descheduled for so long.
const LOST_WAKE_NS: u64 = 60_000_000_000;
/// The first publisher's doorbell. A subscriber's doorbell has the number of its slot.
const PUBLISHER_DOORBELL: u32 = 100;

pub struct Host {
    _memory: Vec<u128>,
    pub shared: Shared,
    pub topic: TopicView<Shared>,
    payloads: Arc<Vec<[AtomicU64; PAYLOAD_WORDS]>>,
    gpu: Option<Gpu>,
    pub stop: AtomicBool,
    daemon: Mutex<Daemon>,
}

/// The daemon's private state.
struct Daemon {
    epoch: u32,
    incarnations: u64,
    /// Per publisher slot: region, incarnation, start.
    publishers: [Option<(usize, u64, u64)>; MAX_PUBLISHERS],
    subscribers: u64,
    regions: Vec<usize>,
    /// Regions that a subscriber may still access, and the epoch since which they are unused.
    quarantine: Vec<(usize, u32)>,
}

impl Host {
    pub fn new() -> Host {
        let bytes = region_offset(REGIONS);
        let mut memory = vec![0u128; bytes as usize / 16];
        // SAFETY: the host keeps the vector, all views are borrowed from the host, and only they touch the memory. It is
        // aligned to 16 bytes, which suffices for all words.
        let shared = unsafe { Shared::new(memory.as_mut_ptr().cast(), bytes) };
        Host {
            _memory: memory,
            shared,
            topic: TopicView::new(shared, DYNAMIC_OFFSET).unwrap(),
            payloads: Arc::new((0..REGIONS * PLACES).map(|_| Default::default()).collect()),
            gpu: None,
            stop: AtomicBool::new(false),
            daemon: Mutex::new(Daemon {
                epoch: 0,
                incarnations: 0,
                publishers: [None; MAX_PUBLISHERS],
                subscribers: 0,
                regions: (0..REGIONS).collect(),
                quarantine: Vec::new(),
            }),
        }
    }

    pub fn with_gpu() -> Host {
        let mut host = Host::new();
        host.gpu = Some(Gpu::new(host.shared));
        host
    }

    /// Runs the oldest work of each stream. Does nothing without a GPU.
    pub fn run_each(&self) {
        self.gpu.iter().for_each(Gpu::run_each);
    }

    fn region(&self, index: usize) -> RegionView<Shared> {
        RegionView::new(self.shared, region_offset(index), GEOMETRY).unwrap()
    }

    fn announce(&self, daemon: &mut Daemon) {
        daemon.epoch += 1;
        self.topic.membership_epoch().store(daemon.epoch, Release);
        fence(SeqCst);
        for index in 0..MAX_PUBLISHERS as u32 {
            ring(&self.shared, PUBLISHER_DOORBELL + index);
        }
        for index in 0..64 {
            if daemon.subscribers >> index & 1 != 0 {
                ring(&self.shared, index);
            }
        }
    }

    pub fn join_publisher(&self, slot: usize) -> Publisher<'_> {
        let mut daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        let daemon = &mut *daemon;
        let region = loop {
            if let Some(region) = daemon.regions.pop() {
                break region;
            }
            self.end_quarantine(daemon);
            std::thread::yield_now();
        };
        daemon.incarnations += 1;
        let incarnation = daemon.incarnations;
        let words = self.topic.publisher(slot);
        let start = words.head().load(Acquire);
        words.incarnation().store(0, Relaxed);
        fence(Release);
        words.tail().store(start, Relaxed);
        words.wants_blocks().store(0, Relaxed);
        words.blocks_used().store(0, Relaxed);
        words.region_offset().store(region_offset(region), Relaxed);
        words.ring_capacity().store(GEOMETRY.ring_capacity, Relaxed);
        words
            .block_capacity()
            .store(GEOMETRY.block_capacity, Relaxed);
        words.start().store(start, Relaxed);
        words.matched().store(u64::MAX, Relaxed);
        words
            .doorbell()
            .store(PUBLISHER_DOORBELL + slot as u32, Relaxed);
        words.incarnation().store(incarnation, Release);
        daemon.publishers[slot] = Some((region, incarnation, start));
        self.topic.publishers().fetch_or(1 << slot, Release);
        self.announce(daemon);
        let topic = self.topic.clone();
        let view = self.region(region);
        Publisher {
            writer: Writer::new(
                topic,
                slot as u32,
                view,
                incarnation,
                start,
                DEPTH,
                u64::MAX,
            )
            .unwrap(),
            memory: Memory {
                host: self,
                region,
                places: [None; PLACES],
            },
            slot,
            published: 0,
        }
    }

    /// Cleans up after a dead publisher, as the daemon does: keeps its history until subscribers have read it, and its
    /// blocks until they have released them. Returns how many messages the publisher had announced.
    pub fn bury_publisher(&self, slot: usize) -> u64 {
        let lock = || self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        let (region, incarnation, start) = lock().publishers[slot].unwrap();
        let (words, view) = (self.topic.publisher(slot), self.region(region));
        self.topic.blocked().fetch_and(!(1 << slot), AcqRel);
        if let Some(gpu) = &self.gpu {
            gpu.tear_down(slot);
            clear_deferred_releases(&self.topic, &view, slot as u32, incarnation);
            settle_points(&view, incarnation, ring_range(&words, &view), |_| false);
        }
        let left = abandon(&words, &view, incarnation, start);
        self.announce(&mut lock());
        let mut tail = left.tail;
        let deadline = Instant::now() + Duration::from_nanos(LOST_WAKE_NS);
        while tail < left.head || live_blocks(&words, &view).count() > 0 {
            let read = {
                // The lock keeps members from joining meanwhile.
                let daemon = lock();
                (0..64)
                    .filter(|index| daemon.subscribers >> index & 1 != 0)
                    .map(|index| self.topic.subscriber(index).cursor(slot).load(Acquire))
                    .fold(left.head, u64::min)
            };
            evict_through(&words, &view, incarnation, tail..read.max(tail));
            tail = tail.max(read);
            self.run_each();
            clear_deferred_releases(&self.topic, &view, slot as u32, incarnation);
            assert!(
                Instant::now() < deadline,
                "a dead publisher's block is never let go of"
            );
            std::thread::yield_now();
        }
        let mut daemon = lock();
        words.incarnation().store(0, Release);
        self.topic.publishers().fetch_and(!(1 << slot), Release);
        daemon.publishers[slot] = None;
        self.announce(&mut daemon);
        let epoch = daemon.epoch;
        daemon.quarantine.push((region, epoch));
        left.head - start
    }

    /// Zeroes the regions that no subscriber accesses any more, and makes them available.
    fn end_quarantine(&self, daemon: &mut Daemon) {
        let seen = (0..64)
            .filter(|index| daemon.subscribers >> index & 1 != 0)
            .map(|index| self.topic.subscriber(index).seen_epoch().load(Acquire))
            .min()
            .unwrap_or(u32::MAX);
        let Daemon {
            quarantine,
            regions,
            ..
        } = daemon;
        quarantine.retain(|(region, epoch)| {
            if *epoch > seen {
                return true;
            }
            let base = region_offset(*region);
            (0..GEOMETRY.bytes() / 8)
                .for_each(|word| self.shared.u64(base + word * 8).store(0, Relaxed));
            for payload in &self.payloads[region * PLACES..][..PLACES] {
                payload
                    .iter()
                    .for_each(|word| word.store(u64::MAX, Relaxed));
            }
            regions.push(*region);
            false
        });
    }

    pub fn join_subscriber(&self, slot: u32, reliable: bool) -> Subscriber<'_> {
        let mut daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        let words = self.topic.subscriber(slot as usize);
        words.doorbell().store(slot, Relaxed);
        words.seen_epoch().store(daemon.epoch, Relaxed);
        daemon.epoch += 1;
        let admission = Admission {
            reliable,
            late: false,
            matched: u64::MAX,
            epoch: daemon.epoch,
        };
        admit_subscriber(&self.topic, slot as usize, admission);
        daemon.subscribers |= 1 << slot;
        self.topic.subscribers().fetch_or(1 << slot, Release);
        self.announce(&mut daemon);
        drop(daemon);
        Subscriber {
            host: self,
            reader: Reader::new(self.topic.clone(), slot, reliable, Start::Live).unwrap(),
            slot,
            reliable,
            list: ReleaseList::new(self.topic.clone(), slot),
            held: VecDeque::new(),
            last: [(0, 0); MAX_PUBLISHERS],
            received: 0,
        }
    }

    /// Cleans up after a dead subscriber, as the daemon does.
    pub fn bury_subscriber(&self, slot: u32) {
        if let Some(gpu) = &self.gpu {
            gpu.tear_down(MAX_PUBLISHERS + slot as usize);
        }
        self.take_out(slot);
        let lives = |slot: u32, incarnation| {
            let daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
            daemon.publishers[slot as usize].is_some_and(|(_, there, _)| there == incarnation)
        };
        let deadline = Instant::now() + Duration::from_nanos(LOST_WAKE_NS);
        while !empty_deferred_releases(&self.topic, slot, lives) {
            assert!(Instant::now() < deadline, "a slot never becomes free");
            std::thread::yield_now();
        }
    }

    fn take_out(&self, slot: u32) {
        let mut daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        let others = !(1 << slot);
        self.topic.reliable().fetch_and(others, Release);
        self.topic.subscribers().fetch_and(others, Release);
        self.topic.sleepers().fetch_and(others, AcqRel);
        daemon.subscribers &= others;
        for (index, publisher) in daemon.publishers.iter().enumerate() {
            if let Some((region, ..)) = publisher {
                let words = self.topic.publisher(index);
                clear_holder(&words, &self.region(*region), slot);
                words.sweep().fetch_add(1, AcqRel);
            }
        }
        self.announce(&mut daemon);
        ring_publishers(&self.topic, u64::MAX);
    }

    /// Whether all regions can be handed out again. Call when all members have left.
    pub fn all_is_back(&self) -> bool {
        let mut daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        self.end_quarantine(&mut daemon);
        daemon.regions.len() == REGIONS
    }

    /// Tells the subscribers to end.
    pub fn stop_subscribers(&self) {
        self.stop.store(true, SeqCst);
        (0..64).for_each(|index| ring(&self.shared, index));
    }

    fn sleep(&self, sleeper: &Sleeper<'_>) {
        assert_eq!(
            sleeper.sleep(LOST_WAKE_NS),
            Wake::Look,
            "a wake-up was lost"
        );
    }
}

fn region_offset(index: usize) -> u64 {
    DYNAMIC_OFFSET + TOPIC_BYTES + index as u64 * GEOMETRY.bytes()
}

/// The memory of a publisher's blocks.
struct Memory<'a> {
    host: &'a Host,
    region: usize,
    /// The block in each place; None: the place is free.
    places: [Option<u32>; PLACES],
}

impl Memory<'_> {
    fn free(&mut self, block: u32) {
        let place = self.places.iter().position(|place| *place == Some(block));
        self.places[place.expect("a block is freed twice")] = None;
    }

    /// Writes a payload, or queues work that writes it if there is a GPU and `queue` is set. Returns the point behind it.
    fn fill(&self, slot: usize, place: usize, tag: u64, queue: bool) -> Point {
        let payloads = self.host.payloads.clone();
        let write = move || {
            payloads[place]
                .iter()
                .for_each(|word| word.store(tag, Relaxed))
        };
        match &self.host.gpu {
            Some(gpu) if queue => gpu.enqueue(slot, Point::NONE, move |_| write()),
            _ => {
                write();
                Point::NONE
            }
        }
    }

    fn collect(&mut self, writer: &mut Writer<Shared>) {
        let freed = &mut |block| self.free(block);
        writer.collect_queued(freed);
        writer.collect_deferred_releases(freed);
        writer.collect_returned(freed);
    }

    fn vacant(&self) -> Option<usize> {
        self.places.iter().position(Option::is_none)
    }
}

pub struct Publisher<'a> {
    writer: Writer<Shared>,
    memory: Memory<'a>,
    pub slot: usize,
    pub published: u64,
}

impl Publisher<'_> {
    /// Publishes one message, waiting for reliable subscribers and for memory as it must.
    pub fn publish(&mut self) {
        self.wait_for_room();
        let place = self.wait_for_memory();
        let Publisher { writer, memory, .. } = self;
        let loan = writer.loan(place as u64, 1).unwrap();
        memory.places[place] = Some(loan.block());
        let place = memory.region * PLACES + place;
        let tag = (writer.head() << 16) + place as u64;
        let message = Message {
            tag,
            offset: place as u64,
            point: memory.fill(self.slot, place, tag, self.published % 2 == 0),
            ..Message::default()
        };
        writer
            .publish(loan, &message, &mut |block| memory.free(block))
            .unwrap();
        self.published += 1;
    }

    fn wait_for_room(&mut self) {
        while !self.writer.has_room(0) {
            let host = self.memory.host;
            let sleeper =
                Sleeper::new(&host.shared, PUBLISHER_DOORBELL + self.slot as u32).unwrap();
            self.writer.announce_blocked();
            if !self.writer.has_room(0) {
                host.sleep(&sleeper);
            }
        }
    }

    fn wait_for_memory(&mut self) -> usize {
        let Publisher {
            writer,
            memory,
            slot,
            ..
        } = self;
        let host = memory.host;
        memory.collect(writer);
        let mut waits = false;
        while memory.vacant().is_none() {
            let sleeper = Sleeper::new(&host.shared, PUBLISHER_DOORBELL + *slot as u32).unwrap();
            writer.announce_wants_blocks(true);
            waits = true;
            memory.collect(writer);
            if memory.vacant().is_some() {
                break;
            }
            // No doorbell rings when work has finished.
            match writer.has_queued() || writer.has_deferred_releases() {
                true => host.run_each(),
                false => host.sleep(&sleeper),
            }
        }
        if waits {
            writer.announce_wants_blocks(false);
        }
        memory.vacant().unwrap()
    }

    /// Takes a loan, writes it, and gives it back unpublished.
    pub fn abandon(&mut self) {
        let place = self.wait_for_memory();
        let Publisher { writer, memory, .. } = self;
        let loan = writer.loan(place as u64, 1).unwrap();
        memory.places[place] = Some(loan.block());
        let point = memory.fill(self.slot, memory.region * PLACES + place, 0, true);
        writer.abandon(loan, point, &mut |block| memory.free(block));
    }

    /// Evicts all messages, and checks that all memory is free. Call when no subscriber holds a block.
    pub fn finish(mut self) {
        let memory = &mut self.memory;
        while self.writer.evict_oldest(&mut |block| memory.free(block)) {}
        while self.writer.has_queued() {
            memory.host.run_each();
            self.writer.collect_queued(&mut |block| memory.free(block));
        }
        memory.collect(&mut self.writer);
        assert!(memory.places.iter().all(Option::is_none), "a block is lost");
    }
}

pub struct Subscriber<'a> {
    host: &'a Host,
    reader: Reader<Shared>,
    slot: u32,
    reliable: bool,
    list: ReleaseList<Shared>,
    held: VecDeque<(u64, Point, Held<Shared>)>,
    /// Per publisher slot: the incarnation, and the sequence number expected next.
    last: [(u64, u64); MAX_PUBLISHERS],
    pub received: u64,
}

impl Subscriber<'_> {
    /// Receives a message if there is one, and releases the oldest until it holds at most `most`. Whether it received one.
    pub fn step(&mut self, most: usize) -> bool {
        self.list.tidy();
        let taken = self.reader.poll();
        let got = taken.is_some();
        if let Some(taken) = taken {
            self.check(taken);
        }
        while self.held.len() > most {
            self.let_go();
        }
        got
    }

    /// Sleeps until there is something to do. First releases all messages: otherwise all members might wait for each other.
    pub fn sleep(&mut self) {
        while !self.held.is_empty() {
            self.let_go();
        }
        if !self.list.is_empty() {
            // No doorbell rings when work has finished, and only this subscriber clears its bit in an orphan's blocks.
            self.host.run_each();
            self.list.tidy();
            return std::thread::yield_now();
        }
        let sleeper = Sleeper::new(&self.host.shared, self.slot).unwrap();
        self.reader.announce_sleep();
        if !self.step(1) && !self.host.stop.load(SeqCst) {
            self.host.sleep(&sleeper);
        }
    }

    fn check(&mut self, taken: Taken<Shared>) {
        let Taken {
            publisher,
            incarnation,
            sequence,
            missed,
            message,
            held,
            ..
        } = taken;
        let last = &mut self.last[publisher as usize];
        if last.0 == incarnation {
            assert_eq!(sequence, last.1 + missed, "order");
        }
        *last = (incarnation, sequence + 1);
        assert!(
            !self.reliable || missed == 0,
            "a reliable subscriber missed {missed}"
        );
        assert_eq!(message.tag & 0xffff, message.offset, "a torn descriptor");
        if progress(&self.host.shared, message.point) == Progress::Reached {
            self.verify(message.tag);
        }
        self.received += 1;
        self.held.push_back((message.tag, message.point, held));
    }

    /// Releases the oldest held message; with a GPU, behind work that reads it.
    fn let_go(&mut self) {
        let Some((tag, point, held)) = self.held.pop_front() else {
            return;
        };
        let Some(gpu) = &self.host.gpu else {
            self.verify(tag);
            return held.release();
        };
        let payloads = self.host.payloads.clone();
        let read = move |there: bool| {
            if there {
                verify(&payloads, tag)
            }
        };
        let behind = gpu.enqueue(MAX_PUBLISHERS + self.slot as usize, point, read);
        let mut held = Some(held);
        let deadline = Instant::now() + Duration::from_nanos(LOST_WAKE_NS);
        while let Some(hold) = held.take() {
            // The list is full: tries again until work of its entries has finished.
            held = self.list.push(hold, behind).err();
            if held.is_some() {
                self.host.run_each();
                self.list.tidy();
            }
            assert!(Instant::now() < deadline, "the list stays full");
        }
    }

    fn verify(&self, tag: u64) {
        verify(&self.host.payloads, tag);
    }

    pub fn finish(mut self) {
        let deadline = Instant::now() + Duration::from_nanos(LOST_WAKE_NS);
        while self.step(0) || !self.list.is_empty() {
            self.host.run_each();
            assert!(Instant::now() < deadline, "a hold is never let go of");
        }
        let host = self.host;
        let slot = self.slot;
        drop(self);
        host.bury_subscriber(slot);
    }
}

fn verify(payloads: &[[AtomicU64; PAYLOAD_WORDS]], tag: u64) {
    let payload = &payloads[(tag & 0xffff) as usize];
    assert!(
        payload.iter().all(|word| word.load(Relaxed) == tag),
        "bytes were reused while they are held"
    );
}
