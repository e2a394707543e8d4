//! The daemon's part when a subscriber comes.

use crate::{Storage, TopicView};
use rgaps_layout::MAX_PUBLISHERS;
use rgaps_sync::atomic::{fence, Ordering};

/// What the daemon knows of a subscriber that it admits.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Publishers that offer it wait for the subscriber.
    pub reliable: bool,
    /// It begins with the oldest message that is kept, of publishers that keep their history.
    pub late: bool,
    /// Publisher slots that match it.
    pub matched: u64,
    /// What `membership_epoch` becomes.
    pub epoch: u32,
}

/// Makes the publishers that match subscriber `index` wait for it, if it is reliable, and puts its
/// cursors where it begins: with what comes next, or with the oldest message that is kept. Raises
/// the epoch. Its bit among the subscribers comes after this: whoever sees that bit and then
/// publishes reaches it, if the two match.
///
/// A publisher looks whom it has to wait for before each message and does not look again, so it may
/// push out what a subscriber wants that came meanwhile. Therefore the bits come first, with
/// cursors that allow nothing, and what comes next is looked up behind a fence: a publisher whose
/// message we do not see announced by then sees the bits when it looks for the one after it, and
/// until then pushes out nothing from its own message on (SYNC: admit).
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
            // Before the subscriber is in any mask: a publisher that finds it there finds the pair
            // matched, too (SYNC: matched).
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
        // Relaxed: the daemon, which calls this, wrote it itself.
        let keeps = || words.transient_local().load(Ordering::Relaxed) != 0;
        if !(late && matches(publisher) && keeps()) {
            let head = words.head().load(Ordering::Acquire);
            slot.cursor(publisher).store(head, Ordering::Release);
        }
    }
}
