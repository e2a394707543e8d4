//! Path vectors, while hosts start, stop and restart, and cables flap.
use crate::sim;
use crate::sim::shape::distances;
use crate::sim::world::World;
use rgaps_routing::{HostId, Life, Path, PathError, PathTable, MAX_HOPS, SETTLE_AFTER};
use std::time::Duration;

const SEEDS: u64 = 2500;

/// Checks what holds when nothing has changed for a while: paths are shortest, and name only running lives and usable cables.
fn check(world: &World) {
    let cables = world.usable();
    let hosts = world.hosts.len();
    let life = |host: HostId| world.hosts[host.0 as usize].as_ref().map(|node| node.life);
    for (at, node) in world.hosts.iter().enumerate() {
        let Some(node) = node else { continue };
        let distances = distances(hosts, &cables, at);
        for (end, distance) in distances.iter().enumerate().filter(|(end, _)| *end != at) {
            let path = node.paths().path(HostId(end as u64));
            let expected = distance.filter(|distance| *distance <= MAX_HOPS);
            let found = path.map(|path| path.lives().len());
            assert_eq!(found, expected, "from {at} to {end}: {path:?}");
        }
        for path in node.paths().paths() {
            let mut before = node.life;
            for hop in path.lives() {
                assert_eq!(life(hop.host), Some(*hop), "a life that ended: {path:?}");
                let ends = (before.host.0 as usize, hop.host.0 as usize);
                let ends = (ends.0.min(ends.1), ends.0.max(ends.1));
                assert!(cables.contains(&ends), "no cable {ends:?}: {path:?}");
                before = *hop;
            }
        }
        let graph = node.paths().graph();
        let parents = graph.parents();
        let reached = distances.iter().flatten().filter(|hops| **hops > 0);
        let near = reached.filter(|hops| **hops <= MAX_HOPS).count();
        assert_eq!(parents.len(), near, "the graph of {at} names others");
    }
}

#[test]
fn paths_become_the_shortest_and_name_nobody_who_ended() {
    let test = "paths_become_the_shortest_and_name_nobody_who_ended";
    sim::seeds(test, SEEDS, |seed| {
        let mut world = World::new(seed);
        world.run(Duration::from_secs(2));
        check(&world);
        let count = world.random.below(20);
        world.faults(count, Duration::from_secs(3));
        world.run(Duration::from_secs(3));
        if world.random.one_in(2) {
            world.heal();
        }
        world.run(Duration::from_secs(3));
        check(&world);
    });
}

fn life(host: u64, incarnation: u64) -> Life {
    let host = HostId(host);
    Life { host, incarnation }
}

fn path(lives: &[Life]) -> Path {
    Path::new(lives.to_vec()).unwrap()
}

#[test]
fn a_path_is_used_once_it_has_been_known_for_a_while() {
    let (b, d) = (life(2, 1), life(4, 1));
    let mut table = PathTable::new(life(1, 1));
    table.link_up(b);
    assert_eq!(table.path(b.host), Some(&path(&[b])));
    table
        .advertised(b, vec![path(&[b, d])], Duration::ZERO)
        .unwrap();
    table.tick(SETTLE_AFTER - Duration::from_nanos(1));
    assert_eq!(table.path(d.host), None);
    table.tick(SETTLE_AFTER);
    assert_eq!(table.path(d.host), Some(&path(&[b, d])));
    // The path changes, but not the life at its end, so the new path is settled at once.
    let longer = path(&[b, life(3, 1), d]);
    table
        .advertised(b, vec![longer.clone()], SETTLE_AFTER)
        .unwrap();
    assert_eq!(table.path(d.host), Some(&longer));
}

#[test]
fn a_later_life_seen_through_another_does_not_hide_a_link_with_lanes() {
    let (b, old, new) = (life(2, 1), life(3, 1), life(3, 2));
    let mut table = PathTable::new(life(1, 1));
    table.link_up(b);
    table.link_up(old);
    table
        .advertised(b, vec![path(&[b, new])], Duration::ZERO)
        .unwrap();
    table.tick(SETTLE_AFTER);
    assert_eq!(table.path(old.host), Some(&path(&[old])));
    // The neighbour does not repeat its advertisement, and the path to the new life is used once the link has lost its lanes.
    table.lanes_lost(old.host, SETTLE_AFTER);
    table.tick(2 * SETTLE_AFTER);
    assert!(!table.is_neighbour(old));
    assert_eq!(table.path(new.host), Some(&path(&[b, new])));
}

#[test]
fn nothing_is_kept_of_the_lives_of_a_host_that_ended() {
    let b = life(2, 1);
    let mut table = PathTable::new(life(1, 1));
    table.link_up(b);
    for incarnation in 1..200 {
        let (c, d) = (life(3, incarnation), life(4, incarnation));
        table.link_up(c);
        let paths = vec![path(&[b, c]), path(&[b, d])];
        table.advertised(b, paths, Duration::ZERO).unwrap();
        if incarnation % 2 == 0 {
            table.link_ended(c.host);
        }
    }
    let kept = format!("{table:?}");
    assert!(!kept.contains("incarnation: 198"), "{kept}");
}

#[test]
fn advertisements_that_break_the_rules_are_refused() {
    let (b, c, d) = (life(2, 1), life(3, 1), life(4, 1));
    let mut table = PathTable::new(life(1, 1));
    table.link_up(b);
    let mut advertise = |paths| table.advertised(b, paths, Duration::ZERO);
    assert_eq!(
        advertise(vec![path(&[c, d])]),
        Err(PathError::NoPath(2)),
        "it does not begin at the neighbour"
    );
    assert_eq!(advertise(vec![path(&[b])]), Err(PathError::NoPath(1)));
    let two = vec![path(&[b, d]), path(&[b, c, d])];
    assert_eq!(advertise(two), Err(PathError::Twice(d.host)));
    let many = (10..75).map(|host| path(&[b, life(host, 1)])).collect();
    assert_eq!(advertise(many), Err(PathError::TooMany(65)));
    assert_eq!(Path::new(vec![b, c, b]), Err(PathError::NoPath(3)));
    let long = (2..11).map(|host| life(host, 1)).collect();
    assert_eq!(Path::new(long), Err(PathError::NoPath(9)));
    assert_eq!(table.paths().count(), 1);
}
