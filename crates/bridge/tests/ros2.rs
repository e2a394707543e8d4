//! `rgaps bridge ros2`, with a plain Zenoh session that uses the keys, tokens and attachments of `rmw_zenoh`. The Python library
//! rosbags has encoded the messages (`crates/ros2/tests/vectors.txt`; `tests/python/test_ros2.py` compares them).

mod support;

use rgaps_bridge::{Bridge, BridgeError};
use rgaps_client::bindings::{SetMetadata as _, WithMetadata as _};
use rgaps_client::{DType, Header, Node, Publisher, Sample, Value};
use rgaps_recording::{Recording, Replay, ReplayOptions};
use rgaps_session::{BridgeDirection, Ros2Rule, RosMiddleware};
use rgaps_testkit::{until, Daemon, LIMIT};
use rgaps_topic::Metadata;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use support::{receive, wait_for_readers, Zenoh};
use zenoh::qos::CongestionControl;
use zenoh::sample::SampleKind;
use zenoh::Wait as _;

const IMAGE: &str = "sensor_msgs/msg/Image";

fn vectors() -> Vec<(&'static str, Vec<u8>)> {
    let vector = |line: &'static str| {
        let (name, hex) = line.split_once(' ').unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (name, (0..hex.len()).step_by(2).map(byte).collect())
    };
    include_str!("../../ros2/tests/vectors.txt")
        .lines()
        .map(vector)
        .collect()
}

fn vector(name: &str) -> Vec<u8> {
    let mut vectors = vectors().into_iter();
    vectors.find(|vector| vector.0 == name).unwrap().1
}

fn rule(topic: &str, type_name: &str, direction: BridgeDirection) -> Ros2Rule {
    Ros2Rule {
        topic: topic.to_owned(),
        name: None,
        type_name: type_name.to_owned(),
        direction,
        reliable: true,
        transient_local: false,
        depth: 10,
        hash: None,
    }
}

fn bridge(daemon: &Daemon, endpoint: &str, rules: Vec<Ros2Rule>) -> Result<Bridge, BridgeError> {
    let config = rgaps_session::BridgeConfig {
        connect: vec![endpoint.to_owned()],
        ros_domain: 7,
        ros2: rules,
        ..rgaps_session::BridgeConfig::default()
    };
    Bridge::ros2(daemon.node("bridge"), &config)
}

/// The name of a type in rmw_zenoh's keys.
fn dds(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    format!("{}::{}::dds_::{}_", parts[0], parts[1], parts[2])
}

/// An attachment of rmw_zenoh: number, time and id.
fn attachment(number: i64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend_from_slice(&123_456_789i64.to_le_bytes());
    bytes.push(16);
    bytes.extend_from_slice(&[9; 16]);
    bytes
}

fn put(other: &Zenoh, topic: &str, name: &str, payload: Vec<u8>) {
    let key = format!("7/{topic}/{}/RIHS01_any", dds(name));
    let put = other.session.put(key, payload).attachment(attachment(5));
    let put = put.congestion_control(CongestionControl::Block);
    put.wait().unwrap();
}

/// Publishes a message that came in, without the bridge's mark.
fn publish_again(publisher: &Publisher, sample: &Sample) {
    let mut loan = publisher.loan(sample.len()).unwrap();
    loan.write(0, sample.as_slice().unwrap()).unwrap();
    if let Some(tensor) = sample.tensor() {
        loan.set_tensor(*tensor).unwrap();
    }
    let mut header = sample.header().unwrap().unwrap();
    header.values.remove("ros").unwrap();
    let mut metadata = Metadata::default();
    assert!(metadata.set_attachment(&header.encode().unwrap(), true));
    for part in sample.metadata().unwrap().parts() {
        assert!(metadata.push_part(&part));
    }
    assert!(loan.set_metadata(metadata.lengths(), metadata.as_bytes()));
    loan.publish().unwrap();
}

/// A message of each known type that crosses from ROS 2 to rgaps and back equals the bytes that rosbags encoded.
#[test]
fn messages_of_each_type_come_in_and_leave_as_they_were() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let received = other.subscribe("7/out/**");
    let mut rules = Vec::new();
    for (at, (name, _)) in vectors().into_iter().enumerate() {
        rules.push(rule(&format!("in/{at}"), name, BridgeDirection::From));
        rules.push(rule(&format!("out/{at}"), name, BridgeDirection::To));
    }
    let bridge = bridge(&daemon, &other.endpoint, rules).unwrap();
    let node = daemon.node("member");
    for (at, (name, cdr)) in vectors().into_iter().enumerate() {
        let subscriber = node.subscriber(&format!("in/{at}")).create().unwrap();
        let publisher = node.publisher(&format!("out/{at}")).create().unwrap();
        other.wait_for_subscriber(&format!("7/in/{at}/{}/RIHS01_any", dds(name)));
        wait_for_readers(&node, &format!("out/{at}"), 1);
        put(&other, &format!("in/{at}"), name, cdr.clone());
        publish_again(&publisher, &receive(&subscriber));
        let sent = received.next();
        let key = format!("7/out/{at}/{}/RIHS01_", dds(name));
        assert!(sent.key_expr().starts_with(&key), "{}", sent.key_expr());
        assert_eq!(sent.payload().to_bytes(), cdr, "{name}");
        let attachment = sent.attachment().unwrap().to_bytes().into_owned();
        assert_eq!(attachment.len(), 33);
        assert_eq!(
            (&attachment[..8], attachment[16]),
            (&1i64.to_le_bytes()[..], 16)
        );
    }
    assert_eq!(bridge.stop().dropped, 0);
}

/// With `zenoh-bridge-ros2dds` the key is the topic's name, and messages have no attachment. Rules have full names, whatever the
/// namespace of this host.
#[test]
fn messages_of_nodes_with_dds_come_in_and_leave_as_they_were() {
    let daemon = Daemon::start_with("namespace = \"robot1\"\n");
    let other = Zenoh::listen();
    let received = other.subscribe("out/**");
    let mut unknown = rule("out/mine", "my_msgs/msg/Mine", BridgeDirection::To);
    unknown.name = Some("/out/theirs".to_owned());
    let config = rgaps_session::BridgeConfig {
        connect: vec![other.endpoint.clone()],
        ros_middleware: RosMiddleware::Dds,
        ros2: vec![
            rule("in/image", IMAGE, BridgeDirection::From),
            rule("out/image", IMAGE, BridgeDirection::To),
            unknown,
        ],
        ..rgaps_session::BridgeConfig::default()
    };
    let bridge = Bridge::ros2(daemon.node("bridge"), &config).unwrap();
    let node = daemon.node("member");
    let subscriber = node.subscriber("/in/image").create().unwrap();
    let publisher = node.publisher("/out/image").create().unwrap();
    other.wait_for_subscriber("in/image");
    wait_for_readers(&node, "/out/image", 1);
    let cdr = vector(IMAGE);
    other.session.put("in/image", cdr.clone()).wait().unwrap();
    publish_again(&publisher, &receive(&subscriber));
    let sent = received.next();
    assert_eq!(sent.key_expr().as_str(), "out/image");
    assert_eq!(sent.payload().to_bytes(), cdr);
    assert!(sent.attachment().is_none_or(|beside| beside.is_empty()));
    // With DDS an unknown type needs no hash.
    let publisher = node.publisher("/out/mine").create().unwrap();
    wait_for_readers(&node, "/out/mine", 1);
    publisher.put(b"\0\x01\0\0\x2a").unwrap();
    let sent = received.next();
    assert_eq!(sent.key_expr().as_str(), "out/theirs");
    assert_eq!(sent.payload().to_bytes(), &b"\0\x01\0\0\x2a"[..]);
    assert_eq!(bridge.stop().dropped, 0);
}

/// Writes a bag with a message of each known type, as `ros2 bag record` does.
fn bag(file: &std::path::Path) {
    let to = std::io::BufWriter::new(std::fs::File::create(file).unwrap());
    let mut writer = mcap::WriteOptions::new()
        .profile("ros2")
        .create(to)
        .unwrap();
    for (at, (name, cdr)) in vectors().into_iter().enumerate() {
        let schema = writer.add_schema(name, "ros2msg", b"").unwrap();
        let topic = format!("/out/{at}");
        let none = BTreeMap::new();
        let channel_id = writer.add_channel(schema, &topic, "cdr", &none).unwrap();
        let header = mcap::records::MessageHeader {
            channel_id,
            sequence: 0,
            log_time: at as u64,
            publish_time: at as u64,
        };
        writer.write_to_known_channel(&header, &cdr).unwrap();
    }
    writer.finish().unwrap();
}

/// Messages that are replayed from a bag as arrays leave for nodes of ROS 2 with the bytes of the bag.
#[test]
fn a_bag_is_replayed_to_ros_2_as_it_was() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let received = other.subscribe("7/out/**");
    let count = vectors().len();
    let rules = vectors().into_iter().enumerate();
    let rules = rules.map(|(at, (name, _))| rule(&format!("out/{at}"), name, BridgeDirection::To));
    let bridge = bridge(&daemon, &other.endpoint, rules.collect()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bag_0.mcap");
    bag(&file);
    let recording = Arc::new(Recording::open(&file).unwrap());
    let options = ReplayOptions {
        // The bridge joins a topic when it has seen a subscriber on the other side.
        wait_subscribers: 1,
        ..ReplayOptions::default()
    };
    let replay = Replay::new(&daemon.node("replay"), vec![recording], options).unwrap();
    let replayed = replay.run(&AtomicBool::new(false)).unwrap();
    assert_eq!((replayed.replayed, replayed.corrupt), (count as u64, 0));
    let mut sent = BTreeMap::new();
    while sent.len() < count {
        let message = received.next();
        let topic = message.key_expr().split('/').nth(2).unwrap().to_owned();
        sent.insert(topic, message.payload().to_bytes().into_owned());
    }
    for (at, (name, cdr)) in vectors().into_iter().enumerate() {
        assert_eq!(sent[&at.to_string()], cdr, "{name}");
    }
    assert_eq!(bridge.stop().dropped, 0);
}

#[test]
fn the_topics_of_nodes_are_listed() {
    let other = Zenoh::listen();
    let zid = other.session.zid();
    let token = |rest: &str| {
        let token = format!("@ros2_lv/7/{zid}/0/{rest}");
        other
            .session
            .liveliness()
            .declare_token(token)
            .wait()
            .unwrap()
    };
    let chatter = "%/%/node/%chatter/std_msgs::msg::dds_::String_/RIHS01_a";
    let _tokens = [
        "0/NN/%/%/node".to_owned(),
        format!("10/MP/{chatter}/::,7:,:,:,,"),
        format!("11/MP/{chatter}/::,7:,:,:,,"),
        format!("12/MS/{chatter}/2::,10:,:,:,,"),
        "13/MS/%/%/node/%a%tf/tf2_msgs::msg::dds_::TFMessage_/RIHS01_b/::,10:,:,:,,".to_owned(),
        "14/SS/%/%/node/%add/example_interfaces::srv::dds_::AddTwoInts_/RIHS01_c/::,10:,:,:,,"
            .to_owned(),
    ]
    .map(|rest| token(&rest));
    let config = rgaps_session::BridgeConfig {
        connect: vec![other.endpoint.clone()],
        ros_domain: 7,
        ..rgaps_session::BridgeConfig::default()
    };
    let topics = rgaps_bridge::ros2_topics(&config).unwrap();
    let rows: Vec<_> = topics
        .iter()
        .map(|topic| {
            (
                topic.name.as_str(),
                topic.type_name.as_str(),
                topic.hash.as_str(),
                topic.publishers,
                topic.subscribers,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("/a/tf", "tf2_msgs/msg/TFMessage", "RIHS01_b", 0, 1),
            ("/chatter", "std_msgs/msg/String", "RIHS01_a", 2, 1),
        ]
    );
}

/// The bridge does not take the history that it keeps itself for late joiners on the other side.
#[test]
fn kept_messages_leave_and_do_not_come_back() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let text = "std_msgs/msg/String";
    let mut both = rule("map", text, BridgeDirection::Both);
    both.transient_local = true;
    let bridge = bridge(&daemon, &other.endpoint, vec![both]).unwrap();
    let node = daemon.node("mapper");
    let publisher = node.publisher("map").keep_last(1).transient_local();
    let publisher = publisher.create().unwrap();
    publisher.put(b"map").unwrap();
    let received = other.subscribe("7/map/**");
    let sent = received.next().payload().to_bytes().into_owned();
    // Queries as a late joiner does, until the history has the message.
    until("the answer", || {
        let question = "7/map/**/@adv/**?_anyke";
        let replies = other.session.get(question).wait().unwrap();
        let reply = replies.recv().ok();
        reply.is_some_and(|reply| reply.result().unwrap().payload().to_bytes() == sent)
    });
    let counts = bridge.stop();
    assert_eq!((counts.sent, counts.received, counts.dropped), (1, 0, 0));
}

/// A publisher that declares a known type may publish it as CDR.
#[test]
fn a_message_of_a_known_type_may_be_cdr_already() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let received = other.subscribe("7/image/**");
    let rules = vec![rule("image", IMAGE, BridgeDirection::To)];
    let bridge = bridge(&daemon, &other.endpoint, rules).unwrap();
    let node = daemon.node("camera");
    let publisher = node.publisher("image").type_name(IMAGE).create().unwrap();
    wait_for_readers(&node, "image", 1);
    publisher.put(&vector(IMAGE)).unwrap();
    assert_eq!(received.next().payload().to_bytes(), vector(IMAGE));
    assert_eq!(bridge.stop().dropped, 0);
}

fn int(header: &Header, key: &str) -> i64 {
    match header.values[key] {
        Value::Int(value) => value,
        ref other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn images_and_others_become_arrays() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let imu = "sensor_msgs/msg/Imu";
    let from = BridgeDirection::From;
    let rules = vec![
        rule("image", IMAGE, from),
        rule("imu", imu, from),
        rule("text", "std_msgs/msg/String", from),
        rule("raw", "my_msgs/msg/Mine", from),
    ];
    let _bridge = bridge(&daemon, &other.endpoint, rules).unwrap();
    let node = daemon.node("reader");
    let take = |topic: &str, name: &str, cdr: Vec<u8>| {
        let subscriber = node.subscriber(topic).create().unwrap();
        other.wait_for_subscriber(&format!("7/{topic}/{}/RIHS01_any", dds(name)));
        put(&other, topic, name, cdr);
        receive(&subscriber)
    };
    let cdr = vector(IMAGE);
    let image = take("image", IMAGE, cdr.clone());
    let tensor = image.tensor().unwrap();
    assert_eq!(
        (tensor.dtype, &tensor.shape[..3]),
        (DType::U8, &[5, 7, 3][..])
    );
    assert_eq!(tensor.strides[..3], [24, 3, 1]);
    assert_eq!(image.as_slice().unwrap(), &cdr[cdr.len() - 120..]);
    let header = image.header().unwrap().unwrap();
    let number = |at: usize| u32::from_le_bytes(cdr[at..at + 4].try_into().unwrap());
    let stamp = u64::from(number(4)) * 1_000_000_000 + u64::from(number(8));
    assert_eq!(header.capture_ns, Some(stamp));
    assert!(header.frame_id.is_some());
    let Value::Map(mark) = &header.values["ros"] else {
        panic!("{header:?}");
    };
    assert_eq!(mark["topic"], Value::from("/image"));
    assert_eq!(mark["type"], Value::from(IMAGE));
    assert_eq!(
        (&mark["sequence"], &mark["source_ns"]),
        (&Value::Int(5), &Value::Int(123_456_789))
    );
    let info = node.topic("image").unwrap();
    assert_eq!(info.publishers[0].type_name, "rgb8");
    assert_eq!((int(&header, "height"), int(&header, "step")), (5, 24));

    let sample = take("imu", imu, vector(imu));
    let part = sample.part("linear_acceleration").unwrap().tensor();
    assert_eq!((part.dtype.name(), part.shape[0]), (Some("float64"), 3));
    let covariance = sample.part("orientation_covariance").unwrap().tensor();
    assert_eq!(covariance.shape[..2], [3, 3]);

    let text = take(
        "text",
        "std_msgs/msg/String",
        b"\0\x01\0\0\x06\0\0\0hello\0".to_vec(),
    );
    assert_eq!(text.as_slice().unwrap(), b"hello");
    let raw = take("raw", "my_msgs/msg/Mine", b"\0\x01\0\0\x2a".to_vec());
    assert_eq!(raw.as_slice().unwrap(), b"\0\x01\0\0\x2a");
    assert_eq!(
        node.topic("raw").unwrap().publishers[0].type_name,
        "my_msgs/msg/Mine"
    );
}

/// A big-endian message, and messages with wrong lengths.
#[test]
fn other_byte_orders_are_read_and_broken_messages_are_counted() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let name = "geometry_msgs/msg/Point";
    let bridge = bridge(
        &daemon,
        &other.endpoint,
        vec![rule("in", name, BridgeDirection::From)],
    );
    let bridge = bridge.unwrap();
    let subscriber = daemon.node("reader").subscriber("in").create().unwrap();
    other.wait_for_subscriber(&format!("7/in/{}/RIHS01_any", dds(name)));
    let whole = [1.5f64, -2.0, 1e9];
    let mut big = vec![0, 0, 0, 0];
    whole
        .iter()
        .for_each(|value| big.extend_from_slice(&value.to_be_bytes()));
    let broken = [vec![], vec![1, 2, 3, 4, 5], big[..27].to_vec()];
    let count = broken.len() as u64;
    for bytes in broken {
        put(&other, "in", name, bytes);
    }
    put(&other, "in", name, big);
    let sample = receive(&subscriber);
    let numbers: Vec<f64> = sample
        .as_slice()
        .unwrap()
        .chunks(8)
        .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(numbers, whole);
    until("the count", || bridge.counts().received == 1);
    assert_eq!(
        bridge.stop().dropped_by,
        BTreeMap::from([("invalid", count)])
    );
}

fn put_image(node: &Node) -> Publisher {
    let publisher = node.publisher("cam").type_name("bgr8").create().unwrap();
    wait_for_readers(node, "cam", 1);
    let mut loan = publisher.loan_tensor(DType::U8, &[2, 2, 3]).unwrap();
    loan.write(0, &[7; 12]).unwrap();
    let header = Header {
        capture_ns: Some(3_000_000_004),
        ..Header::default()
    };
    loan.set_header(&header.frame_id("f")).unwrap();
    loan.publish().unwrap();
    publisher
}

/// An image of a program without ROS 2 leaves, the tokens show its topic, and it does not come back.
#[test]
fn an_image_of_rgaps_leaves_and_the_graph_shows_it() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let hash = "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47";
    let received = other.subscribe(&format!("7/cam/sensor_msgs::msg::dds_::Image_/{hash}"));
    let (to, tokens) = std::sync::mpsc::channel();
    let liveliness = other.session.liveliness();
    let graph = liveliness.declare_subscriber("@ros2_lv/7/**").history(true);
    let _graph = graph
        .callback(move |sample| {
            let is_there = sample.kind() == SampleKind::Put;
            drop(to.send((is_there, sample.key_expr().to_string())));
        })
        .wait()
        .unwrap();
    let rules = vec![rule("cam", IMAGE, BridgeDirection::Both)];
    let bridge = bridge(&daemon, &other.endpoint, rules).unwrap();
    let node = daemon.node("camera");
    let _publisher = put_image(&node);
    let sent = received.next().payload().to_bytes().into_owned();
    let mut wanted = b"\0\x01\0\0\x03\0\0\0\x04\0\0\0\x02\0\0\0f\0\0\0\x02\0\0\0\x02\0\0\0\x05\0\0\0bgr8\0\0\0\0".to_vec();
    wanted
        .extend_from_slice(b"\x06\0\0\0\x0c\0\0\0\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07");
    assert_eq!(sent, wanted);
    let mut found: Vec<_> = (0..3)
        .map(|_| tokens.recv_timeout(LIMIT).unwrap())
        .collect();
    found.sort();
    let end = format!("%/%/rgaps_bridge/%cam/sensor_msgs::msg::dds_::Image_/{hash}/::,10:,:,:,,");
    assert!(found.iter().all(|(is_there, _)| *is_there), "{found:?}");
    assert!(
        found[0].1.ends_with("/0/0/NN/%/%/rgaps_bridge"),
        "{found:?}"
    );
    assert!(found[1].1.ends_with(&format!("/0/1/MP/{end}")), "{found:?}");
    assert!(found[2].1.ends_with(&format!("/0/2/MS/{end}")), "{found:?}");
    // An image from ROS 2 comes in and is not sent back.
    let subscriber = node.subscriber("cam").create().unwrap();
    other.wait_for_subscriber("7/cam/sensor_msgs::msg::dds_::Image_/RIHS01_any");
    put(&other, "cam", IMAGE, vector(IMAGE));
    assert_eq!(receive(&subscriber).len(), 120);
    until("the mark", || bridge.counts().not_returned == 1);
    let counts = bridge.stop();
    assert_eq!((counts.sent, counts.received, counts.dropped), (1, 1, 0));
    for _ in 0..3 {
        assert!(!tokens.recv_timeout(LIMIT).unwrap().0, "a token stays");
    }
}

#[test]
fn what_ros_2_does_not_have_is_an_error() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let unknown = rule("a", "my_msgs/msg/Mine", BridgeDirection::To);
    let refused = bridge(&daemon, &other.endpoint, vec![unknown.clone()]);
    assert!(matches!(refused, Err(BridgeError::NoHash(_))));
    let given = Ros2Rule {
        hash: Some("RIHS01_aa".to_owned()),
        ..unknown
    };
    let received = other.subscribe("7/a/my_msgs::msg::dds_::Mine_/RIHS01_aa");
    let bridge = bridge(&daemon, &other.endpoint, vec![given]).unwrap();
    let node = daemon.node("source");
    let publisher = node.publisher("a").create().unwrap();
    wait_for_readers(&node, "a", 1);
    publisher.put(b"no CDR").unwrap();
    publisher.put(b"\0\x01\0\0CDR").unwrap();
    assert_eq!(received.next().payload().to_bytes()[..], *b"\0\x01\0\0CDR");
    until("the count", || bridge.counts().sent == 1);
    assert_eq!(bridge.stop().dropped_by, BTreeMap::from([("not_sent", 1)]));
}

fn put_bytes(publisher: &Publisher, bytes: &[u8]) {
    publisher.put(bytes).unwrap();
}

/// Publishes an array of these numbers, with this shape.
fn put_numbers(publisher: &Publisher, dtype: &str, shape: &[u64], bytes: &[u8]) {
    let mut loan = publisher
        .loan_tensor(dtype.parse().unwrap(), shape)
        .unwrap();
    loan.write(0, bytes).unwrap();
    loan.publish().unwrap();
}

/// Publishes parts of three numbers each, which count up from 1.
fn put_parts(publisher: &Publisher, dtype: &str, names: &[&str]) {
    let (tensor, len) = rgaps_client::tensor::contiguous(dtype.parse().unwrap(), &[3]).unwrap();
    let mut loan = publisher.loan(64 * names.len() as u64).unwrap();
    let mut beside = rgaps_client::bindings::Beside::default();
    for (at, name) in names.iter().enumerate() {
        let numbers = (1..=3).flat_map(|number| f64::from(3 * at as u32 + number).to_le_bytes());
        loan.write(64 * at as u64, &numbers.collect::<Vec<_>>())
            .unwrap();
        beside.add_part(name, &tensor, 64 * at as u64, len).unwrap();
    }
    loan.set_beside(&beside).unwrap();
    loan.publish().unwrap();
}

/// Fields that a message leaves out are sent as 0. A message that does not match the type is not sent at all: a robot would obey
/// the zeros.
#[test]
fn what_does_not_have_the_form_of_the_type_is_not_sent() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let types = [
        ("twist", "geometry_msgs/msg/Twist"),
        ("joints", "sensor_msgs/msg/JointState"),
        ("point", "geometry_msgs/msg/Point"),
        ("text", "std_msgs/msg/String"),
    ];
    let rules = types.map(|(topic, name)| rule(topic, name, BridgeDirection::To));
    let bridge = bridge(&daemon, &other.endpoint, rules.into()).unwrap();
    let received = other.subscribe("7/**");
    let node = daemon.node("member");
    let [twist, joints, point, text] = types.map(|(topic, _)| {
        let publisher = node.publisher(topic).create().unwrap();
        wait_for_readers(&node, topic, 1);
        publisher
    });
    let wrong: [&dyn Fn(); 11] = [
        &|| put_numbers(&twist, "float64", &[6], &[1; 48]),
        &|| put_bytes(&twist, b"nonsense"),
        &|| put_bytes(&twist, b""),
        &|| put_parts(&twist, "float64", &["lineer"]),
        &|| put_parts(&twist, "float64", &["linear", "angulr"]),
        &|| put_parts(&twist, "int64", &["linear"]),
        &|| put_numbers(&joints, "float64", &[6], &[1; 48]),
        &|| put_numbers(&point, "int64", &[3], &[1; 24]),
        &|| put_bytes(&point, &[1; 24]),
        &|| put_numbers(&text, "float64", &[1], &[1; 8]),
        &|| put_bytes(&text, b"\0\x01\0\0"),
    ];
    for (at, put) in wrong.iter().enumerate() {
        put();
        until("the count", || bridge.counts().dropped == at as u64 + 1);
    }
    put_parts(&twist, "float64", &["linear"]);
    let sent = received.next().payload().to_bytes().into_owned();
    let numbers = [1.0, 2.0, 3.0, 0.0, 0.0, 0.0].map(f64::to_le_bytes);
    assert_eq!(sent, [&[0, 1, 0, 0][..], &numbers.concat()].concat());
    until("the count", || bridge.counts().sent == 1);
    let counts = bridge.stop();
    assert_eq!(counts.dropped_by, BTreeMap::from([("not_sent", 11)]));
}
