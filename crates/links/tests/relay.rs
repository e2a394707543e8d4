//! Hosts that reach each other only through others.
mod support;

use rgaps::{Node, PeerState, Publisher, Subscriber};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use support::stream::{crossed, publish, reached, state, Reader};
use support::{content, ports, receive, until, wait_for_subscribers, Host, LIMIT};

/// Hosts in a row: each knows only the ones beside it.
fn row(count: usize, more: &str) -> Vec<Host> {
    let ports = ports(count);
    (0..count)
        .map(|at| start(&ports, at, &[at.wrapping_sub(1), at + 1], more))
        .collect()
}

/// A host that knows these others, and no more: nobody tells of hosts that are not listed.
fn start(ports: &[u16], at: usize, others: &[usize], more: &str) -> Host {
    let others = others.iter().filter_map(|other| ports.get(*other));
    let connect: Vec<String> = others
        .map(|port| format!("\"tcp/127.0.0.1:{port}\""))
        .collect();
    let name = format!("host-{}", (b'a' + at as u8) as char);
    let links = format!(
        "host = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
         connect = [{}]\ngossip = false\n{more}",
        ports[at],
        connect.join(", ")
    );
    Host::start(&name, &links)
}

fn publisher(node: &Node, topic: &str) -> Publisher {
    node.publisher(topic).deadline(LIMIT).create().unwrap()
}

fn reliable(node: &Node, topic: &str) -> Subscriber {
    node.subscriber(topic).reliable().create().unwrap()
}

/// Three hosts in a row, reliable subscribers at the end and between, and `what` in the middle of it: nobody misses
/// anything, and nobody gets anything twice.
fn nothing_is_lost(what: impl FnOnce(&mut [Host])) {
    const BYTES: usize = 20_000;
    let mut hosts = row(3, "outage_ms = 30000");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let subscribers = [reliable(&nodes[1], "photos"), reliable(&nodes[2], "photos")];
    let publisher = publisher(&nodes[0], "photos");
    wait_for_subscribers(&publisher, 2);
    let (stop, stop_reading) = (Arc::default(), Arc::default());
    let readers = subscribers.map(|subscriber| Reader::start(subscriber, BYTES, &stop_reading));
    let publishing = publish(publisher, BYTES, &stop);
    std::thread::sleep(Duration::from_millis(300));
    what(&mut hosts);
    reached(&nodes[0], "host-c", PeerState::Through);
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, Ordering::Relaxed);
    until("the publisher", || publishing.is_finished());
    let published = publishing.join().unwrap();
    stop_reading.store(true, Ordering::Relaxed);
    assert_eq!(readers.map(Reader::end), [published; 2]);
}

#[test]
fn nothing_is_lost_when_the_links_between_are_killed() {
    nothing_is_lost(|hosts| {
        for _ in 0..3 {
            hosts[1].kill_links();
            std::thread::sleep(Duration::from_millis(200));
            hosts[1].start_links();
            std::thread::sleep(Duration::from_millis(700));
        }
    });
}

#[test]
fn nothing_is_lost_when_the_links_at_the_end_are_killed() {
    nothing_is_lost(|hosts| {
        hosts[2].kill_links();
        std::thread::sleep(Duration::from_millis(1500));
        hosts[2].start_links();
    });
}

#[test]
fn a_host_between_two_carries_messages_on_once_per_hop() {
    const COUNT: u64 = 100;
    let hosts = row(3, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    // At the end, and between.
    let far: Vec<_> = (0..2).map(|_| reliable(&nodes[2], "photos")).collect();
    let near = reliable(&nodes[1], "photos");
    let publisher = nodes[0]
        .publisher("photos")
        .type_name("photo")
        // All are published before any is read.
        .keep_last(COUNT as u32)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 3);
    for number in 0..COUNT {
        let bytes = [0, 1, 500, 70_000, 3_000_000][number as usize % 5];
        let mut loan = publisher.loan(bytes as u64).unwrap();
        loan.write(0, &content(number, bytes)).unwrap();
        loan.set_tag(number + 7);
        loan.publish().unwrap();
    }
    for subscriber in far.iter().chain([&near]) {
        for number in 0..COUNT {
            let bytes = [0, 1, 500, 70_000, 3_000_000][number as usize % 5];
            let sample = receive(subscriber);
            assert!(sample.as_slice().unwrap() == content(number, bytes));
            assert_eq!((sample.tag(), sample.missed()), (number + 7, 0));
        }
        let more = subscriber.recv_timeout(Duration::from_millis(200));
        assert!(more.is_err(), "{more:?}");
    }
    until("the counts", || {
        (crossed(&nodes[0], "host-b"), crossed(&nodes[1], "host-c")) == (COUNT, COUNT)
    });
    assert_eq!(
        (crossed(&nodes[1], "host-a"), crossed(&nodes[2], "host-b")),
        (0, 0)
    );
    // And it is said.
    let (state, how) = state(&nodes[0], "host-c").unwrap();
    assert_eq!(
        (state, how.as_str()),
        (PeerState::Through, "through host-b")
    );
    let remote = nodes[0].topic("photos").unwrap().remote;
    let rows: Vec<_> = remote
        .iter()
        .map(|row| (row.host.as_str(), row.subscribers, row.ready))
        .collect();
    assert_eq!(rows, [("host-b", 1, true), ("host-c", 2, true)]);
    assert!(
        remote[1].path.starts_with("through host-b: tcp"),
        "{remote:?}"
    );
    assert_eq!(nodes[2].topic("photos").unwrap().row.type_name, "photo");
}
