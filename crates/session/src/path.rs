//! How messages reach a subscriber, as somebody may require it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of path, from the slowest to the fastest.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// To another host, through its TCP stack.
    #[default]
    Tcp,
    /// To another host's memory.
    Rdma,
    /// Between a GPU and the host, or two GPUs that are no peers: through pinned host memory.
    Pinned,
    /// Between two GPUs, over their connection.
    Peer,
    /// In the same memory.
    ZeroCopy,
}

impl PathKind {
    /// All of them, the slowest first.
    pub const ALL: [PathKind; 5] = [
        PathKind::Tcp,
        PathKind::Rdma,
        PathKind::Pinned,
        PathKind::Peer,
        PathKind::ZeroCopy,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::Tcp => "tcp",
            PathKind::Rdma => "rdma",
            PathKind::Pinned => "pinned",
            PathKind::Peer => "peer",
            PathKind::ZeroCopy => "zero_copy",
        }
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no path: write tcp, rdma, pinned, peer or zero_copy")]
pub struct PathKindError(pub String);

impl FromStr for PathKind {
    type Err = PathKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = PathKind::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| PathKindError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_in_order_and_known_by_name() {
        assert!(PathKind::ALL.windows(2).all(|two| two[0] < two[1]));
        for kind in PathKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "warp".parse::<PathKind>().unwrap_err().to_string();
        assert!(
            error.contains("'warp'") && error.contains("zero_copy"),
            "{error}"
        );
    }
}
