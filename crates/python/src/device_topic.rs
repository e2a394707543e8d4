//! Device topics: queues kernels that publish and receive tensors, on the streams of torch and other libraries.

use crate::device;
use crate::error::{invalid, raise, IntoPyErr};
use crate::handle::{drop_detached, Handle};
use crate::order::named;
use crate::wait::duration;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rgaps::{Bridge, DeviceError, DeviceGeometry, DeviceRole, Direction, Stream};
use rgaps_device::{Outcome, TensorPublisher, TensorSubscriber};
use std::sync::Arc;

/// Roughly how many ticks a GPU's clock makes in a second; clocks go up to 2 GHz.
const TICKS_PER_SECOND: f64 = 1.8e9;
/// The words of the C struct `rgaps_device_topic_t`.
type Words = (u64, u64, u64, u64, u64, u64, u64, u64);

impl IntoPyErr for DeviceError {
    fn into_py_err(self) -> PyErr {
        let name = match self {
            DeviceError::Argument(_) => "InvalidArgument",
            DeviceError::NoSeat(_) => "LimitReached",
            DeviceError::Corrupt(_) => "Untrusted",
            DeviceError::Pool(_) | DeviceError::Lock(_) => "SystemFailure",
            _ => "Error",
        };
        raise(name, self.to_string())
    }
}

/// The GPU memory of an array: its address, and its size in bytes.
fn range(object: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let wrong = |what: &str| {
        invalid(format!(
            "the array {what}; give a contiguous array on a GPU"
        ))
    };
    // A tensor of torch: its array interface lacks some element types.
    if let Some(address) = object.getattr_opt("data_ptr")? {
        if !object.getattr("is_cuda")?.extract::<bool>()? {
            return Err(wrong("is not on a GPU"));
        }
        if !object.call_method0("is_contiguous")?.extract::<bool>()? {
            return Err(wrong("is not contiguous"));
        }
        return Ok((
            address.call0()?.extract()?,
            object.getattr("nbytes")?.extract()?,
        ));
    }
    let Some(interface) = object.getattr_opt("__cuda_array_interface__")? else {
        return Err(wrong("has neither data_ptr() nor __cuda_array_interface__"));
    };
    let strides = interface.call_method1("get", ("strides",))?;
    if !strides.is_none() {
        return Err(wrong("has strides"));
    }
    let (address, _) = interface.get_item("data")?.extract::<(u64, bool)>()?;
    let shape = interface.get_item("shape")?.extract::<Vec<u64>>()?;
    let typestr = interface.get_item("typestr")?.extract::<String>()?;
    let element = typestr.get(2..).and_then(|bytes| bytes.parse::<u64>().ok());
    let element = element.ok_or_else(|| wrong("has a type without a size"))?;
    Ok((address, shape.iter().product::<u64>() * element))
}

fn outcome<'py>(py: Python<'py>, found: Outcome) -> PyResult<Bound<'py, PyDict>> {
    let shown = PyDict::new(py);
    for (name, value) in [
        ("calls", found.calls as i64),
        ("failed", found.failed as i64),
        ("status", found.status),
        ("sequence", found.sequence as i64),
        ("bytes", found.bytes as i64),
        ("missed", found.missed as i64),
    ] {
        shown.set_item(name, value)?;
    }
    Ok(shown)
}

fn ticks(timeout: f64) -> PyResult<u64> {
    Ok((duration("timeout", timeout)?.as_secs_f64() * TICKS_PER_SECOND) as u64)
}

/// Memory in which kernels publish messages to kernels of other processes without a CPU in between.
///
/// Kernels of your own, in CUDA C++, use ``words`` and ``rgaps/device.cuh``. Otherwise `publisher` and `subscriber` queue kernels
/// of rgaps on your streams, which publish and receive tensors.
///
/// Args:
///     domain: Where its memory is: ``"cuda"`` (the first GPU), ``"cuda:1"``, ``"cuda:GPU-<UUID>"``, or ``"host"`` for tests.
///     depth: How many messages its ring keeps, a power of two. Default: 16.
///     blocks: How many blocks it has: ``depth`` plus the number of blocks that are loaned or held at the same time. Default: 24.
///     block_bytes: The size of the largest message, in bytes. Default: 1 MiB.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct DeviceTopic(pub(crate) Arc<rgaps::DeviceTopic>);

#[pymethods]
impl DeviceTopic {
    #[new]
    #[pyo3(signature = (domain="cuda", *, depth=16, blocks=24, block_bytes=1 << 20))]
    fn new(
        py: Python<'_>,
        domain: &str,
        depth: u32,
        blocks: u32,
        block_bytes: u64,
    ) -> PyResult<DeviceTopic> {
        let domain = device::domain(domain)?;
        let geometry = DeviceGeometry {
            depth,
            blocks,
            block_bytes,
        };
        let made = py.detach(|| rgaps::DeviceTopic::create(domain, geometry));
        Ok(DeviceTopic(Arc::new(made.map_err(IntoPyErr::into_py_err)?)))
    }

    /// The eight words (64 bits each) of the structure ``rgaps_device_topic_t``, which kernels take as a parameter.
    #[getter]
    fn words(&self) -> Words {
        self.0.view().words().into()
    }

    /// Size of the largest message in bytes.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.0.geometry().block_bytes
    }

    /// Whether the GPU runs kernels of several processes in turns, because MPS does not run: then a message between two processes
    /// takes milliseconds. See ``rgaps up --mps``.
    #[getter]
    fn takes_turns(&self) -> bool {
        self.0.takes_turns()
    }

    /// Sequence number of the newest message; 0 if nothing was published yet.
    #[getter]
    fn newest(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.newest_sequence())
            .map_err(IntoPyErr::into_py_err)
    }

    /// Creates the topic's publisher. A topic has at most one at a time, over all processes.
    fn publisher(&self, py: Python<'_>) -> PyResult<DevicePublisher> {
        let made = py.detach(|| TensorPublisher::new(self.0.clone()));
        let made = made.map_err(IntoPyErr::into_py_err)?;
        Ok(DevicePublisher(Handle::new(
            "device publisher",
            Arc::new(made),
        )))
    }

    /// Creates a subscriber of the topic, in a seat of its own.
    ///
    /// Args:
    ///     reliable: Whether the publisher waits for this subscriber. Default: True.
    ///     history: Whether the subscriber begins with the messages in the ring. Default: False, it begins with the next message.
    #[pyo3(signature = (*, reliable=true, history=false))]
    fn subscriber(
        &self,
        py: Python<'_>,
        reliable: bool,
        history: bool,
    ) -> PyResult<DeviceSubscriber> {
        let made = py.detach(|| TensorSubscriber::new(self.0.clone(), reliable, history));
        let made = made.map_err(IntoPyErr::into_py_err)?;
        Ok(DeviceSubscriber(Handle::new(
            "device subscriber",
            Arc::new(made),
        )))
    }
}

/// Publishes tensors in a device topic. Make one with `DeviceTopic.publisher`.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct DevicePublisher(Handle<Arc<TensorPublisher>>);

#[pymethods]
impl DevicePublisher {
    /// Queues a kernel that publishes a copy of an array, behind the work on the stream. The CPU does not wait. Keep the array
    /// unchanged until the stream has reached that point, and keep the calls of one publisher in order on the GPU.
    ///
    /// Args:
    ///     array: A contiguous array on the topic's GPU: a tensor of torch, or an object with ``__cuda_array_interface__``.
    ///     stream: The stream: of torch, cupy or numba, or its handle. Default: None, the default stream.
    ///     timeout: How many seconds, roughly, the GPU waits for a slow reliable subscriber. After that the message is not
    ///         published, and `outcome` says so. Default: 1.0.
    #[pyo3(signature = (array, *, stream=None, timeout=1.0))]
    fn publish(
        &self,
        array: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<()> {
        let ((address, bytes), ticks, stream) = (range(array)?, ticks(timeout)?, named(stream)?);
        let publisher = self.0.get()?;
        // SAFETY: `range` checked that the array is contiguous GPU memory. The docstring demands that the user keeps it until the
        // stream has reached that point.
        unsafe { publisher.publish(address, bytes, ticks, stream) }.map_err(IntoPyErr::into_py_err)
    }

    /// The results of the calls that have finished on the GPU, as a dictionary. ``calls`` and ``failed`` count calls; ``status`` (0:
    /// success, -8: back-pressured, -5: no block), ``sequence`` and ``bytes`` are those of the last call.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let publisher = self.0.get()?;
        let found = py.detach(|| publisher.outcome());
        outcome(py, found.map_err(IntoPyErr::into_py_err)?)
    }

    /// Closes the publisher. Waits until its work on the GPU has finished.
    fn close(&self, py: Python<'_>) {
        drop_detached(py, self.0.take());
    }
}

/// Receives tensors of a device topic. Make one with `DeviceTopic.subscriber`.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct DeviceSubscriber(Handle<Arc<TensorSubscriber>>);

#[pymethods]
impl DeviceSubscriber {
    /// Queues a kernel that receives the next message into an array. On the GPU, work that you queue on the stream later waits for
    /// the message. The CPU does not wait. Keep the array until the stream has reached that point.
    ///
    /// Args:
    ///     array: A contiguous array on the topic's GPU, with room for the message: a tensor of torch, or an object with
    ///         ``__cuda_array_interface__``.
    ///     stream: The stream: of torch, cupy or numba, or its handle. Default: None, the default stream.
    ///     timeout: How many seconds, roughly, the GPU waits for the message. After that the array is unchanged, and `outcome` says
    ///         so. Default: 1.0.
    #[pyo3(signature = (array, *, stream=None, timeout=1.0))]
    fn receive(
        &self,
        array: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        timeout: f64,
    ) -> PyResult<()> {
        let ((address, room), ticks, stream): (_, _, Stream) =
            (range(array)?, ticks(timeout)?, named(stream)?);
        let subscriber = self.0.get()?;
        // SAFETY: `range` checked that the array is contiguous GPU memory. The docstring demands that the user keeps it until the
        // stream has reached that point.
        unsafe { subscriber.receive(address, room, ticks, stream) }.map_err(IntoPyErr::into_py_err)
    }

    /// The number of its seat, for a kernel of your own that receives instead of `receive`.
    #[getter]
    fn seat(&self) -> PyResult<u32> {
        Ok(self.0.get()?.seat())
    }

    /// The results of the calls that have finished on the GPU, as a dictionary. ``calls`` and ``failed`` count calls; ``status`` (0:
    /// success, -2: timed out, -4: longer than the array, -31: evicted), ``sequence``, ``bytes`` and ``missed`` are those of the
    /// last call.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let subscriber = self.0.get()?;
        let found = py.detach(|| subscriber.outcome());
        outcome(py, found.map_err(IntoPyErr::into_py_err)?)
    }

    /// Closes the subscriber and returns its seat. Waits until its work on the GPU has finished.
    fn close(&self, py: Python<'_>) {
        drop_detached(py, self.0.take());
    }
}

/// Forwards messages between a device topic and an ordinary topic until it is closed. Make one with `Node.bridge`.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct DeviceBridge(Handle<Arc<Bridge>>);

#[pymethods]
impl DeviceBridge {
    /// A dictionary: ``forwarded`` and ``refused`` count messages; ``failure`` says why the bridge has ended by itself, or is None.
    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = self.0.get()?.figures();
        let shown = PyDict::new(py);
        shown.set_item("forwarded", figures.forwarded)?;
        shown.set_item("refused", figures.refused)?;
        shown.set_item("failure", figures.failure)?;
        Ok(shown)
    }

    /// Ends the bridge.
    fn close(&self, py: Python<'_>) {
        drop_detached(py, self.0.take());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

/// `Node.bridge`.
pub(crate) fn bridge(
    py: Python<'_>,
    node: &rgaps::Node,
    topic: &str,
    device: &DeviceTopic,
    to: &str,
) -> PyResult<DeviceBridge> {
    let direction = match to {
        "hosts" => Direction::ToHosts,
        "kernels" => Direction::ToKernels,
        _ => {
            return Err(invalid(format!(
                "to must be 'hosts' or 'kernels', not '{to}'"
            )))
        }
    };
    let device = device.0.clone();
    let made = py.detach(|| node.bridge(topic, device, direction));
    let made = made.map_err(IntoPyErr::into_py_err)?;
    Ok(DeviceBridge(Handle::new("bridge", Arc::new(made))))
}

/// `Node.open_device`.
pub(crate) fn open(
    py: Python<'_>,
    node: &rgaps::Node,
    topic: &str,
    domain: Option<&str>,
    publishes: bool,
) -> PyResult<DeviceTopic> {
    let domain = domain.map(device::domain).transpose()?;
    let role = match publishes {
        true => DeviceRole::Publisher,
        false => DeviceRole::Subscriber,
    };
    let opened = py.detach(|| node.open_device(topic, domain, role));
    Ok(DeviceTopic(Arc::new(
        opened.map_err(IntoPyErr::into_py_err)?,
    )))
}
