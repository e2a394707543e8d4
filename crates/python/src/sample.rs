//! Samples: received messages.

use crate::argument;
use crate::arrow::arrow_methods;
use crate::buffer::{with_buffer, Exporter, View};
use crate::dlpack::dlpack_methods;
use crate::error::{closed, IntoPyErr};
use crate::geometry::Geometry;
use crate::owner::{drop_block, Held, Owner, SampleView};
use crate::{dlpack, dtype, metadata, order, part};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyList, PyMappingProxy, PyTuple, PyType};
use rgaps::{Domain, RecvError};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

thread_local! {
    /// The content of the next `_SampleBase()`. The class with the buffer protocol is made at run time, so `wrap` can make a
    /// sample only by calling that class, which takes its content from here.
    static NEXT: RefCell<Option<SampleBase>> = const { RefCell::new(None) };
}

/// A sample's block.
enum Hold {
    /// Held. True: somebody got the block's address and keeps only the sample object, not the block.
    Held(Arc<Held>, bool),
    /// Released. A block whose address somebody got stays until the sample object ends.
    Released(#[allow(dead_code)] Option<Arc<Held>>),
}

/// A sample, without the buffer protocol.
#[pyclass(
    frozen,
    subclass,
    mapping,
    weakref,
    name = "_SampleBase",
    module = "rgaps"
)]
pub(crate) struct SampleBase {
    hold: Mutex<Hold>,
    geometry: Geometry,
    topic: Arc<str>,
    domain: Domain,
    bytes: u64,
    sequence: u64,
    missed: u64,
    tag: u64,
    publish_ns: u64,
    publisher_id: u64,
}

/// The class `rgaps.Sample`.
pub(crate) fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let class = CLASS.get_or_try_init(py, || {
        let doc =
            c"A received message. Its bytes are neither changed nor reused while the sample, \
            or any array or tensor over it, lives.";
        with_buffer::<SampleBase>(py, c"rgaps.Sample", doc).map(Bound::unbind)
    })?;
    Ok(class.bind(py))
}

/// Makes an `rgaps.Sample`.
pub(crate) fn wrap<'py>(
    py: Python<'py>,
    sample: rgaps::Sample,
    topic: &Arc<str>,
) -> PyResult<Bound<'py, PyAny>> {
    let base = SampleBase {
        geometry: Geometry::of(sample.tensor(), sample.len()),
        topic: topic.clone(),
        domain: sample.domain(),
        bytes: sample.len(),
        sequence: sample.sequence(),
        missed: sample.missed(),
        tag: sample.tag(),
        publish_ns: sample.publish_ns(),
        publisher_id: sample.publisher_id(),
        hold: Mutex::new(Hold::Held(
            Arc::new(Held::new(sample, topic.clone())),
            false,
        )),
    };
    let class = class(py)?;
    NEXT.with(|next| next.replace(Some(base)));
    class.call0()
}

impl SampleBase {
    fn lock(&self) -> MutexGuard<'_, Hold> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> PyResult<Arc<Held>> {
        match &*self.lock() {
            Hold::Held(held, _) => Ok(held.clone()),
            Hold::Released(_) => Err(closed("sample")),
        }
    }

    /// The block's address, for a consumer that keeps this sample object while it uses the address.
    fn lend(&self, py: Python<'_>) -> PyResult<u64> {
        let address = self.held()?.view_address(py)?;
        match &mut *self.lock() {
            Hold::Held(_, lent) => {
                *lent = true;
                Ok(address)
            }
            Hold::Released(_) => Err(closed("sample")),
        }
    }

    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some(typestr) = dtype::typestr(self.geometry.dtype) else {
            return Err(PyAttributeError::new_err(format!(
                "the array interface has no code for {}",
                self.geometry.dtype
            )));
        };
        let dict = PyDict::new(py);
        dict.set_item("shape", PyTuple::new(py, self.geometry.shape())?)?;
        dict.set_item("typestr", typestr)?;
        dict.set_item("data", (self.lend(py)?, true))?;
        if !self.geometry.is_contiguous() {
            let strides = PyTuple::new(py, self.geometry.strides_bytes())?;
            dict.set_item("strides", strides)?;
        }
        dict.set_item("version", 3)?;
        Ok(dict)
    }
}

impl Exporter for SampleBase {
    fn view(&self, py: Python<'_>) -> PyResult<View> {
        if self.domain != Domain::Host {
            return Err(PyBufferError::new_err(format!(
                "the message is in {}, so numpy and the buffer protocol cannot address it; use torch.from_dlpack, or tobytes() for a copy",
                self.domain
            )));
        }
        let view = self.view_anywhere(py)?;
        order::before_reading_on_cpu(py, &self.held()?.sample)?;
        Ok(view)
    }
}

impl SampleBase {
    fn export<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        wanted: &dlpack::Wanted,
    ) -> PyResult<Bound<'py, PyAny>> {
        let held = self.held()?;
        let view = self.view_anywhere(py)?;
        if self.domain == Domain::Host {
            order::before_reading_on_cpu(py, &held.sample)?;
        } else if let Some(stream) = order::of_consumer(stream)? {
            // The consumer reads on this stream.
            order::before_reading(&held.sample, stream)?;
        }
        dlpack::export(py, self.domain, view, wanted, Some((&held.sample, 0)))
    }

    fn view_anywhere(&self, py: Python<'_>) -> PyResult<View> {
        let held = self.held()?;
        // Fails in a forked child, where nothing is mapped at the address.
        if self.domain == Domain::Host {
            held.sample.as_slice().map_err(IntoPyErr::into_py_err)?;
        }
        Ok(View {
            address: held.view_address(py)?,
            geometry: self.geometry,
            readonly: true,
            owner: Owner::Sample(SampleView::new(held)),
        })
    }
}

impl SampleBase {
    /// A view of the bytes, once the work that writes them has finished.
    fn arrow_view(&self, py: Python<'_>) -> PyResult<View> {
        part::check_single("sample", &self.keys()?)?;
        let view = self.view_anywhere(py)?;
        order::before_reading_on_cpu(py, &self.held()?.sample)?;
        Ok(view)
    }
}

arrow_methods!(SampleBase);
dlpack_methods!(SampleBase);

#[pymethods]
impl SampleBase {
    #[new]
    fn new() -> PyResult<SampleBase> {
        let next = NEXT.with(|next| next.take());
        next.ok_or_else(|| PyTypeError::new_err("samples come from subscribers"))
    }

    /// The name of the topic.
    #[getter]
    fn topic(&self) -> &str {
        &self.topic
    }

    /// The domain that holds the bytes: ``"host"`` or ``"cuda:GPU-<UUID>"``.
    #[getter]
    fn domain(&self) -> String {
        self.domain.to_string()
    }

    /// Lengths of the dimensions; for plain bytes, the number of bytes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.geometry.shape())
    }

    /// Bytes from one element to the next, per dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.geometry.strides_bytes())
    }

    /// Name of the element type; None if the message is plain bytes.
    #[getter]
    fn dtype(&self) -> Option<String> {
        self.geometry.typed.then(|| self.geometry.dtype.to_string())
    }

    /// Length of the message in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// The message's sequence number: each publisher counts its messages from 0.
    #[getter]
    fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many messages of the same publisher the subscriber missed between the previous sample and this one.
    #[getter]
    fn missed(&self) -> u64 {
        self.missed
    }

    /// The number that the publisher gave as ``tag``; 0 if it gave none.
    #[getter]
    fn tag(&self) -> u64 {
        self.tag
    }

    /// The header: the dictionary that the publisher gave as ``meta``, or an empty one. ``capture_ns`` is when the data was
    /// captured, in nanoseconds since 1970-01-01 UTC; ``frame_id`` names the coordinate frame or the sensor; the publisher
    /// chooses all other keys. It is read-only; ``dict(sample.meta)`` is a copy that can be changed. Raises `Untrusted` if the
    /// publisher marked bytes as a header that do not decode.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMappingProxy>> {
        let held = self.held()?;
        let header = held.sample.header().map_err(IntoPyErr::into_py_err)?;
        metadata::to_mapping(py, &header.unwrap_or_default())
    }

    /// The bytes that travelled beside the message: the publisher's ``attachment``, or its ``meta`` in MessagePack. None if it
    /// gave neither.
    #[getter]
    fn attachment<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let held = self.held()?;
        Ok(held
            .sample
            .attachment()
            .map(|bytes| PyBytes::new(py, bytes)))
    }

    /// The names of the message's parts, in the publisher's order; empty if the message is one array or plain bytes.
    fn keys(&self) -> PyResult<Vec<String>> {
        let held = self.held()?;
        let parts = held.sample.parts().map_err(IntoPyErr::into_py_err)?;
        Ok(parts.iter().map(|part| part.name().to_owned()).collect())
    }

    /// A part of the message, which has ``numpy()``, ``torch()``, the buffer protocol and DLPack. Raises `KeyError` if there
    /// is no such part.
    ///
    /// Args:
    ///     name: The name of the part, one of `keys`.
    fn part<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::name)] name: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let held = self.held()?;
        let found = match held.sample.part(&name) {
            Ok(part) => part,
            Err(error @ RecvError::Parts { .. }) => return Err(part::unknown(&error)),
            Err(error) => return Err(error.into_py_err()),
        };
        part::wrap(py, part::Whole::Sample(held), &found, self.domain)
    }

    /// ``sample["rgb"]`` is an array over a part, without a copy: a numpy array on the host, a torch tensor on a GPU. The
    /// array keeps the message's bytes as long as it lives.
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::part_name)] name: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        part::as_array(&self.part(py, name)?, self.domain)
    }

    /// The number of parts.
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.keys()?.len())
    }

    /// A sample is always true, even without parts.
    fn __bool__(&self) -> bool {
        true
    }

    fn __contains__(&self, name: &str) -> PyResult<bool> {
        Ok(self.keys()?.iter().any(|key| key == name))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.keys()?)?.try_iter()
    }

    /// When the publisher called publish, in nanoseconds of this host's ``time.monotonic_ns()``. For a message from another
    /// host rgaps converts the time, using both hosts' wall clocks; it is negative if the message was published before this
    /// host started.
    #[getter]
    fn publish_ns(&self) -> i64 {
        self.publish_ns as i64
    }

    /// A random number that identifies the publisher.
    #[getter]
    fn publisher_id(&self) -> u64 {
        self.publisher_id
    }

    /// Address of the first byte in this process: a host pointer, or a device pointer of the GPU.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        Ok(self.held()?.sample.address())
    }

    /// Whether this sample was released.
    #[getter]
    fn released(&self) -> bool {
        matches!(*self.lock(), Hold::Released(_))
    }

    /// A read-only numpy array over the bytes, without a copy. A message with parts has an array for each:
    /// ``sample["rgb"]``.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        part::check_single("sample", &slf.get().keys()?)?;
        py.import("rgaps._numpy")?.call_method1("as_array", (slf,))
    }

    /// A copy of the message's bytes, from any domain.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let held = self.held()?;
        order::before_reading_on_cpu(py, &held.sample)?;
        PyBytes::new_with(py, self.bytes as usize, |bytes| {
            py.detach(|| held.sample.read(0, bytes))
                .map_err(IntoPyErr::into_py_err)
        })
    }

    /// Another sample object of the same message. The bytes stay until both are released; the two count as one held sample.
    fn clone<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        wrap(py, self.held()?.sample.clone(), &self.topic)
    }

    fn __copy__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.clone(py)
    }

    /// Releases the block to its publisher, once the last array or tensor over it has ended, too.
    ///
    /// Args:
    ///     stream: For a message on a GPU, a CUDA stream whose queued work reads it. The release is deferred until the work
    ///         queued so far on this stream, on recorded streams and on the streams of consumers has finished; the call does
    ///         not wait. Default: None.
    #[pyo3(signature = (*, stream=None))]
    fn release(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = stream
            .map(|stream| order::named(Some(stream)))
            .transpose()?;
        let mut hold = self.lock();
        let before = std::mem::replace(&mut *hold, Hold::Released(None));
        match before {
            Hold::Held(held, lent) => {
                if let Some(stream) = stream {
                    held.sample.record_stream(stream);
                }
                if lent {
                    *hold = Hold::Released(Some(held));
                    return Ok(());
                }
                drop(hold);
                let (looked, held) = match Arc::try_unwrap(held) {
                    // No view is left, so check for writes here, where a warning that is an error reaches the user.
                    Ok(mut held) => (held.warn_of_writes(py), Ok(held)),
                    Err(shared) => (Ok(()), Err(shared)),
                };
                drop_block(self.domain, held);
                return looked;
            }
            released => *hold = released,
        }
        Ok(())
    }

    /// Whether the GPU work that writes the message has finished. Always true for a message that a CPU wrote. Raises `Aborted`
    /// if it can never finish. Arrays and tensors over the sample need no check: they are ordered after that work.
    fn is_ready(&self) -> PyResult<bool> {
        let held = self.held()?;
        held.sample.is_ready().map_err(IntoPyErr::into_py_err)
    }

    /// Waits on the CPU until the GPU work that writes the message has finished. Returns False if it has not after the time-out.
    /// Raises `Aborted` if the work can never finish.
    ///
    /// Args:
    ///     timeout: Seconds to wait; None waits without limit. Default: None.
    #[pyo3(signature = (timeout=None))]
    fn synchronize(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Option<f64>,
    ) -> PyResult<bool> {
        let timeout = crate::wait::timeout("timeout", timeout)?;
        order::synchronize(py, &self.held()?.sample, timeout)
    }

    /// Makes work that is queued on ``stream`` from now on wait for the publisher's GPU work, and keeps the block until that
    /// work has finished. Only code that reads at `address` needs this; DLPack does it by itself.
    ///
    /// Args:
    ///     stream: A CUDA stream (of torch or cupy, or its handle).
    fn wait_on(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        order::before_reading(&self.held()?.sample, order::named(Some(stream))?)
    }

    /// Keeps the block after the release until the work that is queued on a stream by then has finished.
    ///
    /// Args:
    ///     stream: A CUDA stream (of torch or cupy, or its handle).
    fn record_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.held()?
            .sample
            .record_stream(order::named(Some(stream))?);
        Ok(())
    }

    /// A torch tensor over the bytes, without a copy, ordered on torch's current stream. Like ``torch.from_dlpack(sample)``,
    /// but also for element types that older versions of torch refuse there.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        part::check_single("sample", &slf.get().keys()?)?;
        py.import("rgaps._torch")?.call_method1("as_tensor", (slf,))
    }

    /// numpy's array interface, for a message in host memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match self.domain {
            Domain::Host => self.interface(py),
            _ => Err(PyAttributeError::new_err("the bytes are not on the host")),
        }
    }

    /// The array interface of numba and cupy, for a message on a GPU.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.domain == Domain::Host {
            return Err(PyAttributeError::new_err("the bytes are on the host"));
        }
        let held = self.held()?;
        let stream = order::to_name(&held.sample)?;
        let dict = self.interface(py)?;
        dict.set_item("stream", stream.map(|stream| stream.0))?;
        Ok(dict)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py, None)
    }

    fn __repr__(&self) -> String {
        let names = self.keys().unwrap_or_default();
        let kind = match self.geometry.typed {
            _ if !names.is_empty() => part::listed(&names),
            true => format!("{} {:?}", self.geometry.dtype, self.geometry.shape()),
            false => format!("{} bytes", self.bytes),
        };
        format!("<rgaps.Sample '{}' #{}: {kind}>", self.topic, self.sequence)
    }
}

impl Drop for SampleBase {
    fn drop(&mut self) {
        let hold = self.hold.get_mut().unwrap_or_else(PoisonError::into_inner);
        let hold = std::mem::replace(hold, Hold::Released(None));
        drop_block(self.domain, hold);
    }
}
