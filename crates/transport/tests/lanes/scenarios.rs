//! The conformance suite of lanes: the same scenarios over each kind. Every wait is limited; every byte is checked where it lands.
use super::finish::{config, finish};
use super::hosts::*;
use rgaps_transport::{Endpoint, LinkConfig, Peer};
use rgaps_transport::{LaneKey, Payload};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

/// A kind of lanes.
pub trait Over {
    fn endpoint(&self, incarnation: u64) -> Endpoint;
    /// A user for a link of that endpoint.
    fn host(&self, endpoint: &Endpoint) -> Arc<Host>;
    /// Checks that a link's lanes are of this kind.
    fn check(&self, link: &Link);
}

/// A test for each scenario.
macro_rules! conformance {
    ($over:expr) => {
        conformance!(
            $over,
            messages_of_all_sizes_cross_both_ways_and_are_acknowledged,
            a_link_that_was_idle_acknowledges_small_messages_again,
            a_receiver_without_memory_holds_back_its_flow_only,
            what_is_refused_or_left_out_is_missed_in_its_turn,
            a_flow_that_is_refused_ends_and_says_why,
            a_lane_that_is_busy_with_what_it_heard_is_not_quiet,
            a_daemon_that_comes_back_gets_what_it_did_not_acknowledge,
            a_sender_that_comes_back_repeats_nothing_that_was_committed,
            a_link_that_one_end_made_again_begins_anew_at_both_and_loses_nothing
        );
    };
    ($over:expr, $($scenario:ident),*) => {
        $(#[test]
        fn $scenario() {
            lanes::scenarios::$scenario(&$over);
        })*
    };
}
pub(crate) use conformance;

const FLOW: Flow = Flow {
    topic: 1,
    incarnation: 11,
};

fn sizes(count: u64) -> impl Iterator<Item = (u64, usize)> {
    let sizes = [1, 64, 4000, 16 << 10, 17 << 10, 300_000, 3_000_001];
    (0..count).map(move |sequence| (sequence, sizes[(sequence % 7) as usize]))
}

pub fn messages_of_all_sizes_cross_both_ways_and_are_acknowledged(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    // One end spins before it sleeps.
    let spins = LinkConfig {
        spin: Duration::from_micros(200),
        ..LinkConfig::default()
    };
    let to_b = link(&a, spins, peer(2, &[b.local_addr().unwrap()]), &at_a);
    let to_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    for one in [&to_b, &to_a] {
        one.open(FLOW, 0);
    }
    for (sequence, bytes) in sizes(70) {
        send(&to_b, &at_a, FLOW, sequence, bytes);
        send(&to_a, &at_b, FLOW, sequence, bytes);
    }
    to_b.close_flow(FLOW);
    to_a.close_flow(FLOW);
    for (one, host) in [(&to_b, &at_a), (&to_a, &at_b)] {
        host.has("the end of the flow", |event| {
            *event == Event::Ended { flow: FLOW }
        });
        host.has("the end of the peer's", |event| {
            *event == Event::Closed { flow: FLOW }
        });
        let all: Vec<u64> = (0..70).collect();
        let seen = host.seen.lock().unwrap();
        assert_eq!(seen.committed[&FLOW], all);
        assert_eq!(seen.acknowledged(FLOW), all);
        assert!(seen.missed.is_empty());
        drop(seen);
        host.gives_back();
        assert_eq!((one.status().retained_bytes, one.status().arriving), (0, 0));
        one.wait_lanes(4);
        over.check(one);
    }
    assert_eq!((to_b.violations(), to_a.violations()), (0, 0));
    within_limit("the links' end", move || drop((to_a, to_b, a, b)));
}

pub fn a_link_that_was_idle_acknowledges_small_messages_again(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    let to_b = link(
        &a,
        LinkConfig::default(),
        peer(2, &[b.local_addr().unwrap()]),
        &at_a,
    );
    let from_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    for sequence in 0..3 {
        // By then the clock ticks slowly. A single small message is acknowledged at a tick.
        std::thread::sleep(Duration::from_millis(700));
        send(&to_b, &at_a, FLOW, sequence, 10);
        let count = sequence as usize + 1;
        at_a.wait("it", |seen| seen.acknowledged(FLOW).len() == count);
    }
    within_limit("the links' end", move || drop((to_b, from_a, a, b)));
}

pub fn a_receiver_without_memory_holds_back_its_flow_only(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    let to_b = link(
        &a,
        LinkConfig::default(),
        peer(2, &[b.local_addr().unwrap()]),
        &at_a,
    );
    let from_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    let other = Flow {
        topic: 2,
        incarnation: 11,
    };
    to_b.open(FLOW, 0);
    to_b.open(other, 0);
    at_b.memory_max.store(100_000, SeqCst);
    // A message larger than the memory waits, while small ones of another flow arrive.
    send(&to_b, &at_a, FLOW, 0, 200_000);
    send(&to_b, &at_a, FLOW, 1, 10);
    for sequence in 0..50 {
        send(&to_b, &at_a, other, sequence, 1000);
    }
    at_b.wait("the other flow", |seen| {
        seen.committed
            .get(&other)
            .is_some_and(|all| all.len() == 50)
    });
    assert!(!at_b.seen.lock().unwrap().committed.contains_key(&FLOW));
    at_b.memory_max.store(1 << 20, SeqCst);
    from_a.buffer_free();
    at_b.wait("the flow", |seen| {
        seen.committed.get(&FLOW).is_some_and(|all| *all == [0, 1])
    });
    // Nor are messages acknowledged that cannot be delivered.
    at_b.commits_left.store(2, SeqCst);
    for sequence in 2..8 {
        send(
            &to_b,
            &at_a,
            FLOW,
            sequence,
            if sequence % 2 == 0 { 20 } else { 50_000 },
        );
    }
    at_a.wait("two more", |seen| seen.acknowledged(FLOW).len() == 4);
    // The link tries to deliver again and again, and acknowledges none of the attempts.
    until("more attempts", || at_b.commits_refused.load(SeqCst) > 5);
    assert_eq!(at_a.seen.lock().unwrap().acknowledged(FLOW), [0, 1, 2, 3]);
    at_b.commits_left.store(u64::MAX, SeqCst);
    at_a.wait("all", |seen| seen.acknowledged(FLOW).len() == 8);
    within_limit("the links' end", move || drop((to_b, from_a, a, b)));
    at_b.gives_back();
}

pub fn what_is_refused_or_left_out_is_missed_in_its_turn(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    let to_b = link(
        &a,
        LinkConfig::default(),
        peer(2, &[b.local_addr().unwrap()]),
        &at_a,
    );
    let from_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    let refused = Flow {
        topic: u64::MAX,
        incarnation: 1,
    };
    to_b.open(FLOW, 5);
    to_b.open(refused, 0);
    for sequence in [5, 6, 9, 20] {
        send(&to_b, &at_a, FLOW, sequence, 100_000);
    }
    for (sequence, bytes) in [(0, 10), (1, 1_000_000), (2, 10)] {
        send(&to_b, &at_a, refused, sequence, bytes);
    }
    at_b.wait("the refused", |seen| {
        seen.missed.get(&refused).is_some_and(|all| all.len() == 3)
    });
    at_b.wait("the flow", |seen| {
        seen.committed.get(&FLOW).is_some_and(|all| all.len() == 4)
    });
    let seen = at_b.seen.lock().unwrap();
    assert_eq!(seen.missed[&FLOW], [(7, 9), (10, 20)]);
    assert_eq!(seen.missed[&refused], [(0, 1), (1, 2), (2, 3)]);
    drop(seen);
    at_a.wait("the sender to hear", |seen| {
        seen.acknowledged
            .get(&refused)
            .is_some_and(|all| all.len() == 3)
    });
    for (sequence, bytes) in [(21, vec![]), (20, vec![1])] {
        let payload: Arc<dyn Payload> = Arc::new(bytes);
        let never = to_b.offer(FLOW, sequence, &payload);
        assert!(!never, "empty, or too late");
    }
    within_limit("the links' end", move || drop((to_b, from_a, a, b)));
}

pub fn a_flow_that_is_refused_ends_and_says_why(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let to_b = link(&a, config(), peer(2, &dial), &at_a);
    let from_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 3);
    at_b.memory_max.store(0, SeqCst);
    let sizes = [(3, 100), (4, 200_000), (5, 100)];
    for (sequence, bytes) in sizes {
        send(&to_b, &at_a, FLOW, sequence, bytes);
    }
    at_b.has("the flow", |event| *event == Event::Opened { flow: FLOW });
    assert!(from_a.refuse(FLOW, "no such type here"));
    let refused = Event::FlowRefused {
        flow: FLOW,
        why: "no such type here".into(),
        dropped: vec![3, 4, 5],
    };
    at_a.has("the refusal", |event| *event == refused);
    at_a.has("the end of the flow", |event| {
        *event == Event::Ended { flow: FLOW }
    });
    // The flow never had memory, so nothing was delivered.
    let seen = at_b.seen.lock().unwrap();
    assert!(seen.committed.is_empty() && seen.missed.is_empty());
    drop(seen);
    assert_eq!(to_b.status().retained_bytes, 0);
    within_limit("the links' end", move || drop((to_b, from_a, a, b)));
}

pub fn a_lane_that_is_busy_with_what_it_heard_is_not_quiet(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    // The lane's thread handles bytes, and reads none, for more than twice as long as a peer may be quiet.
    *at_b.dawdle.lock().unwrap() = Duration::from_millis(3500);
    let one_lane = LinkConfig {
        lanes: 1,
        ..LinkConfig::default()
    };
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let to_b = link(&a, one_lane, peer(2, &dial), &at_a);
    let to_a = link(&b, one_lane, peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    for sequence in 0..4 {
        send(&to_b, &at_a, FLOW, sequence, 300_000);
    }
    finish(&to_b, &at_a, &at_b, &[FLOW], 4);
    for host in [&at_a, &at_b] {
        let downs = host.count(|event| matches!(event, Event::Link(LinkEvent::Down { .. })));
        assert_eq!(downs, 0, "a lane was closed");
    }
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

pub fn a_daemon_that_comes_back_gets_what_it_did_not_acknowledge(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    let to_b = link(&a, config(), peer(2, &[b.local_addr().unwrap()]), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    at_b.commits_left.store(3, SeqCst);
    for sequence in 0..6 {
        send(&to_b, &at_a, FLOW, sequence, 50_000);
    }
    at_a.wait("three of six", |seen| seen.acknowledged(FLOW).len() == 3);
    // The daemon dies with three messages that have arrived and are not delivered.
    within_limit("its end", move || drop((to_a, b)));
    at_b.gives_back();
    let b = over.endpoint(3);
    let other = LaneKey([8; 32]);
    let owner = over.host(&b);
    let back = Peer {
        incarnation: 1,
        key: other,
        dial: vec![],
    };
    owner.has_delivered(FLOW, 3);
    let to_a = link(&b, config(), back, &owner);
    // Until the control plane gives the sender the new incarnation, the new daemon refuses its lanes.
    let address = b.local_addr().unwrap();
    to_b.set_peer(peer(2, &[address])).unwrap();
    at_a.has("a refusal", |event| {
        matches!(event, Event::Link(LinkEvent::LaneRefused { why }) if why.contains("incarnation") && why.contains("0x2") && why.contains("0x3"))
    });
    to_b.set_peer(Peer {
        incarnation: 3,
        key: other,
        dial: vec![address],
    })
    .unwrap();
    at_a.has("the restart", |event| {
        *event == Event::Link(LinkEvent::Restarted)
    });
    owner.wait("the rest", |seen| {
        seen.committed
            .get(&FLOW)
            .is_some_and(|all| *all == [3, 4, 5])
    });
    at_a.wait("its acknowledgement", |seen| {
        seen.acknowledged(FLOW) == [0, 1, 2, 3, 4, 5]
    });
    assert!(owner.seen.lock().unwrap().missed.is_empty());
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

pub fn a_sender_that_comes_back_repeats_nothing_that_was_committed(over: &dyn Over) {
    let b = over.endpoint(2);
    let at_b = over.host(&b);
    let a = over.endpoint(1);
    let at_a = over.host(&a);
    let address = b.local_addr().unwrap();
    let to_b = link(&a, config(), peer(2, &[address]), &at_a);
    let to_a = link(&b, config(), peer(0, &[]), &at_b);
    to_b.open(FLOW, 0);
    for sequence in 0..4 {
        send(&to_b, &at_a, FLOW, sequence, 100_000);
    }
    at_a.wait("four", |seen| seen.acknowledged(FLOW).len() == 4);
    within_limit("its end", move || drop((to_b, a)));
    // The publisher survives, and its next daemon finds four old messages and one new one.
    let a = over.endpoint(5);
    let at_a = over.host(&a);
    let to_b = link(&a, config(), peer(2, &[address]), &at_a);
    to_b.open(FLOW, 0);
    for sequence in 0..5 {
        send(&to_b, &at_a, FLOW, sequence, 100_000);
    }
    finish(&to_b, &at_a, &at_b, &[FLOW], 5);
    assert_eq!(
        at_b.count(|event| *event == Event::Link(LinkEvent::Restarted)),
        1
    );
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

/// Incarnations and key stay the same; only the machine is a new one.
pub fn a_link_that_one_end_made_again_begins_anew_at_both_and_loses_nothing(over: &dyn Over) {
    let (a, b) = (over.endpoint(1), over.endpoint(2));
    let (at_a, at_b) = (over.host(&a), over.host(&b));
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let to_b = link(&a, config(), peer(2, &dial), &at_a);
    let mut to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    let mut next = 0;
    for round in 1..=3 {
        at_b.commits_left.store(2, SeqCst);
        for bytes in [10, 200_000, 10, 200_000] {
            send(&to_b, &at_a, FLOW, next, bytes);
            next += 1;
        }
        let acknowledged = next as usize - 2;
        at_a.wait("two of four", |seen| {
            seen.acknowledged(FLOW).len() >= acknowledged
        });
        within_limit("the link's end", move || drop(to_a));
        to_a = link(&b, config(), peer(1, &[]), &at_b);
        at_b.commits_left.store(u64::MAX, SeqCst);
        at_a.wait("the restart", |seen| {
            let restarts = seen.events.iter();
            restarts
                .filter(|event| **event == Event::Link(LinkEvent::Restarted))
                .count()
                >= round
        });
        at_a.wait("the rest", |seen| {
            seen.acknowledged(FLOW).len() == next as usize
        });
    }
    finish(&to_b, &at_a, &at_b, &[FLOW], next);
    assert_eq!((to_b.violations(), to_a.violations()), (0, 0));
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}
