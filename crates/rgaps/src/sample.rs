//! A received block.

use crate::client::PoolMapping;
use crate::subscriber::SubscriberCore;
use crate::tensor::check_extent;
use crate::RecvError;
use rgaps_layout::Domain;
use rgaps_pool::{Mapping, Stream};
use rgaps_topic::{Held, Message, Shared, Tensor};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A message that this process holds: its bytes are not changed or reused before the last clone
/// is dropped.
pub struct Sample {
    pub(crate) subscriber: Arc<SubscriberCore>,
    /// The same hold in all clones; the last of them lets go.
    pub(crate) held: ManuallyDrop<Held<Shared>>,
    /// Index of the clones' count.
    pub(crate) hold: u32,
    pub(crate) message: Message,
    pub(crate) publisher: u32,
    pub(crate) incarnation: u64,
    pub(crate) sequence: u64,
    pub(crate) missed: u64,
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("topic", &self.subscriber.topic_name())
            .field("sequence", &self.sequence)
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl Sample {
    fn mapping(&self) -> &PoolMapping {
        self.subscriber.mapping(self.message.pool)
    }

    /// Bytes of payload.
    pub fn len(&self) -> u64 {
        self.message.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.message.bytes == 0
    }

    /// Where the bytes live.
    pub fn domain(&self) -> Domain {
        self.mapping().domain()
    }

    /// Address of the first byte in this process: a host pointer, or a `CUdeviceptr`. Readable,
    /// not writable, as long as a clone of the sample lives.
    pub fn address(&self) -> u64 {
        self.mapping().base() + self.message.offset
    }

    /// The bytes, of a sample in host memory.
    pub fn as_slice(&self) -> Result<&[u8], RecvError> {
        self.subscriber.guard.check()?;
        if self.domain() != Domain::Host {
            return Err(RecvError::Untrusted {
                topic: self.subscriber.topic_name().to_owned(),
                reason: format!(
                    "its bytes are in {}; use address() or read()",
                    self.domain()
                ),
            });
        }
        // SAFETY: the range was found to lie in the mapping when the sample was taken, and the
        // mapping lives as long as the sample. Members of a realm trust each other with payloads:
        // the publisher does not write a block that it has published until all holders let go.
        Ok(unsafe {
            std::slice::from_raw_parts(self.address() as *const u8, self.message.bytes as usize)
        })
    }

    /// Copies bytes from `at` on to the host; returns when they are there.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), RecvError> {
        self.subscriber.guard.check()?;
        let end = at.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.message.bytes) {
            return Err(RecvError::Pool(rgaps_pool::PoolError::OutOfRange {
                offset: at,
                end: at.saturating_add(bytes.len() as u64),
                mapped: self.message.bytes,
            }));
        }
        Ok(self.mapping().read(self.message.offset + at, bytes)?)
    }

    /// Shape and element type, of a message that is a tensor and lies within its bytes.
    pub fn tensor(&self) -> Option<&Tensor> {
        let tensor = self.message.tensor.as_ref()?;
        check_extent(tensor, self.message.bytes).ok()?;
        Some(tensor)
    }

    /// The publisher's number of the user's own.
    pub fn tag(&self) -> u64 {
        self.message.tag
    }

    /// The message's number among its publisher's, from 0.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Messages of this publisher that this subscriber missed just before this one.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Slot of the publisher in the topic.
    pub fn publisher_slot(&self) -> u32 {
        self.publisher
    }

    /// A random number that is the publisher's own.
    pub fn publisher_id(&self) -> u64 {
        self.incarnation
    }

    /// `CLOCK_MONOTONIC` in nanoseconds when publish was called.
    pub fn publish_ns(&self) -> u64 {
        self.message.publish_ns
    }

    /// Waits on the CPU until the work queued on `stream` so far has finished. On host memory the
    /// stream is not used.
    pub fn synchronize(&self, stream: Stream) -> Result<(), RecvError> {
        if self.domain() != Domain::Host && !self.subscriber.guard.is_child() {
            self.mapping().synchronize(stream)?;
        }
        Ok(())
    }

    /// Drops this clone when the work queued on `stream` so far has finished, which this call
    /// waits for on the CPU. Where that fails the clone is dropped all the same; use
    /// [`synchronize`](Self::synchronize) first to keep it then.
    pub fn release_on(self, stream: Stream) -> Result<(), RecvError> {
        self.synchronize(stream)
    }
}

impl Clone for Sample {
    fn clone(&self) -> Self {
        self.subscriber.holds.add(self.hold);
        Sample {
            subscriber: self.subscriber.clone(),
            held: ManuallyDrop::new(self.held.duplicate()),
            ..*self
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used again.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        if self.subscriber.guard.is_child() || !self.subscriber.holds.remove(self.hold) {
            return;
        }
        if self.domain() != Domain::Host {
            // Work on the default stream may still read the block. Where the wait fails the
            // context is lost, and with it the work.
            let _ = self.mapping().synchronize(Stream(0));
        }
        held.release();
        self.subscriber.let_go(self.hold);
    }
}
