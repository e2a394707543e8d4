//! What the bindings for Python and C need besides the interface of the crate `rgaps`, which does not export it. Recordings and
//! bridges need some of it, too: they publish messages that others have published before.
//!
//! Python waits for slow subscribers by itself, so that it can release its global lock and look for signals meanwhile; it
//! then publishes without waiting. Both languages read and copy what lies beside a loan that is still being filled.

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

    /// Publishes; when the deadline of slow reliable subscribers is over, tries again as long as `goes_on` says so.
    fn publish_while(self, goes_on: impl Fn() -> bool) -> Result<u64, Unpublished>;
}

/// What a caller who waits for slow subscribers by itself asks a [`Publisher`](crate::Publisher).
#[doc(hidden)]
pub trait PatientPublisher {
    /// The error that a publish of `bytes` bytes would return if its deadline were over now; `None` if it would succeed.
    fn overdue(&self, bytes: u64) -> Option<PublishError>;
}

/// A [`Loan`](crate::Loan) or a [`Sample`](crate::Sample).
#[doc(hidden)]
pub trait WithMetadata {
    /// Attachment and parts as they lie beside the message.
    fn metadata(&self) -> Option<&Metadata>;
}

/// A [`Loan`](crate::Loan), which takes over what lay beside another message.
#[doc(hidden)]
pub trait SetMetadata {
    /// Takes over the attachment and the parts of another message, as they lay beside it. False: they are not what their
    /// lengths say.
    fn set_metadata(&mut self, lengths: MetadataLengths, bytes: &[u8]) -> bool;

    /// Takes over all that lay beside another message: its tag, its array, its attachment and parts. An error: why they cannot
    /// lie beside this one, in words.
    fn set_beside(&mut self, beside: &Beside) -> Result<(), String>;
}
