//! Doorbells: futex words that wake sleeping members.
//!
//! A sleeper announces its sleep, checks once more, and only then sleeps until its doorbell changes. A waker publishes its change, then
//! looks for sleepers. Both put a sequentially consistent fence between the two steps, so at least one sees the other (SYNC: sleep).

use crate::holder::SUBSCRIBERS;
use crate::step::step;
use crate::view::doorbell;
use crate::{PublisherView, Storage, TopicView};
use rgaps_layout::{MAX_PUBLISHERS, MAX_SUBSCRIBERS};
use rgaps_sync::atomic::{fence, AtomicU32, Ordering};
use rgaps_sync::{futex_wake_all, prefetch_for_write};

/// Rings doorbell `index` of the control segment, if there is such a doorbell.
pub fn ring<S: Storage>(storage: &S, index: u32) {
    if let Some(word) = doorbell(storage, index) {
        word.fetch_add(1, Ordering::Release);
        futex_wake_all(word);
    }
}

/// Wakes the subscribers that match `publisher` and sleep. Call it after announcing a message. Returns their slots as a mask.
#[inline]
pub fn ring_sleepers<S: Storage>(topic: &TopicView<S>, publisher: &PublisherView<S>) -> u64 {
    fence(Ordering::SeqCst);
    // Acquire: the daemon matched a subscriber before that could announce a sleep (SYNC: matched).
    let mut asleep = topic.sleepers().load(Ordering::Acquire);
    if asleep != 0 {
        asleep &= publisher.matched().load(Ordering::Relaxed) & SUBSCRIBERS;
        ring_each(topic, asleep);
    }
    asleep
}

/// Wakes one subscriber that matches `publisher` before the message is announced, if all matching ones sleep: the kernel takes longer to
/// wake it than the caller to publish. A subscriber that wakes too early sleeps again. Callers must call [`ring_sleepers`] later in any
/// case. Does nothing if a subscriber is awake, since that one gets the message sooner. Returns the woken slot as a mask.
#[inline]
pub fn ring_ahead<S: Storage>(topic: &TopicView<S>, publisher: &PublisherView<S>) -> u64 {
    let matched = publisher.matched().load(Ordering::Relaxed) & SUBSCRIBERS;
    let asleep = topic.sleepers().load(Ordering::Relaxed) & matched;
    if asleep == 0 || topic.subscribers().load(Ordering::Relaxed) & matched & !asleep != 0 {
        return 0;
    }
    let first = asleep & asleep.wrapping_neg();
    ring_each(topic, first);
    first
}

/// Decides whether to ring ahead. That is useless if the woken subscriber runs before the message is announced and sleeps again, for
/// example on the publisher's own core when all others are busy. After each failure this doubles the messages without ringing ahead.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Foresight {
    /// For how many further messages not to ring ahead.
    rests: u32,
    /// The last such number.
    rested: u32,
}

impl Foresight {
    const RESTS_MAX: u32 = 1023;

    /// Whether to ring ahead this time. Call it only if a subscriber sleeps.
    pub(crate) fn advises(&mut self) -> bool {
        let rests = self.rests;
        self.rests = rests.saturating_sub(1);
        rests == 0
    }

    /// Records whether ringing ahead woke a subscriber too early.
    pub(crate) fn learn(&mut self, was_too_early: bool) {
        self.rested = match was_too_early {
            true => (self.rested * 2 + 1).min(Self::RESTS_MAX),
            false => self.rested / 4,
        };
        self.rests = if was_too_early { self.rested } else { 0 };
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
        fetch_bell(topic, index);
        // Of several publishers, the one that clears the bit rings. Acquire: the doorbell that the sleeper chose before it set its bit
        // is visible.
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

/// Prefetches the cache line of a sleeper's doorbell, so that it arrives while the caller clears the sleeper's bit. The caller must read
/// the doorbell's index again after that.
#[inline]
fn fetch_bell<S: Storage>(topic: &TopicView<S>, index: u32) {
    if cfg!(loom) {
        // A load without effect would only add interleavings to the model.
        return;
    }
    let subscriber = topic.subscriber(index as usize);
    let bell = subscriber.doorbell().load(Ordering::Relaxed);
    if let Some(word) = doorbell(topic.storage(), bell) {
        prefetch_for_write(word);
    }
}

/// Wakes the publishers in the mask `among` that wait for room in their history.
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
    /// Reads the count of doorbell `index`. None: there is no such doorbell.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Foresight;

    #[test]
    fn ringing_ahead_is_given_up_where_it_does_not_help_and_tried_again() {
        let mut foresight = Foresight::default();
        let mut rung = |was_too_early: bool, messages: u32| {
            let rung = (0..messages).filter(|_| {
                let rings = foresight.advises();
                if rings {
                    foresight.learn(was_too_early);
                }
                rings
            });
            rung.count()
        };
        assert_eq!(rung(false, 100), 100);
        // After 1, 3, 7 ... 1023 rests.
        assert_eq!(rung(true, 2048), 11);
        assert!(rung(true, 102_400) <= 100);
        // At most one rest more when it helps.
        assert!(rung(false, 2048) >= 1024);
        assert_eq!(rung(false, 100), 100);
    }
}
