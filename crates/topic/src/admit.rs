//! The daemon's part when a subscriber comes.

use crate::{Storage, TopicView};
use rgaps_layout::MAX_PUBLISHERS;
use rgaps_sync::atomic::{fence, Ordering};

/// Makes the publishers wait for subscriber `index`, if it is `reliable`, and puts its cursors
/// where it begins: with what comes next, if it is `live`, or with the oldest that is kept. Raises
/// the epoch to `epoch`. Its bit among the subscribers comes after this: whoever sees that bit and
/// then publishes reaches it.
///
/// A publisher looks whom it has to wait for before each message and does not look again, so it may
/// push out what a subscriber wants that came meanwhile. Therefore the bit comes first, with
/// cursors that allow nothing, and what comes next is looked up behind a fence: a publisher whose
/// message we do not see announced by then sees the bit when it looks for the one after it, and
/// until then pushes out nothing from its own message on (SYNC: admit).
pub fn admit_subscriber<S: Storage>(
    topic: &TopicView<S>,
    index: usize,
    reliable: bool,
    live: bool,
    epoch: u32,
) {
    let slot = topic.subscriber(index);
    for publisher in 0..MAX_PUBLISHERS {
        let tail = topic.publisher(publisher).tail().load(Ordering::Acquire);
        slot.cursor(publisher).store(tail, Ordering::Relaxed);
    }
    if reliable {
        topic.reliable().fetch_or(1 << index, Ordering::Release);
    }
    topic.membership_epoch().store(epoch, Ordering::Release);
    fence(Ordering::SeqCst);
    if live {
        for publisher in 0..MAX_PUBLISHERS {
            let head = topic.publisher(publisher).head().load(Ordering::Acquire);
            slot.cursor(publisher).store(head, Ordering::Release);
        }
    }
}
