//! Helpers of all tests.
#![allow(dead_code)] // each test file uses a part of it

use rgaps::Node;
use rgaps_recording::{Options, Recorder};
use rgaps_testkit::until;
use std::time::Duration;

pub const SOON: Duration = Duration::from_secs(120);

/// Starts a recorder and waits until it reads this many topics.
pub fn record(node: &Node, options: Options, topics: usize) -> Recorder {
    let recorder = Recorder::start(node.clone(), options).unwrap();
    until("all topics to be joined", || {
        recorder.counts().topics == topics as u64
    });
    recorder
}
