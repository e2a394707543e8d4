//! The nouns of the crate: hosts, their lives, publishers, and time.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time since a start that the user of this crate chooses. It never decreases.
pub type Time = Duration;

/// A host. Where several hosts are equally good, all hosts prefer the lowest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub u64);

/// One incarnation of a host's process. A later incarnation has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Life {
    /// The host.
    pub host: HostId,
    /// The incarnation, for example the time at which the process started.
    pub incarnation: u64,
}

/// A publisher. Its messages have the numbers 0, 1, 2 and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Publisher {
    /// The host that it publishes on, the origin of its messages.
    pub origin: Life,
    /// Its number at the origin.
    pub number: u64,
}

/// The number of a stream: one tree's flows of a publisher, on every hop. The origin uses no number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A flow's name, which its origin gives and all hosts of its tree use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowName {
    /// The number of the stream ([`StreamId`]), unique among the publisher's.
    pub stream: u64,
    /// The publisher's number at the origin.
    pub publisher: u64,
}
