//! The subscribers that match a publisher: how many, waiting for them, and their coming and going.

use super::{Publisher, PublisherCore};
use crate::matched::Watched;
use crate::pending::Deadline;
use crate::{ClientError, Listener, Matched};
use rgaps_layout::{MAX_SUBSCRIBERS, WAIT_SLICE_NS};
use rgaps_sync::atomic::Ordering;
use rgaps_sync::futex_wait;
use std::sync::Arc;

impl Publisher {
    /// Calls `handler` with the subscribers that match already, if there are any, and then whenever subscribers come or go,
    /// in a thread of its own until the listener is dropped or the publisher has left the topic. Subscribers on other hosts
    /// count, and observers such as `rgaps topic echo`.
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
    /// Of some subscribers of the topic, those that read this publisher. Look these up first: a subscriber is
    /// matched before it is in any of the topic's masks.
    #[inline]
    pub(super) fn matched(&self, among: u64) -> u64 {
        const ALL: u64 = (1 << MAX_SUBSCRIBERS) - 1;
        match among {
            0 => 0,
            _ => among & ALL & self.slot().matched().load(Ordering::Acquire),
        }
    }

    /// Subscribers that match, by their random numbers, and how many each counts for.
    fn members(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let matched = self.matched(self.topic.subscribers().load(Ordering::Acquire));
        let slots = (0..MAX_SUBSCRIBERS).filter(move |slot| matched >> slot & 1 != 0);
        slots.map(|slot| {
            let subscriber = self.topic.subscriber(slot);
            // Subscribers on other hosts have one among them that stands for them.
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
