//! Doorbells: waking who sleeps.
//!
//! A sleeper says that it sleeps, looks once more, and only then sleeps until its doorbell
//! changes. Who has news publishes them, then looks for sleepers. Both put a sequentially
//! consistent fence between their two steps, so at least one sees the other (SYNC: sleep).

use crate::step::step;
use crate::view::doorbell;
use crate::{Storage, TopicView};
use rgaps_layout::{MAX_PUBLISHERS, MAX_SUBSCRIBERS};
use rgaps_sync::atomic::{fence, AtomicU32, Ordering};
use rgaps_sync::futex_wake_all;

/// Rings doorbell `index` of the control segment, if there is such a doorbell.
pub fn ring<S: Storage>(storage: &S, index: u32) {
    if let Some(word) = doorbell(storage, index) {
        word.fetch_add(1, Ordering::Release);
        futex_wake_all(word);
    }
}

/// Rings for the subscribers in `among` that sleep. Call it after the news are out.
#[inline]
pub fn ring_sleepers<S: Storage>(topic: &TopicView<S>, among: u64) {
    fence(Ordering::SeqCst);
    let asleep = topic.sleepers().load(Ordering::Relaxed) & among;
    if asleep != 0 {
        ring_each(topic, asleep);
    }
}

/// Rings for one subscriber before the news are out, if all of them sleep: waking takes the kernel
/// longer than publishing takes the caller. Who wakes too early sleeps again, and is rung for again
/// by [`ring_sleepers`], which this never replaces. If anyone is awake it gets the news first.
#[inline]
pub fn ring_ahead<S: Storage>(topic: &TopicView<S>) {
    let asleep = topic.sleepers().load(Ordering::Relaxed);
    let subscribers = topic.subscribers().load(Ordering::Relaxed);
    if asleep != 0 && subscribers & !asleep == 0 {
        ring_each(topic, asleep & asleep.wrapping_neg());
    }
}

#[cold]
fn ring_each<S: Storage>(topic: &TopicView<S>, mut asleep: u64) {
    while asleep != 0 {
        let index = asleep.trailing_zeros();
        asleep &= asleep - 1;
        if index as usize >= MAX_SUBSCRIBERS {
            return;
        }
        // Of several that have news, one rings. Acquire: the doorbell that the sleeper chose
        // before it set its bit is visible.
        if topic.sleepers().fetch_and(!(1 << index), Ordering::AcqRel) >> index & 1 != 0 {
            step!("wake.cleared");
            let bell = topic
                .subscriber(index as usize)
                .doorbell()
                .load(Ordering::Relaxed);
            ring(topic.storage(), bell);
        }
    }
}

/// Rings for the publishers in `among` that wait for subscribers to read on.
#[inline]
pub fn ring_publishers<S: Storage>(topic: &TopicView<S>, among: u64) {
    fence(Ordering::SeqCst);
    let mut blocked = topic.blocked().load(Ordering::Relaxed) & among;
    while blocked != 0 {
        let index = blocked.trailing_zeros();
        blocked &= blocked - 1;
        if index as usize >= MAX_PUBLISHERS {
            return;
        }
        if topic.blocked().fetch_and(!(1 << index), Ordering::AcqRel) >> index & 1 != 0 {
            step!("wake.publisher");
            let bell = topic
                .publisher(index as usize)
                .doorbell()
                .load(Ordering::Relaxed);
            ring(topic.storage(), bell);
        }
    }
}

/// A doorbell that its owner is about to sleep on.
///
/// ```text
/// let sleeper = Sleeper::new(storage, doorbell);   // 1. remember the doorbell's count
/// reader.announce_sleep();                         // 2. say so, fence
/// if nothing to do { sleeper.sleep(timeout) }      // 3. look again, then sleep
/// ```
pub struct Sleeper<'a> {
    word: &'a AtomicU32,
    rings: u32,
}

impl<'a> Sleeper<'a> {
    /// Remembers how often doorbell `index` has been rung. None: there is no such doorbell.
    pub fn new<S: Storage>(storage: &'a S, index: u32) -> Option<Sleeper<'a>> {
        let word = doorbell(storage, index)?;
        Some(Sleeper {
            word,
            rings: word.load(Ordering::Acquire),
        })
    }

    /// Sleeps until the doorbell is rung, at most `timeout_ns`.
    pub fn sleep(&self, timeout_ns: u64) -> rgaps_sync::Wake {
        rgaps_sync::futex_wait(self.word, self.rings, timeout_ns)
    }

    /// The word and its remembered value, for a wait on several.
    pub fn word(&self) -> (&'a AtomicU32, u32) {
        (self.word, self.rings)
    }
}
