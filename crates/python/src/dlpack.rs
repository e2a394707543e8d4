//! DLPack 1.x: the structures of `dlpack.h` 1.1, and the export of views. `source` imports.

use crate::buffer::View;
use crate::device;
use crate::error::IntoPyErr;
use crate::geometry::Geometry;
use crate::order;
use crate::owner::Owner;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use rgaps::{DType, Domain};
use rgaps_cuda::DeviceBuffer;
use rgaps_layout::MAX_DIMS;
use std::ffi::{c_void, CStr};
use std::ptr;

/// `kDLCPU`, `kDLCUDA`, `kDLCUDAHost`, `kDLCUDAManaged`.
pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_HOST: i32 = 3;
pub(crate) const CUDA_MANAGED: i32 = 13;

/// `kDLInt`.
const SIGNED: u8 = 0;
const VERSION: Version = Version { major: 1, minor: 1 };
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

pub(crate) const NAME: &CStr = c"dltensor";
pub(crate) const USED: &CStr = c"used_dltensor";
pub(crate) const VERSIONED_NAME: &CStr = c"dltensor_versioned";
pub(crate) const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

#[repr(C)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

impl DlTensor {
    pub(crate) fn dtype(&self) -> DType {
        DType {
            code: self.code,
            bits: self.bits,
            lanes: self.lanes,
        }
    }
}

/// `DLManagedTensor`.
#[repr(C)]
pub(crate) struct Managed {
    pub(crate) tensor: DlTensor,
    context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub(crate) struct ManagedVersioned {
    pub(crate) version: Version,
    context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    pub(crate) tensor: DlTensor,
}

/// A capsule's content, and the memory that it points to.
#[repr(C)]
struct Exported<M> {
    /// The first field, so that a pointer to it is a pointer to the whole.
    managed: M,
    shape: [i64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
    _owner: Owner,
}

/// A consumer's request.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
    /// Export integers of the elements' width instead, for consumers that do not know the element type.
    pub(crate) bits: bool,
}

/// The DLPack methods of a class with a field `domain` and a method `export`. The stub has them in its class `_Dlpack`,
/// and `tools/docs/rust_docstrings.py` takes that one's docstrings from here.
macro_rules! dlpack_methods {
    ($class:ty) => {
        #[pymethods]
        impl $class {
            /// A DLPack capsule over the bytes, for ``numpy.from_dlpack``, ``torch.from_dlpack`` and others: read-only for a
            /// sample, writable for a loan. On a GPU, work on the consumer's ``stream`` waits for the publisher's, and the
            /// block stays until it has finished; publishing a loan waits for it, too, on the GPU.
            #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
            fn __dlpack__<'py>(
                &self,
                py: Python<'py>,
                stream: Option<&Bound<'py, PyAny>>,
                max_version: Option<(u32, u32)>,
                dl_device: Option<(i32, i32)>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let wanted = $crate::dlpack::Wanted {
                    max_version,
                    device: dl_device,
                    copy,
                    bits: false,
                };
                self.export(py, stream, &wanted)
            }

            /// For `rgaps._torch`: like ``__dlpack__``, but with integers of the elements' width as elements.
            #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
            fn _dlpack_bits<'py>(
                &self,
                py: Python<'py>,
                stream: Option<&Bound<'py, PyAny>>,
                max_version: Option<(u32, u32)>,
                dl_device: Option<(i32, i32)>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let wanted = $crate::dlpack::Wanted {
                    max_version,
                    device: dl_device,
                    copy,
                    bits: true,
                };
                self.export(py, stream, &wanted)
            }

            /// DLPack's device: its type, and its number in this process.
            fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
                $crate::dlpack::device_of(self.domain)
            }
        }
    };
}
pub(crate) use dlpack_methods;

/// `__dlpack_device__`.
pub(crate) fn device_of(domain: Domain) -> PyResult<(i32, i32)> {
    match domain {
        Domain::Host => Ok((CPU, 0)),
        Domain::Cuda(uuid) => Ok((CUDA, device::ordinal(uuid)?)),
    }
}

/// A capsule over a view, or over a copy if the consumer asks for one. `sample`: the message to copy from, and the view's first
/// byte in it; None for a loan, which is never copied.
pub(crate) fn export<'py>(
    py: Python<'py>,
    domain: Domain,
    view: View,
    wanted: &Wanted,
    sample: Option<(&rgaps::Sample, u64)>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut view = view;
    if wanted.bits {
        view.geometry.dtype = DType {
            code: SIGNED,
            bits: (view.geometry.element_bytes() * 8) as u8,
            lanes: 1,
        };
    }
    let here = device_of(domain)?;
    let there = wanted.device.unwrap_or(here);
    if there == here && wanted.copy != Some(true) {
        return capsule(py, here, view, 0, wanted);
    }
    if wanted.copy == Some(false) {
        return Err(PyBufferError::new_err(
            "the bytes are on another device, and copy=False forbids to copy them",
        ));
    }
    let Some((sample, at)) = sample else {
        return Err(PyBufferError::new_err(
            "a loan is there to be written: a copy of it makes no sense",
        ));
    };
    let span = span_bytes(&view.geometry);
    let (address, owner) = copy(py, domain, (here, there), (sample, at), span)?;
    let copied = View {
        address,
        geometry: view.geometry,
        readonly: false,
        owner,
    };
    let there = if there.0 == CPU { (CPU, 0) } else { there };
    capsule(py, there, copied, IS_COPIED, wanted)
}

/// Copies `span` bytes of a sample, from byte `at` on, from device `here` to device `there`. Returns the copy's address and
/// owner.
fn copy(
    py: Python<'_>,
    domain: Domain,
    (here, there): ((i32, i32), (i32, i32)),
    (sample, at): (&rgaps::Sample, u64),
    span: usize,
) -> PyResult<(u64, Owner)> {
    order::before_reading_on_cpu(py, sample)?;
    match domain {
        _ if there.0 == CPU => {
            let mut bytes = vec![0; span].into_boxed_slice();
            py.detach(|| sample.read(at, &mut bytes))
                .map_err(IntoPyErr::into_py_err)?;
            Ok((bytes.as_ptr() as u64, Owner::Copy(bytes)))
        }
        Domain::Cuda(uuid) if there == here => {
            let context = device::context(uuid)?;
            let (address, bytes) = (sample.address() + at, span as u64);
            // SAFETY: the tensor lies within the sample's bytes, which the sample keeps, and `before_reading_on_cpu` above has waited
            // for the work that writes them.
            let copied = py.detach(|| unsafe { DeviceBuffer::copy_of(context, address, bytes) });
            let copied = copied.map_err(IntoPyErr::into_py_err)?;
            Ok((copied.address(), Owner::DeviceCopy(copied)))
        }
        _ => Err(PyBufferError::new_err(
            "rgaps copies to the host or within a device only; take the tensor where it is \
             and have the framework copy it (for torch: .to(device))",
        )),
    }
}

/// The number of bytes from the first element to the end of the last one.
fn span_bytes(geometry: &Geometry) -> usize {
    if geometry.shape().contains(&0) {
        return 0;
    }
    let steps = geometry.shape().iter().zip(geometry.strides());
    let last: i64 = steps.map(|(length, stride)| (length - 1) * stride).sum();
    ((last + 1) * geometry.element_bytes()) as usize
}

fn capsule<'py>(
    py: Python<'py>,
    device: (i32, i32),
    view: View,
    flags: u64,
    wanted: &Wanted,
) -> PyResult<Bound<'py, PyAny>> {
    let flags = flags | if view.readonly { READ_ONLY } else { 0 };
    if wanted.max_version.is_some_and(|version| version >= (1, 0)) {
        let managed = |tensor| ManagedVersioned {
            version: VERSION,
            context: ptr::null_mut(),
            deleter: Some(delete::<ManagedVersioned>),
            flags,
            tensor,
        };
        let exported = exported(device, view, managed, |managed| &mut managed.tensor);
        // SAFETY: a capsule of this name points to this structure, the box's first field; the destructor frees such a box.
        unsafe { new_capsule(py, exported.cast(), VERSIONED_NAME, destroy_versioned) }
    } else {
        // The old structure has no read-only flag; the mapping is read-only all the same.
        let managed = |tensor| Managed {
            tensor,
            context: ptr::null_mut(),
            deleter: Some(delete::<Managed>),
        };
        let exported = exported(device, view, managed, |managed| &mut managed.tensor);
        // SAFETY: a capsule of this name points to this structure, the box's first field; the destructor frees such a box.
        unsafe { new_capsule(py, exported.cast(), NAME, destroy) }
    }
}

fn exported<M>(
    (kind, id): (i32, i32),
    view: View,
    managed: impl FnOnce(DlTensor) -> M,
    tensor: impl FnOnce(&mut M) -> &mut DlTensor,
) -> *mut Exported<M> {
    let geometry = view.geometry;
    let empty = DlTensor {
        data: view.address as *mut c_void,
        device: Device { kind, id },
        ndim: geometry.shape().len() as i32,
        code: geometry.dtype.code,
        bits: geometry.dtype.bits,
        lanes: geometry.dtype.lanes,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let mut shape = [0; MAX_DIMS];
    let mut strides = [0; MAX_DIMS];
    shape[..geometry.shape().len()].copy_from_slice(geometry.shape());
    strides[..geometry.strides().len()].copy_from_slice(geometry.strides());
    let exported = Box::into_raw(Box::new(Exported {
        managed: managed(empty),
        shape,
        strides,
        _owner: view.owner,
    }));
    // SAFETY: `exported` comes from `Box::into_raw` above, and nobody else knows it yet. The pointers derive from the raw one, so
    // they stay valid for consumers.
    unsafe {
        let (shape, strides) = (&raw mut (*exported).shape, &raw mut (*exported).strides);
        let tensor = tensor(&mut (*exported).managed);
        tensor.shape = shape.cast();
        tensor.strides = strides.cast();
    }
    exported
}

/// Frees a capsule's content. The consumer calls this on any thread, attached to the interpreter or not.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: the consumer calls this once, with the pointer that it got: the first field of the box.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
    }
}

/// # Safety
/// `pointer` points to the structure of capsules of this name, in a box, and `destructor` frees that box.
unsafe fn new_capsule<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name is static. Our caller promises that `pointer` fits the name, and that `destructor` frees its box. If memory
    // is too short for a capsule, the box leaks.
    unsafe {
        let made = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, made)
    }
}

unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with a capsule that `new_capsule` made for a `Managed`.
    unsafe { destroy_unused::<Managed>(capsule, NAME) }
}

unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with a capsule that `new_capsule` made for a `ManagedVersioned`.
    unsafe { destroy_unused::<ManagedVersioned>(capsule, VERSIONED_NAME) }
}

/// Frees the content of a capsule that no consumer has renamed, and so taken over.
///
/// # Safety
/// The interpreter is destroying the capsule, and `new_capsule` made it for an `Exported<M>`.
unsafe fn destroy_unused<M>(capsule: *mut ffi::PyObject, name: &CStr) {
    // SAFETY: the capsule is valid until we return. While it has its first name, its pointer is the box.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
            delete::<M>(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast());
        }
    }
}
