//! What keeps bytes that Python code sees.

use crate::error::closed;
use crate::handle::drop_detached;
use pyo3::prelude::*;
use rgaps::{Domain, Stream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keeps a view's bytes. May be dropped on any thread, attached to the interpreter or not.
pub(crate) enum Owner {
    /// A received block: not reused before this is dropped.
    Sample(#[allow(dead_code)] Arc<Held>),
    /// A block that is being filled.
    Loan(#[allow(dead_code)] LoanView),
    /// A copy that is the view's own.
    Copy(#[allow(dead_code)] Box<[u8]>),
}

/// A received block, and the streams on which work may still read it.
pub(crate) struct Held {
    pub(crate) sample: rgaps::Sample,
    streams: Mutex<Vec<Stream>>,
}

impl Held {
    pub(crate) fn new(sample: rgaps::Sample) -> Held {
        Held {
            sample,
            streams: Mutex::default(),
        }
    }

    /// Has the block wait for that stream's work, too, before it is let go of.
    pub(crate) fn record(&self, stream: Stream) {
        remember(&self.streams, stream);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for stream in lock(&self.streams).drain(..) {
            self.sample.record_stream(stream);
        }
    }
}

/// A block that is being filled, and the streams on which work may still write it.
pub(crate) struct Block {
    loan: Mutex<Option<rgaps::Loan>>,
    views: AtomicUsize,
    streams: Mutex<Vec<Stream>>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Block {
    pub(crate) fn new(loan: rgaps::Loan) -> Block {
        Block {
            address: loan.address(),
            bytes: loan.len(),
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

    /// Waits on the CPU for the work on all streams that were recorded.
    pub(crate) fn wait_for_streams(&self) -> Result<(), rgaps::LoanError> {
        // Copied, so that no lock is held while it is waited.
        let streams = lock(&self.streams).clone();
        let loan = lock(&self.loan);
        if let Some(loan) = loan.as_ref() {
            for stream in streams {
                loan.wait_for(stream)?;
            }
        }
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Of a loan that was given up, or published by a copy. Where the wait fails the context
        // is lost, and with it the work.
        let _ = self.wait_for_streams();
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
