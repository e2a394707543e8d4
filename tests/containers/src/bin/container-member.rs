//! A publisher or subscriber in a container: `container-member SOCKET publish|subscribe TOPIC`. With `find-and-` before
//! its role it knows the realm only, which is the socket's name.
#![forbid(unsafe_code)]

use rgaps::{Config, Node};
use rgaps_hostile::honest::{fill, holds};
use rgaps_testkit::LIMIT;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Largest message.
const BYTES_MAX: u64 = 200_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, role, topic] = &arguments[..] else {
        panic!("container-member SOCKET publish|subscribe TOPIC");
    };
    assert_eq!(std::process::id(), 1, "the first process of its namespace");
    let shared = std::fs::read_dir("/dev/shm").expect("/dev/shm");
    assert_eq!(shared.count(), 0, "nothing is shared through /dev/shm");
    let socket = PathBuf::from(socket);
    let mut config = Config {
        autostart: false,
        ..Config::default()
    };
    let role = match role.strip_prefix("find-and-") {
        Some(role) => {
            let realm = socket.file_stem().expect("a name");
            config.realm = realm.to_string_lossy().into_owned();
            role
        }
        None => {
            config.socket = Some(socket);
            role
        }
    };
    let node = Node::builder("in-container").config(config).build();
    let node = node.expect("a node");
    match role {
        "publish" => publish(&node, topic),
        "subscribe" => subscribe(&node, topic),
        other => panic!("no role is called {other}"),
    }
}

fn say(what: &str, number: u64) {
    println!("{what} {number}");
    let _ = std::io::stdout().flush();
}

fn publish(node: &Node, topic: &str) {
    let publisher = node
        .publisher(topic)
        .keep_last(8)
        .deadline(LIMIT)
        .create()
        .expect("a publisher");
    say("joined", 1);
    let come = publisher.wait_for_subscribers(1, LIMIT);
    assert!(come.expect("a wait"), "no subscriber came");
    // With memory for the largest messages at hand, the publisher needs no daemon any more.
    drop(publisher.loan(BYTES_MAX).expect("a loan"));
    for sequence in 0.. {
        let bytes = (sequence * 7919) % BYTES_MAX;
        let mut loan = publisher.loan(bytes).expect("a loan");
        fill(sequence, loan.as_mut_slice().expect("host memory"));
        loan.set_tag(sequence);
        loan.publish().expect("published");
        say("published", sequence + 1);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn subscribe(node: &Node, topic: &str) {
    let subscriber = node
        .subscriber(topic)
        .reliable()
        .create()
        .expect("a subscriber");
    say("joined", 1);
    let mut first = None;
    let mut held = Vec::new();
    for received in 0u64.. {
        let sample = subscriber.recv().expect("a message");
        let first = *first.get_or_insert(sample.tag());
        assert_eq!((sample.tag(), sample.missed()), (first + received, 0));
        let right = holds(sample.tag(), sample.as_slice().expect("host memory"));
        assert!(right, "the bytes of message {} are wrong", sample.tag());
        held.push(sample);
        if held.len() > 4 {
            held.remove(0);
        }
        say("received", received + 1);
    }
}
