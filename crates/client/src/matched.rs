//! Match events: a listener calls a handler when matching publishers or subscribers join or leave, as with DDS's
//! PublicationMatched and SubscriptionMatched, and ROS 2's matched event.
//!
//! The daemon raises the topic's epoch in the control segment whenever a member joins or leaves, also on another host, and
//! wakes all threads that sleep on it. A listener's thread sleeps there, then compares the matching members with those of its
//! last event.

use crate::client::{ClientError, ForkGuard, ZoneView};
use crate::Listener;
use rgaps_layout::WAIT_SLICE_NS;
use rgaps_sync::atomic::Ordering;
use rgaps_sync::{futex_wait, futex_wake_all};
use rgaps_topic::{Shared, TopicView};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

/// How many members of the other side match, and what has changed since the handler's last call. The names of the fields are
/// those of ROS 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// How many members match now.
    pub current_count: u32,
    /// The change of `current_count` since the last call; negative if fewer members match.
    pub current_count_change: i32,
    /// How many members have matched since the listener began. May omit a member that joined and left between two calls.
    pub total_count: u64,
    /// How many members of `total_count` have joined since the last call.
    pub total_count_change: u32,
}

/// The members of the other side that match: incarnation, and how many members it counts for.
pub(crate) type Members = BTreeMap<u64, u32>;

/// The members as of the handler's last call.
#[derive(Default)]
struct Known {
    members: Members,
    total: u64,
}

impl Known {
    /// Records the members that match now. Returns the change since the last call; None: nothing has changed.
    fn note(&mut self, now: Members) -> Option<Matched> {
        let beyond = |these: &Members, others: &Members| {
            let more = |(id, count): (&u64, &u32)| {
                count.saturating_sub(others.get(id).copied().unwrap_or(0))
            };
            these.iter().map(more).fold(0, u32::saturating_add)
        };
        let (came, left) = (beyond(&now, &self.members), beyond(&self.members, &now));
        if (came, left) == (0, 0) {
            return None;
        }
        self.total += u64::from(came);
        let current = now.values().copied().fold(0, u32::saturating_add);
        self.members = now;
        Some(Matched {
            current_count: current,
            current_count_change: (i64::from(came) - i64::from(left)) as i32,
            total_count: self.total,
            total_count_change: came,
        })
    }
}

/// The publisher or subscriber whose matching members a listener watches.
pub(crate) struct Watched<C> {
    /// The publisher or subscriber; the listener ends with it.
    pub(crate) core: Weak<C>,
    pub(crate) topic: TopicView<Shared>,
    /// Keeps the topic mapped.
    pub(crate) zone: Arc<ZoneView>,
    /// Returns the members that match; None when the publisher or subscriber is closed.
    pub(crate) members: fn(&C) -> Option<Members>,
}

impl<C: Send + Sync + 'static> Watched<C> {
    /// Starts a thread that calls `handler` with the members that match already, if any, and then with each change.
    pub(crate) fn listen(
        self,
        guard: &ForkGuard,
        handler: impl FnMut(Matched) + Send + 'static,
    ) -> Result<Listener, ClientError> {
        let (topic, zone) = (self.topic.clone(), self.zone.clone());
        let wake = move || {
            let _mapped = &zone;
            futex_wake_all(topic.membership_epoch());
        };
        Listener::start(guard, Some(Box::new(wake)), move |stop| {
            self.run(stop, handler)
        })
    }

    fn run(self, stop: &AtomicBool, mut handler: impl FnMut(Matched)) {
        let mut known = Known::default();
        while !stop.load(Ordering::Relaxed) {
            let epoch = self.topic.membership_epoch().load(Ordering::Acquire);
            let core = self.core.upgrade();
            let Some(members) = core.and_then(|core| (self.members)(&core)) else {
                return;
            };
            match known.note(members) {
                Some(matched) => handler(matched),
                None => {
                    futex_wait(self.topic.membership_epoch(), epoch, WAIT_SLICE_NS);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(matched: Option<Matched>) -> Option<(u32, i32, u64, u32)> {
        matched.map(|m| {
            (
                m.current_count,
                m.current_count_change,
                m.total_count,
                m.total_count_change,
            )
        })
    }

    #[test]
    fn changes_are_counted_also_where_the_number_stays() {
        let mut known = Known::default();
        let mut note =
            |members: &[(u64, u32)]| counts(known.note(members.iter().copied().collect()));
        assert_eq!(note(&[]), None);
        assert_eq!(note(&[(7, 1)]), Some((1, 1, 1, 1)));
        assert_eq!(note(&[(7, 1)]), None);
        // One left, another joined.
        assert_eq!(note(&[(8, 1)]), Some((1, 0, 2, 1)));
        // A member of the links stands for members on other hosts, of which there may be none.
        assert_eq!(note(&[(8, 1), (9, 0)]), None);
        assert_eq!(note(&[(8, 1), (9, 3)]), Some((4, 3, 5, 3)));
        assert_eq!(note(&[(9, 1)]), Some((1, -3, 5, 0)));
        assert_eq!(note(&[]), Some((0, -1, 5, 0)));
    }
}
