//! What keeps bytes that Python code sees.

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

/// Keeps a view's bytes. May be dropped on any thread, attached to the interpreter or not.
pub(crate) enum Owner {
    /// A received block: not reused before this is dropped.
    Sample(#[allow(dead_code)] SampleView),
    /// A block that is being filled.
    Loan(#[allow(dead_code)] LoanView),
    /// A copy that is the view's own.
    Copy(#[allow(dead_code)] Box<[u8]>),
    /// The same on a GPU.
    DeviceCopy(#[allow(dead_code)] DeviceBuffer),
    /// A part of a chunk of a recording.
    Recorded(#[allow(dead_code)] Bytes),
}

/// Views of received blocks in host memory, which forked children have pointers to and cannot read.
static HOST_VIEWS: AtomicUsize = AtomicUsize::new(0);

/// How many views of received blocks in host memory there are.
#[pyfunction]
pub(crate) fn _host_views() -> usize {
    HOST_VIEWS.load(Ordering::Relaxed)
}

/// A view of a received block; counted.
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
    /// What views look at instead of the block, where writes are looked for.
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

    /// Address of the bytes that views look at.
    pub(crate) fn view_address(&self, py: Python<'_>) -> PyResult<u64> {
        if !shadow::is_wanted() {
            return Ok(self.sample.address());
        }
        if self.shadow.get().is_none() {
            let made = Shadow::new(py, &self.sample)?;
            // Another thread's may have been first.
            let _ = self.shadow.set(made);
        }
        let shadow = self.shadow.get();
        Ok(shadow.map_or(self.sample.address(), Shadow::address))
    }

    /// Warns if somebody wrote to the message. Looks once, when nobody has a view any more.
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
        // None while the interpreter shuts down.
        let _ = Python::try_attach(|py| {
            if let Err(error) = self.warn_of_writes(py) {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// A block that is being filled, and the streams on which work may still write it.
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

    /// A view, of a block that was not published yet.
    pub(crate) fn view(self: &Arc<Self>) -> Option<LoanView> {
        let loan = lock(&self.loan);
        loan.as_ref()?;
        // Under the lock, so that `take_unshared` cannot miss it.
        self.views.fetch_add(1, Ordering::Relaxed);
        Some(LoanView(self.clone()))
    }

    /// The loan, if no view of it lives.
    pub(crate) fn take_unshared(&self) -> Option<rgaps::Loan> {
        let mut loan = lock(&self.loan);
        match self.views.load(Ordering::Acquire) {
            0 => loan.take(),
            _ => None,
        }
    }

    /// Works with the loan, if it was not taken.
    pub(crate) fn with_loan<R>(
        &self,
        work: impl FnOnce(&mut rgaps::Loan) -> PyResult<R>,
    ) -> PyResult<R> {
        match lock(&self.loan).as_mut() {
            Some(loan) => work(loan),
            None => Err(closed("loan")),
        }
    }

    /// Whether the loan was not taken.
    pub(crate) fn has_loan(&self) -> bool {
        lock(&self.loan).is_some()
    }

    pub(crate) fn views(&self) -> usize {
        self.views.load(Ordering::Acquire)
    }

    pub(crate) fn record(&self, stream: Stream) {
        remember(&self.streams, stream);
    }

    /// Has `stream` wait for the work on all streams that were recorded.
    pub(crate) fn join(&self, stream: Stream) -> Result<(), rgaps::LoanError> {
        let streams = std::mem::take(&mut *lock(&self.streams));
        match lock(&self.loan).as_ref() {
            Some(loan) => order::join(loan, &streams, stream),
            None => Ok(()),
        }
    }

    /// The stream that was recorded last.
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

/// A view of a block that is being filled; counted.
pub(crate) struct LoanView(Arc<Block>);

impl Drop for LoanView {
    fn drop(&mut self) {
        // Release what the view's user wrote; `take_unshared` acquires it.
        self.0.views.fetch_sub(1, Ordering::Release);
    }
}

/// Drops what may wait for a GPU, whose work may in turn wait for the interpreter.
pub(crate) fn drop_block<T: Send>(domain: Domain, block: T) {
    if domain == Domain::Host {
        return drop(block);
    }
    let mut block = Some(block);
    // None while the interpreter shuts down.
    let _ = Python::try_attach(|py| drop_detached(py, block.take()));
    drop(block);
}

fn remember(streams: &Mutex<Vec<Stream>>, stream: Stream) {
    let mut streams = lock(streams);
    if !streams.contains(&stream) {
        streams.push(stream);
    }
}
