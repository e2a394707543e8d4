//! Messages of ROS 2: messages that are CDR are recorded as CDR, and a replay of a bag publishes arrays.

mod support;

use mcap::records::MessageHeader;
use rgaps::{Header, Late, Publisher, Value};
use rgaps_recording::{files_of, Options, ReadError, Recording, Replay, ReplayOptions};
use rgaps_testkit::Daemon;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use support::{record, SOON};

const TF: &str = "tf2_msgs/msg/TFMessage";
/// A `TFMessage` without transforms.
const CDR: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];

fn vector(name: &str) -> Vec<u8> {
    let mut lines = include_str!("../../ros2/tests/vectors.txt").lines();
    let hex = lines.find_map(|line| line.strip_prefix(name)).unwrap();
    let hex = hex.trim();
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// The mark that the bridge sets in the header of a message from ROS 2.
fn mark() -> Header {
    let mark = BTreeMap::from([(
        "source_ns".to_owned(),
        Value::Int(1_700_000_000_000_000_001),
    )]);
    Header::default().value("ros", Value::from(mark))
}

fn put(publisher: &Publisher, header: &Header, tag: u64) {
    let mut loan = publisher.loan(CDR.len() as u64).unwrap();
    loan.write(0, &CDR).unwrap();
    loan.set_header(header).unwrap();
    loan.set_tag(tag);
    loan.publish().unwrap();
}

/// Reads a file with the crate `mcap`: topic, schema, encoding, time and bytes of each message.
fn read(file: &Path) -> Vec<(String, String, String, u64, Vec<u8>)> {
    let bytes = std::fs::read(file).unwrap();
    let messages = mcap::MessageStream::new(&bytes).unwrap();
    let row = |message: mcap::Message<'_>| {
        let channel = &message.channel;
        (
            channel.topic.clone(),
            channel.schema.as_ref().unwrap().name.clone(),
            channel.message_encoding.clone(),
            message.publish_time,
            message.data.into_owned(),
        )
    };
    messages.map(|message| row(message.unwrap())).collect()
}

#[test]
fn a_message_that_came_as_cdr_is_recorded_as_cdr() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let publisher = node.publisher("tf").type_name(TF).create().unwrap();
    let recorder = record(&node, Options::new(["tf"], &file), 1);
    put(&publisher, &mark(), 0);
    // CDR has no place for a tag, and for another header.
    put(&publisher, &mark(), 7);
    put(&publisher, &Header::default().value("gain", 2), 0);
    let (counts, failure) = recorder.stop();
    assert_eq!((counts.recorded, failure), (3, None));

    let rows = read(&file);
    let (topic, schema, encoding, source_ns, bytes) = &rows[0];
    assert_eq!([topic, schema, encoding], ["/tf", TF, "cdr"]);
    assert_eq!(
        (*source_ns, &bytes[..]),
        (1_700_000_000_000_000_001, &CDR[..])
    );
    // The file defines the type for tools that do not know it.
    let bytes = std::fs::read(&file).unwrap();
    let mut messages = mcap::MessageStream::new(&bytes).unwrap();
    let schema = messages.next().unwrap().unwrap().channel.schema.clone();
    let schema = schema.unwrap();
    let text = String::from_utf8(schema.data.to_vec()).unwrap();
    assert_eq!(schema.encoding, "ros2msg");
    assert!(
        text.starts_with("geometry_msgs/TransformStamped[] transforms\n"),
        "{text}"
    );
    assert!(
        text.contains("MSG: builtin_interfaces/Time\nint32 sec\n"),
        "{text}"
    );
    for row in &rows[1..] {
        assert_eq!((row.0.as_str(), row.1.as_str()), ("tf", "rgaps.Message"));
    }

    let recording = Arc::new(Recording::open(&file).unwrap());
    let messages: Vec<_> = recording.messages().map(Result::unwrap).collect();
    assert!(messages.iter().all(|message| message.data()[..] == CDR));
    assert!(messages
        .iter()
        .all(|message| message.channel().type_name == TF));
    assert!(messages.iter().all(|message| message.topic() == "tf"));
    assert_eq!(messages[0].header().unwrap(), None);
    assert_eq!((messages[1].tag(), messages[0].sequence()), (7, 0));
    assert_eq!(recording.info().topics.len(), 1);
}

/// A bag leaves out messages that do not match their type, instead of filling them with zeros, and the counts name the topics.
#[test]
fn what_cannot_be_its_type_is_left_out_of_a_bag_and_named() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(["imu", "camera"], folder.path().join("run.mcap"));
    options.ros2 = true;
    let recorder = record(&node, options, 2);
    let imu = node.publisher("imu").type_name("sensor_msgs/msg/Imu");
    imu.create().unwrap().put(b"nonsense").unwrap();
    let camera = node.publisher("camera").type_name("rgb8");
    camera.create().unwrap().put(b"pixels").unwrap();
    let (counts, failure) = recorder.stop();
    assert_eq!((counts.recorded, failure), (0, None));
    assert_eq!(counts.dropped_by, BTreeMap::from([("not_ros2", 2)]));
    let (imu, camera) = (&counts.not_ros2["imu"], &counts.not_ros2["camera"]);
    assert!(imu.contains("bytes without parts"), "{imu}");
    assert!(camera.contains("declares type 'rgb8'"), "{camera}");
}

/// Writes a bag as `ros2 bag record` does, with these messages of topics.
fn bag(file: &Path, qos: &str, messages: &[(&str, &str, Vec<u8>)]) {
    let to = std::io::BufWriter::new(std::fs::File::create(file).unwrap());
    let options = mcap::WriteOptions::new().profile("ros2");
    let mut writer = options.create(to).unwrap();
    for (number, (topic, name, bytes)) in messages.iter().enumerate() {
        let schema = writer.add_schema(name, "ros2msg", b"").unwrap();
        let metadata = BTreeMap::from([("offered_qos_profiles".to_owned(), qos.to_owned())]);
        let channel = writer.add_channel(schema, topic, "cdr", &metadata).unwrap();
        let header = MessageHeader {
            channel_id: channel,
            sequence: number as u32,
            log_time: 1_700_000_000_000_000_000 + number as u64,
            publish_time: 1_700_000_000_000_000_000,
        };
        writer.write_to_known_channel(&header, bytes).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_bag_of_ros_2_is_replayed_as_arrays_and_what_is_not_known_as_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bag_0.mcap");
    let image = vector("sensor_msgs/msg/Image ");
    let messages = [
        ("/camera/image_raw", "sensor_msgs/msg/Image", image.clone()),
        ("/tf_static", TF, CDR.to_vec()),
        ("/cut", "sensor_msgs/msg/Image", image[..30].to_vec()),
    ];
    bag(
        &file,
        "- history: 1\n  depth: 1\n  reliability: 1\n  durability: 1",
        &messages,
    );

    let daemon = Daemon::start();
    let node = daemon.node("test");
    std::fs::write(folder.path().join("metadata.yaml"), "").unwrap();
    assert_eq!(
        files_of(folder.path()).unwrap(),
        std::slice::from_ref(&file)
    );
    assert_eq!(files_of(&file).unwrap(), std::slice::from_ref(&file));
    let recording = Arc::new(Recording::open(&file).unwrap());
    let replay = Replay::new(&node, vec![recording], ReplayOptions::default()).unwrap();
    let replayed = replay.run(&AtomicBool::new(false)).unwrap();
    assert_eq!((replayed.replayed, replayed.corrupt), (2, 1));

    // Late joiners get the messages, since the bag has transient-local publishers.
    let late = |topic: &str| {
        let subscriber = node.subscriber(topic).late(Late::Latest).create().unwrap();
        subscriber.recv_timeout(SOON).unwrap()
    };
    let sample = late("camera/image_raw");
    let tensor = sample.tensor().unwrap();
    assert_eq!(
        (&tensor.shape[..3], &tensor.strides[..3]),
        (&[5, 7, 3][..], &[24, 3, 1][..])
    );
    let header = sample.header().unwrap().unwrap();
    assert_eq!(header.values["encoding"], Value::Text("rgb8".to_owned()));
    assert!(header.capture_ns.is_some() && header.frame_id.is_some());
    assert!(
        !header.values.contains_key("ros"),
        "it may go to ROS 2 again"
    );
    assert!(image.ends_with(sample.as_slice().unwrap()));
    assert_eq!(late("tf_static").as_slice().unwrap(), CDR);

    let empty = tempfile::tempdir().unwrap();
    let error = files_of(empty.path()).unwrap_err();
    assert!(matches!(error, ReadError::NoFiles { .. }), "{error}");
}
