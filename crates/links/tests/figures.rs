//! Counts and times of links, as the daemons report them.
mod support;

use rgaps::{LinkFigures, Node, PeerState, Stage};
use std::io::{Read, Write};
use std::net::TcpStream;
use support::{content, hosts, ports, receive, until, wait_for_subscribers, Host, LIMIT};

const MESSAGES: u64 = 20;
const BYTES: usize = 3_000;
const LARGE: usize = 2_000_000;

fn figures(node: &Node) -> LinkFigures {
    let mut figures = node.link_figures().unwrap_or_default();
    figures.pop().unwrap_or_default()
}

fn counts(figures: &LinkFigures) -> Vec<u64> {
    figures.stages.iter().map(|times| times.count()).collect()
}

/// Publishes and receives the messages that the test counts.
fn traffic(here: &Node, there: &Node) {
    let subscriber = there.subscriber("photos").reliable().create().unwrap();
    let publisher = here.publisher("photos").deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    for number in 0..MESSAGES {
        publisher.put(&content(number, BYTES)).unwrap();
    }
    publisher.put(&content(MESSAGES, LARGE)).unwrap();
    for number in 0..=MESSAGES {
        assert_eq!(receive(&subscriber).sequence(), number);
    }
}

#[test]
fn each_message_is_counted_and_timed_at_both_ends() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("here"), hosts[1].node("there"));
    traffic(&here, &there);
    let all = MESSAGES + 1;
    let payload = MESSAGES * BYTES as u64 + LARGE as u64;
    // A report has the counts of one moment, and the lanes' counts of a moment before.
    let (mut sent, mut came) = (figures(&here), figures(&there));
    until("the figures of what was sent", || {
        sent = figures(&here);
        let is_on_wire = sent.wire_bytes_out > payload && sent.retained_bytes == 0;
        counts(&sent) == [all, all, all, 0, 0, 0] && is_on_wire
    });
    until("the figures of what came", || {
        came = figures(&there);
        counts(&came) == [0, 0, 0, all, all, all] && came.wire_bytes_in > payload
    });
    assert_eq!(
        (sent.host.as_str(), came.host.as_str()),
        ("host-b", "host-a")
    );
    assert_eq!((sent.messages_out, sent.bytes_out), (all, payload));
    assert_eq!((came.messages_in, came.bytes_in), (all, payload));
    assert_eq!((sent.resent, sent.violations, sent.skipped), (0, 0, 0));
    assert_eq!((came.missed, came.duplicates, came.given_up), (0, 0, 0));
    // The host that dials counts the connection, and so does the one that accepts.
    assert_eq!((sent.connects, came.connects), (1, 1));
    // Both hosts have the same clock, so the total time is at least that of any stage.
    let at = |stage| Stage::ALL.iter().position(|each| *each == stage).unwrap();
    let sum = |stage| came.stages[at(stage)].sum_ns;
    assert!(sum(Stage::Total) > 0 && sum(Stage::Total) >= sum(Stage::Publish));
}

/// `rgaps peers` showed `linked` beside 0 CONNECTS for up to a second.
#[test]
fn a_host_that_is_shown_as_linked_has_connected() {
    let mut hosts = hosts(2, "");
    let node = hosts[0].node("observer");
    let peers = || node.peers().unwrap().peers;
    for _ in 0..3 {
        hosts[0].kill_links();
        until("no links", || peers().is_empty());
        hosts[0].start_links();
        until("the link and its figures", || {
            let is_linked = peers().iter().any(|peer| peer.state == PeerState::Linked);
            let figures = node.link_figures().unwrap();
            let connects: Vec<u64> = figures.iter().map(|link| link.connects).collect();
            assert!(!is_linked || !connects.contains(&0), "linked, and never up");
            is_linked && !connects.is_empty()
        });
    }
}

/// The daemon's metrics for Prometheus.
fn scrape(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_daemon_shows_its_links_to_prometheus() {
    let port = ports(1)[0];
    // Two hosts that find each other; the first one's daemon has metrics.
    let control = ports(2);
    let links = |at: usize| {
        format!(
            "host = \"host-{at}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
             connect = [\"tcp/127.0.0.1:{}\"]\n",
            control[at],
            control[1 - at]
        )
    };
    let metrics = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    let first = Host::start("host-0", &(links(0) + &metrics));
    let second = Host::start("host-1", &links(1));
    traffic(&first.node("here"), &second.node("there"));
    let all = MESSAGES + 1;
    for expected in [
        "rgaps_link_up{host=\"host-1\"} 1".to_owned(),
        format!("rgaps_link_sent_messages_total{{host=\"host-1\"}} {all}"),
        "rgaps_link_connects_total{host=\"host-1\"} 1".to_owned(),
        format!("rgaps_link_stage_seconds_count{{host=\"host-1\",stage=\"wire\"}} {all}"),
        format!(
            "rgaps_link_stage_seconds_bucket{{le=\"+Inf\",host=\"host-1\",stage=\"wire\"}} {all}"
        ),
        "rgaps_link_stage_seconds_count{host=\"host-1\",stage=\"total\"} 0".to_owned(),
        "rgaps_link_lane_ends_total{host=\"host-1\",reason=\"completion\"} 0".to_owned(),
        "rgaps_rdma_stalls_total{host=\"host-1\",credit=\"receives\"} 0".to_owned(),
        "rgaps_rdma_direct_sent_bytes_total{host=\"host-1\"} 0".to_owned(),
    ] {
        until(&format!("Prometheus to be shown {expected}"), || {
            scrape(port).lines().any(|line| line == expected)
        });
    }
}
