//! [`Loan`]: a block that a publisher is filling.

use crate::bindings::{Beside, Patience, PatientLoan, SetMetadata, WithMetadata};
use crate::links::LinksLoan;
use crate::publisher::{PublisherCore, StreamingCopy};
use crate::tensor::{check_extent, contiguous};
use crate::{ClientError, DType, Header, LoanError, Part, Parts, PublishError, Unpublished};
use rgaps_cuda::{CudaError, DeviceReader};
use rgaps_layout::{Domain, GpuUuid, MetadataLengths};
use rgaps_pool::{Mapping, PoolError, Stream};
use rgaps_topic::{Metadata, Tensor};
use std::fmt;
use std::sync::Arc;

/// A block of the topic's pool that a publisher is filling. Publish it, or drop it to give it back.
pub struct Loan {
    pub(crate) publisher: Arc<PublisherCore>,
    pub(crate) block: Option<rgaps_topic::Loan>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) tag: u64,
    pub(crate) tensor: Option<Tensor>,
    /// Attachment and parts, in one of the publisher's spare buffers. None: neither was set.
    pub(crate) metadata: Option<Box<Metadata>>,
    /// The stream of the last copy into the loan; the default stream before the first copy.
    pub(crate) stream: Stream,
    /// When another host's publisher published the message, on this host's monotonic clock. None: when it is published here.
    pub(crate) publish_ns: Option<u64>,
    /// How many earlier messages of the other host's publisher never reached this host. 0 for a publisher of this host.
    pub(crate) missed_so_far: u64,
    /// The stream on which publishing failed last: work queued there may still write the bytes.
    pub(crate) failed: Option<Stream>,
    /// The streaming copy of this loan. None: it is copied when it is published.
    pub(crate) streaming: Option<StreamingCopy>,
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
    /// Length of the message in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The domain that holds the bytes: host memory, or a GPU.
    pub fn domain(&self) -> Domain {
        self.publisher.mapping().domain()
    }

    /// Address of the first byte: a host pointer, or a `CUdeviceptr`. Valid until the loan is published or dropped.
    pub fn address(&self) -> u64 {
        self.publisher.mapping().base() + self.offset
    }

    /// The bytes of a loan in host memory. Their contents are undefined until they are written. Fails for a loan on a GPU.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], LoanError> {
        self.publisher.guard.check()?;
        if self.domain() != Domain::Host {
            return Err(LoanError::Argument(format!(
                "a loan in {} has no host bytes; use address(), write() or copy_from()",
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

    /// Copies `bytes` from host memory into the loan, starting at byte `at`. Works for loans in host and GPU memory, and
    /// returns when the copy is complete.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), LoanError> {
        self.check_range(at, bytes.len() as u64)?;
        self.publisher.mapping().write(self.offset + at, bytes)?;
        Ok(())
    }

    /// Copies `bytes` bytes from the address `source`, on the host or on a GPU, into the loan, starting at byte `at`. The
    /// copy waits for work that is queued on the default stream. Returns when the copy is complete.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes until the call returns.
    pub unsafe fn copy_from(&mut self, at: u64, source: u64, bytes: u64) -> Result<(), LoanError> {
        // SAFETY: the caller promises that `source` is readable for `bytes` bytes until this function returns, which is after the
        // wait for this copy. That wait fails only if the CUDA context is lost, and then the context's work has ended.
        unsafe { self.copy_from_on(at, source, bytes, Stream(0))? };
        self.wait_for(Stream(0))
    }

    /// Like [`copy_from`](Self::copy_from), but queues the copy on `stream`, behind the work that may still write the source,
    /// and does not wait. Publish on the same stream. Into a loan in host memory the copy is complete when this returns.
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
                // SAFETY: the caller promises that `source` is readable for `bytes` bytes, and that nothing else writes it, until the
                // work on `stream` has finished. `check_range` found the target inside the loan, whose block the publisher keeps until
                // a point behind this work has passed.
                unsafe { on.copy(target, source, bytes) }
            };
            return queue().map_err(|error| mapping.fail(error).into());
        }
        if let Some(reader) = DeviceReader::of_process() {
            let range = at as usize..(at + bytes) as usize;
            let target = &mut self.as_mut_slice()?[range];
            // SAFETY: the caller promises that `source` is readable for `bytes` bytes, as many as `target` has.
            if unsafe { reader.read(target, source, stream) }.map_err(from_driver)? {
                return Ok(());
            }
        }
        // SAFETY: the caller promises that `source` is readable for `bytes` bytes, and the copy is complete when this call
        // returns.
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
                "{bytes} bytes at offset {at} do not fit in a loan of {} bytes; loan more bytes",
                self.bytes
            ))),
        }
    }

    /// Shortens the message to `bytes` bytes; a larger number changes nothing. The attachment stays. Publishing fails if the tensor
    /// or a part then lies outside the message: set a smaller tensor, or loan smaller parts.
    pub fn truncate(&mut self, bytes: u64) {
        self.bytes = self.bytes.min(bytes);
    }

    /// Sets a number that travels with the message; its meaning is up to the application. Default: 0.
    pub fn set_tag(&mut self, tag: u64) {
        self.tag = tag;
    }

    /// Attaches bytes that travel beside the message, at most
    /// [`MAX_ATTACHMENT_BYTES`](crate::MAX_ATTACHMENT_BYTES) (4096); more fail with [`LoanError::Attachment`]. They replace an
    /// earlier attachment or header; an empty slice removes it.
    pub fn set_attachment(&mut self, bytes: &[u8]) -> Result<(), LoanError> {
        self.attach(bytes, false)
    }

    /// Attaches a header. It replaces an earlier attachment or header. [`LoanError::Header`] if it cannot be encoded,
    /// [`LoanError::Attachment`] if its encoding is longer than an attachment may be.
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

    /// The parts of a loan from [`Publisher::loan_parts`](crate::Publisher::loan_parts); empty for other loans.
    pub fn parts(&self) -> Result<Parts<'_>, LoanError> {
        let parts = Parts::check(self.metadata.as_deref(), self.bytes);
        parts.map_err(|reason| LoanError::Argument(reason.to_owned()))
    }

    /// The part called `name`. [`LoanError::Parts`] if there is none.
    pub fn part(&self, name: &str) -> Result<Part, LoanError> {
        Ok(self.parts()?.named(name)?)
    }

    /// The bytes of the part called `name` of a loan in host memory, as with [`as_mut_slice`](Self::as_mut_slice).
    pub fn part_mut(&mut self, name: &str) -> Result<&mut [u8], LoanError> {
        let part = self.part(name)?;
        let (start, end) = (part.offset() as usize, part.offset() + part.len());
        Ok(&mut self.as_mut_slice()?[start..end as usize])
    }

    /// Describes the message as a tensor in row-major order. Fails if the tensor is larger than the loan.
    pub fn set_shape(&mut self, dtype: DType, shape: &[u64]) -> Result<(), LoanError> {
        let (tensor, _) =
            contiguous(dtype, shape).map_err(|error| LoanError::Argument(error.to_string()))?;
        self.set_tensor(tensor)
    }

    /// Describes the message as a tensor with any non-negative strides. Fails if the tensor is larger than the loan.
    pub fn set_tensor(&mut self, tensor: Tensor) -> Result<(), LoanError> {
        check_extent(&tensor, self.bytes).map_err(|e| LoanError::Argument(e.to_string()))?;
        self.tensor = Some(tensor);
        Ok(())
    }

    /// Waits on the CPU until all work queued on `stream` so far has finished. Publishing does not need this. For a loan in
    /// host memory it does nothing.
    pub fn wait_for(&self, stream: Stream) -> Result<(), LoanError> {
        self.publisher.guard.check()?;
        if self.domain() != Domain::Host {
            self.publisher.mapping().synchronize(stream)?;
        }
        Ok(())
    }

    /// Makes work that is queued on `stream` from now on, such as a publish, wait for the work queued on `other` so far. The
    /// call itself does not wait.
    pub fn join(&self, other: Stream, stream: Stream) -> Result<(), LoanError> {
        self.publisher.guard.check()?;
        Ok(self.publisher.join(other, stream)?)
    }

    /// Publishes the message. Returns its sequence number, which counts from 0 for each publisher. On a GPU the message is
    /// complete when the work queued on the stream of the last copy into the loan has finished, or on the default stream
    /// if there was no copy.
    ///
    /// If the history is full of messages that reliable subscribers have not read, waits for them up to the publisher's
    /// deadline; then [`SlowReaderPolicy`](crate::SlowReaderPolicy) decides. On an error the loan comes back in
    /// [`Unpublished`].
    pub fn publish(self) -> Result<u64, Unpublished> {
        let stream = self.stream;
        self.publish_with(stream, Patience::Deadline)
    }

    /// Publishes without waiting for subscribers. Where [`publish`](Self::publish) would wait, this fails at once with
    /// [`PublishError::BackPressured`], which then names no subscriber. For callers that must not block;
    /// [`Publisher::wait_for_room`](crate::Publisher::wait_for_room) waits.
    pub fn try_publish(self) -> Result<u64, Unpublished> {
        let stream = self.stream;
        self.publish_with(stream, Patience::Try)
    }

    /// Publishes behind the work that is queued on `stream` so far, without waiting for that work: subscribers receive the
    /// message at once and make their own work wait for it ([`Sample::wait_on`](crate::Sample::wait_on)). For a message
    /// in host memory `stream` is not used.
    ///
    /// With [`Stream::NONE`] the caller promises that all work that writes the bytes has finished, and rgaps does not ask
    /// the driver. Asking costs 0.2 to 1.4 us even if the stream is idle (`rgaps bench latency` measures it).
    ///
    /// Waits for slow reliable subscribers as [`publish`](Self::publish) does, before it queues anything on the stream.
    /// Fails for a stream that is capturing a graph.
    pub fn publish_on(self, stream: Stream) -> Result<u64, Unpublished> {
        self.publish_with(stream, Patience::Deadline)
    }

    /// Publishes through a reference: a `Loan` is large, and moving it takes as long as publishing.
    #[inline]
    fn send(&mut self, stream: Stream, patience: Patience) -> Result<u64, PublishError> {
        let filled = Filled {
            offset: self.offset,
            bytes: self.bytes,
            tag: self.tag,
            tensor: self.tensor.as_ref(),
            metadata: self.metadata.as_deref().filter(|m| !m.is_empty()),
            publish_ns: self.publish_ns,
            missed_so_far: self.missed_so_far,
        };
        let mut staged = None;
        let streaming = match self
            .streaming
            .as_ref()
            .filter(|copy| copy.filled_in().is_some())
        {
            Some(copies) => {
                copies.copy_rest(self.bytes)?;
                // Keep the streaming copy in the loan: if publishing fails, the next attempt needs what is copied already.
                &mut staged
            }
            None => &mut self.streaming,
        };
        self.publisher
            .publish(&mut self.block, &filled, stream, streaming, patience)
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
    /// Gives the loan back without publishing it. The block is reused once the work queued on `stream` so far, which may
    /// write it, has finished; the call does not wait. Dropping a loan does the same for the stream on which publishing
    /// failed, else the stream of the last copy, else the default stream. If `stream` is capturing a graph, it must live
    /// until some milliseconds after the capture has ended.
    pub fn discard_on(mut self, stream: Stream) {
        self.stream = stream;
        self.failed = None;
    }
}

impl PatientLoan for Loan {
    #[inline]
    fn publish_with(mut self, stream: Stream, patience: Patience) -> Result<u64, Unpublished> {
        match self.send(stream, patience) {
            Ok(sequence) => Ok(sequence),
            Err(error) => Err(self.unpublished(error, stream)),
        }
    }

    fn publish_while(self, goes_on: impl Fn() -> bool) -> Result<u64, Unpublished> {
        let mut loan = self;
        loop {
            match loan.publish() {
                Err(Unpublished {
                    error: PublishError::BackPressured { .. },
                    loan: Some(again),
                }) if goes_on() => loan = *again,
                published => return published,
            }
        }
    }
}

impl WithMetadata for Loan {
    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_deref()
    }
}

impl SetMetadata for Loan {
    fn set_metadata(&mut self, lengths: MetadataLengths, bytes: &[u8]) -> bool {
        self.metadata_mut().assign(lengths, bytes)
    }

    fn set_beside(&mut self, beside: &Beside) -> Result<(), String> {
        let explain = |error: LoanError| rgaps_session::explain(&error);
        self.set_tag(beside.tag);
        if let Some(tensor) = beside.tensor {
            self.set_tensor(tensor).map_err(explain)?;
        }
        let metadata = &beside.metadata;
        if !metadata.is_empty() {
            if !self.set_metadata(metadata.lengths(), metadata.as_bytes()) {
                return Err("its metadata is invalid".to_owned());
            }
            self.parts().map_err(explain)?;
        }
        Ok(())
    }
}

impl LinksLoan for Loan {
    fn set_publish_ns(&mut self, publish_ns: u64) {
        self.publish_ns = Some(publish_ns);
    }

    fn stage(&mut self, may_wait: bool) -> Result<bool, LoanError> {
        self.publisher.guard.check()?;
        if self.domain() != Domain::Host && self.streaming.is_none() {
            let (publisher, offset) = (&self.publisher, self.offset);
            self.streaming = StreamingCopy::staged(publisher, offset, self.bytes, may_wait)?;
            let filled_in = self.streaming.as_ref().and_then(StreamingCopy::filled_in);
            let Some((_, _, stream)) = filled_in else {
                return Ok(false);
            };
            self.stream = stream;
        }
        Ok(true)
    }

    fn filled(&mut self) -> Result<&mut [u8], LoanError> {
        let filled_in = self.streaming.as_ref().and_then(StreamingCopy::filled_in);
        let Some((address, bytes, _)) = filled_in else {
            return self.as_mut_slice();
        };
        // SAFETY: the staging block has `bytes` bytes and belongs to this loan alone until the last clone of its `StreamingCopy` is
        // dropped; `self` has one. The borrow of `self` is the only way to write its bytes. Copies to the GPU read only ranges that
        // the links reported as filled.
        Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes as usize) })
    }

    fn begin_streaming_copy(&mut self) -> Option<StreamingCopy> {
        if self.domain() == Domain::Host && self.streaming.is_none() {
            self.streaming = Some(StreamingCopy::new(&self.publisher, self.offset, self.bytes));
        }
        self.streaming.clone()
    }

    fn set_missed_so_far(&mut self, missed: u64) {
        self.missed_so_far = missed;
    }
}

/// Describes a loan's bytes to the publisher when it is published.
pub(crate) struct Filled<'a> {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) tag: u64,
    pub(crate) tensor: Option<&'a Tensor>,
    pub(crate) metadata: Option<&'a Metadata>,
    pub(crate) publish_ns: Option<u64>,
    pub(crate) missed_so_far: u64,
}

/// Converts an error of the driver in a copy from a GPU into host memory, where the topic has no GPU to name.
fn from_driver(error: CudaError) -> LoanError {
    match error.into_pool(GpuUuid([0; 16])) {
        PoolError::Unavailable { reason, .. } => LoanError::Argument(reason),
        error => LoanError::Pool(error),
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let begun = match self.streaming.take() {
            Some(streaming) if !self.publisher.guard.is_child() => streaming.end(),
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
