//! Subscribers that do not match a publisher of another host are told on their own host, and do not affect other subscribers.
mod support;

use rgaps::{Late, Matched, Subscriber};
use support::{content, hosts, receive, until, wait_for_subscribers, LIMIT};

fn told(subscriber: &Subscriber, why: &str) {
    until("the mismatch to be told", || subscriber.mismatched() == 1);
    let reasons = subscriber.mismatches().unwrap();
    assert!(
        reasons.len() == 1 && reasons[0].contains(why),
        "{reasons:?}"
    );
}

#[test]
fn a_subscriber_elsewhere_that_does_not_match_is_told_and_stops_nobody() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publishers"), hosts[1].node("subscribers"));
    let reads = |type_name: &str| there.subscriber("t").type_name(type_name);
    let (told_counts, heard) = std::sync::mpsc::channel();
    // The subscribers come first, so the links know their demands before anybody publishes.
    let reliable = reads("").reliable().create().unwrap();
    let late = reads("").late(Late::AllKept).create().unwrap();
    let clouds = reads("cloud").create().unwrap();
    let photos = reads("photo").create().unwrap();
    let plain = reads("").create().unwrap();
    let photo = here.publisher("t").type_name("photo").best_effort();
    let photo = photo.create().unwrap();
    assert_eq!(photo.mismatched(), 0, "the links demand nothing");
    let counts = move |matched: Matched| told_counts.send(matched.current_count).unwrap();
    let _listener = photo.on_matched(counts).unwrap();
    wait_for_subscribers(&photo, 5);
    until("a match event", || heard.try_iter().any(|count| count == 5));
    told(&reliable, "reliable");
    told(&late, "transient-local");
    told(&clouds, "'cloud'");
    for number in 0..10 {
        photo.put(&content(number, 10_000)).unwrap();
    }
    for number in 0..10 {
        for subscriber in [&photos, &plain] {
            let sample = receive(subscriber);
            assert!(sample.as_slice().unwrap() == content(number, 10_000));
        }
    }
    // A publisher of the same topic that matches the other subscribers.
    let cloud = here.publisher("t").type_name("cloud").transient_local();
    let cloud = cloud.deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&cloud, 5);
    for number in 20..30 {
        cloud.put(&content(number, 10_000)).unwrap();
    }
    for number in 20..30 {
        for subscriber in [&reliable, &late, &clouds, &plain] {
            let sample = receive(subscriber);
            assert!(sample.as_slice().unwrap() == content(number, 10_000));
        }
    }
    assert!(photos.try_recv().unwrap().is_none());
    told(&photos, "'cloud'");
    assert_eq!(there.topic("t").unwrap().row.type_name, "several");
}
