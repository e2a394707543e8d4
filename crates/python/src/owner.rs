//! Ownership of bytes that Python code sees: each view keeps its block, or its copy.

use crate::error::closed;
use crate::handle::drop_detached;
use crate::order;
use crate::shadow::{self, Shadow};
use bytes::Bytes;
use pyo3::prelude::*;
use rgaps::{Domain, Stream};
use rgaps_cuda::DeviceBuffer;
use rgaps_sync::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Keeps a view's bytes until it is dropped. Any thread may drop it, attached to the interpreter or not.
pub(crate) enum Owner {
    /// A received block.
    Sample(#[allow(dead_code)] SampleView),
    /// A loaned block.
    Loan(#[allow(dead_code)] LoanView),
    /// The view's own copy, on the host.
    Copy(#[allow(dead_code)] Box<[u8]>),
    /// The view's own copy, on a GPU.
    DeviceCopy(#[allow(dead_code)] DeviceBuffer),
    /// A part of a chunk of a recording.
    Recorded(#[allow(dead_code)] Bytes),
}

/// The number of views of received blocks in host memory. A forked child has pointers to these blocks, but cannot read them.
static HOST_VIEWS: AtomicUsize = AtomicUsize::new(0);

/// The number of views of received blocks in host memory.
#[pyfunction]
pub(crate) fn _host_views() -> usize {
    HOST_VIEWS.load(Ordering::Relaxed)
}

/// A view of a received block. `HOST_VIEWS` counts those in host memory.
pub(crate) struct SampleView(Arc<Held>);

impl SampleView {
    pub(crate) fn new(held: Arc<Held>) -> SampleView {
        if held.sample.domain() == Domain::Host {
            HOST_VIEWS.fetch_add(1, Ordering::Relaxed);
        }
        SampleView(held)
    }
}

impl Drop for SampleView {
    fn drop(&mut self) {
        if self.0.sample.domain() == Domain::Host {
            HOST_VIEWS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A received block.
pub(crate) struct Held {
    pub(crate) sample: rgaps::Sample,
    topic: Arc<str>,
    /// A copy that views see instead of the block, with `RGAPS_DEBUG=writes`.
    shadow: OnceLock<Shadow>,
}

impl Held {
    pub(crate) fn new(sample: rgaps::Sample, topic: Arc<str>) -> Held {
        Held {
            sample,
            topic,
            shadow: OnceLock::new(),
        }
    }

    /// The address of the bytes that views see: the block's, or its shadow's.
    pub(crate) fn view_address(&self, py: Python<'_>) -> PyResult<u64> {
        if !shadow::is_wanted() {
            return Ok(self.sample.address());
        }
        if self.shadow.get().is_none() {
            let made = Shadow::new(py, &self.sample)?;
            // Fails if another thread was faster; then its shadow is used.
            let _ = self.shadow.set(made);
        }
        let shadow = self.shadow.get();
        Ok(shadow.map_or(self.sample.address(), Shadow::address))
    }

    /// Warns if somebody wrote to the message. Call it when the last view has ended; it checks only once.
    pub(crate) fn warn_of_writes(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(shadow) = self.shadow.take() else {
            return Ok(());
        };
        let sample = &self.sample;
        match py.detach(|| shadow.look(sample)) {
            Some(written) => shadow.warn(py, &written, &self.topic, sample.sequence()),
            None => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.shadow.get().is_none() {
            return;
        }
        // Attaching fails while the interpreter shuts down.
        let _ = Python::try_attach(|py| {
            if let Err(error) = self.warn_of_writes(py) {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// A loaned block, and the streams whose queued work may still write it.
pub(crate) struct Block {
    loan: Mutex<Option<rgaps::Loan>>,
    views: AtomicUsize,
    streams: Mutex<Vec<Stream>>,
    pub(crate) address: u64,
}

impl Block {
    pub(crate) fn new(loan: rgaps::Loan) -> Block {
        Block {
            address: loan.address(),
            loan: Mutex::new(Some(loan)),
            views: AtomicUsize::new(0),
            streams: Mutex::default(),
        }
    }

    /// A new view of the block; None if its loan was taken.
    pub(crate) fn view(self: &Arc<Self>) -> Option<LoanView> {
        let loan = lock(&self.loan);
        loan.as_ref()?;
        // Counted under the lock, so that `take_unshared` sees it.
        self.views.fetch_add(1, Ordering::Relaxed);
        Some(LoanView(self.clone()))
    }

    /// Takes the loan, unless a view of the block lives.
    pub(crate) fn take_unshared(&self) -> Option<rgaps::Loan> {
        let mut loan = lock(&self.loan);
        match self.views.load(Ordering::Acquire) {
            0 => loan.take(),
            _ => None,
        }
    }

    /// Calls `work` with the loan; fails if the loan was taken.
    pub(crate) fn with_loan<R>(
        &self,
        work: impl FnOnce(&mut rgaps::Loan) -> PyResult<R>,
    ) -> PyResult<R> {
        match lock(&self.loan).as_mut() {
            Some(loan) => work(loan),
            None => Err(closed("loan")),
        }
    }

    /// Whether the block still has its loan.
    pub(crate) fn has_loan(&self) -> bool {
        lock(&self.loan).is_some()
    }

    pub(crate) fn views(&self) -> usize {
        self.views.load(Ordering::Acquire)
    }

    pub(crate) fn record(&self, stream: Stream) {
        remember(&self.streams, stream);
    }

    /// Makes `stream` wait for the work on all recorded streams, and forgets these.
    pub(crate) fn join(&self, stream: Stream) -> Result<(), rgaps::LoanError> {
        let streams = std::mem::take(&mut *lock(&self.streams));
        match lock(&self.loan).as_ref() {
            Some(loan) => order::join(loan, &streams, stream),
            None => Ok(()),
        }
    }

    /// The last recorded stream.
    pub(crate) fn last_stream(&self) -> Option<Stream> {
        lock(&self.streams).last().copied()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let streams = std::mem::take(&mut *lock(&self.streams));
        if let Some(loan) = lock(&self.loan).take() {
            order::discard(loan, &streams);
        }
    }
}

/// A view of a loaned block. The block counts its views.
pub(crate) struct LoanView(Arc<Block>);

impl Drop for LoanView {
    fn drop(&mut self) {
        // Release the writes through the view; pairs with the Acquire in `take_unshared`.
        self.0.views.fetch_sub(1, Ordering::Release);
    }
}

/// Drops a block. Drops a GPU's block detached from the interpreter, since that may wait for GPU work, which may itself wait
/// for a thread that needs the interpreter.
pub(crate) fn drop_block<T: Send>(domain: Domain, block: T) {
    if domain == Domain::Host {
        return drop(block);
    }
    let mut block = Some(block);
    // Attaching fails while the interpreter shuts down.
    let _ = Python::try_attach(|py| drop_detached(py, block.take()));
    drop(block);
}

fn remember(streams: &Mutex<Vec<Stream>>, stream: Stream) {
    let mut streams = lock(streams);
    if !streams.contains(&stream) {
        streams.push(stream);
    }
}
