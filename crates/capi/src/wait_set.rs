//! Wait sets.

use crate::boundary::{guard, timeout, Out};
use crate::handle::{borrow, give, take, Birth, Object};
use crate::node::{node_or_default, rgaps_node_t};
use crate::status::{rgaps_status_t, Code, Failure, Outcome};
use crate::subscriber::rgaps_subscriber_t;
use rgaps_rs::{Node, Token, WaitSet};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// `rgaps_wait_set_t`.
pub struct rgaps_wait_set_t {
    birth: Birth,
    /// A thread holds the lock while it waits. Another thread's call fails at once with `RGAPS_ERROR_BUSY`.
    set: Mutex<Members>,
    node: Arc<Node>,
}

struct Members {
    set: WaitSet,
    count: usize,
}

impl Object for rgaps_wait_set_t {
    const NAME: &'static str = "wait set";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

impl rgaps_wait_set_t {
    fn lock(&self) -> Outcome<MutexGuard<'_, Members>> {
        match self.set.try_lock() {
            Ok(members) => Ok(members),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Code::Busy,
                "another thread uses this wait set: use it from one thread at a time",
            )),
        }
    }
}

/// Creates an empty wait set.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_wait_set_create(
    node: *mut rgaps_node_t,
    wait_set: *mut *mut rgaps_wait_set_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, node) = unsafe {
            let out = Out::new("wait_set", wait_set, std::ptr::null_mut())?;
            (out, node_or_default(node)?)
        };
        let set = node.wait_set();
        out.set(give(rgaps_wait_set_t {
            birth: Birth::now(),
            set: Mutex::new(Members { set, count: 0 }),
            node,
        }));
        Ok(())
    })
}

/// Destroys the wait set; its subscribers stay in their topics.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_wait_set_destroy(wait_set: *mut rgaps_wait_set_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps.h: Handles).
        drop(unsafe { take(wait_set) }?);
        Ok(())
    });
}

/// Adds a subscriber.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_wait_set_attach(
    wait_set: *mut rgaps_wait_set_t,
    subscriber: *mut rgaps_subscriber_t,
    token: *mut usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes handles, or NULL, that live until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, wait_set, subscriber) = unsafe {
            let out = Out::new("token", token, usize::MAX)?;
            (out, borrow(wait_set)?, borrow(subscriber)?)
        };
        if !Arc::ptr_eq(&wait_set.node, &subscriber.node) {
            return Err(Failure::argument(
                "the subscriber is of another node than the wait set",
            ));
        }
        let mut members = wait_set.lock()?;
        let Token(index) = members.set.attach(&subscriber.subscriber)?;
        members.count += 1;
        out.set(index);
        Ok(())
    })
}

/// Removes a subscriber.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_wait_set_detach(
    wait_set: *mut rgaps_wait_set_t,
    token: usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let mut members = unsafe { borrow(wait_set) }?.lock()?;
        if !members.set.detach(Token(token)) {
            let message = format!("the wait set has no subscriber of token {token}");
            return Err(Failure::new(Code::NotHeld, message));
        }
        members.count -= 1;
        Ok(())
    })
}

/// Waits for messages of any of the subscribers.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_wait_set_wait(
    wait_set: *mut rgaps_wait_set_t,
    timeout_ns: u64,
    tokens: *mut usize,
    capacity: usize,
    count: *mut usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, wait_set) = unsafe { (Out::new("count", count, 0)?, borrow(wait_set)?) };
        if tokens.is_null() || capacity == 0 {
            return Err(Failure::argument("there is no room for tokens"));
        }
        let members = wait_set.lock()?;
        if members.count == 0 {
            return Err(Failure::argument(
                "the wait set is empty: attach subscribers first",
            ));
        }
        let timeout = timeout(timeout_ns).unwrap_or(Duration::MAX);
        let ready = members.set.wait(timeout)?;
        if ready.is_empty() {
            let message = "no subscriber of the wait set got a message in time";
            return Err(Failure::new(Code::TimedOut, message));
        }
        let written = ready.len().min(capacity);
        for (at, Token(index)) in ready[..written].iter().enumerate() {
            // SAFETY: `tokens` is not NULL, `at` is below `capacity`, and C passes room for that many tokens that only we write
            // until we return (rgaps.h: Pointers).
            unsafe { tokens.add(at).write(*index) };
        }
        out.set(written);
        Ok(())
    })
}
