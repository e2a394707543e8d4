//! Lanes over RDMA on an in-process network: the scenarios for all kinds of lanes. If RDMA is not possible, and while it is broken,
//! lanes are TCP lanes, and no message is lost or delivered twice. `SEEDS=n` runs n seeds, `SEED=n` only this one.
#[allow(dead_code, reason = "every test program uses a part of it")]
mod lanes {
    pub mod certificates;
    pub mod finish;
    pub mod hosts;
    pub mod rdma;
    pub mod scenarios;
}
use lanes::certificates::Authority;
use lanes::finish::{config, finish};
use lanes::hosts::*;
use lanes::rdma::Fabric;
use lanes::scenarios::{conformance, Over};
use rgaps_connection::{Security, Tls};
use rgaps_testkit::Random;
use rgaps_transport::machine::frame::RdmaMode;
use rgaps_transport::{Endpoint, EndpointConfig, EndpointError, LaneEnd, LaneKind, LinkConfig};
use rgaps_transport::{Rdma, RdmaError};
use rgaps_verbs::in_process::Faults;
use rgaps_verbs::{Status, Verbs};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

const FLOW: Flow = Flow {
    topic: 1,
    incarnation: 11,
};

impl Over for Fabric {
    fn endpoint(&self, incarnation: u64) -> Endpoint {
        Self::endpoint(self, incarnation)
    }

    fn host(&self, endpoint: &Endpoint) -> Arc<Host> {
        Self::host(self, endpoint)
    }

    fn check(&self, link: &Link) {
        let status = link.status();
        assert!(!status.lanes.is_empty());
        let channels: Vec<_> = status.lanes.iter().map(|lane| lane.channel).collect();
        let direct = channels.iter().map(|channel| {
            let channel = channel.unwrap_or_else(|| panic!("not RDMA: {:?}", status.lanes));
            assert_eq!(channel.not_drained, 0);
            channel.direct_bytes_sent
        });
        assert!(direct.sum::<u64>() > 0, "nothing went directly");
    }
}

/// Waits until a link has so many lanes, and all are RDMA lanes, or none is.
fn wait_lanes(link: &Link, count: usize, rdma: bool) {
    until(&format!("{count} lanes, rdma {rdma}"), || {
        let lanes = link.status().lanes;
        lanes.len() == count && lanes.iter().all(|lane| lane.channel.is_some() == rdma)
    });
}

/// The in-process network, or the device that `RGAPS_TEST_RDMA` names, for both ends.
fn fabric() -> Fabric {
    let mut fabric = Fabric::new(Faults::default());
    if let Ok(name) = std::env::var("RGAPS_TEST_RDMA") {
        let port = Verbs::ports().into_iter().find(|port| port.device == name);
        let port = port.unwrap_or_else(|| panic!("no device {name}: {:?}", Verbs::ports()));
        fabric.real = Some(Verbs::load().unwrap().open(&port).unwrap());
    }
    fabric
}

conformance!(fabric());

fn soon() -> LinkConfig {
    LinkConfig {
        rdma_again_ms: 30,
        ..config()
    }
}

struct Pair {
    a: Endpoint,
    b: Endpoint,
    at_a: Arc<Host>,
    at_b: Arc<Host>,
    to_b: Link,
    to_a: Link,
}

impl Pair {
    fn new(fabric: &Fabric, config: LinkConfig) -> Self {
        let (a, b) = (fabric.endpoint(1), fabric.endpoint(2));
        let (at_a, at_b) = (fabric.host(&a), fabric.host(&b));
        let dial: Vec<_> = b.local_addr().into_iter().collect();
        let to_b = link(&a, config, peer(2, &dial), &at_a);
        let to_a = link(&b, config, peer(1, &[]), &at_b);
        Self {
            a,
            b,
            at_a,
            at_b,
            to_b,
            to_a,
        }
    }

    fn end(self) {
        assert_eq!((self.to_b.violations(), self.to_a.violations()), (0, 0));
        within_limit("the links' end", move || {
            drop((self.to_b, self.to_a, self.a, self.b));
        });
    }
}

#[test]
fn a_peer_without_rdma_gets_tcp_lanes_with_the_reason() {
    let fabric = Fabric::new(Faults::default());
    let (a, b) = (fabric.endpoint(1), endpoint(2));
    let (at_a, at_b) = (fabric.host(&a), Host::new());
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let to_b = link(&a, config(), peer(2, &dial), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    to_b.open(FLOW, 0);
    send(&to_b, &at_a, FLOW, 0, 300_000);
    finish(&to_b, &at_a, &at_b, &[FLOW], 1);
    wait_lanes(&to_b, 4, false);
    to_a.wait_lanes(4);
    for lane in to_b.status().lanes {
        let why = lane.why_not.expect("a reason");
        assert!(why.contains("the peer has no RDMA"), "{why}");
    }
    assert!(to_a
        .status()
        .lanes
        .iter()
        .all(|lane| lane.why_not.is_none()));
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

#[test]
fn where_rdma_is_required_there_is_no_other_lane() {
    let fabric = Fabric::new(Faults::default());
    let (a, b) = (fabric.endpoint(1), endpoint(2));
    let (at_a, at_b) = (fabric.host(&a), Host::new());
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let required = LinkConfig {
        rdma: RdmaMode::Require,
        ..config()
    };
    let to_b = link(&a, required, peer(2, &dial), &at_a);
    let to_a = link(&b, config(), peer(1, &[]), &at_b);
    at_a.has(
        "a refusal",
        |event| matches!(event, Event::Link(LinkEvent::LaneRefused { why }) if why.contains("no RDMA")),
    );
    assert!(to_b.status().lanes.is_empty() && to_a.status().lanes.is_empty());
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
    // The same if both ends have RDMA and it does not work.
    fabric.network.set_link(false);
    let pair = Pair::new(&fabric, required);
    pair.at_a.has(
        "a refusal",
        |event| matches!(event, Event::Link(LinkEvent::LaneRefused { why }) if why.contains("RDMA")),
    );
    assert!(pair.to_b.status().lanes.is_empty());
    fabric.network.set_link(true);
    wait_lanes(&pair.to_b, 4, true);
    pair.end();
}

#[test]
fn over_tls_channels_are_agreed_on_and_what_breaks_is_tls() {
    let fabric = Fabric::new(Faults::default());
    let authority = Authority::new();
    let endpoint = |incarnation, name| {
        let config = EndpointConfig {
            incarnation,
            realm: 7,
            listen: Some(([127, 0, 0, 1], 0).into()),
            security: Security::Tls(Tls::new(&authority.files(name)).unwrap()),
            rdma: Some(fabric.rdma(incarnation)),
        };
        Endpoint::new(config).unwrap()
    };
    let (a, b) = (endpoint(1, "a"), endpoint(2, "b"));
    let (at_a, at_b) = (fabric.host(&a), fabric.host(&b));
    let dial: Vec<_> = b.local_addr().into_iter().collect();
    let to_b = named(&a, "b", config(), peer(2, &dial), &at_a);
    let to_a = named(&b, "a", config(), peer(1, &[]), &at_b);
    wait_lanes(&to_b, 4, true);
    to_b.open(FLOW, 0);
    (0..4).for_each(|sequence| send(&to_b, &at_a, FLOW, sequence, 300_000));
    at_a.wait("four", |seen| seen.acknowledged(FLOW).len() == 4);
    Fabric::check(&fabric, &to_b);
    fabric.network.set_link(false);
    wait_lanes(&to_b, 4, false);
    let lanes = to_b.status().lanes;
    assert!(
        lanes.iter().all(|lane| lane.kind == LaneKind::Tls),
        "{lanes:?}"
    );
    (4..8).for_each(|sequence| send(&to_b, &at_a, FLOW, sequence, 300_000));
    finish(&to_b, &at_a, &at_b, &[FLOW], 8);
    within_limit("the links' end", move || drop((to_b, to_a, a, b)));
}

#[test]
fn cleartext_has_to_be_allowed_and_rails_have_limits() {
    let fabric = Fabric::new(Faults::default());
    let refused = |rdma: Rdma| {
        let config = EndpointConfig {
            incarnation: 1,
            realm: 7,
            listen: None,
            security: Security::Loopback,
            rdma: Some(rdma),
        };
        match Endpoint::new(config) {
            Err(EndpointError::Rdma(error)) => error,
            other => panic!("{:?}", other.map(|_| "an endpoint")),
        }
    };
    let mut rdma = fabric.rdma(1);
    rdma.trusted_fabric = false;
    assert!(matches!(refused(rdma), RdmaError::Fabric));
    let mut rdma = fabric.rdma(1);
    rdma.rails.clear();
    assert!(matches!(refused(rdma), RdmaError::Rails(0)));
}

#[test]
fn a_trial_that_fails_leaves_tcp_lanes_that_are_replaced_when_it_works() {
    let fabric = Fabric::new(Faults::default());
    fabric.network.set_link(false);
    let pair = Pair::new(&fabric, soon());
    for link in [&pair.to_b, &pair.to_a] {
        wait_lanes(link, 4, false);
        let reasons = link.status().lanes;
        let why = reasons.iter().find_map(|lane| lane.why_not.clone());
        assert!(why.is_some(), "{reasons:?}");
        assert!(link.status().counts.rdma_failed > 0);
    }
    pair.to_b.open(FLOW, 0);
    for sequence in 0..5 {
        send(&pair.to_b, &pair.at_a, FLOW, sequence, 200_000);
    }
    fabric.network.set_link(true);
    wait_lanes(&pair.to_b, 4, true);
    for sequence in 5..10 {
        send(&pair.to_b, &pair.at_a, FLOW, sequence, 200_000);
    }
    finish(&pair.to_b, &pair.at_a, &pair.at_b, &[FLOW], 10);
    fabric.check(&pair.to_b);
    pair.end();
}

#[test]
fn as_many_lanes_as_there_can_be_are_replaced_too() {
    let fabric = Fabric::new(Faults::default());
    fabric.network.set_link(false);
    let config = LinkConfig { lanes: 8, ..soon() };
    let pair = Pair::new(&fabric, config);
    wait_lanes(&pair.to_b, 8, false);
    fabric.network.set_link(true);
    wait_lanes(&pair.to_b, 8, true);
    wait_lanes(&pair.to_a, 8, true);
    pair.end();
}

#[test]
fn what_goes_how_is_counted_and_a_lane_that_breaks_is_told_of_with_its_status() {
    const BYTES: u64 = 300_000;
    let fabric = Fabric::new(Faults::default());
    let pair = Pair::new(&fabric, soon());
    wait_lanes(&pair.to_b, 4, true);
    pair.to_b.open(FLOW, 0);
    (0..4).for_each(|sequence| send(&pair.to_b, &pair.at_a, FLOW, sequence, BYTES as usize));
    pair.at_a
        .wait("four", |seen| seen.acknowledged(FLOW).len() == 4);
    // Lanes count bytes after they have sent or received them.
    until("all bytes to be counted", || {
        let (out, come) = (pair.to_b.status().counts, pair.to_a.status().counts);
        out.wire_bytes_out > 4 * BYTES && come.wire_bytes_in > 4 * BYTES
    });
    let (out, come) = (pair.to_b.status().counts, pair.to_a.status().counts);
    assert_eq!(out.channels.direct_bytes_sent, 4 * BYTES);
    assert_eq!(come.direct_bytes_in, 4 * BYTES);
    assert!((1..BYTES).contains(&out.channels.bytes_sent), "{out:?}");
    assert!(out.channels.works >= out.channels.doorbells && out.channels.doorbells > 0);
    assert_eq!((out.ends, come.ends), ([0; 7], [0; 7]));

    // The next work, which fails, may be either end's.
    fabric.network.fail_next(Status::ReceiverNotReady);
    send(&pair.to_b, &pair.at_a, FLOW, 4, BYTES as usize);
    let told = |event: &Event| {
        matches!(event, Event::Link(LinkEvent::LaneEnded { end: LaneEnd::Completion, why, .. })
            if why.contains("IBV_WC_RNR_RETRY_EXC_ERR"))
    };
    until("somebody to be told of the work's status", || {
        pair.at_a.count(told) + pair.at_b.count(told) > 0
    });
    let at = LaneEnd::Completion as usize;
    let ends = [&pair.to_b, &pair.to_a].map(|link| link.status().counts.ends[at]);
    assert!(ends.iter().sum::<u64>() > 0);
    finish(&pair.to_b, &pair.at_a, &pair.at_b, &[FLOW], 5);
    pair.end();
}

/// Breaks RDMA lanes: one work fails with a random status, or the network is down for a moment.
fn break_something(fabric: &Fabric, random: &mut Random) {
    let mut below = |end: u64| random.below(end);
    let statuses = [
        Status::RetryExceeded,
        Status::RemoteAccess,
        Status::ReceiverNotReady,
        Status::LocalProtection,
        Status::Fatal,
    ];
    match below(8) {
        0 => {
            fabric.network.set_link(false);
            std::thread::sleep(Duration::from_millis(below(30)));
            fabric.network.set_link(true);
        }
        _ => fabric.network.fail_next(statuses[below(5) as usize]),
    }
    std::thread::sleep(Duration::from_millis(below(40)));
}

fn breaks(seed: u64) -> (u64, u64) {
    let few = seed % 2 == 1;
    let mut fabric = Fabric::new(Faults {
        seed,
        delay_one_in: (seed % 3) as u32,
        // Hardly any credit of any kind: payloads are cut into pieces, and both ends often wait.
        depth_max: if few { 9 } else { 0 },
        ..Faults::default()
    });
    if few {
        // The smallest ring whose records take the longest description.
        fabric.channel.ring_bytes = 64 << 10;
    }
    let fabric = Arc::new(fabric);
    let pair = Pair::new(&fabric, soon());
    pair.at_b.memory_max.store(4 << 20, SeqCst);
    wait_lanes(&pair.to_b, 4, true);
    let stop = Arc::new(AtomicBool::new(false));
    let (faults, stopped) = (Arc::clone(&fabric), Arc::clone(&stop));
    let breaking = std::thread::spawn(move || {
        let mut random = Random::new(seed);
        while !stopped.load(SeqCst) {
            break_something(&faults, &mut random);
        }
    });
    let flow = |topic| Flow {
        topic,
        incarnation: seed,
    };
    let flows: Vec<Flow> = (0..3).map(flow).collect();
    for flow in &flows {
        pair.to_b.open(*flow, 0);
        pair.to_a.open(*flow, 0);
    }
    let sizes = [1, 900, 15_000, 100_000, 700_001];
    for sequence in 0..24 {
        for flow in &flows {
            let bytes = sizes[((sequence + flow.topic + seed) % 5) as usize];
            send(&pair.to_b, &pair.at_a, *flow, sequence, bytes);
            send(&pair.to_a, &pair.at_b, *flow, sequence, bytes);
        }
    }
    stop.store(true, SeqCst);
    breaking.join().unwrap();
    finish(&pair.to_b, &pair.at_a, &pair.at_b, &flows, 24);
    finish(&pair.to_a, &pair.at_b, &pair.at_a, &flows, 24);
    for link in [&pair.to_b, &pair.to_a] {
        let status = link.status();
        assert_eq!((status.retained_bytes, status.arriving), (0, 0));
    }
    wait_lanes(&pair.to_b, 4, true);
    let counts = pair.to_b.status().counts;
    pair.end();
    (counts.rdma_failed, counts.rdma_opened)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn lanes_that_break_fall_back_and_climb_back_and_lose_and_duplicate_nothing() {
    let one = number("SEED");
    let seeds = one.map_or(0..number("SEEDS").unwrap_or(3), |seed| seed..seed + 1);
    let (mut failed, mut opened) = (0, 0);
    for seed in seeds {
        match std::panic::catch_unwind(|| breaks(seed)) {
            Ok(counts) => (failed, opened) = (failed + counts.0, opened + counts.1),
            Err(panic) => {
                eprintln!(
                    "again: SEED={seed} cargo test -p rgaps-transport --test rdma lanes_that_break"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("RDMA failed {failed} times, {opened} RDMA lanes were opened");
    assert!(failed > 0 && opened > 4, "nothing broke");
}
