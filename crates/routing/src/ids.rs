//! The nouns of the crate: hosts, their lives, publishers, and time.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time since any start that the user of this crate chose. It never goes back.
pub type Time = Duration;

/// A host. All hosts order hosts by this number, wherever any of several would do.
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
    /// Its number there.
    pub number: u64,
}

/// Names a flow of a publisher, the same on every hop. The origin never uses one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A flow as its origin names it, alike for all hosts of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowName {
    /// The origin gives no two flows of a publisher the same.
    pub stream: u64,
    /// The publisher's number at the origin.
    pub publisher: u64,
}
