//! Publishers and subscribers that do not match, against a real daemon: both are told, and nobody is kept out.

use rgaps::{DType, Late, Node, PublishError, Publisher, PutError, Subscriber};
use rgaps_testkit::{until, Daemon, LIMIT};
use std::time::Duration;

fn read(subscriber: &Subscriber) -> Vec<u8> {
    let sample = subscriber.recv_timeout(LIMIT).unwrap();
    sample.as_slice().unwrap().to_vec()
}

fn no_more(subscriber: &Subscriber) {
    assert!(matches!(subscriber.try_recv(), Ok(None)));
}

fn volatile(node: &Node) -> Publisher {
    node.publisher("t").create().unwrap()
}

/// `topic echo --late latest` before the first publisher.
#[test]
fn an_observer_that_comes_first_keeps_no_publisher_out() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let observer = node.subscriber("t").observer().late(Late::Latest);
    let observer = observer.reliable().create().unwrap();
    for message in [&b"volatile"[..], b"again"] {
        let publisher = volatile(&node);
        assert_eq!((publisher.subscribers(), publisher.mismatched()), (1, 0));
        publisher.put(message).unwrap();
        assert_eq!(read(&observer), message);
    }
    let typed = node.publisher("t").type_name("image").best_effort();
    typed.create().unwrap().put(b"typed").unwrap();
    assert_eq!(read(&observer), b"typed");
    assert_eq!(observer.mismatched(), 0);
}

#[test]
fn a_late_subscriber_keeps_no_volatile_publisher_out() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let late = node.subscriber("t").late(Late::Latest).create().unwrap();
    let live = node.subscriber("t").create().unwrap();
    let publisher = volatile(&node);
    assert_eq!((publisher.subscribers(), publisher.mismatched()), (1, 1));
    let reasons = publisher.mismatches().unwrap();
    assert!(
        reasons.len() == 1 && reasons[0].contains("transient-local"),
        "{reasons:?}"
    );
    assert_eq!(late.mismatches().unwrap(), reasons);
    assert!(!publisher
        .wait_for_subscribers(2, Duration::from_millis(1))
        .unwrap());
    let missing = publisher.missing_subscribers(2);
    assert!(
        missing.contains("1 of 2") && missing.contains("1 does not match: "),
        "{missing}"
    );
    publisher.put(b"live").unwrap();
    assert_eq!(read(&live), b"live");
    no_more(&late);
    // The late subscriber reads a publisher that keeps its history; the volatile publisher and the live subscriber go on.
    let lasting = node.publisher("t").transient_local().create().unwrap();
    lasting.put(b"kept").unwrap();
    assert_eq!(
        (read(&late), read(&live)),
        (b"kept".to_vec(), b"kept".to_vec())
    );
    assert_eq!((lasting.mismatched(), late.mismatched()), (0, 1));
    drop(late);
    assert_eq!(publisher.mismatched(), 0);
}

/// `silence` suggests a similar topic only to a subscriber that never read a message: one that did has the right name.
#[test]
fn after_messages_silence_means_that_no_publisher_is_left() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let similar = node.publisher("camera/front").create().unwrap();
    let subscriber = node.subscriber("camera/frond").create().unwrap();
    let silence = subscriber.silence();
    assert!(silence.contains("did you mean 'camera/front'"), "{silence}");
    let publisher = node.publisher("camera/frond").create().unwrap();
    publisher.put(b"frame").unwrap();
    assert_eq!(read(&subscriber), b"frame");
    drop(publisher);
    until("the publisher to be gone", || subscriber.publishers() == 0);
    let silence = subscriber.silence();
    assert!(silence == "it has no publisher any more", "{silence}");
    drop(similar);
}

#[test]
fn types_that_differ_are_not_matched_whoever_comes_first() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let reads = |name: &str| node.subscriber("t").type_name(name).create().unwrap();
    let sends = |name: &str| node.publisher("t").type_name(name).create().unwrap();
    let (images, clouds, anything) = (reads("image"), reads("cloud"), reads(""));
    let (image, plain) = (sends("image"), sends(""));
    let late_clouds = reads("cloud");
    assert_eq!((image.subscribers(), image.mismatched()), (2, 2));
    assert_eq!((plain.subscribers(), plain.mismatched()), (1, 3));
    image.put(b"image").unwrap();
    plain.put(b"plain").unwrap();
    assert_eq!(read(&images), b"image");
    let both = [read(&anything), read(&anything)];
    assert!(both.contains(&b"image".to_vec()) && both.contains(&b"plain".to_vec()));
    for subscriber in [&images, &clouds, &late_clouds, &anything] {
        no_more(subscriber);
        assert_eq!(subscriber.missed(), 0);
    }
    let reasons = clouds.mismatches().unwrap();
    assert!(
        reasons[0].contains("'image'") && reasons[0].contains("'cloud'"),
        "{reasons:?}"
    );
    let cloud = sends("cloud");
    cloud.put(b"cloud").unwrap();
    assert_eq!(
        (read(&clouds), read(&late_clouds)),
        (b"cloud".to_vec(), b"cloud".to_vec())
    );
    assert_eq!(node.topic("t").unwrap().row.type_name, "several");
}

#[test]
fn a_reliable_subscriber_that_does_not_match_never_holds_a_publisher_back() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let stranger = node
        .subscriber("t")
        .reliable()
        .type_name("image")
        .create()
        .unwrap();
    // A publisher that is held back fails after its deadline.
    let publisher = node
        .publisher("t")
        .keep_last(2)
        .deadline(LIMIT)
        .create()
        .unwrap();
    let reader = node.subscriber("t").create().unwrap();
    for number in 0..100u32 {
        publisher.put(&number.to_le_bytes()).unwrap();
    }
    assert_eq!(read(&reader), 98u32.to_le_bytes());
    no_more(&stranger);
}

#[test]
fn messages_are_of_the_type_that_their_publisher_declares() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let whole = node
        .subscriber("t")
        .type_name("uint8[2,3]")
        .create()
        .unwrap();
    let free = node
        .subscriber("t")
        .type_name("uint8[*,3]")
        .create()
        .unwrap();
    let publisher = node
        .publisher("t")
        .type_name("uint8[2,3]")
        .create()
        .unwrap();
    assert_eq!((publisher.subscribers(), publisher.mismatched()), (2, 0));
    for (wrong, said) in [
        (publisher.put(b"abcdef"), "plain bytes"),
        (
            publisher
                .loan_tensor(DType::U8, &[3, 2])
                .unwrap()
                .publish()
                .map_err(PutError::from),
            "uint8[3,2]",
        ),
    ] {
        let error = wrong.unwrap_err();
        assert!(
            matches!(&error, PutError::Publish(PublishError::TypeMismatch { message, .. }) if message == said),
            "{error}"
        );
        assert!(error.to_string().contains("uint8[2,3]"), "{error}");
    }
    publisher
        .loan_tensor(DType::U8, &[2, 3])
        .unwrap()
        .publish()
        .unwrap();
    assert_eq!((read(&whole).len(), read(&free).len()), (6, 6));
    no_more(&whole);
}

#[test]
fn who_matches_whom_outlives_the_daemon() {
    let mut daemon = Daemon::start();
    let node = daemon.node("test");
    let clouds = node
        .subscriber("t")
        .type_name("cloud")
        .reliable()
        .create()
        .unwrap();
    let images = node.subscriber("t").type_name("image").create().unwrap();
    let observer = node
        .subscriber("t")
        .observer()
        .late(Late::AllKept)
        .create()
        .unwrap();
    let publisher = node
        .publisher("t")
        .type_name("image")
        .keep_last(1)
        .create()
        .unwrap();
    publisher.put(b"1").unwrap();
    assert_eq!(
        (read(&images), read(&observer)),
        (b"1".to_vec(), b"1".to_vec())
    );
    daemon.kill();
    publisher.put(b"2").unwrap();
    assert_eq!(
        (read(&images), read(&observer)),
        (b"2".to_vec(), b"2".to_vec())
    );
    daemon.restart();
    let other = daemon.node("other");
    until("the topic to come back", || {
        other.topic("t").map_or(0, |topic| topic.subscribers.len()) == 3
    });
    publisher.put(b"3").unwrap();
    assert_eq!(
        (read(&images), read(&observer)),
        (b"3".to_vec(), b"3".to_vec())
    );
    assert_eq!((publisher.subscribers(), publisher.mismatched()), (2, 1));
    let rows = other.topic("t").unwrap().subscribers;
    assert_eq!(rows.iter().map(|row| row.mismatched).sum::<u32>(), 1);
    no_more(&clouds);
}
