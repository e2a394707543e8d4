//! Listeners: threads that call a C handler with each message, or with each match event.

use crate::boundary::{guard, remember, Out};
use crate::handle::{borrow, give, take, Birth, Object};
use crate::publisher::rgaps_publisher_t;
use crate::sample::rgaps_sample_t;
use crate::status::{rgaps_status_t, Failure, Outcome, RGAPS_OK};
use crate::subscriber::rgaps_subscriber_t;
use rgaps_rs::{Listener, Matched, RecvError, Sample};
use std::ffi::c_void;

/// `rgaps_handler_t`; None for NULL. The handler must not throw: a C++ exception that leaves it ends the program at the
/// library's call.
pub type rgaps_handler_t = Option<
    unsafe extern "C-unwind" fn(
        user: *mut c_void,
        status: rgaps_status_t,
        sample: *mut rgaps_sample_t,
    ),
>;

/// `rgaps_listener_t`.
pub struct rgaps_listener_t {
    birth: Birth,
    _listener: Listener,
}

impl Object for rgaps_listener_t {
    const NAME: &'static str = "listener";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

/// The argument `user` of a handler.
struct User(*mut c_void);

// SAFETY: we never follow the pointer; we only pass it to C's handler, and C knows that this runs in another thread (rgaps.h).
unsafe impl Send for User {}

/// Calls a handler with each message.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_listener_create(
    subscriber: *mut rgaps_subscriber_t,
    handler: rgaps_handler_t,
    user: *mut c_void,
    listener: *mut *mut rgaps_listener_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, subscriber) = unsafe {
            let out = Out::new("listener", listener, std::ptr::null_mut())?;
            (out, borrow(subscriber)?)
        };
        let handler = handler.ok_or_else(|| Failure::argument("the handler is NULL"))?;
        let user = User(user);
        let listener = subscriber.subscriber.listen(move |outcome| {
            let user = &user;
            deliver(outcome, |status, sample| {
                // SAFETY: C passed a function of this type, which any thread may call with this argument until
                // rgaps_listener_destroy returns (rgaps.h). Destroying waits for this thread, unless it runs in this thread.
                unsafe { handler(user.0, status, sample) }
            });
        })?;
        out.set(hand_out(listener));
        Ok(())
    })
}

/// Calls the handler with a sample, or with the code of an error.
fn deliver(
    outcome: Result<Sample, RecvError>,
    handler: impl FnOnce(rgaps_status_t, *mut rgaps_sample_t),
) {
    match outcome {
        Ok(sample) => {
            let lent = give(rgaps_sample_t::new(sample));
            handler(RGAPS_OK, lent);
            // SAFETY: `give` made the handle above, and the handler may use it only until it returns (rgaps.h: rgaps_handler_t).
            // If the handler has released it, the table lacks it and `take` fails.
            drop(unsafe { take(lent) });
        }
        Err(error) => {
            let failure = Failure::from(error);
            remember(&failure.message);
            handler(failure.code as rgaps_status_t, std::ptr::null_mut());
        }
    }
}

/// `rgaps_matched_t`.
#[repr(C)]
pub struct rgaps_matched_t {
    total_count: u64,
    total_count_change: u32,
    current_count: u32,
    current_count_change: i32,
    reserved: u32,
}

/// `rgaps_matched_handler_t`; None for NULL.
pub type rgaps_matched_handler_t =
    Option<unsafe extern "C-unwind" fn(user: *mut c_void, matched: *const rgaps_matched_t)>;

/// A Rust handler that calls C's.
fn matched_handler(
    handler: rgaps_matched_handler_t,
    user: *mut c_void,
) -> Outcome<impl FnMut(Matched) + Send> {
    let handler = handler.ok_or_else(|| Failure::argument("the handler is NULL"))?;
    let user = User(user);
    Ok(move |matched: Matched| {
        let user = &user;
        let event = rgaps_matched_t {
            total_count: matched.total_count,
            total_count_change: matched.total_count_change,
            current_count: matched.current_count,
            current_count_change: matched.current_count_change,
            reserved: 0,
        };
        // SAFETY: C passed a function of this type, which any thread may call with this argument until
        // rgaps_listener_destroy returns (rgaps.h). `event` lives until the handler returns.
        unsafe { handler(user.0, &event) }
    })
}

fn hand_out(listener: Listener) -> *mut rgaps_listener_t {
    give(rgaps_listener_t {
        birth: Birth::now(),
        _listener: listener,
    })
}

/// Calls a handler whenever a subscriber starts or stops matching.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_on_matched(
    publisher: *mut rgaps_publisher_t,
    handler: rgaps_matched_handler_t,
    user: *mut c_void,
    listener: *mut *mut rgaps_listener_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, publisher) = unsafe {
            let out = Out::new("listener", listener, std::ptr::null_mut())?;
            (out, borrow(publisher)?)
        };
        let handler = matched_handler(handler, user)?;
        out.set(hand_out(publisher.publisher.on_matched(handler)?));
        Ok(())
    })
}

/// Calls a handler whenever a publisher starts or stops matching.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_on_matched(
    subscriber: *mut rgaps_subscriber_t,
    handler: rgaps_matched_handler_t,
    user: *mut c_void,
    listener: *mut *mut rgaps_listener_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, subscriber) = unsafe {
            let out = Out::new("listener", listener, std::ptr::null_mut())?;
            (out, borrow(subscriber)?)
        };
        let handler = matched_handler(handler, user)?;
        out.set(hand_out(subscriber.subscriber.on_matched(handler)?));
        Ok(())
    })
}

/// Ends the listener: waits until its handler has returned, unless it runs inside the handler.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_listener_destroy(listener: *mut rgaps_listener_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps.h: Handles).
        drop(unsafe { take(listener) }?);
        Ok(())
    });
}
