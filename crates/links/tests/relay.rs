//! Hosts that reach each other only through other hosts.
mod support;

use rgaps::{Late, Node, PeerState, Publisher, Subscriber};
use support::stream::{self, all_talk, crossed, lost, reached, state, Traffic};
use support::{
    content, nothing_more, ports, receive, start_among, until, wait_for_subscribers, Host, LIMIT,
};

/// Hosts in a row: each knows only the ones beside it.
fn row(count: usize, more: &str) -> Vec<Host> {
    let ports = ports(count);
    (0..count)
        .map(|at| start_among(&ports, at, &[at.wrapping_sub(1), at + 1], more))
        .collect()
}

/// Longer than any test takes to bring a host back.
const OUTAGE: &str = "outage_ms = 300000";

fn publisher(node: &Node, topic: &str) -> Publisher {
    node.publisher(topic).deadline(LIMIT).create().unwrap()
}

fn reliable(node: &Node, topic: &str) -> Subscriber {
    node.subscriber(topic).reliable().create().unwrap()
}

/// Checks with three hosts in a row, and reliable subscribers on the last two, that no message is missed or arrives twice while `what`
/// happens.
fn nothing_is_lost(what: impl FnOnce(&mut [Host], &Traffic)) {
    nothing_is_lost_among(row(3, OUTAGE), &[1, 2], what);
}

/// Like [`nothing_is_lost`], with these hosts: the first one publishes, and those with the numbers `readers` read.
fn nothing_is_lost_among(
    mut hosts: Vec<Host>,
    readers: &[usize],
    what: impl FnOnce(&mut [Host], &Traffic),
) {
    const BYTES: usize = 20_000;
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let subscribers = readers.iter().map(|host| reliable(&nodes[*host], "photos"));
    let subscribers: Vec<_> = subscribers.collect();
    let publisher = publisher(&nodes[0], "photos");
    wait_for_subscribers(&publisher, readers.len() as u32);
    stream::nothing_is_lost(publisher, subscribers, BYTES, |traffic| {
        what(&mut hosts, traffic);
        reached(&nodes[0], &hosts[hosts.len() - 1].name, PeerState::Through);
        traffic.flows();
    });
}

#[test]
fn nothing_is_lost_when_links_of_a_longer_row_are_killed_one_after_the_other() {
    nothing_is_lost_among(row(4, OUTAGE), &[2, 3], |hosts, traffic| {
        for host in [1, 2, 3, 2, 1] {
            let before = hosts[host - 1].node("look");
            hosts[host].kill_links();
            lost(&before, &hosts[host].name);
            hosts[host].start_links();
            traffic.flows();
        }
    });
}

#[test]
fn nothing_is_lost_when_one_of_two_hosts_between_is_killed() {
    let ports = ports(4);
    let around = [[1, 2], [0, 3], [0, 3], [1, 2]];
    let hosts = around.iter().enumerate();
    let hosts = hosts.map(|(at, others)| start_among(&ports, at, others, OUTAGE));
    nothing_is_lost_among(hosts.collect(), &[3], |hosts, traffic| {
        let node = hosts[0].node("look");
        let through = |host: &str| {
            let way = format!("through {host}");
            until("the other way", || {
                let remote = node.topic("photos").unwrap().remote;
                remote
                    .iter()
                    .any(|row| row.ready && row.path.starts_with(&way))
            });
        };
        for (host, other) in [(1, "host-c"), (2, "host-b"), (1, "host-c")] {
            hosts[host].kill_links();
            through(other);
            hosts[host].start_links();
            reached(&node, &hosts[host].name, PeerState::Linked);
            traffic.flows();
        }
    });
}

#[test]
fn nothing_is_lost_when_the_links_between_are_killed() {
    nothing_is_lost(|hosts, traffic| {
        let node = hosts[0].node("look");
        for _ in 0..3 {
            hosts[1].kill_links();
            lost(&node, "host-b");
            hosts[1].start_links();
            traffic.flows();
        }
    });
}

#[test]
fn nothing_is_lost_when_the_links_at_the_end_are_killed() {
    nothing_is_lost(|hosts, _| {
        hosts[2].kill_links();
        lost(&hosts[1].node("look"), "host-c");
        lost(&hosts[0].node("look"), "host-c");
        hosts[2].start_links();
    });
}

#[test]
fn nothing_is_lost_when_the_links_between_start_again_while_the_end_is_away() {
    nothing_is_lost(|hosts, _| {
        let nodes = [0, 1].map(|host| hosts[host].node("look"));
        hosts[2].kill_links();
        lost(&nodes[1], "host-c");
        hosts[1].kill_links();
        lost(&nodes[0], "host-b");
        hosts[1].start_links();
        reached(&nodes[0], "host-b", PeerState::Linked);
        lost(&nodes[0], "host-c");
        hosts[2].start_links();
    });
}

#[test]
fn a_host_between_two_carries_messages_on_once_per_hop() {
    const COUNT: u64 = 100;
    let hosts = row(3, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    // Subscribers on the last host, and on the one between.
    let far: Vec<_> = (0..2).map(|_| reliable(&nodes[2], "photos")).collect();
    let near = reliable(&nodes[1], "photos");
    let publisher = nodes[0]
        .publisher("photos")
        .type_name("photo")
        // All are published before any is read.
        .keep_last(COUNT as u32)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 3);
    for number in 0..COUNT {
        let bytes = [0, 1, 500, 70_000, 3_000_000][number as usize % 5];
        let mut loan = publisher.loan(bytes as u64).unwrap();
        loan.write(0, &content(number, bytes)).unwrap();
        loan.set_tag(number + 7);
        loan.publish().unwrap();
    }
    for subscriber in far.iter().chain([&near]) {
        for number in 0..COUNT {
            let bytes = [0, 1, 500, 70_000, 3_000_000][number as usize % 5];
            let sample = receive(subscriber);
            assert!(sample.as_slice().unwrap() == content(number, bytes));
            assert_eq!((sample.tag(), sample.missed()), (number + 7, 0));
        }
    }
    nothing_more(&publisher, &[&far[0], &far[1], &near]);
    until("the counts", || {
        (crossed(&nodes[0], "host-b"), crossed(&nodes[1], "host-c")) == (COUNT + 1, COUNT + 1)
    });
    assert_eq!(
        (crossed(&nodes[1], "host-a"), crossed(&nodes[2], "host-b")),
        (0, 0)
    );
    // `rgaps peers` shows the route.
    let (state, how) = state(&nodes[0], "host-c").unwrap();
    assert_eq!(
        (state, how.as_str()),
        (PeerState::Through, "through host-b")
    );
    let remote = nodes[0].topic("photos").unwrap().remote;
    let rows: Vec<_> = remote
        .iter()
        .map(|row| (row.host.as_str(), row.subscribers, row.ready))
        .collect();
    assert_eq!(rows, [("host-b", 1, true), ("host-c", 2, true)]);
    assert!(
        remote[1].path.starts_with("through host-b: tcp"),
        "{remote:?}"
    );
    assert_eq!(nodes[2].topic("photos").unwrap().row.type_name, "photo");
}

#[test]
fn publishers_that_have_sent_nothing_keep_their_places_while_more_hosts_want_the_topic() {
    const PUBLISHERS: u64 = 12;
    let hosts = row(4, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let near = [1, 2].map(|host| reliable(&nodes[host], "photos"));
    for round in 0..4 {
        let publishers = [(); PUBLISHERS as usize].map(|()| publisher(&nodes[0], "photos"));
        publishers.iter().for_each(|p| wait_for_subscribers(p, 2));
        // The new subscriber makes the streams to its host restart.
        let far = reliable(&nodes[3], "photos");
        publishers.iter().for_each(|p| wait_for_subscribers(p, 3));
        for (at, publisher) in publishers.iter().enumerate() {
            publisher.put(&[round, at as u8]).unwrap();
        }
        for subscriber in near.iter().chain([&far]) {
            let mut all: Vec<_> = (0..PUBLISHERS)
                .map(|_| receive(subscriber).as_slice().unwrap().to_vec())
                .collect();
            all.sort();
            let each = (0..PUBLISHERS).map(|at| vec![round, at as u8]);
            assert!(all.into_iter().eq(each));
        }
        drop(far);
        publishers.iter().for_each(|p| {
            until("the last one to be gone", || p.subscribers() == 2);
        });
        // A dropped publisher keeps its slot in the topic until the links have read all its messages.
        drop(publishers);
        until("room for the next ones", || {
            nodes[0].topic("photos").unwrap().publishers.is_empty()
        });
    }
}

#[test]
fn four_hosts_in_a_row_all_talk_and_nothing_goes_round() {
    const COUNT: u64 = 30;
    let hosts = row(4, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    all_talk(&nodes, COUNT, || {
        let remote = nodes[0].topic("chat").unwrap().remote;
        assert!(
            remote[2].path.starts_with("through host-b, host-c: tcp"),
            "{remote:?}"
        );
    });
    // Each hop carries each message that is published on the hop's one side once.
    until("the counts", || {
        let crossed = |from: usize, to: &str| crossed(&nodes[from], to) / COUNT;
        let there = [
            crossed(0, "host-b"),
            crossed(1, "host-c"),
            crossed(2, "host-d"),
        ];
        let back = [
            crossed(3, "host-c"),
            crossed(2, "host-b"),
            crossed(1, "host-a"),
        ];
        there == [1, 2, 3] && back == [1, 2, 3]
    });
}

#[test]
fn who_comes_late_gets_the_history_through_another_host() {
    let hosts = row(3, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    reached(&nodes[0], "host-c", PeerState::Through);
    let publisher = nodes[0]
        .publisher("map")
        .transient_local()
        .keep_last(4)
        .deadline(LIMIT)
        .create()
        .unwrap();
    for number in 0..10u64 {
        publisher.put(&content(number, 30_000)).unwrap();
    }
    let late = |host: usize, first: u64| {
        let late = nodes[host].subscriber("map").reliable().late(Late::AllKept);
        let late = late.create().unwrap();
        for number in first..first + 4 {
            let sample = receive(&late);
            assert!(
                sample.as_slice().unwrap() == content(number, 30_000),
                "{number}"
            );
        }
        late
    };
    // The host between joins first, then the last one, which does not know of the history that landed between.
    let near = late(1, 6);
    let far = late(2, 6);
    publisher.put(&content(10, 30_000)).unwrap();
    for subscriber in [&near, &far] {
        assert!(receive(subscriber).as_slice().unwrap() == content(10, 30_000));
    }
    nothing_more(&publisher, &[&near, &far]);
}

#[test]
fn who_carries_nothing_on_leads_nowhere() {
    let hosts = row(3, "relay = false");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let (_far, near) = (reliable(&nodes[2], "photos"), reliable(&nodes[1], "photos"));
    let publisher = publisher(&nodes[0], "photos");
    wait_for_subscribers(&publisher, 1);
    publisher.put(b"one").unwrap();
    assert_eq!(receive(&near).as_slice().unwrap(), b"one");
    // The host between knows the far host and its wants. If it told the first host of them, it would do so before it receives the next
    // message.
    reached(&nodes[1], "host-c", PeerState::Linked);
    until("the far subscriber to be known between", || {
        let remote = nodes[1].topic("photos").unwrap().remote;
        remote.iter().any(|row| row.host == "host-c")
    });
    nothing_more(&publisher, &[&near]);
    assert_eq!(
        (publisher.subscribers(), state(&nodes[0], "host-c")),
        (1, None)
    );
}

#[test]
fn a_rule_holds_for_what_comes_through_another_host() {
    let ports = ports(3);
    let rule = "[[links.rules]]\nname = \"no-a\"\npeer = \"host-a\"\ntopics = [\"secret\"]\n\
                direction = \"receive\"\naction = \"deny\"";
    let hosts = [
        start_among(&ports, 0, &[1], ""),
        start_among(&ports, 1, &[0, 2], ""),
        start_among(&ports, 2, &[1], rule),
    ];
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let far = ["secret", "photos"].map(|topic| reliable(&nodes[2], topic));
    let at_a = ["secret", "photos"].map(|topic| publisher(&nodes[0], topic));
    let at_b = publisher(&nodes[1], "secret");
    wait_for_subscribers(&at_a[1], 1);
    wait_for_subscribers(&at_b, 1);
    at_a[0].put(b"of a").unwrap();
    at_a[1].put(b"of a").unwrap();
    at_b.put(b"of b").unwrap();
    assert_eq!(receive(&far[1]).as_slice().unwrap(), b"of a");
    assert_eq!(receive(&far[0]).as_slice().unwrap(), b"of b");
    at_a[0].put(b"of a").unwrap();
    nothing_more(&at_a[1], &[&far[1]]);
    nothing_more(&at_b, &[&far[0]]);
}

#[test]
fn nothing_is_lost_when_the_daemon_between_is_killed() {
    nothing_is_lost(|hosts, traffic| {
        hosts[1].kill_daemon();
        traffic.flows();
        hosts[1].start_daemon();
        hosts[1].wait_for_peers(2);
    });
}

/// Publishes messages, drops the publisher at once, and checks that all messages arrive.
fn leaves(publisher: Publisher, far: &Subscriber, numbers: std::ops::Range<u64>) {
    for number in numbers.clone() {
        publisher.put(&content(number, 3_000)).unwrap();
    }
    drop(publisher);
    for number in numbers {
        assert!(receive(far).as_slice().unwrap() == content(number, 3_000));
    }
}

#[test]
fn what_a_publisher_that_leaves_at_once_published_comes_through() {
    const COUNT: u64 = 50;
    let hosts = row(3, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let far = reliable(&nodes[2], "photos");
    for round in 0..5 {
        let publisher = nodes[0].publisher("photos").deadline(LIMIT);
        let publisher = publisher.keep_last(COUNT as u32).create().unwrap();
        wait_for_subscribers(&publisher, 1);
        leaves(publisher, &far, round..round + COUNT);
    }
    // No host keeps the publishers.
    for node in &nodes {
        until("the publishers to be gone", || {
            node.topic("photos")
                .map_or(true, |topic| topic.publishers.is_empty())
        });
    }
}

/// Whatever the last host has confirmed when its links are killed, their next life confirms the rest.
#[test]
fn nothing_stays_of_a_publisher_that_left_when_the_end_is_killed() {
    const COUNT: u64 = 10;
    let mut hosts = row(3, OUTAGE);
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let far = reliable(&nodes[2], "photos");
    for round in 0..4 {
        let publisher = publisher(&nodes[0], "photos");
        wait_for_subscribers(&publisher, 1);
        leaves(publisher, &far, round..round + COUNT);
        hosts[2].kill_links();
        hosts[2].start_links();
        until("all memory to be free", || {
            let pools = nodes[0].pools().unwrap();
            pools.iter().all(|pool| pool.leased_bytes == 0)
        });
    }
}

#[test]
fn messages_that_a_quota_between_leaves_out_hold_nothing_up() {
    const COUNT: u64 = 40;
    let quota = "[[links.quotas]]\nname = \"small\"\npeer = \"host-c\"\ntopics = [\"photos\"]\nmessage_max = 1000";
    let ports = ports(3);
    let hosts = [
        start_among(
            &ports,
            0,
            &[1],
            "in_flight_max = \"1MiB\"\noutage_max = \"1MiB\"",
        ),
        start_among(&ports, 1, &[0, 2], quota),
        start_among(&ports, 2, &[1], ""),
    ];
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let far = reliable(&nodes[2], "photos");
    let publisher = publisher(&nodes[0], "photos");
    wait_for_subscribers(&publisher, 1);
    publisher.put(b"first").unwrap();
    assert_eq!(receive(&far).as_slice().unwrap(), b"first");
    // Twice as many bytes as the first host retains for hosts that have not confirmed them.
    for number in 0..COUNT {
        publisher.put(&content(number, 50_000)).unwrap();
    }
    publisher.put(b"last").unwrap();
    let last = receive(&far);
    assert_eq!(
        (last.as_slice().unwrap(), last.missed()),
        (&b"last"[..], COUNT)
    );
}

#[test]
fn best_effort_messages_and_large_ones_come_through() {
    let hosts = row(3, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let quick = nodes[2].subscriber("quick").create().unwrap();
    let large = reliable(&nodes[2], "large");
    let at_a = ["quick", "large"].map(|topic| publisher(&nodes[0], topic));
    at_a.iter().for_each(|at_a| wait_for_subscribers(at_a, 1));
    for number in 0..30u64 {
        at_a[0].put(&content(number, 1_000)).unwrap();
        let sample = receive(&quick);
        assert!(sample.as_slice().unwrap() == content(number, 1_000));
    }
    for number in 0..4u64 {
        at_a[1].put(&content(number, 30_000_000)).unwrap();
    }
    for number in 0..4u64 {
        assert!(receive(&large).as_slice().unwrap() == content(number, 30_000_000));
    }
}
