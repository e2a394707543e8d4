//! What is run, and what it says.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is raced for. The wait in brackets is the one that is left out where `skip` is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// A slow kernel writes; the message is published behind it; a kernel reads it at once
    /// (`sample.wait_on`).
    Publish,
    /// The same, waited for on the CPU (`sample.synchronize`).
    Synchronize,
    /// A kernel reads slowly, the sample is released behind it, and the writer reuses what it gets
    /// at once (`sample.release_on`).
    Release,
    /// A message is evicted while the kernel that writes it is queued, and others get its place
    /// (`publish_on` names the stream of that kernel).
    Evict,
    /// A loan is dropped while a kernel that writes it is queued, and the next gets its place
    /// (`discard_on` names the stream of that kernel).
    Discard,
}

/// How messages reach subscribers on another GPU than their publisher's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Across {
    /// As copies.
    Copy,
    /// Read where they are. The GPUs have to be peers.
    Map,
}

impl Scenario {
    /// Whether it is seen that its wait was left out. A copy is made before late work of others gets at
    /// the message itself.
    pub fn is_seen(self, across: Option<Across>) -> bool {
        across != Some(Across::Copy) || !matches!(self, Scenario::Evict | Scenario::Discard)
    }

    /// How many messages of its past the publisher keeps.
    pub fn history(self) -> u32 {
        match self {
            Scenario::Publish | Scenario::Synchronize => AT_ONCE as u32,
            Scenario::Release | Scenario::Evict | Scenario::Discard => 1,
        }
    }
}

/// One publisher or subscriber of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub scenario: Scenario,
    /// The scenario's wait is left out.
    pub skip: bool,
    pub socket: PathBuf,
    pub topic: String,
    /// Ordinal of the publisher's GPU.
    pub gpu: usize,
    /// Ordinal of the subscriber's.
    pub read_on: usize,
    pub across: Option<Across>,
    pub messages: u64,
    pub words: u64,
    pub kernel_ns: u64,
    pub seed: u64,
}

/// Slow kernels that run at the same time at most, at each end. Messages take turns on as many streams, so
/// that ten thousand with kernels of 50 ms take half a minute.
pub const AT_ONCE: usize = 16;

/// Tags of messages that are there to be evicted.
pub const TAG_IGNORED: u64 = u64::MAX;

impl Spec {
    /// Seed of the pattern of a message.
    pub fn pattern(&self, message: u64) -> u64 {
        self.seed << 32 ^ message
    }

    /// Seed of a pattern that no message has.
    pub fn rubbish(&self, message: u64) -> u64 {
        !self.pattern(message)
    }
}

/// What a subscriber found.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Messages that were checked, word by word.
    pub checked: u64,
    /// Those with words that are not theirs.
    pub wrong: u64,
    /// All such words.
    pub wrong_words: u64,
}
