//! Messages of other hosts land where `links.landing` says. Both hosts share a test driver with two GPUs.
mod support;

use rgaps::{Domain, Node, RemoteRow};
use rgaps_cuda::Driver;
use rgaps_testkit::driver::use_test_driver;
use std::sync::OnceLock;
use support::{bytes_of, content, hosts, receive, until, wait_for_subscribers, LIMIT};

const BYTES: usize = 5 << 20;

fn gpus() -> [Domain; 2] {
    static FOUND: OnceLock<[Domain; 2]> = OnceLock::new();
    *FOUND.get_or_init(|| {
        use_test_driver(&[("DEVICES", "2"), ("DELAY_US", "500")]);
        let devices = Driver::load().unwrap().devices().unwrap();
        [0, 1].map(|at: usize| Domain::Cuda(devices[at].uuid))
    })
}

fn rule(name: &str, topic: &str, domain: &str) -> String {
    format!("[[links.landing]]\nname = \"{name}\"\ntopics = [\"{topic}\"]\ndomain = \"{domain}\"\n")
}

/// The row of `topic info` for a topic and another host.
fn said(node: &Node, topic: &str, host: &str) -> Option<RemoteRow> {
    let info = node.topic(topic).ok()?;
    info.remote.into_iter().find(|row| row.host == host)
}

#[test]
fn topics_land_where_the_first_rule_that_fits_says() {
    let [one, two] = gpus();
    let rules = rule("second", "second/*", "cuda:1")
        + &rule("first", "second/**", "cuda:0")
        + &rule("plain", "host", "host")
        + &rule("near", "near/*", "readers");
    let hosts = hosts(2, &rules);
    let (here, there) = (hosts[0].node("here"), hosts[1].node("there"));
    for (topic, reads, lands, name) in [
        // A subscriber that names no domain reads where the messages land.
        ("second/a", None, two, "second"),
        ("second/a/b", None, one, "first"),
        ("host", None, Domain::Host, "plain"),
        ("near/gpu", Some(one), one, "near"),
        ("near/any", None, Domain::Host, "near"),
        // A subscriber of another domain reads a replica.
        ("second/c", Some(Domain::Host), two, "second"),
    ] {
        let mut subscriber = there.subscriber(topic).reliable();
        if let Some(domain) = reads {
            subscriber = subscriber.domain(domain);
        }
        let subscriber = subscriber.create().unwrap();
        let publisher = here.publisher(topic).domain(Domain::Host).deadline(LIMIT);
        let publisher = publisher.create().unwrap();
        wait_for_subscribers(&publisher, 1);
        for number in 0..3 {
            publisher.put(&content(number, BYTES)).unwrap();
        }
        for number in 0..3 {
            let sample = receive(&subscriber);
            assert_eq!(sample.domain(), reads.unwrap_or(lands), "{topic}");
            assert!(
                bytes_of(&sample) == content(number, BYTES),
                "{topic} {number}"
            );
        }
        let info = there.topic(topic).unwrap();
        assert_eq!(info.row.domain, Some(lands), "{topic}");
        let words = format!("lands in {lands}, by links.landing '{name}'");
        until(&format!("'{topic}' to say that it {words}"), || {
            let row = said(&there, topic, "host-a");
            row.is_some_and(|row| row.ready && row.subscribers == 0 && row.path.contains(&words))
        });
    }
}

#[test]
fn a_rule_that_cannot_be_kept_to_is_named() {
    let [one, _] = gpus();
    let hosts = hosts(
        2,
        &(rule("ninth", "ninth", "cuda:9") + &rule("lives", "lives", "host")),
    );
    let (here, there) = (hosts[0].node("here"), hosts[1].node("there"));
    let _subscriber = there.subscriber("ninth").create().unwrap();
    let _publisher = here.publisher("ninth").create().unwrap();
    let why = "not: links.landing 'ninth': there is no GPU 9: the links see 2";
    for (node, host) in [(&here, "host-b"), (&there, "host-a")] {
        until(&format!("{host} to be told of with '{why}'"), || {
            let row = said(node, "ninth", host);
            row.is_some_and(|row| !row.ready && row.path == why)
        });
    }
    // A topic has one domain on a host: that of the first publisher there.
    let local = there.publisher("lives").domain(one).create().unwrap();
    let subscriber = there.subscriber("lives").reliable().create().unwrap();
    let publisher = here.publisher("lives").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    publisher.put(&content(1, BYTES)).unwrap();
    let sample = receive(&subscriber);
    assert_eq!(sample.domain(), one);
    assert!(bytes_of(&sample) == content(1, BYTES));
    let words = "where the topic lives here, and not in host, as links.landing 'lives' says";
    until(&format!("'lives' to be told of with '{words}'"), || {
        said(&there, "lives", "host-a").is_some_and(|row| row.ready && row.path.contains(words))
    });
    drop(local);
}
