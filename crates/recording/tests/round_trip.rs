//! A replayed message equals the recorded one byte for byte, with everything beside its bytes.

mod support;

use rgaps::{DType, Header, Late, Loan, PartSpec, Publisher, Sample};
use rgaps_client::bindings::WithMetadata as _;
use rgaps_recording::{Compression, Options, Recording, Replay, ReplayOptions, Selection};
use rgaps_testkit::Daemon;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;
use support::{record, SOON};

/// A message without its times and its publisher's numbers, which differ in a replay.
#[derive(Debug, PartialEq)]
struct Content {
    topic: String,
    bytes: Vec<u8>,
    tag: u64,
    tensor: Option<rgaps::Tensor>,
    beside: Vec<u8>,
    is_header: bool,
}

fn content(topic: &str, sample: &Sample) -> Content {
    let beside = sample.metadata();
    Content {
        topic: topic.to_owned(),
        bytes: sample.as_slice().unwrap().to_vec(),
        tag: sample.tag(),
        tensor: sample.tensor().copied(),
        beside: beside.map_or_else(Vec::new, |beside| beside.as_bytes().to_vec()),
        is_header: beside.is_some_and(|beside| beside.is_header()),
    }
}

fn fill(loan: &mut Loan, seed: u8) {
    for (at, byte) in loan.as_mut_slice().unwrap().iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(7).wrapping_add(seed);
    }
}

/// One message of each kind on a topic of its own.
fn publish_all(publishers: &[Publisher], seed: u8) {
    let [image, depth, array, strided, parts, plain] = publishers else {
        panic!("six publishers");
    };
    let mut loan = image.loan_tensor(DType::U8, &[4, 6, 3]).unwrap();
    fill(&mut loan, seed);
    let header = Header {
        capture_ns: Some(1_700_000_000_000_000_123),
        ..Header::default()
    };
    let header = header
        .frame_id("cam")
        .value("gain", 1.5)
        .value("n", i64::from(seed));
    loan.set_header(&header).unwrap();
    loan.set_tag(u64::MAX - u64::from(seed));
    loan.publish().unwrap();

    let mut loan = depth
        .loan_tensor("uint16".parse().unwrap(), &[5, 7])
        .unwrap();
    fill(&mut loan, seed);
    loan.set_attachment(b"calibration").unwrap();
    loan.publish().unwrap();

    let mut loan = array.loan_tensor(DType::F32, &[0, 3]).unwrap();
    fill(&mut loan, seed);
    loan.publish().unwrap();

    // Columns of a matrix, with bytes between them, which also belong to the message.
    let mut loan = strided.loan(200).unwrap();
    fill(&mut loan, seed);
    let tensor = rgaps::tensor::strided(DType::F32, &[3, 4], &[1, 12]).unwrap();
    loan.set_tensor(tensor).unwrap();
    loan.publish().unwrap();

    let specs = [
        PartSpec {
            name: "rgb",
            dtype: DType::U8,
            shape: &[2, 3, 3],
        },
        PartSpec {
            name: "größe",
            dtype: DType::F32,
            shape: &[],
        },
        PartSpec {
            name: "none",
            dtype: DType::F32,
            shape: &[0, 4],
        },
    ];
    let mut loan = parts.loan_parts(&specs).unwrap();
    // Also fills the bytes between the parts.
    fill(&mut loan, seed);
    loan.set_header(&Header::default().frame_id("rig")).unwrap();
    loan.publish().unwrap();

    plain.put(b"").unwrap();
    plain.put(&[seed; 3000]).unwrap();
}

const TOPICS: [&str; 6] = [
    "a/image",
    "a/depth",
    "a/array",
    "a/strided",
    "a/parts",
    "a/plain",
];

fn publishers(node: &rgaps::Node) -> Vec<Publisher> {
    let create = |topic: &&str| node.publisher(topic).keep_last(64).create().unwrap();
    TOPICS.iter().map(create).collect()
}

/// Receives `messages` messages per topic, and twice as many of `a/plain`.
fn receive(subscribers: &[rgaps::Subscriber], messages: usize) -> Vec<Content> {
    let mut all = Vec::new();
    for subscriber in subscribers {
        let of_topic = if subscriber.topic() == "a/plain" {
            messages * 2
        } else {
            messages
        };
        for _ in 0..of_topic {
            let sample = subscriber.recv_timeout(SOON).unwrap();
            all.push(content(subscriber.topic(), &sample));
        }
    }
    all
}

fn subscribers(node: &rgaps::Node) -> Vec<rgaps::Subscriber> {
    let create = |topic: &&str| node.subscriber(topic).reliable().create().unwrap();
    TOPICS.iter().map(create).collect()
}

fn a_recording_equals_the_original(compression: Compression) {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let original = subscribers(&node);
    let publishers = publishers(&node);
    let mut options = Options::new(["a/**"], &file);
    options.compression = compression;
    // Small enough for several chunks.
    options.chunk_bytes = 4096;
    let recorder = record(&node, options, TOPICS.len());
    for seed in 0..5 {
        publish_all(&publishers, seed);
    }
    let (counts, failure) = recorder.stop();
    assert_eq!(failure, None);
    assert_eq!((counts.recorded, counts.dropped), (35, 0), "{counts:?}");
    let original = receive(&original, 5);
    drop(publishers);

    let recording = Arc::new(Recording::open(&file).unwrap());
    let info = recording.info();
    assert!(info.finished && info.chunks > 1, "{info:?}");
    assert_eq!((info.messages, info.topics.len()), (35, 6));
    let image = &info.topics[2];
    assert_eq!(
        (image.topic.as_str(), image.schema.as_str()),
        ("a/image", "foxglove.RawImage")
    );
    assert_eq!(image.content, "uint8[4,6,3] with header in MessagePack");

    let other = Daemon::start();
    let node = other.node("replay");
    let subscribers = subscribers(&node);
    let options = ReplayOptions {
        rate: 1e6,
        wait_subscribers: 1,
        ..ReplayOptions::default()
    };
    let replay = Replay::new(&node, vec![recording], options).unwrap();
    let replayed = replay.run(&AtomicBool::new(false)).unwrap();
    assert_eq!((replayed.replayed, replayed.corrupt), (35, 0));
    assert_eq!(receive(&subscribers, 5), original);
}

#[test]
fn a_recording_equals_the_original_without_compression() {
    a_recording_equals_the_original(Compression::None);
}

#[test]
fn a_recording_equals_the_original_with_lz4() {
    a_recording_equals_the_original(Compression::Lz4);
}

#[test]
fn a_recording_equals_the_original_with_zstd() {
    a_recording_equals_the_original(Compression::Zstd);
}

#[test]
fn messages_come_in_the_order_of_publishing_over_topics() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let topics = ["one", "two", "three"];
    let create = |topic: &&str| node.publisher(topic).keep_last(100).create().unwrap();
    let publishers: Vec<_> = topics.iter().map(create).collect();
    let mut options = Options::new(["*"], &file);
    options.chunk_bytes = 100;
    let recorder = record(&node, options, 3);
    for number in 0..300u32 {
        let at = (number * 7 % 3) as usize;
        publishers[at].put(&number.to_le_bytes()).unwrap();
    }
    assert_eq!(recorder.stop().0.recorded, 300);
    let recording = Arc::new(Recording::open(&file).unwrap());
    let numbers: Vec<u32> = recording
        .messages()
        .map(|message| u32::from_le_bytes(message.unwrap().data()[..].try_into().unwrap()))
        .collect();
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    let selection = Selection {
        topics: vec!["t*".to_owned()],
        ..Selection::default()
    };
    let selected = recording.select(&selection);
    assert!(selected
        .map(Result::unwrap)
        .all(|message| message.topic() != "one"));
}

#[test]
fn what_transient_local_publishers_kept_is_recorded_and_replayed_first() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let map = node
        .publisher("map")
        .keep_last(1)
        .transient_local()
        .type_name("Map");
    let map = map.create().unwrap();
    map.put(b"the map").unwrap();
    let pose = node.publisher("pose").keep_last(100).create().unwrap();
    let recorder = record(&node, Options::new(["**"], &file), 2);
    pose.put(b"first").unwrap();
    pose.put(b"second").unwrap();
    assert_eq!(recorder.stop().0.recorded, 3);
    drop((map, pose));

    let other = Daemon::start();
    let node = other.node("replay");
    let poses = node.subscriber("pose").reliable().create().unwrap();
    // The replay begins after all messages, and still publishes the map.
    let options = ReplayOptions {
        start: Duration::from_secs(3600),
        ..ReplayOptions::default()
    };
    let recording = Arc::new(Recording::open(&file).unwrap());
    // Without the map it has no message, so it ends, although it should repeat.
    let nothing = ReplayOptions {
        repeat: true,
        topics: vec!["pose".to_owned()],
        ..options.clone()
    };
    let replay = Replay::new(&node, vec![recording.clone()], nothing).unwrap();
    assert_eq!(replay.run(&AtomicBool::new(false)).unwrap().replayed, 0);
    assert_eq!(recording.info().topics[0].type_name, "Map");
    let replay = Replay::new(&node, vec![recording], options).unwrap();
    assert_eq!(replay.run(&AtomicBool::new(false)).unwrap().replayed, 1);
    let late = node
        .subscriber("map")
        .type_name("Map")
        .late(Late::Latest)
        .create()
        .unwrap();
    let sample = late.recv_timeout(SOON).unwrap();
    assert_eq!(sample.as_slice().unwrap(), b"the map");
    assert!(poses.try_recv().unwrap().is_none());
}

/// Loans of messages that are not due yet hold all memory for longer than a loan waits, and the replay must not fail.
#[test]
fn a_replay_waits_for_memory_that_its_own_messages_hold() {
    let bytes = 4 << 20;
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let publisher = node.publisher("large").keep_last(1).create().unwrap();
    let recorder = record(&node, Options::new(["large"], &file), 1);
    for seed in 0..3 {
        let mut loan = publisher.loan(bytes).unwrap();
        fill(&mut loan, seed);
        loan.publish().unwrap();
        // Publishes the second message after the first is recorded, so that time passes between them.
        while recorder.counts().recorded == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(recorder.stop().0.recorded, 3);

    let recording = Arc::new(Recording::open(&file).unwrap());
    let times: Vec<u64> = recording
        .messages()
        .map(|message| message.unwrap().log_ns())
        .collect();
    let gap = Duration::from_nanos(times[1] - times[0]);
    // Room for the publisher's history and for one loan.
    let other = Daemon::start_with("[pool.host]\ncap = \"10MiB\"\n");
    let node = other.node("replay");
    let subscriber = node.subscriber("large").reliable().create().unwrap();
    let options = ReplayOptions {
        rate: gap.as_secs_f64() / 6.0,
        wait_subscribers: 1,
        ..ReplayOptions::default()
    };
    let replay = Replay::new(&node, vec![recording], options).unwrap();
    std::thread::scope(|scope| {
        let replayed = scope.spawn(|| replay.run(&AtomicBool::new(false)).unwrap());
        let mut held = Vec::new();
        for seed in 0..3 {
            held.push(subscriber.recv_timeout(SOON).unwrap());
            let read = held.last().unwrap().as_slice().unwrap();
            assert_eq!((read.len() as u64, read[1]), (bytes, 7 + seed));
            // Holds the first message until the second comes, so that the third has no memory before.
            held.drain(..held.len() - 1);
        }
        assert_eq!(replayed.join().unwrap().replayed, 3);
    });
}
