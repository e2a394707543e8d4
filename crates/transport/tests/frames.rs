//! Frames there and back, and bytes that are none.
use proptest::prelude::*;
use rgaps_transport::frame::*;

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = frame.encode(&mut bytes);
    bytes[..length].to_vec()
}

fn flow() -> impl Strategy<Value = Flow> {
    (any::<u64>(), any::<u64>()).prop_map(|(topic, incarnation)| Flow { topic, incarnation })
}

fn meta() -> impl Strategy<Value = Meta> {
    proptest::collection::vec(any::<u8>(), 0..=META_BYTES_MAX)
        .prop_map(|bytes| Meta::new(&bytes).unwrap())
}

fn lanes() -> impl Strategy<Value = Lanes> {
    proptest::collection::btree_set(any::<u32>(), 1..=LANES_MAX)
        .prop_map(|set| Lanes::new(&set.into_iter().collect::<Vec<_>>()).unwrap())
}

fn remote() -> impl Strategy<Value = Option<Remote>> {
    let rkeys = proptest::collection::vec(any::<u32>(), 0..=RAILS_MAX);
    (0..u64::MAX - MESSAGE_BYTES_MAX, rkeys)
        .prop_map(|(address, rkeys)| Remote::new(address, &rkeys))
}

fn wish() -> impl Strategy<Value = Wish> {
    prop_oneof![Just(Wish::No), Just(Wish::Prefer), Just(Wish::Require)]
}

fn frame() -> impl Strategy<Value = Frame> {
    let number = any::<u64>;
    let sequence = || 0..u64::MAX;
    prop_oneof![
        (number(), number(), any::<u32>(), 1u64..1 << 20, wish()).prop_map(
            |(node, realm, lane, ring, rdma)| {
                let ring_bytes = ring * 256;
                Frame::Hello {
                    node,
                    realm,
                    lane,
                    ring_bytes,
                    rdma,
                    to: node ^ realm,
                    key: LaneKey([lane as u8; 32]),
                }
            }
        ),
        (flow(), number()).prop_map(|(flow, first)| Frame::Open { flow, first }),
        (flow(), number()).prop_map(|(flow, next)| Frame::Close { flow, next }),
        (flow(), sequence(), 1u32.., number(), number(), 0u16..=256).prop_map(
            |(flow, sequence, bytes, before, cursor, meta_bytes)| Frame::Eager {
                flow,
                sequence,
                charge_end: before.saturating_add(u64::from(bytes)),
                cursor,
                bytes,
                meta_bytes: meta_bytes.min(bytes.try_into().unwrap_or(u16::MAX)),
            }
        ),
        (flow(), sequence(), number(), 1..=MESSAGE_BYTES_MAX, meta()).prop_map(
            |(flow, sequence, charge_end, bytes, meta)| {
                Frame::Request {
                    flow,
                    sequence,
                    charge_end,
                    bytes,
                    meta,
                }
            }
        ),
        (
            flow(),
            sequence(),
            number(),
            0..MESSAGE_BYTES_MAX,
            lanes(),
            remote()
        )
            .prop_map(|(flow, sequence, grant, offset, lanes, remote)| {
                Frame::Grant {
                    flow,
                    sequence,
                    grant,
                    offset,
                    lanes,
                    remote,
                }
            }),
        (number(), 0..MESSAGE_BYTES_MAX, 1..=CHUNK_BYTES_MAX).prop_map(|(grant, offset, bytes)| {
            Frame::Chunk {
                grant,
                offset,
                bytes,
            }
        }),
        (flow(), number(), number()).prop_map(|(flow, next, limit)| Frame::Ack {
            flow,
            next,
            limit
        }),
        (flow(), sequence(), 1u64..9, number()).prop_map(|(flow, first, more, charge_end)| {
            let next = first.saturating_add(more);
            Frame::Gap {
                flow,
                first,
                next,
                charge_end,
            }
        }),
        number().prop_map(|head| Frame::Head { head }),
        number().prop_map(|tail| Frame::Stall { tail }),
        number().prop_map(|grant| Frame::Abandon { grant }),
        number().prop_map(|beat| Frame::Alive { beat }),
        (
            prop_oneof![
                Just(ResetReason::Protocol),
                Just(ResetReason::Version),
                Just(ResetReason::Realm),
                Just(ResetReason::Lanes),
                Just(ResetReason::Incarnation),
                Just(ResetReason::Key),
                Just(ResetReason::Rdma)
            ],
            number()
        )
            .prop_map(|(reason, ours)| Frame::Reset { reason, ours }),
        Just(Frame::Goodbye),
        (any::<u8>(), meta()).prop_map(|(rail, address)| Frame::Channel { rail, address }),
        any::<u8>().prop_map(|step| Frame::Ready { step }),
        meta().prop_map(|why| Frame::NoChannel { why }),
    ]
}

/// Whatever decodes is what its own bytes are: there are no two ways to write a frame.
fn decodes_to_its_own_bytes(bytes: &[u8]) {
    match Frame::decode(bytes) {
        Ok(Decoded::Frame(frame, used)) => assert_eq!(encoded(&frame), bytes[..used]),
        Ok(Decoded::Short(needed)) => {
            assert!(
                needed > bytes.len() && needed <= FRAME_BYTES_MAX,
                "{needed} of {}",
                bytes.len()
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    #[test]
    fn every_frame_comes_back(frame in frame(), behind in proptest::collection::vec(any::<u8>(), 0..9)) {
        let mut bytes = encoded(&frame);
        let length = bytes.len();
        prop_assert!(length <= FRAME_BYTES_MAX);
        bytes.extend(behind);
        prop_assert_eq!(Frame::decode(&bytes), Ok(Decoded::Frame(frame, length)));
        for cut in 0..length {
            let short = Frame::decode(&bytes[..cut]);
            let short = matches!(short, Ok(Decoded::Short(needed)) if needed > cut && needed <= length);
            prop_assert!(short, "{} of {} bytes", cut, length);
        }
    }

    #[test]
    fn damaged_frames_and_garbage_are_refused_or_frames(
        frame in frame(),
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6),
        garbage in proptest::collection::vec(any::<u8>(), 0..500),
    ) {
        let mut bytes = encoded(&frame);
        for (at, by) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = by;
        }
        decodes_to_its_own_bytes(&bytes);
        decodes_to_its_own_bytes(&garbage);
        // Garbage behind a header that is one.
        let mut headed = encoded(&frame)[..HEADER_BYTES].to_vec();
        headed.extend(&garbage);
        decodes_to_its_own_bytes(&headed);
    }
}

#[test]
fn fields_out_of_bounds_are_refused_by_name() {
    let flow = Flow {
        topic: 1,
        incarnation: 2,
    };
    let meta = Meta::new(b"f32").unwrap();
    let eager = |bytes, charge_end, meta_bytes| Frame::Eager {
        flow,
        sequence: 3,
        charge_end,
        cursor: 0,
        bytes,
        meta_bytes,
    };
    let request = |bytes| Frame::Request {
        flow,
        sequence: 3,
        charge_end: 0,
        bytes,
        meta: meta.clone(),
    };
    let hello = |ring_bytes| Frame::Hello {
        node: 1,
        realm: 1,
        lane: 1,
        ring_bytes,
        rdma: Wish::Prefer,
        to: 2,
        key: LaneKey([0; 32]),
    };
    let refused = [
        (eager(0, 0, 0), "bytes"),
        (eager(64, 63, 0), "bytes"),
        (eager(64, 64, 65), "meta_bytes"),
        (
            eager(20_000, 20_000, META_BYTES_MAX as u16 + 1),
            "meta_bytes",
        ),
        (request(0), "bytes"),
        (request(MESSAGE_BYTES_MAX + 1), "bytes"),
        (hello(100), "ring_bytes"),
        (
            Frame::Gap {
                flow,
                first: 3,
                next: 3,
                charge_end: 0,
            },
            "next",
        ),
        (
            Frame::Chunk {
                grant: 1,
                offset: 0,
                bytes: 0,
            },
            "bytes",
        ),
        (
            Frame::Chunk {
                grant: 1,
                offset: 0,
                bytes: CHUNK_BYTES_MAX + 1,
            },
            "bytes",
        ),
        (
            Frame::Chunk {
                grant: 1,
                offset: u64::MAX,
                bytes: 1,
            },
            "offset",
        ),
    ];
    for (frame, expected) in refused {
        match Frame::decode(&encoded(&frame)) {
            Err(DecodeError::Field { field, .. }) => assert_eq!(field, expected, "{frame:?}"),
            other => panic!("{frame:?} came back as {other:?}"),
        }
    }
}

#[test]
fn places_for_peers_that_write_themselves_are_checked() {
    let remote = Remote::new(1 << 40, &[7, 8]).unwrap();
    assert_eq!(remote.at(10, 1), Some(((1 << 40) + 10, 8)));
    assert_eq!((remote.at(10, 2), remote.at(u64::MAX, 0)), (None, None));
    assert!(Remote::new(u64::MAX - MESSAGE_BYTES_MAX + 1, &[1]).is_none());
    assert!(Remote::new(0, &[]).is_none() && Remote::new(0, &[0; RAILS_MAX + 1]).is_none());
    let grant = encoded(&Frame::Grant {
        flow: Flow {
            topic: 1,
            incarnation: 2,
        },
        sequence: 1,
        grant: 2,
        offset: 0,
        lanes: Lanes::new(&[1]).unwrap(),
        remote: Some(remote),
    });
    let count = grant.len() - 4 * RAILS_MAX - 1;
    // A key behind the count, more keys than there is room for, an address without a key.
    for (at, byte) in [(grant.len() - 1, 1), (count, 5), (count, 0)] {
        let mut bytes = grant.clone();
        bytes[at] = byte;
        let refused = Frame::decode(&bytes);
        let refused = matches!(
            refused,
            Err(DecodeError::Field {
                field: "remote",
                ..
            })
        );
        assert!(refused, "{byte} at {at}");
    }
}

#[test]
fn lists_versions_and_lengths_are_checked() {
    assert!(Meta::new(&[0; META_BYTES_MAX + 1]).is_none());
    assert!(
        Lanes::new(&[]).is_none() && Lanes::new(&[2, 1]).is_none() && Lanes::new(&[1, 1]).is_none()
    );
    assert!(Lanes::new(&[1; LANES_MAX + 1]).is_none());
    let alive = encoded(&Frame::Alive { beat: 7 });
    let with = |at: usize, byte: u8| {
        let mut bytes = alive.clone();
        bytes[at] = byte;
        Frame::decode(&bytes)
    };
    let kind = alive[0];
    assert_eq!(with(1, 9), Err(DecodeError::Version(9)));
    assert_eq!(with(0, 0), Err(DecodeError::Kind(0)));
    assert_eq!(with(0, 200), Err(DecodeError::Kind(200)));
    assert_eq!(
        with(2, 1),
        Err(DecodeError::Field {
            kind,
            field: "reserved"
        })
    );
    assert_eq!(
        with(7, 0xff),
        Err(DecodeError::Length {
            kind,
            bytes: 0xff00_0008
        })
    );
    assert_eq!(Frame::decode(&[]), Ok(Decoded::Short(HEADER_BYTES)));
}

#[test]
fn a_description_that_is_not_as_long_as_its_frame_says_is_refused() {
    let flow = Flow {
        topic: 1,
        incarnation: 2,
    };
    let whole = encoded(&Frame::Request {
        flow,
        sequence: 3,
        charge_end: 0,
        bytes: 5,
        meta: Meta::new(b"twelve bytes").unwrap(),
    });
    assert_eq!(whole.len(), HEADER_BYTES + 40 + 2 + 12);
    let at = HEADER_BYTES + 40;
    for length in [0u16, 11, 13, u16::MAX] {
        let mut lie = whole.clone();
        lie[at..at + 2].copy_from_slice(&length.to_le_bytes());
        let refused = Frame::decode(&lie);
        assert!(
            matches!(refused, Err(DecodeError::Length { .. })),
            "{length}"
        );
    }
    // The body's own length is bounded before anybody waits for it.
    for body in [41u32, 42 + META_BYTES_MAX as u32 + 1, u32::MAX] {
        let mut lie = whole.clone();
        lie[4..8].copy_from_slice(&body.to_le_bytes());
        let refused = Frame::decode(&lie);
        assert!(matches!(refused, Err(DecodeError::Length { .. })), "{body}");
    }
}
