//! Deferred releases, when the publisher or the subscriber that could finish them leaves or dies.

mod support;

use rgaps_layout::{
    PublisherRegion, DEFERRED_RELEASE_BY_PUBLISHER as BY_PUBLISHER,
    DEFERRED_RELEASE_BY_SUBSCRIBER as BY_SUBSCRIBER, DEFERRED_RELEASE_FREE as FREE,
    DEFERRED_RELEASE_PENDING as PENDING, GRANULE_BYTES, MAX_DEFERRED_RELEASES, MAX_SUBSCRIBERS,
};
use rgaps_session::{RefusalCode, Role, ZoneId};
use rgaps_sync::atomic::Ordering;
use rgaps_testkit::Random;
use rgaps_topic::{
    timeline, Holders, Message, Point, Reader, RegionView, ReleaseList, Shared, Start, TopicView,
    Writer,
};
use std::time::Duration;
use support::*;

const LATER: Duration = Duration::from_secs(3);

/// A publisher `a` whose first message has left its ring and is held by subscriber `b` alone. `b` has deferred its release behind GPU
/// work. Subscriber `c` only watches.
struct Scene {
    world: World,
    a: Option<Sim>,
    b: Option<Sim>,
    c: Sim,
    zone: ZoneId,
    seats: [Seat; 3],
    ranges: Vec<rgaps_session::Range>,
    writer: Writer<Shared>,
    _reader: Reader<Shared>,
    releases: ReleaseList<Shared>,
    point: Point,
}

fn publish(writer: &mut Writer<Shared>, offset: u64) {
    let loan = writer.loan(offset, 256).unwrap();
    let message = Message {
        offset,
        bytes: 256,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| {}).unwrap();
}

impl Scene {
    fn new() -> Scene {
        let mut world = World::new();
        let (mut a, mut b, mut c) = (world.client("a"), world.client("b"), world.client("c"));
        let publisher = world.join(&mut a, "t", Role::Publisher(offer(1, true, true)));
        let subscriber = world.join(&mut b, "t", best_effort());
        let onlooker = world.join(&mut c, "t", best_effort());
        let zone = publisher.member.zone;
        let index = world.take_timeline(&b, zone);
        let mut reader = world.reader(&b, &subscriber, false, Start::Live);
        let mut writer = world.writer(&a, &publisher);
        let range = world.lease(&a, &publisher, 2);
        world.fetch_segments(&mut c, &onlooker, false);
        publish(&mut writer, range.offset);
        let held = reader.poll().unwrap().held;
        publish(&mut writer, range.offset + GRANULE_BYTES);
        let point = Point {
            timeline: index,
            value: 1,
        };
        let slot = subscriber.member.slot;
        let mut releases = ReleaseList::new(world.topic(&b, &subscriber), slot);
        releases.push(held, point).unwrap();
        b.timelines = vec![index];
        let scene = Scene {
            zone,
            seats: [publisher, subscriber, onlooker],
            ranges: vec![range],
            a: Some(a),
            b: Some(b),
            world,
            c,
            writer,
            _reader: reader,
            releases,
            point,
        };
        assert_eq!(scene.word().mask, 1 << slot);
        scene
    }

    fn topic(&self) -> TopicView<Shared> {
        self.world.topic(&self.c, &self.seats[2])
    }

    fn word(&self) -> Holders {
        let ring = self.seats[0].ring;
        let geometry = PublisherRegion {
            ring_capacity: ring.ring_capacity,
            block_capacity: ring.block_capacity,
        };
        let words = self.c.holds[&self.zone].words();
        let region = RegionView::new(words, ring.region_offset, geometry).unwrap();
        Holders::load(region.holders(0).unwrap())
    }

    fn slot(&self) -> u32 {
        self.seats[1].member.slot
    }

    fn kind(&self) -> u64 {
        let view = self.topic().deferred_releases(self.slot() as usize, 0);
        view.state().load(Ordering::Acquire) & 3
    }

    fn set_kind(&self, kind: u64) {
        let view = self.topic().deferred_releases(self.slot() as usize, 0);
        let state = view.state().load(Ordering::Acquire);
        view.state().store(state & !3 | kind, Ordering::Release);
    }

    fn is_deferring(&self) -> bool {
        self.topic().deferring().load(Ordering::Acquire) >> self.slot() & 1 != 0
    }

    /// Clears the subscriber's bit, as whoever has claimed the entry does.
    fn clear(&self) {
        let ring = self.seats[0].ring;
        let geometry = PublisherRegion {
            ring_capacity: ring.ring_capacity,
            block_capacity: ring.block_capacity,
        };
        let words = self.c.holds[&self.zone].words();
        let region = RegionView::new(words, ring.region_offset, geometry).unwrap();
        let next = Holders {
            generation: 1,
            mask: 0,
        };
        let word = region.holders(0).unwrap();
        word.store(next.pack(), Ordering::Release);
    }

    fn reach(&self) {
        let words = self.c.holds[&self.zone].words();
        let view = timeline(&words, self.point.timeline).unwrap();
        view.value().store(self.point.value, Ordering::Release);
    }

    fn publisher_ends(&mut self, dies: bool) {
        let a = self.a.take().unwrap();
        if dies {
            self.world.kill(a);
        } else {
            self.world.leave(&a, &self.seats[0]);
        }
    }

    fn subscriber_ends(&mut self, dies: bool) {
        let b = self.b.take().unwrap();
        if dies {
            self.world.kill(b);
        } else {
            self.world.leave(&b, &self.seats[1]);
        }
    }

    fn restart(&mut self) {
        self.world.restart();
        let [publisher, subscriber, onlooker] = self.seats.clone().map(|seat| seat.member);
        if let Some(a) = &mut self.a {
            let claims = [(publisher, self.ranges.clone())];
            self.world.hand_back_all(a, self.zone, &claims);
        }
        if let Some(b) = &mut self.b {
            self.world
                .hand_back_all(b, self.zone, &[(subscriber, vec![])]);
        }
        let claims = [(onlooker, vec![])];
        self.world.hand_back_all(&mut self.c, self.zone, &claims);
        self.world.pass(LATER);
    }

    /// The slot that a new subscriber gets. It leaves at once.
    fn next_slot(&mut self) -> u32 {
        let seat = self.world.join(&mut self.c, "t", best_effort());
        let slot = seat.member.slot;
        self.world.leave(&self.c, &seat);
        slot
    }
}

/// All cases: the state of the entry, whether the bit is cleared already, whether the member dies or leaves, and whether the daemon
/// restarts.
fn cases() -> impl Iterator<Item = (u64, bool, bool, bool)> {
    let kinds = [(FREE, true), (PENDING, false)];
    let claimed = [BY_SUBSCRIBER, BY_PUBLISHER].map(|kind| [(kind, false), (kind, true)]);
    let kinds = kinds.into_iter().chain(claimed.into_iter().flatten());
    kinds.flat_map(|(kind, cleared)| {
        let endings = [(false, false), (false, true), (true, false), (true, true)];
        endings.map(|(dies, restarts)| (kind, cleared, dies, restarts))
    })
}

#[test]
fn a_subscriber_ends_before_its_holds_are_cleared() {
    for (kind, cleared, dies, restarts) in cases() {
        for publisher_first in [false, true] {
            let mut scene = Scene::new();
            let case = format!("{kind} {cleared} {dies} {restarts} {publisher_first}");
            if cleared {
                scene.clear();
            }
            scene.set_kind(kind);
            scene.subscriber_ends(dies);
            if restarts {
                scene.restart();
            }
            let ended = Holders {
                generation: 1,
                mask: 0,
            };
            assert_eq!(scene.word(), ended, "{case}");
            let waits_for_publisher = kind == BY_PUBLISHER;
            assert_eq!(
                scene.kind(),
                if waits_for_publisher { kind } else { FREE },
                "{case}"
            );
            assert_eq!(scene.is_deferring(), waits_for_publisher, "{case}");
            assert_eq!(
                scene.next_slot() == scene.slot(),
                !waits_for_publisher,
                "{case}"
            );
            if !waits_for_publisher {
                continue;
            }
            scene.world.pass(LATER);
            assert_ne!(scene.next_slot(), scene.slot(), "{case}: not by itself");
            if publisher_first {
                scene.publisher_ends(dies);
                assert_eq!(scene.kind(), FREE, "{case}");
            } else {
                scene.set_kind(FREE);
                scene.world.pass(LATER);
            }
            assert!(!scene.is_deferring(), "{case}");
            assert_eq!(scene.next_slot(), scene.slot(), "{case}");
        }
    }
}

#[test]
fn a_publisher_ends_before_the_holds_on_its_blocks_are_cleared() {
    for (kind, cleared, dies, restarts) in cases() {
        let mut scene = Scene::new();
        let case = format!("{kind} {cleared} {dies} {restarts}");
        if cleared {
            scene.clear();
        }
        scene.set_kind(kind);
        scene.publisher_ends(dies);
        if restarts {
            scene.restart();
        }
        scene.world.pass(LATER);
        let waits = !cleared && kind != BY_PUBLISHER;
        assert_eq!(
            scene.word().mask,
            u64::from(waits) << scene.slot(),
            "{case}"
        );
        let left = if kind == BY_PUBLISHER { FREE } else { kind };
        assert_eq!(scene.kind(), left, "{case}");
        let leased = |scene: &mut Scene| scene.world.leased_granules(&scene.c);
        // The newest message stays for late joiners.
        assert_eq!(leased(&mut scene), 1 + u64::from(waits), "{case}");
        scene.reach();
        scene.world.pass(LATER);
        if kind == PENDING {
            assert_eq!((scene.word().mask, scene.kind()), (0, FREE), "{case}");
        }
        if kind == BY_SUBSCRIBER {
            assert_eq!(scene.kind(), BY_SUBSCRIBER, "{case}: it lives");
            scene.subscriber_ends(dies);
        } else {
            assert_eq!(scene.releases.tidy(), 0, "{case}: it goes on");
        }
        scene.world.pass(LATER);
        assert_eq!(leased(&mut scene), 1, "{case}");
        assert_eq!(scene.word().mask, 0, "{case}");
        assert!(!scene.is_deferring(), "{case}");
    }
}

#[test]
fn a_dead_subscribers_work_waits_for_nobody() {
    // The subscriber dies: the end of its timeline's tenure counts as reaching the point.
    let mut scene = Scene::new();
    let mut freed = Vec::new();
    scene
        .writer
        .collect_deferred_releases(&mut |block| freed.push(block));
    assert!(freed.is_empty());
    scene.subscriber_ends(true);
    scene
        .writer
        .collect_deferred_releases(&mut |block| freed.push(block));
    scene
        .writer
        .collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed, [0], "once");
    // A lost GPU context has the same effect on the publisher.
    let mut scene = Scene::new();
    let lost = rgaps_session::Request::GpuLost { zone: scene.zone };
    scene.world.ask(scene.b.as_ref().unwrap(), lost).unwrap();
    let mut freed = Vec::new();
    scene
        .writer
        .collect_deferred_releases(&mut |block| freed.push(block));
    assert_eq!((freed, scene.kind()), (vec![0], FREE));
    assert_eq!(scene.releases.tidy(), 0);
}

#[test]
fn a_list_is_emptied_to_its_end() {
    let mut scene = Scene::new();
    let topic = scene.topic();
    let entry = |entry| topic.deferred_releases(scene.seats[1].member.slot as usize, entry);
    // Two entries name a publisher that does not exist. The last entry is claimed by a publisher that has not finished it.
    entry(5).state().store(7 << 2 | PENDING, Ordering::Release);
    entry(6)
        .state()
        .store(7 << 2 | BY_PUBLISHER, Ordering::Release);
    let last = entry(MAX_DEFERRED_RELEASES - 1);
    let incarnation = scene.seats[0].member.incarnation;
    last.incarnation().store(incarnation, Ordering::Release);
    last.state().store(BY_PUBLISHER, Ordering::Release);
    let kinds = [0, 5, 6, MAX_DEFERRED_RELEASES - 1].map(entry);
    scene.subscriber_ends(true);
    let found = kinds.map(|view| view.state().load(Ordering::Acquire) & 3);
    assert_eq!(found, [FREE, FREE, FREE, BY_PUBLISHER]);
    assert!(scene.is_deferring());
    scene.publisher_ends(true);
    assert!(!scene.is_deferring());
}

#[test]
fn a_slot_that_is_held_up_is_there_again_when_it_is_needed() {
    let mut scene = Scene::new();
    scene.set_kind(BY_PUBLISHER);
    scene.subscriber_ends(false);
    let taken: Vec<Seat> = (0..MAX_SUBSCRIBERS - 2)
        .map(|_| scene.world.join(&mut scene.c, "t", best_effort()))
        .collect();
    assert!(taken.iter().all(|seat| seat.member.slot != scene.slot()));
    let full = wish("t", best_effort());
    let code = scene.world.refused(&scene.c, full.clone());
    assert_eq!(code, RefusalCode::LimitReached);
    scene.set_kind(FREE);
    let seat = scene.world.try_join(&mut scene.c, full).unwrap();
    assert_eq!(seat.member.slot, scene.slot(), "without waiting");
}

#[test]
fn scribbled_entries_keep_nothing_for_ever() {
    for seed in 1u64..=60 {
        let mut random = Random::new(seed);
        let mut scene = Scene::new();
        let topic = scene.topic();
        let incarnation = scene.seats[0].member.incarnation;
        for _ in 0..300 {
            let subscriber = random.next_u64() % 4;
            let view = topic.deferred_releases(
                subscriber as usize,
                random.next_u64() as usize % MAX_DEFERRED_RELEASES,
            );
            view.incarnation().store(
                [incarnation, random.next_u64()][random.next_u64() as usize % 2],
                Ordering::Release,
            );
            view.generation()
                .store(random.next_u64() % 3, Ordering::Release);
            view.point().store(
                [0, 1, random.next_u64(), u64::MAX][random.next_u64() as usize % 4],
                Ordering::Release,
            );
            let index =
                [scene.point.timeline, 0, random.next_u64() as u32][random.next_u64() as usize % 3];
            view.timeline().store(index, Ordering::Release);
            let block = [0, 1, random.next_u64() as u32][random.next_u64() as usize % 3];
            view.block().store(block, Ordering::Release);
            let slot = [0, 0, random.next_u64() as u32][random.next_u64() as usize % 3];
            view.publisher().store(slot, Ordering::Release);
            view.state().store(random.next_u64(), Ordering::Release);
            topic
                .deferring()
                .store(random.next_u64(), Ordering::Release);
        }
        if random.next_u64() % 2 == 0 {
            scene.restart();
        }
        let dies = random.next_u64() % 2 == 0;
        scene.subscriber_ends(dies);
        scene.world.pass(LATER);
        scene.publisher_ends(!dies);
        scene.world.pass(LATER);
        let all: Vec<Seat> = (0..MAX_SUBSCRIBERS - 1)
            .map(|_| scene.world.join(&mut scene.c, "t", best_effort()))
            .collect();
        for seat in &all {
            scene.world.leave(&scene.c, seat);
        }
        let onlooker = scene.seats[2].clone();
        scene.world.leave(&scene.c, &onlooker);
        scene.world.pass(LATER);
        assert!(scene.world.leased_granules(&scene.c) <= 1, "seed {seed}");
    }
}
