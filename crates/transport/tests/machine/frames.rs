//! Frames of wire version 6: encoding, decoding, and bytes that are no frame.
use proptest::prelude::*;
use rgaps_transport::machine::frame::{self, *};

fn description() -> impl Strategy<Value = Description> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..300);
    bytes.prop_map(|bytes| Description::new(&bytes).unwrap())
}

fn lanes() -> impl Strategy<Value = Lanes> {
    proptest::collection::btree_set(any::<u32>(), 1..=LANES_MAX)
        .prop_map(|set| Lanes::new(&set.into_iter().collect::<Vec<_>>()).unwrap())
}

fn remote() -> impl Strategy<Value = Option<Remote>> {
    let keys = proptest::collection::vec(any::<u32>(), 0..=4);
    (0..1u64 << 60, keys).prop_map(|(address, keys)| Remote::new(address, &keys))
}

fn flows() -> impl Strategy<Value = Frame> {
    let (number, sequence) = (any::<u64>, || 0..=SEQUENCE_MAX);
    prop_oneof![
        (1u64.., sequence(), description()).prop_map(|(flow, first, description)| {
            Frame::Open(frame::Open {
                flow,
                first,
                description,
            })
        }),
        (number(), sequence(), 1u32.., number(), any::<u16>()).prop_map(
            |(flow, sequence, bytes, before, length)| Frame::Small(frame::Small {
                flow,
                sequence,
                charge_end: before.saturating_add(bytes.into()),
                bytes,
                description_bytes: length.min(bytes.saturating_sub(1).min(12 << 10) as u16),
            })
        ),
        (
            number(),
            sequence(),
            number(),
            1..=CHUNK_BYTES_MAX,
            1..=CHUNKS_MAX,
            description()
        )
            .prop_map(
                |(flow, sequence, charge_end, chunk_bytes, chunks, description)| {
                    let bytes = u64::from(chunk_bytes) * u64::from(chunks);
                    Frame::Request(frame::Request {
                        flow,
                        sequence,
                        charge_end,
                        bytes,
                        chunk_bytes,
                        description,
                    })
                }
            ),
        (
            number(),
            sequence(),
            number(),
            0..CHUNKS_MAX,
            lanes(),
            remote()
        )
            .prop_map(
                |(flow, sequence, grant, from_chunk, lanes, remote)| Frame::Grant(frame::Grant {
                    flow,
                    sequence,
                    grant,
                    from_chunk,
                    lanes,
                    remote,
                })
            ),
        (number(), 0..CHUNKS_MAX, 1..=CHUNK_BYTES_MAX).prop_map(|(grant, chunk, bytes)| {
            Frame::Chunk(frame::Chunk {
                grant,
                chunk,
                bytes,
            })
        }),
        (number(), number(), number()).prop_map(|(flow, next, limit)| Frame::Ack(frame::Ack {
            flow,
            next,
            limit
        })),
        (number(), 0..1u64 << 60, 1u64..9, number()).prop_map(|(flow, first, more, charge_end)| {
            let next = first + more;
            Frame::Gap(frame::Gap {
                flow,
                first,
                next,
                charge_end,
            })
        }),
        (1u64.., 0..FLOW_ENDED).prop_map(|(flow, next)| Frame::Close(frame::Close { flow, next })),
        (1u64.., description()).prop_map(|(flow, why)| Frame::Refuse(frame::Refuse { flow, why })),
        number().prop_map(|grant| Frame::Abandon(frame::Abandon { grant })),
    ]
}

fn lane_frames() -> impl Strategy<Value = Frame> {
    let number = any::<u64>;
    let rdma = prop_oneof![
        Just(RdmaMode::No),
        Just(RdmaMode::Prefer),
        Just(RdmaMode::Require)
    ];
    prop_oneof![
        (number(), number(), any::<u32>(), any::<u32>(), rdma).prop_map(
            |(node, realm, lane, first_window, rdma)| Frame::Hello(frame::Hello {
                node,
                machine: node.rotate_left(9),
                realm,
                lane,
                first_window,
                rdma,
                to: node ^ realm,
                key: LaneKey([lane as u8; 32]),
            })
        ),
        Just(Frame::Alive(frame::Alive {})),
        description().prop_map(|why| Frame::Reset(frame::Reset { why })),
        (any::<u8>(), description())
            .prop_map(|(rail, address)| Frame::RdmaAddress(frame::RdmaAddress { rail, address })),
        any::<u8>().prop_map(|step| Frame::RdmaReady(frame::RdmaReady { step })),
        description().prop_map(|why| Frame::RdmaRefused(frame::RdmaRefused { why })),
    ]
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = frame.encode(&mut bytes);
    assert_eq!(length, bytes.len());
    bytes
}

/// Bytes that decode are the frame's own encoding: each frame has only one.
fn decodes_to_its_own_bytes(bytes: &[u8]) {
    match Frame::decode(bytes) {
        Ok(Decoded::Frame(frame, used)) => assert_eq!(encoded(&frame), bytes[..used]),
        Ok(Decoded::Short(needed)) => assert!(needed > bytes.len() && needed <= FRAME_BYTES_MAX),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    // A failure prints its frame, and is not recorded in a file.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_frame_is_read_as_it_was_written(frame in prop_oneof![flows(), lane_frames()]) {
        let bytes = encoded(&frame);
        prop_assert_eq!(Frame::decode(&bytes), Ok(Decoded::Frame(frame, bytes.len())));
        for end in 0..bytes.len() {
            let short = Frame::decode(&bytes[..end]);
            prop_assert!(matches!(short, Ok(Decoded::Short(needed)) if needed > end), "{:?}", short);
        }
    }

    #[test]
    fn changed_bytes_are_another_frame_or_none(
        frame in prop_oneof![flows(), lane_frames()],
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let mut bytes = encoded(&frame);
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        decodes_to_its_own_bytes(&bytes);
    }

    #[test]
    fn any_bytes_are_a_frame_or_none(kind in 0u8..20, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = vec![kind, WIRE_VERSION, 0, 0];
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        decodes_to_its_own_bytes(&bytes);
    }
}

#[test]
fn a_peer_of_another_version_is_told_to_use_the_same() {
    let text = Frame::decode(&[1, 5, 0, 0, 0, 0, 0, 0])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("version 5") && text.contains("version 6"),
        "{text}"
    );
}
