//! Large messages to many hosts follow a tree: the origin sends each once, and other hosts forward it.
mod support;

use rgaps::{Node, Publisher, Subscriber};
use std::ops::Range;
use support::stream::{self, lost};
use support::{content, hosts, receive, until, wait_for_subscribers, Host, LIMIT};

const HOSTS: usize = 4;
/// The size of messages: they travel in chunks, and are large enough for trees.
const BYTES: usize = 200_000;

/// Hosts that are all linked with each other, with subscribers on all but the first.
fn members(more: &str) -> (Vec<Host>, Vec<Node>, Publisher, Vec<Subscriber>) {
    let hosts = hosts(HOSTS, more);
    hosts.iter().for_each(|host| host.wait_for_peers(HOSTS - 1));
    let nodes: Vec<Node> = hosts.iter().map(|host| host.node("member")).collect();
    let (publisher, subscribers) = topic(&nodes, "photos");
    (hosts, nodes, publisher, subscribers)
}

/// A topic with a publisher on the first node, and subscribers on the others.
fn topic(nodes: &[Node], name: &str) -> (Publisher, Vec<Subscriber>) {
    let subscriber = |node: &Node| node.subscriber(name).reliable().create().unwrap();
    let subscribers: Vec<Subscriber> = nodes[1..].iter().map(subscriber).collect();
    let publisher = nodes[0].publisher(name).deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, subscribers.len() as u32);
    (publisher, subscribers)
}

/// Publishes these messages, each when all subscribers have the one before.
fn send(publisher: &Publisher, subscribers: &[Subscriber], numbers: Range<u64>) {
    for number in numbers {
        publisher.put(&content(number, BYTES)).unwrap();
        for subscriber in subscribers {
            let sample = receive(subscriber);
            assert!(sample.as_slice().unwrap() == content(number, BYTES));
            assert_eq!(sample.missed(), 0);
        }
    }
}

/// Waits until the topic goes to `count` hosts directly, and to the others through them.
fn near(node: &Node, count: usize) {
    until("the tree", || {
        let remote = node.topic("photos").unwrap().remote;
        let ready = remote.iter().filter(|row| row.ready).count();
        let near = remote.iter().filter(|row| !row.path.starts_with("through"));
        ready == HOSTS - 1 && near.count() == count
    });
}

/// How many messages a host has sent to others.
fn sent(node: &Node) -> u64 {
    let peers = node.peers().unwrap().peers;
    peers.iter().map(|peer| peer.messages_out).sum()
}

#[test]
fn a_large_message_leaves_its_host_once_and_small_ones_leave_for_each_host() {
    const COUNT: u64 = 40;
    let (_hosts, nodes, publisher, subscribers) = members("fanout = 1");
    near(&nodes[0], HOSTS - 1);
    // The first message shows how large the topic's messages are.
    send(&publisher, &subscribers, 0..1);
    near(&nodes[0], 1);
    send(&publisher, &subscribers, 1..COUNT);
    // Each message has crossed to each host, and some once more when the tree changed. Without a tree, the first host would send all.
    let crossings = COUNT * (HOSTS as u64 - 1);
    until("the counts", || {
        nodes.iter().map(sent).sum::<u64>() >= crossings
    });
    let of_first = sent(&nodes[0]);
    assert!(of_first < crossings / 2, "{of_first} of {crossings}");
}

#[test]
fn the_first_large_message_of_a_topic_waits_for_its_tree() {
    const TOPICS: u64 = 10;
    let (_hosts, nodes, publisher, subscribers) = members("fanout = 1");
    // After this, the first host knows which other hosts are linked with each other.
    send(&publisher, &subscribers, 0..1);
    near(&nodes[0], 1);
    for number in 0..TOPICS {
        let (publisher, subscribers) = topic(&nodes, &format!("films/{number}"));
        send(&publisher, &subscribers, 0..1);
    }
    let crossings = (1 + TOPICS) * (HOSTS as u64 - 1);
    until("the counts", || {
        nodes.iter().map(sent).sum::<u64>() >= crossings
    });
    // Without a tree, the first host would send each message three times, and once more when the tree exists, as with the first photo.
    let of_first = sent(&nodes[0]);
    assert!(of_first < 2 * TOPICS, "{of_first} of {crossings}");
}

#[test]
fn nothing_is_lost_when_hosts_of_a_tree_are_killed() {
    let (mut hosts, nodes, publisher, subscribers) = members("fanout = 1\noutage_ms = 300000");
    stream::nothing_is_lost(publisher, subscribers, BYTES, |traffic| {
        near(&nodes[0], 1);
        for host in &mut hosts[1..] {
            host.kill_links();
            lost(&nodes[0], &host.name);
            host.start_links();
            traffic.flows();
            near(&nodes[0], 1);
            traffic.flows();
        }
    });
}

#[test]
fn hosts_that_may_not_have_messages_through_another_get_them_directly() {
    let rule = |peer| {
        format!(
            "[[links.rules]]\nname = \"not-through-{peer}\"\npeer = \"{peer}\"\ntopics = [\"photos\"]\n\
             direction = \"receive\"\naction = \"deny\"\n"
        )
    };
    let rules = ["host-b", "host-c", "host-d"].map(rule).concat();
    let hosts = hosts(HOSTS, &format!("fanout = 1\n{rules}"));
    hosts.iter().for_each(|host| host.wait_for_peers(HOSTS - 1));
    let nodes: Vec<Node> = hosts.iter().map(|host| host.node("member")).collect();
    let publisher = nodes[0].publisher("photos").deadline(LIMIT);
    let publisher = publisher.create().unwrap();
    let (mut subscribers, mut number) = (Vec::new(), 0);
    // Without the rules, a tree would lead from the first of these hosts to the others, which join when messages are known to be large.
    for at in [3, 1, 2] {
        let subscriber = nodes[at].subscriber("photos").reliable();
        subscribers.push(subscriber.create().unwrap());
        wait_for_subscribers(&publisher, subscribers.len() as u32);
        for _ in 0..5 {
            publisher.put(&content(number, BYTES)).unwrap();
            for subscriber in &subscribers {
                let sample = receive(subscriber);
                assert!(sample.as_slice().unwrap() == content(number, BYTES));
                assert_eq!(sample.missed(), 0);
            }
            number += 1;
        }
    }
    near(&nodes[0], HOSTS - 1);
}
