//! Methods for the bindings of Python and C, which the crate `rgaps` does not export. Recordings and bridges use some of them
//! to publish messages again that others have published.
//!
//! Python waits for slow subscribers by itself, so that it can release its global lock and handle signals meanwhile; it
//! then publishes without waiting. Both languages read and copy the metadata of a loan that is still being filled.

pub use crate::beside::Beside;
pub use crate::qos::Patience;

use crate::{PublishError, Unpublished};
use rgaps_layout::MetadataLengths;
use rgaps_pool::Stream;
use rgaps_topic::Metadata;

/// Publishing of a [`Loan`](crate::Loan) by a caller who waits for slow subscribers by itself.
#[doc(hidden)]
pub trait PatientLoan {
    /// Publishes behind the work queued on `stream`; `patience` says how long to wait for slow reliable subscribers.
    fn publish_with(self, stream: Stream, patience: Patience) -> Result<u64, Unpublished>;

    /// Publishes. Tries again after each [`PublishError::BackPressured`] as long as `goes_on` returns true.
    fn publish_while(self, goes_on: impl Fn() -> bool) -> Result<u64, Unpublished>;
}

/// A [`Publisher`](crate::Publisher), for a caller that waits for slow subscribers by itself.
#[doc(hidden)]
pub trait PatientPublisher {
    /// The error that a publish of `bytes` bytes would return if its deadline were over now; `None` if it would succeed.
    fn overdue(&self, bytes: u64) -> Option<PublishError>;
}

/// A [`Loan`](crate::Loan) or a [`Sample`](crate::Sample).
#[doc(hidden)]
pub trait WithMetadata {
    /// The encoded attachment and parts. None: the message has neither.
    fn metadata(&self) -> Option<&Metadata>;
}

/// A [`Loan`](crate::Loan) that gets the metadata of another message.
#[doc(hidden)]
pub trait SetMetadata {
    /// Sets the encoded attachment and parts of another message. False: `bytes` does not fit `lengths`, and nothing is set.
    fn set_metadata(&mut self, lengths: MetadataLengths, bytes: &[u8]) -> bool;

    /// Sets tag, tensor, attachment and parts of another message. An error says why they do not fit this loan.
    fn set_beside(&mut self, beside: &Beside) -> Result<(), String>;
}
