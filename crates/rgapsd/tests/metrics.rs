//! The daemon's metrics port and its log.

mod support;

use rgaps::{Node, SubscriberQos};
use rgaps_session::{Answer, Request};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{socket, AddressFamily, SocketType};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use support::*;

const LISTEN: (&str, &str) = ("RGAPS_METRICS__LISTEN", "127.0.0.1:0");

/// The address of a daemon's metrics port, from its log.
fn address(daemon: &Daemon) -> SocketAddr {
    let mut found = None;
    until("the log to name the address", || {
        let log = daemon.log();
        let at = log.split("serving metrics at http://").nth(1);
        found = at.and_then(|at| at.split("/metrics").next()?.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

/// Sends `request` and returns everything that arrives until the connection ends.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

fn scrape(address: SocketAddr) -> String {
    // Longer than the daemon serves the same page again (100 ms).
    std::thread::sleep(Duration::from_millis(150));
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let length = head.split("Content-Length: ").nth(1).unwrap();
    let length = length.split("\r\n").next().unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), body.len());
    assert!(body.ends_with("# EOF\n"));
    body.to_owned()
}

/// The value of a metric. `figure`: its name and labels as in the text.
fn value(text: &str, figure: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(figure))?;
    line.trim().parse().ok()
}

fn node(daemon: &Daemon, name: &str) -> Node {
    daemon.node(name)
}

#[test]
fn figures_follow_what_happens_and_stay_when_members_leave() {
    let daemon = start_with(&[LISTEN]);
    let address = address(&daemon);
    let (left, right) = (node(&daemon, "left"), node(&daemon, "right"));
    let publisher = left.publisher("camera/left").create().unwrap();
    let qos = SubscriberQos {
        reliable: true,
        ..SubscriberQos::default()
    };
    let subscriber = right.subscriber("camera/left").qos(qos).create().unwrap();
    for number in 0..5u8 {
        let mut loan = publisher.loan(100).unwrap();
        loan.as_mut_slice().unwrap().fill(number);
        loan.publish().unwrap();
    }
    let samples: Vec<_> = (0..3)
        .map(|_| subscriber.try_recv().unwrap().unwrap())
        .collect();
    let text = scrape(address);
    let topic = |name: &str| {
        let labels = "{topic=\"camera/left\",access=\"default\"}";
        format!("rgaps_topic_{name}{labels}")
    };
    for (name, expected) in [
        ("published_messages_total", 5.0),
        ("published_bytes_total", 500.0),
        ("received_messages_total", 3.0),
        ("missed_messages_total", 0.0),
        ("held_samples", 3.0),
        ("publishers", 1.0),
        ("subscribers", 1.0),
        ("remote_subscribers", 0.0),
    ] {
        assert_eq!(value(&text, &topic(name)), Some(expected), "{name}\n{text}");
    }
    assert_eq!(value(&text, "rgaps_clients"), Some(2.0));
    let readers = "rgaps_topic_readers{topic=\"camera/left\",access=\"default\",domain=\"host\"}";
    assert_eq!(value(&text, readers), Some(1.0));
    let leased = value(
        &text,
        "rgaps_pool_leased_bytes{domain=\"host\",access=\"default\"}",
    );
    assert!(leased.is_some_and(|bytes| bytes >= 500.0), "{text}");

    drop((samples, subscriber, right));
    let again = right_again(&daemon);
    drop((publisher, left));
    until("all counts to be those of who left", || {
        let text = scrape(address);
        value(&text, &topic("publishers")) == Some(0.0)
    });
    let text = scrape(address);
    assert_eq!(value(&text, &topic("published_messages_total")), Some(5.0));
    assert_eq!(value(&text, &topic("published_bytes_total")), Some(500.0));
    assert_eq!(value(&text, &topic("received_messages_total")), Some(3.0));
    drop(again);
}

/// Creates a subscriber, which keeps the topic.
fn right_again(daemon: &Daemon) -> rgaps::Subscriber {
    let right = node(daemon, "again");
    right.subscriber("camera/left").create().unwrap()
}

#[test]
fn each_figure_is_in_the_documentation_and_no_other() {
    let daemon = start_with(&[LISTEN]);
    let text = scrape(address(&daemon));
    let mut shown = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        shown.insert(format!("{name}{suffix}"), kind.to_owned());
    }
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/metrics.md"
    );
    let page = std::fs::read_to_string(page).unwrap();
    let mut told = BTreeMap::new();
    for row in page
        .lines()
        .filter_map(|line| line.strip_prefix("| `rgaps_"))
    {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
        let (name, kind) = (cells.next().unwrap(), cells.next().unwrap());
        let meaning = cells.nth(1).unwrap();
        assert!(!meaning.is_empty(), "{name}");
        told.insert(format!("rgaps_{name}"), kind.to_owned());
    }
    assert!(shown.len() > 40, "{shown:?}");
    assert_eq!(shown, told);
    // Each metric has a help text, too.
    let helped: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    assert_eq!(helped.len(), shown.len());
}

#[test]
fn whoever_sends_garbage_is_refused() {
    let daemon = start_with(&[LISTEN]);
    let address = address(&daemon);
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", "400"),
        (&[b'a'; 4096], "431"),
    ] {
        let answer = ask(address, request);
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{answer}");
    }
    let head = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(
        head.ends_with("\r\n\r\n") && head.contains("200 OK"),
        "{head}"
    );
}

/// The number of descriptors and the resident bytes of a process.
fn used(pid: u32) -> (usize, u64) {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.unwrap().trim().trim_end_matches(" kB");
    (fds.count(), kib.parse::<u64>().unwrap() << 10)
}

/// Checks that scrapes and clients are served while the connections of `flood` stay open, and that the daemon uses hardly more
/// descriptors and memory.
fn serves_beside(flood: impl Fn(SocketAddr) -> Vec<TcpStream>) {
    const TOPICS: usize = 200;
    /// The daemon may use as many more descriptors: 32 connections, and a few short-lived ones.
    const FDS: usize = 40;
    const RESIDENT_BYTES: u64 = 64 << 20;
    let daemon = start_with(&[LISTEN]);
    let address = address(&daemon);
    let mut client = connect(&daemon, "c");
    for number in 0..TOPICS {
        client.join(&format!("topic/{number}"), subscriber());
    }
    scrape(address);
    let (fds, bytes) = used(daemon.id());
    let mut open = Vec::new();
    for _ in 0..3 {
        open.extend(flood(address));
        let page = scrape(address);
        assert_eq!(value(&page, "rgaps_topics"), Some(TOPICS as f64));
        assert!(matches!(client.ask(Request::Status), Ok(Answer::Status(_))));
        let (fds_now, bytes_now) = used(daemon.id());
        assert!(fds_now <= fds + FDS, "{fds_now} descriptors, {fds} before");
        assert!(bytes_now <= bytes + RESIDENT_BYTES, "{bytes_now} {bytes}");
    }
}

/// Opens a thousand connections and sends `sends` on each.
fn thousand(address: SocketAddr, sends: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        // This fails if the daemon has closed the connection already.
        let _ = stream.write_all(sends);
        stream
    };
    (0..1000).map(connect).collect()
}

#[test]
fn a_thousand_idle_connections_keep_no_scrape_waiting() {
    serves_beside(|address| thousand(address, b""));
}

#[test]
fn half_requests_keep_no_scrape_waiting() {
    serves_beside(|address| thousand(address, b"GET /metrics HTTP/1.1\r\nHost: he"));
}

#[test]
fn huge_headers_keep_no_scrape_waiting() {
    let mut huge = b"GET /metrics HTTP/1.1\r\nHost: ".to_vec();
    huge.resize(16 << 10, b'a');
    serves_beside(|address| thousand(address, &huge));
}

#[test]
fn readers_that_do_not_read_keep_no_scrape_waiting() {
    serves_beside(|address| {
        let connect = |_| {
            let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            // The smallest receive buffer that the kernel allows, into which the page does not fit.
            set_socket_recv_buffer_size(&fd, 1).unwrap();
            rustix::net::connect(&fd, &address).unwrap();
            let mut stream = TcpStream::from(fd);
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            stream
        };
        (0..200).map(connect).collect()
    });
}

#[test]
fn a_daemon_whose_port_is_taken_serves_its_clients_and_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let daemon = start_with(&[("RGAPS_METRICS__LISTEN", &address)]);
    let Ok(Answer::Status(status)) = connect(&daemon, "c").ask(Request::Status) else {
        panic!("no status");
    };
    let warned = status.warnings.iter().find(|text| text.contains(&address));
    assert!(
        warned.is_some_and(|text| text.contains("metrics.listen")),
        "{:?}",
        status.warnings
    );
}

#[test]
fn a_log_can_be_json() {
    let mut daemon = start_with(&[("RGAPS_LOG_FORMAT", "json")]);
    drop(connect(&daemon, "c"));
    daemon.terminate();
    assert!(daemon.wait().success());
    let log = daemon.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let ready = lines.iter().find(|line| line["message"] == "ready");
    let ready = ready.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(ready["realm"], "default");
    assert_eq!(ready["level"], "INFO");
    assert_eq!(ready["target"], "rgapsd");
    assert!(ready["timestamp"].is_string() && ready["socket"].is_string());
}
