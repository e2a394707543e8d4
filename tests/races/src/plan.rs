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

impl Scenario {
    /// How many messages of its past the publisher keeps.
    pub fn history(self) -> u32 {
        match self {
            Scenario::Publish | Scenario::Synchronize => 4,
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
    /// Ordinal of the GPU.
    pub gpu: usize,
    pub messages: u64,
    pub words: u64,
    pub kernel_ns: u64,
    pub seed: u64,
}

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
