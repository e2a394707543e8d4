//! Parts of messages: named arrays in a loan or a sample.

use crate::argument::about;
use crate::arrow::arrow_methods;
use crate::buffer::{with_buffer, Exporter, View};
use crate::dlpack::dlpack_methods;
use crate::error::{closed, invalid, unless_raised, IntoPyErr};
use crate::framework::Framework;
use crate::geometry::Geometry;
use crate::owner::{Block, Held, Owner, SampleView};
use crate::{dlpack, order};
use pyo3::exceptions::{PyBufferError, PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use rgaps::{DType, Domain, LoanError, PartSpec};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

thread_local! {
    /// The content of the next `_PartBase()`: `wrap` sets it before it calls the class (see `sample.rs`).
    static NEXT: RefCell<Option<PartBase>> = const { RefCell::new(None) };
}

/// The message that a part belongs to.
pub(crate) enum Whole {
    Sample(Arc<Held>),
    /// Weak, so that a part keeps no loan open.
    Loan(Weak<Block>),
}

/// A part, without the buffer protocol.
#[pyclass(frozen, subclass, weakref, name = "_PartBase", module = "rgaps")]
pub(crate) struct PartBase {
    whole: Whole,
    name: String,
    geometry: Geometry,
    offset: u64,
    domain: Domain,
}

/// The class `rgaps.Part`.
pub(crate) fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let class = CLASS.get_or_try_init(py, || {
        let doc =
            c"A named array in a message. It keeps the message's bytes as any view of them does.";
        with_buffer::<PartBase>(py, c"rgaps.Part", doc).map(Bound::unbind)
    })?;
    Ok(class.bind(py))
}

/// Makes an `rgaps.Part`.
pub(crate) fn wrap<'py>(
    py: Python<'py>,
    whole: Whole,
    part: &rgaps::Part,
    domain: Domain,
) -> PyResult<Bound<'py, PyAny>> {
    let base = PartBase {
        whole,
        name: part.name().to_owned(),
        geometry: Geometry::of(Some(&part.tensor()), part.len()),
        offset: part.offset(),
        domain,
    };
    let class = class(py)?;
    NEXT.with(|next| next.replace(Some(base)));
    class.call0()
}

/// The framework whose array a part becomes by default.
pub(crate) fn framework(py: Python<'_>, domain: Domain) -> PyResult<Framework> {
    if domain == Domain::Host {
        return Ok(Framework::Numpy);
    }
    let torch = unless_raised(py.import("torch"))?;
    Ok(torch.map_or(Framework::Any, |_| Framework::Torch))
}

/// An array over a part of a sample, without a copy; the part itself on a GPU without torch.
pub(crate) fn as_array<'py>(
    part: &Bound<'py, PyAny>,
    domain: Domain,
) -> PyResult<Bound<'py, PyAny>> {
    let py = part.py();
    match framework(py, domain)? {
        Framework::Numpy => py.import("rgaps._numpy")?.call_method1("as_array", (part,)),
        Framework::Torch => py
            .import("rgaps._torch")?
            .call_method1("as_tensor", (part,)),
        Framework::Any => Ok(part.clone()),
    }
}

/// The names of a message's parts, for its `repr` and for errors.
pub(crate) fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<String> = names
        .iter()
        .map(|name| format!("'{}'", name.as_ref()))
        .collect();
    format!("parts {}", names.join(", "))
}

/// Fails if a message has parts, since one array over all its bytes would be meaningless.
pub(crate) fn check_single<T: AsRef<str>>(what: &str, names: &[T]) -> PyResult<()> {
    match names.first() {
        None => Ok(()),
        Some(first) => Err(invalid(format!(
            "the {what} has {}: choose one, such as {what}['{}']; memoryview() gives all bytes",
            listed(names),
            first.as_ref()
        ))),
    }
}

/// The `KeyError` for an unknown part.
pub(crate) fn unknown(error: &impl std::fmt::Display) -> PyErr {
    PyKeyError::new_err(error.to_string())
}

/// The parts of a new loan: names, element types, shapes, and the frameworks whose arrays they become.
pub(crate) type Wanted = Vec<(String, DType, Vec<u64>, Framework)>;

/// The parts that `loan({name: (shape, dtype)})` asks for.
pub(crate) fn wanted(
    parts: &Bound<'_, PyDict>,
    domain: Domain,
    shape_of: fn(&Bound<'_, PyAny>) -> PyResult<Vec<u64>>,
) -> PyResult<Wanted> {
    let py = parts.py();
    let mut wanted = Wanted::new();
    for (name, form) in parts.iter() {
        let name = name_of(&name)?;
        let (shape, dtype): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
            unless_raised(form.extract())?
                .ok_or_else(|| invalid(format!("part '{name}' needs a pair (shape, dtype)")))?;
        let framework = match Framework::of(&dtype)? {
            Framework::Torch => Framework::Torch,
            _ => framework(py, domain)?,
        };
        let dtype = crate::dtype::of_object(&dtype)?;
        wanted.push((name, dtype, shape_of(&shape)?, framework));
    }
    Ok(wanted)
}

/// A tensor of torch without its gradient history, with which torch refuses DLPack; any other object unchanged.
pub(crate) fn detached<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match object.getattr_opt("detach")? {
        Some(detach) => detach.call0(),
        None => Ok(object.clone()),
    }
}

pub(crate) fn name_of(name: &Bound<'_, PyAny>) -> PyResult<String> {
    unless_raised(name.extract())?.ok_or_else(|| {
        about(name, |shown| {
            invalid(format!("the name of a part must be text, not {shown}"))
        })
    })
}

pub(crate) fn specs(wanted: &Wanted) -> Vec<PartSpec<'_>> {
    let specs = wanted.iter().map(|(name, dtype, shape, _)| PartSpec {
        name,
        dtype: *dtype,
        shape,
    });
    specs.collect()
}

/// The size in bytes of a message with these parts.
pub(crate) fn total_bytes(specs: &[PartSpec<'_>]) -> PyResult<u64> {
    let bytes = PartSpec::total_bytes(specs).map_err(LoanError::from);
    bytes.map_err(IntoPyErr::into_py_err)
}

impl PartBase {
    fn view_anywhere(&self, py: Python<'_>) -> PyResult<View> {
        let is_host = self.domain == Domain::Host;
        let (address, readonly, owner) = match &self.whole {
            Whole::Sample(held) => {
                // Fails in a forked child, where nothing is mapped at the address.
                if is_host {
                    held.sample.as_slice().map_err(IntoPyErr::into_py_err)?;
                }
                (
                    held.view_address(py)?,
                    true,
                    Owner::Sample(SampleView::new(held.clone())),
                )
            }
            Whole::Loan(block) => {
                let block = block.upgrade().ok_or_else(|| closed("loan"))?;
                if is_host {
                    block.with_loan(|loan| {
                        let bytes = loan.as_mut_slice().map(drop);
                        bytes.map_err(IntoPyErr::into_py_err)
                    })?;
                }
                let view = block.view().ok_or_else(|| closed("loan"))?;
                (block.address, false, Owner::Loan(view))
            }
        };
        Ok(View {
            address: address + self.offset,
            geometry: self.geometry,
            readonly,
            owner,
        })
    }

    fn export<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        wanted: &dlpack::Wanted,
    ) -> PyResult<Bound<'py, PyAny>> {
        let view = self.view_anywhere(py)?;
        match &self.whole {
            Whole::Sample(held) => {
                if self.domain == Domain::Host {
                    order::before_reading_on_cpu(py, &held.sample)?;
                } else if let Some(stream) = order::of_consumer(stream)? {
                    order::before_reading(&held.sample, stream)?;
                }
                let from = Some((&held.sample, self.offset));
                dlpack::export(py, self.domain, view, wanted, from)
            }
            Whole::Loan(block) => {
                if self.domain != Domain::Host {
                    if let Some(stream) = order::of_consumer(stream)? {
                        block.upgrade().inspect(|block| block.record(stream));
                    }
                }
                dlpack::export(py, self.domain, view, wanted, None)
            }
        }
    }
}

impl Exporter for PartBase {
    fn view(&self, py: Python<'_>) -> PyResult<View> {
        if self.domain != Domain::Host {
            return Err(PyBufferError::new_err(format!(
                "the part is in {}, so numpy and the buffer protocol cannot address it; use torch.from_dlpack",
                self.domain
            )));
        }
        let view = self.view_anywhere(py)?;
        if let Whole::Sample(held) = &self.whole {
            order::before_reading_on_cpu(py, &held.sample)?;
        }
        Ok(view)
    }
}

impl PartBase {
    /// A view of the bytes, once the work that writes them has finished.
    fn arrow_view(&self, py: Python<'_>) -> PyResult<View> {
        let Whole::Sample(held) = &self.whole else {
            return Err(PyBufferError::new_err(
                "Arrow arrays do not change, and a loan is there to be written: take numpy() or torch()",
            ));
        };
        let view = self.view_anywhere(py)?;
        order::before_reading_on_cpu(py, &held.sample)?;
        Ok(view)
    }
}

arrow_methods!(PartBase);
dlpack_methods!(PartBase);

#[pymethods]
impl PartBase {
    #[new]
    fn new() -> PyResult<PartBase> {
        let next = NEXT.with(|next| next.take());
        next.ok_or_else(|| PyTypeError::new_err("parts come from loans and samples"))
    }

    /// The name of the part.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The domain that holds the bytes: ``"host"`` or ``"cuda:GPU-<UUID>"``.
    #[getter]
    fn domain(&self) -> String {
        self.domain.to_string()
    }

    /// Lengths of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.geometry.shape())
    }

    /// Bytes from one element to the next, per dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.geometry.strides_bytes())
    }

    /// Name of the element type.
    #[getter]
    fn dtype(&self) -> String {
        self.geometry.dtype.to_string()
    }

    /// Length of the part in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.geometry.elements_bytes() as u64
    }

    /// Offset of the part's first byte in the message, in bytes: a multiple of 256.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// A numpy array over the part, without a copy: read-only for a sample, writable for a loan.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("rgaps._numpy")?.call_method1("as_array", (slf,))
    }

    /// A torch tensor over the part, without a copy, ordered on torch's current stream.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("rgaps._torch")?.call_method1("as_tensor", (slf,))
    }

    fn __repr__(&self) -> String {
        format!(
            "<rgaps.Part '{}': {} {:?}>",
            self.name,
            self.geometry.dtype,
            self.geometry.shape()
        )
    }
}
