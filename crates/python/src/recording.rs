//! Recordings: `rgaps.open()`, and recorded messages.

use crate::arrow::arrow_methods;
use crate::buffer::{with_buffer, Exporter, View};
use crate::dlpack::dlpack_methods;
use crate::error::{raise, unless_raised, IntoPyErr};
use crate::geometry::Geometry;
use crate::owner::Owner;
use crate::{argument, dlpack, metadata, part};
use bytes::Bytes;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyIterator, PyList, PyMappingProxy, PyTuple, PyType};
use rgaps::{Domain, Tensor};
use rgaps_recording::{Message, Messages, PartEntry, ReadError, Selection};
use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The largest alignment in bytes that an element type needs. Elements at a multiple of it need no copy.
const ALIGN_MAX: u64 = 16;

thread_local! {
    /// The content of the next `_RecordedBase()`: `wrap` sets it before it calls the class (see `sample.rs`).
    static NEXT: RefCell<Option<RecordedBase>> = const { RefCell::new(None) };
}

fn error(error: &ReadError) -> PyErr {
    let name = match error {
        ReadError::Io { error, .. } if error.kind() == ErrorKind::NotFound => "RecordingNotFound",
        ReadError::Io { .. } => "SystemFailure",
        _ => "Damaged",
    };
    raise(name, rgaps_session::explain(error))
}

/// A recording in a file. Iterating over it gives ``(topic, message)`` in the order of publishing over all topics.
#[pyclass(frozen, name = "Recording", module = "rgaps")]
pub(crate) struct Recording {
    recording: Arc<rgaps_recording::Recording>,
    selection: Selection,
}

/// Opens a recording: an MCAP file of ``rgaps record`` or of any other program. Iterating over it gives ``(topic, message)`` in
/// the order of publishing over all topics. A file whose recorder was killed is read up to its last whole chunk.
///
/// Args:
///     path: The file.
///     topics: A topic or a pattern, or several. Default: all topics.
///     start: Where to begin, in seconds from the first message of the file, as ``rgaps info`` counts them. The earlier messages
///         that transient-local publishers kept come first. Default: 0.
///
/// Raises:
///     RecordingNotFound: There is no such file.
///     NotFound: The recording has none of the topics.
///     Damaged: The file is not a recording, or its index is damaged.
#[pyfunction]
#[pyo3(signature = (path, *, topics=None, start=0.0))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    topics: Option<&Bound<'_, PyAny>>,
    start: f64,
) -> PyResult<Recording> {
    let topics = match topics {
        None => Vec::new(),
        Some(topics) => match unless_raised(topics.extract::<String>())? {
            Some(topic) => vec![topic],
            None => unless_raised(topics.extract())?.ok_or_else(|| {
                argument::about(topics, |shown| {
                    PyTypeError::new_err(format!(
                        "topics must be text or a list of texts, not {shown}"
                    ))
                })
            })?,
        },
    };
    let opened = py.detach(|| rgaps_recording::Recording::open(path));
    let recording = opened.map_err(|found| error(&found))?;
    let from_ns = match start > 0.0 {
        true => recording.begun_ns().saturating_add((start * 1e9) as u64),
        false => 0,
    };
    let selection = Selection {
        topics,
        from_ns,
        without_repeated: false,
    };
    let found = selection.check(recording.channels());
    found.map_err(|error| raise("NotFound", error.to_string()))?;
    Ok(Recording {
        recording: Arc::new(recording),
        selection,
    })
}

#[pymethods]
impl Recording {
    /// The contents of the file as a dictionary: the JSON of ``rgaps info``.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(&self.recording.info());
        let text = text.map_err(|error| PyTypeError::new_err(error.to_string()))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// The topics that are read, by name.
    #[getter]
    fn topics(&self) -> Vec<String> {
        let channels = self.recording.channels();
        let mut topics: Vec<String> = channels
            .map(|channel| channel.topic.clone())
            .filter(|topic| self.selection.has(topic))
            .collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    fn __iter__(&self) -> RecordedMessages {
        RecordedMessages {
            messages: Mutex::new(self.recording.select(&self.selection)),
        }
    }

    fn __repr__(&self) -> String {
        format!("<rgaps.Recording '{}'>", self.recording.path().display())
    }
}

/// The messages of a recording, one after the other. Raises `Damaged` for a damaged chunk or message; the next call continues
/// after it.
#[pyclass(frozen, name = "_Messages", module = "rgaps")]
pub(crate) struct RecordedMessages {
    messages: Mutex<Messages>,
}

#[pymethods]
impl RecordedMessages {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(String, Bound<'py, PyAny>)>> {
        // Another thread may read meanwhile, without the interpreter.
        let next = py.detach(|| {
            let messages = self.messages.lock();
            messages.unwrap_or_else(PoisonError::into_inner).next()
        });
        let Some(message) = next.transpose().map_err(|found| error(&found))? else {
            return Ok(None);
        };
        let topic = message.topic().to_owned();
        Ok(Some((topic, wrap(py, RecordedBase::whole(message))?)))
    }
}

/// A recorded message, or a part of one, without the buffer protocol.
#[pyclass(
    frozen,
    subclass,
    mapping,
    weakref,
    name = "_RecordedBase",
    module = "rgaps"
)]
pub(crate) struct RecordedBase {
    message: Arc<Message>,
    /// The name of the part; None for a whole message.
    name: Option<String>,
    bytes: Bytes,
    geometry: Geometry,
    domain: Domain,
}

/// The class `rgaps.Recorded`.
pub(crate) fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let class = CLASS.get_or_try_init(py, || {
        let doc = c"A message that was recorded, or a part of one. Any array or tensor over it keeps its bytes.";
        with_buffer::<RecordedBase>(py, c"rgaps.Recorded", doc).map(Bound::unbind)
    })?;
    Ok(class.bind(py))
}

fn wrap(py: Python<'_>, base: RecordedBase) -> PyResult<Bound<'_, PyAny>> {
    let class = class(py)?;
    NEXT.with(|next| next.replace(Some(base)));
    class.call0()
}

/// The geometry of bytes by the description in the file; None if the described array exceeds the bytes.
fn geometry(tensor: Option<&Tensor>, bytes: &Bytes) -> Option<Geometry> {
    let length = bytes.len() as u64;
    let fits =
        tensor.is_none_or(|tensor| rgaps_client::tensor::check_extent(tensor, length).is_ok());
    fits.then(|| Geometry::of(tensor, length))
}

impl RecordedBase {
    fn whole(message: Message) -> RecordedBase {
        let bytes = message.data().clone();
        let plain = || Geometry::bytes(bytes.len() as u64);
        RecordedBase {
            geometry: geometry(message.tensor(), &bytes).unwrap_or_else(plain),
            bytes,
            message: Arc::new(message),
            name: None,
            domain: Domain::Host,
        }
    }

    fn entries(&self) -> Vec<PartEntry> {
        match self.name {
            Some(_) => Vec::new(),
            None => self.message.parts().collect(),
        }
    }

    fn find(&self, name: &str) -> PyResult<RecordedBase> {
        let entries = self.entries();
        let entry = entries.iter().find(|entry| entry.name() == Some(name));
        let Some(entry) = entry else {
            let known = part::listed(&self.keys());
            return Err(PyKeyError::new_err(format!(
                "no part '{name}': the message has {known}"
            )));
        };
        let tensor = Tensor {
            dtype: entry.dtype(),
            ndim: entry.ndim,
            shape: entry.shape,
            strides: entry.strides,
        };
        let end = entry.offset.checked_add(entry.bytes);
        let end = end.filter(|end| *end <= self.bytes.len() as u64);
        let bytes = end.map(|end| self.bytes.slice(entry.offset as usize..end as usize));
        let found = bytes.and_then(|bytes| Some((geometry(Some(&tensor), &bytes)?, bytes)));
        let (geometry, bytes) = found.ok_or_else(|| {
            raise(
                "Damaged",
                format!("part '{name}' lies outside of its message"),
            )
        })?;
        Ok(RecordedBase {
            message: self.message.clone(),
            name: Some(name.to_owned()),
            bytes,
            geometry,
            domain: Domain::Host,
        })
    }

    fn export<'py>(
        &self,
        py: Python<'py>,
        _stream: Option<&Bound<'py, PyAny>>,
        wanted: &dlpack::Wanted,
    ) -> PyResult<Bound<'py, PyAny>> {
        dlpack::export(py, Domain::Host, self.view(py)?, wanted, None)
    }
}

impl Exporter for RecordedBase {
    /// A view without a copy, unless the elements are not aligned to their size.
    fn view(&self, _py: Python<'_>) -> PyResult<View> {
        let address = self.bytes.as_ptr() as u64;
        let align = (self.geometry.element_bytes() as u64).clamp(1, ALIGN_MAX);
        let (address, owner) = match address % align == 0 {
            true => (address, Owner::Recorded(self.bytes.clone())),
            false => {
                let copy: Box<[u8]> = self.bytes.to_vec().into();
                (copy.as_ptr() as u64, Owner::Copy(copy))
            }
        };
        Ok(View {
            address,
            geometry: self.geometry,
            readonly: true,
            owner,
        })
    }
}

impl RecordedBase {
    fn arrow_view(&self, py: Python<'_>) -> PyResult<View> {
        part::check_single("message", &self.keys())?;
        self.view(py)
    }
}

arrow_methods!(RecordedBase);
dlpack_methods!(RecordedBase);

#[pymethods]
impl RecordedBase {
    #[new]
    fn new() -> PyResult<RecordedBase> {
        let next = NEXT.with(|next| next.take());
        next.ok_or_else(|| PyTypeError::new_err("recorded messages come from rgaps.open()"))
    }

    /// The name of the topic.
    #[getter]
    fn topic(&self) -> &str {
        self.message.topic()
    }

    /// The name of the part; None for a whole message.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The domain that holds the bytes: always ``"host"``.
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

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes.len()
    }

    /// The message's sequence number: each publisher counts its messages from 0.
    #[getter]
    fn sequence(&self) -> u64 {
        self.message.sequence()
    }

    /// How many messages of the same publisher the recorder missed before this one.
    #[getter]
    fn missed(&self) -> u64 {
        self.message.missed()
    }

    /// The number that the publisher gave as ``tag``; 0 if it gave none.
    #[getter]
    fn tag(&self) -> u64 {
        self.message.tag()
    }

    /// The header: the dictionary that the publisher gave as ``meta``, or an empty one. It is read-only.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMappingProxy>> {
        let header = self.message.header().map_err(IntoPyErr::into_py_err)?;
        metadata::to_mapping(py, &header.unwrap_or_default())
    }

    /// The bytes that travelled beside the message: the publisher's ``attachment``, or its ``meta`` in MessagePack. None if it
    /// gave neither.
    #[getter]
    fn attachment<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let attachment = self.message.attachment();
        attachment.map(|bytes| PyBytes::new(py, bytes))
    }

    /// When the message was published, in nanoseconds since 1970-01-01 UTC.
    #[getter]
    fn log_ns(&self) -> u64 {
        self.message.log_ns()
    }

    /// A random number that identifies the publisher.
    #[getter]
    fn publisher_id(&self) -> u64 {
        self.message.channel().publisher_id
    }

    /// The type that the publisher declared; empty if it declared none.
    #[getter]
    fn type_name(&self) -> &str {
        &self.message.channel().type_name
    }

    /// The names of the message's parts, in the publisher's order; empty if the message is one array or plain bytes.
    fn keys(&self) -> Vec<String> {
        let entries = self.entries();
        let names = entries.iter().filter_map(|entry| entry.name());
        names.map(str::to_owned).collect()
    }

    /// A part of the message. Raises `KeyError` if there is no such part.
    ///
    /// Args:
    ///     name: The name of the part, one of `keys`.
    fn part<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        wrap(py, self.find(name)?)
    }

    /// ``message["rgb"]`` is a numpy array over a part.
    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        part::as_array(&self.part(py, name)?, Domain::Host)
    }

    /// The number of parts.
    fn __len__(&self) -> usize {
        self.entries().len()
    }

    /// A message is always true, even without parts.
    fn __bool__(&self) -> bool {
        true
    }

    fn __contains__(&self, name: &str) -> bool {
        self.keys().iter().any(|key| key == name)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.keys())?.try_iter()
    }

    /// A read-only numpy array over the bytes. It is a view of the file's chunk, without a copy, unless the elements are not aligned
    /// to their size. A message with parts has an array for each: ``message["rgb"]``.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        part::check_single("message", &slf.get().keys())?;
        slf.py()
            .import("rgaps._numpy")?
            .call_method1("as_array", (slf,))
    }

    /// A torch tensor over the bytes, without a copy if `numpy` makes none. Do not write to it.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        part::check_single("message", &slf.get().keys())?;
        slf.py()
            .import("rgaps._torch")?
            .call_method1("as_tensor", (slf,))
    }

    /// A copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    fn __repr__(&self) -> String {
        let names = self.keys();
        let kind = match self.geometry.typed {
            _ if !names.is_empty() => part::listed(&names),
            true => format!("{} {:?}", self.geometry.dtype, self.geometry.shape()),
            false => format!("{} bytes", self.bytes.len()),
        };
        let (topic, sequence) = (self.message.topic(), self.message.sequence());
        format!("<rgaps.Recorded '{topic}' #{sequence}: {kind}>")
    }
}
