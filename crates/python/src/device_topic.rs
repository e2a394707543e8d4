//! Device topics: kernels that publish and receive, beside work of torch and other libraries on the same streams.

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

/// Ticks of a GPU's clock in a second, about: clocks go up to 2 GHz.
const TICKS_PER_SECOND: f64 = 1.8e9;
/// What a C struct of the topic is for kernels: `rgaps_device_topic_t`.
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

/// A range of GPU memory that an object gives out: ``(address, bytes)``.
fn range(object: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let wrong = |what: &str| {
        invalid(format!(
            "the array {what}; give a contiguous array on a GPU"
        ))
    };
    // torch's, whose array interface knows not all of its types.
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

/// Memory in which kernels publish messages to kernels of other processes, with no CPU on the way.
///
/// Kernels of your own, in CUDA C++, use ``words`` and ``rgaps/device.cuh``. Without any, `publisher` and `subscriber` queue
/// kernels of rgaps on your streams, which publish and receive tensors.
///
/// Args:
///     domain: Where it is: ``"cuda"`` (the first GPU), ``"cuda:1"``, ``"cuda:GPU-<UUID>"``, or ``"host"`` for tests.
///     depth: How many messages its ring keeps, a power of two. Default: 16.
///     blocks: How many blocks it has: more than ``depth``, by as many as are loaned and held at once. Default: 24.
///     block_bytes: The size of the largest message. Default: 1 MiB.
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

    /// What kernels take as their parameter ``rgaps_device_topic_t``: its eight words of 64 bits.
    #[getter]
    fn words(&self) -> Words {
        self.0.view().words().into()
    }

    /// Size of the largest message in bytes.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.0.geometry().block_bytes
    }

    /// Whether the GPU runs kernels of several processes in turns, since there is no MPS: a message between two of them then
    /// takes milliseconds. See ``rgaps up --mps``.
    #[getter]
    fn takes_turns(&self) -> bool {
        self.0.takes_turns()
    }

    /// Sequence number of the newest message; 0: there was none.
    #[getter]
    fn newest(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.newest_sequence())
            .map_err(IntoPyErr::into_py_err)
    }

    /// The publisher of the topic: there is one at a time, in all processes.
    fn publisher(&self, py: Python<'_>) -> PyResult<DevicePublisher> {
        let made = py.detach(|| TensorPublisher::new(self.0.clone()));
        let made = made.map_err(IntoPyErr::into_py_err)?;
        Ok(DevicePublisher(Handle::new(
            "device publisher",
            Arc::new(made),
        )))
    }

    /// A subscriber of the topic, in a seat of its own.
    ///
    /// Args:
    ///     reliable: Whether the publisher waits for it. Default: True.
    ///     history: Whether it begins with the messages that are in the ring. Default: False, with the next one.
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

/// Publishes tensors in a device topic: what `DeviceTopic.publisher` gives.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct DevicePublisher(Handle<Arc<TensorPublisher>>);

#[pymethods]
impl DevicePublisher {
    /// Queues publishing a copy of an array, behind the work on the stream. Nothing waits on the CPU. Keep the array unchanged
    /// until the stream has reached that point, and keep the calls of one publisher in order on the GPU.
    ///
    /// Args:
    ///     array: A contiguous array on the topic's GPU: a tensor of torch, or what has ``__cuda_array_interface__``.
    ///     stream: The stream: of torch, cupy or numba, or its handle. Default: None, the default stream.
    ///     timeout: How long the GPU waits for a slow reliable subscriber, in seconds, about. Then the message is not
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
        // SAFETY: the array is the user's, who keeps it until the stream has reached that point, as the help says.
        unsafe { publisher.publish(address, bytes, ticks, stream) }.map_err(IntoPyErr::into_py_err)
    }

    /// What came of the calls that have ended on the GPU: ``calls`` and ``failed`` count them; ``status`` (0: well, -8: back
    /// pressured, -5: no block), ``sequence`` and ``bytes`` are of the last one.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let publisher = self.0.get()?;
        let found = py.detach(|| publisher.outcome());
        outcome(py, found.map_err(IntoPyErr::into_py_err)?)
    }

    /// Ends the publisher, once its work on the GPU has ended.
    fn close(&self, py: Python<'_>) {
        drop_detached(py, self.0.take());
    }
}

/// Receives tensors of a device topic: what `DeviceTopic.subscriber` gives.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct DeviceSubscriber(Handle<Arc<TensorSubscriber>>);

#[pymethods]
impl DeviceSubscriber {
    /// Queues receiving the next message into an array. On the GPU the stream waits for the message, and all work that is queued
    /// later comes behind it. Nothing waits on the CPU.
    ///
    /// Args:
    ///     array: A contiguous array on the topic's GPU, with room for the message: a tensor of torch, or what has
    ///         ``__cuda_array_interface__``.
    ///     stream: The stream: of torch, cupy or numba, or its handle. Default: None, the default stream.
    ///     timeout: How long the GPU waits, in seconds, about. Then the array is unchanged, and `outcome` says so. Default: 1.0.
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
        // SAFETY: the array is the user's, who keeps it until the stream has reached that point, as the help says.
        unsafe { subscriber.receive(address, room, ticks, stream) }.map_err(IntoPyErr::into_py_err)
    }

    /// The number of its seat, for a kernel of yours that receives in place of `receive`.
    #[getter]
    fn seat(&self) -> PyResult<u32> {
        Ok(self.0.get()?.seat())
    }

    /// What came of the calls that have ended on the GPU: ``calls`` and ``failed`` count them; ``status`` (0: well, -2: timed
    /// out, -4: longer than the array, -31: evicted), ``sequence``, ``bytes`` and ``missed`` are of the last one.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let subscriber = self.0.get()?;
        let found = py.detach(|| subscriber.outcome());
        outcome(py, found.map_err(IntoPyErr::into_py_err)?)
    }

    /// Leaves the seat, once its work on the GPU has ended.
    fn close(&self, py: Python<'_>) {
        drop_detached(py, self.0.take());
    }
}

/// Forwards messages between a device topic and an ordinary one until it is closed: what `Node.bridge` gives.
#[pyclass(frozen, module = "rgaps")]
pub(crate) struct DeviceBridge(Handle<Arc<Bridge>>);

#[pymethods]
impl DeviceBridge {
    /// What it has done: ``forwarded`` and ``refused`` messages, and ``failure``, why it has ended by itself, or None.
    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = self.0.get()?.figures();
        let shown = PyDict::new(py);
        shown.set_item("forwarded", figures.forwarded)?;
        shown.set_item("refused", figures.refused)?;
        shown.set_item("failure", figures.failure)?;
        Ok(shown)
    }

    /// Ends it.
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

/// What a node does for device topics.
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

/// What a node does for device topics.
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
