//! Hosts are linked even if events of the control plane are lost.
#![forbid(unsafe_code)]
mod support;
#[path = "support/within.rs"]
mod within;

use rgaps::Node;
use rgaps_links::control_plane::PlaneEvent;
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
fn a_host_that_was_not_heard_of_is_linked() {
    // The deaf host is first the one that opens the lanes, then the other one.
    for deaf in [0, 1] {
        let hosts = hosts_without_links("");
        let _links = [0, 1].map(|at| {
            let hears =
                move |event: &PlaneEvent| at != deaf || !matches!(event, PlaneEvent::Appeared(..));
            Links::start(&hosts[at], None, hears)
        });
        hosts.iter().for_each(|host| host.wait_for_peers(1));
        let [here, there] = hosts.each_ref().map(|host| host.node("member"));
        crosses(&here, &there, "camera");
        crosses(&there, &here, "back");
    }
}
