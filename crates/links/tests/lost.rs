//! What the control plane loses of what hosts say: it is found out over the link, or by asking.
#![forbid(unsafe_code)]
mod support;

use rgaps::Node;
use rgaps_links::plane::News;
use rgaps_links::Coordinator;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use support::{content, ports, receive, until, wait_for_subscribers, Host, LIMIT};

/// Links within this process, which do not hear all that the control plane tells.
struct Links {
    stop: Arc<AtomicBool>,
    runs: Option<JoinHandle<()>>,
}

impl Links {
    fn start(host: &Host, hears: impl Fn(&News) -> bool + Send + Sync + 'static) -> Links {
        let stop = Arc::new(AtomicBool::new(false));
        let (config, stopped) = (host.config(), stop.clone());
        let runs = std::thread::spawn(move || {
            let links = Coordinator::start_over(config, Err(String::new()), hears).unwrap();
            links.run(&stopped).unwrap();
        });
        Links {
            stop,
            runs: Some(runs),
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.runs.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// Two hosts without links, that know of each other; the first one opens the lanes.
fn hosts() -> [Host; 2] {
    let ports = ports(2);
    [0, 1].map(|at| {
        let name = ["host-a", "host-b"][at];
        let links = format!(
            "host = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\nconnect = [\"tcp/127.0.0.1:{}\"]",
            ports[at],
            ports[1 - at]
        );
        Host::start_whole(name, &links)
    })
}

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
    let hosts = hosts();
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
        Links::start(&hosts[0], hears),
        Links::start(&hosts[1], |_| true),
    ];
    hosts[0].wait_for_peers(1);
    let [here, there] = hosts.each_ref().map(|host| host.node("member"));
    crosses(&here, &there, "first");
    assert_eq!(lost.load(Ordering::Relaxed), 0);
    for topic in ["second", "third", "fourth"] {
        crosses(&here, &there, topic);
    }
    assert!(lost.load(Ordering::Relaxed) >= 3);
    // The other way nothing is lost.
    crosses(&there, &here, "back");
}

#[test]
fn a_host_that_was_not_heard_of_is_linked() {
    // By the one that opens the lanes, and by the other one.
    for deaf in [0, 1] {
        let hosts = hosts();
        let _links = [0, 1].map(|at| {
            let hears = move |news: &News| at != deaf || !matches!(news, News::Came(..));
            Links::start(&hosts[at], hears)
        });
        hosts.iter().for_each(|host| host.wait_for_peers(1));
        let [here, there] = hosts.each_ref().map(|host| host.node("member"));
        crosses(&here, &there, "camera");
        crosses(&there, &here, "back");
    }
}
