//! Links over TCP on loopback. Every wait is limited; every byte is checked where it lands.
#![forbid(unsafe_code)]
mod tcp {
    pub mod hosts;
}
use rgaps_transport::{Event, Flow, LinkConfig, Sent};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tcp::hosts::*;

const FLOW: Flow = Flow {
    topic: 1,
    incarnation: 11,
};

fn sizes(count: u64) -> impl Iterator<Item = (u64, usize)> {
    let sizes = [1, 64, 4000, 16 << 10, 17 << 10, 300_000, 3_000_001];
    (0..count).map(move |sequence| (sequence, sizes[(sequence % 7) as usize]))
}

#[test]
fn messages_of_all_sizes_cross_both_ways_and_are_acknowledged() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    // One end spins before it sleeps.
    let spins = LinkConfig {
        spin: Duration::from_micros(200),
        ..LinkConfig::default()
    };
    let to_b = link(&a, spins, peer(2, &[b.local_addr().unwrap()]), &at_a);
    let to_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    for one in [&to_b, &to_a] {
        one.open(FLOW, 0, true);
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
        assert_eq!(seen.acknowledged[&FLOW], all);
        assert!(seen.missed.is_empty());
        drop(seen);
        assert_eq!(host.in_use.load(SeqCst), 0);
        assert_eq!((one.status().retained_bytes, one.status().places), (0, 0));
        assert_eq!(one.status().lanes.len(), 4);
    }
    assert_eq!((a.counts().cut_off, b.counts().cut_off), (0, 0));
    within_limit("the links' end", move || drop((to_a, to_b, a, b)));
}

#[test]
fn a_link_that_was_idle_acknowledges_small_messages_again() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    let to_b = link(
        &a,
        LinkConfig::default(),
        peer(2, &[b.local_addr().unwrap()]),
        &at_a,
    );
    let from_a = link(&b, LinkConfig::default(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0, true);
    for sequence in 0..3 {
        // Its clock ticks seldom then; one small message is acknowledged when it ticks.
        std::thread::sleep(std::time::Duration::from_millis(700));
        send(&to_b, &at_a, FLOW, sequence, 10);
        let count = sequence as usize + 1;
        at_a.wait("it", |seen| seen.acknowledged(FLOW).len() == count);
    }
    within_limit("the links' end", move || drop((to_b, from_a, a, b)));
}

#[test]
fn a_receiver_without_memory_holds_back_its_flow_only() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
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
    to_b.open(FLOW, 0, true);
    to_b.open(other, 0, true);
    at_b.memory_max.store(100_000, SeqCst);
    // Larger than the memory: it waits, while small ones of another flow go on.
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
    from_a.retry();
    at_b.wait("the flow", |seen| {
        seen.committed.get(&FLOW).is_some_and(|all| *all == [0, 1])
    });
    // Neither is acknowledged what cannot be committed.
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
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(at_a.seen.lock().unwrap().acknowledged[&FLOW], [0, 1, 2, 3]);
    at_b.commits_left.store(u64::MAX, SeqCst);
    at_a.wait("all", |seen| seen.acknowledged(FLOW).len() == 8);
    within_limit("the links' end", move || drop((to_b, from_a, a, b)));
    assert_eq!(at_b.in_use.load(SeqCst), 0);
}

#[test]
fn what_is_refused_or_left_out_is_missed_in_its_turn() {
    let (a, b) = (endpoint(1), endpoint(2));
    let at_a = Host::new();
    let at_b = Host::new();
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
    to_b.open(FLOW, 5, true);
    to_b.open(refused, 0, true);
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
    let nothing: std::sync::Arc<Vec<u8>> = std::sync::Arc::default();
    assert_eq!(to_b.send(FLOW, 21, nothing, &[]), Sent::Never);
    assert_eq!(
        to_b.send(FLOW, 20, std::sync::Arc::new(vec![1]), &[]),
        Sent::Never
    );
    within_limit("the links' end", move || drop((to_b, from_a, a, b)));
}
