//! What is counted of messages that go and come more than once, and how many places are asked for.

use crate::cursors::Ring;
use crate::frame::{Flow, Frame, Meta};
use crate::link::{Action, Span};
use crate::receiver::{Places, Receiver, ReceiverConfig};
use crate::sender::{Offered, Sender, SenderConfig};

const FLOW: Flow = Flow {
    topic: 7,
    incarnation: 9,
};

fn ring() -> Ring {
    Ring::new(1 << 20).unwrap()
}

struct NoPlaces;

impl Places for NoPlaces {
    fn take(&mut self, _: Flow, _: u64, _: &Meta, _: u64) -> Option<u64> {
        None
    }
    fn give(&mut self, _: Flow, _: Span) {}
}

/// A sender with a lane, whose flow the peer has taken.
fn opened() -> Sender {
    let mut sender = Sender::new(SenderConfig::default(), 0);
    sender.open(FLOW, 0, true);
    assert!(sender.lane_opened(1, ring()));
    let opened = Frame::Ack {
        flow: FLOW,
        next: 0,
        limit: 1 << 20,
    };
    sender.frame(1, &opened).unwrap();
    sender
}

#[test]
fn a_message_whose_lane_is_lost_counts_as_redelivered_once() {
    let mut sender = opened();
    for sequence in 0..2 {
        let span = Span {
            offset: sequence * 100,
            bytes: 100,
        };
        let offered = sender.offer(FLOW, sequence, span, Meta::new(&[]).unwrap());
        assert_eq!(offered, Offered::Taken);
    }
    // The first is there; the second was on its way.
    let first = Frame::Ack {
        flow: FLOW,
        next: 1,
        limit: 1 << 20,
    };
    sender.frame(1, &first).unwrap();
    sender.lane_closed(1, 1);
    assert_eq!((sender.redelivered, sender.stalls), (1, 0));
    // It waits: another loss does not count it again.
    sender.lane_closed(1, 2);
    assert_eq!(sender.redelivered, 1);
}

#[test]
fn a_message_that_comes_again_counts_as_a_duplicate() {
    let mut receiver = Receiver::new(ReceiverConfig::default(), NoPlaces, &[]);
    let message = |cursor| Frame::Eager {
        flow: FLOW,
        sequence: 0,
        charge_end: 100,
        cursor,
        bytes: 100,
        meta_bytes: 0,
    };
    for lane in [1, 2] {
        assert!(receiver.lane_opened(lane, ring(), 0));
    }
    let open = Frame::Open {
        flow: FLOW,
        first: 0,
    };
    receiver.frame(1, &open, 0).unwrap();
    for (lane, duplicates) in [(1, 0), (2, 1)] {
        receiver.frame(lane, &message(0), 0).unwrap();
        receiver.landed(lane).unwrap();
        assert_eq!(receiver.duplicates, duplicates, "lane {lane}");
    }
}

/// Places that are asked for at once of so many messages of this size.
fn asked_for(messages: u64, bytes: u64) -> usize {
    let mut sender = opened();
    for sequence in 0..messages {
        let span = Span {
            offset: sequence * bytes,
            bytes,
        };
        let offered = sender.offer(FLOW, sequence, span, Meta::new(&[]).unwrap());
        assert_eq!(offered, Offered::Taken);
    }
    let actions = std::iter::from_fn(|| sender.action());
    let is_request = |action: &Action| matches!(action, Action::Write(write) if matches!(write.frame, Frame::Request { .. }));
    actions.filter(is_request).count()
}

#[test]
fn many_places_are_asked_for_where_they_are_small() {
    assert_eq!(asked_for(100, 20 << 10), 64);
    assert_eq!(asked_for(100, 128 << 10), 32);
    assert_eq!(asked_for(40, 300 << 10), 13);
    assert_eq!(asked_for(40, 5 << 20), 4);
}

#[test]
fn a_mark_names_the_latest_grant_that_has_its_bits() {
    struct Nowhere;
    impl crate::Places for Nowhere {
        fn take(&mut self, _: Flow, _: u64, _: &Meta, _: u64) -> Option<u64> {
            None
        }
        fn give(&mut self, _: Flow, _: Span) {}
    }
    let mut receiver = Receiver::new(ReceiverConfig::default(), Nowhere, &[]);
    let marks = 1 << 28;
    receiver.next_grant = 5;
    assert_eq!(receiver.marked(4), 4);
    assert!(receiver.marked(5) > marks, "there was none");
    receiver.next_grant = 3 * marks + 5;
    assert_eq!(receiver.marked(4), 3 * marks + 4);
    assert_eq!(receiver.marked(5), 2 * marks + 5);
    receiver.next_grant = 3 * marks;
    assert_eq!(receiver.marked(0), 2 * marks);
}
