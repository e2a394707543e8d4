//! Replicas of messages in other pools: which reader gets which, how long each lives, and what remains of them when
//! their publisher has died.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use rgaps_layout::{ReplicaPair, MAX_REPLICAS, POINT_ABORTED, POINT_NONE, REPLICA_PAIRS};
use rgaps_topic::{
    abandon, evict_lost, evict_through, live_blocks, queued_points, replicas, settle_points,
    timeline, Copied, Holders, Message, Point, PointSource, Reader, Shared, Start, With, Writer,
};
use std::sync::atomic::Ordering::SeqCst;

/// The pool of the messages, and two pools of replicas.
const OWN: u16 = 3;
const A: u16 = 0;
const B: u16 = 9;

fn at(count: u64) -> Point {
    Point {
        timeline: 5,
        value: 1 << 32 | count,
    }
}

/// Publishes a message at offset `tag * 4096` of its pool, with replicas at the same offset of `pools`.
fn publish(
    writer: &mut Writer<Shared>,
    tag: u64,
    point: Point,
    pools: &[(u16, Point)],
    freed: &mut Vec<u32>,
) {
    let offset = tag * 4096;
    let loan = writer.loan(offset, 256).unwrap();
    let copies: Vec<Copied> = pools
        .iter()
        .map(|(pool, point)| Copied {
            loan: writer.loan_in(*pool, offset, 256).unwrap(),
            point: *point,
            part_bytes: 0,
        })
        .collect();
    let message = Message {
        pool: OWN,
        offset,
        bytes: 256,
        tag,
        point,
        ..Message::default()
    };
    let with = With {
        tensor: None,
        metadata: None,
        read: Point::NONE,
        copies,
    };
    let freed = &mut |block| freed.push(block);
    writer.publish_with(loan, &message, with, freed).unwrap();
}

/// Receives and releases all messages. Returns the pool and tag of each.
fn read(reader: &mut Reader<Shared>) -> Vec<(u16, u64)> {
    let found = std::iter::from_fn(|| {
        let taken = reader.poll()?;
        taken.held.release();
        assert_eq!(taken.message.offset, taken.message.tag * 4096);
        Some((taken.message.pool, taken.message.tag))
    });
    found.collect()
}

const HERE: &[(u16, Point)] = &[(A, Point::NONE)];

#[test]
fn who_reads_in_a_pool_gets_the_copy_there() {
    let fixture = Fixture::new(4, 3);
    let mut writer = fixture.writer(0, 3);
    let mut readers: Vec<Reader<Shared>> = (0..4)
        .map(|slot| fixture.reader(slot, false, Start::Live))
        .collect();
    for (reader, pool) in readers[1..].iter_mut().zip([A, B, OWN]) {
        reader.read_in(pool);
    }
    let freed = &mut Vec::new();
    let both = [(A, Point::NONE), (B, Point::NONE)];
    publish(&mut writer, 0, Point::NONE, &both, freed);
    publish(&mut writer, 1, Point::NONE, &both[..1], freed);
    publish(&mut writer, 2, Point::NONE, &[], freed);
    let expected = [
        [(OWN, 0), (OWN, 1), (OWN, 2)],
        [(A, 0), (A, 1), (OWN, 2)],
        [(B, 0), (OWN, 1), (OWN, 2)],
        [(OWN, 0), (OWN, 1), (OWN, 2)],
    ];
    for (reader, expected) in readers.iter_mut().zip(expected) {
        assert_eq!(read(reader), expected);
    }
    assert!(freed.is_empty());
}

#[test]
fn each_copy_lives_as_long_as_its_readers() {
    let fixture = Fixture::new(4, 1);
    let mut writer = fixture.writer(0, 1);
    let (mut here, mut there) = (
        fixture.reader(0, false, Start::Live),
        fixture.reader(1, false, Start::Live),
    );
    there.read_in(A);
    let mut freed = Vec::new();
    publish(&mut writer, 0, Point::NONE, HERE, &mut freed);
    let [own, copy] = [here.poll().unwrap(), there.poll().unwrap()];
    assert_eq!((own.message.pool, copy.message.pool), (OWN, A));
    // The next message pushes this one out of the ring.
    publish(&mut writer, 1, Point::NONE, &[], &mut freed);
    assert_eq!(freed, []);
    own.held.release();
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed, [0], "the copy is read still");
    copy.held.release();
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed, [0, 1]);
    // A freed block is reused for a message without a replica, and `there` does not take it for one.
    publish(&mut writer, 2, Point::NONE, &[], &mut freed);
    assert_eq!(read(&mut there), [(OWN, 2)]);
}

#[test]
fn more_copies_than_a_descriptor_names_are_given_back() {
    let fixture = Fixture::new(4, 2);
    let mut writer = fixture.writer(0, 2);
    let mut freed = Vec::new();
    let pools: Vec<(u16, Point)> = (10..11 + MAX_REPLICAS as u16)
        .map(|pool| (pool, Point::NONE))
        .collect();
    publish(&mut writer, 0, Point::NONE, &pools, &mut freed);
    assert_eq!(freed.len(), 1);
    for (pool, copied) in [(10, true), (17, true), (18, false)] {
        let mut reader = fixture.reader(0, false, Start::Kept(9));
        reader.read_in(pool);
        let expected = if copied { pool } else { OWN };
        assert_eq!(read(&mut reader), [(expected, 0)]);
    }
}

#[test]
fn a_dead_publishers_copies_leave_the_ring_with_their_messages() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut freed = Vec::new();
    for tag in 0..3 {
        publish(&mut writer, tag, Point::NONE, HERE, &mut freed);
    }
    // A replica that the publisher had only begun, and one that it was about to announce.
    let _begun = writer.loan_in(A, 9 * 4096, 256).unwrap();
    let almost = writer.loan_in(A, 9 * 4096, 256).unwrap().block();
    let region = fixture.region(0);
    let word = region.holders(almost).unwrap();
    let mut holders = Holders::load(word);
    holders.mask = 1 << rgaps_layout::RING_BIT;
    word.store(holders.pack(), SeqCst);
    let entry = region.block(almost).unwrap();
    entry.replica_of().store(4, SeqCst);

    let slot = writer.topic().publisher(0);
    drop(writer);
    let (incarnation, places) = (fixture.incarnation(0), || {
        let live = live_blocks(&slot, &region);
        live.map(|(pool, offset, _)| (pool, offset / 4096))
            .collect::<Vec<_>>()
    });
    let left = abandon(&slot, &region, incarnation, 0);
    assert_eq!((left.tail, left.head, left.freed), (0, 3, 2));
    let both = |tag| [(None, tag), (Some(u32::from(A)), tag)];
    assert_eq!(places(), [both(0), both(1), both(2)].concat());
    let mut reader = fixture.reader(0, false, Start::Kept(9));
    reader.read_in(A);
    let first = reader.poll().unwrap();
    evict_through(&slot, &region, incarnation, 0..2);
    assert_eq!(places(), [vec![both(0)[1]], both(2).to_vec()].concat());
    first.held.release();
    assert_eq!(read(&mut reader), [(A, 2)], "the second has gone");
    // A daemon may die half way through, and its successor does it all again.
    let again = abandon(&slot, &region, incarnation, 0);
    assert_eq!((again.tail, again.head, again.freed), (2, 3, 0));
    evict_through(&slot, &region, incarnation, 2..3);
    assert_eq!(places(), []);
}

#[test]
fn copies_in_memory_that_is_lost_are_not_found() {
    for (lost_pool, lost_from, left) in [
        (Some(u32::from(A)), 1, [(A, 0), (OWN, 1), (OWN, 2)].to_vec()),
        (
            Some(u32::from(A)),
            0,
            [(OWN, 0), (OWN, 1), (OWN, 2)].to_vec(),
        ),
        (Some(u32::from(B)), 0, [(A, 0), (A, 1), (A, 2)].to_vec()),
        (None, 2, vec![]),
        (None, 3, [(A, 0), (A, 1), (A, 2)].to_vec()),
    ] {
        let fixture = Fixture::new(4, 4);
        let mut writer = fixture.writer(0, 4);
        for tag in 0..3 {
            publish(&mut writer, tag, Point::NONE, HERE, &mut Vec::new());
        }
        let slot = writer.topic().publisher(0);
        drop(writer);
        let (region, incarnation) = (fixture.region(0), fixture.incarnation(0));
        let found = abandon(&slot, &region, incarnation, 0);
        let is_lost = |pool, offset, bytes| pool == lost_pool && offset + bytes > lost_from * 4096;
        let range = found.tail..found.head;
        let tail = evict_lost(&slot, &region, incarnation, range, is_lost);
        assert_eq!(tail, 3 - left.len() as u64);
        let mut reader = fixture.reader(0, false, Start::Kept(9));
        reader.read_in(A);
        assert_eq!(read(&mut reader), left);
        let again = abandon(&slot, &region, incarnation, 0);
        assert_eq!((again.tail, again.freed), (tail, 0));
        evict_through(&slot, &region, incarnation, tail..3);
        assert_eq!(live_blocks(&slot, &region).count(), 0);
    }
}

#[test]
fn a_copys_point_is_settled_where_it_stands() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let copied = |tag, point, copy, writer: &mut _| {
        publish(writer, tag, point, &[(A, copy)], &mut Vec::new());
    };
    copied(0, Point::NONE, at(1), &mut writer);
    copied(1, at(2), at(3), &mut writer);
    copied(2, Point::NONE, Point::NONE, &mut writer);
    let (region, incarnation) = (fixture.region(0), fixture.incarnation(0));
    let queued: Vec<(PointSource, Point)> = queued_points(&region, incarnation, 0..9).collect();
    let expected = [
        (PointSource::Copy(1), at(1)),
        (PointSource::Descriptor(1), at(2)),
        (PointSource::Copy(3), at(3)),
    ];
    assert_eq!(queued, expected);
    let view = timeline(&fixture.shared, 5).unwrap();
    view.value().store(at(1).value, SeqCst);
    let value = |block| region.block(block).unwrap().point().load(SeqCst);
    assert_eq!(settle_points(&region, incarnation, 0..9, |_| true), 2);
    assert_eq!((value(1), value(3)), (POINT_NONE, at(3).value));
    assert_eq!(settle_points(&region, incarnation, 0..9, |_| false), 0);
    assert_eq!((value(1), value(3)), (POINT_NONE, POINT_ABORTED));
    assert_eq!(queued_points(&region, incarnation, 0..9).count(), 0);
    let mut reader = fixture.reader(0, false, Start::Kept(9));
    reader.read_in(A);
    let points: Vec<u64> = std::iter::from_fn(|| {
        let taken = reader.poll()?;
        taken.held.release();
        Some(taken.message.point.value)
    })
    .collect();
    assert_eq!(points, [POINT_NONE, POINT_ABORTED, POINT_NONE]);
}

#[test]
fn a_descriptor_that_names_what_is_no_copy_of_its_message_names_none() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut freed = Vec::new();
    publish(&mut writer, 0, Point::NONE, HERE, &mut freed);
    publish(&mut writer, 1, Point::NONE, HERE, &mut freed);
    let region = fixture.region(0);
    assert_eq!(replicas(&region, 1).collect::<Vec<_>>(), [(3, 0)]);
    for named in [1, 2, 4, 0, 65, u32::MAX] {
        let pair = ReplicaPair {
            first: named,
            second: named,
        };
        for index in 0..REPLICA_PAIRS {
            let descriptor = fixture.descriptor(0, 1);
            descriptor.replicas(index).store(pair.to_word(), SeqCst);
        }
        let mut reader = fixture.reader(0, false, Start::Kept(1));
        reader.read_in(A);
        let expected = if named == 4 { A } else { OWN };
        assert_eq!(read(&mut reader), [(expected, 1)], "{named}");
        let found = replicas(&region, 1).count();
        assert_eq!(found, if named == 4 { MAX_REPLICAS } else { 0 }, "{named}");
    }
}
