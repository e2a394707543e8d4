//! Links and daemons that are killed, and come back.
mod support;

use rgaps::{Late, Node, PeerState, Publisher};
use rgaps_client::links::LinksNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use support::stream::lost;
use support::{
    content, hosts, is_last, last_message, nothing_more, ports, receive, until,
    wait_for_subscribers, Host, LIMIT, LOOK_AGAIN,
};

const BYTES: usize = 20_000;

/// Publishes until `stop` is set, and then the last message. Returns how many messages were before that.
fn publish_on(publisher: Publisher, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut loan = publisher.loan(BYTES as u64).unwrap();
            loan.write(0, &content(number, BYTES)).unwrap();
            loan.set_tag(number);
            loan.publish().unwrap();
            number += 1;
            // Leaves the processor to the hosts; nothing depends on how long.
            std::thread::sleep(LOOK_AGAIN);
        }
        publisher.put(last_message()).unwrap();
        number
    })
}

#[test]
fn links_that_are_killed_where_messages_land_lose_and_double_nothing() {
    let mut hosts = hosts(2, "outage_ms = 300000");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = there.subscriber("stream").reliable().create().unwrap();
    let publisher = here
        .publisher("stream")
        .keep_last(256)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let publishing = publish_on(publisher, stop.clone());
    // Messages of one life of the links arrive in order; between two lives, no order is promised.
    let mut taken = BTreeSet::new();
    let mut last = BTreeMap::new();
    let mut take = |count: u64| {
        for _ in 0..count {
            let sample = receive(&subscriber);
            let number = sample.tag();
            assert!(sample.as_slice().unwrap() == content(number, BYTES));
            assert!(taken.insert(number), "message {number} came twice");
            let before = last.insert(sample.publisher_id(), number);
            assert!(
                before.is_none_or(|before| before < number),
                "{before:?}, then {number}"
            );
        }
        taken.len() as u64
    };
    take(50);
    for _ in 0..2 {
        hosts[1].kill_links();
        lost(&here, "host-b");
        hosts[1].start_links();
        take(200);
    }
    stop.store(true, Ordering::Relaxed);
    let published = publishing.join().unwrap();
    let so_far = take(0);
    assert_eq!(take(published - so_far), published);
    assert!(is_last(receive(&subscriber).as_slice().unwrap()));
    let more = subscriber.try_recv();
    assert!(matches!(more, Ok(None)), "{more:?}");
    assert_eq!(last.len(), 3);
}

#[test]
fn links_that_are_killed_where_messages_leave_harm_nobody_there_and_go_on() {
    let mut hosts = hosts(2, "");
    let here = hosts[0].node("publisher");
    let there = hosts[1].node("subscriber");
    let near = here
        .subscriber("stream")
        .reliable()
        .max_held(4)
        .create()
        .unwrap();
    let far = there
        .subscriber("stream")
        .reliable()
        .late(Late::AllKept)
        .create()
        .unwrap();
    let publisher = here
        .publisher("stream")
        .transient_local()
        .keep_last(64)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 2);
    for number in 0..20 {
        publisher.put(&content(number, BYTES)).unwrap();
    }
    for number in 0..20 {
        assert!(receive(&far).as_slice().unwrap() == content(number, BYTES));
    }
    hosts[0].kill_links();
    // Local members do not notice.
    for number in 20..40 {
        publisher.put(&content(number, BYTES)).unwrap();
    }
    for number in 0..40 {
        assert!(receive(&near).as_slice().unwrap() == content(number, BYTES));
    }
    hosts[0].start_links();
    // The next links send the kept messages, and none that had arrived before.
    for number in 20..40 {
        assert!(receive(&far).as_slice().unwrap() == content(number, BYTES));
    }
    publisher.put(&content(40, BYTES)).unwrap();
    assert!(receive(&far).as_slice().unwrap() == content(40, BYTES));
    nothing_more(&publisher, &[&far]);
}

#[test]
fn daemons_that_are_killed_on_either_side_stop_no_topic() {
    let mut hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = there.subscriber("stream").reliable().create().unwrap();
    let publisher = here.publisher("stream").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    let mut next = 0;
    let mut both_ways = |count: u64| {
        for _ in 0..count {
            publisher.put(&content(next, BYTES)).unwrap();
            assert!(receive(&subscriber).as_slice().unwrap() == content(next, BYTES));
            next += 1;
        }
    };
    both_ways(20);
    for host in &mut hosts {
        host.kill_daemon();
        both_ways(20);
        host.start_daemon();
        both_ways(20);
    }
    // New topics cross, too.
    let late = there.subscriber("new").reliable().create().unwrap();
    let publisher = here.publisher("new").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    publisher.put(b"x").unwrap();
    assert_eq!(receive(&late).as_slice().unwrap(), b"x");
}

#[test]
fn a_host_that_is_gone_holds_nobody_back_for_ever() {
    let mut hosts = hosts(2, "outage_ms = 500\nheld_max = 8");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = there.subscriber("stream").reliable().create().unwrap();
    let publisher = here
        .publisher("stream")
        .keep_last(4)
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 1);
    publisher.put(b"first").unwrap();
    assert_eq!(receive(&subscriber).as_slice().unwrap(), b"first");
    hosts[1].kill_links();
    // More messages than are held for the host: the publisher waits only until the host is given up.
    for number in 0..50u64 {
        publisher.put(&number.to_le_bytes()).unwrap();
    }
    until("the host to be given up", || publisher.subscribers() == 0);
    until("the host to be lost", || {
        state_of(&here, "host-b") == Some(PeerState::Lost)
    });
    hosts[1].start_links();
    wait_for_subscribers(&publisher, 1);
    publisher.put(b"again").unwrap();
    until("the message after the outage", || {
        receive(&subscriber).as_slice().unwrap() == b"again"
    });
}

fn state_of(node: &Node, host: &str) -> Option<PeerState> {
    let peers = node.peers().unwrap().peers;
    let peer = peers.into_iter().find(|peer| peer.host == host);
    peer.map(|peer| peer.state)
}

#[test]
fn the_daemon_keeps_its_links_running() {
    let ports = ports(2);
    let start = |name: &str, own: u16, other: u16| {
        Host::start_whole(
            name,
            &format!(
                "enabled = true\nhost = \"{name}\"\nlisten = \"127.0.0.1:0\"\n\
                 control = [\"tcp/127.0.0.1:{own}\"]\nconnect = [\"tcp/127.0.0.1:{other}\"]"
            ),
        )
    };
    let hosts = [
        start("host-a", ports[0], ports[1]),
        start("host-b", ports[1], ports[0]),
    ];
    hosts[0].wait_for_peers(1);
    let node = hosts[0].node("looks");
    let of_links = || {
        let mut clients = node.clients().unwrap().into_iter();
        clients.rfind(|client| client.name == "rgaps-links")
    };
    let first = of_links().expect("the links are a client").pid;
    let pid = rustix::process::Pid::from_raw(first as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("links that were started again", || {
        of_links().is_some_and(|client| client.pid != first)
    });
    hosts[0].wait_for_peers(1);
    // The links end with their daemon, also if it is killed.
    let last = of_links().expect("the links are a client").pid;
    let mut hosts = hosts;
    hosts[0].kill_daemon();
    let pid = rustix::process::Pid::from_raw(last as i32).unwrap();
    until("the links' end", || {
        rustix::process::test_kill_process(pid).is_err()
    });
}

#[test]
fn nobody_else_may_be_called_links() {
    // It is enough that other clients may not make the requests of links.
    let hosts = hosts(1, "");
    let node = hosts[0].node("somebody");
    let refused = node.interest(0).unwrap_err().to_string();
    assert!(refused.contains("rgaps-links"), "{refused}");
    assert!(node.set_peers(rgaps::PeersInfo::default()).is_err());
}
