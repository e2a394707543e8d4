//! The fuzz targets of links' ends with seeded changes of a corpus; with libFuzzer by `make fuzz`.
#![forbid(unsafe_code)]
#[path = "../../../fuzz/seeded.rs"]
mod seeded;
#[path = "../../../fuzz/targets.rs"]
mod targets;

use rgaps_transport::frame::{Frame, Wish};
use rgaps_transport::{Flow, LaneKey, Meta};
use seeded::run;

fn encoded(frames: &[Frame]) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in frames {
        let mut bytes = Vec::new();
        let length = frame.encode(&mut bytes);
        all.extend_from_slice(&bytes[..length]);
    }
    all
}

/// What every corpus begins with, beside what is in `fuzz/corpus`.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let flow = Flow {
        topic: 0,
        incarnation: 1,
    };
    let hello = Frame::Hello {
        node: 1,
        realm: 7,
        lane: 0,
        ring_bytes: 1 << 20,
        rdma: Wish::No,
        to: 2,
        key: LaneKey([0; 32]),
    };
    let open = Frame::Open { flow, first: 0 };
    let meta = Meta::new(&[1, 2, 3]).unwrap();
    let ask = Frame::Request {
        flow,
        sequence: 0,
        charge_end: 0,
        bytes: 100,
        meta,
    };
    match target {
        "ends" => vec![vec![
            0, 0, 7, 0, 0, 0, 0, 10, 0, 0, 0, 220, 0, 11, 0, 0, 1, 0, 220,
        ]],
        _ => vec![
            encoded(std::slice::from_ref(&hello)),
            encoded(&[hello, open.clone(), ask.clone()]),
            encoded(&[open, ask, Frame::Goodbye]),
        ],
    }
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
