//! The counters of a channel.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        #[derive(Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
        }

        /// A channel's counters since it was created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ChannelCounts {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        /// Adds the counters of another channel, also those of the most at one time.
        impl AddAssign for ChannelCounts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl Counts {
            pub(crate) fn read(&self) -> ChannelCounts {
                ChannelCounts {
                    $($name: self.$name.0.load(Relaxed),)*
                }
            }
        }
    };
}

/// A counter that never decreases.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(crate) fn most(&self, value: u64) {
        self.0.fetch_max(value, Relaxed);
    }
}

counts! {
    /// Frames sent.
    frames_sent,
    /// Their bytes, without headers.
    bytes_sent,
    /// Frames received.
    frames_received,
    /// Their bytes, without headers.
    bytes_received,
    /// Direct writes sent.
    directs_sent,
    /// Their bytes.
    direct_bytes_sent,
    /// Frames and notices whose bytes were copied into the work request.
    inlined,
    /// Work requests posted.
    works,
    /// Calls that posted them.
    doorbells,
    /// Attempts to send that lacked bytes of the ring.
    stalls_ring,
    /// Attempts to send that lacked receives of the peer.
    stalls_receives,
    /// Attempts to send that lacked slots of the send queue.
    stalls_sends,
    /// Stall notices sent.
    stall_notices,
    /// Credits returned without a notice.
    heads_returned,
    /// Credits returned with a notice, to a peer that stalls.
    heads_noticed,
    /// The most works in flight at one time; never more than the send queue has slots.
    works_in_flight_most,
    /// The most writes with immediate data in flight at one time; never more than the peer has receives.
    notices_in_flight_most,
    /// Times that [`crate::Channel::serve`] slept.
    sleeps,
    /// Works and receives that were flushed when it ended.
    flushed,
    /// 1: when the channel ended, the device did not flush all works and receives in time.
    not_drained,
}
