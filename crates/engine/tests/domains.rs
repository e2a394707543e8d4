//! Subscribers that read in another domain than the topic's.

mod support;

use rgaps_layout::{Domain, MAX_REPLICAS};
use rgaps_session::{Notice, RefusalCode};
use rgaps_sync::atomic::Ordering;
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

    // The topic's domain, or none: as if there were no other.
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
    // Its session is told of both, to have them mapped when the first message comes.
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
