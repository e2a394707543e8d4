//! Attachments, headers and parts.

use crate::boundary::{check_slice, guard, guard_value, text, Out};
use crate::handle::borrow;
use crate::loan::rgaps_loan_t;
use crate::publisher::{lend, rgaps_publisher_t};
use crate::sample::rgaps_sample_t;
use crate::status::{rgaps_status_t, Code, Failure, Outcome};
use crate::tensor::rgaps_tensor_t;
use rgaps_client::bindings::WithMetadata;
use rgaps_rs::{
    Header, HeaderError, Loan, Part, PartSpec, Publisher, Sample, Value, MAX_MESSAGE_PARTS,
};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void, CString};
use std::sync::OnceLock;

/// `rgaps_part_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rgaps_part_t {
    name: *const c_char,
    tensor: rgaps_tensor_t,
    offset: usize,
    bytes: usize,
}

const NO_PART: rgaps_part_t = rgaps_part_t {
    name: std::ptr::null(),
    tensor: rgaps_tensor_t::NONE,
    offset: 0,
    bytes: 0,
};

impl rgaps_part_t {
    fn of(part: &Part, name: *const c_char) -> rgaps_part_t {
        rgaps_part_t {
            name,
            tensor: (&part.tensor()).into(),
            offset: part.offset() as usize,
            bytes: part.len() as usize,
        }
    }
}

/// The texts of a sample's header and the names of its parts as C strings, made on first use.
#[derive(Default)]
pub(crate) struct Texts {
    header: OnceLock<Result<Option<HeaderText>, HeaderError>>,
    parts: OnceLock<Vec<CString>>,
}

struct HeaderText {
    header: Header,
    frame_id: Option<CString>,
    values: BTreeMap<String, CString>,
}

/// A C string of a text. U+FFFD replaces each NUL, at which C would stop reading.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

impl Texts {
    fn header(&self, sample: &Sample) -> Outcome<&HeaderText> {
        let read = || {
            let header = sample.header()?;
            Ok(header.map(|header| HeaderText {
                frame_id: header.frame_id.as_deref().map(c_text),
                values: header
                    .values
                    .iter()
                    .filter_map(|(key, value)| match value {
                        Value::Text(text) => Some((key.clone(), c_text(text))),
                        _ => None,
                    })
                    .collect(),
                header,
            }))
        };
        match self.header.get_or_init(read) {
            Ok(Some(header)) => Ok(header),
            Ok(None) => Err(absent("the message has no header")),
            Err(error) => Err(error.clone().into()),
        }
    }

    fn names(&self, parts: impl Iterator<Item = Part>) -> &[CString] {
        self.parts
            .get_or_init(|| parts.map(|part| c_text(part.name())).collect())
    }
}

fn absent(message: impl Into<String>) -> Failure {
    Failure::new(Code::NotFound, message)
}

/// `bytes` bytes that C passes.
///
/// # Safety
/// `data` has `bytes` readable bytes, which nobody changes while the result is used; NULL for 0 bytes.
unsafe fn bytes_at<'a>(data: *const c_void, bytes: usize) -> Outcome<&'a [u8]> {
    check_slice("data", data, bytes)?;
    match bytes {
        0 => Ok(&[]),
        // SAFETY: `data` is not NULL and `bytes` fits `isize` (`check_slice`); our caller promises that many bytes, which
        // nobody changes while the result is used.
        bytes => Ok(unsafe { std::slice::from_raw_parts(data.cast(), bytes) }),
    }
}

/// Attaches bytes.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_attachment(
    loan: *mut rgaps_loan_t,
    data: *const c_void,
    bytes: usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and bytes that nobody changes before that
        // (rgaps.h: Handles, Pointers).
        let (loan, bytes) = unsafe { (borrow(loan)?, bytes_at(data, bytes)?) };
        loan.with(|loan| Ok(loan.set_attachment(bytes)?))
    })
}

/// Changes a loan's header, which starts empty.
fn edit(loan: &mut Loan, change: impl FnOnce(&mut Header)) -> Outcome {
    let attached = loan.metadata().filter(|metadata| metadata.is_header());
    let mut header = match attached {
        Some(metadata) => Header::decode(metadata.attachment())?,
        None => Header::default(),
    };
    change(&mut header);
    Ok(loan.set_header(&header)?)
}

/// Sets the time of capture.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_capture_ns(
    loan: *mut rgaps_loan_t,
    capture_ns: u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        unsafe { borrow(loan) }?
            .with(|loan| edit(loan, |header| header.capture_ns = Some(capture_ns)))
    })
}

/// Sets the frame id.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_frame_id(
    loan: *mut rgaps_loan_t,
    frame_id: *const c_char,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and text that nobody changes before that
        // (rgaps.h: Handles, Pointers).
        let (loan, frame_id) = unsafe { (borrow(loan)?, text("frame_id", frame_id)?) };
        loan.with(|loan| edit(loan, |header| header.frame_id = Some(frame_id.to_owned())))
    })
}

fn set(loan: &rgaps_loan_t, key: &str, value: Value) -> Outcome {
    loan.with(|loan| {
        edit(loan, |header| {
            drop(header.values.insert(key.to_owned(), value))
        })
    })
}

/// Sets a key to an integer.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_int(
    loan: *mut rgaps_loan_t,
    key: *const c_char,
    value: i64,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives until we return, and text that nobody changes before that
    // (rgaps.h: Handles, Pointers).
    guard(|| unsafe { set(borrow(loan)?, text("key", key)?, Value::Int(value)) })
}

/// Sets a key to a floating point number.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_double(
    loan: *mut rgaps_loan_t,
    key: *const c_char,
    value: f64,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives until we return, and text that nobody changes before that
    // (rgaps.h: Handles, Pointers).
    guard(|| unsafe { set(borrow(loan)?, text("key", key)?, Value::Float(value)) })
}

/// Sets a key to a text.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_text(
    loan: *mut rgaps_loan_t,
    key: *const c_char,
    value: *const c_char,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and text that nobody changes before that
        // (rgaps.h: Handles, Pointers).
        let (loan, key, value) =
            unsafe { (borrow(loan)?, text("key", key)?, text("value", value)?) };
        set(loan, key, value.into())
    })
}

/// The attachment, or the encoded header.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_attachment(
    sample: *const rgaps_sample_t,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, out_bytes, sample) = unsafe {
            let out = Out::new("data", data, std::ptr::null())?;
            (out, Out::new("bytes", bytes, 0)?, borrow(sample)?)
        };
        if let Some(attachment) = sample.sample.attachment() {
            out.set(attachment.as_ptr().cast());
            out_bytes.set(attachment.len());
        }
        Ok(())
    })
}

/// The time of capture.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_capture_ns(
    sample: *const rgaps_sample_t,
    capture_ns: *mut u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, handle) = unsafe { (Out::new("capture_ns", capture_ns, 0)?, borrow(sample)?) };
        let header = &handle.texts.header(&handle.sample)?.header;
        let none = || absent("the message's header has no capture_ns");
        out.set(header.capture_ns.ok_or_else(none)?);
        Ok(())
    })
}

/// The frame id.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_frame_id(
    sample: *const rgaps_sample_t,
    frame_id: *mut *const c_char,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, handle) = unsafe {
            let out = Out::new("frame_id", frame_id, std::ptr::null())?;
            (out, borrow(sample)?)
        };
        let header = handle.texts.header(&handle.sample)?;
        let none = || absent("the message's header has no frame_id");
        out.set(header.frame_id.as_ref().ok_or_else(none)?.as_ptr());
        Ok(())
    })
}

/// A key's value, converted by `read`. `read` returns None if the value is not of the kind that `kind` names.
fn value<T>(
    handle: &rgaps_sample_t,
    key: &str,
    kind: &str,
    read: impl FnOnce(&HeaderText, &str, &Value) -> Option<T>,
) -> Outcome<T> {
    let header = handle.texts.header(&handle.sample)?;
    let value = header.header.values.get(key);
    let value = value.ok_or_else(|| absent(format!("the message's header has no key '{key}'")))?;
    read(header, key, value)
        .ok_or_else(|| Failure::argument(format!("the header's '{key}' is not {kind}: {value:?}")))
}

/// Writes a key's value for C, converted by `read`.
///
/// # Safety
/// `sample` is NULL or a handle that lives until this returns, `key` is NULL or text that nobody changes until then, and `to`,
/// which errors call `name`, is NULL or may be written to until then.
unsafe fn write_value<T>(
    sample: *const rgaps_sample_t,
    key: *const c_char,
    (name, to, none): (&str, *mut T, T),
    kind: &str,
    read: impl FnOnce(&HeaderText, &str, &Value) -> Option<T>,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, text that nobody changes before that, and
        // results that only we write until then (rgaps.h: Handles, Pointers).
        let (out, handle, key) = unsafe {
            let out = Out::new(name, to, none)?;
            (out, borrow(sample)?, text("key", key)?)
        };
        out.set(value(handle, key, kind, read)?);
        Ok(())
    })
}

/// A key's integer.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_header_int(
    sample: *const rgaps_sample_t,
    key: *const c_char,
    number: *mut i64,
) -> rgaps_status_t {
    let read = |_: &HeaderText, _: &str, value: &Value| match value {
        Value::Int(number) => Some(*number),
        Value::Bool(value) => Some((*value).into()),
        _ => None,
    };
    let to = ("number", number, 0);
    // SAFETY: C's own arguments: NULL or a sample that lives, text that nobody changes, and a result that only we write,
    // until we return (rgaps.h: Handles, Pointers).
    unsafe { write_value(sample, key, to, "an integer of 64 bits", read) }
}

/// A key's number.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_header_double(
    sample: *const rgaps_sample_t,
    key: *const c_char,
    number: *mut f64,
) -> rgaps_status_t {
    let read = |_: &HeaderText, _: &str, value: &Value| match value {
        Value::Float(number) => Some(*number),
        Value::Int(number) => Some(*number as f64),
        Value::Unsigned(number) => Some(*number as f64),
        _ => None,
    };
    // SAFETY: C's own arguments: NULL or a sample that lives, text that nobody changes, and a result that only we write,
    // until we return (rgaps.h: Handles, Pointers).
    unsafe { write_value(sample, key, ("number", number, 0.0), "a number", read) }
}

/// A key's text.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_header_text(
    sample: *const rgaps_sample_t,
    key: *const c_char,
    words: *mut *const c_char,
) -> rgaps_status_t {
    let to = ("words", words, std::ptr::null());
    let read = |header: &HeaderText, key: &str, _: &Value| {
        header.values.get(key).map(|text| text.as_ptr())
    };
    // SAFETY: C's own arguments: NULL or a sample that lives, text that nobody changes, and a result that only we write,
    // until we return (rgaps.h: Handles, Pointers).
    unsafe { write_value(sample, key, to, "text", read) }
}

/// A block for several arrays.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_loan_parts(
    publisher: *mut rgaps_publisher_t,
    parts: *mut rgaps_part_t,
    count: usize,
    loan: *mut *mut rgaps_loan_t,
) -> rgaps_status_t {
    let make = |publisher: &Publisher| {
        if parts.is_null() && count > 0 {
            return Err(Failure::argument(format!("parts is NULL, for {count}")));
        }
        // One more than the limit is enough for `loan_parts` to refuse the parts with its own message.
        let count = count.min(MAX_MESSAGE_PARTS + 1);
        let mut tensors = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: `parts` is not NULL, and C passes `count` parts, of which this is one, whose names are NULL or text
            // that nobody changes before we return (rgaps.h: Pointers).
            let (part, name) = unsafe {
                let part = parts.add(index).read();
                (part, text("a part's name", part.name)?)
            };
            tensors.push((name, part.tensor.checked()?));
        }
        let specs = tensors.iter().map(|(name, tensor)| PartSpec {
            name,
            dtype: tensor.dtype,
            shape: &tensor.shape[..usize::from(tensor.ndim)],
        });
        let specs: Vec<_> = specs.collect();
        let loan = publisher.loan_parts(&specs)?;
        for (index, part) in loan.parts()?.iter().enumerate() {
            // SAFETY: `parts` is not NULL, and the loan has one part for each of C's `count`, which only we use until we return
            // (rgaps.h: Pointers).
            unsafe {
                let to = parts.add(index);
                to.write(rgaps_part_t::of(&part, (*to).name));
            }
        }
        Ok(loan)
    };
    // SAFETY: C's own arguments: NULL or a publisher that lives, and a result that only we write, until we return
    // (rgaps.h: Handles, Pointers).
    unsafe { lend(publisher, loan, make) }
}

/// How many parts a message has.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_part_count(sample: *const rgaps_sample_t) -> usize {
    guard_value(0, || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        Ok(unsafe { borrow(sample) }?.sample.parts()?.len())
    })
}

/// A part by its number.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_part_at(
    sample: *const rgaps_sample_t,
    index: usize,
    part: *mut rgaps_part_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, handle) = unsafe { (Out::new("part", part, NO_PART)?, borrow(sample)?) };
        out.set(part_at(handle, index)?);
        Ok(())
    })
}

fn part_at(handle: &rgaps_sample_t, index: usize) -> Outcome<rgaps_part_t> {
    let parts = handle.sample.parts()?;
    let part = parts.iter().nth(index).ok_or_else(|| {
        absent(format!(
            "the message has no part {index}: it has {}",
            parts.len()
        ))
    })?;
    let names = handle.texts.names(parts.iter());
    Ok(rgaps_part_t::of(&part, names[index].as_ptr()))
}

/// A part by its name.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_part(
    sample: *const rgaps_sample_t,
    name: *const c_char,
    part: *mut rgaps_part_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, text that nobody changes before that, and
        // results that only we write until then (rgaps.h: Handles, Pointers).
        let (out, handle, name) = unsafe {
            let out = Out::new("part", part, NO_PART)?;
            (out, borrow(sample)?, text("name", name)?)
        };
        // Fails with the names of the parts that there are.
        handle.sample.part(name)?;
        let index = handle
            .sample
            .parts()?
            .iter()
            .position(|part| part.name() == name);
        out.set(part_at(handle, index.unwrap_or_default())?);
        Ok(())
    })
}
