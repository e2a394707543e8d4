//! Loans.

use crate::boundary::{check_bytes, guard, guard_value, Out};
use crate::handle::{borrow, take, Birth, Object};
use crate::status::{rgaps_status_t, rgaps_stream_t, Code, Failure, Outcome};
use crate::tensor::rgaps_tensor_t;
use rgaps_pool::Stream;
use rgaps_rs::Loan;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// `rgaps_loan_t`.
pub struct rgaps_loan_t {
    birth: Birth,
    /// None: a failed publish lost the loan, and C has not dropped the handle yet. Nobody waits for the lock: it is taken
    /// only if a program uses one loan from two threads, which is an error.
    loan: Mutex<Option<Loan>>,
}

impl Object for rgaps_loan_t {
    const NAME: &'static str = "loan";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

impl rgaps_loan_t {
    pub(crate) fn new(loan: Loan) -> rgaps_loan_t {
        rgaps_loan_t {
            birth: Birth::now(),
            loan: Mutex::new(Some(loan)),
        }
    }

    fn lock(&self) -> Outcome<MutexGuard<'_, Option<Loan>>> {
        match self.loan.try_lock() {
            Ok(loan) => Ok(loan),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Code::Busy,
                "another thread uses this loan: use it from one thread at a time",
            )),
        }
    }

    pub(crate) fn with<T>(&self, action: impl FnOnce(&mut Loan) -> Outcome<T>) -> Outcome<T> {
        action(self.lock()?.as_mut().ok_or_else(lost)?)
    }
}

fn lost() -> Failure {
    Failure::new(
        Code::Protocol,
        "this loan was lost when it was published; drop it",
    )
}

/// The block's address.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_data(loan: *mut rgaps_loan_t) -> *mut c_void {
    guard_value(std::ptr::null_mut(), || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        unsafe { borrow(loan) }?.with(|loan| Ok(loan.address() as *mut c_void))
    })
}

/// The size of the message in bytes.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_bytes(loan: *const rgaps_loan_t) -> usize {
    guard_value(0, || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        unsafe { borrow(loan) }?.with(|loan| Ok(loan.len() as usize))
    })
}

/// Copies bytes into the loan.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_write(
    loan: *mut rgaps_loan_t,
    at: usize,
    data: *const c_void,
    bytes: usize,
) -> rgaps_status_t {
    guard(|| {
        check_bytes("data", data, bytes)?;
        // SAFETY: C passes NULL or a handle that lives until we return, and `data`, which is not NULL (checked above) and
        // has `bytes` bytes that nobody changes before that (rgaps.h: Handles, Pointers).
        unsafe {
            borrow(loan)?.with(|loan| Ok(loan.copy_from(at as u64, data as u64, bytes as u64)?))
        }
    })
}

/// Shortens the message to its first bytes.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_truncate(
    loan: *mut rgaps_loan_t,
    bytes: usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        unsafe { borrow(loan) }?.with(|loan| {
            if bytes as u64 > loan.len() {
                return Err(Failure::argument(format!(
                    "a loan of {} bytes cannot be cut to {bytes}",
                    loan.len()
                )));
            }
            loan.truncate(bytes as u64);
            Ok(())
        })
    })
}

/// Sets the tag.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_tag(loan: *mut rgaps_loan_t, tag: u64) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        unsafe { borrow(loan) }?.with(|loan| {
            loan.set_tag(tag);
            Ok(())
        })
    })
}

/// Describes the message as a tensor.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_set_tensor(
    loan: *mut rgaps_loan_t,
    tensor: *const rgaps_tensor_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and NULL or a tensor that nobody changes before
        // that (rgaps.h: Handles, Pointers).
        let (loan, tensor) = unsafe { (borrow(loan)?, tensor.as_ref()) };
        let tensor = tensor.ok_or_else(|| Failure::argument("the tensor is NULL"))?;
        let tensor = tensor.checked()?;
        loan.with(|loan| Ok(loan.set_tensor(tensor)?))
    })
}

/// Publishes after the work queued on the default stream.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_publish(
    loan: *mut rgaps_loan_t,
    sequence: *mut u64,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a loan that this thread alone uses, and NULL or a result that only we access until we return (rgaps.h:
    // Threads, Pointers).
    unsafe { rgaps_loan_publish_on(loan, std::ptr::null_mut(), sequence) }
}

/// Publishes after the work queued on a stream.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_publish_on(
    loan: *mut rgaps_loan_t,
    stream: rgaps_stream_t,
    sequence: *mut u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, handle) = unsafe { (Out::optional(sequence, 0), borrow(loan)?) };
        {
            let mut open = handle.lock()?;
            let held = open.take().ok_or_else(lost)?;
            match held.publish_on(Stream(stream as u64)) {
                Ok(number) => out.set(number),
                Err(unpublished) => {
                    *open = unpublished.loan.map(|loan| *loan);
                    return Err(Failure::from(unpublished.error));
                }
            }
        }
        // SAFETY: `loan` lives: it was borrowed above, and that borrow has ended. C uses a loan in one thread at a time
        // (rgaps.h: Threads), so nobody else uses it.
        drop(unsafe { take(loan) }?);
        Ok(())
    })
}

/// Returns the block behind the work queued on a stream, without publishing it.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_drop_on(
    loan: *mut rgaps_loan_t,
    stream: rgaps_stream_t,
) -> rgaps_status_t {
    guard(|| {
        if loan.is_null() {
            return Ok(());
        }
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let held = unsafe { borrow(loan) }?.lock()?.take();
        if let Some(held) = held {
            held.discard_on(Stream(stream as u64));
        }
        // SAFETY: `loan` lives: it was borrowed above, and that borrow has ended. C uses a loan in one thread at a time
        // (rgaps.h: Threads), so nobody else uses it.
        drop(unsafe { take(loan) }?);
        Ok(())
    })
}

/// Returns the block without publishing it.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_loan_drop(loan: *mut rgaps_loan_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps.h: Handles).
        drop(unsafe { take(loan) }?);
        Ok(())
    });
}
