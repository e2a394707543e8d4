//! `rgaps bridge zenoh`, with a plain Zenoh session as the other side: all bytes in both directions, and messages that do not cross.

mod support;

use rgaps_bridge::Bridge;
use rgaps_client::{DType, Header, PartSpec, Value};
use rgaps_testkit::{ports, until, Daemon};
use rmpv::Value as Packed;
use support::{bridge, bytes, receive, rules, wait_for_readers, Zenoh};
use zenoh::qos::CongestionControl;
use zenoh::Wait as _;

/// From an empty message to one that needs several frames of Zenoh.
const SIZES: [usize; 6] = [0, 1, 100, 65_535, 70_001, 3_000_000];

/// The value of a key in a map of MessagePack.
fn at<'a>(map: &'a Packed, key: &str) -> &'a Packed {
    let entries = map.as_map().unwrap().iter();
    let mut found = entries.filter(|(name, _)| name.as_str() == Some(key));
    &found.next().unwrap_or_else(|| panic!("{key}: {map}")).1
}

fn unpacked(bytes: &[u8]) -> Packed {
    rmpv::decode::read_value(&mut &bytes[..]).unwrap()
}

#[test]
fn messages_leave_with_every_byte_and_what_lies_beside_them() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let received = other.subscribe("robot/cam");
    let bridge = bridge(&daemon, &other.endpoint, ">camera/front=robot/cam");
    let node = daemon.node("camera");
    let publisher = node.publisher("camera/front").type_name("rgb8");
    let publisher = publisher.create().unwrap();
    wait_for_readers(&node, "camera/front", 1);
    for (number, size) in SIZES.into_iter().enumerate() {
        let sent = bytes(size, number as u64);
        let mut loan = publisher.loan(size as u64).unwrap();
        loan.write(0, &sent).unwrap();
        loan.set_shape(DType::U8, &[size as u64]).unwrap();
        loan.set_tag(number as u64);
        let header = Header::captured_now().frame_id("front").value("gain", 1.5);
        loan.set_header(&header).unwrap();
        loan.publish().unwrap();

        let sample = received.next();
        assert!(sample.payload().to_bytes() == sent, "{size} bytes");
        assert_eq!(sample.key_expr().as_str(), "robot/cam");
        assert_eq!(sample.encoding().to_string(), "rgb8");
        assert!(sample.timestamp().is_some());
        let attachment = unpacked(&sample.attachment().unwrap().to_bytes());
        assert_eq!(at(&attachment, "capture_ns").as_u64(), header.capture_ns);
        assert_eq!(at(&attachment, "frame_id").as_str(), Some("front"));
        assert_eq!(at(&attachment, "gain").as_f64(), Some(1.5));
        let fields = at(&attachment, "rgaps");
        assert_eq!(at(fields, "dtype").as_str(), Some("uint8"));
        assert_eq!(at(fields, "shape"), &Packed::Array(vec![size.into()]));
        assert_eq!(at(fields, "sequence").as_u64(), Some(number as u64));
        let tag = fields
            .as_map()
            .unwrap()
            .iter()
            .find(|(key, _)| key.as_str() == Some("tag"));
        assert_eq!(
            tag.map_or(Some(0), |(_, tag)| tag.as_u64()),
            Some(number as u64)
        );
    }
    // The bridge counts a message only after Zenoh has taken it.
    until("the count", || bridge.counts().sent == SIZES.len() as u64);
    let counts = bridge.stop();
    assert_eq!(counts.sent_bytes, SIZES.iter().sum::<usize>() as u64);
    assert_eq!((counts.dropped, counts.received), (0, 0), "{counts:?}");
}

#[test]
fn messages_come_in_with_every_byte_and_what_lies_beside_them() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let bridge = bridge(&daemon, &other.endpoint, "<robot/joints=joints");
    let node = daemon.node("reader");
    let subscriber = node.subscriber("robot/joints").type_name("f32").create();
    let subscriber = subscriber.unwrap();
    other.wait_for_subscriber("joints");
    for (number, size) in SIZES.into_iter().enumerate() {
        let sent = bytes(size / 4 * 4, number as u64);
        let array = Packed::Map(vec![
            ("dtype".into(), "float32".into()),
            (
                "shape".into(),
                Packed::Array(vec![(size / 4).into(), 1.into()]),
            ),
            ("tag".into(), number.into()),
        ]);
        let map = Packed::Map(vec![
            ("frame_id".into(), "arm".into()),
            ("rgaps".into(), array),
        ]);
        let mut attachment = Vec::new();
        rmpv::encode::write_value(&mut attachment, &map).unwrap();
        let put = other.session.put("joints", sent.clone()).encoding("f32");
        let timestamp = other.session.new_timestamp();
        // Zenoh drops messages by default where its queue is full.
        put.congestion_control(CongestionControl::Block)
            .attachment(attachment)
            .timestamp(timestamp)
            .wait()
            .unwrap();

        let sample = receive(&subscriber);
        assert!(sample.as_slice().unwrap() == sent, "{size} bytes");
        let tensor = sample.tensor().unwrap();
        assert_eq!((tensor.dtype, tensor.ndim), (DType::F32, 2));
        assert_eq!(tensor.shape[..2], [(size / 4) as u64, 1]);
        assert_eq!(sample.tag(), number as u64);
        let header = sample.header().unwrap().unwrap();
        assert_eq!(header.frame_id.as_deref(), Some("arm"));
        let Value::Map(mark) = &header.values["zenoh"] else {
            panic!("{header:?}");
        };
        assert_eq!(mark["key"], Value::from("joints"));
        assert_eq!(mark["encoding"], Value::from("f32"));
        let ns = timestamp.get_time().to_duration().as_nanos() as i64;
        assert_eq!(mark["timestamp_ns"], Value::Int(ns));
    }
    until("the count", || {
        bridge.counts().received == SIZES.len() as u64
    });
    assert_eq!(bridge.stop().dropped, 0);
}

/// No bridge of the realm sends back a message that a bridge brought. If one did, the echo would arrive before the next message.
#[test]
fn no_message_goes_round() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let one = bridge(&daemon, &other.endpoint, "loop <ready1");
    let two = bridge(&daemon, &other.endpoint, "loop <ready2");
    let received = other.subscribe("loop");
    let node = daemon.node("member");
    let subscriber = node.subscriber("loop").create().unwrap();
    let publisher = node.publisher("loop").create().unwrap();
    wait_for_readers(&node, "loop", 3);
    // Declarations of a node arrive in order, so the earlier ones have arrived, too.
    other.wait_for_subscriber("ready1");
    other.wait_for_subscriber("ready2");
    for round in 0..10u8 {
        other.session.put("loop", vec![round, 1]).wait().unwrap();
        assert_eq!(
            received.next().payload().to_bytes()[..],
            [round, 1],
            "its own"
        );
        for _ in 0..2 {
            assert_eq!(receive(&subscriber).as_slice().unwrap(), [round, 1]);
        }
        publisher.put(&[round, 2]).unwrap();
        assert_eq!(receive(&subscriber).as_slice().unwrap(), [round, 2]);
        for _ in 0..2 {
            assert_eq!(received.next().payload().to_bytes()[..], [round, 2]);
        }
    }
    // Each bridge reads the messages that both bridges brought: ten of each.
    for bridge in [one, two] {
        until("the count", || bridge.counts().not_returned == 20);
        let counts = bridge.stop();
        assert_eq!((counts.received, counts.sent, counts.dropped), (10, 10, 0));
    }
}

/// Between two realms with Zenoh between them, parts, tags and attachments cross, too.
#[test]
fn parts_and_attachments_cross_two_bridges() {
    let (here, there) = (Daemon::start(), Daemon::start());
    let endpoint = format!("tcp/127.0.0.1:{}", ports(1)[0]);
    let (from, to) = (here.node("source"), there.node("sink"));
    let subscriber = to.subscriber("scene").create().unwrap();
    let listening = rgaps_session::BridgeConfig {
        listen: vec![endpoint.clone()],
        zenoh: rules("<scene"),
        ..rgaps_session::BridgeConfig::default()
    };
    let into = Bridge::zenoh(there.node("bridge"), &listening).unwrap();
    let out = bridge(&here, &endpoint, ">scene");
    let publisher = from.publisher("scene").type_name("rgbd").create().unwrap();
    wait_for_readers(&from, "scene", 1);
    let specs = ["rgb", "depth"].map(|name| PartSpec {
        name,
        dtype: DType::F32,
        shape: &[5, 7],
    });
    let mut loan = publisher.loan_parts(&specs).unwrap();
    let sent = bytes(loan.len() as usize, 3);
    loan.write(0, &sent).unwrap();
    loan.set_attachment(b"\x00no header\xff").unwrap();
    loan.publish().unwrap();
    let sample = receive(&subscriber);
    assert!(sample.as_slice().unwrap() == sent);
    assert_eq!(sample.attachment(), Some(&b"\x00no header\xff"[..]));
    assert_eq!(sample.header().unwrap(), None);
    let names: Vec<_> = sample
        .parts()
        .unwrap()
        .iter()
        .map(|part| part.name().to_owned())
        .collect();
    assert_eq!(names, ["rgb", "depth"]);
    let depth = sample.part("depth").unwrap();
    assert_eq!((depth.tensor().shape[0], depth.len()), (5, 140));
    let info = to.topic("scene").unwrap();
    assert_eq!(info.publishers[0].type_name, "rgbd");
    let array = bytes(24, 4);
    let mut loan = publisher.loan(24).unwrap();
    loan.write(0, &array).unwrap();
    let tensor = rgaps_client::tensor::strided(DType::U8, &[2, 2], &[12, 3]).unwrap();
    loan.set_tensor(tensor).unwrap();
    loan.publish().unwrap();
    let sample = receive(&subscriber);
    assert_eq!(
        (sample.tensor(), sample.as_slice().unwrap()),
        (Some(&tensor), &array[..])
    );
    assert_eq!(out.stop().dropped + into.stop().dropped, 0);
}

#[test]
fn topics_of_a_pattern_cross_under_a_prefix() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let mut config = support::config(&other.endpoint, ">camera/* <plan/**");
    config.prefix = "robot1".to_owned();
    let received = other.subscribe("robot1/camera/*");
    let node = daemon.node("member");
    let bridge = Bridge::zenoh(daemon.node("bridge"), &config).unwrap();
    for topic in ["camera/left", "camera/right"] {
        let publisher = node.publisher(topic).create().unwrap();
        wait_for_readers(&node, topic, 1);
        publisher.put(topic.as_bytes()).unwrap();
        let sample = received.next();
        assert_eq!(sample.key_expr().as_str(), format!("robot1/{topic}"));
        assert_eq!(sample.payload().to_bytes(), topic.as_bytes());
    }
    let subscriber = node.subscriber("plan/arm/left").create().unwrap();
    other.wait_for_subscriber("robot1/plan/arm/left");
    let put = other.session.put("robot1/plan/arm/left", "go");
    put.wait().unwrap();
    assert_eq!(receive(&subscriber).as_slice().unwrap(), b"go");
    // No topic may have this name.
    other.session.put("robot1/plan/.", "no").wait().unwrap();
    until("the drop", || {
        bridge.counts().dropped_by.get("invalid") == Some(&1)
    });
}

/// Without a subscriber on the other side the bridge does not read. With the first one it begins with the history for late joiners.
#[test]
fn a_topic_is_read_only_while_somebody_subscribes() {
    let (daemon, other) = (Daemon::start(), Zenoh::listen());
    let node = daemon.node("map");
    let publisher = node.publisher("map").transient_local().keep_last(1);
    let publisher = publisher.create().unwrap();
    publisher.put(b"map").unwrap();
    let bridge = bridge(&daemon, &other.endpoint, ">map");
    until("the connection", || bridge.counts().peers == 1);
    assert_eq!(node.topic("map").unwrap().subscribers.len(), 0);
    for _ in 0..2 {
        let received = other.subscribe("map");
        assert_eq!(received.next().payload().to_bytes()[..], *b"map");
        assert_eq!(bridge.counts().topics_out, 1);
        received.subscriber.undeclare().wait().unwrap();
        wait_for_readers(&node, "map", 0);
    }
}

#[test]
fn what_has_no_memory_or_no_sense_is_dropped_and_counted() {
    let daemon = Daemon::start_with("[pool.host]\ncap = \"16MiB\"\nsegment = \"2MiB\"\n");
    let other = Zenoh::listen();
    let bridge = bridge(&daemon, &other.endpoint, "<in");
    let subscriber = daemon.node("reader").subscriber("in").create().unwrap();
    other.wait_for_subscriber("in");
    let put = |payload: Vec<u8>| {
        let put = other.session.put("in", payload);
        put.congestion_control(CongestionControl::Block)
    };
    put(vec![1; 17 << 20]).wait().unwrap();
    // An array that is longer than the message, and a tag that is no number.
    for wrong in [
        &b"\x81\xa5rgaps\x82\xa5dtype\xa5uint8\xa5shape\x91\x09"[..],
        b"\x81\xa5rgaps\x81\xa3tag\xc0",
    ] {
        put(vec![2; 8]).attachment(wrong.to_vec()).wait().unwrap();
    }
    // The bridge ignores deletions, which topics do not have.
    other.session.delete("in").wait().unwrap();
    put(vec![3; 8]).wait().unwrap();
    assert_eq!(receive(&subscriber).as_slice().unwrap(), [3; 8]);
    until("the count", || bridge.counts().received == 1);
    let counts = bridge.stop();
    let dropped = [("invalid", 2), ("pool_full", 1)];
    assert_eq!(counts.dropped_by, dropped.into(), "{counts:?}");
}
