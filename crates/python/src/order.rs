//! Stream order: the only module that converts stream handles of Python into streams of `rgaps`.

use crate::argument::about;
use crate::error::{invalid, unless_raised, IntoPyErr};
use crate::wait::in_slices;
use pyo3::prelude::*;
use rgaps::{Domain, RecvError, Stream, Unpublished};
use rgaps_client::bindings::{Patience, PatientLoan};
use std::time::Duration;

/// CUDA's default stream by its number in the array API standard.
pub(crate) const LEGACY: Stream = Stream(1);

/// A stream that a user names: its handle as a number, or an object of torch, cupy or numba. None
/// is the default stream.
pub(crate) fn named(object: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
    let Some(object) = object.filter(|object| !object.is_none()) else {
        return Ok(Stream(0));
    };
    for name in ["cuda_stream", "ptr", "handle"] {
        let Some(handle) = object.getattr_opt(name)? else {
            continue;
        };
        // Try a number first: it is the usual case, and a failed attribute lookup is slow.
        if let Some(handle) = unless_raised(handle.extract())? {
            return Ok(Stream(handle));
        }
        // numba's handle is an object of ctypes.
        let handle = handle.getattr_opt("value")?.unwrap_or(handle);
        if handle.is_none() {
            return Ok(Stream(0));
        }
        return handle.extract().map(Stream);
    }
    unless_raised(object.extract())?.map(Stream).ok_or_else(|| {
        about(object, |shown| {
            invalid(format!(
                "stream must be a CUDA stream of torch or cupy, or its handle as a number, not {shown}"
            ))
        })
    })
}

/// The stream that a consumer names to `__dlpack__`, by the numbers of the array API standard. None is the default stream. For
/// -1 this returns None: the consumer orders its work itself.
pub(crate) fn of_consumer(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Stream>> {
    let Some(object) = object.filter(|object| !object.is_none()) else {
        return Ok(Some(LEGACY));
    };
    match unless_raised(object.extract::<i64>())? {
        Some(-1) => Ok(None),
        Some(0) => Err(invalid(
            "stream 0 is ambiguous: use 1 for the default stream, or 2 for the thread's own",
        )),
        Some(negative) if negative < 0 => Err(invalid(format!(
            "there is no stream {negative}: use 1 for the default stream, or -1 for no order"
        ))),
        _ => named(Some(object)).map(Some),
    }
}

/// Torch's current stream of the GPU of that number.
pub(crate) fn current_of_torch(py: Python<'_>, ordinal: i32) -> PyResult<Stream> {
    let torch = py.import("rgaps._torch")?;
    let handle = torch.call_method1("current_stream", (ordinal,))?;
    handle.extract().map(Stream)
}

/// Prepares reads by work that is queued on `stream` from now on: that work waits for the publisher's work, and the block stays
/// until it has finished.
pub(crate) fn before_reading(sample: &rgaps::Sample, stream: Stream) -> PyResult<()> {
    sample.wait_on(stream).map_err(IntoPyErr::into_py_err)
}

/// Prepares reads by the CPU: waits until the bytes are complete. Other threads run meanwhile, and Ctrl-C works.
pub(crate) fn before_reading_on_cpu(py: Python<'_>, sample: &rgaps::Sample) -> PyResult<()> {
    synchronize(py, sample, None).map(drop)
}

/// Waits until the sample's bytes are complete. False: they were not before the time-out.
pub(crate) fn synchronize(
    py: Python<'_>,
    sample: &rgaps::Sample,
    timeout: Option<Duration>,
) -> PyResult<bool> {
    if sample.is_ready().map_err(IntoPyErr::into_py_err)? {
        return Ok(true);
    }
    let waited = in_slices(py, timeout, |slice| match sample.synchronize(slice) {
        Ok(()) => Ok(Some(())),
        Err(RecvError::Unfinished { .. }) => Ok(None),
        Err(error) => Err(error.into_py_err()),
    })?;
    Ok(waited.is_some())
}

/// The stream to name in `__cuda_array_interface__`: consumers wait for it before they read. None
/// if there is nothing to wait for.
pub(crate) fn to_name(sample: &rgaps::Sample) -> PyResult<Option<Stream>> {
    if sample.is_ready().map_err(IntoPyErr::into_py_err)? {
        return Ok(None);
    }
    before_reading(sample, LEGACY)?;
    Ok(Some(LEGACY))
}

/// Makes `stream` wait for the work that is queued on the others.
pub(crate) fn join(
    loan: &rgaps::Loan,
    others: &[Stream],
    stream: Stream,
) -> Result<(), rgaps::LoanError> {
    for other in others {
        if default_as_one(*other) != default_as_one(stream) {
            loan.join(*other, stream)?;
        }
    }
    Ok(())
}

/// Maps both numbers of the default stream to one.
fn default_as_one(stream: Stream) -> Stream {
    match stream.0 {
        0 => LEGACY,
        _ => stream,
    }
}

/// Returns a loan's block behind the work on all these streams.
pub(crate) fn discard(loan: rgaps::Loan, streams: &[Stream]) {
    let last = streams.last().copied().unwrap_or(Stream(0));
    // Fails only if the CUDA context is lost; then the work has ended, too.
    let _ = join(&loan, streams, last);
    loan.discard_on(last);
}

/// Publishes behind the work queued on `stream`.
pub(crate) fn publish(
    loan: rgaps::Loan,
    stream: Stream,
    patience: Patience,
) -> Result<u64, Unpublished> {
    loan.publish_with(stream, patience)
}

/// Copies bytes of this process, on the host or a GPU, into a loan, behind the work queued on the streams `after`. The source
/// may change or end when this returns.
///
/// # Safety
/// `source` is readable for `bytes` bytes until the call returns.
pub(crate) unsafe fn copy(
    loan: &mut rgaps::Loan,
    at: u64,
    source: u64,
    bytes: u64,
    after: &[Stream],
) -> Result<(), rgaps::LoanError> {
    let known = after
        .iter()
        .copied()
        .filter(|stream| *stream != Stream::NONE);
    let after: Vec<Stream> = known.collect();
    let last = after.last().copied().unwrap_or(Stream(0));
    if loan.domain() != Domain::Host {
        join(loan, &after, last)?;
    }
    // SAFETY: our caller promises that `bytes` bytes are readable at `source` until we return, and `wait_for` below returns
    // only when the copy has finished.
    unsafe { loan.copy_from_on(at, source, bytes, last)? };
    loan.wait_for(last)
}
