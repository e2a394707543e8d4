//! The subscribers that match a publisher: counts them, waits for them, and reports changes to a listener.

use super::{Publisher, PublisherCore};
use crate::matched::Watched;
use crate::pending::Deadline;
use crate::{ClientError, Listener, Matched};
use rgaps_layout::{MAX_SUBSCRIBERS, WAIT_SLICE_NS};
use rgaps_sync::atomic::Ordering;
use rgaps_sync::futex_wait;
use std::sync::Arc;

impl Publisher {
    /// Calls `handler` in a thread of its own: first with the subscribers that match already, if any, then whenever matching
    /// subscribers join or leave. Ends when the listener is dropped or the publisher has left the topic. Subscribers on other
    /// hosts and observers such as `rgaps topic echo` count. Fails if the thread cannot be started.
    pub fn on_matched(
        &self,
        handler: impl FnMut(Matched) + Send + 'static,
    ) -> Result<Listener, ClientError> {
        let watched = Watched {
            core: Arc::downgrade(&self.core),
            topic: self.core.topic.clone(),
            zone: self.core.client.zone.clone(),
            members: |core: &PublisherCore| Some(core.members().collect()),
        };
        watched.listen(&self.core.guard, handler)
    }
}

impl PublisherCore {
    /// Those of the subscribers `among` (a mask of slots, loaded from the topic) that match this publisher. The caller loads
    /// `among` first: the daemon matches a subscriber before it adds it to any of the topic's masks.
    #[inline]
    pub(super) fn matched(&self, among: u64) -> u64 {
        const ALL: u64 = (1 << MAX_SUBSCRIBERS) - 1;
        match among {
            0 => 0,
            _ => among & ALL & self.slot().matched().load(Ordering::Acquire),
        }
    }

    /// The incarnation of each subscriber that matches, and how many subscribers it counts for.
    fn members(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let matched = self.matched(self.topic.subscribers().load(Ordering::Acquire));
        let slots = (0..MAX_SUBSCRIBERS).filter(move |slot| matched >> slot & 1 != 0);
        slots.map(|slot| {
            let subscriber = self.topic.subscriber(slot);
            // A subscriber of the links stands for all subscribers on other hosts: its slot has their number plus one.
            let count = match subscriber.stands_for().load(Ordering::Relaxed) {
                0 => 1,
                others => others - 1,
            };
            (subscriber.incarnation().load(Ordering::Relaxed), count)
        })
    }

    pub(super) fn subscribers(&self) -> u32 {
        let counts = self.members().map(|(_, count)| count);
        counts.fold(0, u32::saturating_add)
    }

    pub(super) fn wait_for_subscribers(
        &self,
        n: u32,
        deadline: Deadline,
    ) -> Result<bool, ClientError> {
        self.guard.check()?;
        loop {
            let epoch = self.topic.membership_epoch().load(Ordering::Acquire);
            if self.subscribers() >= n {
                return Ok(true);
            }
            let Some(left_ns) = deadline.left_ns() else {
                return Ok(false);
            };
            futex_wait(
                self.topic.membership_epoch(),
                epoch,
                left_ns.min(WAIT_SLICE_NS),
            );
        }
    }
}
