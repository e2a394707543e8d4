//! The boundary between C and Rust: stops panics, keeps error messages, checks C's arguments.

use crate::status::{rgaps_status_t, Code, Failure, Outcome, RGAPS_OK};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_void, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

/// `RGAPS_FOREVER`.
pub(crate) const FOREVER_NS: u64 = u64::MAX;

thread_local! {
    /// The error message of this thread's last failed call; None before the first failure.
    static MESSAGE: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of a function that C calls, and returns its code. A panic becomes [`Code::Internal`].
pub(crate) fn guard(body: impl FnOnce() -> Outcome) -> rgaps_status_t {
    match run(body) {
        Ok(()) => RGAPS_OK,
        Err(code) => code as rgaps_status_t,
    }
}

/// Like [`guard`], for a function that returns a value to C: returns `none` if the body fails.
pub(crate) fn guard_value<T>(none: T, body: impl FnOnce() -> Outcome<T>) -> T {
    run(body).unwrap_or(none)
}

fn run<T>(body: impl FnOnce() -> Outcome<T>) -> Result<T, Code> {
    // Unwind safety: a body that panics may leave the library's state half changed, and the library's locks ignore
    // poisoning. Bodies change handles last, by moves that do not panic.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::new(Code::Internal, describe(payload)),
    };
    remember(&failure.message);
    Err(failure.code)
}

/// Keeps a message for `rgaps_error_message`.
pub(crate) fn remember(message: &str) {
    // A peer's text may contain a NUL, at which C would stop reading.
    let text = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
    // Fails only while the thread ends and has destroyed its thread locals.
    let _ = MESSAGE.try_with(|kept| kept.replace(Some(text)));
}

fn describe(payload: Box<dyn Any + Send>) -> String {
    let text = match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => *text,
        (_, Some(text)) => text.as_str(),
        _ => "without a message",
    };
    let text = format!("rgaps has a fault, please report it: {text}");
    // The payload's destructor may panic, too, and nothing would catch that.
    std::mem::forget(payload);
    text
}

/// The error message of this thread's last failed call.
#[no_mangle]
pub extern "C" fn rgaps_error_message() -> *const c_char {
    let kept = MESSAGE.try_with(|kept| kept.borrow().as_ref().map(|text| text.as_ptr()));
    kept.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Text that C passes; None for NULL.
///
/// # Safety
/// `text` is NULL or ends with a 0 byte, and nobody changes it while the result is used.
pub(crate) unsafe fn optional_text<'a>(
    name: &str,
    text: *const c_char,
) -> Outcome<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL, so it is text that ends with a 0 byte and that nobody changes while the result is used,
    // as our caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map(Some)
        .map_err(|error| Failure::argument(format!("{name} is not UTF-8: {error}")))
}

/// Text that C must pass: NULL is an error.
///
/// # Safety
/// `text` is NULL or ends with a 0 byte, and nobody changes it while the result is used.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Outcome<&'a str> {
    // SAFETY: our caller promises what `optional_text` asks for: NULL, or text that ends with a 0 byte and stays as it is.
    unsafe { optional_text(name, text) }?
        .ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

/// Checks a pointer to `bytes` bytes that C passes: NULL is allowed only for 0 bytes.
pub(crate) fn check_bytes(name: &str, at: *const c_void, bytes: usize) -> Outcome {
    if at.is_null() && bytes > 0 {
        let message = format!("{name} is NULL, for {bytes} bytes");
        return Err(Failure::argument(message));
    }
    Ok(())
}

/// Like [`check_bytes`], and also checks that `bytes` fits `isize`, as a Rust slice requires.
pub(crate) fn check_slice(name: &str, at: *const c_void, bytes: usize) -> Outcome {
    check_bytes(name, at, bytes)?;
    if isize::try_from(bytes).is_err() {
        let message = format!("{bytes} bytes are more than there can be");
        return Err(Failure::argument(message));
    }
    Ok(())
}

/// A pointer to which a function writes its result for C. It holds `none` until the function succeeds.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Takes the pointer and writes `none` there.
    ///
    /// # Safety
    /// `to` is NULL or may be written to until the function that C called returns.
    pub(crate) unsafe fn new(name: &str, to: *mut T, none: T) -> Outcome<Out<T>> {
        // SAFETY: our caller promises what `optional` asks for: NULL, or a place that we may write until C's call returns.
        let out = unsafe { Out::optional(to, none) };
        if to.is_null() {
            return Err(Failure::argument(format!("{name} is NULL")));
        }
        Ok(out)
    }

    /// Like [`new`](Self::new), but `to` may be NULL: then C does not want the result.
    ///
    /// # Safety
    /// `to` is NULL or may be written to until the function that C called returns.
    pub(crate) unsafe fn optional(to: *mut T, none: T) -> Out<T> {
        let out = Out(to);
        out.set(none);
        out
    }

    pub(crate) fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the pointer is not NULL, so `optional`'s caller promised that we may write there until C's call returns;
            // an `Out` does not outlive that call. `write` does not drop the old value, which is C's.
            unsafe { self.0.write(value) };
        }
    }
}

/// A time-out that C passes; None for `RGAPS_FOREVER`.
pub(crate) fn timeout(timeout_ns: u64) -> Option<Duration> {
    (timeout_ns != FOREVER_NS).then(|| Duration::from_nanos(timeout_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: the function gives a C string that is valid until this thread's next failure.
        unsafe { CStr::from_ptr(rgaps_error_message()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_panic_becomes_a_code_and_a_message() {
        assert_eq!(guard(|| panic!("number {}", 7)), Code::Internal as i32);
        assert!(message().contains("number 7"), "{}", message());
        let value = guard_value(3, || std::panic::panic_any(1u8));
        assert_eq!(value, 3);
        assert!(message().contains("without a message"));
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_harmless() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert_eq!(guard(|| std::panic::panic_any(Bomb)), Code::Internal as i32);
    }

    #[test]
    fn messages_are_each_threads_own() {
        assert_eq!(guard(|| Err(Failure::argument("mine\0and more"))), -1);
        std::thread::spawn(|| assert_eq!(message(), ""))
            .join()
            .unwrap();
        assert_eq!(message(), "mine\u{fffd}and more");
        assert_eq!(guard(|| Ok(())), 0);
        assert_eq!(message(), "mine\u{fffd}and more");
    }

    #[test]
    fn text_is_checked() {
        // SAFETY: NULL, and C strings.
        unsafe {
            assert!(text("topic", std::ptr::null())
                .unwrap_err()
                .message
                .contains("topic is NULL"));
            assert_eq!(optional_text("realm", std::ptr::null()).unwrap(), None);
            assert_eq!(text("topic", c"\u{fc}ber".as_ptr()).unwrap(), "\u{fc}ber");
            let error = text("topic", c"\xff".as_ptr()).unwrap_err();
            assert!(error.message.contains("not UTF-8"), "{}", error.message);
        }
    }
}
