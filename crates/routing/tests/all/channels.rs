//! Control channels: every host learns the interest of every other host that it reaches, in spite of faults.
use crate::sim;
use crate::sim::shape::distances;
use crate::sim::world::World;
use rgaps_routing::{HostId, MAX_HOPS};
use std::time::Duration;

const SEEDS: u64 = 2500;

/// Checks what holds when nothing has changed for a while: channels are idle, and the known interest is the hosts' own.
fn check(world: &World) {
    let cables = world.usable();
    for (at, node) in world.hosts.iter().enumerate() {
        let Some(node) = node else { continue };
        let distances = distances(world.hosts.len(), &cables, at);
        let near = |host: HostId| distances[host.0 as usize].is_some_and(|hops| hops <= MAX_HOPS);
        for (host, is_idle) in node.router.channels() {
            assert!(is_idle, "{at} still has something to say to {host:?}");
            assert!(near(host), "{at} has a channel to {host:?}");
        }
        let known: Vec<HostId> = node.router.all_wants().map(|(host, _)| host).collect();
        let expected = (0..world.hosts.len()).map(|host| HostId(host as u64));
        let expected = expected.filter(|host| host.0 as usize != at && near(*host));
        assert_eq!(
            known,
            expected.collect::<Vec<_>>(),
            "the hosts that {at} knows"
        );
        for (host, interest) in node.router.all_wants() {
            let other = world.hosts[host.0 as usize].as_ref().expect("it runs");
            assert!(interest.is_complete && interest.life == Some(other.life));
            assert_eq!(
                &interest.wants,
                other.router.own_wants(),
                "{at} of {host:?}"
            );
        }
    }
}

#[test]
fn interest_is_known_everywhere_after_faults() {
    let test = "interest_is_known_everywhere_after_faults";
    sim::seeds(test, SEEDS, |seed| {
        let mut world = World::new(seed);
        let count = 10 + world.random.below(30);
        world.faults(count, Duration::from_secs(5));
        world.run(Duration::from_secs(5));
        if world.random.one_in(2) {
            world.heal();
        }
        world.run(Duration::from_secs(6));
        check(&world);
    });
}
