//! Subscribers that read in another domain than the topic's.

mod support;

use rgaps_engine::SessionId;
use rgaps_layout::{Domain, PublisherRegion, GRANULE_BYTES, MAX_REPLICAS, RING_BIT};
use rgaps_session::{Notice, Range, RefusalCode, Request, Role, MAX_PATH_BYTES};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{
    progress, timeline, Copied, Holders, Message, Point, Progress, Reader, RegionView, Shared,
    Start, With, Writer,
};
use std::time::Duration;
use support::*;

#[test]
fn a_subscriber_reads_where_it_says() {
    let mut world = World::new();
    let (mut a, mut b) = (world.client("a"), world.client("b"));
    let publisher = world
        .try_join(&mut a, wish_in("t", volatile(), Domain::Host))
        .unwrap();
    let topic = world.topic(&a, &publisher);
    let own = publisher.pool.unwrap();
    world.engine.take_notices();

    // With the topic's domain or none, the subscriber needs no replicas.
    for domain in [None, Some(Domain::Host)] {
        let seat = world
            .try_join(&mut b, wish_in("t", reliable(), domain))
            .unwrap();
        assert_eq!((seat.pool, seat.reads), (Some(own), None));
        let slot = topic.subscriber(seat.member.slot as usize);
        assert_eq!(slot.pool().load(Ordering::Acquire), 0);
        assert_eq!(topic.elsewhere().load(Ordering::Acquire), 0);
        world.leave(&b, &seat);
    }
    world.engine.take_notices();

    let seat = world
        .try_join(&mut b, wish_in("t", reliable(), gpu(1)))
        .unwrap();
    let reads = seat.reads.expect("a pool of its own");
    assert_eq!((seat.pool, reads.domain), (Some(own), gpu(1)));
    assert_ne!(reads.pool, own.pool);
    let slot = topic.subscriber(seat.member.slot as usize);
    assert_eq!(slot.pool().load(Ordering::Acquire), reads.pool + 1);
    let bit = 1 << seat.member.slot;
    assert_eq!(topic.elsewhere().load(Ordering::Acquire), bit);
    // The daemon tells the subscriber's session of both pools, so that the client maps them before the first message.
    let told: Vec<u32> = world
        .engine
        .take_notices()
        .iter()
        .filter_map(|(id, notice, _)| match notice {
            Notice::TopicPool { pool, .. } if *id == b.id => Some(pool.pool),
            _ => None,
        })
        .collect();
    assert!(told.contains(&reads.pool), "{told:?}");

    world.leave(&b, &seat);
    assert_eq!(topic.elsewhere().load(Ordering::Acquire), 0);
    let seat = world.join(&mut b, "t", best_effort());
    let slot = topic.subscriber(seat.member.slot as usize);
    assert_eq!(slot.pool().load(Ordering::Acquire), 0, "the next one's");
}

#[test]
fn a_subscriber_that_comes_first_does_not_decide_for_the_topic() {
    for (publishes, elsewhere) in [(Domain::Host, true), (gpu(1), false)] {
        let mut world = World::new();
        let (mut a, mut b) = (world.client("a"), world.client("b"));
        let seat = world
            .try_join(&mut b, wish_in("t", reliable(), gpu(1)))
            .unwrap();
        let reads = seat.reads.unwrap();
        assert_eq!(seat.pool, None);
        let topic = world.topic(&b, &seat);
        let bit = 1 << seat.member.slot;
        assert_eq!(topic.elsewhere().load(Ordering::Acquire), bit);
        let publisher = world
            .try_join(&mut a, wish_in("t", volatile(), publishes))
            .unwrap();
        assert_eq!(publisher.pool.unwrap().domain, publishes);
        assert_eq!(publisher.pool.unwrap().pool != reads.pool, elsewhere);
        assert_eq!(topic.elsewhere().load(Ordering::Acquire) == bit, elsewhere);
        let slot = topic.subscriber(seat.member.slot as usize);
        assert_eq!(slot.pool().load(Ordering::Acquire), reads.pool + 1);
        let row = &world.info(&a, "t").subscribers[0];
        assert_eq!(row.domain, elsewhere.then_some(gpu(1)));
    }
}

#[test]
fn a_topic_is_read_in_so_many_domains() {
    let mut world = World::new();
    let mut a = world.client("a");
    world.join(&mut a, "t", volatile());
    let read_in = |number| wish_in("t", best_effort(), gpu(number));
    let most = MAX_REPLICAS as u8;
    let seats: Vec<Seat> = (1..=most)
        .map(|number| world.try_join(&mut a, read_in(number)).unwrap())
        .collect();
    assert_eq!(
        world.refused(&a, read_in(most + 1)),
        RefusalCode::LimitReached
    );
    world.try_join(&mut a, read_in(1)).unwrap();
    world.join(&mut a, "t", best_effort());
    world.leave(&a, &seats[most as usize - 1]);
    world.try_join(&mut a, read_in(most + 1)).unwrap();
}

const LATER: Duration = Duration::from_secs(3);
const BYTES: u64 = 256;

/// A publisher on the host, a subscriber on the host (`here`), and one on a simulated GPU (`there`).
struct Cast {
    world: World,
    a: Sim,
    b: Sim,
    c: Sim,
    publisher: Seat,
    here: Seat,
    there: Seat,
    /// The pool in which `there` reads.
    pool: u32,
}

impl Cast {
    fn new(role: Role) -> Cast {
        let mut world = World::new();
        let (mut a, mut b, mut c) = (world.client("a"), world.client("b"), world.client("c"));
        let publisher = world.join(&mut a, "t", role);
        let here = world.join(&mut b, "t", best_effort());
        let there = world
            .try_join(&mut c, wish_in("t", best_effort(), gpu(1)))
            .unwrap();
        let pool = there.reads.unwrap().pool;
        Cast {
            world,
            a,
            b,
            c,
            publisher,
            here,
            there,
            pool,
        }
    }

    fn words(&self) -> Shared {
        self.b.holds[&self.publisher.member.zone].words()
    }

    fn reader_there(&self) -> Reader<Shared> {
        let mut reader = self.world.reader(&self.c, &self.there, false, Start::Live);
        reader.read_in(self.pool as u16);
        reader
    }

    /// Leased granules of each pool.
    fn leased(&mut self) -> Vec<u64> {
        let pools = self.world.pools(&self.b);
        pools
            .iter()
            .map(|pool| pool.leased_bytes / GRANULE_BYTES)
            .collect()
    }

    fn give_back(&mut self, pool: u32, range: Range) -> Result<(), RefusalCode> {
        let request = Request::Return {
            publisher: self.publisher.member,
            pool,
            ranges: vec![range],
        };
        let answer = self.world.ask(&self.a, request);
        answer.map(drop).map_err(|refusal| refusal.code)
    }
}

/// Publishes a message at `at` with a copy at `there` of `pool`.
fn publish(
    writer: &mut Writer<Shared>,
    tag: u64,
    at: u64,
    (pool, there): (u32, u64),
    points: [Point; 2],
) {
    let loan = writer.loan(at, BYTES).unwrap();
    let copy = Copied {
        loan: writer.loan_in(pool as u16, there, BYTES).unwrap(),
        point: points[1],
        part_bytes: 0,
    };
    let message = Message {
        offset: at,
        bytes: BYTES,
        tag,
        point: points[0],
        ..Message::default()
    };
    let read = match points[1].is_none() {
        true => points[0],
        false => points[1],
    };
    let with = With {
        tensor: None,
        metadata: None,
        read,
        copies: [copy],
    };
    writer
        .publish_with(loan, &message, with, &mut |_| {})
        .unwrap();
}

const NOTHING: [Point; 2] = [Point::NONE; 2];

#[test]
fn a_publisher_leases_where_its_topic_is_read() {
    let mut cast = Cast::new(volatile());
    let pool = cast.pool;
    let elsewhere = cast
        .world
        .try_join(&mut cast.b, wish_in("other", best_effort(), gpu(2)))
        .unwrap()
        .reads
        .unwrap()
        .pool;
    let (publisher, a) = (cast.publisher.clone(), &cast.a);
    for (refused, code) in [
        (elsewhere, RefusalCode::NotPermitted),
        (elsewhere + 1, RefusalCode::NotPermitted),
        (u32::MAX, RefusalCode::NotPermitted),
    ] {
        let refusal = cast.world.lease_in(a, &publisher, refused, 1).unwrap_err();
        assert_eq!(refusal.code, code, "{refusal}");
    }
    let segments = |pool, writable| Request::Segments {
        zone: publisher.member.zone,
        pool,
        from: 0,
        writable,
    };
    cast.world.ask(a, segments(pool, true)).unwrap();
    let refused = cast.world.refused(a, segments(elsewhere, true));
    assert_eq!(refused, RefusalCode::NotPermitted);
    let refused = cast.world.refused(&cast.c, segments(pool, true));
    assert_eq!(refused, RefusalCode::NotPermitted, "it reads there");
    cast.world.engine.take_notices();
    let own = cast.world.lease(a, &publisher, 1);
    let range = cast.world.lease_in(a, &publisher, pool, 2).unwrap();
    let grown: Vec<(SessionId, bool)> = cast
        .world
        .engine
        .take_notices()
        .iter()
        .filter_map(|(id, notice, fds)| match notice {
            Notice::PoolGrown {
                pool: grown,
                writable,
                ..
            } if *grown == pool => {
                assert_eq!(fds.len(), 1);
                Some((*id, *writable))
            }
            _ => None,
        })
        .collect();
    assert!(grown.contains(&(cast.a.id, true)), "{grown:?}");
    assert!(grown.contains(&(cast.c.id, false)), "{grown:?}");
    assert_eq!(cast.leased(), [1, 2, 0]);
    let info = cast.world.info(&cast.a, "t");
    assert_eq!(info.publishers[0].leased_bytes, 3 * GRANULE_BYTES);

    // The publisher cannot return granules with held replicas, nor return granules under another pool's number.
    let mut writer = cast.world.writer(&cast.a, &publisher);
    let mut reader = cast.reader_there();
    let there = range.offset + GRANULE_BYTES;
    publish(&mut writer, 5, own.offset, (pool, there), NOTHING);
    let taken = reader.poll().unwrap();
    let message = &taken.message;
    assert_eq!(
        (message.pool, message.offset, message.tag),
        (pool as u16, there, 5)
    );
    assert!(writer.evict_oldest(&mut |_| {}));
    let bad = Err(RefusalCode::BadRequest);
    assert_eq!(cast.give_back(pool, range), bad);
    assert_eq!(cast.give_back(0, range), bad, "that pool has other leases");
    assert_eq!(
        cast.give_back(9, range),
        Err(RefusalCode::NotFound),
        "no such pool"
    );
    taken.held.release();
    writer.collect_returned(&mut |_| {});
    // After the last reader in that pool has left, the publisher leases nothing new there, but can return what it has.
    cast.world.leave(&cast.c, &cast.there);
    let more = cast.world.lease_in(&cast.a, &publisher, pool, 1);
    assert_eq!(more.unwrap_err().code, RefusalCode::NotPermitted);
    cast.world.ask(&cast.a, segments(pool, true)).unwrap();
    assert_eq!(cast.give_back(pool, range), Ok(()));
    assert_eq!(cast.leased(), [1, 0, 0]);
    let refused = cast.world.refused(&cast.a, segments(pool, true));
    assert_eq!(refused, RefusalCode::NotPermitted);
}

#[test]
fn who_has_memory_of_a_pool_that_is_full_is_asked_for_it() {
    let mut cast = Cast::new(volatile());
    let publisher = cast.publisher.clone();
    let pool = cast.pool;
    cast.world
        .lease_in(&cast.a, &publisher, pool, POOL_GRANULES)
        .unwrap();
    let native = cast
        .world
        .try_join(&mut cast.b, wish_in("native", volatile(), gpu(1)))
        .unwrap();
    cast.world.engine.take_notices();
    let refusal = cast.world.lease_in(&cast.b, &native, pool, 1).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::PoolFull);
    let told: Vec<(SessionId, Notice)> = cast
        .world
        .engine
        .take_notices()
        .into_iter()
        .map(|(id, notice, _)| (id, notice))
        .collect();
    let short = Notice::PoolShort {
        zone: publisher.member.zone,
        pool,
    };
    assert_eq!(told, [(cast.a.id, short)]);
}

#[test]
fn copies_outlive_their_publisher_as_messages_do() {
    for leaves in [true, false] {
        let mut cast = Cast::new(lasting());
        let publisher = cast.publisher.clone();
        let mut writer = cast.world.writer(&cast.a, &publisher);
        let own = cast.world.lease(&cast.a, &publisher, 3);
        let copies = cast
            .world
            .lease_in(&cast.a, &publisher, cast.pool, 4)
            .unwrap();
        let mut reader = cast.reader_there();
        for tag in 0..2 {
            let at = tag * GRANULE_BYTES;
            let there = (cast.pool, copies.offset + at);
            publish(&mut writer, tag, own.offset + at, there, NOTHING);
        }
        // A loaned replica that is never published, and one that has the ring's bit but belongs to no message.
        let at = copies.offset + 2 * GRANULE_BYTES;
        let _begun = writer.loan_in(cast.pool as u16, at, BYTES).unwrap();
        let lost = writer.loan_in(cast.pool as u16, at, BYTES).unwrap();
        let region = region_of(&cast, &publisher);
        let word = region.holders(lost.block()).unwrap();
        let mut in_ring = Holders::load(word);
        in_ring.mask = 1 << RING_BIT;
        word.store(in_ring.pack(), Ordering::Release);
        let held = reader.poll().unwrap();
        assert_eq!(u32::from(held.message.pool), cast.pool);
        drop(writer);
        match leaves {
            true => cast.world.leave(&cast.a, &publisher),
            false => {
                let dead = std::mem::replace(&mut cast.a, cast.world.client("x"));
                cast.world.kill(dead);
            }
        }
        cast.world.pass(LATER);
        assert_eq!(cast.leased(), [2, 2], "what no message is in comes back");
        // A late joiner finds the replicas.
        let late = cast
            .world
            .try_join(&mut cast.c, wish_in("t", support::late(), gpu(1)))
            .unwrap();
        let mut second = cast.world.reader(&cast.c, &late, false, Start::Kept(9));
        second.read_in(cast.pool as u16);
        let found: Vec<(u32, u64)> = std::iter::from_fn(|| {
            let taken = second.poll()?;
            taken.held.release();
            Some((u32::from(taken.message.pool), taken.message.tag))
        })
        .collect();
        assert_eq!(found, [(cast.pool, 0), (cast.pool, 1)]);
        // Somebody needs room in the replicas' pool: the history is evicted, held replicas stay.
        let native = cast
            .world
            .try_join(&mut cast.b, wish_in("native", volatile(), gpu(1)))
            .unwrap();
        let most = POOL_GRANULES - 1;
        let range = cast.world.lease_in(&cast.b, &native, cast.pool, most);
        assert_eq!(range.unwrap().offset, GRANULE_BYTES);
        assert_eq!(cast.leased(), [0, 1 + most]);
        let refusal = cast.world.lease_in(&cast.b, &native, cast.pool, 1);
        assert_eq!(refusal.unwrap_err().code, RefusalCode::PoolFull);
        held.held.release();
        cast.world.lease_in(&cast.b, &native, cast.pool, 1).unwrap();
        assert!(!cast
            .world
            .info(&cast.b, "t")
            .publishers
            .iter()
            .any(|row| row.orphan));
    }
}

fn region_of(cast: &Cast, publisher: &Seat) -> RegionView<Shared> {
    let geometry = PublisherRegion {
        ring_capacity: publisher.ring.ring_capacity,
        block_capacity: publisher.ring.block_capacity,
    };
    RegionView::new(cast.words(), publisher.ring.region_offset, geometry).unwrap()
}

#[test]
fn a_dead_publishers_copies_say_what_became_of_them() {
    use Progress::{Aborted, Pending, Reached};
    let mut cast = Cast::new(lasting());
    let publisher = cast.publisher.clone();
    let zone = publisher.member.zone;
    let mut writer = cast.world.writer(&cast.a, &publisher);
    let own = cast.world.lease(&cast.a, &publisher, 1);
    let copies = cast
        .world
        .lease_in(&cast.a, &publisher, cast.pool, 1)
        .unwrap();
    let timeline_index = cast.world.take_timeline(&cast.a, zone);
    let words = cast.words();
    let view = timeline(&words, timeline_index).unwrap();
    let tenure = view.value().load(Ordering::Acquire) >> 32;
    let point = |count| Point {
        timeline: timeline_index,
        value: tenure << 32 | count,
    };
    // Per message: the point of the publisher's GPU work, then the point of the copy that fills the replica.
    let points = [
        [Point::NONE, Point::NONE],
        [Point::NONE, point(1)],
        [point(2), point(3)],
        [point(4), point(5)],
        [Point::NONE, point(6)],
    ];
    for (tag, points) in (0..).zip(&points[1..]) {
        let at = tag * BYTES;
        let there = (cast.pool, copies.offset + at);
        publish(&mut writer, tag, own.offset + at, there, *points);
    }
    view.value().store(point(4).value, Ordering::Release);
    let mut reader = cast.reader_there();
    let first = reader.poll().unwrap();
    drop(writer);
    let dead = std::mem::replace(&mut cast.a, cast.world.client("x"));
    cast.world.kill(dead);
    assert_eq!(progress(&words, first.message.point), Reached);
    first.held.release();
    // What a later owner writes to the timeline changes nothing.
    for (reached, value) in [(9, 1 << 32), (77 << 32, 78 << 32 | 9)] {
        view.reached().store(reached, Ordering::Release);
        view.value().store(value, Ordering::Release);
        for (reads, expected) in [
            (gpu(1), [Reached, Reached, Aborted, Aborted]),
            (Domain::Host, [Reached, Reached, Reached, Reached]),
        ] {
            let late = wish_in("t", late(), reads);
            let seat = cast.world.try_join(&mut cast.c, late).unwrap();
            let mut late = cast.world.reader(&cast.c, &seat, false, Start::Kept(9));
            if let Some(pool) = seat.reads {
                late.read_in(pool.pool as u16);
            }
            let found: Vec<Progress> = std::iter::from_fn(|| {
                let taken = late.poll()?;
                let found = progress(&words, taken.message.point);
                taken.held.release();
                Some(found)
            })
            .collect();
            assert_eq!(found, expected, "{reads}");
            assert!(!found.contains(&Pending));
            cast.world.leave(&cast.c, &seat);
        }
    }
}

#[test]
fn who_reads_where_and_what_is_leased_there_outlives_the_daemon() {
    for claims_copies in [true, false] {
        let mut cast = Cast::new(volatile());
        let publisher = cast.publisher.clone();
        let zone = publisher.member.zone;
        let own = cast.world.lease(&cast.a, &publisher, 1);
        let pool = cast.pool;
        let copies = cast.world.lease_in(&cast.a, &publisher, pool, 2).unwrap();
        let path = "copied once".to_owned();
        let said = Request::Path {
            member: cast.there.member,
            path: path.clone(),
        };
        cast.world.ask(&cast.c, said.clone()).unwrap();
        assert_eq!(cast.world.info(&cast.b, "t").subscribers[1].path, path);
        let [host, device] = [0, pool].map(|pool| {
            let request = Request::Segments {
                zone,
                pool,
                from: 0,
                writable: true,
            };
            cast.world.ask_with(&cast.a, request, vec![]).unwrap().1
        });
        // As if the predecessor had died halfway, or a client had overwritten these words.
        let topic = cast.world.topic(&cast.b, &cast.here);
        let slot = topic.subscriber(cast.there.member.slot as usize);
        slot.pool().store(0, Ordering::Release);
        topic.elsewhere().store(u64::MAX, Ordering::Release);
        cast.world.restart();
        cast.a.segments = host;
        cast.world.reconnect(&mut cast.a);
        assert!(cast.world.hand_back(&cast.a, zone).unwrap());
        cast.world.hand_back_segments(&cast.a, zone).unwrap();
        let request = Request::HandBackSegments {
            zone,
            pool,
            from: 0,
        };
        cast.world.ask_with(&cast.a, request, device).unwrap();
        assert_eq!(slot.pool().load(Ordering::Acquire), pool + 1);
        let bit = 1 << cast.there.member.slot;
        assert_eq!(topic.elsewhere().load(Ordering::Acquire), bit);
        let claim = |pool, ranges| Request::Claim {
            member: publisher.member,
            pool,
            ranges,
        };
        for (pool, range) in [(0, copies), (9, own), (u32::MAX, own)] {
            let answer = cast.world.ask(&cast.a, claim(pool, vec![range]));
            assert!(answer.is_err(), "{pool} {range:?}");
        }
        cast.world.ask(&cast.a, claim(0, vec![own])).unwrap();
        if claims_copies {
            cast.world.ask(&cast.a, claim(pool, vec![copies])).unwrap();
        }
        let done = Request::HandedBack {
            zone,
            doorbells: vec![],
            timelines: vec![],
        };
        cast.world.ask(&cast.a, done).unwrap();
        let (here, there) = (cast.here.member, cast.there.member);
        cast.world
            .hand_back_all(&mut cast.b, zone, &[(here, vec![])]);
        cast.world
            .hand_back_all(&mut cast.c, zone, &[(there, vec![])]);
        let left = if claims_copies { 2 } else { 0 };
        assert_eq!(cast.leased(), [1, left]);
        cast.world
            .lease_in(&cast.a, &publisher, pool, 1)
            .expect("a subscriber of the topic reads there still");
        let row = &cast.world.info(&cast.b, "t").subscribers[1];
        assert_eq!(row.domain, Some(gpu(1)));
        assert_ne!(row.path, path, "what it said is forgotten");
        cast.world.ask(&cast.c, said).unwrap();
        assert_eq!(cast.world.info(&cast.b, "t").subscribers[1].path, path);
    }
}

#[test]
fn copies_whose_memory_is_lost_are_not_found() {
    let mut cast = Cast::new(lasting());
    let publisher = cast.publisher.clone();
    let zone = publisher.member.zone;
    let own = cast.world.lease(&cast.a, &publisher, 1);
    let copies = cast
        .world
        .lease_in(&cast.a, &publisher, cast.pool, 1)
        .unwrap();
    let mut writer = cast.world.writer(&cast.a, &publisher);
    for tag in 0..2 {
        let at = tag * BYTES;
        let there = (cast.pool, copies.offset + at);
        publish(&mut writer, tag, own.offset + at, there, NOTHING);
    }
    drop(writer);
    let here = cast.here.clone();
    let mut b = std::mem::replace(&mut cast.b, cast.world.client("x"));
    cast.world.fetch_segments(&mut b, &here, false);
    cast.world.restart();
    // Only `a` and `c` could hand back the replicas' pool, and they die with the daemon.
    let Cast { a, c, .. } = cast;
    drop((a, c));
    let mut world = cast.world;
    world.hand_back_all(&mut b, zone, &[(here.member, vec![])]);
    world.pass(LATER);
    let pools: Vec<(u32, u64)> = world
        .pools(&b)
        .iter()
        .map(|pool| (pool.segments, pool.leased_bytes / GRANULE_BYTES))
        .collect();
    assert_eq!(pools, [(1, 1), (0, 0)]);
    let seat = world
        .try_join(&mut b, wish_in("t", late(), gpu(1)))
        .unwrap();
    let mut reader = world.reader(&b, &seat, false, Start::Kept(9));
    reader.read_in(seat.reads.unwrap().pool as u16);
    let found: Vec<(u16, u64)> = std::iter::from_fn(|| {
        let taken = reader.poll()?;
        taken.held.release();
        Some((taken.message.pool, taken.message.tag))
    })
    .collect();
    assert_eq!(found, [(0, 0), (0, 1)]);
}

#[test]
fn messages_whose_memory_is_lost_are_gone() {
    let mut cast = Cast::new(lasting());
    let publisher = cast.publisher.clone();
    let zone = publisher.member.zone;
    let own = cast.world.lease(&cast.a, &publisher, 1);
    let mut writer = cast.world.writer(&cast.a, &publisher);
    let loan = writer.loan(own.offset, BYTES).unwrap();
    let message = Message {
        offset: own.offset,
        bytes: BYTES,
        ..Message::default()
    };
    writer.publish(loan, &message, &mut |_| {}).unwrap();
    drop(writer);
    cast.world.restart();
    let Cast {
        a, mut b, c, here, ..
    } = cast;
    drop((a, c));
    let mut world = cast.world;
    // `b` fetched no segment of the topic's pool, so nobody hands back the message's memory.
    world.hand_back_all(&mut b, zone, &[(here.member, vec![])]);
    world.pass(LATER);
    assert_eq!(world.leased_granules(&b), 0);
    let seat = world.join(&mut b, "t", late());
    let mut reader = world.reader(&b, &seat, false, Start::Kept(9));
    assert!(reader.poll().is_none(), "its bytes are somebody else's");
    assert!(world.info(&b, "t").publishers.is_empty());
}

#[test]
fn a_pinned_pool_keeps_its_pages() {
    for pinned in [false, true] {
        let mut cast = Cast::new(volatile());
        let publisher = cast.publisher.clone();
        let zone = publisher.member.zone;
        let pin = |pool| Request::Pin { zone, pool };
        if pinned {
            cast.world.ask(&cast.c, pin(0)).unwrap();
            cast.world.ask(&cast.b, pin(0)).unwrap();
        }
        for (pool, code) in [
            (cast.pool, RefusalCode::BadRequest),
            (7, RefusalCode::NotFound),
        ] {
            assert_eq!(cast.world.refused(&cast.c, pin(pool)), code);
        }
        let write = |cast: &mut Cast, text: &[u8; 4]| {
            let range = cast.world.lease(&cast.a, &publisher, 1);
            assert_eq!(range.offset, 0);
            rustix::io::pwrite(&cast.a.segments[0], text, 0).unwrap();
            cast.give_back(0, range).unwrap();
            let mut found = [1; 4];
            rustix::io::pread(&cast.a.segments[0], &mut found, 0).unwrap();
            found == *text
        };
        let range = cast.world.lease(&cast.a, &publisher, 1);
        cast.world.fetch_segments(&mut cast.a, &publisher, true);
        cast.give_back(0, range).unwrap();
        assert_eq!(write(&mut cast, b"here"), pinned);
        let warns = |cast: &mut Cast| {
            let rows = cast.world.pools(&cast.b);
            rows[0].warnings.iter().any(|text| text.contains("driver"))
        };
        assert_eq!(warns(&mut cast), pinned);
        // The client that pinned the pool dies, and so does the daemon.
        let dead = std::mem::replace(&mut cast.c, cast.world.client("x"));
        cast.world.kill(dead);
        assert_eq!(write(&mut cast, b"left"), pinned);
        cast.world.restart();
        cast.world
            .hand_back_all(&mut cast.a, zone, &[(publisher.member, vec![])]);
        let here = cast.here.member;
        cast.world
            .hand_back_all(&mut cast.b, zone, &[(here, vec![])]);
        assert_eq!(write(&mut cast, b"next"), pinned);
        assert_eq!(warns(&mut cast), pinned);
    }
}

#[test]
fn a_path_is_a_subscribers_own_and_short() {
    let mut cast = Cast::new(volatile());
    let say = |member, path: &str| Request::Path {
        member,
        path: path.to_owned(),
    };
    let (own, others) = (cast.there.member, cast.here.member);
    let long = "x".repeat(MAX_PATH_BYTES + 1);
    for path in ["a\nb", "\u{1b}[2J", &long] {
        let code = cast.world.refused(&cast.c, say(own, path));
        assert_eq!(code, RefusalCode::BadRequest, "{path:?}");
    }
    let code = cast.world.refused(&cast.c, say(others, "ha"));
    assert_eq!(code, RefusalCode::NotFound);
    let code = cast
        .world
        .refused(&cast.a, say(cast.publisher.member, "ha"));
    assert_eq!(code, RefusalCode::BadRequest);
    cast.world.ask(&cast.c, say(own, &long[1..])).unwrap();
    let paths: Vec<String> = cast
        .world
        .info(&cast.b, "t")
        .subscribers
        .into_iter()
        .map(|row| row.path)
        .collect();
    assert_eq!(paths, ["zero copy", &long[1..]]);
}

#[test]
fn where_blocks_are_said_to_be_keeps_nothing_of_others() {
    for lie in [1, 2, 3, 17, u32::MAX] {
        let mut cast = Cast::new(lasting());
        let publisher = cast.publisher.clone();
        let mut writer = cast.world.writer(&cast.a, &publisher);
        let own = cast.world.lease(&cast.a, &publisher, 1);
        let copies = cast
            .world
            .lease_in(&cast.a, &publisher, cast.pool, 1)
            .unwrap();
        let other = cast
            .world
            .try_join(&mut cast.b, wish_in("native", volatile(), gpu(1)))
            .unwrap();
        let others = cast.world.lease(&cast.b, &other, 1);
        let there = (cast.pool, copies.offset);
        publish(&mut writer, 1, own.offset, there, NOTHING);
        publish(&mut writer, 2, own.offset + BYTES, there, NOTHING);
        let region = region_of(&cast, &publisher);
        for block in 0..8 {
            let entry = region.block(block).unwrap();
            entry.pool().store(lie, Ordering::Release);
            entry.replica_of().store(u64::from(lie), Ordering::Release);
            entry.offset().store(others.offset, Ordering::Release);
            entry.bytes().store(u64::MAX, Ordering::Release);
        }
        drop(writer);
        let dead = std::mem::replace(&mut cast.a, cast.world.client("x"));
        cast.world.kill(dead);
        cast.world.pass(LATER);
        // Leases of other publishers stay, and the rest of the pool is free for them.
        let rest = POOL_GRANULES - 2;
        let range = cast.world.lease_in(&cast.b, &other, cast.pool, rest);
        assert_eq!(range.unwrap().offset, 2 * GRANULE_BYTES, "{lie}");
        assert!(cast.leased()[1] > rest, "{lie}");
        cast.world.leave(&cast.b, &other);
        cast.world.pass(LATER);
        let owned = cast.world.leased_granules(&cast.b);
        assert!(owned <= 2, "{lie}: {owned}");
        let dead = std::mem::replace(&mut cast.b, cast.world.client("y"));
        cast.world.kill(dead);
        let reader = std::mem::replace(&mut cast.c, cast.world.client("z"));
        cast.world.kill(reader);
    }
}
