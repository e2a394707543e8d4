//! Clients in containers and a daemon outside: messages in both directions, deaths, adoption.

use rgaps_containers::{why_not, Container};
use rgaps_hostile::daemon;
use rgaps_hostile::honest::{fill, holds};
use rgaps_testkit::{until, Daemon, LIMIT};
use std::path::Path;

const MEMBER: &str = env!("CARGO_BIN_EXE_container-member");

/// A daemon outside of containers; none where there can be no containers.
fn daemon() -> Option<Daemon> {
    if let Some(reason) = why_not() {
        eprintln!("SKIPPED: namespaces cannot be made here ({reason}); run this where they can");
        return None;
    }
    Some(daemon::start())
}

fn container(daemon: &Daemon, role: &str, topic: &str) -> Container {
    let container = Container::start(Path::new(MEMBER), &daemon.socket(), &[role, topic]);
    assert_eq!(container.line(), "joined 1");
    container
}

/// Publishes messages from outside.
fn publish(publisher: &rgaps::Publisher, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        let mut loan = publisher.loan((sequence * 7919) % 100_000).expect("a loan");
        fill(sequence, loan.as_mut_slice().expect("host memory"));
        loan.set_tag(sequence);
        loan.publish().expect("published");
    }
}

fn outside_publisher(node: &rgaps::Node, topic: &str) -> rgaps::Publisher {
    let deadline = LIMIT;
    let builder = node.publisher(topic).keep_last(4).deadline(deadline);
    builder.create().expect("a publisher")
}

/// Takes messages outside, and checks them. Returns what the next one has to be.
fn receive(subscriber: &rgaps::Subscriber, mut next: u64, count: u64) -> u64 {
    for _ in 0..count {
        let sample = subscriber.recv_timeout(LIMIT).expect("a message");
        assert_eq!((sample.tag(), sample.missed()), (next, 0));
        let right = holds(next, sample.as_slice().expect("host memory"));
        assert!(right, "the bytes of message {next} are wrong");
        next += 1;
    }
    next
}

#[test]
fn messages_pass_in_both_directions() {
    let Some(mut daemon) = daemon() else { return };
    let node = daemon.node("outside");

    let inner = container(&daemon, "subscribe", "inwards");
    let publisher = outside_publisher(&node, "inwards");
    publish(&publisher, 0..300);
    inner.reaches("received", 300);

    let subscriber = node
        .subscriber("outwards")
        .reliable()
        .create()
        .expect("a subscriber");
    let _inner = container(&daemon, "publish", "outwards");
    receive(&subscriber, 0, 300);
    daemon.assert_well();
}

#[test]
fn containers_talk_to_each_other() {
    let Some(mut daemon) = daemon() else { return };
    let subscriber = container(&daemon, "subscribe", "between");
    let publisher = container(&daemon, "publish", "between");
    subscriber.reaches("received", 300);
    drop(publisher);
    daemon.assert_well();
}

#[test]
fn a_container_that_has_only_the_folder_finds_the_daemon_without_configuration() {
    if daemon().is_none() {
        return;
    }
    let mut daemon = daemon::start_with(&[("RGAPS_REALM", "r")]);
    let subscriber = container(&daemon, "find-and-subscribe", "between");
    let _publisher = container(&daemon, "find-and-publish", "between");
    subscriber.reaches("received", 50);
    daemon.assert_well();
}

#[test]
fn who_dies_in_a_container_is_cleaned_up_after() {
    let Some(mut daemon) = daemon() else { return };
    let node = daemon.node("outside");
    let mut inner = container(&daemon, "subscribe", "inwards");
    let publisher = outside_publisher(&node, "inwards");
    publish(&publisher, 0..20);
    inner.reaches("received", 20);
    let before = node.status().expect("a status").clients_reaped;
    // It holds samples, and would hold the publisher back.
    inner.kill();
    publish(&publisher, 20..100);
    let info = node.topic("inwards").expect("the topic");
    assert!(info.subscribers.is_empty(), "{info:?}");
    assert_eq!(node.status().expect("a status").clients_reaped, before + 1);
    // Nothing is held by the dead: all but the messages that are kept is free again.
    publisher.trim(0).expect("trimmed");
    assert!(
        publisher.used_bytes() <= 4 * 100_352,
        "{}",
        publisher.used_bytes()
    );

    let subscriber = node
        .subscriber("outwards")
        .reliable()
        .create()
        .expect("a subscriber");
    let mut inner = container(&daemon, "publish", "outwards");
    let next = receive(&subscriber, 0, 20);
    inner.kill();
    let published = inner.latest("published");
    // What was announced before its death arrives.
    receive(&subscriber, next, published.saturating_sub(next));
    until("the publisher to be gone", || {
        while subscriber.try_recv().expect("no error").is_some() {}
        node.topic("outwards")
            .expect("the topic")
            .publishers
            .is_empty()
    });
    daemon.assert_well();
}

#[test]
fn another_daemon_takes_over_what_containers_have() {
    let Some(mut daemon) = daemon() else { return };
    let node = daemon.node("outside");
    let inner = container(&daemon, "subscribe", "inwards");
    let publisher = outside_publisher(&node, "inwards");
    let subscriber = node
        .subscriber("outwards")
        .reliable()
        .create()
        .expect("a subscriber");
    let _other = container(&daemon, "publish", "outwards");
    publish(&publisher, 0..20);
    let (mut sent, mut next) = (20, receive(&subscriber, 0, 20));
    for _ in 0..3 {
        daemon.kill();
        // Nobody needs it.
        publish(&publisher, sent..sent + 50);
        sent += 50;
        inner.reaches("received", sent);
        next = receive(&subscriber, next, 50);
        daemon.restart();
        let late = container(&daemon, "subscribe", "inwards");
        publish(&publisher, sent..sent + 50);
        sent += 50;
        inner.reaches("received", sent);
        late.reaches("received", 50);
        next = receive(&subscriber, next, 50);
        // Without a daemon a dead reliable subscriber would hold its publisher back.
        drop(late);
        until("the late one to be gone", || {
            node.topic("inwards").expect("the topic").subscribers.len() == 1
        });
    }
    let info = node.topic("inwards").expect("the topic");
    assert_eq!(info.publishers.len(), 1, "{info:?}");
    daemon.assert_well();
}

#[test]
fn all_clients_are_in_containers_when_the_daemon_dies() {
    let Some(mut daemon) = daemon() else { return };
    let subscriber = container(&daemon, "subscribe", "between");
    let _publisher = container(&daemon, "publish", "between");
    let mut received = subscriber.reaches("received", 50);
    for _ in 0..3 {
        daemon.kill();
        received = subscriber.reaches("received", received + 50);
        daemon.restart();
        received = subscriber.reaches("received", received + 50);
    }
    let node = daemon.node("outside");
    until("the topic to be back", || node.topic("between").is_ok());
    let info = node.topic("between").expect("the topic");
    assert_eq!((info.publishers.len(), info.subscribers.len()), (1, 1));
    daemon.assert_well();
}
