//! Loans: blocks that a publisher fills.

use crate::argument;
use crate::buffer::{with_buffer, Exporter, View};
use crate::dlpack::dlpack_methods;
use crate::error::{closed, invalid, unless_raised, warn, IntoPyErr};
use crate::framework::{Framework, Given};
use crate::geometry::Geometry;
use crate::metadata::Beside;
use crate::owner::{drop_block, Block, Owner};
use crate::publisher::{Publisher, Sender, Waits};
use crate::source::Source;
use crate::{device, dlpack, dtype, metadata, order, part};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyMappingProxy, PyMemoryView, PyString, PyTuple, PyType};
use rgaps::{DType, Domain, LoanError, Stream, Tensor};
use rgaps_client::bindings::{SetMetadata, WithMetadata};
use rgaps_sync::lock;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

thread_local! {
    /// The content of the next `_LoanBase()`: `wrap` sets it before it calls the class (see `sample.rs`).
    static NEXT: RefCell<Option<LoanBase>> = const { RefCell::new(None) };
}

/// A loan, without the buffer protocol.
#[pyclass(frozen, subclass, weakref, name = "_LoanBase", module = "rgaps")]
pub(crate) struct LoanBase {
    /// None: published or discarded.
    block: Mutex<Option<Arc<Block>>>,
    sender: Sender,
    form: Mutex<Form>,
    framework: Framework,
    given: Mutex<Vec<Given>>,
    /// For a loan with parts: their names, and the framework whose arrays they become. None: the loan is one array.
    parts: Option<Vec<(String, Framework)>>,
    tag: AtomicU64,
    domain: Domain,
}

/// The array that a loan's bytes are.
#[derive(Clone)]
pub(crate) struct Form {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    /// In elements; None for row-major order.
    pub(crate) strides: Option<Vec<i64>>,
}

impl Form {
    /// The tensor, and the number of bytes from its first element to the end of its last.
    pub(crate) fn tensor(&self) -> PyResult<(Tensor, u64)> {
        let wrong = |error: rgaps::tensor::ShapeError| invalid(error.to_string());
        let Some(strides) = &self.strides else {
            return rgaps::tensor::contiguous(self.dtype, &self.shape).map_err(wrong);
        };
        let tensor = rgaps::tensor::strided(self.dtype, &self.shape, strides).map_err(wrong)?;
        let bytes = rgaps::tensor::span_bytes(&tensor).map_err(wrong)?;
        Ok((tensor, bytes))
    }
}

/// The class `rgaps.Loan`.
pub(crate) fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let class = CLASS.get_or_try_init(py, || {
        let doc =
            c"A block of the topic's pool that is being filled. Publish it, discard it, or use \
            it in a with statement, which publishes at its end unless there was an exception.";
        with_buffer::<LoanBase>(py, c"rgaps.Loan", doc).map(Bound::unbind)
    })?;
    Ok(class.bind(py))
}

/// Makes an `rgaps.Loan`.
pub(crate) fn wrap<'py>(
    py: Python<'py>,
    loan: rgaps::Loan,
    sender: Sender,
    form: Form,
    framework: Framework,
    parts: Option<Vec<(String, Framework)>>,
    tag: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let base = LoanBase {
        domain: loan.domain(),
        block: Mutex::new(Some(Arc::new(Block::new(loan)))),
        sender,
        form: Mutex::new(form),
        framework,
        given: Mutex::default(),
        parts,
        tag: AtomicU64::new(tag),
    };
    let class = class(py)?;
    NEXT.with(|next| next.replace(Some(base)));
    class.call0()
}

impl LoanBase {
    fn block(&self) -> PyResult<Arc<Block>> {
        lock(&self.block).clone().ok_or_else(|| closed("loan"))
    }

    fn take(&self) -> PyResult<Arc<Block>> {
        lock(&self.block).take().ok_or_else(|| closed("loan"))
    }

    fn put_back(&self, block: Arc<Block>) {
        *lock(&self.block) = Some(block);
    }

    fn geometry(&self) -> PyResult<Geometry> {
        let (tensor, bytes) = lock(&self.form).tensor()?;
        Ok(Geometry::of(Some(&tensor), bytes))
    }

    fn view_anywhere(&self) -> PyResult<View> {
        let block = self.block()?;
        self.sender.check()?;
        let view = block.view().ok_or_else(|| closed("loan"))?;
        Ok(View {
            address: block.address,
            geometry: self.geometry()?,
            readonly: false,
            owner: Owner::Loan(view),
        })
    }

    /// Takes the block's loan if the block has no views. Otherwise returns a new loan with a copy of the bytes, and warns.
    fn take_loan(
        &self,
        py: Python<'_>,
        sender: &Sender,
        block: &Arc<Block>,
        stream: Stream,
    ) -> PyResult<rgaps::Loan> {
        if let Some(loan) = block.take_unshared() {
            return Ok(loan);
        }
        let bytes = block.with_loan(|loan| Ok(loan.len()))?;
        let message = format!(
            "the loan on topic '{}' is published by a copy of its {bytes} bytes, since an array over it \
             is still alive ({}): delete it first ('del array'), or write without keeping one \
             (loan.numpy()[...] = x)",
            self.sender.publisher.topic(),
            block.views(),
        );
        warn(py, "CopyWarning", &message)?;
        let mut copy = sender.loan(py, bytes)?;
        // SAFETY: `block` still has the loan, since `take_unshared` did not take it, and the loan keeps `bytes` bytes mapped at
        // the address. Our reference keeps `block` until the copy is done.
        py.detach(|| unsafe { order::copy(&mut copy, 0, block.address, bytes, &[stream]) })
            .map_err(IntoPyErr::into_py_err)?;
        block.with_loan(|loan| {
            if let Some(beside) = loan.metadata() {
                let fits = copy.set_metadata(beside.lengths(), beside.as_bytes());
                debug_assert!(fits, "it was set before");
            }
            Ok(())
        })?;
        Ok(copy)
    }

    /// The stream behind which the loan is published. `named` is the user's argument.
    fn stream(
        &self,
        py: Python<'_>,
        block: &Block,
        named: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Stream> {
        match (named, self.domain, self.framework) {
            (None, Domain::Cuda(uuid), Framework::Torch) => {
                order::current_of_torch(py, device::ordinal(uuid)?)
            }
            (None, _, _) => Ok(block.last_stream().unwrap_or(Stream(0))),
            (Some(object), _, _) => match unless_raised(object.extract::<i64>())? {
                Some(-1) => Ok(Stream::NONE),
                _ => order::named(named),
            },
        }
    }

    fn publish_block(
        &self,
        py: Python<'_>,
        sender: &Sender,
        block: &mut Arc<Block>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        sender.check_room(py, block.with_loan(|loan| Ok(loan.len()))?)?;
        let form = lock(&self.form).clone();
        let tensor = match self.parts {
            Some(_) => None,
            None => Some(form.tensor()?.0),
        };
        let declared = tensor.map(|_| (form.dtype, &form.shape[..]));
        self.sender.check_declared("the loan", declared)?;
        let stream = self.stream(py, block, stream)?;
        if stream != Stream::NONE {
            block.join(stream).map_err(IntoPyErr::into_py_err)?;
        }
        let mut loan = self.take_loan(py, sender, block, stream)?;
        let is_copy = block.has_loan();
        loan.set_tag(self.tag.load(Ordering::Relaxed));
        let shaped = tensor.map_or(Ok(()), |tensor| loan.set_tensor(tensor));
        let mut loan = Some(loan);
        let outcome = shaped
            .map_err(IntoPyErr::into_py_err)
            .and_then(|()| sender.publish(py, &mut loan, stream));
        match loan {
            // It failed, and the loan can be published again.
            Some(unpublished) if !is_copy => *block = Arc::new(Block::new(unpublished)),
            // It was published or lost, or it is a copy, which is dropped.
            _ => {}
        }
        outcome
    }

    fn publish_by(
        &self,
        py: Python<'_>,
        sender: &Sender,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let mut block = self.take()?;
        let outcome = self.publish_block(py, sender, &mut block, stream);
        match &outcome {
            // Dropping waits for nothing, so stay attached: attaching again may take long.
            Ok(_) if !block.has_loan() => drop(block),
            Ok(_) => drop_block(self.domain, block),
            Err(_) if block.has_loan() => self.put_back(block),
            Err(_) => {}
        }
        outcome
    }
}

impl Exporter for LoanBase {
    fn view(&self, _: Python<'_>) -> PyResult<View> {
        if self.domain != Domain::Host {
            return Err(PyBufferError::new_err(format!(
                "the loan is in {}, so numpy and the buffer protocol cannot address it; use torch.from_dlpack, or write()",
                self.domain
            )));
        }
        self.view_anywhere()
    }
}

dlpack_methods!(LoanBase);

#[pymethods]
impl LoanBase {
    #[new]
    fn new() -> PyResult<LoanBase> {
        let next = NEXT.with(|next| next.take());
        next.ok_or_else(|| PyTypeError::new_err("loans come from publishers"))
    }

    /// The name of the topic.
    #[getter]
    fn topic(&self) -> &str {
        self.sender.publisher.topic()
    }

    /// The domain that holds the bytes: ``"host"`` or ``"cuda:GPU-<UUID>"``.
    #[getter]
    fn domain(&self) -> String {
        self.domain.to_string()
    }

    /// Lengths of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.geometry()?.shape())
    }

    /// Bytes from one element to the next, per dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.geometry()?.strides_bytes())
    }

    /// Name of the element type.
    #[getter]
    fn dtype(&self) -> String {
        lock(&self.form).dtype.to_string()
    }

    /// Length of the message in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.geometry()?.elements_bytes() as u64)
    }

    /// Address of the first byte in this process: a host pointer, or a device pointer of the GPU.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        Ok(self.block()?.address)
    }

    /// A number (64 bits, unsigned) that travels with the message; its meaning is yours. Default: 0.
    #[getter]
    fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_tag(&self, #[pyo3(from_py_with = argument::tag)] tag: u64) {
        self.tag.store(tag, Ordering::Relaxed);
    }

    /// Whether the loan is open: neither published nor discarded.
    #[getter]
    fn open(&self) -> bool {
        lock(&self.block).is_some()
    }

    /// A writable numpy array over the bytes, without a copy. Delete it before the loan is published; otherwise rgaps
    /// publishes a copy, with a `CopyWarning`.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        part::check_single("loan", &slf.get().keys())?;
        py.import("rgaps._numpy")?.call_method1("as_array", (slf,))
    }

    /// The header, which travels beside the message: a dictionary with ``capture_ns`` (nanoseconds since 1970-01-01 UTC),
    /// ``frame_id`` (text) and any keys of your own; empty without a header. It cannot be changed in place: assign a whole
    /// dictionary, ``loan.meta = {**loan.meta, "gain": 1.5}``. Setting it replaces an attachment.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMappingProxy>> {
        let header = self.block()?.with_loan(|loan| {
            let beside = loan.metadata().filter(|beside| beside.is_header());
            let header = beside.map(|beside| rgaps::Header::decode(beside.attachment()));
            header.transpose().map_err(IntoPyErr::into_py_err)
        })?;
        metadata::to_mapping(py, &header.unwrap_or_default())
    }

    #[setter]
    fn set_meta(&self, meta: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_beside(&Beside::of(Some(meta), None)?)
    }

    /// Up to 4096 bytes that travel beside the message; None without an attachment. Setting them replaces ``meta``.
    #[getter]
    fn attachment<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.block()?.with_loan(|loan| {
            let bytes = loan.metadata().map(|beside| beside.attachment());
            let bytes = bytes.filter(|bytes| !bytes.is_empty());
            Ok(bytes.map(|bytes| PyBytes::new(py, bytes)))
        })
    }

    #[setter]
    fn set_attachment(&self, attachment: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let bytes = attachment.map(metadata::bytes_of).transpose()?;
        self.set_beside(&Beside::Attachment(bytes.unwrap_or_default()))
    }

    /// The names of the loan's parts; empty if the loan is one array.
    fn keys(&self) -> Vec<&str> {
        let parts = self.parts.iter().flatten();
        parts.map(|(name, _)| name.as_str()).collect()
    }

    /// ``loan["rgb"]`` is a writable array over a part, without a copy: a torch tensor if the part's dtype is one of torch, or
    /// on a GPU; otherwise a numpy array. Delete it before the loan is published. A with statement empties the array at its
    /// end.
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::part_name)] name: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let block = self.block()?;
        let found = block.with_loan(|loan| match loan.part(&name) {
            Ok(part) => Ok(part),
            Err(error @ LoanError::Parts(_)) => Err(part::unknown(&error)),
            Err(error) => Err(error.into_py_err()),
        })?;
        let whole = part::Whole::Loan(Arc::downgrade(&block));
        let part = part::wrap(py, whole, &found, self.domain)?;
        let mut parts = self.parts.iter().flatten();
        let framework = parts.find(|(known, _)| *known == name);
        let framework = framework.map_or(Framework::Any, |(_, framework)| *framework);
        let Some((given, array)) = Given::new(framework, &part, self.domain)? else {
            return Ok(part);
        };
        let mut all = lock(&self.given);
        all.retain(|given| given.is_alive(py));
        all.push(given);
        Ok(array)
    }

    /// ``loan[...] = array`` copies into the loan, with numpy. ``loan["rgb"] = array`` copies into a part, from the host or a
    /// GPU; the array must have the part's element type and shape.
    fn __setitem__(
        slf: &Bound<'_, Self>,
        key: Bound<'_, PyAny>,
        value: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if let Ok(name) = key.cast::<PyString>() {
            return slf.get().write_part(slf.py(), &name.to_cow()?, &value);
        }
        LoanBase::numpy(slf)?.set_item(key, value)
    }

    /// Copies bytes, or the elements of an array in row-major order, into the loan, starting at byte ``at``. Returns the
    /// number of bytes copied.
    ///
    /// Args:
    ///     data: Bytes, an array, or any object with the buffer protocol or DLPack.
    ///     at: Where the copy begins, in bytes from the message's first byte. Default: 0.
    #[pyo3(signature = (data, at=0))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument::at)] at: u64,
    ) -> PyResult<u64> {
        let source = Source::of(data, None)?;
        let block = self.take()?;
        let outcome = block.with_loan(|loan| source.copy_into(py, loan, at));
        self.put_back(block);
        outcome?;
        Ok(source.bytes())
    }

    /// Shortens the message.
    ///
    /// Args:
    ///     length: The new length of the first dimension: elements of an array, or bytes.
    fn truncate(&self, #[pyo3(from_py_with = argument::length)] length: u64) -> PyResult<()> {
        if self.parts.is_some() {
            return Err(invalid(
                "a loan with parts cannot be shortened; loan smaller parts",
            ));
        }
        let block = self.block()?;
        let mut form = lock(&self.form);
        match form.shape.first_mut() {
            Some(first) if length <= *first => *first = length,
            Some(first) => {
                return Err(invalid(format!(
                "a length of {length} is over the {first} that were loaned; truncate only shortens"
            )))
            }
            None => {
                return Err(invalid(
                    "a loan without dimensions has no length to shorten",
                ))
            }
        }
        let (_, bytes) = form.tensor()?;
        block.with_loan(|loan| {
            loan.truncate(bytes);
            Ok(())
        })
    }

    /// A writable torch tensor over the bytes, without a copy, ordered on torch's current stream. Delete it before the loan is
    /// published; otherwise rgaps publishes a copy, with a `CopyWarning`.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        part::check_single("loan", &slf.get().keys())?;
        py.import("rgaps._torch")?.call_method1("as_tensor", (slf,))
    }

    /// Publishes the message. If an array over the loan is still alive, publishes a copy, with a `CopyWarning`.
    ///
    /// Args:
    ///     stream: For a loan on a GPU, a CUDA stream (of torch or cupy, or its handle) whose queued work writes the message.
    ///         Subscribers see the message after the work queued so far on this stream, and on the streams that consumers named
    ///         to ``__dlpack__``; the call does not wait for that work. ``stream=-1`` promises that all of that work has
    ///         finished. Default: None, which adds torch's current stream for a loan with a dtype of torch, and the default
    ///         stream if there was no consumer.
    ///
    /// Returns:
    ///     The message's sequence number, which counts from 0 for each publisher.
    ///
    /// Raises:
    ///     BackPressured: Reliable subscribers made no room within ``deadline``. Nothing was published, and the loan is open.
    ///     TypeMismatch: The message is not of the type that the publisher declares.
    ///     Closed: The loan was published or discarded before.
    #[pyo3(signature = (*, stream=None))]
    pub(crate) fn publish(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        self.publish_by(py, &self.sender, stream)
    }

    /// Like `publish`, for ``await``: waiting for subscribers does not block the event loop. A call that is cancelled while it
    /// waits publishes nothing, and the loan stays open.
    ///
    /// Args:
    ///     stream: As for `publish`. Default: as for `publish`.
    #[pyo3(signature = (*, stream=None))]
    fn publish_async<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("rgaps._asyncio")?;
        module.call_method1("publish", (slf, stream))
    }

    /// For `rgaps._asyncio`: publishes, or raises `WouldWait`.
    #[pyo3(signature = (overdue, stream=None))]
    fn _publish_at_once(
        &self,
        py: Python<'_>,
        overdue: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        self.publish_by(py, &self.sender.with(Waits::No { overdue }), stream)
    }

    /// For `rgaps._asyncio`: the publisher.
    fn _publisher(&self) -> Publisher {
        Publisher::new(self.sender.clone())
    }

    /// Gives the block back without publishing it.
    fn discard(&self) {
        let block = lock(&self.block).take();
        drop_block(self.domain, block);
    }

    /// numpy's array interface, for a loan in host memory.
    #[getter]
    fn __array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let (py, this) = (slf.py(), slf.get());
        if this.domain != Domain::Host {
            return Err(PyAttributeError::new_err("the bytes are not on the host"));
        }
        // A memoryview instead of an address, so that rgaps knows how long the consumer uses the bytes.
        this.interface(py, PyMemoryView::from(slf.as_any())?.into_any())
    }

    /// The array interface of numba and cupy, for a loan on a GPU. A consumer that takes the address from here must not write
    /// after the loan is published; ``__dlpack__`` is safer.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.domain == Domain::Host {
            return Err(PyAttributeError::new_err("the bytes are on the host"));
        }
        let data = (self.block()?.address, false).into_pyobject(py)?;
        let dict = self.interface(py, data.into_any())?;
        dict.set_item("stream", py.None())?;
        Ok(dict)
    }

    /// Gives the with statement a torch tensor or numpy array to fill, if the loan's dtype is one of torch or numpy;
    /// otherwise the loan itself.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        if this.parts.is_some() {
            // The user takes the arrays of the parts from the loan.
            return Ok(slf.as_any().clone());
        }
        match Given::new(this.framework, slf.as_any(), this.domain)? {
            None => Ok(slf.as_any().clone()),
            Some((given, array)) => {
                lock(&this.given).push(given);
                Ok(array)
            }
        }
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        exception: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if self._is_filled(py, !exception.is_none())? {
            self.publish(py, None)?;
        }
        Ok(())
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("rgaps._asyncio")?;
        module.call_method1("enter", (slf,))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        exception: &Bound<'py, PyAny>,
        _value: &Bound<'py, PyAny>,
        _traceback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("rgaps._asyncio")?;
        module.call_method1("leave", (slf, !exception.is_none()))
    }

    /// Ends a with statement: empties the arrays that the loan gave, and discards the loan after an exception. Returns whether
    /// the loan should be published.
    fn _is_filled(&self, py: Python<'_>, failed: bool) -> PyResult<bool> {
        let given = std::mem::take(&mut *lock(&self.given));
        if self.open() {
            for given in given {
                given.take_back(py)?;
            }
        }
        if failed {
            self.discard();
        }
        Ok(self.open())
    }

    fn __repr__(&self) -> String {
        let state = if self.open() { "" } else { ", closed" };
        let form = lock(&self.form);
        let kind = match self.keys().as_slice() {
            [] => format!("{} {:?}", form.dtype, form.shape),
            names => part::listed(names),
        };
        format!("<rgaps.Loan '{}': {kind}{state}>", self.topic())
    }
}

impl LoanBase {
    fn set_beside(&self, beside: &Beside) -> PyResult<()> {
        self.block()?.with_loan(|loan| beside.set(loan))
    }

    /// Copies an array into a part. The array must have the part's element type and shape.
    fn write_part(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::of(&part::detached(value)?, None)?;
        let block = self.take()?;
        let outcome = block.with_loan(|loan| {
            let part = match loan.part(name) {
                Ok(part) => part,
                Err(error) => return Err(part::unknown(&error)),
            };
            let tensor = part.tensor();
            let shape = &tensor.shape[..usize::from(tensor.ndim)];
            let bytes = [source.bytes()];
            let (dtype, given) = source.tensor().unwrap_or((DType::U8, &bytes));
            if (dtype, given) != (tensor.dtype, shape) {
                return Err(invalid(format!(
                    "part '{name}' is {} {shape:?}, and the array is {dtype} {given:?}",
                    tensor.dtype
                )));
            }
            source.copy_into(py, loan, part.offset())
        });
        self.put_back(block);
        outcome
    }

    fn export<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        wanted: &dlpack::Wanted,
    ) -> PyResult<Bound<'py, PyAny>> {
        let block = self.block()?;
        if self.domain != Domain::Host {
            // The consumer writes on this stream, so publishing must come behind its work.
            if let Some(stream) = order::of_consumer(stream)? {
                block.record(stream);
            }
        }
        dlpack::export(py, self.domain, self.view_anywhere()?, wanted, None)
    }

    fn interface<'py>(
        &self,
        py: Python<'py>,
        data: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let geometry = self.geometry()?;
        let Some(typestr) = dtype::typestr(geometry.dtype) else {
            return Err(PyAttributeError::new_err(format!(
                "the array interface has no code for {}",
                geometry.dtype
            )));
        };
        let dict = PyDict::new(py);
        dict.set_item("shape", PyTuple::new(py, geometry.shape())?)?;
        if !geometry.is_contiguous() {
            let strides = PyTuple::new(py, geometry.strides_bytes())?;
            dict.set_item("strides", strides)?;
        }
        dict.set_item("typestr", typestr)?;
        dict.set_item("data", data)?;
        dict.set_item("version", 3)?;
        Ok(dict)
    }
}

impl Drop for LoanBase {
    fn drop(&mut self) {
        self.discard();
    }
}
