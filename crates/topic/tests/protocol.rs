//! The protocol in one process: order, overruns, reliability, and cleaning up after dead members.
#![cfg(not(loom))]

mod fixture;

use fixture::Fixture;
use rgaps_layout::{
    DType, PartEntry, MAX_ATTACHMENT_BYTES, MAX_DIMS, MAX_MESSAGE_PARTS, PART_ENTRY_BYTES,
};
use rgaps_topic::{
    abandon, clear_holder, clear_strangers, evict_through, live_blocks, DescriptorView, Holders,
    Message, Metadata, Point, Reader, Shared, Start, Tensor, With, Writer,
};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

fn message(tag: u64) -> Message {
    Message {
        tag,
        bytes: 10,
        offset: tag * 256,
        ..Message::default()
    }
}

#[test]
fn messages_arrive_in_order_with_all_their_fields() {
    let fixture = Fixture::new(4, 8);
    let mut writer = fixture.writer(0, 8);
    let mut reader = fixture.reader(0, false, Start::Live);
    let mut shape = [0; MAX_DIMS];
    shape[..3].copy_from_slice(&[3, 1080, 1920]);
    let mut strides = [0; MAX_DIMS];
    strides[..3].copy_from_slice(&[1080 * 1920, 1920, -1]);
    let tensor = Tensor {
        dtype: DType::F32,
        ndim: 3,
        shape,
        strides,
    };
    let sent = Message {
        pool: 7,
        offset: 1 << 39,
        bytes: 1 << 33,
        publish_ns: 5,
        missed_so_far: 0,
        point: Point::NONE,
        tag: 6,
    };
    for (sequence, tensor) in [None, Some(&tensor), None].into_iter().enumerate() {
        let with = With {
            tensor,
            metadata: None,
            read: Point::NONE,
            copies: [],
        };
        let loan = writer.loan(1 << 39, 1 << 33).unwrap();
        writer
            .publish_with(loan, &sent, with, &mut |_| panic!("nothing is freed"))
            .unwrap();
        let taken = reader.poll().unwrap();
        assert_eq!(taken.message, sent);
        assert_eq!(reader.tensor(), tensor);
        assert_eq!((taken.sequence, taken.missed), (sequence as u64, 0));
        taken.held.release();
        assert!(reader.poll().is_none());
    }
}

#[test]
fn a_reader_that_lags_is_told_how_much_it_missed_and_each_block_is_freed_once() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(3, false, Start::Live);
    let mut freed = Vec::new();
    let mut publish = |tag| {
        let mut free = |block| freed.push(block);
        writer.collect_returned(&mut free);
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(tag), &mut free).unwrap();
    };
    publish(0);
    let first = reader.poll().unwrap();
    (1..100).for_each(&mut publish);
    // Messages 1..96 have left the ring. The reader holds message 0, so it is intact.
    let next = reader.poll().unwrap();
    assert_eq!((next.message.tag, next.sequence, next.missed), (96, 96, 95));
    first.held.release();
    next.held.release();
    (100..200).for_each(&mut publish);
    assert_eq!(freed.len(), 200 - 4, "all but the history are free");
    assert_eq!(reader.missed(), 95);
}

#[test]
fn a_reliable_reader_holds_the_publisher_back_and_a_new_one_counts_from_its_start() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(2, 4);
    let mut reader = fixture.reader(0, true, Start::Live);
    for tag in 0..4 {
        assert!(writer.has_room(10));
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(tag), &mut |_| ()).unwrap();
    }
    assert!(!writer.has_room(10));
    assert_eq!(writer.held_back_by(10), 1);
    reader.poll().unwrap().held.release();
    assert!(writer.has_room(10));
    let late = fixture.reader(1, true, Start::Live);
    fixture.bump_epoch();
    for tag in 4..8 {
        while !writer.has_room(10) {
            assert_eq!(writer.held_back_by(10), 1, "the late one is not behind");
            reader.poll().unwrap().held.release();
        }
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(tag), &mut |_| ()).unwrap();
    }
    drop(late);
    assert_eq!(reader.missed(), 0);
}

#[test]
fn late_joiners_get_what_is_kept_in_order() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    for tag in 0..10 {
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(tag), &mut |_| ()).unwrap();
    }
    for (n, expected) in [(u64::MAX, 6..10), (2, 8..10), (1, 9..10)] {
        let mut reader = fixture.reader(0, false, Start::Kept(n));
        for tag in expected {
            let taken = reader.poll().unwrap();
            assert_eq!((taken.message.tag, taken.missed), (tag, 0));
            taken.held.release();
        }
        assert!(reader.poll().is_none());
    }
}

#[test]
fn a_history_limited_in_bytes_pushes_out_as_many_as_it_must() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer_limited(0, 4, 100);
    let mut reader = fixture.reader(0, true, Start::Live);
    let mut publish = |bytes| {
        let room = writer.has_room(bytes);
        if room {
            let loan = writer.loan(0, 256).unwrap();
            let message = Message {
                bytes,
                ..Message::default()
            };
            writer.publish(loan, &message, &mut |_| ()).unwrap();
        }
        (room, writer.retained())
    };
    assert_eq!(publish(40), (true, 1));
    assert_eq!(publish(40), (true, 2));
    assert_eq!(publish(90), (false, 2), "both must go, neither is read");
    reader.poll().unwrap().held.release();
    assert_eq!(publish(90), (false, 2));
    reader.poll().unwrap().held.release();
    assert_eq!(publish(90), (true, 1));
    assert_eq!(publish(10), (true, 2));
}

#[test]
fn the_bits_of_a_dead_subscriber_are_cleared_and_its_blocks_come_back() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 1);
    let mut dead = fixture.reader(5, false, Start::Live);
    let mut alive = fixture.reader(6, false, Start::Live);
    let mut freed = 0;
    let loan = writer.loan(0, 256).unwrap();
    writer
        .publish(loan, &message(0), &mut |_| freed += 1)
        .unwrap();
    let _never_released = dead.poll().unwrap();
    let held = alive.poll().unwrap();
    writer.evict_oldest(&mut |_| freed += 1);
    assert_eq!(
        clear_holder(&writer.topic().publisher(0), &fixture.region(0), 5),
        0
    );
    assert_eq!(
        clear_holder(&writer.topic().publisher(0), &fixture.region(0), 5),
        0
    );
    held.held.release();
    writer.collect_returned(&mut |_| freed += 1);
    writer.collect_returned(&mut |_| freed += 1);
    assert_eq!(freed, 1);
}

#[test]
fn a_holder_that_died_before_it_announced_the_return_is_swept() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 1);
    let loan = writer.loan(0, 256).unwrap();
    let block = loan.block();
    writer
        .publish(loan, &message(0), &mut |_| panic!())
        .unwrap();
    // The dead holder emptied the word, but did not mark the block as returned.
    let word = fixture
        .region(0)
        .holders(block)
        .unwrap()
        .load(std::sync::atomic::Ordering::SeqCst);
    let ended = Holders {
        generation: Holders::unpack(word).generation + 1,
        mask: 0,
    };
    fixture
        .region(0)
        .holders(block)
        .unwrap()
        .store(ended.pack(), std::sync::atomic::Ordering::SeqCst);
    let mut freed = Vec::new();
    writer.collect_returned(&mut |block| freed.push(block));
    assert!(freed.is_empty());
    writer
        .topic()
        .publisher(0)
        .sweep()
        .fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    writer.collect_returned(&mut |block| freed.push(block));
    assert_eq!(freed, [block]);
    writer.evict_oldest(&mut |_| panic!("freed twice"));
}

#[test]
fn a_dead_publisher_leaves_its_history_and_nothing_else() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(0, false, Start::Live);
    for tag in 0..6 {
        let loan = writer.loan(tag * 4096, 4096).unwrap();
        writer.publish(loan, &message(tag), &mut |_| ()).unwrap();
    }
    let _open_loan = writer.loan(1 << 20, 4096).unwrap();
    let slot = writer.topic().publisher(0);
    drop(writer);
    let region = fixture.region(0);
    let left = abandon(&slot, &region, fixture.incarnation(0), 0);
    assert_eq!((left.tail, left.head, left.freed), (2, 6, 1));
    assert_eq!(live_blocks(&slot, &region).count(), 4);
    let held = reader.poll().unwrap();
    assert_eq!(held.message.tag, 2);
    evict_through(&slot, &region, fixture.incarnation(0), left.tail..left.head);
    let live: Vec<_> = live_blocks(&slot, &region).collect();
    assert_eq!(live, [(None, 2 * 4096, 4096)], "what is held stays");
    held.held.release();
    assert_eq!(live_blocks(&slot, &region).count(), 0);
}

#[test]
fn bits_of_nobody_are_cleared_and_those_of_holders_stay() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(3, false, Start::Live);
    for tag in 0..3 {
        let loan = writer.loan(tag * 4096, 4096).unwrap();
        writer.publish(loan, &message(tag), &mut |_| ()).unwrap();
    }
    let first = reader.poll().unwrap();
    let slot = writer.topic().publisher(0);
    drop(writer);
    let region = fixture.region(0);
    let left = abandon(&slot, &region, fixture.incarnation(0), 0);
    evict_through(&slot, &region, fixture.incarnation(0), left.tail..left.head);
    // A misbehaving peer sets bits of absent subscribers on a held block and a free one.
    for block in [0, 1] {
        let word = region.holders(block).unwrap();
        let now = Holders::load(word);
        let mask = now.mask | 1 << 40 | 1 << 7;
        word.store(Holders { mask, ..now }.pack(), SeqCst);
    }
    assert_eq!(live_blocks(&slot, &region).count(), 2);
    assert_eq!(
        clear_strangers(&slot, &region, 1 << 3),
        1,
        "nobody had the second"
    );
    assert_eq!(
        live_blocks(&slot, &region).collect::<Vec<_>>(),
        [(None, 0, 4096)]
    );
    assert_eq!(clear_strangers(&slot, &region, 1 << 3), 0);
    first.held.release();
    assert_eq!(
        live_blocks(&slot, &region).count(),
        0,
        "its holder's bit was the last"
    );
}

#[test]
fn cursors_that_lie_do_not_hold_a_reader_or_the_daemon() {
    use std::sync::atomic::Ordering::SeqCst;
    for (tail, head) in [
        (9, 3),
        (0, u64::MAX),
        (u64::MAX, u64::MAX),
        (1 << 40, 1 << 41),
    ] {
        let fixture = Fixture::new(4, 4);
        let mut writer = fixture.writer(0, 4);
        let mut reader = fixture.reader(0, false, Start::Live);
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(0), &mut |_| ()).unwrap();
        let slot = writer.topic().publisher(0);
        slot.tail().store(tail, SeqCst);
        slot.head().store(head, SeqCst);
        slot.blocks_used().store(u32::MAX, SeqCst);
        assert!(reader.poll().is_some(), "what was announced is still there");
        assert!(reader.poll().is_none());
        let left = abandon(&slot, &fixture.region(0), fixture.incarnation(0), 0);
        assert!(left.head - left.tail <= 8);
    }
}

#[test]
fn descriptors_that_lie_are_skipped() {
    use std::sync::atomic::Ordering::SeqCst;
    type Word = fn(&DescriptorView<Shared>) -> &AtomicU64;
    let lies: [(Word, u64); 4] = [
        (DescriptorView::generation, 99),
        (DescriptorView::incarnation, 99),
        (DescriptorView::block, u64::MAX),
        (DescriptorView::block, 4000),
    ];
    for (word, value) in lies {
        let fixture = Fixture::new(4, 4);
        let mut writer = fixture.writer(0, 4);
        let mut reader = fixture.reader(0, false, Start::Live);
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(0), &mut |_| ()).unwrap();
        word(&fixture.descriptor(0, 0)).store(value, SeqCst);
        assert!(reader.poll().is_none());
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(1), &mut |_| ()).unwrap();
        assert_eq!(reader.poll().unwrap().message.tag, 1);
    }
}

#[test]
fn what_is_published_between_the_daemon_and_the_reader_is_read() {
    let fixture = Fixture::new(8, 8);
    let mut writer = fixture.writer(0, 8);
    let mut publish = |tag| {
        let loan = writer.loan(0, 256).unwrap();
        writer.publish(loan, &message(tag), &mut |_| {}).unwrap();
    };
    publish(0);
    fixture.admit(3, Start::Live);
    fixture.topic.subscribers().fetch_or(1 << 3, SeqCst);
    // The publisher counts the subscriber as a member from here on.
    publish(1);
    let mut reader = Reader::new(fixture.topic.clone(), 3, false, Start::Live).unwrap();
    assert_eq!(reader.poll().unwrap().message.tag, 1);
    assert!(reader.poll().is_none());
    assert_eq!(reader.missed(), 0);
}

#[test]
fn what_was_missed_between_hosts_is_told_with_the_next_message() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(3, false, Start::Live);
    for (tag, missed_so_far) in [(0, 0), (1, 7), (2, 7)] {
        let loan = writer.loan(0, 256).unwrap();
        let message = Message {
            missed_so_far,
            ..message(tag)
        };
        writer.publish(loan, &message, &mut |_| ()).unwrap();
    }
    for (tag, missed) in [(0, 0), (1, 7), (2, 0)] {
        let taken = reader.poll().unwrap();
        // Sequence numbers count only the messages published on this host.
        assert_eq!(
            (taken.message.tag, taken.sequence, taken.missed),
            (tag, tag, missed)
        );
        taken.held.release();
    }
    assert_eq!(reader.missed(), 7);
}

fn part(name: &str, offset: u64, bytes: u64) -> PartEntry {
    let mut entry = PartEntry::decode(&[0; PART_ENTRY_BYTES]);
    entry.name[..name.len()].copy_from_slice(name.as_bytes());
    entry.name_bytes = name.len() as u8;
    (entry.offset, entry.bytes) = (offset, bytes);
    entry
}

fn publish_with(writer: &mut Writer<Shared>, tag: u64, metadata: Option<&Metadata>) {
    let with = With {
        tensor: None,
        metadata,
        read: Point::NONE,
        copies: [],
    };
    let loan = writer.loan(4096 * tag, 256).unwrap();
    writer
        .publish_with(loan, &message(tag), with, &mut |_| {})
        .unwrap();
}

/// Receives the next message. Returns its tag and its metadata, if it has any.
fn next(reader: &mut Reader<Shared>) -> (u64, Option<Metadata>) {
    let taken = reader.poll().unwrap();
    let mut metadata = Metadata::default();
    let had = reader.swap_metadata(&mut metadata);
    taken.held.release();
    (taken.message.tag, had.then_some(metadata))
}

#[test]
fn metadata_of_every_length_arrives_with_its_message() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(3, false, Start::Live);
    let lengths = [0, 1, 8, 255, 256, 257, 4095, MAX_ATTACHMENT_BYTES];
    for (turn, length) in lengths.into_iter().enumerate() {
        for parts in [0, 1, MAX_MESSAGE_PARTS] {
            let mut metadata = Metadata::default();
            let byte = |at| (at * 7 + turn) as u8;
            let attachment: Vec<u8> = (0..length).map(byte).collect();
            assert!(metadata.set_attachment(&attachment, turn % 2 == 1));
            for index in 0..parts {
                let part = part(&format!("part {index}"), index as u64 * 256, 17);
                assert!(metadata.push_part(&part));
            }
            publish_with(&mut writer, 1, Some(&metadata));
            publish_with(&mut writer, 2, None);
            assert_eq!(next(&mut reader), (1, Some(metadata)));
            assert_eq!(next(&mut reader), (2, None));
        }
    }
}

#[test]
fn late_joiners_and_readers_of_an_orphan_get_the_attachments_that_are_kept() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let attached = |tag: u64| {
        let mut metadata = Metadata::default();
        assert!(metadata.set_attachment(format!("of {tag}").as_bytes(), false));
        metadata
    };
    for tag in 0..6 {
        publish_with(&mut writer, tag, Some(&attached(tag)));
    }
    let mut late = fixture.reader(3, false, Start::Kept(2));
    assert_eq!(next(&mut late), (4, Some(attached(4))));
    // The publisher dies; its history stays.
    let (slot, region) = (fixture.topic.publisher(0), fixture.region(0));
    abandon(&slot, &region, fixture.incarnation(0), 0);
    let mut later = fixture.reader(4, false, Start::Kept(u64::MAX));
    for tag in 2..6 {
        assert_eq!(next(&mut later), (tag, Some(attached(tag))));
    }
    assert_eq!(next(&mut late), (5, Some(attached(5))));
}

#[test]
fn metadata_longer_than_the_limits_is_skipped_and_counted() {
    let fixture = Fixture::new(4, 4);
    let mut writer = fixture.writer(0, 4);
    let mut reader = fixture.reader(3, false, Start::Live);
    let mut metadata = Metadata::default();
    assert!(metadata.set_attachment(b"small", false));
    for (sequence, beyond) in [u64::MAX, 4097, 2 << 32, 33 << 48].into_iter().enumerate() {
        let sequence = 2 * sequence as u64;
        publish_with(&mut writer, 1, Some(&metadata));
        let descriptor = fixture.descriptor(0, sequence);
        descriptor.metadata().store(beyond, SeqCst);
        publish_with(&mut writer, 2, Some(&metadata));
        let taken = reader.poll().unwrap();
        assert_eq!((taken.sequence, taken.missed), (sequence + 1, 1));
        taken.held.release();
    }
}
