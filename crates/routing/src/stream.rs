//! When the origin replaces a stream by another one.

use crate::ids::Time;

/// A broken stream is replaced at this age, even if no path has changed since it began.
pub const BROKEN_LIMIT: Time = Time::from_secs(5);

/// What the origin knows of one of its streams, to decide when another stream replaces it.
///
/// A stream keeps its tree. Another stream replaces it in two cases:
///
/// - The origin wants another tree: other hosts, another shape, or another life of a host.
/// - The stream is broken: some host of the tree gets no more of it. It is replaced as soon as paths have changed since it began. If
///   none changes, it is replaced when it is [`BROKEN_LIMIT`] old, so that a stream that breaks at once is not replaced in a loop.
#[derive(Clone, Debug)]
pub struct StreamHealth {
    begun: Time,
    /// The version of the paths when the stream began ([`PathTable::version`](crate::PathTable::version)). None: it does not matter.
    version: Option<u64>,
    is_broken: bool,
}

impl StreamHealth {
    /// A stream that begins now. `version`: of the paths.
    pub fn new(version: u64, now: Time) -> StreamHealth {
        StreamHealth {
            begun: now,
            version: Some(version),
            is_broken: false,
        }
    }

    /// Records that a host of the tree gets no more of the stream.
    pub fn set_broken(&mut self) {
        self.is_broken = true;
    }

    /// Records that the root of the tree restarted, and forwards nothing more. This stream is replaced at once.
    pub fn root_restarted(&mut self) {
        (self.is_broken, self.version) = (true, None);
    }

    /// Whether a host of the tree gets no more of the stream.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether another stream has to replace this one now. `is_wanted`: the tree is the one that the origin wants, with the same lives.
    pub fn is_to_be_replaced(&self, is_wanted: bool, version: u64, now: Time) -> bool {
        let has_changed = self.version != Some(version);
        let is_old = now.saturating_sub(self.begun) >= BROKEN_LIMIT;
        !is_wanted || self.is_broken && (has_changed || is_old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_secs(1);

    #[test]
    fn a_stream_stays_while_its_tree_is_wanted_and_whole() {
        let stream = StreamHealth::new(7, NOW);
        assert!(!stream.is_to_be_replaced(true, 7, NOW));
        assert!(!stream.is_to_be_replaced(true, 8, NOW + 2 * BROKEN_LIMIT));
        assert!(stream.is_to_be_replaced(false, 7, NOW));
    }

    #[test]
    fn a_broken_stream_waits_for_other_paths_or_its_limit() {
        let mut stream = StreamHealth::new(7, NOW);
        stream.set_broken();
        let before = NOW + BROKEN_LIMIT - Time::from_nanos(1);
        assert!(!stream.is_to_be_replaced(true, 7, before));
        assert!(stream.is_to_be_replaced(true, 8, NOW));
        assert!(stream.is_to_be_replaced(true, 7, NOW + BROKEN_LIMIT));
    }

    #[test]
    fn a_stream_whose_root_restarted_is_replaced_at_once() {
        let mut stream = StreamHealth::new(7, NOW);
        stream.root_restarted();
        assert!(stream.is_broken() && stream.is_to_be_replaced(true, 7, NOW));
    }
}
