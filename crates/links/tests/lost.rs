//! What the control plane loses of what hosts say: it is found out over the link, or by asking.
#![forbid(unsafe_code)]
mod support;
#[path = "support/within.rs"]
mod within;

use rgaps::Node;
use rgaps_links::plane::News;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use support::{content, receive, until, wait_for_subscribers, LIMIT};
use within::{hosts_without_links, Links};

fn crosses(from: &Node, to: &Node, topic: &str) {
    let subscriber = to.subscriber(topic).reliable().create().unwrap();
    let publisher = from.publisher(topic).deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    publisher.put(&content(1, 10_000)).unwrap();
    assert!(receive(&subscriber).as_slice().unwrap() == content(1, 10_000));
    drop(subscriber);
    until("nobody to want it", || publisher.subscribers() == 0);
}

#[test]
fn topics_come_and_go_though_what_is_wanted_is_not_heard() {
    let hosts = hosts_without_links("");
    // The first topic is heard of as it should be. Of the second it is not heard that it is wanted, of the third that it is
    // not any more, and of no other one anything.
    let lost = Arc::new(AtomicU32::new(0));
    let counted = lost.clone();
    let hears = move |news: &News| {
        let is_lost = match news {
            News::Wants(_, topic, _) => topic != "first" && topic != "third",
            News::WantsNot(_, topic, _) => topic != "first",
            _ => false,
        };
        counted.fetch_add(is_lost.into(), Ordering::Relaxed);
        !is_lost
    };
    let _links = [
        Links::start(&hosts[0], None, hears),
        Links::start(&hosts[1], None, |_| true),
    ];
    hosts[0].wait_for_peers(1);
    let [here, there] = hosts.each_ref().map(|host| host.node("member"));
    crosses(&here, &there, "first");
    assert_eq!(lost.load(Ordering::Relaxed), 0);
    for topic in ["second", "third", "fourth"] {
        crosses(&here, &there, topic);
    }
    until("the lost words to be counted", || {
        lost.load(Ordering::Relaxed) >= 3
    });
    // The other way nothing is lost.
    crosses(&there, &here, "back");
}

#[test]
fn a_host_that_was_not_heard_of_is_linked() {
    // By the one that opens the lanes, and by the other one.
    for deaf in [0, 1] {
        let hosts = hosts_without_links("");
        let _links = [0, 1].map(|at| {
            let hears = move |news: &News| at != deaf || !matches!(news, News::Came(..));
            Links::start(&hosts[at], None, hears)
        });
        hosts.iter().for_each(|host| host.wait_for_peers(1));
        let [here, there] = hosts.each_ref().map(|host| host.node("member"));
        crosses(&here, &there, "camera");
        crosses(&there, &here, "back");
    }
}
