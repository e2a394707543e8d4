//! Images that are recorded as JPEG.

mod support;

use rgaps::{DType, Header, Value};
use rgaps_recording::{Options, Recording, Replay, ReplayOptions};
use rgaps_testkit::Daemon;
use std::io::Cursor;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use support::{record, SOON};

/// Rows and columns of the image.
const SIDE: usize = 64;

/// A gradient, which JPEG changes little.
fn gradient(channels: usize) -> Vec<u8> {
    let pixel = |at: usize| (0..channels).map(move |channel| (at / SIDE * 2 + channel * 40) as u8);
    (0..SIDE * SIDE).flat_map(pixel).collect()
}

fn pixels(jpeg: &[u8]) -> Vec<u8> {
    let mut decoder = zune_jpeg::JpegDecoder::new(Cursor::new(jpeg));
    let pixels = decoder.decode().unwrap();
    let (width, height) = decoder.dimensions().unwrap();
    assert_eq!((width, height), (SIDE, SIDE));
    pixels
}

fn worst(one: &[u8], other: &[u8]) -> u8 {
    assert_eq!(one.len(), other.len());
    one.iter()
        .zip(other)
        .map(|(a, b)| a.abs_diff(*b))
        .max()
        .unwrap()
}

#[test]
fn images_become_jpeg_and_everything_else_stays() {
    let daemon = Daemon::start();
    let node = daemon.node("test");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.mcap");
    let topics = ["a/rgb", "b/bgr", "c/depth"];
    let create = |topic: &&str| {
        let publisher = node.publisher(topic);
        let publisher = match *topic {
            "b/bgr" => publisher.type_name("bgr8"),
            _ => publisher,
        };
        publisher.create().unwrap()
    };
    let publishers: Vec<_> = topics.iter().map(create).collect();
    let mut options = Options::new(["**"], &file);
    options.jpeg = Some(95);
    let recorder = record(&node, options, 3);
    let rgb = gradient(3);
    for publisher in &publishers[..2] {
        let shape = [SIDE as u64, SIDE as u64, 3];
        let mut loan = publisher.loan_tensor(DType::U8, &shape).unwrap();
        loan.as_mut_slice().unwrap().copy_from_slice(&rgb);
        let header = Header::default().frame_id("left").value("gain", 1.5);
        loan.set_header(&header).unwrap();
        loan.set_tag(9);
        loan.publish().unwrap();
    }
    let depth = publishers[2].loan_tensor(DType::F32, &[2, 2, 1]).unwrap();
    depth.publish().unwrap();
    let (counts, failure) = recorder.stop();
    assert_eq!((counts.recorded, failure), (3, None));

    let recording = Arc::new(Recording::open(&file).unwrap());
    let schemas: Vec<_> = recording
        .info()
        .topics
        .into_iter()
        .map(|topic| topic.schema)
        .collect();
    let jpeg = "foxglove.CompressedImage";
    assert_eq!(schemas, [jpeg, jpeg, "foxglove.RawImage"]);
    let messages: Vec<_> = recording.messages().map(Result::unwrap).collect();
    assert!(worst(&pixels(messages[0].data()), &rgb) < 8);
    let swapped: Vec<u8> = rgb
        .chunks(3)
        .flat_map(|pixel| [pixel[2], pixel[1], pixel[0]])
        .collect();
    assert!(worst(&pixels(messages[1].data()), &swapped) < 8);

    // A replay publishes JPEG files, as ROS 2 does for compressed images.
    let subscriber = node.subscriber("a/rgb").reliable().create().unwrap();
    drop(publishers);
    let replay = Replay::new(&node, vec![recording], ReplayOptions::default()).unwrap();
    assert_eq!(replay.run(&AtomicBool::new(false)).unwrap().replayed, 3);
    let sample = subscriber.recv_timeout(SOON).unwrap();
    assert_eq!(sample.as_slice().unwrap(), &messages[0].data()[..]);
    let header = sample.header().unwrap().unwrap();
    assert_eq!(header.values["format"], Value::Text("jpeg".to_owned()));
    assert_eq!(
        (header.frame_id.as_deref(), sample.tag()),
        (Some("left"), 9)
    );
    assert!(header.values.contains_key("gain") && sample.tensor().is_none());
    let info = node.topic("a/rgb").unwrap();
    let types: Vec<_> = info
        .publishers
        .iter()
        .map(|row| row.type_name.as_str())
        .collect();
    assert!(
        types.contains(&"sensor_msgs/msg/CompressedImage"),
        "{types:?}"
    );
}
