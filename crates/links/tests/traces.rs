//! Traces of messages between hosts, as a collector sees them.
mod support;

use rgaps::{Node, TraceFigures};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use support::{content, hosts, ports, receive, until, wait_for_subscribers, Host, LIMIT};

/// How much the wall clocks that two processes of one machine compute may differ.
const CLOCKS_APART_NS: u64 = 10_000_000;

/// Accepts spans as OpenTelemetry's collector does.
struct Collector {
    address: String,
    spans: Arc<Mutex<Vec<Seen>>>,
    /// The collector answers while this exists: each request at once, or one request for each message here.
    answers: Option<Sender<()>>,
}

#[derive(Clone, Debug)]
struct Seen {
    host: String,
    stage: String,
    /// The number of the span's kind in OTLP.
    kind: u64,
    topic: String,
    trace: String,
    id: String,
    parent: String,
    from_ns: u64,
    to_ns: u64,
    attributes: BTreeMap<String, String>,
}

fn attributes(of: &Value) -> BTreeMap<String, String> {
    let all = of["attributes"].as_array().unwrap().iter();
    all.map(|entry| {
        let value = &entry["value"];
        let text = value["stringValue"].as_str().or(value["intValue"].as_str());
        (
            entry["key"].as_str().unwrap().to_owned(),
            text.unwrap().to_owned(),
        )
    })
    .collect()
}

fn seen(request: &Value) -> Vec<Seen> {
    let mut all = Vec::new();
    for of_host in request["resourceSpans"].as_array().unwrap() {
        let host = attributes(&of_host["resource"]);
        assert_eq!(host["service.name"], "rgaps");
        for scope in of_host["scopeSpans"].as_array().unwrap() {
            for span in scope["spans"].as_array().unwrap() {
                let text = |key: &str| span[key].as_str().unwrap().to_owned();
                let name = text("name");
                let (stage, topic) = name.split_once(' ').unwrap();
                all.push(Seen {
                    host: host["host.name"].clone(),
                    stage: stage.to_owned(),
                    kind: span["kind"].as_u64().unwrap(),
                    topic: topic.to_owned(),
                    trace: text("traceId"),
                    id: text("spanId"),
                    parent: text("parentSpanId"),
                    from_ns: text("startTimeUnixNano").parse().unwrap(),
                    to_ns: text("endTimeUnixNano").parse().unwrap(),
                    attributes: attributes(span),
                });
            }
        }
    }
    all
}

/// Reads one request. Returns its body, and the connection on which to answer.
fn request(stream: TcpStream) -> (Value, TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "POST /v1/traces HTTP/1.1\r\n");
    let (mut length, mut kind) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let lower = line.trim().to_ascii_lowercase();
        match lower.split_once(": ") {
            None => break,
            Some(("content-length", bytes)) => length = bytes.parse().unwrap(),
            Some(("content-type", text)) => kind = text.to_owned(),
            Some(_) => {}
        }
    }
    assert_eq!(kind, "application/json");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (serde_json::from_slice(&body).unwrap(), reader.into_inner())
}

impl Collector {
    /// `answer`: the body of all answers. `at_once`: whether it answers at once, and not only for each message in `answers`.
    fn start(answer: &'static str, at_once: bool) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let spans = Arc::<Mutex<Vec<Seen>>>::default();
        let (answers, words): (Sender<()>, Receiver<()>) = channel();
        let took = spans.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (request, mut stream) = request(stream.unwrap());
                if !at_once && words.recv().is_err() {
                    return;
                }
                took.lock().unwrap().extend(seen(&request));
                let length = answer.len();
                // A client that does not wait for the answer does not matter.
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{answer}"
                );
            }
        });
        Collector {
            address,
            spans,
            answers: Some(answers),
        }
    }

    fn spans(&self) -> Vec<Seen> {
        self.spans.lock().unwrap().clone()
    }

    fn configured(&self, ratio: f64) -> String {
        let address = &self.address;
        format!("[traces]\nendpoint = \"http://{address}\"\nratio = {ratio}\n")
    }
}

fn told(node: &Node) -> TraceFigures {
    node.peers().unwrap_or_default().traces
}

fn traffic(here: &Host, there: &Host, topic: &str, messages: u64) {
    let (here, there) = (here.node("here"), there.node("there"));
    let subscriber = there.subscriber(topic).reliable().create().unwrap();
    let publisher = here.publisher(topic).deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    for number in 0..messages {
        publisher.put(&content(number, 100)).unwrap();
        assert_eq!(receive(&subscriber).sequence(), number);
    }
}

#[test]
fn a_message_is_one_trace_with_the_stages_of_both_hosts() {
    const MESSAGES: u64 = 5;
    let collector = Collector::start("{}", true);
    let hosts = hosts(2, &collector.configured(1.0));
    traffic(&hosts[0], &hosts[1], "camera/front", MESSAGES);
    until("all spans", || {
        collector.spans().len() as u64 == 5 * MESSAGES
    });
    let mut traces = BTreeMap::<String, Vec<Seen>>::new();
    for span in collector.spans() {
        assert_eq!(span.topic, "camera/front");
        assert_eq!(span.attributes["messaging.message.body.size"], "100");
        let trace = traces.entry(span.trace.clone()).or_default();
        trace.push(span);
    }
    assert_eq!(traces.len() as u64, MESSAGES);
    let mut sequences = Vec::new();
    for mut spans in traces.into_values() {
        let order = ["take", "queue", "wire", "land", "publish"];
        spans.sort_by_key(|span| order.iter().position(|stage| *stage == span.stage));
        let stages: Vec<&str> = spans.iter().map(|span| span.stage.as_str()).collect();
        assert_eq!(stages, order);
        let (internal, server, client, producer) = (1, 2, 3, 4);
        let kinds: Vec<u64> = spans.iter().map(|span| span.kind).collect();
        assert_eq!(kinds, [producer, internal, client, server, internal]);
        let [take, queue, wire, land, publish] = &spans[..] else {
            panic!("{spans:?}");
        };
        let whose = |span: &Seen| {
            (
                span.host.clone(),
                span.attributes.get("rgaps.peer").cloned(),
            )
        };
        let (a, b) = ("host-a".to_owned(), "host-b".to_owned());
        assert_eq!(whose(take), (a.clone(), None));
        for span in [queue, wire] {
            assert_eq!(whose(span), (a.clone(), Some(b.clone())));
            assert_eq!(span.parent, take.id);
        }
        for span in [land, publish] {
            assert_eq!(whose(span), (b.clone(), Some(a.clone())));
            assert_eq!(span.parent, wire.id);
        }
        assert_eq!(take.parent, "");
        assert!(spans.iter().all(|span| span.from_ns <= span.to_ns));
        // Each stage begins when the one before it ends.
        assert_eq!(take.to_ns, queue.from_ns);
        assert_eq!(queue.to_ns, wire.from_ns);
        assert_eq!(land.to_ns, publish.from_ns);
        assert!(wire.from_ns <= land.from_ns + CLOCKS_APART_NS);
        assert!(publish.to_ns <= wire.to_ns + CLOCKS_APART_NS);
        let sequence = &take.attributes["rgaps.sequence"];
        assert!(spans
            .iter()
            .all(|span| span.attributes["rgaps.sequence"] == *sequence));
        sequences.push(sequence.parse::<u64>().unwrap());
    }
    sequences.sort_unstable();
    assert_eq!(sequences, (0..MESSAGES).collect::<Vec<_>>());
    for host in &hosts {
        let node = host.node("looks");
        until("the daemon to know of it", || told(&node).spans > 0);
        let told = told(&node);
        assert!(told.endpoint.contains(&collector.address), "{told:?}");
        assert_eq!((told.dropped, told.error.as_str()), (0, ""));
    }
}

#[test]
fn a_message_that_goes_through_a_host_is_still_one_trace() {
    let collector = Collector::start("{}", true);
    let control = ports(3);
    let hosts: Vec<Host> = (0..3usize)
        .map(|at| {
            // Each host knows only the hosts beside it.
            let others = [at.wrapping_sub(1), at + 1];
            let others = others.iter().filter_map(|other| control.get(*other));
            let connect: Vec<String> = others
                .map(|port| format!("\"tcp/127.0.0.1:{port}\""))
                .collect();
            let links = format!(
                "host = \"host-{at}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
                 connect = [{}]\ngossip = false\n{}",
                control[at],
                connect.join(", "),
                collector.configured(1.0)
            );
            Host::start(&format!("host-{at}"), &links)
        })
        .collect();
    traffic(&hosts[0], &hosts[2], "far", 1);
    // The spans of both ends, and those of two hops.
    until("all spans", || collector.spans().len() == 9);
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace == spans[0].trace));
    let of = |host: &str, stage: &str, peer: &str| {
        let is = |span: &&Seen| {
            let other = span.attributes.get("rgaps.peer").map_or("", String::as_str);
            (span.host.as_str(), span.stage.as_str(), other) == (host, stage, peer)
        };
        spans
            .iter()
            .find(is)
            .unwrap_or_else(|| panic!("no {stage} of {host}: {spans:#?}"))
    };
    let take = of("host-0", "take", "");
    let first = of("host-0", "wire", "host-1");
    let between = of("host-1", "publish", "host-0");
    let second = of("host-1", "wire", "host-2");
    let last = of("host-2", "publish", "host-1");
    for (child, parent) in [
        (first, take),
        (between, first),
        (second, between),
        (last, second),
    ] {
        assert_eq!(child.parent, parent.id, "{child:?}");
    }
}

#[test]
fn a_host_that_is_not_to_tell_says_nothing() {
    let collector = Collector::start("{}", true);
    let control = ports(2);
    let start = |at: usize, traces: &str| {
        let links = format!(
            "host = \"host-{at}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
             connect = [\"tcp/127.0.0.1:{}\"]\n{traces}",
            control[at],
            control[1 - at]
        );
        Host::start(&format!("host-{at}"), &links)
    };
    let tells = start(0, &collector.configured(1.0));
    let silent = start(1, "");
    traffic(&tells, &silent, "t", 3);
    traffic(&silent, &tells, "back", 3);
    until("the spans of one host", || collector.spans().len() == 15);
    assert!(collector.spans().iter().all(|span| span.host == "host-0"));
    assert_eq!(told(&silent.node("looks")), TraceFigures::default());
}

#[test]
fn a_collector_that_does_not_answer_holds_nothing_up() {
    // More spans than the queue holds.
    const MESSAGES: u64 = 3000;
    let mut collector = Collector::start("{}", false);
    let hosts = hosts(2, &collector.configured(1.0));
    traffic(&hosts[0], &hosts[1], "t", MESSAGES);
    assert!(collector.spans().is_empty());
    let node = hosts[0].node("looks");
    until("spans to be dropped", || told(&node).dropped > 0);
    // The collector is gone, and messages still arrive.
    collector.answers = None;
    traffic(&hosts[0], &hosts[1], "u", 10);
    until("the reason to be told", || !told(&node).error.is_empty());
}

#[test]
fn what_a_collector_rejects_is_counted() {
    let answer = "{\"partialSuccess\":{\"rejectedSpans\":\"2\",\"errorMessage\":\"too old\"}}";
    let collector = Collector::start(answer, true);
    let hosts = hosts(2, &collector.configured(1.0));
    traffic(&hosts[0], &hosts[1], "t", 1);
    let node = hosts[1].node("looks");
    until("it to be counted", || told(&node).dropped == 2);
    let told = told(&node);
    assert_eq!(told.spans, 0);
    assert!(told.error.contains("too old"), "{told:?}");
}
