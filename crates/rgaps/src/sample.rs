//! A received block.

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

/// A message that this process holds: its bytes are not changed or reused before the last clone
/// is dropped.
pub struct Sample {
    /// A copy of our own, of a message that cannot be read where it is.
    pub(crate) private: Option<Arc<Private>>,
    /// Whether the work that writes the bytes was seen to have finished.
    pub(crate) whole: AtomicBool,
    /// Bytes from the start on that were seen to be there.
    pub(crate) there: AtomicU64,
    /// Of a copy that is made in parts: bytes of each.
    pub(crate) part_bytes: u64,
    pub(crate) subscriber: Arc<SubscriberCore>,
    /// The same hold in all clones; the last of them lets go.
    pub(crate) held: ManuallyDrop<Held<Shared>>,
    /// Index of what all clones share.
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
    /// How long the CPU waits for a message to be finished where nobody says how long: a member that
    /// lies about its work must not hold others for ever.
    pub const FINISH_WAIT: Duration = Duration::from_secs(10);

    fn mapping(&self) -> &Arc<PoolMapping> {
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
        match &self.private {
            Some(copy) => copy.domain(),
            None => self.mapping().at(),
        }
    }

    /// Address of the first byte in this process: a host pointer, or a `CUdeviceptr`. Readable,
    /// not writable, as long as a clone of the sample lives, and once the message is finished: see
    /// [`wait_on`](Self::wait_on) and [`synchronize`](Self::synchronize).
    pub fn address(&self) -> u64 {
        if let Some(copy) = &self.private {
            return copy.address();
        }
        self.mapping().base() + self.message.offset
    }

    /// The bytes, of a sample in host memory. Waits on the CPU for work that still writes them, for 10 s at
    /// most; [`synchronize`](Self::synchronize) waits for longer.
    pub fn as_slice(&self) -> Result<&[u8], RecvError> {
        self.subscriber.guard.check()?;
        self.check_host()?;
        self.synchronize(Sample::FINISH_WAIT)?;
        if let Some(copy) = &self.private {
            return Ok(&copy.bytes()[..self.message.bytes as usize]);
        }
        // SAFETY: the range was found to lie in the mapping when the sample was taken, and the
        // mapping lives as long as the sample. Members of a realm trust each other with payloads:
        // the publisher does not write a block that it has published until all holders let go.
        Ok(unsafe {
            std::slice::from_raw_parts(self.address() as *const u8, self.message.bytes as usize)
        })
    }

    /// Copies bytes from `at` on to the host, after the work that writes them, which is waited for as in
    /// [`as_slice`](Self::as_slice); returns when they are there.
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

    /// Shape and element type, of a message that is a tensor and lies within its bytes.
    pub fn tensor(&self) -> Option<&Tensor> {
        // SAFETY: a clone of the hold's sample is borrowed for as long as the result.
        let tensor = unsafe { self.subscriber.holds.tensor(self.hold)? };
        check_extent(tensor, self.message.bytes).ok()?;
        Some(tensor)
    }

    /// The publisher's bytes that travel with the message; none if there are none. Those of a
    /// [`header`](Self::header) are MessagePack.
    pub fn attachment(&self) -> Option<&[u8]> {
        let attachment = self.metadata()?.attachment();
        (!attachment.is_empty()).then_some(attachment)
    }

    /// The message's header, if its attachment is one. An error: the publisher marked bytes as a header that are
    /// none.
    pub fn header(&self) -> Result<Option<Header>, HeaderError> {
        let metadata = self.metadata().filter(|metadata| metadata.is_header());
        metadata
            .map(|metadata| Header::decode(metadata.attachment()))
            .transpose()
    }

    /// The message's parts; there are none if it is one array, or bytes.
    pub fn parts(&self) -> Result<Parts<'_>, RecvError> {
        Parts::check(self.metadata(), self.message.bytes).map_err(|reason| RecvError::Untrusted {
            topic: self.subscriber.topic_name().to_owned(),
            reason: reason.to_owned(),
        })
    }

    /// One of the message's parts.
    pub fn part(&self, name: &str) -> Result<Part, RecvError> {
        self.parts()?
            .named(name)
            .map_err(|source| RecvError::Parts {
                topic: self.subscriber.topic_name().to_owned(),
                sequence: self.sequence,
                source,
            })
    }

    /// The bytes of one of the parts, of a sample in host memory: as [`as_slice`](Self::as_slice).
    pub fn part_slice(&self, name: &str) -> Result<&[u8], RecvError> {
        let part = self.part(name)?;
        let (start, end) = (part.offset() as usize, part.offset() + part.len());
        Ok(&self.as_slice()?[start..end as usize])
    }

    /// Attachment and parts as they lie beside the message.
    #[doc(hidden)]
    pub fn metadata(&self) -> Option<&Metadata> {
        // SAFETY: a clone of the hold's sample is borrowed for as long as the result.
        unsafe { self.subscriber.holds.metadata(self.hold) }
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

    /// `CLOCK_MONOTONIC` of this host in nanoseconds when publish was called. The time of a message from another
    /// host is converted by both hosts' wall clocks; if it was published before this host started, the number wraps
    /// below 0, so `now.wrapping_sub(publish_ns)` is always its age.
    pub fn publish_ns(&self) -> u64 {
        self.message.publish_ns
    }

    /// Whether the work that writes the bytes has finished; that of a message in host memory has.
    /// [`RecvError::Aborted`]: it never will.
    pub fn is_ready(&self) -> Result<bool, RecvError> {
        self.subscriber.guard.check()?;
        match self.progress() {
            Progress::Passed => Ok(true),
            Progress::Pending => Ok(false),
            Progress::Aborted => Err(self.aborted()),
        }
    }

    /// Bytes from the start on that are there: all, or none, but of a large message that was copied to the host
    /// for its readers, which comes in parts of some MiB. [`RecvError::Aborted`]: not all of them ever will be.
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
        if there == bytes && self.progress() == Progress::Passed {
            return Ok(bytes);
        }
        // Once seen they stay. Relaxed: as for `whole`.
        self.there.fetch_max(there, Ordering::Relaxed);
        Ok(there)
    }

    /// Waits on the CPU until so many bytes are there from the start on, and returns how many are.
    /// [`RecvError::Unfinished`]: not in time.
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

    /// The bytes that [`ready_bytes`](Self::ready_bytes) said are there, of a sample in host memory.
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
        // SAFETY: as in `as_slice`; so many bytes are there, and nobody writes them any more.
        Ok(unsafe { std::slice::from_raw_parts(self.address() as *const u8, there) })
    }

    /// Waits on the CPU until it has. [`RecvError::Unfinished`]: not in time.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), RecvError> {
        self.wait(Deadline::after(timeout))
    }

    /// Has the work that is queued on `stream` from now on wait for the work that writes the bytes, and
    /// keeps the block until `stream` has passed the point where the sample is dropped, as
    /// [`record_stream`](Self::record_stream). Nothing waits here.
    ///
    /// If the publisher dies before, the stream goes on, reads anything, and
    /// [`is_ready`](Self::is_ready) says so afterwards.
    pub fn wait_on(&self, stream: Stream) -> Result<(), RecvError> {
        self.subscriber.guard.check()?;
        match self.progress() {
            Progress::Passed => {}
            Progress::Aborted => return Err(self.aborted()),
            Progress::Pending => {
                let core = &self.subscriber;
                let mut waited = Ok(());
                let wait = || waited = self.synchronize(Sample::FINISH_WAIT);
                let point = self.message.point;
                self.mapping()
                    .wait_on(core.zone(), core.conductor(), stream, point, wait)
                    .map_err(|error| self.mapping().fail(error))?;
                waited?;
            }
        }
        self.record_stream(stream);
        Ok(())
    }

    /// Where work on a GPU finds how far the message is: the device address of two 64-bit numbers, and
    /// the point. The message is whole if the first is at least the point and has the same upper 32
    /// bits, or else if the second is and has. None: it was whole when it was taken, or is
    /// aborted, or nothing of that is on a GPU.
    pub fn gpu_point(&self) -> Option<(u64, u64)> {
        let point = self.message.point;
        let order = self.subscriber.zone().known_order()?;
        let on_timeline = !point.is_none() && point.value != POINT_ABORTED;
        on_timeline.then(|| (order.address(point.timeline), point.value))
    }

    /// Whether a handle can be passed to [`record_stream`](Self::record_stream), as far as can be seen: an
    /// error where it is no stream.
    pub fn check_stream(&self, stream: Stream) -> Result<(), RecvError> {
        self.subscriber.guard.check()?;
        match self.mapping().on_stream(stream) {
            None | Some(Ok(_) | Err(CudaError::Capturing)) => Ok(()),
            Some(Err(error)) => Err(self.mapping().fail(error).into()),
        }
    }

    /// Keeps the block after the last clone is dropped until all work queued on `stream` by then has
    /// finished. The stream lives at least as long as the sample. Without this or
    /// [`wait_on`](Self::wait_on), work on the default stream is waited for. On host memory
    /// streams are not used.
    pub fn record_stream(&self, stream: Stream) {
        // A copy of our own waits for what uses it when it is freed.
        if self.private.is_none() && self.mapping().context().is_some() {
            self.subscriber.holds.record(self.hold, stream);
        }
    }

    /// Drops this clone and keeps the block, if this was the last one, until the work queued on `stream`
    /// (and on the streams that were recorded) so far has finished. Nothing waits here. A stream that captures a graph
    /// cannot be asked yet: it has to live until some milliseconds after the capture has ended.
    pub fn release_on(self, stream: Stream) {
        self.record_stream(stream);
    }

    fn progress(&self) -> Progress {
        if self.whole.load(Ordering::Relaxed) {
            return Progress::Passed;
        }
        let now = progress(&self.subscriber.storage, self.message.point);
        if now == Progress::Passed {
            // Once seen it stays so, also when the timeline has gone through other hands since.
            // Relaxed: who clones or lends the sample orders what he saw by himself.
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
        Err(RecvError::Untrusted {
            topic: self.subscriber.topic_name().to_owned(),
            reason: format!(
                "its bytes are in {}; use address() or read()",
                self.domain()
            ),
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
        // SAFETY: taken once, here, and not used again.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        if self.subscriber.guard.is_child() || !self.subscriber.holds.remove(self.hold) {
            return;
        }
        let core = &self.subscriber;
        match self.private {
            Some(_) => core.release(self.hold, held),
            None => core.let_go(self.hold, held, self.message.pool),
        }
    }
}
