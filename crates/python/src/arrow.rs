//! Apache Arrow's PyCapsule interface: a message as an Arrow array, without a copy. The structures are those of Arrow's C data
//! interface and C device data interface.
//!
//! Plain bytes and arrays of one dimension become primitive arrays. An array of more dimensions becomes Arrow's canonical type
//! `arrow.fixed_shape_tensor`, whose values are the rows of the first dimension. Booleans, which Arrow packs into bits, become
//! the canonical type `arrow.bool8`.
//!
//! A consumer may move a child out of its parent and release each of them by itself, so each structure owns what it points to.
//! The innermost array, which has the elements, keeps the message.

use crate::buffer::View;
use crate::dlpack;
use crate::dtype;
use crate::owner::Owner;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rgaps::Domain;
use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr;

/// Arrow's device number for the CPU.
const NO_DEVICE_ID: i64 = -1;

/// `struct ArrowSchema`.
#[repr(C)]
struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private_data: *mut c_void,
}

/// `struct ArrowDeviceArray`.
#[repr(C)]
struct DeviceArray {
    array: Array,
    device_id: i64,
    device_type: i32,
    /// An event to wait for before reading. NULL: the elements are complete.
    sync_event: *mut c_void,
    reserved: [i64; 3],
}

/// One of these structures, which its consumer releases.
trait Released {
    /// The name of a capsule that contains the structure.
    const NAME: &'static CStr;

    /// Releases the structure, unless its consumer has released it or moved it out.
    ///
    /// # Safety
    /// The structure was not freed, and nobody else uses it.
    unsafe fn release(&mut self);
}

impl Released for Schema {
    const NAME: &'static CStr = c"arrow_schema";

    unsafe fn release(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` is set, so the structure was neither released nor moved out: Arrow demands that both clear the
            // field. Our caller promises that it was not freed, and that nobody else uses it.
            unsafe { release(self) }
        }
    }
}

impl Released for Array {
    const NAME: &'static CStr = c"arrow_array";

    unsafe fn release(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `release` is set, so the structure was neither released nor moved out: Arrow demands that both clear the
            // field. Our caller promises that it was not freed, and that nobody else uses it.
            unsafe { release(self) }
        }
    }
}

impl Released for DeviceArray {
    const NAME: &'static CStr = c"arrow_device_array";

    unsafe fn release(&mut self) {
        // SAFETY: `array` is a part of `self`, which was not freed and which nobody else uses: our caller promises that.
        unsafe { self.array.release() }
    }
}

/// A boxed structure. Its drop releases the content, unless a consumer has moved that out, and frees the box.
struct Child<T: Released>(*mut T);

impl<T: Released> Child<T> {
    fn new(child: T) -> Child<T> {
        Child(Box::into_raw(Box::new(child)))
    }
}

impl<T: Released> Drop for Child<T> {
    fn drop(&mut self) {
        // SAFETY: `new` made the pointer from a box. Only its parent or its capsule points to it, and that ends.
        unsafe {
            let mut child = Box::from_raw(self.0);
            child.release();
        }
    }
}

/// The memory that a schema points to.
struct SchemaParts {
    format: CString,
    metadata: Vec<u8>,
    child: Option<Child<Schema>>,
    children: [*mut Schema; 1],
}

/// The memory that an array points to.
struct ArrayParts {
    /// The validity bitmap, which is NULL since all elements are valid, and the elements.
    buffers: [*const c_void; 2],
    child: Option<Child<Array>>,
    children: [*mut Array; 1],
    _owner: Option<Owner>,
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: the consumer calls this once, with a structure that `schema` below made, moved or not.
    unsafe {
        (*schema).release = None;
        drop(Box::from_raw((*schema).private_data.cast::<SchemaParts>()));
    }
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: the consumer calls this once, with a structure that `array` below made, moved or not.
    unsafe {
        (*array).release = None;
        drop(Box::from_raw((*array).private_data.cast::<ArrayParts>()));
    }
}

fn schema(format: CString, extension: &[(&str, String)], child: Option<Schema>) -> Schema {
    let child = child.map(Child::new);
    let parts = Box::into_raw(Box::new(SchemaParts {
        format,
        metadata: metadata(extension),
        children: [child.as_ref().map_or(ptr::null_mut(), |child| child.0)],
        child,
    }));
    // SAFETY: `parts` comes from `Box::into_raw` above, and nobody else knows it yet. It stays in place when the structure moves.
    unsafe {
        Schema {
            format: (*parts).format.as_ptr(),
            name: c"".as_ptr(),
            metadata: match extension {
                [] => ptr::null(),
                _ => (*parts).metadata.as_ptr().cast(),
            },
            flags: 0,
            n_children: (*parts).child.iter().count() as i64,
            children: (&raw mut (*parts).children).cast(),
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private_data: parts.cast(),
        }
    }
}

/// The values of an array.
enum Values {
    /// Elements at an address, which the owner keeps.
    At(u64, Owner),
    /// Lists of the elements of this array.
    Lists(Array),
}

fn array(length: i64, values: Values) -> Array {
    let (address, owner, child) = match values {
        Values::At(address, owner) => (address, Some(owner), None),
        Values::Lists(child) => (0, None, Some(Child::new(child))),
    };
    let parts = Box::into_raw(Box::new(ArrayParts {
        buffers: [ptr::null(), address as *const c_void],
        children: [child.as_ref().map_or(ptr::null_mut(), |child| child.0)],
        child,
        _owner: owner,
    }));
    // SAFETY: `parts` comes from `Box::into_raw` above, and nobody else knows it yet. It stays in place when the structure moves.
    unsafe {
        let n_children = (*parts).child.iter().count() as i64;
        Array {
            length,
            null_count: 0,
            offset: 0,
            n_buffers: 2 - n_children,
            n_children,
            buffers: (&raw mut (*parts).buffers).cast(),
            children: (&raw mut (*parts).children).cast(),
            dictionary: ptr::null_mut(),
            release: Some(release_array),
            private_data: parts.cast(),
        }
    }
}

/// Encodes keys and values in Arrow's format of metadata.
fn metadata(pairs: &[(&str, String)]) -> Vec<u8> {
    let mut bytes = (pairs.len() as i32).to_ne_bytes().to_vec();
    for (key, value) in pairs {
        for text in [*key, value] {
            bytes.extend((text.len() as i32).to_ne_bytes());
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// The metadata of one of Arrow's canonical extension types.
fn extension(name: &str, metadata: &str) -> Vec<(&'static str, String)> {
    vec![
        ("ARROW:extension:name", format!("arrow.{name}")),
        ("ARROW:extension:metadata", metadata.to_owned()),
    ]
}

/// The Arrow schema and array of a view.
fn export(view: View) -> PyResult<(Schema, Array)> {
    let geometry = view.geometry;
    let refused = |what: String| PyBufferError::new_err(format!("Arrow has no type for {what}"));
    if !geometry.is_contiguous() {
        let what = format!("an array with strides {:?}", geometry.strides_bytes());
        return Err(refused(format!("{what}; take numpy() and copy it")));
    }
    let Some((letter, is_bool)) = dtype::arrow(geometry.dtype) else {
        let what = format!("{}; take numpy(), torch() or DLPack", geometry.dtype);
        return Err(refused(what));
    };
    let elements: i64 = geometry.shape().iter().product();
    let values = array(elements, Values::At(view.address, view.owner));
    let (length, row) = match geometry.shape() {
        [length, row @ ..] if !row.is_empty() => (*length, row),
        _ => {
            let extension = if is_bool {
                extension("bool8", "")
            } else {
                [].into()
            };
            return Ok((schema(letter.to_owned(), &extension, None), values));
        }
    };
    // Booleans in tensors are bytes, since Arrow's tensors cannot have elements of an extension type.
    let child = schema(letter.to_owned(), &[], None);
    let each: i64 = row.iter().product();
    let lists = CString::new(format!("+w:{each}")).unwrap_or_default();
    let tensor = extension("fixed_shape_tensor", &format!("{{\"shape\":{row:?}}}"));
    Ok((
        schema(lists, &tensor, Some(child)),
        array(length, Values::Lists(values)),
    ))
}

/// `__arrow_c_array__`.
pub(crate) fn array_capsules(py: Python<'_>, view: View) -> PyResult<Bound<'_, PyTuple>> {
    let (schema, array) = export(view)?;
    pair(py, schema, array)
}

/// `__arrow_c_device_array__`.
pub(crate) fn device_capsules(
    py: Python<'_>,
    domain: Domain,
    view: View,
) -> PyResult<Bound<'_, PyTuple>> {
    // Arrow uses DLPack's numbers for types of devices.
    let (device_type, id) = dlpack::device_of(domain)?;
    let (schema, array) = export(view)?;
    let array = DeviceArray {
        array,
        device_id: match domain {
            Domain::Host => NO_DEVICE_ID,
            Domain::Cuda(_) => id.into(),
        },
        device_type,
        sync_event: ptr::null_mut(),
        reserved: [0; 3],
    };
    pair(py, schema, array)
}

fn pair<'py>(
    py: Python<'py>,
    schema: Schema,
    array: impl Released,
) -> PyResult<Bound<'py, PyTuple>> {
    // Make both capsules before returning an error, so that neither structure leaks.
    let (schema, array) = (capsule(py, schema), capsule(py, array));
    PyTuple::new(py, [schema?, array?])
}

fn capsule<T: Released>(py: Python<'_>, content: T) -> PyResult<Bound<'_, PyAny>> {
    let content = Child::new(content);
    // SAFETY: the name is static, and the destructor frees a capsule's content of this name and type.
    let made = unsafe {
        let made = ffi::PyCapsule_New(content.0.cast(), T::NAME.as_ptr(), Some(destroy::<T>));
        Bound::from_owned_ptr_or_err(py, made)
    }?;
    std::mem::forget(content);
    Ok(made)
}

/// The destructor of a capsule: releases the content, unless a consumer has moved it out, and frees its box.
unsafe extern "C" fn destroy<T: Released>(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with a capsule that `capsule` made with a box of this type.
    unsafe {
        let content = ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr());
        if !content.is_null() {
            drop(Child(content.cast::<T>()));
        }
    }
}

/// The Arrow methods of a class with a field `domain` and a method `arrow_view`. The stub has them in its class `_Arrow`, and
/// `tools/docs/rust_docstrings.py` takes that one's docstrings from here.
macro_rules! arrow_methods {
    ($class:ty) => {
        #[pymethods]
        impl $class {
            /// The message as an Arrow array, for ``pyarrow.array(sample)`` and others, without a copy: plain bytes and arrays of
            /// one dimension as numbers, others as ``arrow.fixed_shape_tensor``, whose rows are those of the first dimension.
            /// The array keeps the message's bytes as long as it lives. ``requested_schema`` is ignored, as Arrow allows.
            #[pyo3(signature = (requested_schema=None))]
            fn __arrow_c_array__<'py>(
                &self,
                py: Python<'py>,
                requested_schema: Option<&Bound<'py, PyAny>>,
            ) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
                let _ = requested_schema;
                if self.domain != Domain::Host {
                    return Err(pyo3::exceptions::PyBufferError::new_err(
                        "the bytes are on a GPU: take __arrow_c_device_array__(), or torch()",
                    ));
                }
                $crate::arrow::array_capsules(py, self.arrow_view(py)?)
            }

            /// The same on any device. It first waits until the publisher's GPU work is complete, so the consumer need not. Work
            /// that reads the array on another stream than the default one must finish before the array is released.
            #[pyo3(signature = (requested_schema=None, **_options))]
            fn __arrow_c_device_array__<'py>(
                &self,
                py: Python<'py>,
                requested_schema: Option<&Bound<'py, PyAny>>,
                _options: Option<&Bound<'py, pyo3::types::PyDict>>,
            ) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
                let _ = requested_schema;
                $crate::arrow::device_capsules(py, self.domain, self.arrow_view(py)?)
            }
        }
    };
}
pub(crate) use arrow_methods;
