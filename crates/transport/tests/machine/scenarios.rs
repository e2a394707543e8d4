//! Single scenarios of two machines: which frames cross in which trip, and what a lost lane, a refusal or an end leaves behind.
use crate::host::SimPayload;
use crate::wire::{end, limits, names, Pair, Sent, CHUNK};
use rgaps_transport::machine::frame::{self, Description, Frame, FLOW_ENDED};
use rgaps_transport::machine::{LinkMachine, FLOWS_MAX};
use rgaps_transport::Payload;
use std::sync::Arc;

#[test]
fn open_and_the_first_small_messages_leave_in_one_write_and_take_half_a_round_trip() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    for sequence in 0..3 {
        pair.ends[0].send(flow, 7, sequence, 64);
    }
    assert_eq!(pair.trips_until("small 2"), 1);
    assert_eq!(
        pair.ends[1].take_delivered(),
        ["opened at 0", "small 0", "small 1", "small 2"]
    );
}

/// A flow may open when its publisher's messages already have higher numbers.
#[test]
fn a_first_message_with_any_number_takes_as_long() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 500, 64);
    pair.ends[0].send(flow, 7, 501, 3 * CHUNK);
    let frames = pair.ends[0].write(1);
    assert_eq!(names(&frames), ["Open", "Gap", "Small", "Request"]);
    frames
        .iter()
        .for_each(|sent| pair.ends[1].read(sent).unwrap());
    pair.ends[1].carry_out();
    let delivered = pair.ends[1].take_delivered();
    assert_eq!(delivered.len(), 3, "{delivered:?}");
    assert_eq!(delivered[2], "small 500");
    // One trip for GRANT, one for the bytes.
    assert_eq!(pair.trips_until("large 501"), 2);
}

#[test]
fn what_the_first_window_covers_needs_no_answer_and_what_it_does_not_waits_for_one() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    // More payloads than a lane takes at a time: `write` takes and writes them one by one.
    let flow = pair.ends[0].open(7, 0);
    for sequence in 0..600 {
        pair.ends[0].send(flow, 7, sequence, 192);
    }
    let frames = pair.ends[0].write(1);
    let small: u64 = frames.iter().map(|sent| sent.payload.len() as u64).sum();
    // At most 64 unacknowledged messages of a flow are looked at.
    assert_eq!((names(&frames)[0], small), ("Open", 64 * 200));
    frames
        .iter()
        .for_each(|sent| pair.ends[1].read(sent).unwrap());
    pair.run();
    assert_eq!(pair.ends[1].take_delivered().len(), 601);
    assert_eq!(pair.ends[0].take_reported().len(), 600);
}

#[test]
fn a_flow_that_its_user_does_not_accept_gets_no_more_than_the_first_window() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    pair.ends[1].is_slow = true;
    let flow = pair.ends[0].open(7, 0);
    for sequence in 0..64 {
        let payload = SimPayload::new(7, sequence, 192, 192);
        let description = Description::new(&[0; 8]).unwrap();
        let sent = pair.ends[0]
            .machine
            .send(flow, sequence, payload, description);
        assert!(sent);
    }
    pair.ends[0].send(flow, 7, 64, 5000);
    pair.run();
    let held = pair.ends[1].machine.held();
    assert_eq!(
        (held.flows, held.grants),
        (1, 0),
        "no buffer before it is accepted"
    );
    assert!(pair.ends[0].accepted.is_empty());
    pair.ends[1].is_slow = false;
    pair.run();
    assert_eq!(pair.ends[0].accepted, [flow], "once");
    assert_eq!(pair.ends[1].take_delivered().len(), 66);
}

#[test]
fn a_large_first_message_takes_one_and_a_half_round_trips() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 3 * CHUNK);
    assert_eq!(pair.trips_until("large 0"), 3);
}

#[test]
fn large_messages_request_while_others_are_on_their_way() {
    let mut pair = Pair::new(&[1, 2]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    for sequence in 0..8 {
        pair.ends[0].send(flow, 7, sequence, 2 * CHUNK);
    }
    // Eight of 2,000 bytes have grants together.
    assert_eq!(pair.trips_until("large 7"), 3);
}

/// The first lane loses some of a message's ten chunks: only those behind the prefix cross again.
#[test]
fn a_message_goes_on_behind_what_has_landed_when_its_lane_is_lost() {
    let mut pair = Pair::new(&[1, 2]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 10 * CHUNK);
    pair.trip();
    pair.trip();
    let [first, second] = &mut pair.ends;
    let chunks: Vec<Sent> = [1, 2].iter().flat_map(|lane| first.write(*lane)).collect();
    assert_eq!(chunks.len(), 10);
    // Chunks 0 to 3 and 6 arrive; lane 1 is lost with the others that it had.
    let index = |sent: &Sent| match sent.frame {
        Frame::Chunk(frame::Chunk { chunk, .. }) => chunk,
        ref other => panic!("{other:?}"),
    };
    for sent in chunks
        .iter()
        .filter(|sent| [0, 1, 2, 3, 6].contains(&index(sent)))
    {
        second.read(sent).unwrap();
    }
    pair.lane_ends(1);
    pair.trip();
    let grant = pair.ends[1].write(2);
    let from: Vec<u32> = grant
        .iter()
        .filter_map(|sent| match sent.frame {
            Frame::Grant(frame::Grant { from_chunk, .. }) => Some(from_chunk),
            _ => None,
        })
        .collect();
    assert_eq!(from, [4], "GRANT says where to go on");
    grant
        .iter()
        .for_each(|sent| pair.ends[0].read(sent).unwrap());
    let mut again = pair.ends[0].write(2);
    again.retain(|sent| matches!(sent.frame, Frame::Chunk(_)));
    assert_eq!(
        again.iter().map(index).collect::<Vec<_>>(),
        [4, 5, 6, 7, 8, 9]
    );
    again
        .iter()
        .for_each(|sent| pair.ends[1].read(sent).unwrap());
    assert_eq!(pair.ends[1].take_delivered(), ["opened at 0", "large 0"]);
    assert_eq!(pair.ends[0].machine.repeated().0, 1);
}

#[test]
fn a_message_without_a_buffer_is_missed_and_its_bytes_do_not_cross() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    pair.ends[1].user.decisions.lock().unwrap().refuses_large = true;
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 5000);
    pair.ends[0].send(flow, 7, 1, 10);
    pair.trip();
    pair.trip();
    assert!(!names(&pair.ends[0].write(1)).contains(&"Chunk"));
    pair.run();
    assert_eq!(
        pair.ends[1].take_delivered(),
        ["opened at 0", "missed 0..1", "small 1"]
    );
}

#[test]
fn a_refused_flow_ends_with_its_reason_and_leaves_nothing() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 50);
    pair.ends[0].send(flow, 7, 1, 5 * CHUNK);
    pair.trip();
    let why = Description::new(b"its type does not match").unwrap();
    assert!(pair.ends[1].machine.refuse(flow, why.clone()));
    assert!(!pair.ends[1].machine.refuse(flow, why.clone()), "once");
    assert!(!pair.ends[1].machine.refuse(0, why), "not the control flow");
    pair.run();
    let reports = pair.ends[0].take_reported();
    let refused = format!("{flow} refused, its type does not match, dropped");
    assert!(
        reports.iter().any(|of| of.starts_with(&refused)),
        "{reports:?}"
    );
    assert!(reports.contains(&format!("{flow} ended")));
    assert!(!pair.ends[0].send(flow, 7, 2, 50));
    let held = pair.ends[1].machine.held();
    assert_eq!((held.flows, held.large, held.grants), (0, 0, 0));
}

#[test]
fn a_flow_that_is_cut_ends_where_its_receiver_is_and_not_with_a_gap() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 50);
    let growing = SimPayload::new(7, 1, 5 * CHUNK, 2 * CHUNK);
    let description = Description::new(&crate::host::describe(1)).unwrap();
    let machine = &mut pair.ends[0].machine;
    machine.send(flow, 1, growing.clone(), description);
    pair.ends[0].send(flow, 7, 2, 50);
    pair.run();
    assert_eq!(pair.ends[1].take_delivered(), ["opened at 0", "small 0"]);
    assert_eq!(pair.ends[0].machine.cut(flow).len(), 2);
    assert!(pair.ends[0].machine.cut(flow).is_empty(), "once");
    assert!(!pair.ends[0].send(flow, 7, 3, 50));
    pair.run();
    assert_eq!(pair.ends[1].take_delivered(), ["closed at 1"]);
    let reported = pair.ends[0].take_reported();
    assert_eq!(reported.last().unwrap(), &format!("{flow} ended"));
    let held = pair.ends[1].machine.held();
    assert_eq!((held.flows, held.large, held.grants), (0, 0, 0));
    assert_eq!(std::sync::Arc::strong_count(&growing), 1);
    assert!(pair.ends[1].user.arena.lock().unwrap().is_free());
}

#[test]
fn what_is_out_is_delivered_before_the_end_of_a_flow_that_is_cut() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    pair.ends[1].is_slow = true;
    let flow = pair.ends[0].open(7, 0);
    (0..3).for_each(|sequence| assert!(pair.ends[0].send(flow, 7, sequence, 50)));
    pair.trip();
    pair.ends[0].machine.cut(flow);
    pair.run();
    pair.ends[1].is_slow = false;
    pair.ends[1].machine.buffer_free();
    pair.run();
    assert_eq!(
        pair.ends[1].take_delivered(),
        ["opened at 0", "closed at 0"]
    );
}

#[test]
fn messages_that_are_skipped_are_a_gap_though_none_follows() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 50);
    pair.ends[0].machine.skip(flow, 4);
    pair.ends[0].machine.skip(flow, 2);
    pair.run();
    assert_eq!(
        pair.ends[1].take_delivered(),
        ["opened at 0", "small 0", "missed 1..4"]
    );
}

/// Seed 874 of the simulation: the flow was refused after all chunks had left, and a lane lost some of them.
#[test]
fn a_refused_message_whose_chunks_are_lost_holds_no_buffer() {
    let mut pair = Pair::new(&[1, 2]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 6 * CHUNK);
    pair.trip();
    pair.trip();
    let chunks = pair.ends[0].write(2).len();
    assert!(chunks > 0, "lost with lane 2");
    assert!(pair.ends[1].machine.refuse(flow, Description::default()));
    let refusal = pair.ends[1].write(1);
    refusal
        .iter()
        .for_each(|sent| pair.ends[0].read(sent).unwrap());
    pair.lane_ends(2);
    pair.run();
    assert_eq!(pair.ends[1].machine.held().grants, 0);
    assert!(pair.ends[1].user.arena.lock().unwrap().is_free());
}

/// Seed 1267 of the simulation: CLOSE arrived before the receiver refused the flow, and the sender took its answer for a delivery.
#[test]
fn a_flow_that_is_refused_behind_its_end_acknowledges_nothing() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    pair.ends[1].is_slow = true;
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 50);
    pair.ends[0].machine.close(flow);
    pair.trip();
    assert!(pair.ends[1].machine.refuse(flow, Description::default()));
    pair.ends[1].is_slow = false;
    pair.run();
    let expected = [
        format!("{flow} refused, , dropped [0]"),
        format!("{flow} ended"),
    ];
    assert_eq!(pair.ends[0].take_reported(), expected);
    assert_eq!(pair.ends[1].machine.held().flows, 0);
}

#[test]
fn an_acknowledgement_that_is_lost_with_its_lane_is_sent_again() {
    let mut pair = Pair::new(&[1, 2]);
    pair.run();
    let first = pair.ends[0].open(7, 0);
    pair.ends[0].send(first, 7, 0, 50);
    let second = pair.ends[0].open(8, 0);
    pair.ends[0].send(second, 8, 0, 50);
    let frames = pair.ends[0].write(2);
    assert_eq!(
        names(&frames),
        ["Open", "Small"],
        "the second flow takes lane 2"
    );
    frames
        .iter()
        .for_each(|sent| pair.ends[1].read(sent).unwrap());
    pair.ends[1].machine.tick();
    assert!(
        names(&pair.ends[1].write(1)).contains(&"Ack"),
        "lost with lane 1"
    );
    pair.lane_ends(1);
    pair.run();
    let reported = pair.ends[0].take_reported();
    assert!(
        reported.contains(&format!("{second} acknowledged 0")),
        "{reported:?}"
    );
}

#[test]
fn a_refusal_that_is_lost_with_its_lane_is_sent_again() {
    let mut pair = Pair::new(&[1, 2]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.trip();
    assert!(pair.ends[1].machine.refuse(flow, Description::default()));
    assert!(names(&pair.ends[1].write(1)).contains(&"Refuse"));
    pair.lane_ends(1);
    pair.run();
    assert!(pair.ends[0]
        .take_reported()
        .contains(&format!("{flow} ended")));
}

/// The answer to CLOSE takes CLOSE's lane. If it is lost, the sender repeats CLOSE, and the receiver needs no tombstone to answer.
#[test]
fn an_end_that_is_lost_with_its_lane_is_told_again_from_the_number_alone() {
    let mut pair = Pair::new(&[1, 2]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 50);
    pair.ends[0].machine.close(flow);
    pair.trip();
    assert_eq!(pair.ends[1].take_delivered().last().unwrap(), "closed at 1");
    assert_eq!(
        pair.ends[1].machine.held().flows,
        0,
        "the receiver keeps nothing"
    );
    let lost: Vec<Sent> = [1, 2]
        .iter()
        .flat_map(|lane| pair.ends[1].write(*lane))
        .collect();
    let is_end = |sent: &&Sent| {
        matches!(
            sent.frame,
            Frame::Ack(frame::Ack {
                next: FLOW_ENDED,
                ..
            })
        )
    };
    let end = lost.iter().find(is_end).expect("the flow's end").lane;
    pair.lane_ends(end);
    pair.run();
    assert!(pair.ends[0]
        .take_reported()
        .contains(&format!("{flow} ended")));
    assert!(pair.ends[0].machine.sent(flow).is_none());
    assert!(
        pair.ends[1].take_delivered().is_empty(),
        "nothing is delivered twice"
    );
}

/// The sender has lost a lane, and the receiver still reads from it: there CLOSE arrives after its copy on the other lane.
#[test]
fn an_end_is_answered_on_the_lane_of_its_copy_though_a_lost_lane_brings_it_later() {
    let mut pair = Pair::new(&[1, 2]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    pair.ends[0].send(flow, 7, 0, 50);
    pair.ends[0].machine.close(flow);
    let is_end = |sent: &&Sent| matches!(sent.frame, Frame::Close(_));
    let late: Vec<Sent> = [1, 2]
        .iter()
        .flat_map(|lane| pair.ends[0].write(*lane))
        .collect();
    let lost = late.iter().find(is_end).expect("the flow's end").lane;
    pair.ends[0].machine.lane_ended(lost);
    let again = pair.ends[0].write(3 - lost);
    assert!(again.iter().any(|sent| is_end(&sent)), "it is sent again");
    pair.ends[1].is_slow = true;
    for sent in again.iter().chain(&late) {
        pair.ends[1].read(sent).unwrap();
        pair.ends[1].carry_out();
    }
    pair.ends[1].is_slow = false;
    pair.ends[1].machine.lane_ended(lost);
    pair.lanes.retain(|lane| *lane != lost);
    pair.ends[1].machine.buffer_free();
    pair.run();
    assert_eq!(pair.ends[1].take_delivered().last().unwrap(), "closed at 1");
    assert!(pair.ends[0]
        .take_reported()
        .contains(&format!("{flow} ended")));
}

#[test]
fn numbers_of_flows_are_not_used_again_and_thousands_leave_nothing() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let mut last = 0;
    for _ in 0..5 {
        let flows: Vec<u64> = (0..FLOWS_MAX).map(|_| pair.ends[0].open(7, 0)).collect();
        assert!(flows[0] > last);
        last = *flows.last().unwrap();
        assert_eq!(
            pair.ends[0].machine.open(0, Description::default()),
            None,
            "one too many"
        );
        flows
            .iter()
            .for_each(|flow| pair.ends[0].machine.close(*flow));
        pair.run();
        assert_eq!(pair.ends[1].machine.held().flows, 0);
        assert!(!flows
            .iter()
            .any(|flow| pair.ends[0].machine.sent(*flow).is_some()));
    }
}

#[test]
fn flows_go_on_to_another_peer_with_what_they_retain() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flows = [5, 6, 7, 8].map(|publisher| pair.ends[0].open(publisher, 0));
    let [open, closed, cut, unwanted] = flows;
    pair.run();
    pair.ends[1].is_slow = true;
    for (flow, publisher) in flows.into_iter().zip(5..) {
        pair.ends[0].send(flow, publisher, 3, 50);
        pair.ends[0].send(flow, publisher, 4, 3 * CHUNK);
    }
    pair.run();
    pair.ends[0].machine.close(closed);
    assert_eq!(pair.ends[0].machine.cut(cut).len(), 2);
    pair.lane_ends(1);
    pair.ends[1] = end(limits());
    drop(pair.ends[0].machine.restart());
    pair.ends[0].carry_out();
    assert_eq!(pair.ends[0].take_reported(), [format!("{cut} ended")]);
    // The flows wait until their user reopens them, and take messages meanwhile.
    assert!(pair.ends[0].send(open, 5, 6, 50));
    pair.lane_up(2);
    pair.run();
    assert!(pair.ends[1].take_delivered().is_empty());
    let machine = &mut pair.ends[0].machine;
    let is_waiting = |machine: &LinkMachine, flow| machine.sent(flow).unwrap().is_waiting();
    assert!(is_waiting(machine, open) && is_waiting(machine, unwanted));
    assert_eq!(machine.sent(open).unwrap().retained, 50 + 3 * CHUNK + 50);
    assert_eq!(machine.cut(unwanted).len(), 2);
    for (flow, publisher) in [(open, 5_u64), (closed, 6)] {
        machine.reopen(flow, Description::new(&publisher.to_le_bytes()).unwrap());
        assert!(!is_waiting(machine, flow));
    }
    pair.run();
    let delivered = std::mem::take(&mut pair.ends[1].delivered);
    let of = |flow| {
        let of_flow = delivered.iter().filter(move |(of, _)| *of == flow);
        of_flow.map(|(_, name)| &name[..]).collect::<Vec<_>>()
    };
    let both = ["opened at 0", "missed 0..3", "small 3", "large 4"];
    assert_eq!(of(open), [&both[..], &["missed 5..6", "small 6"]].concat());
    assert_eq!(of(closed), [&both[..], &["closed at 5"]].concat());
    let ended = |flow| pair.ends[0].reported.contains(&format!("{flow} ended"));
    assert!(ended(closed) && ended(unwanted) && !ended(open));
    assert_eq!(pair.ends[0].machine.retained_bytes(), 0);
}

#[test]
fn the_control_flow_needs_no_opening() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    pair.ends[0]
        .user
        .decisions
        .lock()
        .unwrap()
        .publishers
        .insert(0, 9);
    pair.ends[1]
        .user
        .decisions
        .lock()
        .unwrap()
        .publishers
        .insert(0, 9);
    pair.ends[0].send(0, 9, 0, 100);
    pair.ends[0].send(0, 9, 1, 5000);
    assert_eq!(pair.trips_until("small 0"), 1);
    assert_eq!(pair.trips_until("large 1"), 2);
    pair.ends[0].machine.close(0);
    assert!(pair.ends[0].machine.sent(0).is_some());
}

#[test]
fn what_is_said_waits_up_to_a_limit() {
    let mut one = end(limits());
    assert!(!one.machine.say(Arc::new(Vec::new())), "empty");
    let large: Arc<dyn Payload> = Arc::new(vec![1; 32 << 20]);
    assert!(one.machine.say(large.clone()) && one.machine.say(large.clone()));
    assert!(!one.machine.say(large.clone()), "64 MiB wait");
    assert!(one.machine.cancel(0, 0).is_some());
    assert!(one.machine.say(large.clone()));
    assert_eq!(one.machine.retained_bytes(), 64 << 20);
}

#[test]
fn a_cancelled_message_that_grows_becomes_a_gap_and_its_buffer_returns() {
    let mut pair = Pair::new(&[1]);
    pair.run();
    let flow = pair.ends[0].open(7, 0);
    let payload = SimPayload::new(7, 0, 5 * CHUNK, 2 * CHUNK);
    let description = Description::new(&crate::host::describe(0)).unwrap();
    let machine = &mut pair.ends[0].machine;
    machine.send(flow, 0, payload.clone(), description);
    pair.ends[0].send(flow, 7, 1, 50);
    pair.run();
    assert_eq!(
        pair.ends[1].take_delivered(),
        ["opened at 0"],
        "the small one waits for its turn"
    );
    let held = pair.ends[1].machine.held();
    assert_eq!((held.large, held.grants), (1, 1));
    assert!(pair.ends[0].machine.cancel(flow, 0).is_some());
    assert!(pair.ends[0].machine.cancel(flow, 0).is_none(), "once");
    pair.run();
    assert_eq!(pair.ends[1].take_delivered(), ["missed 0..1", "small 1"]);
    let held = pair.ends[1].machine.held();
    assert_eq!((held.large, held.grants), (0, 0));
    assert_eq!(std::sync::Arc::strong_count(&payload), 1);
    assert!(pair.ends[1].user.arena.lock().unwrap().is_free());
}

#[test]
fn a_message_has_at_most_65536_chunks() {
    let mut limits = limits();
    limits.chunk_bytes = 1;
    let mut sender = end(limits);
    assert!(sender.machine.lane_up(1, 64 << 10));
    let flow = sender.open(7, 0);
    sender.send(flow, 7, 0, 65_537);
    let frames = sender.write(1);
    let Frame::Request(frame::Request { chunk_bytes, .. }) = frames.last().unwrap().frame else {
        panic!("{:?}", names(&frames));
    };
    assert_eq!(chunk_bytes, 2);
}

#[test]
fn lanes_that_name_different_windows_do_not_join_one_link() {
    let mut one = end(limits());
    assert!(one.machine.lane_up(1, 64 << 10));
    assert!(!one.machine.lane_up(1, 64 << 10), "it is here");
    assert!(!one.machine.lane_up(2, 32 << 10));
    assert!(one.machine.lane_up(2, 64 << 10));
}
