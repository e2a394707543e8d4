//! Listeners: a handler of C's is called with each message.

use crate::boundary::{guard, remember, Out};
use crate::handle::{borrow, give, take, Birth, Object};
use crate::publisher::rgaps_publisher_t;
use crate::sample::rgaps_sample_t;
use crate::status::{rgaps_status_t, Failure, Outcome, RGAPS_OK};
use crate::subscriber::rgaps_subscriber_t;
use rgaps_rs::{Listener, Matched, RecvError, Sample};
use std::ffi::c_void;

/// `rgaps_handler_t`; NULL is none. It must not throw, which is undefined for a handler of this
/// type; what a C++ program throws all the same ends it where the library calls.
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

/// The handler's argument.
struct User(*mut c_void);

// SAFETY: we never follow the pointer: it is only passed back to C's handler, which rgaps.h says runs in another thread.
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
                // SAFETY: C passed a function of this type, which may be called in any thread with this argument until
                // rgaps_listener_destroy returns (rgaps.h). That waits for this thread, unless it runs in it.
                unsafe { handler(user.0, status, sample) }
            });
        })?;
        out.set(hand_out(listener));
        Ok(())
    })
}

/// Lends a sample to the handler, or tells it why there is none.
fn deliver(
    outcome: Result<Sample, RecvError>,
    handler: impl FnOnce(rgaps_status_t, *mut rgaps_sample_t),
) {
    match outcome {
        Ok(sample) => {
            let lent = give(rgaps_sample_t::new(sample));
            handler(RGAPS_OK, lent);
            // SAFETY: `give` made it above, and it is the handler's only while that runs (rgaps.h, at
            // rgaps_listener_create). Where the handler has released it the table says so.
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

/// `rgaps_matched_handler_t`; NULL is none.
pub type rgaps_matched_handler_t =
    Option<unsafe extern "C-unwind" fn(user: *mut c_void, matched: *const rgaps_matched_t)>;

/// A handler of C's as one of ours.
fn matched_handler(
    handler: rgaps_matched_handler_t,
    user: *mut c_void,
) -> Outcome<impl FnMut(Matched) + Send> {
    let handler = handler.ok_or_else(|| Failure::argument("the handler is NULL"))?;
    let user = User(user);
    Ok(move |matched: Matched| {
        let user = &user;
        let told = rgaps_matched_t {
            total_count: matched.total_count,
            total_count_change: matched.total_count_change,
            current_count: matched.current_count,
            current_count_change: matched.current_count_change,
            reserved: 0,
        };
        // SAFETY: C passed a function of this type, which may be called in any thread with this argument until
        // rgaps_listener_destroy returns (rgaps.h). `told` lives until the handler returns.
        unsafe { handler(user.0, &told) }
    })
}

fn hand_out(listener: Listener) -> *mut rgaps_listener_t {
    give(rgaps_listener_t {
        birth: Birth::now(),
        _listener: listener,
    })
}

/// Calls a handler when subscribers come and go.
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

/// Calls a handler when publishers come and go.
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

/// Ends the listener.
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
