//! Three hosts as network namespaces with a cable between each two, which the tests pull one after the other. They need root and
//! `ip netns`; elsewhere they print why they did nothing.
mod support;

use rgaps::{Node, PeerState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::stream::{nothing_is_lost, reached};
use support::{disturb, ip, receive, try_put, until, wait_for_subscribers, Host, LIMIT};

/// A publisher that has waited so long for room counts as back-pressured. If it was only slow, the test proves less.
const FULL_AFTER: Duration = Duration::from_secs(2);

fn address(host: usize) -> String {
    format!("10.213.90.{}", host + 1)
}

/// Three namespaces and their cables; dropping it removes them. Each namespace has one address, whatever cable it is reached by.
struct Triangle {
    names: [String; 3],
}

impl Triangle {
    fn lay() -> Result<Triangle, String> {
        static LAID: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), LAID.fetch_add(1, Ordering::Relaxed));
        let triangle = Triangle {
            names: [0, 1, 2].map(|host| format!("rgaps-{pid}-t{number}{host}")),
        };
        for (host, name) in triangle.names.iter().enumerate() {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} addr add {}/32 dev lo", address(host)))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        for [a, b] in [[0, 1], [0, 2], [1, 2]] {
            let (at_a, at_b) = (&triangle.names[a], &triangle.names[b]);
            ip(&format!(
                "link add to{b} netns {at_a} type veth peer name to{a} netns {at_b}"
            ))?;
            triangle.plug_in(a, b)?;
            disturb(at_a, &format!("to{b}")).unwrap();
            disturb(at_b, &format!("to{a}")).unwrap();
        }
        Ok(triangle)
    }

    fn plug_in(&self, a: usize, b: usize) -> Result<(), String> {
        for (from, to) in [(a, b), (b, a)] {
            let name = &self.names[from];
            ip(&format!("-n {name} link set to{to} up"))?;
            let (own, other) = (address(from), address(to));
            ip(&format!(
                "-n {name} route replace {other}/32 dev to{to} src {own}"
            ))?;
        }
        Ok(())
    }

    fn pull(&self, a: usize, b: usize) {
        ip(&format!("-n {} link set to{b} down", self.names[a])).unwrap();
    }

    fn start(&self, host: usize) -> Host {
        let own = address(host);
        let others = (0..3).filter(|other| *other != host);
        let others: Vec<String> = others
            .map(|other| format!("\"tcp/{}:7447\"", address(other)))
            .collect();
        let links = format!(
            "host = \"host-{host}\"\nlisten = \"{own}:0\"\ninsecure = true\noutage_ms = 300000\n\
             control = [\"tcp/{own}:7447\"]\nconnect = [{}]",
            others.join(", ")
        );
        Host::start_in(Some(&self.names[host]), &format!("host-{host}"), &links)
    }
}

impl Drop for Triangle {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Waits until the publisher's host sends the topic to `host` over such a path.
fn sends(node: &Node, host: &str, over: &str) {
    until("a path", || {
        let remote = node.topic("photos").unwrap().remote;
        remote
            .iter()
            .any(|row| row.host == host && row.ready && row.path.starts_with(over))
    });
}

#[test]
fn a_partition_between_two_hosts_is_gone_round_and_healed() {
    const BYTES: usize = 20_000;
    let triangle = match Triangle::lay() {
        Ok(triangle) => triangle,
        Err(why) => return println!("left out: network namespaces are not to be had here: {why}"),
    };
    let hosts = [0, 1, 2].map(|host| triangle.start(host));
    hosts.iter().for_each(|host| host.wait_for_peers(2));
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let subscribers = nodes
        .iter()
        .map(|node| node.subscriber("photos").reliable().create().unwrap())
        .collect();
    let publisher = nodes[0]
        .publisher("photos")
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 3);
    nothing_is_lost(publisher, subscribers, BYTES, |traffic| {
        // Each time, the publisher's host reaches the other host through the third, and then directly again.
        for (other, third) in [(1, 2), (2, 1), (1, 2)] {
            let name = format!("host-{other}");
            triangle.pull(0, other);
            reached(&nodes[0], &name, PeerState::Through);
            sends(&nodes[0], &name, &format!("through host-{third}"));
            traffic.flows();
            triangle.plug_in(0, other).unwrap();
            reached(&nodes[0], &name, PeerState::Linked);
            sends(&nodes[0], &name, "tcp");
            traffic.flows();
        }
    });
    // Messages that were retained for a host that was reached by another route do not count as lost.
    for row in nodes[0].peers().unwrap().peers {
        assert_eq!(row.topics, [], "{row:?}");
    }
}

#[test]
fn what_a_link_without_lanes_retains_holds_nobody_up_once_it_goes_another_way() {
    let triangle = match Triangle::lay() {
        Ok(triangle) => triangle,
        Err(why) => return println!("left out: network namespaces are not to be had here: {why}"),
    };
    let hosts = [0, 1, 2].map(|host| triangle.start(host));
    hosts.iter().for_each(|host| host.wait_for_peers(2));
    let [origin, end] = [0, 1].map(|host| hosts[host].node("member"));
    let subscriber = end.subscriber("photos").reliable().create().unwrap();
    let publisher = origin
        .publisher("photos")
        .deadline(FULL_AFTER)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 1);
    sends(&origin, "host-1", "tcp");
    // Nobody reads until the links hold as much as they may, and the publisher's ring is full.
    let mut published = 0u64;
    while try_put(&publisher, &published.to_le_bytes()) {
        published += 1;
    }
    triangle.pull(0, 1);
    reached(&origin, "host-1", PeerState::Through);
    sends(&origin, "host-1", "through host-2");
    // All of these arrive, and as many new ones: the link whose cable was pulled retains none of them.
    let mut read = 0u64;
    let mut read_one = || {
        let sample = receive(&subscriber);
        assert_eq!(sample.missed(), 0);
        assert_eq!(sample.as_slice().unwrap(), read.to_le_bytes());
        read += 1;
    };
    for _ in 0..published {
        read_one();
    }
    for next in published..2 * published {
        until("room for a message", || {
            try_put(&publisher, &next.to_le_bytes())
        });
        read_one();
    }
}
