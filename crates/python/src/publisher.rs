//! Publishers.

use crate::argument::{self, about};
use crate::declared;
use crate::error::{closed, in_python, invalid, unless_raised, IntoPyErr};
use crate::framework::Framework;
use crate::handle::{drop_detached, Handle};
use crate::listener::{Listener, Listeners};
use crate::loan::{self, Form, LoanBase};
use crate::metadata::Beside;
use crate::source::{self, Source};
use crate::wait::{in_slices, timeout};
use crate::{order, part};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use rgaps::{DType, Domain, LoanError, PartSpec, PublishError, Stream, TensorType};
use rgaps_client::bindings::{Patience, PatientPublisher};
use std::sync::Arc;
use std::time::Duration;

/// Whether calls wait for room in the ring and for memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Yes,
    /// They raise `WouldWait` to `rgaps._asyncio`, which waits in another thread. `overdue`: the publisher's deadline has
    /// passed, so its policy for slow readers decides.
    No {
        overdue: bool,
    },
}

/// A publisher and the user's time-outs. The Rust publisher waits for at most a slice at a time, so that Ctrl-C can interrupt
/// it; the whole time-outs are here.
#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) publisher: rgaps::Publisher,
    /// How long a publish waits for slow subscribers; None: without limit.
    pub(crate) deadline: Option<Duration>,
    /// How long a loan waits for memory; None: without limit.
    pub(crate) loan_timeout: Option<Duration>,
    pub(crate) waits: Waits,
    /// The declared type of its messages, if that is a tensor's; else None.
    pub(crate) declared: Option<Arc<TensorType>>,
    /// The framework of the dtype with which the user declared it.
    pub(crate) framework: Framework,
}

fn would_wait(py: Python<'_>, what: &str, bytes: u64) -> PyErr {
    let class = py
        .import("rgaps._asyncio")
        .and_then(|module| module.getattr("WouldWait"));
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

    /// Fails in a forked child.
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

    /// Raises `WouldWait` if this sender must not wait and publishing `bytes` bytes would wait for readers. The caller then
    /// has not filled the message yet, and tries again later.
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

    /// A loan for parts of `bytes` bytes in total.
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

    /// Publishes the loan. If that fails and a retry is possible, leaves the loan in `loan`.
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

/// Tries to publish. Returns None if it would have to wait for a reliable subscriber. Leaves the loan in `loan` if it can be
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
    listeners: Listeners,
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
            listeners: Listeners::default(),
            sender: Handle::new("publisher", sender),
        }
    }
}

/// The lengths of a shape, from a number or a sequence of numbers.
fn shape(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let lengths = match unless_raised(object.extract::<i64>())? {
        Some(length) => vec![length],
        None => unless_raised(object.extract::<Vec<i64>>())?.ok_or_else(|| {
            about(object, |shown| {
                invalid(format!(
                    "shape must be a length, a sequence of lengths, or a dictionary of parts, not {shown}"
                ))
            })
        })?,
    };
    let wrong = |length: i64| {
        invalid(format!(
            "shape: a dimension cannot have the length {length}; give 0 or more"
        ))
    };
    let lengths = lengths.into_iter();
    lengths
        .map(|length| u64::try_from(length).map_err(|_| wrong(length)))
        .collect()
}

/// Converts strides in bytes to strides in elements.
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

/// Lets torch copy a tensor into a loan, and publishes the loan behind the stream of the copy.
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

/// Publishes a copy of arrays as one message with parts.
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

/// A loan with parts. `parts` maps each name to a pair of shape and element type.
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
        // The user fills the parts one by one; a loan on a GPU with parts for torch is published behind torch's current stream.
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
    /// The name of the topic.
    #[getter]
    fn topic(&self) -> &str {
        &self.topic
    }

    /// The declared type of its messages; empty if it declares none.
    #[getter]
    fn r#type(&self) -> &str {
        &self.type_name
    }

    /// The domain that holds the messages: ``"host"`` or ``"cuda:GPU-<UUID>"``.
    #[getter]
    fn domain(&self) -> &str {
        &self.domain
    }

    /// Whether the publisher was closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.sender.is_open()
    }

    /// How many subscribers on this host do not match this publisher. They expect another type, or request a quality of
    /// service that it does not offer, and get none of its messages.
    #[getter]
    fn mismatched(&self) -> PyResult<u32> {
        Ok(self.sender.get()?.publisher.mismatched())
    }

    /// Why those subscribers do not match: one text each, for the first few. Asks the daemon.
    fn mismatches(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let sender = self.sender.get()?;
        let reasons = py.detach(|| sender.publisher.mismatches());
        let reasons = reasons.map_err(IntoPyErr::into_py_err)?;
        Ok(reasons.into_iter().map(in_python).collect())
    }

    /// How many subscribers match this publisher now, including those on other hosts.
    #[getter]
    fn subscribers(&self) -> PyResult<u32> {
        Ok(self.sender.get()?.publisher.subscribers())
    }

    /// Loans a block of the topic's memory for one message. Fill it, then publish it: no copy is made.
    ///
    /// In a with statement the loan is published at the end, or discarded after an exception. The statement gives a torch
    /// tensor if ``dtype`` is a dtype of torch, a numpy array if it is one of numpy, and otherwise the loan itself::
    ///
    ///     with pub.loan((1080, 1920, 3), numpy.uint8) as image:
    ///         camera.read_into(image)
    ///
    /// Args:
    ///     shape: A length, or a sequence of lengths. Or a dictionary ``{name: (shape, dtype), ...}``: the message then has
    ///         parts, named arrays in one block, to be filled with ``loan["name"][...] = array``; at most 32 parts, with names
    ///         of 1 to 63 bytes. Default: the shape that the publisher declares, if it declares a whole one.
    ///     dtype: The element type: a name like ``"float16"``, or a dtype of numpy or torch. Default: the publisher's, or bytes.
    ///     strides: Bytes from one element to the next, per dimension, as in numpy. Default: row-major order.
    ///     tag: A number (64 bits, unsigned) that travels with the message; its meaning is yours. Default: 0.
    ///     meta: A dictionary that travels beside the message as its header: ``capture_ns`` (when the data was captured,
    ///         nanoseconds since 1970-01-01 UTC), ``frame_id`` (text), and any keys of your own, with None, bool, int, float,
    ///         str, bytes, lists and dictionaries as values. At most 4096 bytes when encoded. Default: none.
    ///     attachment: Instead of ``meta``, up to 4096 bytes that travel beside the message. Default: none.
    ///
    /// Returns:
    ///     The loan. It does not contain zeros: until you write them, its bytes are mostly those of an earlier message.
    ///
    /// Raises:
    ///     PoolFull: The pool is at its cap, and no memory was returned within ``loan_timeout``.
    ///     TooLarge: The message is larger than the pool, or than the limit of the history.
    ///     TooManyLoans: ``max_loans`` loans are open.
    #[pyo3(signature = (shape=None, dtype=None, *, strides=None, tag=0, meta=None, attachment=None))]
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn loan<'py>(
        &self,
        py: Python<'py>,
        shape: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = argument::strides)] strides: Option<Vec<i64>>,
        #[pyo3(from_py_with = argument::tag)] tag: u64,
        meta: Option<&Bound<'py, PyAny>>,
        attachment: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let sender = self.sender.get()?;
        let beside = Beside::of(meta, attachment)?;
        if let Some(parts) = shape.and_then(|shape| shape.cast::<PyDict>().ok()) {
            if dtype.is_some() || strides.is_some() {
                return Err(invalid(
                    "each part has its own element type; give {name: (shape, dtype)} and leave dtype out",
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
                invalid("give a shape: this publisher declares none, or one with free lengths")
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

    /// Like `loan`, with the same arguments, for ``await`` and ``async with``. Waiting for memory does not block the event
    /// loop. ``async with`` publishes the loan at its end; waiting for subscribers does not block the loop either.
    #[pyo3(signature = (*arguments, **keywords))]
    fn loan_async<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("rgaps._asyncio")?;
        module.call_method1("Lending", (slf, arguments, keywords))
    }

    /// Publishes a copy of ``data``. To publish without a copy, use `loan`.
    ///
    /// Args:
    ///     data: Bytes, an array or a tensor, on the host or on a GPU: anything with the buffer protocol, DLPack or
    ///         ``__cuda_array_interface__``. The message has row-major order, whatever the array's strides. Or a dictionary
    ///         ``{name: array, ...}``, which becomes one message with parts: named arrays in one block; at most 32 parts, with
    ///         names of 1 to 63 bytes.
    ///     tag: A number (64 bits, unsigned) that travels with the message; its meaning is yours. Default: 0.
    ///     stream: For data on a GPU, the CUDA stream whose queued work writes the data; the copy comes after that work. torch
    ///         copies its own tensors, on its current stream. Default: the default stream.
    ///     meta: A dictionary that travels beside the message as its header, as for `loan`. Default: none.
    ///     attachment: Instead of ``meta``, up to 4096 bytes that travel beside the message. Default: none.
    ///
    /// Returns:
    ///     The message's sequence number, which counts from 0 for each publisher.
    ///
    /// Raises:
    ///     BackPressured: Reliable subscribers made no room within ``deadline``. Nothing was published.
    ///     PoolFull: The pool is at its cap, and no memory was returned within ``loan_timeout``.
    ///     TypeMismatch: The data is not of the type that the publisher declares.
    #[pyo3(signature = (data, *, tag=0, stream=None, meta=None, attachment=None))]
    fn put(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::tag)] tag: u64,
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

    /// Like `put`, with the same arguments, for ``await``. Waiting for memory or for subscribers does not block the event
    /// loop. Do not change the data before the call returns. A call that is cancelled while it waits publishes nothing.
    ///
    /// Args:
    ///     data: As for `put`.
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

    /// For `rgaps._asyncio`: how many seconds to wait for ``"room"`` or ``"memory"``; None: without limit.
    fn _limit(&self, what: &str) -> PyResult<Option<f64>> {
        let sender = self.sender.get()?;
        let limit = match what {
            "room" => sender.deadline,
            _ => sender.loan_timeout,
        };
        Ok(limit.map(|limit| limit.as_secs_f64()))
    }

    /// For the threads of `rgaps._asyncio`: waits for room, at most ``seconds``. Returns False if there is none then.
    fn _wait_for_room(&self, py: Python<'_>, bytes: u64, seconds: f64) -> PyResult<bool> {
        let publisher = self.sender.get()?.publisher;
        let slice = crate::wait::duration("seconds", seconds)?;
        py.detach(|| publisher.wait_for_room(bytes, slice))
            .map_err(IntoPyErr::into_py_err)
    }

    /// For the threads of `rgaps._asyncio`: leases memory for a loan, and waits for at most a slice. If there is still no
    /// memory, it raises if this is the ``last`` try.
    fn _wait_for_memory(&self, py: Python<'_>, bytes: u64, last: bool) -> PyResult<()> {
        let publisher = self.sender.get()?.publisher;
        py.detach(|| match publisher.loan(bytes) {
            Err(error) if last || !is_shortage(&error) => Err(error.into_py_err()),
            // Dropping the loan returns its block to the publisher's arena, where the caller's next try finds it.
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

    /// Waits until ``n`` subscribers match this publisher, including those on other hosts.
    ///
    /// Args:
    ///     n: How many subscribers to wait for. Default: 1.
    ///     timeout: How many seconds to wait. Default: None, without limit.
    ///
    /// Returns:
    ///     False if there were fewer than ``n`` after ``timeout``; `missing_subscribers` then says why.
    #[pyo3(signature = (n=1, timeout=None))]
    fn wait_for_subscribers(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::n)] n: u32,
        #[pyo3(from_py_with = argument::timeout)] timeout: Option<f64>,
    ) -> PyResult<bool> {
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

    /// A text that says how many subscribers there are, which ones do not match, and which hosts' subscribers cannot be
    /// reached because of a rule, a quota or a slow path.
    ///
    /// Args:
    ///     n: How many subscribers you wait for. Default: 1.
    #[pyo3(signature = (n=1))]
    fn missing_subscribers(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::n)] n: u32,
    ) -> PyResult<String> {
        let publisher = self.sender.get()?.publisher;
        Ok(in_python(py.detach(|| publisher.missing_subscribers(n))))
    }

    /// Calls ``callback`` with the subscribers that match already, if there are any, and then whenever subscribers come or go,
    /// in a thread of its own. Subscribers on other hosts count, and observers such as ``rgaps topic echo``.
    ///
    /// Args:
    ///     callback: Called with an `rgaps.Matched`. An exception that it raises goes to ``sys.unraisablehook``, and the
    ///         listener continues.
    ///
    /// Returns:
    ///     The listener. It stops when it or the publisher is closed, or when neither is referenced any more.
    fn on_matched(&self, callback: &Bound<'_, PyAny>) -> PyResult<Listener> {
        let publisher = self.sender.get()?.publisher;
        self.listeners
            .on_matched(callback, |handler| publisher.on_matched(handler))
    }

    /// Returns unused memory to the pools, and returns how many bytes that was.
    ///
    /// Args:
    ///     keep_bytes: How many bytes of unused memory the publisher keeps in each pool. Default: 0.
    #[pyo3(signature = (keep_bytes=0))]
    fn trim(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::keep_bytes)] keep_bytes: u64,
    ) -> PyResult<u64> {
        let publisher = self.sender.get()?.publisher;
        py.detach(|| publisher.trim(keep_bytes))
            .map_err(IntoPyErr::into_py_err)
    }

    /// Closes the publisher. It leaves the topic once its open loans are published or discarded.
    fn close(&self, py: Python<'_>) {
        self.listeners.stop(py);
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
        // Dropped detached: leaving asks the daemon, and the last reference to a listener waits for its thread.
        let mut parts = Some((self.sender.take(), self.listeners.take()));
        // Attaching fails while the interpreter shuts down.
        let _ = Python::try_attach(|py| drop_detached(py, parts.take()));
    }
}

/// The user's time-out (None: without limit), and the time-out of the Rust publisher, which is at most a slice.
pub(crate) fn sliced(name: &str, seconds: Option<f64>) -> PyResult<(Option<Duration>, Duration)> {
    let whole = timeout(name, seconds)?;
    let slice = whole.map_or(crate::wait::SLICE, |whole| whole.min(crate::wait::SLICE));
    Ok((whole, slice))
}
