//! Publishers.

use crate::declared;
use crate::error::{closed, invalid, IntoPyErr};
use crate::framework::Framework;
use crate::handle::{drop_detached, Handle};
use crate::loan::{self, Form, LoanBase};
use crate::metadata::Beside;
use crate::source::{self, Source};
use crate::wait::{in_slices, timeout};
use crate::{order, part};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use rgaps::{DType, Domain, LoanError, PartSpec, Patience, PublishError, Stream, TensorType};
use std::sync::Arc;
use std::time::Duration;

/// Whether calls wait for room and memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Yes,
    /// They raise `rgaps._errors.WouldWait`, for `rgaps._asyncio`, which waits elsewhere. `overdue`: the publisher's
    /// deadline is over, so its policy for slow readers decides.
    No {
        overdue: bool,
    },
}

/// A publisher and how long it waits. Waits for memory are a slice long, so that they can be interrupted; the
/// user's time is kept here.
#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) publisher: rgaps::Publisher,
    /// None: for ever.
    pub(crate) deadline: Option<Duration>,
    pub(crate) loan_timeout: Option<Duration>,
    pub(crate) waits: Waits,
    /// The type of its messages, where that is a tensor's.
    pub(crate) declared: Option<Arc<TensorType>>,
    /// Whose element type it was declared with.
    pub(crate) framework: Framework,
}

fn would_wait(py: Python<'_>, what: &str, bytes: u64) -> PyErr {
    let class = py
        .import("rgaps._errors")
        .and_then(|errors| errors.getattr("WouldWait"));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, (what.to_owned(), bytes)),
        Err(error) => error,
    }
}

fn is_shortage(error: &LoanError) -> bool {
    matches!(
        error,
        LoanError::PoolFull { .. } | LoanError::NoBlocks { .. }
    )
}

impl Sender {
    /// An error unless the message is of the declared type.
    pub(crate) fn check_declared(
        &self,
        which: &str,
        tensor: Option<(DType, &[u64])>,
    ) -> PyResult<()> {
        match &self.declared {
            Some(declared) => declared::check(
                declared,
                self.publisher.topic(),
                || which.to_owned(),
                tensor,
            ),
            None => Ok(()),
        }
    }

    /// An error in a forked child.
    pub(crate) fn check(&self) -> PyResult<()> {
        let checked = self.publisher.wait_for_subscribers(0, Duration::ZERO);
        checked.map(|_| ()).map_err(IntoPyErr::into_py_err)
    }

    pub(crate) fn with(&self, waits: Waits) -> Sender {
        Sender {
            waits,
            ..self.clone()
        }
    }

    /// Whether a message of that size may be filled: one that would have to wait for readers is filled later, by who
    /// must not wait.
    pub(crate) fn check_room(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        if self.waits != (Waits::No { overdue: false }) {
            return Ok(());
        }
        let found = self.publisher.wait_for_room(bytes, Duration::ZERO);
        match found.map_err(IntoPyErr::into_py_err)? {
            true => Ok(()),
            false => Err(would_wait(py, "room", bytes)),
        }
    }

    pub(crate) fn loan(&self, py: Python<'_>, bytes: u64) -> PyResult<rgaps::Loan> {
        let loan = |publisher: &rgaps::Publisher| publisher.loan(bytes);
        self.loan_by(py, bytes, loan, |publisher| publisher.try_loan(bytes))
    }

    /// A loan for parts that have so many bytes together.
    fn loan_parts(
        &self,
        py: Python<'_>,
        specs: &[PartSpec<'_>],
        bytes: u64,
    ) -> PyResult<rgaps::Loan> {
        let loan = |publisher: &rgaps::Publisher| publisher.loan_parts(specs);
        self.loan_by(py, bytes, loan, |publisher| publisher.try_loan_parts(specs))
    }

    fn loan_by(
        &self,
        py: Python<'_>,
        bytes: u64,
        loan: impl Fn(&rgaps::Publisher) -> Result<rgaps::Loan, LoanError> + Sync,
        try_loan: impl Fn(&rgaps::Publisher) -> Result<Option<rgaps::Loan>, LoanError>,
    ) -> PyResult<rgaps::Loan> {
        if self.waits != Waits::Yes {
            let found = try_loan(&self.publisher);
            return match found.map_err(IntoPyErr::into_py_err)? {
                Some(loan) => Ok(loan),
                None => Err(would_wait(py, "memory", bytes)),
            };
        }
        let mut last = None;
        let loan = in_slices(py, self.loan_timeout, |_| match loan(&self.publisher) {
            Ok(loan) => Ok(Some(loan)),
            Err(error) if is_shortage(&error) => {
                last = Some(error);
                Ok(None)
            }
            Err(error) => Err(error.into_py_err()),
        })?;
        match (loan, last) {
            (Some(loan), _) => Ok(loan),
            (None, Some(error)) => Err(error.into_py_err()),
            (None, None) => Err(invalid("no loan was tried for")),
        }
    }

    /// Publishes; leaves the loan there where that fails and it can be tried again.
    pub(crate) fn publish(
        &self,
        py: Python<'_>,
        loan: &mut Option<rgaps::Loan>,
        stream: Stream,
    ) -> PyResult<u64> {
        let bytes = loan.as_ref().map_or(0, rgaps::Loan::len);
        let number = match self.waits {
            Waits::Yes => in_slices(py, self.deadline, |slice| {
                let number = attempt(loan, stream, Patience::Try)?;
                if number.is_none() {
                    let found = self.publisher.wait_for_room(bytes, slice);
                    found.map_err(IntoPyErr::into_py_err)?;
                }
                Ok(number)
            })?,
            Waits::No { overdue: false } => {
                return py
                    .detach(|| attempt(loan, stream, Patience::Try))?
                    .ok_or_else(|| would_wait(py, "room", bytes))
            }
            Waits::No { overdue: true } => None,
        };
        let number = match number {
            Some(number) => Some(number),
            None => py.detach(|| attempt(loan, stream, Patience::Over))?,
        };
        number.ok_or_else(|| invalid("nothing was published"))
    }
}

/// Publishes; none: a reliable subscriber would have to be waited for. Leaves the loan there where it can be
/// published again.
fn attempt(
    loan: &mut Option<rgaps::Loan>,
    stream: Stream,
    patience: Patience,
) -> PyResult<Option<u64>> {
    let Some(ready) = loan.take() else {
        return Err(closed("loan"));
    };
    let failed = match order::publish(ready, stream, patience) {
        Ok(number) => return Ok(Some(number)),
        Err(failed) => failed,
    };
    *loan = failed.loan.map(|loan| *loan);
    match failed.error {
        PublishError::BackPressured { .. } if patience == Patience::Try => Ok(None),
        error => Err(error.into_py_err()),
    }
}

/// A publisher of one topic. Make one with `Node.publisher` or `rgaps.publisher`.
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Publisher {
    sender: Handle<Sender>,
    topic: String,
    type_name: String,
    domain: String,
}

impl Publisher {
    pub(crate) fn new(sender: Sender) -> Publisher {
        Publisher {
            topic: sender.publisher.topic().to_owned(),
            type_name: sender.publisher.type_name().to_owned(),
            domain: sender.publisher.domain().to_string(),
            sender: Handle::new("publisher", sender),
        }
    }
}

/// A shape: a number, or a sequence of numbers.
fn shape(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let lengths = match object.extract::<i64>() {
        Ok(length) => vec![length],
        Err(_) => object.extract::<Vec<i64>>()?,
    };
    let wrong = |length: i64| invalid(format!("a dimension cannot have the length {length}"));
    let lengths = lengths.into_iter();
    lengths
        .map(|length| u64::try_from(length).map_err(|_| wrong(length)))
        .collect()
}

/// Strides in bytes as strides in elements.
fn in_elements(strides: &[i64], dtype: DType) -> PyResult<Vec<i64>> {
    let each = dtype.element_bytes() as i64;
    let strides = strides.iter().map(|stride| match stride % each {
        0 => Ok(stride / each),
        _ => Err(invalid(format!(
            "a stride of {stride} bytes is not a multiple of an element's {each}"
        ))),
    });
    strides.collect()
}

/// Has torch copy a tensor into a loan, which then is published on the stream of the copy.
fn put_by_torch(
    py: Python<'_>,
    sender: Sender,
    tensor: &Bound<'_, PyAny>,
    beside: &Beside,
    tag: u64,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    let dtype = crate::dtype::of_object(&tensor.getattr("dtype")?)?;
    let form = Form {
        dtype,
        shape: tensor.getattr("shape")?.extract()?,
        strides: None,
    };
    sender.check_declared("the tensor", Some((dtype, &form.shape)))?;
    let (_, bytes) = form.tensor()?;
    sender.check_room(py, bytes)?;
    let mut loan = sender.loan(py, bytes)?;
    beside.set(&mut loan)?;
    let loan = loan::wrap(py, loan, sender, form, Framework::Torch, None, tag)?;
    let copy = py.import("rgaps._torch")?.getattr("copy")?;
    copy.call1((&loan, tensor, stream))?;
    loan.cast::<LoanBase>()?.get().publish(py, stream)
}

/// Copies arrays into one message, as its parts.
fn put_parts(
    py: Python<'_>,
    sender: &Sender,
    parts: &Bound<'_, PyDict>,
    beside: &Beside,
    tag: u64,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    sender.check_declared("the message with parts", None)?;
    let mut sources = Vec::with_capacity(parts.len());
    let mut wanted = part::Wanted::new();
    for (name, data) in parts.iter() {
        let source = Source::of(&part::detached(&data)?, stream)?;
        let (dtype, shape) = match source.tensor() {
            Some((dtype, shape)) => (dtype, shape.to_vec()),
            None => (DType::U8, vec![source.bytes()]),
        };
        wanted.push((part::name_of(&name)?, dtype, shape, Framework::Any));
        sources.push(source);
    }
    let specs = part::specs(&wanted);
    let bytes = part::total_bytes(&specs)?;
    sender.check_room(py, bytes)?;
    let mut loan = sender.loan_parts(py, &specs, bytes)?;
    beside.set(&mut loan)?;
    loan.set_tag(tag);
    for (spec, source) in specs.iter().zip(&sources) {
        let part = loan.part(spec.name).map_err(IntoPyErr::into_py_err)?;
        source.copy_into(py, &mut loan, part.offset())?;
    }
    sender.publish(py, &mut Some(loan), order::named(stream)?)
}

/// A loan with parts, each named with its shape and element type.
fn loan_parts<'py>(
    py: Python<'py>,
    sender: Sender,
    parts: &Bound<'py, PyDict>,
    beside: &Beside,
    tag: u64,
) -> PyResult<Bound<'py, PyAny>> {
    sender.check_declared("the loan", None)?;
    let wanted = part::wanted(parts, sender.publisher.domain(), shape)?;
    let specs = part::specs(&wanted);
    let mut loan = sender.loan_parts(py, &specs, part::total_bytes(&specs)?)?;
    beside.set(&mut loan)?;
    let sender = sender.with(Waits::Yes);
    let form = Form {
        dtype: DType::U8,
        shape: vec![loan.len()],
        strides: None,
    };
    let framework = match sender.publisher.domain() {
        // The loan itself is filled part by part; on a GPU it is published behind torch's current stream.
        Domain::Cuda(_) if wanted.iter().any(|part| part.3 == Framework::Torch) => Framework::Torch,
        _ => Framework::Any,
    };
    let parts = wanted
        .into_iter()
        .map(|(name, _, _, framework)| (name, framework));
    loan::wrap(
        py,
        loan,
        sender,
        form,
        framework,
        Some(parts.collect()),
        tag,
    )
}

#[pymethods]
impl Publisher {
    /// Name of the topic.
    #[getter]
    fn topic(&self) -> &str {
        &self.topic
    }

    /// The type of its messages; empty: any.
    #[getter]
    fn r#type(&self) -> &str {
        &self.type_name
    }

    /// Where the messages live: ``"host"`` or ``"cuda:GPU-..."``.
    #[getter]
    fn domain(&self) -> &str {
        &self.domain
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.sender.is_open()
    }

    /// Subscribers on this host that do not match this publisher, and get none of its messages: they expect
    /// another type, or demand what it does not offer.
    #[getter]
    fn mismatched(&self) -> PyResult<u32> {
        Ok(self.sender.get()?.publisher.mismatched())
    }

    /// Why they do not match: a text each, of the first few.
    fn mismatches(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let sender = self.sender.get()?;
        let reasons = py.detach(|| sender.publisher.mismatches());
        reasons.map_err(IntoPyErr::into_py_err)
    }

    /// Subscribers that match this publisher now, those on other hosts included.
    #[getter]
    fn subscribers(&self) -> PyResult<u32> {
        Ok(self.sender.get()?.publisher.subscribers())
    }

    /// A block for an array of this shape, to be filled and published. Shape and element type are
    /// by default those that this publisher was declared with. ``strides`` are bytes from one element
    /// to the next per dimension, as numpy counts them; without them the order is row-major.
    ///
    /// The with statement over the loan gives a tensor of torch where ``dtype`` is torch's, an
    /// array of numpy where it is numpy's, and else the loan itself.
    ///
    /// With a dictionary ``{name: (shape, dtype), ...}`` for ``shape`` the message has parts: named arrays in one
    /// block, filled by ``loan["name"][...] = array``. At most 32, with names of 1 to 63 bytes.
    ///
    /// ``meta`` is a dictionary that travels beside the message as its header: ``capture_ns`` (when the data was
    /// captured, nanoseconds since 1970-01-01 UTC), ``frame_id`` (text), and keys of your own with None, bool, int,
    /// float, str, bytes, lists and dictionaries as values. ``attachment`` are bytes that travel there instead. Either
    /// has at most 4096 bytes.
    #[pyo3(signature = (shape=None, dtype=None, *, strides=None, tag=0, meta=None, attachment=None))]
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn loan<'py>(
        &self,
        py: Python<'py>,
        shape: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
        strides: Option<Vec<i64>>,
        tag: u64,
        meta: Option<&Bound<'py, PyAny>>,
        attachment: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let sender = self.sender.get()?;
        let beside = Beside::of(meta, attachment)?;
        if let Some(parts) = shape.and_then(|shape| shape.cast::<PyDict>().ok()) {
            if dtype.is_some() || strides.is_some() {
                return Err(invalid(
                    "the parts of a loan have element types of their own: {name: (shape, dtype)}",
                ));
            }
            return loan_parts(py, sender, parts, &beside, tag);
        }
        let declared = sender.declared.as_deref();
        let (dtype, framework) = match (dtype, declared) {
            (Some(dtype), _) => (crate::dtype::of_object(dtype)?, Framework::of(dtype)?),
            (None, Some(declared)) => (declared.dtype(), sender.framework),
            (None, None) => (DType::U8, Framework::Any),
        };
        let shape = match shape {
            Some(shape) => self::shape(shape)?,
            None => declared.and_then(TensorType::whole_shape).ok_or_else(|| {
                invalid(
                    "a loan without a shape needs a publisher that is declared with a whole one",
                )
            })?,
        };
        sender.check_declared("the loan", Some((dtype, &shape)))?;
        let strides = strides
            .map(|strides| in_elements(&strides, dtype))
            .transpose()?;
        let form = Form {
            dtype,
            shape,
            strides,
        };
        let (_, bytes) = form.tensor()?;
        let mut loan = sender.loan(py, bytes)?;
        beside.set(&mut loan)?;
        let sender = sender.with(Waits::Yes);
        loan::wrap(py, loan, sender, form, framework, None, tag)
    }

    /// A block as from `loan`, for ``await`` and ``async with``: waiting for memory does not stop the event loop.
    /// In ``async with`` it is published at the end, and waiting for readers does not stop the loop either.
    #[pyo3(signature = (*arguments, **keywords))]
    fn loan_async<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("rgaps._asyncio")?;
        module.call_method1("Lending", (slf, arguments, keywords))
    }

    /// Publishes a copy of ``data``: bytes, an array, or anything with the buffer protocol, DLPack
    /// or ``__cuda_array_interface__``, on the host or on a GPU. Returns the message's number,
    /// from 0. The elements are published in row-major order, whatever the array's strides.
    ///
    /// A dictionary ``{name: array, ...}`` becomes one message with parts: named arrays in one block. At most 32,
    /// with names of 1 to 63 bytes. ``meta`` and ``attachment`` are as for `loan`.
    ///
    /// A tensor of torch is copied by torch on its current stream, others after the work queued on
    /// ``stream``.
    #[pyo3(signature = (data, *, tag=0, stream=None, meta=None, attachment=None))]
    fn put(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        tag: u64,
        stream: Option<&Bound<'_, PyAny>>,
        meta: Option<&Bound<'_, PyAny>>,
        attachment: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let sender = self.sender.get()?;
        let beside = Beside::of(meta, attachment)?;
        if let Ok(parts) = data.cast::<PyDict>() {
            return put_parts(py, &sender, parts, &beside, tag, stream);
        }
        if source::is_torchs(data, sender.publisher.domain())? {
            return put_by_torch(py, sender, data, &beside, tag, stream);
        }
        let source = Source::of(data, stream)?;
        sender.check_declared("the array", source.tensor())?;
        sender.check_room(py, source.bytes())?;
        let mut loan = sender.loan(py, source.bytes())?;
        beside.set(&mut loan)?;
        loan.set_tag(tag);
        if let Some((dtype, shape)) = source.tensor() {
            loan.set_shape(dtype, shape)
                .map_err(IntoPyErr::into_py_err)?;
        }
        source.copy_into(py, &mut loan, 0)?;
        sender.publish(py, &mut Some(loan), order::named(stream)?)
    }

    /// Publishes a copy of ``data`` as `put` does, with the same keywords, for ``await``: waiting for memory or for
    /// readers does not stop the event loop. Until it returns, do not change the data. A call that is
    /// cancelled publishes nothing.
    #[pyo3(signature = (data, **keywords))]
    fn put_async<'py>(
        slf: &Bound<'py, Self>,
        data: &Bound<'py, PyAny>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("rgaps._asyncio")?;
        module.call_method1("put", (slf, data, keywords))
    }

    /// For `rgaps._asyncio`: the same publisher, which raises `WouldWait` where this one waits.
    #[pyo3(signature = (overdue))]
    fn _at_once(&self, overdue: bool) -> PyResult<Publisher> {
        let sender = self.sender.get()?;
        Ok(Publisher::new(sender.with(Waits::No { overdue })))
    }

    /// For `rgaps._asyncio`: seconds that are waited at most for ``"room"`` or ``"memory"``; None: for ever.
    fn _limit(&self, what: &str) -> PyResult<Option<f64>> {
        let sender = self.sender.get()?;
        let limit = match what {
            "room" => sender.deadline,
            _ => sender.loan_timeout,
        };
        Ok(limit.map(|limit| limit.as_secs_f64()))
    }

    /// For the threads of `rgaps._asyncio`: waits for room, at most ``seconds``.
    fn _wait_for_room(&self, py: Python<'_>, bytes: u64, seconds: f64) -> PyResult<bool> {
        let publisher = self.sender.get()?.publisher;
        let slice = crate::wait::duration("seconds", seconds)?;
        py.detach(|| publisher.wait_for_room(bytes, slice))
            .map_err(IntoPyErr::into_py_err)
    }

    /// For the threads of `rgaps._asyncio`: leases memory for a loan, waiting for a slice. Without memory it raises,
    /// if this is the ``last`` time.
    fn _wait_for_memory(&self, py: Python<'_>, bytes: u64, last: bool) -> PyResult<()> {
        let publisher = self.sender.get()?.publisher;
        py.detach(|| match publisher.loan(bytes) {
            Err(error) if last || !is_shortage(&error) => Err(error.into_py_err()),
            // What was loaned goes back to the publisher's own memory, where the caller finds it.
            _ => Ok(()),
        })
    }

    /// For the threads of `rgaps._asyncio`: raises `BackPressured` if there is no room now and the publisher does not
    /// drop slow readers.
    fn _check_overdue(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        let publisher = self.sender.get()?.publisher;
        match py.detach(|| publisher.overdue(bytes)) {
            Some(error) => Err(error.into_py_err()),
            None => Ok(()),
        }
    }

    /// Waits until the topic has ``n`` subscribers. False: not in time; `missing_subscribers` says why.
    #[pyo3(signature = (n=1, timeout=None))]
    fn wait_for_subscribers(&self, py: Python<'_>, n: u32, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = crate::wait::timeout("timeout", timeout)?;
        let publisher = self.sender.get()?.publisher;
        let found = in_slices(py, timeout, |slice| {
            let found = publisher.wait_for_subscribers(n, slice);
            found
                .map(|found| found.then_some(()))
                .map_err(IntoPyErr::into_py_err)
        })?;
        Ok(found.is_some())
    }

    /// How many of ``n`` subscribers there are, in words, with the hosts whose subscribers are not reached,
    /// and why: a rule, a quota, a path that is too slow.
    #[pyo3(signature = (n=1))]
    fn missing_subscribers(&self, py: Python<'_>, n: u32) -> PyResult<String> {
        let publisher = self.sender.get()?.publisher;
        Ok(py.detach(|| publisher.missing_subscribers(n)))
    }

    /// Gives memory that no message needs now back to the pool, but for ``keep_bytes``. Returns
    /// how many bytes that was.
    #[pyo3(signature = (keep_bytes=0))]
    fn trim(&self, py: Python<'_>, keep_bytes: u64) -> PyResult<u64> {
        let publisher = self.sender.get()?.publisher;
        py.detach(|| publisher.trim(keep_bytes))
            .map_err(IntoPyErr::into_py_err)
    }

    /// Leaves the topic, once its open loans are gone too.
    fn close(&self, py: Python<'_>) {
        drop_detached(py, self.sender.take());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!(
            "<rgaps.Publisher '{}' in {}{state}>",
            self.topic, self.domain
        )
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let mut sender = self.sender.take();
        // Leaving asks the daemon. None while the interpreter shuts down.
        let _ = Python::try_attach(|py| drop_detached(py, sender.take()));
    }
}

/// A time-out of the user's as one of a publisher's own, at most a slice.
pub(crate) fn sliced(name: &str, seconds: Option<f64>) -> PyResult<(Option<Duration>, Duration)> {
    let whole = timeout(name, seconds)?;
    let slice = whole.map_or(crate::wait::SLICE, |whole| whole.min(crate::wait::SLICE));
    Ok((whole, slice))
}
