//! Hosts and subscribers that come late, leave, die, come back, are cut off and found by multicast: interest and links
//! follow without a restart of other processes. The tests print how long each step took (`--nocapture`). They need root and
//! `ip netns`; elsewhere they print why they did nothing.
mod support;

use rgaps::{Node, PeerState, Publisher, Subscriber};
use std::time::Instant;
use support::cable::Cable;
use support::{content, receive, until, Host, LIMIT};

/// Waits until `is_so` is true, and prints how long that took.
fn follows(what: &str, is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    until(what, is_so);
    println!(
        "followed after {:.3} s: {what}",
        begun.elapsed().as_secs_f64()
    );
}

fn publisher(node: &Node) -> Publisher {
    let publisher = node.publisher("photos").keep_last(256).deadline(LIMIT);
    publisher.create().unwrap()
}

fn subscriber(node: &Node) -> Subscriber {
    node.subscriber("photos").reliable().create().unwrap()
}

/// Publishes a message and checks that it arrives unchanged.
fn crosses(publisher: &Publisher, subscriber: &Subscriber, number: u64) {
    publisher.put(&content(number, 100_000)).unwrap();
    assert!(receive(subscriber).as_slice().unwrap() == content(number, 100_000));
}

fn is_linked(node: &Node) -> bool {
    let peers = node.peers().unwrap().peers;
    peers
        .iter()
        .any(|peer| peer.state == PeerState::Linked && peer.lanes > 0)
}

#[test]
fn interest_and_links_follow_what_comes_goes_and_is_cut_off() {
    let Some(cable) = Cable::lay() else { return };
    let start = |at| cable.host(at, &format!("outage_ms = 30000\n{}", cable.connect(at)));
    let here = start(0);
    let member = here.node("publisher");
    let publisher = publisher(&member);
    let mut number = 0;
    let mut crosses = |subscriber: &Subscriber| {
        number += 1;
        crosses(&publisher, subscriber, number);
    };

    let mut there: Host = start(1);
    follows("a host that comes late is linked", || is_linked(&member));
    let node = there.node("subscriber");
    let first = subscriber(&node);
    follows("a subscriber that comes is counted", || {
        publisher.subscribers() == 1
    });
    crosses(&first);
    drop(first);
    follows("one that leaves is counted no more", || {
        publisher.subscribers() == 0
    });
    let second = subscriber(&node);
    follows("the next one is counted", || publisher.subscribers() == 1);
    crosses(&second);

    there.kill_links();
    follows("a host whose links die is linked no more", || {
        !is_linked(&member)
    });
    there.start_links();
    follows("one that comes back is linked", || is_linked(&member));
    crosses(&second);

    cable.pull();
    follows("a host that is cut off is linked no more", || {
        !is_linked(&member)
    });
    cable.plug_in();
    follows("one that is reached again is linked", || is_linked(&member));
    crosses(&second);

    drop((second, node, there));
    follows("a host that is gone is linked no more", || {
        !is_linked(&member)
    });
    let there = start(1);
    let node = there.node("subscriber");
    let third = subscriber(&node);
    follows(
        "a host that comes again is linked, with its subscriber",
        || is_linked(&member) && publisher.subscribers() == 1,
    );
    crosses(&third);
}

#[test]
fn hosts_that_name_nobody_find_each_other_by_multicast_where_it_is_asked_for() {
    let Some(cable) = Cable::lay() else { return };
    let hosts = [0, 1].map(|at| cable.host(at, "scouting = true"));
    let [here, there] = hosts.each_ref().map(|host| host.node("member"));
    follows("a host that nobody named is linked", || is_linked(&here));
    let (publisher, subscriber) = (publisher(&here), subscriber(&there));
    follows("its subscriber is counted", || publisher.subscribers() == 1);
    crosses(&publisher, &subscriber, 1);
}
