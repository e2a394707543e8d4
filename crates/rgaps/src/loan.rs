//! A block that is being filled.

use crate::publisher::{EarlyCopies, PublisherCore};
use crate::tensor::{check_extent, contiguous};
use crate::{
    ClientError, DType, Header, LoanError, Part, Parts, Patience, PublishError, Unpublished,
};
use rgaps_cuda::{CudaError, DeviceReader};
use rgaps_layout::{Domain, GpuUuid, MetadataLengths};
use rgaps_pool::{Mapping, PoolError, Stream};
use rgaps_topic::{Metadata, Tensor};
use std::fmt;
use std::sync::Arc;

/// A block of the topic's pool that is being filled. Publish it, or drop it to give it back.
pub struct Loan {
    pub(crate) publisher: Arc<PublisherCore>,
    pub(crate) block: Option<rgaps_topic::Loan>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) tag: u64,
    pub(crate) tensor: Option<Tensor>,
    /// Attachment and parts, from the publisher's spare ones.
    pub(crate) metadata: Option<Box<Metadata>>,
    /// Where work on the bytes was queued last, as far as we know.
    pub(crate) stream: Stream,
    /// When it was published, if that was elsewhere.
    pub(crate) publish_ns: Option<u64>,
    /// Messages before it that never reached this host.
    pub(crate) missed: u64,
    /// Where publishing failed last, so that work on that stream may write the bytes.
    pub(crate) failed: Option<Stream>,
    /// Copies that are made while it is filled.
    pub(crate) early: Option<EarlyCopies>,
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("topic", &self.publisher.topic_name())
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Loan {
    /// Bytes of payload.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where the bytes live.
    pub fn domain(&self) -> Domain {
        self.publisher.mapping().domain()
    }

    /// Address of the first byte: a host pointer, or a `CUdeviceptr`. Valid until the loan is
    /// published or dropped.
    pub fn address(&self) -> u64 {
        self.publisher.mapping().base() + self.offset
    }

    /// The bytes, of a loan in host memory. What they hold before they are written is anything.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], LoanError> {
        self.publisher.guard.check()?;
        if self.domain() != Domain::Host {
            return Err(LoanError::Argument(format!(
                "a loan in {} has no host bytes; use address(), or copy_from()",
                self.domain()
            )));
        }
        // SAFETY: the block lies in the mapping (checked when it was loaned), which lives as long
        // as `self.publisher`. While the loan lasts no subscriber knows of the block and no other
        // publisher is leased it, so the borrow of `self` is the only way to its bytes.
        Ok(unsafe {
            std::slice::from_raw_parts_mut(self.address() as *mut u8, self.bytes as usize)
        })
    }

    /// Copies host bytes into the loan from `at` on.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), LoanError> {
        self.check_range(at, bytes.len() as u64)?;
        self.publisher.mapping().write(self.offset + at, bytes)?;
        Ok(())
    }

    /// Copies `bytes` bytes into the loan from `at` on, from an address of this process on the
    /// host or on a device, after the work queued on the default stream; returns when they are
    /// there.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes until the call returns.
    pub unsafe fn copy_from(&mut self, at: u64, source: u64, bytes: u64) -> Result<(), LoanError> {
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { self.copy_from_on(at, source, bytes, Stream(0))? };
        self.wait_for(Stream(0))
    }

    /// Queues the same on `stream`, behind the work that may still write the source: publish on the same
    /// stream. Into a loan in host memory the bytes are there when this returns.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes until the work queued on `stream` has finished, and
    /// nothing else writes it until then.
    pub unsafe fn copy_from_on(
        &mut self,
        at: u64,
        source: u64,
        bytes: u64,
        stream: Stream,
    ) -> Result<(), LoanError> {
        self.check_range(at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let target = self.address() + at;
        let mapping = self.publisher.mapping();
        if let Some(on) = mapping.on_stream(stream) {
            self.stream = stream;
            let queue = || {
                let on = on?;
                // SAFETY: the caller vouches for the source; the target is the loan's own, which is
                // not used again before that work has finished.
                unsafe { on.copy(target, source, bytes) }
            };
            return queue().map_err(|error| mapping.fail(error).into());
        }
        if let Some(reader) = DeviceReader::of_process() {
            let range = at as usize..(at + bytes) as usize;
            let target = &mut self.as_mut_slice()?[range];
            // SAFETY: the caller's promise is the one that is asked for.
            if unsafe { reader.read(target, source, stream) }.map_err(from_driver)? {
                return Ok(());
            }
        }
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe {
            self.publisher
                .mapping()
                .write_from(self.offset + at, source, bytes)?
        };
        Ok(())
    }

    fn check_range(&self, at: u64, bytes: u64) -> Result<(), LoanError> {
        self.publisher.guard.check()?;
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(LoanError::Argument(format!(
                "{bytes} bytes from {at} on do not fit in a loan of {}",
                self.bytes
            ))),
        }
    }

    /// Says that fewer bytes than were loaned are the message.
    pub fn truncate(&mut self, bytes: u64) {
        self.bytes = self.bytes.min(bytes);
    }

    /// Sets a number of the user's own that travels with the message. Default: 0.
    pub fn set_tag(&mut self, tag: u64) {
        self.tag = tag;
    }

    /// Attaches bytes of the user's own, which replace an attachment or a header that was set before. None detach
    /// it. At most [`MAX_ATTACHMENT_BYTES`](crate::MAX_ATTACHMENT_BYTES).
    pub fn set_attachment(&mut self, bytes: &[u8]) -> Result<(), LoanError> {
        self.attach(bytes, false)
    }

    /// Attaches a header, which replaces an attachment or a header that was set before.
    pub fn set_header(&mut self, header: &Header) -> Result<(), LoanError> {
        self.attach(&header.encode()?, true)
    }

    fn attach(&mut self, bytes: &[u8], is_header: bool) -> Result<(), LoanError> {
        if bytes.is_empty() && self.metadata.is_none() {
            return Ok(());
        }
        match self.metadata_mut().set_attachment(bytes, is_header) {
            true => Ok(()),
            false => Err(LoanError::Attachment { bytes: bytes.len() }),
        }
    }

    pub(crate) fn metadata_mut(&mut self) -> &mut Metadata {
        let publisher = &self.publisher;
        self.metadata.get_or_insert_with(|| publisher.metadata())
    }

    /// The parts that were loaned: see [`Publisher::loan_parts`](crate::Publisher::loan_parts).
    pub fn parts(&self) -> Result<Parts<'_>, LoanError> {
        let parts = Parts::check(self.metadata.as_deref(), self.bytes);
        parts.map_err(|reason| LoanError::Argument(reason.to_owned()))
    }

    /// One of the parts that were loaned.
    pub fn part(&self, name: &str) -> Result<Part, LoanError> {
        Ok(self.parts()?.named(name)?)
    }

    /// The bytes of one of the parts, of a loan in host memory: as [`as_mut_slice`](Self::as_mut_slice).
    pub fn part_mut(&mut self, name: &str) -> Result<&mut [u8], LoanError> {
        let part = self.part(name)?;
        let (start, end) = (part.offset() as usize, part.offset() + part.len());
        Ok(&mut self.as_mut_slice()?[start..end as usize])
    }

    /// Says that the message is a tensor in row-major order.
    pub fn set_shape(&mut self, dtype: DType, shape: &[u64]) -> Result<(), LoanError> {
        let (tensor, _) =
            contiguous(dtype, shape).map_err(|error| LoanError::Argument(error.to_string()))?;
        self.set_tensor(tensor)
    }

    /// Says that the message is a tensor with strides of its own.
    pub fn set_tensor(&mut self, tensor: Tensor) -> Result<(), LoanError> {
        check_extent(&tensor, self.bytes).map_err(|e| LoanError::Argument(e.to_string()))?;
        self.tensor = Some(tensor);
        Ok(())
    }

    /// Waits on the CPU until all work queued on `stream` so far has finished. On host memory the
    /// stream is not used. Publishing needs no such wait.
    pub fn wait_for(&self, stream: Stream) -> Result<(), LoanError> {
        self.publisher.guard.check()?;
        if self.domain() != Domain::Host {
            self.publisher.mapping().synchronize(stream)?;
        }
        Ok(())
    }

    /// Has the work that is queued on `stream` from now on, such as that of a publish, wait for what is
    /// queued on `other` so far. Nothing waits here.
    pub fn join(&self, other: Stream, stream: Stream) -> Result<(), LoanError> {
        self.publisher.guard.check()?;
        Ok(self.publisher.join(other, stream)?)
    }

    /// Publishes the bytes, which are there: on a device, behind the work on the stream that was copied
    /// on last, or else on the default stream. Returns the message's number among the publisher's,
    /// from 0.
    pub fn publish(self) -> Result<u64, Unpublished> {
        let stream = self.stream;
        self.publish_with(stream, Patience::Deadline)
    }

    /// Publishes, but waits for no subscriber: fails with
    /// [`PublishError::BackPressured`] at once, naming nobody, where
    /// [`publish`](Self::publish) would wait. For callers that must not block;
    /// [`Publisher::wait_for_room`](crate::Publisher::wait_for_room) waits.
    pub fn try_publish(self) -> Result<u64, Unpublished> {
        let stream = self.stream;
        self.publish_with(stream, Patience::Try)
    }

    /// Publishes behind the work queued on `stream` so far. Nothing waits for that work here: whoever
    /// receives the message has his own work wait for it ([`Sample::wait_on`](crate::Sample::wait_on)).
    /// On host memory the stream is not used.
    ///
    /// With [`Stream::NONE`] the caller says that he has waited for all work that writes the bytes: the
    /// driver is not asked about any. To ask takes it 0.2 to 1.4 us where all work is done (`bench latency`
    /// measures it).
    ///
    /// A reliable subscriber is waited for before anything is queued on the stream. A stream that
    /// captures a graph is refused.
    pub fn publish_on(self, stream: Stream) -> Result<u64, Unpublished> {
        self.publish_with(stream, Patience::Deadline)
    }

    /// Publishes behind the work queued on `stream`, with that much patience for slow reliable subscribers.
    #[doc(hidden)]
    #[inline]
    pub fn publish_with(mut self, stream: Stream, patience: Patience) -> Result<u64, Unpublished> {
        match self.send(stream, patience) {
            Ok(sequence) => Ok(sequence),
            Err(error) => Err(self.unpublished(error, stream)),
        }
    }

    /// Publishes where the loan is: it is large, and moving it takes as long as sending a message does.
    #[inline]
    fn send(&mut self, stream: Stream, patience: Patience) -> Result<u64, PublishError> {
        let filled = Filled {
            offset: self.offset,
            bytes: self.bytes,
            tag: self.tag,
            tensor: self.tensor.as_ref(),
            metadata: self.metadata.as_deref().filter(|m| !m.is_empty()),
            publish_ns: self.publish_ns,
            missed: self.missed,
        };
        let mut staged = None;
        let early = match self.early.as_ref().filter(|e| e.filled_in().is_some()) {
            Some(copies) => {
                copies.copy_rest(self.bytes)?;
                // It may have to be published again, with what is copied already.
                &mut staged
            }
            None => &mut self.early,
        };
        self.publisher
            .publish(&mut self.block, &filled, stream, early, patience)
    }

    #[cold]
    fn unpublished(mut self, error: PublishError, stream: Stream) -> Unpublished {
        let lost = matches!(error, PublishError::LoanLost(_));
        self.failed = Some(stream);
        Unpublished {
            error,
            loan: (!lost).then(|| Box::new(self)),
        }
    }
}

impl Loan {
    /// Gives the loan back unpublished, when the work queued on `stream` so far, which may write it,
    /// has finished; nothing waits for it here. Dropping a loan does that for the stream on which
    /// publishing failed, or that was copied on last, or else the default stream. A stream that captures a graph
    /// cannot be asked yet: it has to live until some milliseconds after the capture has ended.
    pub fn discard_on(mut self, stream: Stream) {
        self.stream = stream;
        self.failed = None;
    }
}

/// For the process with the links to other hosts, and no other.
#[doc(hidden)]
impl Loan {
    /// Says when the message was published elsewhere, on this host's clock.
    pub fn set_publish_ns(&mut self, publish_ns: u64) {
        self.publish_ns = Some(publish_ns);
    }

    /// Has a loan on a GPU be filled in host memory that the GPU copies from ([`filled`](Self::filled)). False: there is
    /// no such memory at hand, and `may_wait` does not say that there is time to find some.
    pub fn stage(&mut self, may_wait: bool) -> Result<bool, LoanError> {
        self.publisher.guard.check()?;
        if self.domain() != Domain::Host && self.early.is_none() {
            let (publisher, offset) = (&self.publisher, self.offset);
            self.early = EarlyCopies::staged(publisher, offset, self.bytes, may_wait)?;
            let filled_in = self.early.as_ref().and_then(EarlyCopies::filled_in);
            let Some((_, _, stream)) = filled_in else {
                return Ok(false);
            };
            self.stream = stream;
        }
        Ok(true)
    }

    /// The bytes to fill, of a loan in host memory or one that is filled there.
    pub fn filled(&mut self) -> Result<&mut [u8], LoanError> {
        let filled_in = self.early.as_ref().and_then(EarlyCopies::filled_in);
        let Some((address, bytes, _)) = filled_in else {
            return self.as_mut_slice();
        };
        // SAFETY: the block of staging memory is this loan's alone until its `EarlyCopies` are dropped, and the borrow
        // of `self` is the only way to its bytes but for copies to the GPU, which are queued of what was filled.
        Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes as usize) })
    }

    /// Has copies to GPUs begin while the loan is filled: what is told to [`EarlyCopies::arrived`] is copied then, and the
    /// rest when it is published. Of a loan in host memory, for subscribers that read on GPUs; of one that is
    /// filled there ([`stage`](Self::stage)), the loan's own bytes.
    pub fn copy_early(&mut self) -> Option<EarlyCopies> {
        if self.domain() == Domain::Host && self.early.is_none() {
            self.early = Some(EarlyCopies::new(&self.publisher, self.offset, self.bytes));
        }
        self.early.clone()
    }

    /// Takes over the attachment and the parts of a message of another host, as they lay beside it there. False: they are
    /// not what their lengths say.
    pub fn set_metadata(&mut self, lengths: MetadataLengths, bytes: &[u8]) -> bool {
        self.metadata_mut().assign(lengths, bytes)
    }

    /// Attachment and parts as they are to lie beside the message.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_deref()
    }

    /// Says how many messages before this one never reached this host.
    pub fn set_missed(&mut self, missed: u64) {
        self.missed = missed;
    }
}

/// What a loan says of its bytes when it is published.
pub(crate) struct Filled<'a> {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) tag: u64,
    pub(crate) tensor: Option<&'a Tensor>,
    pub(crate) metadata: Option<&'a Metadata>,
    pub(crate) publish_ns: Option<u64>,
    pub(crate) missed: u64,
}

/// An error of a GPU that is not the topic's.
fn from_driver(error: CudaError) -> LoanError {
    match error.into_pool(GpuUuid([0; 16])) {
        PoolError::Unavailable { reason, .. } => LoanError::Argument(reason),
        error => LoanError::Pool(error),
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let begun = match self.early.take() {
            Some(early) if !self.publisher.guard.is_child() => early.end(),
            _ => Vec::new(),
        };
        if let Some(metadata) = self.metadata.take() {
            self.publisher.keep_spare(metadata);
        }
        if let Some(block) = self.block.take() {
            if !begun.is_empty() {
                return self.publisher.abandon_begun(block, begun);
            }
            // Work on the stream may still write the block.
            let stream = self.failed.unwrap_or(self.stream);
            self.publisher.abandon(block, stream);
        }
    }
}

impl From<ClientError> for Unpublished {
    fn from(error: ClientError) -> Self {
        Unpublished {
            error: error.into(),
            loan: None,
        }
    }
}
