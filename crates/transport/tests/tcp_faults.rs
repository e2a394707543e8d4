//! Links over TCP through a proxy whose connections fail: nothing is lost, nothing comes twice, all memory
//! comes back. `SEEDS=n` runs more, `SEED=n` one.
#![forbid(unsafe_code)]
mod tcp {
    pub mod hosts;
    pub mod proxy;
}
use rgaps_transport::{Event, Flow, LaneKey, Link, LinkConfig, Peer, SenderConfig};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tcp::hosts::*;
use tcp::proxy::Proxy;

const FLOW: Flow = Flow {
    topic: 1,
    incarnation: 11,
};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

fn config() -> LinkConfig {
    LinkConfig {
        ring_bytes: 64 << 10,
        sender: SenderConfig {
            chunk_bytes: 64 << 10,
            ..SenderConfig::default()
        },
        beat_ms: 50,
        quiet_ms: 400,
        backoff_ms: (5, 100),
        ..LinkConfig::default()
    }
}

fn finish(link: &Link, from: &Host, to: &Host, flows: &[Flow], count: u64) {
    let all: Vec<u64> = (0..count).collect();
    for flow in flows {
        link.close_flow(*flow);
    }
    for flow in flows {
        from.has("the end of a flow", |event| {
            *event == Event::Ended { flow: *flow }
        });
        to.has("the end of it there", |event| {
            *event == Event::Closed { flow: *flow }
        });
        assert_eq!(
            to.seen.lock().unwrap().committed[flow],
            all,
            "in order, each once"
        );
        assert_eq!(from.seen.lock().unwrap().acknowledged(*flow), all);
    }
    assert!(to.seen.lock().unwrap().missed.is_empty());
    assert_eq!(to.in_use.load(SeqCst), 0, "all memory is back");
    let status = link.status();
    assert_eq!((status.retained_bytes, status.places), (0, 0));
}

fn resets(seed: u64) -> u64 {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    at_b.memory_max.store(2 << 20, SeqCst);
    let proxy = Proxy::new(b.local_addr().unwrap(), seed);
    proxy.reset_after(600_000);
    proxy.slow_us(seed % 3 * 100);
    let to_b = link(&a, config(), peer(2, &[proxy.address]), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    let flows: Vec<Flow> = (0..3)
        .map(|topic| Flow {
            topic,
            incarnation: seed,
        })
        .collect();
    for flow in &flows {
        to_b.open(*flow, 0, true);
    }
    let sizes = [1, 900, 15_000, 100_000, 700_001];
    for sequence in 0..24 {
        for flow in &flows {
            let bytes = sizes[((sequence + flow.topic + seed) % 5) as usize];
            send(&to_b, &at_a, *flow, sequence, bytes);
        }
    }
    proxy.reset_after(0);
    finish(&to_b, &at_a, &at_b, &flows, 24);
    assert_eq!((a.counts().cut_off, b.counts().cut_off), (0, 0));
    let resets = proxy.resets();
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
    resets
}

#[test]
fn lanes_that_are_reset_lose_and_duplicate_nothing() {
    let one = number("SEED");
    let seeds = one.map_or(0..number("SEEDS").unwrap_or(3), |seed| seed..seed + 1);
    let mut all = 0;
    for seed in seeds {
        match std::panic::catch_unwind(|| resets(seed)) {
            Ok(resets) => all += resets,
            Err(panic) => {
                eprintln!("again: SEED={seed} cargo test -p rgaps-transport --test tcp_faults lanes_that_are_reset");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{all} connections were reset");
    assert!(all > 0, "nothing was reset");
}

#[test]
fn a_lane_that_is_busy_with_what_it_heard_is_not_quiet() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    // Its lane reads nothing meanwhile, for more than twice as long as a peer may be quiet.
    *at_b.dawdle.lock().unwrap() = Duration::from_millis(1000);
    let one_lane = LinkConfig {
        lanes: 1,
        ..config()
    };
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let to_b = link(&a, one_lane, peer(2, &dial), &at_a);
    let to_a = link(&b, one_lane, peer(1, &[]), &at_b);
    to_b.open(FLOW, 0, true);
    for sequence in 0..4 {
        send(&to_b, &at_a, FLOW, sequence, 300_000);
    }
    finish(&to_b, &at_a, &at_b, &[FLOW], 4);
    for host in [&at_a, &at_b] {
        let downs = host.count(|event| matches!(event, Event::Down { .. }));
        assert_eq!(downs, 0, "a lane was closed");
    }
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

#[test]
fn a_blackhole_is_noticed_and_healed() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    let proxy = Proxy::new(b.local_addr().unwrap(), 1);
    let to_b = link(&a, config(), peer(2, &[proxy.address]), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0, true);
    send(&to_b, &at_a, FLOW, 0, 1000);
    at_b.wait("the first", |seen| seen.committed.contains_key(&FLOW));
    proxy.blackhole(true);
    for sequence in 1..10 {
        send(&to_b, &at_a, FLOW, sequence, 200_000);
    }
    for host in [&at_a, &at_b] {
        host.has("the loss of the link", |event| {
            matches!(event, Event::Down { .. })
        });
    }
    assert!(to_b.status().retained_bytes >= 9 * 200_000);
    proxy.reset_all();
    proxy.blackhole(false);
    at_a.wait("a link again", |seen| {
        seen.events
            .iter()
            .filter(|event| **event == Event::Up)
            .count()
            >= 2
    });
    finish(&to_b, &at_a, &at_b, &[FLOW], 10);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

#[test]
fn a_slow_link_is_not_taken_for_a_lost_one() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    let proxy = Proxy::new(b.local_addr().unwrap(), 1);
    proxy.slow_us(20_000);
    let config = LinkConfig {
        lanes: 2,
        quiet_ms: 3000,
        ..config()
    };
    let to_b = link(&a, config, peer(2, &[proxy.address]), &at_a);
    let to_a = link(&b, config, peer(1, &[]), &at_b);
    to_b.open(FLOW, 0, true);
    for sequence in 0..4 {
        send(&to_b, &at_a, FLOW, sequence, 600_000);
    }
    finish(&to_b, &at_a, &at_b, &[FLOW], 4);
    assert_eq!(at_a.count(|event| matches!(event, Event::Down { .. })), 0);
    assert!(proxy.carried() > 4 * 600_000);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

#[test]
fn an_outage_that_is_too_long_is_a_gap_on_both_sides() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    let proxy = Proxy::new(b.local_addr().unwrap(), 1);
    let mut config = config();
    config.sender.outage_bytes_max = 300_000;
    let to_b = link(&a, config, peer(2, &[proxy.address]), &at_a);
    let to_a = link(&b, config, peer(1, &[]), &at_b);
    to_b.open(FLOW, 0, true);
    send(&to_b, &at_a, FLOW, 0, 1000);
    at_a.wait("the first", |seen| seen.acknowledged(FLOW) == [0]);
    proxy.blackhole(true);
    at_a.has("the loss of the link", |event| {
        matches!(event, Event::Down { .. })
    });
    for sequence in 1..=5 {
        send(&to_b, &at_a, FLOW, sequence, 100_000);
    }
    at_a.wait("two given up", |seen| {
        seen.gave_up
            .get(&FLOW)
            .is_some_and(|all| *all == [(1, 2), (2, 3)])
    });
    proxy.reset_all();
    proxy.blackhole(false);
    at_b.wait("the rest", |seen| {
        seen.committed
            .get(&FLOW)
            .is_some_and(|all| *all == [0, 3, 4, 5])
    });
    assert_eq!(at_b.seen.lock().unwrap().missed[&FLOW], [(1, 3)]);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

#[test]
fn a_daemon_that_comes_back_gets_what_it_did_not_acknowledge() {
    let a = endpoint(1);
    let (at_a, at_b) = (Host::new(), Host::new());
    let b = endpoint(2);
    let to_b = link(&a, config(), peer(2, &[b.local_addr().unwrap()]), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0, true);
    at_b.commits_left.store(3, SeqCst);
    for sequence in 0..6 {
        send(&to_b, &at_a, FLOW, sequence, 50_000);
    }
    at_a.wait("three of six", |seen| seen.acknowledged(FLOW).len() == 3);
    // The daemon dies with three messages that it has and did not commit.
    within_limit("its end", move || drop((to_a, b)));
    assert_eq!(at_b.in_use.load(SeqCst), 0);
    let committed = [(FLOW, 3)];
    let b = endpoint(3);
    let other = LaneKey([8; 32]);
    let owner = Host::new();
    let back = Peer {
        incarnation: 1,
        key: other,
        dial: vec![],
    };
    let to_a = b
        .link_after("a", config(), back, owner.clone(), &committed)
        .unwrap();
    // As long as the control plane has not told the sender, nothing is accepted from it.
    let address = b.local_addr().unwrap();
    to_b.set_peer(peer(2, &[address])).unwrap();
    at_a.has("a refusal", |event| {
        matches!(event, Event::Refused { why } if why.contains("Incarnation") && why.contains("0x2") && why.contains("0x3"))
    });
    to_b.set_peer(Peer {
        incarnation: 3,
        key: other,
        dial: vec![address],
    })
    .unwrap();
    at_a.has("the restart", |event| *event == Event::PeerRestarted);
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

#[test]
fn a_sender_that_comes_back_repeats_nothing_that_was_committed() {
    let b = endpoint(2);
    let at_b = Host::new();
    let a = endpoint(1);
    let at_a = Host::new();
    let address = b.local_addr().unwrap();
    let to_b = link(&a, config(), peer(2, &[address]), &at_a);
    let to_a = link(&b, config(), peer(0, &[]), &at_b);
    to_b.open(FLOW, 0, true);
    for sequence in 0..4 {
        send(&to_b, &at_a, FLOW, sequence, 100_000);
    }
    at_a.wait("four", |seen| seen.acknowledged(FLOW).len() == 4);
    within_limit("its end", move || drop((to_b, a)));
    // The publisher lived on, and its next daemon finds four old messages and one new one.
    let a = endpoint(5);
    let at_a = Host::new();
    let to_b = link(&a, config(), peer(2, &[address]), &at_a);
    to_b.open(FLOW, 0, true);
    for sequence in 0..5 {
        send(&to_b, &at_a, FLOW, sequence, 100_000);
    }
    finish(&to_b, &at_a, &at_b, &[FLOW], 5);
    assert_eq!(at_b.count(|event| *event == Event::PeerRestarted), 1);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
    std::thread::sleep(Duration::ZERO);
}
