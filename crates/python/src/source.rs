//! The sources of `put` and `write`: objects with the buffer protocol, DLPack or `__cuda_array_interface__`.

use crate::argument::type_name;
use crate::buffer::{self, RawBuffer};
use crate::dlpack::{self, Managed, ManagedVersioned};
use crate::error::{invalid, is_answerable, unless_raised, IntoPyErr};
use crate::geometry::is_row_major;
use crate::{device, dtype, order};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyString, PyTuple,
};
use rgaps::{DType, Domain, Stream};
use rgaps_layout::MAX_DIMS;
use std::ffi::CStr;
use std::os::raw::c_char;

/// The largest number of dimensions that we read. It is above a message's limit, so that the error is about that limit.
const DIMS_MAX: usize = 64;

/// Bytes to copy from, which this keeps alive.
pub(crate) struct Source {
    /// Element type and shape, unless it is plain bytes.
    tensor: Option<(DType, Vec<u64>)>,
    bytes: u64,
    memory: Memory,
}

enum Memory {
    Buffer(Box<Buffer>),
    Tensor(Tensor),
}

/// A filled `Py_buffer`.
struct Buffer(RawBuffer);

// SAFETY: the exporter keeps the memory until the release, which `Drop` does attached to the interpreter. Other threads only
// read through the pointers.
unsafe impl Send for Buffer {}
// SAFETY: nothing changes the filled structure before its release, and methods with `&self` only read it.
unsafe impl Sync for Buffer {}

/// A DLPack tensor that we consumed.
struct Tensor {
    address: u64,
    /// The GPU's number in this process; None on the host, or if it is unknown.
    device: Option<i32>,
    shape: Vec<i64>,
    /// In elements.
    strides: Vec<i64>,
    element_bytes: usize,
    /// Streams whose work writes the tensor.
    after: Vec<Stream>,
    _consumed: Consumed,
}

/// The producer's structure, whose deleter `Drop` calls once.
enum Consumed {
    /// No structure: the Python object keeps the memory, and the caller keeps the object.
    Object,
    Plain(*mut Managed),
    Versioned(*mut ManagedVersioned),
}

// SAFETY: DLPack lets the consumer delete on any thread.
unsafe impl Send for Consumed {}
// SAFETY: only `Drop`, which has exclusive access, follows the pointer.
unsafe impl Sync for Consumed {}

/// Whether the object is a tensor of torch that torch can copy into a pool of that domain.
pub(crate) fn is_torchs(object: &Bound<'_, PyAny>, pool: Domain) -> PyResult<bool> {
    let py = object.py();
    // Does not import torch: if nobody has imported it, the object is not its tensor.
    let loaded = py.import("sys")?.getattr("modules")?;
    let Some(torch) = unless_raised(loaded.get_item("torch"))? else {
        return Ok(false);
    };
    if torch.is_none() || !object.is_instance(&torch.getattr("Tensor")?)? {
        return Ok(false);
    }
    let copies = py.import("rgaps._torch")?.getattr("copies")?;
    copies.call1((object, pool != Domain::Host))?.is_truthy()
}

/// Fails for an object that has no bytes, and says what to give instead.
fn unsupported(object: &Bound<'_, PyAny>) -> PyResult<Source> {
    let py = object.py();
    let name = type_name(object)?;
    let has_numpy = unless_raised(py.import("numpy"))?.is_some();
    let is_number = object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>();
    let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
    // For example an image of PIL or a frame of pandas.
    let has = |name| PyResult::Ok(unless_raised(object.hasattr(name))?.unwrap_or(false));
    let is_array_like = has("__array_interface__")? || has("__array__")?;
    let advice = match has_numpy {
        true if is_array_like => "give numpy.asarray(data)",
        true if is_number || is_list => "give numpy.asarray(data, dtype=...), or bytes (struct.pack)",
        false if is_number || is_list => {
            "give array.array('d', [...]) or bytes (struct.pack), or install numpy (pip install numpy) and give \
             numpy.asarray(data)"
        }
        false if is_array_like => {
            "install numpy (pip install numpy) and give numpy.asarray(data), or give its bytes"
        }
        _ => "give bytes, an array (numpy, array.array), a tensor, or a dictionary of named arrays; pickle.dumps(data) makes \
              bytes of other objects",
    };
    Err(PyTypeError::new_err(format!(
        "a message cannot be made of type {name}: {advice}"
    )))
}

impl Source {
    /// A source from a Python object. `stream`: the stream whose queued work writes the object, if it is on a GPU.
    pub(crate) fn of(
        object: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Source> {
        if object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err(
                "a message cannot be made of text: give its bytes, text.encode()",
            ));
        }
        // SAFETY: `object` is a live object, and we are attached.
        if unsafe { buffer::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            match Source::of_buffer(object) {
                Ok(source) => return Ok(source),
                Err(error) if !is_answerable(&error) => return Err(error),
                // An array with a type of ml_dtypes, or an object whose DLPack may work where its buffer did not.
                Err(error) => {
                    if let Some(source) = Source::of_numpy(object)? {
                        return Ok(source);
                    }
                    if !object.hasattr("__dlpack__")? || object.hasattr("__array_interface__")? {
                        return Err(error);
                    }
                }
            }
        }
        if object.hasattr("__dlpack__")? {
            return Source::of_dlpack(object, stream);
        }
        if object.hasattr("__cuda_array_interface__")? {
            return Source::of_cuda_interface(object, stream);
        }
        unsupported(object)
    }

    fn of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Source> {
        let mut raw = Box::new(Buffer(RawBuffer::empty()));
        // SAFETY: `raw.0` is ours to write. If the call fills it, `Buffer`'s drop releases it once.
        let code = unsafe {
            buffer::PyObject_GetBuffer(object.as_ptr(), &mut raw.0, buffer::FULL_READ_ONLY)
        };
        if code != 0 {
            // The call filled nothing, so `Buffer`'s drop must not release it.
            std::mem::forget(raw);
            return Err(PyErr::fetch(object.py()));
        }
        let view = &raw.0;
        let ndim = usize::try_from(view.ndim).unwrap_or(0).min(DIMS_MAX);
        // SAFETY: we asked the exporter for shape and format, so it filled in `ndim` lengths and a C string. A null shape means
        // no dimensions or one, a null format means bytes; both are checked.
        let (shape, format) = unsafe {
            let shape = match view.shape.is_null() {
                true if ndim == 0 => Vec::new(),
                true => vec![view.len as u64],
                false => (0..ndim).map(|dim| *view.shape.add(dim) as u64).collect(),
            };
            let format = match view.format.is_null() {
                true => c"B",
                false => CStr::from_ptr(view.format),
            };
            (shape, format)
        };
        let is_bytes = object.is_instance_of::<PyBytes>()
            || object.is_instance_of::<PyByteArray>()
            || (object.is_instance_of::<PyMemoryView>() && format == c"B" && ndim == 1);
        let tensor = match is_bytes {
            true => None,
            false => Some((
                dtype::of_format(format, view.itemsize as usize).map_err(invalid)?,
                shape,
            )),
        };
        Ok(Source {
            tensor,
            bytes: view.len as u64,
            memory: Memory::Buffer(raw),
        })
    }

    /// An array whose element type the buffer protocol cannot express.
    fn of_numpy(object: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        let helper = object.py().import("rgaps._numpy")?;
        let found = helper.call_method1("as_bytes", (object,))?;
        let Some((bytes, name, shape)) =
            found.extract::<Option<(Bound<'_, PyAny>, String, Vec<u64>)>>()?
        else {
            return Ok(None);
        };
        let dtype = name
            .parse()
            .map_err(|error: rgaps_layout::DTypeParseError| invalid(error.to_string()))?;
        let mut source = Source::of_buffer(&bytes)?;
        source.tensor = Some((dtype, shape));
        Ok(Some(source))
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Source> {
        let py = object.py();
        let (kind, id): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        let on_host = matches!(kind, dlpack::CPU | dlpack::CUDA_HOST);
        if !on_host && !matches!(kind, dlpack::CUDA | dlpack::CUDA_MANAGED) {
            return Err(invalid(format!(
                "rgaps cannot read the memory of a device of DLPack's type {kind}; copy the data to the host first"
            )));
        }
        let arguments = PyDict::new(py);
        let mut after = Vec::new();
        if !on_host {
            // The producer makes the default stream wait for its work. The copy comes behind that stream, and behind the one
            // that the caller names.
            arguments.set_item("stream", order::LEGACY.0)?;
            after = vec![order::LEGACY, order::named(stream)?];
        }
        arguments.set_item("max_version", (1, 1))?;
        let export = |arguments| object.call_method("__dlpack__", (), Some(arguments));
        let capsule = match export(&arguments) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                // The producer is older than DLPack 1.0.
                arguments.del_item("max_version")?;
                export(&arguments)?
            }
            outcome => outcome?,
        };
        let device = (!on_host).then_some(id);
        let (tensor, dtype) = consume(&capsule, device, after)?;
        let shape = tensor
            .shape
            .iter()
            .map(|length| *length as u64)
            .collect::<Vec<_>>();
        let bytes = shape.iter().product::<u64>() * tensor.element_bytes as u64;
        if !on_host && !is_row_major(&tensor.shape, &tensor.strides) {
            if !object.hasattr("contiguous")? {
                return Err(invalid("the tensor has gaps; make it contiguous first"));
            }
            return Source::of_dlpack(&object.call_method0("contiguous")?, stream);
        }
        Ok(Source {
            tensor: Some((dtype, shape)),
            bytes,
            memory: Memory::Tensor(tensor),
        })
    }

    /// An array of numba, or of another library that has only `__cuda_array_interface__`.
    fn of_cuda_interface(
        object: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Source> {
        let interface = object.getattr("__cuda_array_interface__")?;
        let item = |name| interface.get_item(name);
        let optional = |name| {
            let found = unless_raised(interface.call_method1("get", (name,)))?;
            PyResult::Ok(found.filter(|found| !found.is_none()))
        };
        let (address, _): (u64, bool) = item("data")?.extract()?;
        let shape: Vec<u64> = item("shape")?.extract()?;
        let typestr: String = item("typestr")?.extract()?;
        let dtype = dtype::of_typestr(&typestr).map_err(invalid)?;
        let (tensor, bytes) =
            rgaps::tensor::contiguous(dtype, &shape).map_err(|error| invalid(error.to_string()))?;
        if let Some(strides) = optional("strides")? {
            let strides: Vec<i64> = strides.extract()?;
            // These strides are in bytes, so an element counts as a last dimension of bytes.
            let lengths = shape.iter().copied().chain([dtype.element_bytes()]);
            let lengths: Vec<i64> = lengths.map(|length| length as i64).collect();
            if !is_row_major(&lengths, &[&strides[..], &[1]].concat()) {
                return Err(invalid("the array has gaps; make it contiguous first"));
            }
        }
        // The consumer must wait for the stream that the interface names; None: for nothing.
        let mut after = vec![order::named(stream)?];
        if let Some(named) = optional("stream")? {
            after.push(order::named(Some(&named))?);
        }
        let tensor = Tensor {
            address,
            device: None,
            shape: shape.iter().map(|length| *length as i64).collect(),
            strides: tensor.strides[..shape.len()].to_vec(),
            element_bytes: dtype.element_bytes() as usize,
            after,
            _consumed: Consumed::Object,
        };
        Ok(Source {
            tensor: Some((dtype, shape)),
            bytes,
            memory: Memory::Tensor(tensor),
        })
    }

    /// Element type and shape, unless it is plain bytes.
    pub(crate) fn tensor(&self) -> Option<(DType, &[u64])> {
        let (dtype, shape) = self.tensor.as_ref()?;
        Some((*dtype, shape))
    }

    /// The number of bytes of the elements.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies the elements, in row-major order, into a loan from byte `at` on.
    pub(crate) fn copy_into(
        &self,
        py: Python<'_>,
        loan: &mut rgaps::Loan,
        at: u64,
    ) -> PyResult<()> {
        let copied = match &self.memory {
            Memory::Buffer(buffer) => match buffer.gathered(py)? {
                Some(bytes) => py.detach(|| loan.write(at, &bytes)),
                None => {
                    let address = buffer.0.buf as u64;
                    // SAFETY: the buffer is contiguous (`gathered`), and the exporter keeps its `len` bytes, which are `self.bytes`,
                    // until the buffer is released.
                    py.detach(|| unsafe { loan.copy_from(at, address, self.bytes) })
                }
            },
            Memory::Tensor(tensor) => return tensor.copy_into(py, loan, at, self.bytes),
        };
        copied.map_err(IntoPyErr::into_py_err)
    }
}

impl Buffer {
    /// A copy of the elements in row-major order; None if the buffer has that order already.
    fn gathered(&self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        let order = b'C' as c_char;
        // SAFETY: `PyObject_GetBuffer` filled the view, and it is not released yet.
        if unsafe { buffer::PyBuffer_IsContiguous(&self.0, order) } == 1 {
            return Ok(None);
        }
        let mut bytes = vec![0; self.0.len as usize];
        // SAFETY: `bytes` has `len` bytes, the length of the view's elements; the view is filled and not released yet.
        let code = unsafe {
            let to = bytes.as_mut_ptr().cast();
            buffer::PyBuffer_ToContiguous(to, &self.0, self.0.len, order)
        };
        match code {
            0 => Ok(Some(bytes)),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: PyObject_GetBuffer filled it, and only this releases it. A source lives on the stack of a call from Python,
        // so it is dropped attached.
        unsafe { buffer::PyBuffer_Release(&mut self.0) };
    }
}

/// Takes a DLPack tensor over from its capsule.
fn consume(
    capsule: &Bound<'_, PyAny>,
    device: Option<i32>,
    after: Vec<Stream>,
) -> PyResult<(Tensor, DType)> {
    let pointer = capsule.as_ptr();
    let named = |name: &CStr| {
        // SAFETY: `pointer` is a live object, which `capsule` keeps, and we are attached.
        unsafe { ffi::PyCapsule_IsValid(pointer, name.as_ptr()) == 1 }
    };
    // SAFETY: by DLPack's specification, a capsule of these names points to these structures, and its consumer owns the
    // structure after it has renamed the capsule.
    let (consumed, tensor) = unsafe {
        if named(dlpack::VERSIONED_NAME) {
            let managed: *mut ManagedVersioned =
                ffi::PyCapsule_GetPointer(pointer, dlpack::VERSIONED_NAME.as_ptr()).cast();
            if (*managed).version.major != 1 {
                let major = (*managed).version.major;
                return Err(invalid(format!(
                    "rgaps supports DLPack 1.x, not {major}; use a version of the library that exports 1.x"
                )));
            }
            ffi::PyCapsule_SetName(pointer, dlpack::VERSIONED_USED.as_ptr());
            (Consumed::Versioned(managed), &raw const (*managed).tensor)
        } else if named(dlpack::NAME) {
            let managed: *mut Managed =
                ffi::PyCapsule_GetPointer(pointer, dlpack::NAME.as_ptr()).cast();
            ffi::PyCapsule_SetName(pointer, dlpack::USED.as_ptr());
            (Consumed::Plain(managed), &raw const (*managed).tensor)
        } else {
            return Err(PyTypeError::new_err(
                "__dlpack__ gave no unused DLPack capsule",
            ));
        }
    };
    // SAFETY: the producer keeps the tensor valid until `consumed` is dropped. By DLPack's specification, shape and strides
    // have `ndim` numbers; strides may be null, for row-major order.
    let (tensor, shape, strides) = unsafe {
        let tensor = &*tensor;
        let ndim = usize::try_from(tensor.ndim).unwrap_or(0).min(DIMS_MAX);
        let read = |from: *mut i64| (0..ndim).map(|dim| *from.add(dim)).collect::<Vec<_>>();
        let strides = (!tensor.strides.is_null()).then(|| read(tensor.strides));
        (tensor, read(tensor.shape), strides)
    };
    let dtype = tensor.dtype();
    check_description(&shape, dtype)?;
    let strides = strides.unwrap_or_else(|| row_major(&shape));
    let tensor = Tensor {
        address: tensor.data as u64 + tensor.byte_offset,
        device,
        shape,
        strides,
        element_bytes: dtype.element_bytes() as usize,
        after,
        _consumed: consumed,
    };
    Ok((tensor, dtype))
}

/// Fails unless a message can have this element type and shape.
fn check_description(shape: &[i64], dtype: DType) -> PyResult<()> {
    if shape.len() > MAX_DIMS || shape.iter().any(|length| *length < 0) {
        return Err(invalid(format!(
            "a message cannot have the shape {shape:?}"
        )));
    }
    if dtype.element_bytes() * 8 != u64::from(dtype.bits) * u64::from(dtype.lanes)
        || (dtype.lanes != 1 && dtype.name().is_none())
        || dtype.bits == 0
    {
        return Err(invalid(format!(
            "elements of {dtype} do not fill whole bytes"
        )));
    }
    Ok(())
}

fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    strides
}

impl Tensor {
    fn copy_into(
        &self,
        py: Python<'_>,
        loan: &mut rgaps::Loan,
        at: u64,
        bytes: u64,
    ) -> PyResult<()> {
        if let (Some(number), Domain::Cuda(uuid)) = (self.device, loan.domain()) {
            let pool = device::ordinal(uuid)?;
            if number != pool {
                return Err(invalid(format!(
                    "the array is on GPU {number}, but the topic is on GPU {pool}; copy the array there first"
                )));
            }
        }
        let copied = py.detach(|| {
            if is_row_major(&self.shape, &self.strides) {
                // SAFETY: the producer keeps the elements, `bytes` bytes, until `_consumed` is dropped.
                return unsafe { order::copy(loan, at, self.address, bytes, &self.after) };
            }
            let mut gathered = Vec::with_capacity(bytes as usize);
            // SAFETY: the strides lead to elements of the tensor, which the producer keeps until `_consumed` is dropped.
            unsafe { self.gather(0, self.address as *const u8, &mut gathered) };
            loan.write(at, &gathered)
        });
        copied.map_err(IntoPyErr::into_py_err)
    }

    /// Appends the elements of the dimensions from `dim` on.
    ///
    /// # Safety
    /// `from` is the host address of their first element, and the producer keeps all of them until this returns.
    unsafe fn gather(&self, dim: usize, from: *const u8, to: &mut Vec<u8>) {
        if is_row_major(&self.shape[dim..], &self.strides[dim..]) {
            let elements = self.shape[dim..].iter().product::<i64>() as usize;
            // SAFETY: these dimensions are row-major without gaps, so `elements` elements lie one behind the other from `from` on,
            // and our caller promises that the producer keeps them.
            to.extend_from_slice(unsafe {
                std::slice::from_raw_parts(from, elements * self.element_bytes)
            });
            return;
        }
        for index in 0..self.shape[dim] {
            let step = self.strides[dim] * index * self.element_bytes as i64;
            // SAFETY: `index` is below the dimension's length, so the stride leads to one of its elements, which the producer keeps.
            unsafe { self.gather(dim + 1, from.offset(step as isize), to) };
        }
    }
}

impl Drop for Consumed {
    fn drop(&mut self) {
        // SAFETY: `consume` took the structure over from its capsule, and only this deletes it.
        unsafe {
            match *self {
                Consumed::Object => {}
                Consumed::Plain(managed) => {
                    if let Some(delete) = (*managed).deleter {
                        delete(managed);
                    }
                }
                Consumed::Versioned(managed) => {
                    if let Some(delete) = (*managed).deleter {
                        delete(managed);
                    }
                }
            }
        }
    }
}
