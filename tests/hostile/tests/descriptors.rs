//! A publisher whose descriptors lie: offsets, sizes, pools, generations, tensors.

use rgaps::{RecvError, SubscriberQos};
use rgaps_hostile::daemon;
use rgaps_hostile::honest::{Expect, Pair};
use rgaps_hostile::liar::{publisher, Joined, Liar};
use rgaps_layout::{
    PartEntry, PublisherRegion, CONTROL_BYTES, PART_ENTRY_BYTES, SEGMENT_UNIT_BYTES,
};
use rgaps_pool::{Access, SharedMap};
use rgaps_session::{Answer, Request};
use rgaps_testkit::{seed, Random, LIMIT};
use rgaps_topic::{Message, Metadata, Point, RegionView, Shared, Tensor, TopicView, With, Writer};
use std::os::fd::AsFd;

/// An attachment that may be marked as a header, and parts that lie anywhere.
fn metadata_lie(random: &mut Random) -> Metadata {
    let mut metadata = Metadata::default();
    let bytes: Vec<u8> = (0..random.below(200))
        .map(|_| random.nasty() as u8)
        .collect();
    assert!(metadata.set_attachment(&bytes, random.percent(50)));
    for _ in 0..random.below(4) {
        let mut entry = PartEntry::decode(&[0; PART_ENTRY_BYTES]);
        (entry.offset, entry.bytes) = (random.nasty(), random.nasty());
        entry.ndim = random.nasty() as u8;
        entry.dtype_bits = random.nasty() as u8;
        entry.dtype_lanes = random.nasty() as u16;
        entry.shape = std::array::from_fn(|_| random.nasty());
        entry.strides = std::array::from_fn(|_| random.nasty() as i64);
        entry.name = std::array::from_fn(|_| random.nasty() as u8);
        entry.name_bytes = random.nasty() as u8;
        assert!(metadata.push_part(&entry));
    }
    metadata
}

/// A message that may say anything of itself, and a tensor as which it may.
fn lie(random: &mut Random) -> (Message, Option<Tensor>) {
    let mut tensor = Tensor {
        ndim: random.nasty() as u8,
        ..Tensor::default()
    };
    tensor.dtype.code = random.nasty() as u8;
    tensor.dtype.bits = random.nasty() as u8;
    tensor.dtype.lanes = random.nasty() as u16;
    for dim in 0..8 {
        tensor.shape[dim] = random.nasty();
        tensor.strides[dim] = random.nasty() as i64;
    }
    let message = Message {
        pool: match random.below(3) {
            0 => random.nasty() as u16,
            _ => 0,
        },
        offset: match random.below(3) {
            0 => random.nasty(),
            // Around the ends of the segments that there are.
            _ => (random.below(40) * SEGMENT_UNIT_BYTES).wrapping_sub(random.below(3)),
        },
        bytes: match random.below(3) {
            0 => random.nasty(),
            _ => random.below(4 * SEGMENT_UNIT_BYTES),
        },
        publish_ns: random.nasty(),
        missed_so_far: match random.below(3) {
            0 => random.nasty(),
            _ => 0,
        },
        point: Point::NONE,
        tag: random.nasty(),
    };
    (message, random.percent(50).then_some(tensor))
}

#[test]
fn lying_descriptors_are_errors_or_bytes_that_can_be_read() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut daemon = daemon::start();
    let pair = Pair::start(&daemon.config(), "honest", Expect::Perfection, seed);
    pair.goes_on(10);

    let node = daemon.node("victim");
    let victim = node
        .subscriber("lies")
        .qos(SubscriberQos::default())
        .create()
        .expect("a subscriber");
    let mut liar = Liar::welcomed(&daemon.socket());
    let joined = liar
        .join("lies", publisher())
        .expect("not cut off")
        .expect("a seat");
    let Joined { answer, fds, .. } = joined;
    let control = SharedMap::new(fds[1].as_fd(), CONTROL_BYTES, Access::ReadWrite).expect("mapped");
    // SAFETY: a page-aligned mapping of that size, which outlives the writer below.
    let words = unsafe { Shared::new(control.base().as_ptr(), CONTROL_BYTES) };
    let Answer::Joined {
        member,
        region_offset,
        ring,
        ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    let leased = liar.ask(Request::Lease {
        publisher: member,
        pool: 0,
        bytes: 4 * SEGMENT_UNIT_BYTES,
    });
    leased.expect("not cut off").expect("a lease");
    let topic = TopicView::new(words, region_offset).expect("the topic");
    let geometry = PublisherRegion {
        ring_capacity: ring.ring_capacity,
        block_capacity: ring.block_capacity,
    };
    let region = RegionView::new(words, ring.region_offset, geometry).expect("the region");
    let mut writer = Writer::new(
        topic,
        member.slot,
        region,
        member.incarnation,
        ring.start,
        ring.depth,
        u64::MAX,
    )
    .expect("a writer");

    let (mut read, mut refused) = (0u64, 0u64);
    for _ in 0..1_500 {
        let (message, tensor) = lie(&mut random);
        let metadata = metadata_lie(&mut random);
        let with = With {
            tensor: tensor.as_ref(),
            metadata: random.percent(50).then_some(&metadata),
            read: Point::NONE,
            copies: [],
        };
        writer.collect_returned(&mut |_| {});
        let loan = writer
            .loan(random.nasty(), random.nasty())
            .expect("a block");
        writer
            .publish_with(loan, &message, with, &mut |_| {})
            .expect("published");
        match victim.recv_timeout(LIMIT) {
            Ok(sample) => {
                // All its bytes are there; what they are is its publisher's business.
                let bytes = sample.as_slice().expect("host memory");
                assert_eq!(bytes.len() as u64, message.bytes);
                let _ = (sample.attachment(), sample.header());
                if let Ok(parts) = sample.parts() {
                    for part in parts.iter() {
                        let bytes = sample.part_slice(part.name()).expect("it is there");
                        assert_eq!(bytes.len() as u64, part.len());
                    }
                }
                let sum = bytes
                    .iter()
                    .step_by(4096)
                    .fold(0u64, |sum, b| sum + u64::from(*b));
                std::hint::black_box(sum);
                if let Some(tensor) = sample.tensor() {
                    assert!(usize::from(tensor.ndim) <= tensor.shape.len());
                }
                read += 1;
            }
            Err(RecvError::Untrusted { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    eprintln!("{read} messages were read, {refused} refused");
    assert!(read > 50 && refused > 50);
    assert_eq!(victim.held(), 0);

    // The victim goes on with honest publishers.
    let honest = node.publisher("lies").create().expect("a publisher");
    honest.put(b"truth").expect("published");
    let sample = victim.recv_timeout(LIMIT).expect("the truth");
    assert_eq!(sample.as_slice().expect("host memory"), b"truth");

    pair.goes_on(10);
    let (published, received, errors) = pair.end();
    assert_eq!((received, errors), (published, 0));
    daemon.assert_well();
}
