//! Files that are split, written on a trigger, cut off, damaged, on a full disk, or written by other programs.

mod support;

use mcap::records::MessageHeader;
use rgaps::Node;
use rgaps_recording::{
    Options, ReadError, RecordError, Recorder, Recording, Replay, ReplayOptions,
};
use rgaps_testkit::{until, Daemon};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;
use support::{record, SOON};

/// A message of 1000 bytes that begins with its number in four bytes.
fn message(number: u32) -> Vec<u8> {
    let mut bytes = vec![number as u8; 1000];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn publish(node: &Node, numbers: std::ops::Range<u32>) {
    let publisher = node.publisher("numbers").keep_last(1000).transient_local();
    let publisher = publisher.create().unwrap();
    for number in numbers {
        publisher.put(&message(number)).unwrap();
    }
}

/// The numbers of all readable messages, and the number of errors between them.
fn numbers(path: &Path) -> (Vec<u32>, usize) {
    let recording = Arc::new(Recording::open(path).unwrap());
    let (mut numbers, mut errors) = (Vec::new(), 0);
    for message in recording.messages() {
        match message {
            Ok(message) => {
                let number = u32::from_le_bytes(message.data()[..4].try_into().unwrap());
                assert_eq!(message.data()[..], self::message(number)[..]);
                numbers.push(number);
            }
            Err(_) => errors += 1,
        }
    }
    (numbers, errors)
}

/// A recording of 100 messages in ten chunks.
fn hundred(folder: &Path) -> PathBuf {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let file = folder.join("run.mcap");
    publish(&node, 0..100);
    let mut options = Options::new(["numbers"], &file);
    options.chunk_bytes = 10_000;
    let recorder = record(&node, options, 1);
    until("all messages", || recorder.counts().recorded == 100);
    assert_eq!(recorder.stop().0.dropped, 0);
    file
}

#[test]
fn a_file_that_is_cut_anywhere_is_readable_up_to_its_last_whole_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let file = hundred(folder.path());
    let whole = std::fs::read(&file).unwrap();
    let cut = folder.path().join("cut.mcap");
    let mut before = 0;
    for length in (8..whole.len()).step_by(997) {
        std::fs::write(&cut, &whole[..length]).unwrap();
        let recording = Recording::open(&cut).unwrap();
        let missing = recording.missing().expect("it has no index").clone();
        let (numbers, errors) = numbers(&cut);
        assert_eq!(errors, 0);
        assert_eq!(numbers, (0..numbers.len() as u32).collect::<Vec<_>>());
        assert!(numbers.len() >= before, "{length}: {missing:?}");
        assert_eq!(recording.info().messages, numbers.len() as u64);
        // A chunk has some 11 kB.
        assert!(
            missing.bytes < 12_000 || numbers.len() == 100,
            "{missing:?}"
        );
        before = numbers.len();
    }
    assert_eq!(before, 100);
}

#[test]
fn a_damaged_chunk_is_told_and_the_others_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = hundred(folder.path());
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (read, errors) = numbers(&file);
    assert_eq!((read.len(), errors), (90, 1));

    let daemon = Daemon::start();
    let node = daemon.node("replay");
    let options = ReplayOptions {
        rate: 1e6,
        ..ReplayOptions::default()
    };
    let recording = Arc::new(Recording::open(&file).unwrap());
    let replay = Replay::new(&node, vec![recording], options).unwrap();
    let replayed = replay.run(&AtomicBool::new(false)).unwrap();
    assert_eq!((replayed.replayed, replayed.corrupt), (90, 1));
}

#[test]
fn any_byte_may_be_wrong_and_nothing_panics() {
    let folder = tempfile::tempdir().unwrap();
    let file = hundred(folder.path());
    let whole = std::fs::read(&file).unwrap();
    for at in (0..whole.len()).step_by(211) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        std::fs::write(&file, &bytes).unwrap();
        if let Ok(recording) = Recording::open(&file) {
            let _ = recording.info();
            let read = Arc::new(recording).messages().filter(Result::is_ok);
            // A damaged index may name a chunk twice or not at all, so up to 200 messages are right.
            assert!(read.count() <= 200);
        }
    }
}

#[test]
fn files_are_split_by_size() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    publish(&node, 0..100);
    let mut options = Options::new(["numbers"], folder.path().join("run.mcap"));
    options.chunk_bytes = 5_000;
    options.split_bytes = Some(40_000);
    let recorder = record(&node, options, 1);
    until("all messages to be received", || {
        recorder.counts().files >= 2
    });
    let (counts, _) = recorder.stop();
    assert!(counts.files >= 3, "{counts:?}");
    let mut all = Vec::new();
    let mut recordings = Vec::new();
    for number in 0..counts.files {
        let path = folder.path().join(format!("run-{number:04}.mcap"));
        assert!(path.metadata().unwrap().len() < 50_000);
        let mut read = numbers(&path).0;
        if let Some(last) = all.last() {
            // Each file after the first begins with the message that a late joiner would get.
            assert_eq!(read.remove(0), *last);
        }
        all.extend(read);
        recordings.insert(0, Arc::new(Recording::open(&path).unwrap()));
    }
    assert_eq!(all, (0..100).collect::<Vec<_>>());

    // In any order, the files are one recording, with one publisher.
    let other = Daemon::start();
    let node = other.node("replay");
    let subscriber = node.subscriber("numbers").reliable().create().unwrap();
    let options = ReplayOptions {
        rate: 1e6,
        wait_subscribers: 1,
        ..ReplayOptions::default()
    };
    let replay = Replay::new(&node, recordings, options).unwrap();
    assert_eq!(replay.run(&AtomicBool::new(false)).unwrap().replayed, 100);
    for number in 0..100 {
        let sample = subscriber.recv_timeout(SOON).unwrap();
        assert_eq!(sample.as_slice().unwrap(), message(number));
        assert_eq!(sample.sequence(), u64::from(number));
    }
}

#[test]
fn files_are_split_by_time() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    // The publisher is volatile, so no file repeats a message.
    let publisher = node.publisher("numbers").keep_last(1000).create().unwrap();
    let mut options = Options::new(["numbers"], folder.path().join("run.mcap"));
    options.split_time = Some(Duration::from_millis(20));
    let recorder = record(&node, options, 1);
    let mut count = 0;
    until("a third file", || {
        publisher.put(&message(count)).unwrap();
        count += 1;
        recorder.counts().files >= 3
    });
    let (counts, failure) = recorder.stop();
    assert_eq!((counts.recorded, failure), (u64::from(count), None));
    let path = |number| folder.path().join(format!("run-{number:04}.mcap"));
    let all: Vec<u32> = (0..counts.files)
        .flat_map(|number| numbers(&path(number)).0)
        .collect();
    assert_eq!(all, (0..count).collect::<Vec<_>>());
}

#[test]
fn the_last_seconds_are_written_when_it_is_told_to() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    publish(&node, 0..50);
    let mut options = Options::new(["numbers"], folder.path().join("run.mcap"));
    options.keep = Some(Duration::from_secs(3600));
    // Room for some 30 messages.
    options.queue_bytes = 33_000;
    let recorder = record(&node, options, 1);
    until("all messages to be kept or pushed out", || {
        let counts = recorder.counts();
        counts.pushed_out + counts.queue_messages == 50
    });
    assert!(recorder.counts().pushed_out >= 15);
    assert_eq!(recorder.counts().files, 0);
    recorder.trigger();
    let first = folder.path().join("run-0000.mcap");
    let is_finished =
        |path: &Path| Recording::open(path).is_ok_and(|recording| recording.missing().is_none());
    until("a file", || is_finished(&first));
    let (read, _) = numbers(&first);
    assert_eq!(read.last(), Some(&49));
    assert!((25..50).contains(&read.len()), "{read:?}");
    // Triggers again, for the messages since the first trigger.
    publish(&node, 50..53);
    until("more messages", || recorder.counts().queue_messages == 3);
    recorder.trigger();
    let second = folder.path().join("run-0001.mcap");
    until("a second file", || is_finished(&second));
    // The file begins with the latest message of the earlier publisher, which a late joiner would get.
    assert_eq!(numbers(&second).0, [49, 50, 51, 52]);
    assert_eq!(recorder.stop().0.files, 2);
}

/// The topics and the times of a file's messages, in the order of publishing.
fn rows(path: &Path) -> Vec<(String, u64)> {
    let recording = Arc::new(Recording::open(path).unwrap());
    let messages = recording.messages().map(Result::unwrap);
    messages
        .map(|message| (message.topic().to_owned(), message.log_ns()))
        .collect()
}

/// A transient-local publisher that has published a map.
fn map(node: &Node) -> rgaps::Publisher {
    let map = node.publisher("map").keep_last(1).transient_local();
    let map = map.create().unwrap();
    map.put(&[0; 5000]).unwrap();
    map
}

#[test]
fn a_map_that_was_published_once_is_in_every_file_of_a_split_recording() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let _map = map(&node);
    let publisher = node.publisher("number").create().unwrap();
    let mut options = Options::new(["map", "number"], folder.path().join("run.mcap"));
    // Each file has one message of its own.
    options.split_bytes = Some(1);
    let recorder = record(&node, options, 2);
    until("the map", || recorder.counts().recorded == 1);
    for number in 0..3 {
        publisher.put(&message(number)).unwrap();
    }
    let (counts, _) = recorder.stop();
    assert_eq!((counts.files, counts.recorded), (4, 4), "{counts:?}");
    let file = |number| folder.path().join(format!("run-{number:04}.mcap"));
    let first = rows(&file(0));
    assert_eq!(first.len(), 1);
    let mut files = vec![Arc::new(Recording::open(file(0)).unwrap())];
    for number in 1..4 {
        let rows = rows(&file(number));
        assert_eq!((rows.len(), &rows[0]), (2, &first[0]));
        // The time of a file begins with its own first message.
        let recording = Recording::open(file(number)).unwrap();
        assert_eq!(recording.info().begun_ns, rows[1].1);
        assert_eq!(recording.info().duration_s, 0.0);
        files.push(Arc::new(recording));
    }
    // The files together are one recording, in which the map was published once.
    let options = ReplayOptions {
        rate: 1e6,
        ..ReplayOptions::default()
    };
    let replay = Replay::new(&node, files, options).unwrap();
    assert_eq!(replay.run(&AtomicBool::new(false)).unwrap().replayed, 4);
}

#[test]
fn a_map_from_before_the_last_seconds_is_in_the_file_of_the_last_seconds() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let _map = map(&node);
    let publisher = node.publisher("number").create().unwrap();
    let mut options = Options::new(["map", "number"], folder.path().join("run.mcap"));
    // Only the newest message is kept.
    options.keep = Some(Duration::ZERO);
    let recorder = record(&node, options, 2);
    until("the map", || recorder.counts().queue_messages == 1);
    publisher.put(&message(1)).unwrap();
    until("the number instead", || {
        let counts = recorder.counts();
        counts.queue_messages == 1 && counts.queue_bytes < 5000
    });
    recorder.trigger();
    let file = folder.path().join("run-0000.mcap");
    until("the file", || {
        Recording::open(&file).is_ok_and(|recording| recording.missing().is_none())
    });
    let rows = rows(&file);
    let topics: Vec<_> = rows.iter().map(|(topic, _)| topic.as_str()).collect();
    assert_eq!(topics, ["map", "number"]);
    assert_eq!(Recording::open(&file).unwrap().info().begun_ns, rows[1].1);
    assert_eq!(recorder.stop().0.recorded, 1);
}

#[test]
fn what_has_no_room_is_counted() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let publisher = node.publisher("numbers").keep_last(4).create().unwrap();
    let mut options = Options::new(["numbers"], &file);
    options.queue_bytes = 1;
    let recorder = record(&node, options, 1);
    for number in 0..2000 {
        publisher.put(&message(number)).unwrap();
    }
    let (counts, _) = recorder.stop();
    assert_eq!(counts.recorded + counts.dropped, 2000, "{counts:?}");
    let recording = Recording::open(&file).unwrap();
    assert_eq!(recording.info().messages, counts.recorded);
    let dropped: u64 = recording.info().dropped_by.values().sum();
    assert_eq!(dropped, counts.dropped);
}

#[test]
fn a_reliable_recorder_misses_nothing() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let publisher = node
        .publisher("numbers")
        .keep_last(4)
        .deadline(SOON)
        .create()
        .unwrap();
    let mut options = Options::new(["numbers"], &file);
    options.queue_bytes = 1;
    options.reliable = true;
    let recorder = record(&node, options, 1);
    for number in 0..500 {
        publisher.put(&message(number)).unwrap();
    }
    let (counts, _) = recorder.stop();
    assert_eq!((counts.recorded, counts.dropped), (500, 0));
}

#[test]
fn a_file_that_exists_is_not_overwritten_and_other_mistakes_are_told() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    std::fs::write(&file, b"precious").unwrap();
    let error = Recorder::start(node.clone(), Options::new(["**"], &file)).unwrap_err();
    assert!(matches!(error, RecordError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let nowhere = folder.path().join("no/run.mcap");
    let error = Recorder::start(node.clone(), Options::new(["**"], &nowhere)).unwrap_err();
    assert!(error.to_string().contains("create the folder"), "{error}");
    let nothing: [&str; 0] = [];
    let error = Recorder::start(node, Options::new(nothing, &file)).unwrap_err();
    assert!(matches!(error, RecordError::NoPattern), "{error}");
    let error = Recording::open(&file).unwrap_err();
    assert!(matches!(error, ReadError::NotMcap { .. }), "{error}");
    for (begin, what) in [
        (&b"SQLite format 3\0"[..], "bag in SQLite"),
        (
            &[0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0, 0],
            "compressed as a whole",
        ),
        (b"", "does not begin like one"),
    ] {
        std::fs::write(&file, begin).unwrap();
        let error = Recording::open(&file).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let error = Recording::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("it is a folder"), "{error}");
    let error = Recording::open(folder.path().join("none")).unwrap_err();
    assert!(matches!(error, ReadError::Io { .. }), "{error}");
}

#[test]
fn a_file_of_another_program_is_replayed_as_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.mcap");
    let mut writer = mcap::Writer::new(std::fs::File::create(&file).unwrap()).unwrap();
    let schema = writer
        .add_schema("my_msgs/msg/Mine", "ros2msg", b"string data")
        .unwrap();
    let channel = writer
        .add_channel(schema, "/chatter", "cdr", &BTreeMap::new())
        .unwrap();
    for sequence in 0..3u32 {
        let header = MessageHeader {
            channel_id: channel,
            sequence,
            log_time: u64::from(sequence) * 1_000_000,
            publish_time: 0,
        };
        writer
            .write_to_known_channel(&header, &message(sequence))
            .unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    assert_eq!(numbers(&file).0, [0, 1, 2]);

    let daemon = Daemon::start();
    let node = daemon.node("replay");
    let chatter = node
        .subscriber("chatter")
        .type_name("my_msgs/msg/Mine")
        .reliable();
    let chatter = chatter.create().unwrap();
    let options = ReplayOptions {
        wait_subscribers: 1,
        ..ReplayOptions::default()
    };
    let recording = Arc::new(Recording::open(&file).unwrap());
    let replay = Replay::new(&node, vec![recording], options).unwrap();
    assert_eq!(replay.run(&AtomicBool::new(false)).unwrap().replayed, 3);
    for number in 0..3 {
        let sample = chatter.recv_timeout(SOON).unwrap();
        assert_eq!(sample.as_slice().unwrap(), message(number));
    }
}
