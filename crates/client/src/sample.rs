//! [`Sample`]: a received message.

use crate::bindings::WithMetadata;
use crate::client::PoolMapping;
use crate::pending::{Deadline, Pause};
use crate::reading::Private;
use crate::subscriber::SubscriberCore;
use crate::tensor::check_extent;
use crate::{Header, HeaderError, Part, Parts, RecvError};
use rgaps_cuda::CudaError;
use rgaps_layout::{Domain, POINT_ABORTED};
use rgaps_pool::{Mapping, Stream};
use rgaps_topic::{bytes_there, progress, Held, Message, Metadata, Progress, Shared, Tensor};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A received message. Its bytes do not change and its block is not reused before the last clone of the sample is
/// dropped. A sample counts against [`max_held`](crate::SubscriberQos::max_held); clones of it do not.
pub struct Sample {
    /// This process's own copy of a message that it cannot read in place. None: the sample is the publisher's block or a replica.
    pub(crate) private: Option<Arc<Private>>,
    /// Whether this clone found that the work that writes the bytes has finished.
    pub(crate) whole: AtomicBool,
    /// How many bytes, from the first on, this clone found to be complete.
    pub(crate) there: AtomicU64,
    /// Bytes of each part of a replica that is copied in parts; 0 for one that is not.
    pub(crate) part_bytes: u64,
    pub(crate) subscriber: Arc<SubscriberCore>,
    /// The subscriber's bit in the holder word. All clones share it; the last clone clears it.
    pub(crate) held: ManuallyDrop<Held<Shared>>,
    /// Index of the entry in `SubscriberCore::holds` that all clones share.
    pub(crate) hold: u32,
    pub(crate) message: Message,
    pub(crate) publisher: u32,
    pub(crate) incarnation: u64,
    pub(crate) sequence: u64,
    pub(crate) missed: u64,
}

impl WithMetadata for Sample {
    fn metadata(&self) -> Option<&Metadata> {
        // SAFETY: this sample is one that counts in the hold, and the result borrows it, so the hold keeps its contents meanwhile.
        unsafe { self.subscriber.holds.metadata(self.hold) }
    }
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
    /// How long calls without a time-out wait on the CPU for the GPU work that writes a message: 10 s. Without a limit,
    /// a publisher whose GPU work never ends would block its readers for ever.
    pub const FINISH_WAIT: Duration = Duration::from_secs(10);

    fn mapping(&self) -> &Arc<PoolMapping> {
        self.subscriber.mapping(self.message.pool)
    }

    /// Length of the message in bytes.
    pub fn len(&self) -> u64 {
        self.message.bytes
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.message.bytes == 0
    }

    /// The domain that holds the bytes: host memory, or a GPU.
    pub fn domain(&self) -> Domain {
        match &self.private {
            Some(copy) => copy.domain(),
            None => self.mapping().at(),
        }
    }

    /// Address of the first byte in this process: a host pointer, or a `CUdeviceptr`. The memory is read-only, and valid
    /// as long as a clone of the sample lives. On a GPU the bytes are complete only after
    /// [`wait_on`](Self::wait_on) (for work on that stream) or [`synchronize`](Self::synchronize) (for the CPU).
    pub fn address(&self) -> u64 {
        if let Some(copy) = &self.private {
            return copy.address();
        }
        self.mapping().base() + self.message.offset
    }

    /// The bytes of a sample in host memory. If GPU work is still writing them, waits for it on the CPU for up to
    /// [`FINISH_WAIT`](Self::FINISH_WAIT) (10 s); [`synchronize`](Self::synchronize) can wait longer.
    ///
    /// Errors: [`RecvError::NotOnHost`], [`RecvError::Aborted`], [`RecvError::Unfinished`].
    pub fn as_slice(&self) -> Result<&[u8], RecvError> {
        self.subscriber.guard.check()?;
        self.check_host()?;
        self.synchronize(Sample::FINISH_WAIT)?;
        if let Some(copy) = &self.private {
            return Ok(&copy.bytes()[..self.message.bytes as usize]);
        }
        // SAFETY: receiving checked that the range lies in the mapping, which lives as long as the sample. Members of a realm
        // trust each other with payloads: the publisher does not write a published block until all holders have released it.
        Ok(unsafe {
            std::slice::from_raw_parts(self.address() as *const u8, self.message.bytes as usize)
        })
    }

    /// Copies `bytes.len()` bytes, starting at byte `at` of the message, into `bytes`. Works for messages in host and GPU
    /// memory. Waits for GPU work that still writes the message, as [`as_slice`](Self::as_slice) does, and returns when
    /// the copy is complete. [`RecvError::Pool`] if the range is outside the message.
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
        self.synchronize(Sample::FINISH_WAIT)?;
        if let Some(copy) = &self.private {
            return Ok(copy.read(at, bytes)?);
        }
        Ok(self.mapping().read(self.message.offset + at, bytes)?)
    }

    /// Element type, shape and strides. `None` if the message is not one tensor, or if the tensor that its publisher
    /// describes is larger than the message.
    pub fn tensor(&self) -> Option<&Tensor> {
        // SAFETY: this sample is one that counts in the hold, and the result borrows it, so the hold keeps its contents meanwhile.
        let tensor = unsafe { self.subscriber.holds.tensor(self.hold)? };
        check_extent(tensor, self.message.bytes).ok()?;
        Some(tensor)
    }

    /// The attachment: bytes that the publisher sent beside the message; `None` without one. If the attachment is a
    /// [`header`](Self::header), these are its MessagePack bytes.
    pub fn attachment(&self) -> Option<&[u8]> {
        let attachment = self.metadata()?.attachment();
        (!attachment.is_empty()).then_some(attachment)
    }

    /// The header; `None` if the message has no attachment, or one that is not a header. Fails if the publisher marked the
    /// attachment as a header and it does not decode.
    pub fn header(&self) -> Result<Option<Header>, HeaderError> {
        let metadata = self.metadata().filter(|metadata| metadata.is_header());
        metadata
            .map(|metadata| Header::decode(metadata.attachment()))
            .transpose()
    }

    /// The named parts of the message; empty if the message is one array or plain bytes.
    pub fn parts(&self) -> Result<Parts<'_>, RecvError> {
        Parts::check(self.metadata(), self.message.bytes).map_err(|reason| RecvError::Untrusted {
            topic: self.subscriber.topic_name().to_owned(),
            reason: reason.to_owned(),
        })
    }

    /// The part called `name`. [`RecvError::Parts`] if there is none.
    pub fn part(&self, name: &str) -> Result<Part, RecvError> {
        self.parts()?
            .named(name)
            .map_err(|source| RecvError::Parts {
                topic: self.subscriber.topic_name().to_owned(),
                sequence: self.sequence,
                source,
            })
    }

    /// The bytes of the part called `name` of a sample in host memory. Waits as [`as_slice`](Self::as_slice) does.
    pub fn part_slice(&self, name: &str) -> Result<&[u8], RecvError> {
        let part = self.part(name)?;
        let (start, end) = (part.offset() as usize, part.offset() + part.len());
        Ok(&self.as_slice()?[start..end as usize])
    }

    /// The number that the publisher set with [`Loan::set_tag`](crate::Loan::set_tag); 0 if it set none.
    pub fn tag(&self) -> u64 {
        self.message.tag
    }

    /// The message's sequence number: each publisher counts its messages from 0.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many messages of the same publisher this subscriber missed between the previous sample and this one.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// The publisher's slot in the topic, as in [`PublisherRow`](crate::PublisherRow). A later publisher may reuse it.
    pub fn publisher_slot(&self) -> u32 {
        self.publisher
    }

    /// A random number that identifies the publisher: [`Publisher::id`](crate::Publisher::id).
    pub fn publisher_id(&self) -> u64 {
        self.incarnation
    }

    /// When the publisher called publish: nanoseconds of this host's `CLOCK_MONOTONIC`. For a message from another host
    /// rgaps converts the time, using both hosts' wall clocks. A message that was published before this host started has
    /// a time below 0, which wraps, so `now.wrapping_sub(publish_ns)` is always its age.
    pub fn publish_ns(&self) -> u64 {
        self.message.publish_ns
    }

    /// Whether the GPU work that writes the message has finished. Always true for a message that a CPU wrote.
    /// [`RecvError::Aborted`] if it can never finish.
    pub fn is_ready(&self) -> Result<bool, RecvError> {
        self.subscriber.guard.check()?;
        match self.progress() {
            Progress::Reached => Ok(true),
            Progress::Pending => Ok(false),
            Progress::Aborted => Err(self.aborted()),
        }
    }

    /// How many bytes, from the first one on, are complete: all or none, except for a large message that its publisher
    /// copies to the host for its readers. Such a copy arrives in chunks of some MiB. [`RecvError::Aborted`] if the rest can
    /// never arrive.
    pub fn ready_bytes(&self) -> Result<u64, RecvError> {
        self.subscriber.guard.check()?;
        let bytes = self.message.bytes;
        if self.whole.load(Ordering::Relaxed) {
            return Ok(bytes);
        }
        let known = self.there.load(Ordering::Relaxed);
        let parts = (bytes, self.part_bytes);
        let storage = &self.subscriber.storage;
        let Ok(there) = bytes_there(storage, self.message.point, parts, known) else {
            return Err(self.aborted());
        };
        if there == bytes && self.progress() == Progress::Reached {
            return Ok(bytes);
        }
        // Complete bytes stay complete, so keep the largest number. Relaxed: as for `whole`.
        self.there.fetch_max(there, Ordering::Relaxed);
        Ok(there)
    }

    /// Waits on the CPU until the first `bytes` bytes are complete, and returns how many are.
    /// [`RecvError::Unfinished`] after `timeout`.
    pub fn wait_bytes(&self, bytes: u64, timeout: Duration) -> Result<u64, RecvError> {
        let (deadline, bytes) = (Deadline::after(timeout), bytes.min(self.len()));
        let mut pause = Pause::default();
        loop {
            let there = self.ready_bytes()?;
            if there >= bytes {
                return Ok(there);
            }
            self.check_time(deadline)?;
            pause.pause();
        }
    }

    /// The bytes that the last [`ready_bytes`](Self::ready_bytes) or [`wait_bytes`](Self::wait_bytes) found complete, of a
    /// sample in host memory.
    pub fn ready_slice(&self) -> Result<&[u8], RecvError> {
        if self.whole.load(Ordering::Relaxed) {
            return self.as_slice();
        }
        self.subscriber.guard.check()?;
        self.check_host()?;
        let there = match self.private {
            Some(_) => 0,
            None => self.there.load(Ordering::Relaxed) as usize,
        };
        // SAFETY: receiving checked that the message's range lies in the mapping, which lives as long as the sample. The first
        // `there` bytes are complete, and the publisher does not write a published block until all holders have released it.
        Ok(unsafe { std::slice::from_raw_parts(self.address() as *const u8, there) })
    }

    /// Waits on the CPU until the GPU work that writes the message has finished. [`RecvError::Unfinished`] after
    /// `timeout`, [`RecvError::Aborted`] if the work can never finish.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), RecvError> {
        self.wait(Deadline::after(timeout))
    }

    /// Makes work that is queued on `stream` from now on wait, on the GPU, for the work that writes the message. Also calls
    /// [`record_stream`](Self::record_stream), so the block stays until that work has read it. The call itself does not
    /// wait, unless the driver cannot wait on a stream.
    ///
    /// If the publisher dies first, the stream continues and reads undefined bytes; afterwards
    /// [`is_ready`](Self::is_ready) returns [`RecvError::Aborted`].
    pub fn wait_on(&self, stream: Stream) -> Result<(), RecvError> {
        self.subscriber.guard.check()?;
        match self.progress() {
            Progress::Reached => {}
            Progress::Aborted => return Err(self.aborted()),
            Progress::Pending => {
                let core = &self.subscriber;
                let mut waited = Ok(());
                let wait = || waited = self.synchronize(Sample::FINISH_WAIT);
                let point = self.message.point;
                self.mapping()
                    .wait_on(core.client(), stream, point, wait)
                    .map_err(|error| self.mapping().fail(error))?;
                waited?;
            }
        }
        self.record_stream(stream);
        Ok(())
    }

    /// For GPU kernels that check by themselves whether the message is complete: the device address of two 64-bit numbers,
    /// and the message's point. The message is complete if one of the two numbers is at least the point and has the same
    /// upper 32 bits. `None` if there is nothing to wait for: the message was complete when it was received, it is
    /// aborted, or this process uses no GPU.
    pub fn gpu_point(&self) -> Option<(u64, u64)> {
        let point = self.message.point;
        let order = self.subscriber.zone().known_order()?;
        let on_timeline = !point.is_none() && point.value != POINT_ABORTED;
        on_timeline.then(|| (order.address(point.timeline), point.value))
    }

    /// Fails if the driver says that `stream` is not a stream, and so cannot be passed to
    /// [`record_stream`](Self::record_stream).
    pub fn check_stream(&self, stream: Stream) -> Result<(), RecvError> {
        self.subscriber.guard.check()?;
        match self.mapping().on_stream(stream) {
            None | Some(Ok(_) | Err(CudaError::Capturing)) => Ok(()),
            Some(Err(error)) => Err(self.mapping().fail(error).into()),
        }
    }

    /// Delays the release of the block: after the last clone is dropped, the block stays until all work that is queued on
    /// `stream` by then has finished. `stream` must live as long as the sample. Without this call and
    /// [`wait_on`](Self::wait_on), the release waits for work on the default stream. For a message in host memory this
    /// does nothing.
    pub fn record_stream(&self, stream: Stream) {
        // A private copy waits for the work that uses it when it is freed.
        if self.private.is_none() && self.mapping().context().is_some() {
            self.subscriber.holds.record(self.hold, stream);
        }
    }

    /// Drops this clone. If it is the last one, the block stays until the work queued so far on `stream`, and on the
    /// recorded streams, has finished. The call does not wait. If `stream` is capturing a graph, it must live until some
    /// milliseconds after the capture has ended, since only then can rgaps queue the release.
    pub fn release_on(self, stream: Stream) {
        self.record_stream(stream);
    }

    fn progress(&self) -> Progress {
        if self.whole.load(Ordering::Relaxed) {
            return Progress::Reached;
        }
        let now = progress(&self.subscriber.storage, self.message.point);
        if now == Progress::Reached {
            // A finished message stays finished, also when another process gets the timeline later.
            // Relaxed: a thread that passes the sample or a clone to another orders its own reads before that.
            self.whole.store(true, Ordering::Relaxed);
        }
        now
    }

    fn wait(&self, deadline: Deadline) -> Result<(), RecvError> {
        let mut pause = Pause::default();
        while !self.is_ready()? {
            self.check_time(deadline)?;
            pause.pause();
        }
        Ok(())
    }

    fn check_time(&self, deadline: Deadline) -> Result<(), RecvError> {
        match deadline.left_ns() {
            Some(_) => Ok(()),
            None => Err(RecvError::Unfinished {
                topic: self.subscriber.topic_name().to_owned(),
                sequence: self.sequence,
            }),
        }
    }

    fn check_host(&self) -> Result<(), RecvError> {
        if self.domain() == Domain::Host {
            return Ok(());
        }
        Err(RecvError::NotOnHost {
            topic: self.subscriber.topic_name().to_owned(),
            sequence: self.sequence,
            domain: self.domain(),
        })
    }

    fn aborted(&self) -> RecvError {
        RecvError::Aborted {
            topic: self.subscriber.topic_name().to_owned(),
            sequence: self.sequence,
        }
    }
}

impl Clone for Sample {
    fn clone(&self) -> Self {
        self.subscriber.holds.add(self.hold);
        Sample {
            private: self.private.clone(),
            whole: AtomicBool::new(self.whole.load(Ordering::Relaxed)),
            there: AtomicU64::new(self.there.load(Ordering::Relaxed)),
            subscriber: self.subscriber.clone(),
            held: ManuallyDrop::new(self.held.duplicate()),
            ..*self
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, only `drop` takes `held`, and nothing uses `self.held` after this line.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        if self.subscriber.guard.is_child() || !self.subscriber.holds.remove(self.hold) {
            return;
        }
        let core = &self.subscriber;
        match self.private {
            Some(_) => core.release(self.hold, held),
            None => core.release_behind(self.hold, held, self.message.pool),
        }
    }
}
