//! Runs the fuzz targets of links' ends on seeded changes of a corpus. `make fuzz` runs them with libFuzzer.
#![forbid(unsafe_code)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;
#[path = "../../../fuzz/targets.rs"]
mod targets;

use rgaps_transport::machine::frame::{self, Decoded, Description, Frame, RdmaMode};
use rgaps_transport::LaneKey;
use seeded::run;

fn encoded(frames: &[Frame]) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in frames {
        frame.encode(&mut all);
    }
    all
}

/// The inputs of a target's corpus beside those in `fuzz/corpus`.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let hello = Frame::Hello(frame::Hello {
        node: 1,
        machine: 1,
        realm: 7,
        lane: 0,
        first_window: 64 << 10,
        rdma: RdmaMode::No,
        to: 2,
        key: LaneKey([0; 32]),
    });
    let description = Description::new(&[1, 2, 3]).unwrap();
    let open = Frame::Open(frame::Open {
        flow: 1,
        first: 0,
        description: description.clone(),
    });
    let request = Frame::Request(frame::Request {
        flow: 1,
        sequence: 0,
        charge_end: 0,
        bytes: 100,
        chunk_bytes: 60,
        description,
    });
    match target {
        // A lane begins; a flow is opened and accepted; a message is requested, granted, sent in one chunk, and delivered.
        "ends" => vec![
            vec![
                0, 0, 12, 0, 1, 0, 0, 10, 1, 0, 14, 0, 1, 0, 200, 0, 220, 15, 0, 1, 0, 200, 9, 0,
                0, 10, 1, 0,
            ],
            vec![0, 0, 3, 0, 0, 4, 0, 1, 0, 205, 5, 0, 16, 0, 1, 1, 205],
        ],
        _ => vec![
            encoded(std::slice::from_ref(&hello)),
            encoded(&[hello, open.clone(), request.clone()]),
            encoded(&[
                open,
                request,
                Frame::Reset(frame::Reset {
                    why: Description::default(),
                }),
            ]),
        ],
    }
}

#[test]
fn the_corpus_has_frames_of_all_kinds_of_this_version() {
    let mut bytes = &include_bytes!("../../../fuzz/corpus/frames/all-kinds")[..];
    let mut kinds = std::collections::BTreeSet::new();
    while !bytes.is_empty() {
        let Ok(Decoded::Frame(frame, used)) = Frame::decode(bytes) else {
            panic!("no frame behind {kinds:?}");
        };
        kinds.insert(frame.name());
        bytes = &bytes[used + frame.payload_bytes() as usize..];
    }
    assert_eq!(kinds.len(), 16);
}

#[test]
fn frames() {
    run("frames", seeds("frames"), targets::frames, 20_000);
}

#[test]
fn hello() {
    run("hello", seeds("hello"), targets::hello, 100);
}

#[test]
fn ends() {
    run("ends", seeds("ends"), targets::ends, 20_000);
}
