//! Closing a subscriber while its samples are in use: the samples keep their bytes, but no publisher waits for the subscriber.

use rgaps::{Node, Publisher, Sample, Subscriber};
use rgaps_testkit::{until, Daemon};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);
const HISTORY: u32 = 4;

fn pair(node: &Node) -> (Publisher, Subscriber) {
    let subscriber = node.subscriber("closing").reliable().create().unwrap();
    let publisher = node.publisher("closing").keep_last(HISTORY);
    let publisher = publisher.deadline(SOON).create().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON).unwrap());
    (publisher, subscriber)
}

fn first(publisher: &Publisher, subscriber: &Subscriber) -> Sample {
    publisher.put(b"first").unwrap();
    subscriber.recv_timeout(SOON).unwrap()
}

/// Publishes more messages than the history keeps. It blocks if the publisher still waits for a reader.
fn publish_on(publisher: &Publisher) {
    for n in 0..5 * HISTORY as u8 {
        publisher.put(&[n; 5]).unwrap();
    }
}

fn until_nobody_subscribes(node: &Node) {
    until("nobody to subscribe", || {
        node.topic("closing").unwrap().row.subscribers == 0
    });
}

#[test]
fn a_closed_reliable_subscriber_whose_sample_is_in_use_holds_nobody_back() {
    let daemon = Daemon::start();
    let (here, there) = (daemon.node("here"), daemon.node("there"));
    let (publisher, subscriber) = (pair(&here).0, there.subscriber("closing").reliable());
    let subscriber = subscriber.create().unwrap();
    let sample = first(&publisher, &subscriber);
    drop(subscriber);
    publish_on(&publisher);
    assert_eq!(publisher.subscribers(), 0);
    assert_eq!(sample.as_slice().unwrap(), b"first");
    // The sample does not affect subscribers that join and leave later.
    let next = there.subscriber("closing").reliable().create().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON).unwrap());
    let second = first(&publisher, &next);
    assert_eq!(second.missed(), 0);
    drop((sample, second, next));
    until_nobody_subscribes(&here);
}

#[test]
fn a_publisher_that_waits_goes_on_when_the_reader_closes() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let (publisher, subscriber) = pair(&node);
    let sample = first(&publisher, &subscriber);
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| publish_on(&publisher));
        // The publisher has filled its history, and waits for the subscriber.
        until("a full history", || {
            node.topic("closing").unwrap().subscribers[0].lag >= u64::from(HISTORY)
        });
        drop(subscriber);
        publishing.join().unwrap();
    });
    assert_eq!(sample.as_slice().unwrap(), b"first");
}

#[test]
fn a_subscriber_that_closes_while_there_is_no_daemon_stays_closed() {
    let mut daemon = Daemon::start();
    let node = daemon.node("test");
    let (publisher, subscriber) = pair(&node);
    let sample = first(&publisher, &subscriber);
    daemon.kill();
    drop(subscriber);
    publish_on(&publisher);
    daemon.restart();
    let later = node.publisher("closing").keep_last(HISTORY);
    let later = later.deadline(SOON).create().unwrap();
    publish_on(&later);
    publish_on(&publisher);
    until_nobody_subscribes(&node);
    assert_eq!(sample.as_slice().unwrap(), b"first");
    drop(sample);
}
