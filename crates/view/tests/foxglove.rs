//! Clients of the Foxglove protocol: what they get, what they may do, and that no client disturbs others.

mod support;

use rgaps::{DType, Publisher};
use rgaps_testkit::until;
use rgaps_view::Options;
use serde_json::{json, Value};
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Client, View};
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::Frame;
use tungstenite::Message;

fn put_image(publisher: &Publisher, shape: &[u64], first: u8) -> Vec<u8> {
    let mut loan = publisher.loan_tensor(DType::U8, shape).unwrap();
    let bytes = loan.as_mut_slice().unwrap();
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(7).wrapping_add(first);
    }
    let sent = bytes.to_vec();
    loan.publish().unwrap();
    sent
}

#[test]
fn an_image_arrives_with_its_bytes_and_a_larger_one_smaller() {
    let view = View::with(Options {
        bytes_max: 1000,
        ..Options::default()
    });
    let node = view.daemon.node("camera");
    let publisher = node.publisher("front").transient_local();
    let publisher = publisher.keep_last(1).type_name("rgb8").create().unwrap();
    let sent = put_image(&publisher, &[4, 6, 3], 1);
    let mut client = view.client();
    let channel = client.channel("front");
    assert_eq!(channel["schemaName"], "foxglove.RawImage");
    assert_eq!(channel["metadata"]["rgaps.type"], "rgb8");
    client.subscribe(9, &channel);
    let (id, message) = client.message();
    assert_eq!(id, 9);
    assert!(message.ends_with(&sent), "data is the last field");

    let sent = put_image(&publisher, &[40, 20, 3], 2);
    let (_, message) = client.message();
    let mut taken = Vec::new();
    for row in sent.chunks(20 * 3).step_by(2) {
        for pixel in row.chunks(3).step_by(2) {
            taken.extend_from_slice(pixel);
        }
    }
    assert_eq!(taken.len(), 20 * 10 * 3);
    assert!(message.ends_with(&taken));
}

#[test]
fn a_large_message_that_is_no_image_is_not_sent_and_the_client_is_told() {
    let view = View::with(Options {
        bytes_max: 1000,
        ..Options::default()
    });
    let node = view.daemon.node("source");
    let publisher = node.publisher("points").transient_local();
    let publisher = publisher.keep_last(1).create().unwrap();
    publisher.put(&[7; 1001]).unwrap();
    let mut client = view.client();
    let channel = client.channel("points");
    assert_eq!(channel["schemaName"], "rgaps.Message");
    client.subscribe(1, &channel);
    let warning = client.text("status");
    assert!(
        warning["message"].as_str().unwrap().contains("--max-bytes"),
        "{warning}"
    );
    publisher.put(&[8; 1000]).unwrap();
    assert!(client.message().1.ends_with(&[8; 1000]));
    let shown = &view.state()["shown"][0];
    assert!(shown["too_large"].as_u64() >= Some(1), "{shown}");
}

/// The server subscribes as an observer of the newest message, so no publisher waits for it. It leaves the topic with its last
/// viewer.
#[test]
fn a_topic_is_read_only_while_somebody_looks() {
    let view = View::start();
    let node = view.daemon.node("source");
    let publisher = node.publisher("topic").transient_local();
    let publisher = publisher.keep_last(1).create().unwrap();
    publisher.put(b"x").unwrap();
    let readers = || node.topic("topic").unwrap().subscribers;
    let mut client = view.client();
    let channel = client.channel("topic");
    until("the end of the first look", || readers().is_empty());
    client.subscribe(1, &channel);
    client.subscribe(2, &channel);
    let mut ids = [client.message().0, client.message().0];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    let reader = readers().remove(0);
    assert!(reader.observer && !reader.demand.reliable && reader.demand.depth == 1);
    client.say(&json!({"op": "unsubscribe", "subscriptionIds": [1]}));
    drop(client);
    until("nobody looks", || readers().is_empty());
}

#[test]
fn topics_come_and_go() {
    let view = View::with(Options {
        patterns: vec!["camera/*".to_owned()],
        ..Options::default()
    });
    let mut client = view.client();
    assert!(client.text("serverInfo")["name"]
        .as_str()
        .unwrap()
        .contains("realm"));
    let node = view.daemon.node("source");
    let [hidden, shown] = ["hidden", "camera/left"].map(|name| {
        let publisher = node.publisher(name).transient_local().keep_last(1);
        publisher.create().unwrap()
    });
    hidden.put(b"x").unwrap();
    shown.put(b"y").unwrap();
    let said = client.text("advertise");
    assert_eq!(said["channels"].as_array().unwrap().len(), 1);
    let channel = &said["channels"][0];
    assert_eq!(channel["topic"], "camera/left");
    drop((hidden, shown));
    node.forget_topic("camera/left").unwrap();
    let ended = client.text("unadvertise");
    assert_eq!(ended["channelIds"], json!([channel["id"]]));
    // The client may subscribe before it knows that the channel has ended.
    client.subscribe(1, channel);
    let warning = client.text("status");
    assert!(
        warning["message"].as_str().unwrap().contains("no channel"),
        "{warning}"
    );
}

#[test]
fn a_slow_client_loses_messages_and_delays_nobody() {
    let view = View::start();
    let node = view.daemon.node("camera");
    let publisher = node.publisher("front").create().unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // Larger than the connection's buffers.
                put_image(&publisher, &[500, 600, 3], 0);
                std::thread::yield_now();
            }
        });
        let mut slow = view.client();
        let channel = slow.channel("front");
        slow.subscribe(1, &channel);
        let mut fast = view.client();
        fast.channel("front");
        fast.subscribe(1, &channel);
        // From here on the slow client does not read.
        let mut seen = 0;
        until("messages that the slow client does not get", || {
            seen += u64::from(fast.message().0 == 1);
            view.state()["view"]["replaced"].as_u64() > Some(20)
        });
        assert!(seen > 0);
        // The slow client reads again, and gets the newest message.
        slow.message();
        slow.message();
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(publisher.drops(), 0);
}

#[test]
fn bad_frames_end_a_connection_with_the_reason() {
    let view = View::start();
    let mut other = view.client();
    let text = |text: &str| Message::text(text.to_owned());
    let bad = [
        (text("{"), CloseCode::Invalid, "no JSON"),
        (text(r#"{"op":"dance"}"#), CloseCode::Invalid, "op"),
        (
            text(r#"{"op":"subscribe","subscriptions":7}"#),
            CloseCode::Invalid,
            "subscribe",
        ),
        (
            Message::binary(vec![1, 2, 3]),
            CloseCode::Unsupported,
            "binary",
        ),
        (text(&" ".repeat(300 << 10)), CloseCode::Size, "too long"),
        (
            Message::Frame(Frame::message(
                vec![0xff, 0xfe],
                OpCode::Data(Data::Text),
                true,
            )),
            CloseCode::Invalid,
            "",
        ),
        (
            Message::Frame(Frame::message(
                vec![],
                OpCode::Data(Data::Reserved(5)),
                true,
            )),
            CloseCode::Protocol,
            "",
        ),
    ];
    for (message, code, reason) in bad {
        let mut client = view.client();
        client.0.send(message).unwrap();
        let end = client.end();
        assert_eq!(end.code, code, "{end:?}");
        assert!(
            end.reason.to_lowercase().contains(&reason.to_lowercase()),
            "{end:?}"
        );
    }
    let mut client = view.client();
    client.say(&json!({"op": "getParameters", "parameterNames": []}));
    let warning = client.text("status");
    assert!(warning["message"]
        .as_str()
        .unwrap()
        .contains("getParameters"));
    // The other client is still served.
    other.say(&json!({"op": "fetchAsset", "uri": "x", "requestId": 1}));
    other.text("status");
}

#[test]
fn clients_have_a_limit_and_leave_room_when_they_go() {
    let view = View::with(Options {
        clients_max: 2,
        ..Options::default()
    });
    let first = view.client();
    let _second = view.client();
    let refused = Client::connect(view.address(), "/", &[]).err().unwrap();
    assert_eq!(refused.status(), 503);
    drop(first);
    until("room for a client", || {
        Client::connect(view.address(), "/", &[]).is_ok()
    });
}

#[test]
fn the_end_of_the_server_is_told() {
    let view = View::start();
    let mut client = view.client();
    client.text("serverInfo");
    drop(view.server);
    assert_eq!(client.end().code, CloseCode::Away);
}

#[test]
fn who_publishes_and_subscribes_is_told() {
    let view = View::start();
    let publisher = view.daemon.node("camera").publisher("front");
    let publisher = publisher.create().unwrap();
    let subscriber = view.daemon.node("detector").subscriber("front");
    let subscriber = subscriber.create().unwrap();
    let mut client = view.client();
    let capabilities = &client.text("serverInfo")["capabilities"];
    assert_eq!(*capabilities, json!(["connectionGraph"]));
    client.say(&json!({"op": "subscribeConnectionGraph"}));
    let mut next = |is_it: &dyn Fn(&Value) -> bool| loop {
        let graph = client.text("connectionGraphUpdate");
        if is_it(&graph) {
            return;
        }
    };
    let has = |graph: &Value, rows: &str, ids: &str, process: &str| {
        let mut rows = graph[rows].as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == "front").unwrap();
        let mut ids = row[ids].as_array().unwrap().iter();
        ids.any(|id| id.as_str().unwrap().starts_with(process))
    };
    let publishes = |graph: &Value| has(graph, "publishedTopics", "publisherIds", "camera (");
    let subscribes = |graph: &Value| has(graph, "subscribedTopics", "subscriberIds", "detector (");
    next(&|graph| publishes(graph) && subscribes(graph));
    drop(publisher);
    next(&|graph| !publishes(graph) && subscribes(graph));
    drop(subscriber);
    next(&|graph| graph["removedTopics"] == json!(["front"]));
}
