//! Samples.

use crate::boundary::{check_slice, guard, guard_value, timeout, Out};
use crate::handle::{borrow, give, take, Birth, Object};
use crate::metadata::Texts;
use crate::status::{rgaps_status_t, rgaps_stream_t, Code, Failure, Outcome};
use crate::tensor::rgaps_tensor_t;
use rgaps_pool::Stream;
use rgaps_rs::Sample;
use std::ffi::{c_char, c_void, CString};
use std::sync::OnceLock;
use std::time::Duration;

/// `rgaps_sample_t`.
pub struct rgaps_sample_t {
    birth: Birth,
    pub(crate) sample: Sample,
    /// The domain's name for C, made on first use.
    domain: OnceLock<CString>,
    pub(crate) texts: Texts,
}

impl Object for rgaps_sample_t {
    const NAME: &'static str = "sample";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

impl rgaps_sample_t {
    pub(crate) fn new(sample: Sample) -> rgaps_sample_t {
        rgaps_sample_t {
            birth: Birth::now(),
            sample,
            domain: OnceLock::new(),
            texts: Texts::default(),
        }
    }
}

/// Defines functions that return one property of a sample.
macro_rules! accessors {
    ($( $(#[$doc:meta])* $name:ident -> $type:ty = $none:expr, |$sample:ident| $value:expr; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As `rgaps.h` says.
        #[no_mangle]
        pub unsafe extern "C" fn $name(sample: *const rgaps_sample_t) -> $type {
            guard_value($none, || {
                // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
                let $sample = &unsafe { borrow(sample) }?.sample;
                Ok($value)
            })
        }
    )* };
}

accessors! {
    /// Address of the first byte, once the work that writes the bytes has finished.
    rgaps_sample_data -> *const c_void = std::ptr::null(), |sample| {
        sample.synchronize(Sample::FINISH_WAIT)?;
        sample.address() as *const c_void
    };
    /// The message's size in bytes.
    rgaps_sample_bytes -> usize = 0, |sample| sample.len() as usize;
    /// The message's sequence number.
    rgaps_sample_sequence -> u64 = 0, |sample| sample.sequence();
    /// The number of messages missed just before this one.
    rgaps_sample_missed -> u64 = 0, |sample| sample.missed();
    /// The tag that the publisher set.
    rgaps_sample_tag -> u64 = 0, |sample| sample.tag();
    /// The time of publishing, in nanoseconds.
    rgaps_sample_publish_ns -> u64 = 0, |sample| sample.publish_ns();
    /// The publisher's random number.
    rgaps_sample_publisher_id -> u64 = 0, |sample| sample.publisher_id();
}

/// Address of the first byte, for work that is queued on a stream from here on.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_data_on(
    sample: *const rgaps_sample_t,
    stream: rgaps_stream_t,
) -> *const c_void {
    guard_value(std::ptr::null(), || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let sample = &unsafe { borrow(sample) }?.sample;
        order(sample, stream)?;
        Ok(sample.address() as *const c_void)
    })
}

/// Makes a stream wait for the work that writes the bytes, and keeps the block until the stream's work has finished. Refuses
/// a handle that is not a stream, even if there is nothing to wait for.
fn order(sample: &Sample, stream: rgaps_stream_t) -> Outcome {
    let stream = Stream(stream as u64);
    sample.check_stream(stream)?;
    Ok(sample.wait_on(stream)?)
}

/// Whether the work that writes the bytes has finished.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_is_ready(
    sample: *const rgaps_sample_t,
    ready: *mut u32,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, sample) = unsafe { (Out::new("ready", ready, 0)?, borrow(sample)?) };
        out.set(sample.sample.is_ready()?.into());
        Ok(())
    })
}

/// Waits on the CPU until the work that writes the bytes has finished.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_synchronize(
    sample: *const rgaps_sample_t,
    timeout_ns: u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let sample = &unsafe { borrow(sample) }?.sample;
        Ok(sample.synchronize(timeout(timeout_ns).unwrap_or(Duration::MAX))?)
    })
}

/// Makes a stream wait for the work that writes the bytes.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_wait_on(
    sample: *const rgaps_sample_t,
    stream: rgaps_stream_t,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
    guard(|| order(&unsafe { borrow(sample) }?.sample, stream))
}

/// Defers the release of the block until the work on a stream has finished.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_record_stream(
    sample: *const rgaps_sample_t,
    stream: rgaps_stream_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        record(&unsafe { borrow(sample) }?.sample, stream)
    })
}

fn record(sample: &Sample, stream: rgaps_stream_t) -> Outcome {
    let stream = Stream(stream as u64);
    sample.check_stream(stream)?;
    sample.record_stream(stream);
    Ok(())
}

/// The address and the point by which a GPU kernel checks whether the message is complete.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_gpu_point(
    sample: *const rgaps_sample_t,
    address: *mut u64,
    point: *mut u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out_address, out_point, sample) = unsafe {
            let out_address = Out::new("address", address, 0)?;
            (out_address, Out::new("point", point, 0)?, borrow(sample)?)
        };
        let (address, point) = sample.sample.gpu_point().unwrap_or_default();
        out_address.set(address);
        out_point.set(point);
        Ok(())
    })
}

/// Copies bytes to the host.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_read(
    sample: *const rgaps_sample_t,
    at: usize,
    to: *mut c_void,
    bytes: usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let sample = &unsafe { borrow(sample) }?.sample;
        check_slice("to", to, bytes)?;
        let to: &mut [u8] = match bytes {
            0 => &mut [],
            // SAFETY: `to` is not NULL and ends within the address space (`check_slice`), and C passes `bytes` bytes that
            // only we use until we return (rgaps.h: Pointers). They may be uninitialised: the copy only writes them.
            bytes => unsafe { std::slice::from_raw_parts_mut(to.cast(), bytes) },
        };
        Ok(sample.read(at as u64, to)?)
    })
}

/// Shape and element type.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_tensor(
    sample: *const rgaps_sample_t,
    tensor: *mut rgaps_tensor_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, sample) = unsafe {
            let out = Out::new("tensor", tensor, rgaps_tensor_t::default())?;
            (out, borrow(sample)?)
        };
        let tensor = sample.sample.tensor().ok_or_else(|| {
            Failure::new(Code::NoTensor, "the message has no shape and element type")
        })?;
        out.set(tensor.into());
        Ok(())
    })
}

/// The domain of the bytes.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_domain(sample: *const rgaps_sample_t) -> *const c_char {
    guard_value(std::ptr::null(), || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let handle = unsafe { borrow(sample) }?;
        let text = || CString::new(handle.sample.domain().to_string()).unwrap_or_default();
        Ok(handle.domain.get_or_init(text).as_ptr())
    })
}

/// Another handle of the same message.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_clone(
    sample: *const rgaps_sample_t,
    clone: *mut *mut rgaps_sample_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, sample) = unsafe {
            let out = Out::new("clone", clone, std::ptr::null_mut())?;
            (out, borrow(sample)?)
        };
        out.set(give(rgaps_sample_t::new(sample.sample.clone())));
        Ok(())
    })
}

/// Releases the sample, behind the work on recorded streams or the default stream.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_release(sample: *mut rgaps_sample_t) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps.h: Handles).
        drop(unsafe { take(sample) }?);
        Ok(())
    })
}

/// Releases the sample, behind the work queued on a stream as well.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_sample_release_on(
    sample: *mut rgaps_sample_t,
    stream: rgaps_stream_t,
) -> rgaps_status_t {
    guard(|| {
        if sample.is_null() {
            return Ok(());
        }
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        record(&unsafe { borrow(sample) }?.sample, stream)?;
        // SAFETY: `sample` lives: it was borrowed above, and that borrow has ended. C uses a sample's handle in one thread
        // at a time (rgaps.h: Threads), so nobody else uses it.
        drop(unsafe { take(sample) }?);
        Ok(())
    })
}
