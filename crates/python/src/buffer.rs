//! The buffer protocol.
//!
//! The protocol is part of the stable ABI since Python 3.11, and we support 3.10 with the same binary. The structure, the numbers
//! of the type slots and the functions are the same in 3.10, but `pyo3` declares them only for 3.11, so this module does. See
//! `docs/decisions/0010-python-abi.md`.

use crate::dtype;
use crate::geometry::Geometry;
use crate::owner::Owner;
use pyo3::exceptions::{PyBufferError, PySystemError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::types::{PyTuple, PyType};
use pyo3::PyClass;
use rgaps_layout::MAX_DIMS;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

/// `Py_buffer`.
#[repr(C)]
pub(crate) struct RawBuffer {
    pub(crate) buf: *mut c_void,
    obj: *mut ffi::PyObject,
    pub(crate) len: ffi::Py_ssize_t,
    pub(crate) itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    pub(crate) ndim: c_int,
    pub(crate) format: *mut c_char,
    pub(crate) shape: *mut ffi::Py_ssize_t,
    pub(crate) strides: *mut ffi::Py_ssize_t,
    pub(crate) suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

extern "C" {
    pub(crate) fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
    pub(crate) fn PyObject_GetBuffer(
        object: *mut ffi::PyObject,
        view: *mut RawBuffer,
        flags: c_int,
    ) -> c_int;
    pub(crate) fn PyBuffer_Release(view: *mut RawBuffer);
    pub(crate) fn PyBuffer_IsContiguous(view: *const RawBuffer, order: c_char) -> c_int;
    pub(crate) fn PyBuffer_ToContiguous(
        to: *mut c_void,
        view: *const RawBuffer,
        bytes: ffi::Py_ssize_t,
        order: c_char,
    ) -> c_int;
}

// Numbers of the stable ABI: type slots, and flags of a consumer's request.
const SLOT_GETBUFFER: c_int = 1;
const SLOT_RELEASEBUFFER: c_int = 2;
const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
const ND: c_int = 0x8;
const STRIDES: c_int = 0x10 | ND;
const C_CONTIGUOUS: c_int = 0x20 | STRIDES;
const F_CONTIGUOUS: c_int = 0x40 | STRIDES;
const ANY_CONTIGUOUS: c_int = 0x80 | STRIDES;
const INDIRECT: c_int = 0x100 | STRIDES;
/// `PyBUF_FULL_RO`: any layout, read-only.
pub(crate) const FULL_READ_ONLY: c_int = INDIRECT | FORMAT;

/// A view of an object's bytes, which a protocol exports.
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) geometry: Geometry,
    pub(crate) readonly: bool,
    /// Keeps the bytes as long as the view lives.
    pub(crate) owner: Owner,
}

/// An object that exports views of host memory.
pub(crate) trait Exporter: PyClass<Frozen = True> + Sync {
    /// A view, or a `BufferError` that says why not.
    fn view(&self, py: Python<'_>) -> PyResult<View>;
}

/// The memory that the pointers of a `RawBuffer` point to.
struct Internal {
    shape: [ffi::Py_ssize_t; MAX_DIMS],
    strides: [ffi::Py_ssize_t; MAX_DIMS],
    _owner: Owner,
}

/// A subtype of `T`'s class that has the buffer protocol.
pub(crate) fn with_buffer<'py, T: Exporter>(
    py: Python<'py>,
    name: &'static CStr,
    doc: &'static CStr,
) -> PyResult<Bound<'py, PyType>> {
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(SLOT_GETBUFFER, get_buffer::<T> as *mut c_void),
        slot(SLOT_RELEASEBUFFER, release_buffer as *mut c_void),
        slot(ffi::Py_tp_doc, doc.as_ptr() as *mut c_void),
        slot(0, ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        // 0: inherits the size of the base.
        basicsize: 0,
        itemsize: 0,
        flags: ffi::Py_TPFLAGS_DEFAULT as _,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [py.get_type::<T>()])?;
    // SAFETY: the specification is complete and lives through the call, which copies it; the name
    // is static, as 3.10 keeps the pointer. The functions have the signatures of their slots.
    let made = unsafe {
        let made = ffi::PyType_FromSpecWithBases(&mut spec, bases.as_ptr());
        Bound::from_owned_ptr_or_err(py, made)?
    };
    Ok(made.cast_into::<PyType>()?)
}

unsafe extern "C" fn get_buffer<T: Exporter>(
    object: *mut ffi::PyObject,
    view: *mut RawBuffer,
    flags: c_int,
) -> c_int {
    // SAFETY: the interpreter calls this, attached, with an object of the subtype of `T`.
    let (py, object) = unsafe {
        let py = Python::assume_attached();
        (py, Bound::from_borrowed_ptr(py, object))
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let view = object.cast::<T>()?.get().view(py)?;
        check(&view, flags)?;
        Ok(fill(view, object.clone(), flags))
    }));
    let error: PyErr = match outcome {
        Ok(Ok(filled)) => {
            // SAFETY: the interpreter passes a `Py_buffer` that we may write.
            unsafe { view.write(filled) };
            return 0;
        }
        Ok(Err(error)) => error,
        Err(_) => PySystemError::new_err("rgaps failed to give out a buffer"),
    };
    error.restore(py);
    // SAFETY: the interpreter passes a `Py_buffer` that we may write. After a failure its `obj` must be NULL.
    unsafe { (*view).obj = ptr::null_mut() };
    -1
}

/// Fails unless the view has the layout that the consumer's flags ask for.
fn check(view: &View, flags: c_int) -> PyResult<()> {
    let asks = |wanted: c_int| flags & wanted == wanted;
    if view.readonly && asks(WRITABLE) {
        return Err(PyBufferError::new_err("a sample is read-only"));
    }
    let (rows, columns) = (view.geometry.is_contiguous(), view.geometry.is_fortran());
    let fits = match () {
        () if asks(C_CONTIGUOUS) => rows,
        () if asks(F_CONTIGUOUS) => columns,
        () if asks(ANY_CONTIGUOUS) => rows || columns,
        () => rows || asks(STRIDES),
    };
    if !fits {
        return Err(PyBufferError::new_err(
            "the message's elements do not lie one behind the other as the consumer wants them",
        ));
    }
    Ok(())
}

fn fill(view: View, object: Bound<'_, PyAny>, flags: c_int) -> RawBuffer {
    let asks = |wanted: c_int| flags & wanted == wanted;
    // Element types without a letter in the protocol are exported as bytes.
    let (format, geometry) = match dtype::format(view.geometry.dtype) {
        Some(format) => (format, view.geometry),
        None => {
            let bytes = view.geometry.elements_bytes() as u64;
            (c"B", Geometry::bytes(bytes))
        }
    };
    let mut internal = Box::new(Internal {
        shape: [0; MAX_DIMS],
        strides: [0; MAX_DIMS],
        _owner: view.owner,
    });
    let ndim = geometry.shape().len();
    for (dim, stride) in geometry.strides_bytes().into_iter().enumerate() {
        internal.shape[dim] = geometry.shape()[dim] as ffi::Py_ssize_t;
        internal.strides[dim] = stride as ffi::Py_ssize_t;
    }
    let internal = Box::into_raw(internal);
    // SAFETY: `internal` comes from `Box::into_raw` above, and `release_buffer` frees it. The pointers derive from the raw one,
    // so they stay valid beside it.
    let (shape, strides) = unsafe {
        (
            (&raw mut (*internal).shape).cast(),
            (&raw mut (*internal).strides).cast(),
        )
    };
    RawBuffer {
        buf: view.address as *mut c_void,
        obj: object.into_ptr(),
        len: geometry.elements_bytes() as ffi::Py_ssize_t,
        itemsize: geometry.element_bytes() as ffi::Py_ssize_t,
        readonly: view.readonly.into(),
        ndim: ndim as c_int,
        format: match asks(FORMAT) {
            true => format.as_ptr() as *mut c_char,
            false => ptr::null_mut(),
        },
        shape: if asks(ND) { shape } else { ptr::null_mut() },
        strides: if asks(STRIDES) {
            strides
        } else {
            ptr::null_mut()
        },
        suboffsets: ptr::null_mut(),
        internal: internal.cast(),
    }
}

unsafe extern "C" fn release_buffer(_: *mut ffi::PyObject, view: *mut RawBuffer) {
    // SAFETY: the interpreter calls this once with each view that `get_buffer` filled; `internal` is the box that `fill` made.
    unsafe {
        let internal = (*view).internal.cast::<Internal>();
        (*view).internal = ptr::null_mut();
        if !internal.is_null() {
            drop(Box::from_raw(internal));
        }
    }
}

impl RawBuffer {
    pub(crate) const fn empty() -> RawBuffer {
        RawBuffer {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        }
    }
}
