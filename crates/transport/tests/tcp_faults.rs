//! Links over TCP through a proxy whose connections fail: no message is lost or delivered twice, and all memory is freed. `SEEDS=n` runs
//! n seeds, `SEED=n` only this one.
#![forbid(unsafe_code)]
#[allow(dead_code, reason = "every test program uses a part of it")]
mod lanes {
    pub mod finish;
    pub mod hosts;
    pub mod proxy;
    pub mod raw;
}
use lanes::finish::{config, finish};
use lanes::hosts::*;
use lanes::proxy::Proxy;
use lanes::raw::{hello, reset, Raw};
use rgaps_transport::machine::frame::{self, Frame};
use rgaps_transport::LinkConfig;
use std::sync::atomic::Ordering::SeqCst;

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
        to_b.open(*flow, 0);
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
    assert_eq!((to_b.violations(), to_a.violations()), (0, 0));
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
fn a_blackhole_is_noticed_and_healed() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    let proxy = Proxy::new(b.local_addr().unwrap(), 1);
    let to_b = link(&a, config(), peer(2, &[proxy.address]), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    send(&to_b, &at_a, FLOW, 0, 1000);
    at_b.wait("the first", |seen| seen.committed.contains_key(&FLOW));
    proxy.blackhole(true);
    for sequence in 1..10 {
        send(&to_b, &at_a, FLOW, sequence, 200_000);
    }
    for host in [&at_a, &at_b] {
        host.has("the loss of the link", |event| {
            matches!(event, Event::Link(LinkEvent::Down { .. }))
        });
    }
    assert!(to_b.status().retained_bytes >= 9 * 200_000);
    proxy.reset_all();
    proxy.blackhole(false);
    at_a.wait("a link again", |seen| {
        seen.events
            .iter()
            .filter(|event| **event == Event::Link(LinkEvent::Up))
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
    to_b.open(FLOW, 0);
    for sequence in 0..4 {
        send(&to_b, &at_a, FLOW, sequence, 600_000);
    }
    finish(&to_b, &at_a, &at_b, &[FLOW], 4);
    assert_eq!(
        at_a.count(|event| matches!(event, Event::Link(LinkEvent::Down { .. }))),
        0
    );
    assert!(proxy.carried() > 4 * 600_000);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

#[test]
fn messages_that_are_given_up_in_an_outage_are_a_gap() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    let proxy = Proxy::new(b.local_addr().unwrap(), 1);
    let to_b = link(&a, config(), peer(2, &[proxy.address]), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    send(&to_b, &at_a, FLOW, 0, 1000);
    at_a.wait("the first", |seen| seen.acknowledged(FLOW) == [0]);
    proxy.blackhole(true);
    at_a.has("the loss of the link", |event| {
        matches!(event, Event::Link(LinkEvent::Down { .. }))
    });
    for sequence in 1..=5 {
        send(&to_b, &at_a, FLOW, sequence, 100_000);
    }
    assert!(to_b.cancel(FLOW, 1) && to_b.cancel(FLOW, 2));
    assert!(!to_b.cancel(FLOW, 0), "it is acknowledged");
    assert_eq!(to_b.status().retained_bytes, 300_000);
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
fn a_replayed_hello_with_the_last_lane_number_does_not_lock_the_link_out() {
    let (a, b) = (endpoint(1), endpoint(2));
    let (at_a, at_b) = (Host::new(), Host::new());
    let proxy = Proxy::new(b.local_addr().unwrap(), 1);
    let to_b = link(&a, config(), peer(2, &[proxy.address]), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    send(&to_b, &at_a, FLOW, 0, 1000);
    at_b.wait("the first", |seen| seen.committed.contains_key(&FLOW));
    // A stranger who has read the key sends the same HELLO with another lane number.
    let mut high = hello();
    if let Frame::Hello(frame::Hello { lane, .. }) = &mut high {
        *lane = 0xffff_fff0;
    }
    let mut raw = Raw::new(b.local_addr().unwrap());
    raw.say(&high);
    let why = "number of the lane: expected 0x0, not 0xfffffff0";
    assert_eq!(raw.until_end(), [reset(why)]);
    // The same HELLO without a change becomes a lane, until it is quiet for too long.
    let mut raw = Raw::new(b.local_addr().unwrap());
    raw.say(&hello());
    let given = raw.hear();
    assert!(
        matches!(given, Some(Frame::Hello(frame::Hello { lane, .. })) if lane < 100),
        "{given:?}"
    );
    raw.until_end();
    // No connection is left, so the next message needs a new one. The link may not report `Down` in between.
    proxy.reset_all();
    send(&to_b, &at_a, FLOW, 1, 1000);
    finish(&to_b, &at_a, &at_b, &[FLOW], 2);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}
