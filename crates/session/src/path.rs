//! Kinds of paths from a publisher to a subscriber, which either may require.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of path, from the slowest to the fastest.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// To another host over TCP.
    #[default]
    Tcp,
    /// To another host over RDMA, through host memory on both sides.
    Rdma,
    /// From a GPU to a GPU of another host; the network cards read and write the GPUs' memory themselves.
    #[serde(rename = "gpudirect")]
    GpuDirect,
    /// Between a GPU and the host, or between two GPUs without peer access, through pinned host memory.
    Pinned,
    /// Between two GPUs with peer access, over their connection.
    Peer,
    /// Publisher and subscriber use the same memory; nothing is copied.
    ZeroCopy,
}

impl PathKind {
    /// All paths, the slowest first.
    pub const ALL: [PathKind; 6] = [
        PathKind::Tcp,
        PathKind::Rdma,
        PathKind::GpuDirect,
        PathKind::Pinned,
        PathKind::Peer,
        PathKind::ZeroCopy,
    ];

    /// The name, as in the configuration and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::Tcp => "tcp",
            PathKind::Rdma => "rdma",
            PathKind::GpuDirect => "gpudirect",
            PathKind::Pinned => "pinned",
            PathKind::Peer => "peer",
            PathKind::ZeroCopy => "zero_copy",
        }
    }

    /// The number in C and in the daemon's records; 0 stands for no path there. Numbers never change, so they are not in the order
    /// of speed.
    pub fn number(self) -> u32 {
        match self {
            PathKind::Tcp => 1,
            PathKind::Rdma => 2,
            PathKind::Pinned => 3,
            PathKind::Peer => 4,
            PathKind::ZeroCopy => 5,
            PathKind::GpuDirect => 6,
        }
    }

    /// The path with this number.
    pub fn of_number(number: u32) -> Option<PathKind> {
        let mut all = PathKind::ALL.into_iter();
        all.find(|kind| kind.number() == number)
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a path; write tcp, rdma, gpudirect, pinned, peer or zero_copy")]
pub struct PathKindError(pub String);

impl FromStr for PathKind {
    type Err = PathKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = PathKind::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| PathKindError(text.to_owned()))
    }
}

/// How messages of another host arrive at this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalPath {
    /// The path.
    pub path: PathKind,
    /// Why there is no faster path; at most [`crate::MAX_PATH_BYTES`].
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_in_order_and_known_by_name() {
        assert!(PathKind::ALL.windows(2).all(|two| two[0] < two[1]));
        for kind in PathKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(PathKind::of_number(kind.number()), Some(kind));
        }
        let error = "warp".parse::<PathKind>().unwrap_err().to_string();
        assert!(
            error.contains("'warp'") && error.contains("zero_copy"),
            "{error}"
        );
    }
}
