//! What the daemon shows of itself, to Prometheus and in its log.

mod support;

use rgaps::{Node, SubscriberQos};
use rgaps_session::{Answer, Config, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use support::*;

const LISTEN: (&str, &str) = ("RGAPS_METRICS__LISTEN", "127.0.0.1:0");

/// Where a daemon's metrics are, from its log.
fn address(daemon: &Daemon) -> SocketAddr {
    let mut found = None;
    wait_for("the log to name the address", || {
        let log = daemon.log();
        let at = log.split("serving metrics at http://").nth(1);
        found = at.and_then(|at| at.split("/metrics").next()?.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

/// What comes when `request` is sent, until the connection ends.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

fn scrape(address: SocketAddr) -> String {
    // Longer than figures are kept.
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

/// The value of a figure with its labels, as it is written.
fn value(text: &str, figure: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(figure))?;
    line.trim().parse().ok()
}

fn node(daemon: &Daemon, name: &str) -> Node {
    let config = Config {
        autostart: false,
        ..daemon.config()
    };
    Node::builder(name).config(config).build().unwrap()
}

#[test]
fn figures_follow_what_happens_and_stay_when_members_leave() {
    let daemon = Daemon::start_with(&[LISTEN]);
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
    wait_for("all counts to be those of who left", || {
        let text = scrape(address);
        value(&text, &topic("publishers")) == Some(0.0)
    });
    let text = scrape(address);
    assert_eq!(value(&text, &topic("published_messages_total")), Some(5.0));
    assert_eq!(value(&text, &topic("published_bytes_total")), Some(500.0));
    assert_eq!(value(&text, &topic("received_messages_total")), Some(3.0));
    drop(again);
}

/// Keeps the topic there.
fn right_again(daemon: &Daemon) -> rgaps::Subscriber {
    let right = node(daemon, "again");
    right.subscriber("camera/left").create().unwrap()
}

#[test]
fn each_figure_is_in_the_documentation_and_no_other() {
    let daemon = Daemon::start_with(&[LISTEN]);
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
    // And each is explained where it is shown.
    let helped: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    assert_eq!(helped.len(), shown.len());
}

#[test]
fn whoever_sends_garbage_is_refused_and_the_rest_served() {
    let daemon = Daemon::start_with(&[LISTEN]);
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
    // Some say nothing, some a part, some hang up at once: more than are served at once.
    let mut silent = Vec::new();
    for number in 0..40 {
        let mut stream = TcpStream::connect(address).unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET /metr").unwrap();
        }
        if number % 5 == 0 {
            drop(stream);
        } else {
            silent.push(stream);
        }
    }
    // Their time is limited, so this one has its turn.
    scrape(address);
    drop(silent);
    let mut client = daemon.client("c");
    assert!(matches!(client.ask(Request::Status), Ok(Answer::Status(_))));
}

#[test]
fn a_daemon_whose_port_is_taken_serves_its_clients_and_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let daemon = Daemon::start_with(&[("RGAPS_METRICS__LISTEN", &address)]);
    let Ok(Answer::Status(status)) = daemon.client("c").ask(Request::Status) else {
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
    let mut daemon = Daemon::start_with(&[("RGAPS_LOG_FORMAT", "json")]);
    drop(daemon.client("c"));
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
