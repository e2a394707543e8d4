//! Tests the cursors against a model that knows, for each byte of the ring, whether it is in use.
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const WATERMARKS: [Watermark; 4] = [
    Watermark::Zero,
    Watermark::Eighth,
    Watermark::Quarter,
    Watermark::Half,
];

fn at(reserved: Result<Reserved, FrameSizeError>) -> Slot {
    match reserved {
        Ok(Reserved::At(slot)) => slot,
        other => panic!("no room: {other:?}"),
    }
}

/// Both ends, the frames and heads in flight, frames that were not read, and which bytes are in use.
struct Model {
    ring: Ring,
    sender: Sender,
    receiver: Receiver,
    frames: VecDeque<(Slot, u64)>,
    heads: VecDeque<u64>,
    unread: Vec<(Slot, u64)>,
    used: Vec<bool>,
}

impl Model {
    fn new(ring: Ring, watermark: Watermark) -> Self {
        Self {
            ring,
            sender: Sender::new(ring),
            receiver: Receiver::new(ring, watermark),
            frames: VecDeque::new(),
            heads: VecDeque::new(),
            unread: Vec::new(),
            used: vec![false; usize::try_from(ring.bytes()).unwrap()],
        }
    }

    fn mark(&mut self, slot: Slot, bytes: u64, used: bool) {
        for byte in slot.offset..slot.offset + bytes {
            let byte = &mut self.used[usize::try_from(byte).unwrap()];
            assert_ne!(*byte, used, "a frame lies over another");
            *byte = used;
        }
    }

    fn send(&mut self, bytes: u64) -> bool {
        match self.sender.reserve(bytes).unwrap() {
            Reserved::Full => false,
            Reserved::At(slot) => {
                assert_eq!(slot.offset % FRAME_ALIGN, 0);
                assert!(
                    slot.offset + bytes <= self.ring.bytes(),
                    "a frame crosses the end"
                );
                self.mark(slot, bytes, true);
                self.frames.push_back((slot, bytes));
                true
            }
        }
    }

    fn arrive(&mut self) {
        if let Some((slot, bytes)) = self.frames.pop_front() {
            assert_eq!(self.receiver.admit(slot.cursor, bytes), Ok(slot));
            self.unread.push((slot, bytes));
        }
    }

    fn read(&mut self) {
        for (slot, bytes) in std::mem::take(&mut self.unread) {
            self.mark(slot, bytes, false);
        }
        self.receiver.consume();
        self.heads.extend(self.receiver.head_at_watermark());
    }

    fn return_head(&mut self) {
        if let Some(head) = self.heads.pop_front() {
            self.sender.head_returned(head).unwrap();
        }
    }

    fn check(&self) {
        let (sender, receiver) = (&self.sender, &self.receiver);
        assert!(
            sender.delayed_head <= receiver.head,
            "the delayed head leads"
        );
        assert!(receiver.head <= sender.tail, "the head leads the tail");
        assert!(
            sender.tail <= sender.delayed_head + self.ring.bytes(),
            "the tail overruns"
        );
    }

    fn settle(&mut self) {
        while !self.frames.is_empty() || !self.heads.is_empty() || !self.unread.is_empty() {
            self.arrive();
            self.read();
            self.return_head();
        }
    }
}

proptest! {
    #[test]
    fn invariants_hold_and_no_frame_lies_over_another(
        quarters in 1u64..8,
        watermark in 0usize..4,
        steps in proptest::collection::vec((0u8..5, 1u64..2000), 1..400),
    ) {
        let ring = Ring::new(quarters * 256).unwrap();
        let mut model = Model::new(ring, WATERMARKS[watermark]);
        for (step, bytes) in steps {
            match step {
                0 | 1 => { model.send(1 + bytes % ring.frame_bytes_max()); }
                2 => model.arrive(),
                3 => model.read(),
                _ => model.return_head(),
            }
            model.check();
        }
        // A ring that was read empty takes the largest frame with any watermark, without a stall notice.
        model.settle();
        model.check();
        prop_assert!(model.send(ring.frame_bytes_max()), "the ring hangs at its watermark");
        // When the receiver returns its head because the link is idle, the whole ring is free.
        model.settle();
        model.heads.extend(model.receiver.head_if_moved());
        model.return_head();
        prop_assert!(model.sender.is_drained());
    }

    #[test]
    fn whatever_a_peer_says_is_refused_or_lies_in_the_ring(
        claims in proptest::collection::vec((0u64..5000, 0u64..1200), 1..60),
        heads in proptest::collection::vec(any::<u64>(), 1..20),
    ) {
        let ring = Ring::new(1024).unwrap();
        let mut receiver = Receiver::new(ring, Watermark::Quarter);
        for (cursor, bytes) in claims {
            if let Ok(slot) = receiver.admit(cursor, bytes) {
                prop_assert!(slot.offset + bytes <= ring.bytes());
                prop_assert!(receiver.arrived <= receiver.returned + ring.bytes());
            }
        }
        let mut sender = Sender::new(ring);
        at(sender.reserve(200));
        for head in heads {
            prop_assert_eq!(sender.head_returned(head).is_ok(), head <= sender.tail);
            prop_assert!(sender.delayed_head <= sender.tail);
        }
    }
}

#[test]
fn the_ring_can_be_exactly_full_and_its_end_is_used() {
    let ring = Ring::new(1024).unwrap();
    let mut model = Model::new(ring, Watermark::Zero);
    for _ in 0..4 {
        assert!(model.send(256));
    }
    assert_eq!(model.sender.tail, 1024);
    assert!(!model.send(1), "a full ring takes nothing");
    assert!(model.used.iter().all(|used| *used));
    model.settle();
    assert_eq!(
        at(model.sender.reserve(256)),
        Slot {
            cursor: 1024,
            offset: 0
        }
    );
}

#[test]
fn exceed_without_and_with_a_wrapped_region() {
    let ring = Ring::new(1024).unwrap();
    // Case 1: the bytes in use are one piece, [256, 768): there is room up to the end, and then from the start.
    let mut sender = Sender {
        ring,
        tail: 768,
        delayed_head: 256,
        stalled: false,
    };
    assert_eq!(at(sender.reserve(256)).offset, 768);
    assert_eq!(at(sender.reserve(256)).offset, 0);
    assert_eq!(sender.reserve(1), Ok(Reserved::Full));
    // Case 2: the bytes in use, [896, 1280), wrap around the end: the free ones, [256, 896), end at the head.
    let mut sender = Sender {
        ring,
        tail: 1280,
        delayed_head: 896,
        stalled: false,
    };
    assert_eq!(at(sender.reserve(256)).offset, 256);
    assert_eq!(at(sender.reserve(256)).offset, 512);
    assert_eq!(
        sender.reserve(192),
        Ok(Reserved::Full),
        "over the head by 64 bytes"
    );
    assert_eq!(at(sender.reserve(128)).offset, 768);
    assert_eq!(sender.reserve(1), Ok(Reserved::Full));
    // A frame that does not fit before the end also needs the bytes that it skips.
    let mut sender = Sender {
        ring,
        tail: 832,
        delayed_head: 128,
        stalled: false,
    };
    assert_eq!(
        sender.reserve(256),
        Ok(Reserved::Full),
        "[0, 256) is read up to 128 only"
    );
    sender.head_returned(256).unwrap();
    assert_eq!(
        at(sender.reserve(256)),
        Slot {
            cursor: 1024,
            offset: 0
        }
    );
}

#[test]
fn frames_larger_than_a_quarter_and_empty_ones_are_refused() {
    let mut sender = Sender::new(Ring::new(1024).unwrap());
    for bytes in [0, 257, 460, 614, 1024, 1025, u64::MAX] {
        assert_eq!(
            sender.reserve(bytes),
            Err(FrameSizeError { bytes, max: 256 })
        );
    }
    for bytes in [0, 64, 255, 300, RING_BYTES_MAX + 256, u64::MAX] {
        assert_eq!(Ring::new(bytes), Err(RingError { bytes }));
    }
}

/// Frames of 0.45 and 0.6 of a ring with a watermark of a half: the receiver of the thesis reads the first and returns
/// no head, and the second waits for ever. This ring refuses such frames; and even if it took them,
/// the head that a stalled sender asks for would make room.
#[test]
fn two_frames_of_0_45_and_0_6_of_a_ring_do_not_hang() {
    let ring = Ring::of_the_thesis(6400);
    let mut model = Model::new(ring, Watermark::Half);
    assert!(model.send(2880));
    model.settle();
    assert!(!model.send(3840), "0.45 + 0.6 is more than the ring");
    assert!(
        model.heads.is_empty(),
        "0.45 is below the watermark: nobody would move again"
    );
    assert!(model.sender.stalled(), "the sender says that it stalls");
    assert!(!model.sender.stalled(), "once");
    model.heads.extend(model.receiver.head_if_moved());
    model.settle();
    // From 2880 on there are 3520 bytes before the end, which the frame would skip: a ring with frames as large as in the
    // thesis cannot take it there even when it is empty.
    assert!(!model.send(3840));
    assert!(model.send(3520), "but it takes what fits");

    let ring = Ring::new(6400).unwrap();
    let mut sender = Sender::new(ring);
    assert!(sender.reserve(2880).is_err() && sender.reserve(3840).is_err());
    let mut model = Model::new(ring, Watermark::Half);
    for _ in 0..100 {
        assert!(model.send(ring.frame_bytes_max()));
        model.settle();
    }
}
