//! Admits a subscriber to a topic: the daemon's part of joining.

use crate::{Storage, TopicView};
use rgaps_layout::MAX_PUBLISHERS;
use rgaps_sync::atomic::{fence, Ordering};

/// How to admit a subscriber.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Reliable publishers wait for the subscriber.
    pub reliable: bool,
    /// The subscriber begins with the oldest kept message of publishers that keep their history.
    pub late: bool,
    /// The publisher slots that match it. Bit n: slot n.
    pub matched: u64,
    /// The new value of `membership_epoch`.
    pub epoch: u32,
}

/// Makes the publishers that match subscriber `index` wait for it, if it is reliable, and sets its cursors: to the next message, or to
/// the oldest kept one. Raises the epoch. The caller sets the subscriber's bit in the topic after this: a matching publisher that sees
/// the bit and then publishes reaches the subscriber.
///
/// Before each message, a publisher checks once for which subscribers it must wait. So it may still remove messages that a subscriber
/// wants which joined after that check. Therefore this sets the subscriber's bits first, with cursors at the oldest messages, and loads
/// the publishers' heads behind a fence. A publisher whose message is not in its head by then sees the bits when it checks for its next
/// message, and until then removes no message from its current one on (SYNC: admit).
pub fn admit_subscriber<S: Storage>(topic: &TopicView<S>, index: usize, admission: Admission) {
    let Admission {
        reliable,
        late,
        matched,
        epoch,
    } = admission;
    let slot = topic.subscriber(index);
    let matches = |publisher: usize| matched >> publisher & 1 != 0;
    for publisher in 0..MAX_PUBLISHERS {
        let words = topic.publisher(publisher);
        let tail = words.tail().load(Ordering::Acquire);
        slot.cursor(publisher).store(tail, Ordering::Relaxed);
        if matches(publisher) {
            // Before the subscriber is in any of the topic's masks, so that a publisher that finds it there finds the pair matched
            // (SYNC: matched).
            words.matched().fetch_or(1 << index, Ordering::Release);
        }
    }
    if reliable {
        topic.reliable().fetch_or(1 << index, Ordering::Release);
    }
    topic.membership_epoch().store(epoch, Ordering::Release);
    fence(Ordering::SeqCst);
    for publisher in 0..MAX_PUBLISHERS {
        let words = topic.publisher(publisher);
        // Relaxed: the daemon, which calls this, wrote the word itself.
        let keeps = || words.transient_local().load(Ordering::Relaxed) != 0;
        if !(late && matches(publisher) && keeps()) {
            let head = words.head().load(Ordering::Acquire);
            slot.cursor(publisher).store(head, Ordering::Release);
        }
    }
}
