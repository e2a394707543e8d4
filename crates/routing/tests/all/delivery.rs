//! Delivery from origins to final hosts through hosts between, in spite of faults.
use crate::sim;
use crate::sim::node::Node;
use crate::sim::origin::Origin;
use crate::sim::shape::distances;
use crate::sim::traffic::Record;
use crate::sim::world::{Role, World};
use rgaps_routing::{StreamId, BROKEN_LIMIT, MAX_HOPS};
use rgaps_testkit::Random;
use std::collections::BTreeSet;
use std::time::Duration;

const SEEDS: u64 = 2400;

fn one_origin(at: usize, random: &mut Random) -> Role {
    Role {
        is_origin: at == 0,
        is_subscriber: at != 0 && random.below(3) > 0,
        message_bytes: 0,
        fanout: 2,
    }
}

fn two_origins(at: usize, random: &mut Random) -> Role {
    Role {
        is_origin: at < 2,
        is_subscriber: random.below(4) > 0,
        message_bytes: random.below(2) << 28,
        fanout: 1 + random.below(3) as usize,
    }
}

/// Checks what holds when nothing has changed for a while: all messages are delivered, and no host holds any.
fn check(world: &World) {
    let cables = world.usable();
    let mut open: BTreeSet<_> = BTreeSet::new();
    for (at, node) in world.hosts.iter().enumerate() {
        let Some(node) = node else { continue };
        let Some(origin) = &node.traffic.origin else {
            continue;
        };
        let distances = distances(world.hosts.len(), &cables, at);
        let mut expected = BTreeSet::new();
        for (end, distance) in distances.iter().enumerate() {
            let near = distance.is_some_and(|hops| (1..=MAX_HOPS).contains(&hops));
            if near && world.roles[end].is_subscriber {
                let other = world.hosts[end].as_ref().expect("it runs");
                expected.insert(other.life);
                check_host(origin, other);
            }
        }
        let served: BTreeSet<_> = origin.hosts().collect();
        assert_eq!(served, expected, "the hosts that {at} serves");
        let (kept, end) = (&origin.kept, origin.delivery.next());
        assert!(kept.is_empty(), "{at} still keeps {kept:?}");
        assert_eq!(origin.delivery.retained(), end);
        open.extend(origin.flows().map(|flow| (origin.publisher, flow)));
    }
    for (at, node) in world.hosts.iter().enumerate() {
        let Some(node) = node else { continue };
        for (key, transit) in node.traffic.incoming() {
            let StreamId(flow) = key.1;
            assert!(open.contains(&key), "{at} still has flow {flow}");
            let held = transit.held();
            assert_eq!(held, 0, "{at} still holds messages");
        }
    }
}

/// Checks that a final host got every message once, except those that the origin gave up.
fn check_host(origin: &Origin, node: &Node) {
    let end = origin.delivery.next();
    let host = node.life.host;
    let none = Record::default();
    let record = node.traffic.disk.finals.get(&origin.publisher);
    let record = record.unwrap_or(&none);
    let published = |from, to| origin.numbers.range(from..to);
    // The next message would count those that are missing at the end.
    let missed = record.missed.iter().copied().chain([(record.next, end)]);
    let missed = missed.filter_map(|(from, to)| {
        let mut lacking = published(from, to);
        let first = lacking.next()?;
        Some((*first, lacking.last().unwrap_or(first) + 1))
    });
    let missed: Vec<(u64, u64)> = missed.collect();
    let count: usize = missed
        .iter()
        .map(|(from, to)| published(*from, *to).count())
        .sum();
    let owed = published(record.first, end).count();
    let delivered = record.delivered.difference(&origin.withdrawn).count();
    assert_eq!(delivered + count, owed, "{host:?} from {}", record.first);
    for (from, to) in &missed {
        // The host may have been given up several times before it got a message again.
        let mut known = *from;
        for (other, confirmed, back) in &origin.given_up {
            if *other == host && *confirmed <= known {
                known = known.max(back.unwrap_or(0));
            }
        }
        assert!(
            *to <= known,
            "{host:?} missed {from}..{to}, and {:?} were given up",
            origin.given_up
        );
    }
}

fn run(seed: u64, role: impl Fn(usize, &mut Random) -> Role, faults: u64) {
    let mut world = World::with_roles(seed, role);
    world.run(Duration::from_millis(1500));
    let count = world.random.below(faults + 1);
    world.faults(count, Duration::from_secs(4));
    world.messages(120, Duration::from_secs(5));
    world.run(Duration::from_secs(4));
    if world.random.one_in(2) {
        world.heal();
    }
    // A broken stream may first have to be `BROKEN_LIMIT` old.
    world.run(BROKEN_LIMIT + Duration::from_secs(4));
    check(&world);
}

#[test]
fn one_origin_reaches_every_host_once_and_in_order() {
    let test = "one_origin_reaches_every_host_once_and_in_order";
    sim::seeds(test, SEEDS, |seed| run(seed, one_origin, 30));
}

#[test]
fn trees_of_two_origins_reach_every_host_once_and_in_order() {
    let test = "trees_of_two_origins_reach_every_host_once_and_in_order";
    sim::seeds(test, SEEDS, |seed| run(seed, two_origins, 40));
}

#[test]
fn without_faults_a_message_crosses_each_cable_once() {
    let test = "without_faults_a_message_crosses_each_cable_once";
    sim::seeds(test, SEEDS / 6, |seed| {
        let mut world = World::with_roles(seed, two_origins);
        // Run until nothing changes, so that no flow replaces another during the count.
        world.run(Duration::from_secs(4));
        world.copies = Some(Default::default());
        world.gives_up = false;
        world.messages(100, Duration::from_secs(1));
        // Datagrams are lost even without faults, so a confirmation over eight hops may be sent many times.
        world.run(Duration::from_secs(6));
        check(&world);
        let copies = world.copies.take().expect("they are counted");
        for (crossing, count) in &copies {
            assert_eq!(*count, 1, "{crossing:?}");
        }
    });
}
