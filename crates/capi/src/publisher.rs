//! Publishers.

use crate::boundary::{check_bytes, guard, guard_value, optional_text, text, timeout, Out};
use crate::domain::Wish;
use crate::handle::{borrow, give, take, Birth, Object};
use crate::loan::rgaps_loan_t;
use crate::node::{node_or_default, rgaps_node_t};
use crate::options::{read_options, Plain};
use crate::path::required;
use crate::status::{rgaps_status_t, rgaps_stream_t, Code, Failure, Outcome};
use rgaps_layout::{BLOCK_ALIGN, MAX_DEPTH};
use rgaps_pool::Stream;
use rgaps_rs::{Loan, Node, Publisher, PublisherQos, SlowReaderPolicy};
use rgaps_session::History;
use std::ffi::{c_char, c_void, CString};
use std::sync::Arc;
use std::time::Duration;

/// `rgaps_publisher_t`.
pub struct rgaps_publisher_t {
    birth: Birth,
    pub(crate) publisher: Publisher,
    domain: CString,
    /// Keeps the default node alive for the process's next publisher or subscriber.
    _node: Arc<Node>,
}

impl Object for rgaps_publisher_t {
    const NAME: &'static str = "publisher";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

/// `rgaps_publisher_options_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_publisher_options_t {
    size: usize,
    node: *mut rgaps_node_t,
    domain: *const c_char,
    type_name: *const c_char,
    history_messages: u32,
    max_loans: u32,
    history_bytes: u64,
    best_effort: u32,
    transient_local: u32,
    deadline_ns: u64,
    loan_timeout_ns: u64,
    require: u32,
    slow_reader: u32,
}

// SAFETY: numbers and pointers, for which 0 is a value, and without padding.
unsafe impl Plain for rgaps_publisher_options_t {
    const NAME: &'static str = "rgaps_publisher_options_t";
}

/// `enum rgaps_slow_reader`.
pub(crate) const SLOW_READER: [(&str, u32); 2] =
    [("RGAPS_SLOW_READER_FAIL", 0), ("RGAPS_SLOW_READER_DROP", 1)];

impl rgaps_publisher_options_t {
    fn qos(&self) -> Outcome<PublisherQos> {
        let slow_reader = match self.slow_reader {
            0 => SlowReaderPolicy::Fail,
            1 => SlowReaderPolicy::Drop,
            other => {
                return Err(Failure::argument(format!(
                    "slow_reader {other} is none of {}",
                    SLOW_READER.map(|(name, _)| name).join(", ")
                )))
            }
        };
        let default = PublisherQos::default();
        let history = match (self.history_messages, self.history_bytes) {
            (0, 0) => default.history,
            (messages, 0) => History::KeepLast(messages),
            (0, bytes) => History::KeepAll {
                messages: MAX_DEPTH,
                bytes,
            },
            (messages, bytes) => History::KeepAll { messages, bytes },
        };
        Ok(PublisherQos {
            history,
            reliable: self.best_effort == 0,
            transient_local: self.transient_local != 0,
            deadline: match self.deadline_ns {
                0 => default.deadline,
                deadline_ns => Duration::from_nanos(deadline_ns),
            },
            slow_reader,
            loan_timeout: Duration::from_nanos(self.loan_timeout_ns),
            max_loans: match self.max_loans {
                0 => default.max_loans,
                loans => loans,
            },
        })
    }
}

/// Joins a topic as a publisher.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_create(
    topic: *const c_char,
    options: *const rgaps_publisher_options_t,
    publisher: *mut *mut rgaps_publisher_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes text and options that nobody changes before we return, and results that only we write
        // until then (rgaps.h: Pointers).
        let (out, topic, options) = unsafe {
            let out = Out::new("publisher", publisher, std::ptr::null_mut())?;
            (out, text("topic", topic)?, read_options(options)?)
        };
        // SAFETY: what C's options point to is NULL, or text that nobody changes and a node that lives before we return
        // (rgaps.h: Handles, Pointers).
        let (domain, type_name, node) = unsafe {
            let domain = Wish::parse(optional_text("domain", options.domain)?)?;
            let type_name = optional_text("type_name", options.type_name)?;
            (
                domain,
                type_name.unwrap_or(""),
                node_or_default(options.node)?,
            )
        };
        let require = required(options.require)?;
        let qos = options.qos()?;
        let publisher = domain.join(|domain| {
            let mut builder = node.publisher(topic).type_name(type_name).qos(qos);
            if let Some(domain) = domain {
                builder = builder.domain(domain);
            }
            if let Some(path) = require {
                builder = builder.require(path);
            }
            builder.create()
        })?;
        out.set(give(rgaps_publisher_t {
            birth: Birth::now(),
            domain: CString::new(publisher.domain().to_string()).unwrap_or_default(),
            publisher,
            _node: node,
        }));
        Ok(())
    })
}

/// Leaves the topic.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_destroy(publisher: *mut rgaps_publisher_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps.h: Handles).
        drop(unsafe { take(publisher) }?);
        Ok(())
    });
}

/// Publishes a copy, after the work queued on the default stream.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_push(
    publisher: *mut rgaps_publisher_t,
    data: *const c_void,
    bytes: usize,
) -> rgaps_status_t {
    let stream = Stream(0);
    // SAFETY: C passes NULL or a handle that lives, and `bytes` bytes at `data` that stay valid and unchanged until we return (rgaps.h:
    // Handles, Pointers).
    guard(|| unsafe { push(publisher, data, bytes, stream, true) })
}

/// Copies and publishes behind the work queued on a stream. `waits`: returns only when the copy is done.
///
/// # Safety
/// `publisher` is NULL or a handle that lives until this returns. `data` has `bytes` bytes that nobody changes until this
/// returns or, without `waits`, until the work on the stream is done.
unsafe fn push(
    publisher: *mut rgaps_publisher_t,
    data: *const c_void,
    bytes: usize,
    stream: Stream,
    waits: bool,
) -> Outcome {
    // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
    let publisher = unsafe { borrow(publisher) }?;
    check_bytes("data", data, bytes)?;
    let mut loan = publisher.publisher.loan(bytes as u64)?;
    // SAFETY: `data` is not NULL, or there are no bytes (`check_bytes`). C keeps the `bytes` bytes valid and unchanged until
    // its call returns or, if it passed a stream, until the work on that stream is done (rgaps.h: Pointers).
    unsafe { loan.copy_from_on(0, data as u64, bytes as u64, stream) }?;
    if waits {
        loan.wait_for(stream)?;
    }
    loan.publish_on(stream)
        .map_err(|unpublished| unpublished.error)?;
    Ok(())
}

/// Publishes a copy, after the work queued on a stream.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_push_on(
    publisher: *mut rgaps_publisher_t,
    data: *const c_void,
    bytes: usize,
    stream: rgaps_stream_t,
) -> rgaps_status_t {
    let stream = Stream(stream as u64);
    // SAFETY: C passes NULL or a handle that lives, and `bytes` bytes at `data` that stay valid and unchanged until the work on the
    // stream is done (rgaps.h: Handles, Pointers).
    guard(|| unsafe { push(publisher, data, bytes, stream, false) })
}

/// Waits for subscribers.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_wait_for_subscribers(
    publisher: *mut rgaps_publisher_t,
    count: u32,
    timeout_ns: u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let publisher = &unsafe { borrow(publisher) }?.publisher;
        let timeout = timeout(timeout_ns).unwrap_or(Duration::MAX);
        if publisher.wait_for_subscribers(count, timeout)? {
            return Ok(());
        }
        Err(Failure::new(
            Code::TimedOut,
            publisher.missing_subscribers(count),
        ))
    })
}

/// Subscribers that match the publisher now.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_subscribers(publisher: *const rgaps_publisher_t) -> u32 {
    guard_value(0, || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        Ok(unsafe { borrow(publisher) }?.publisher.subscribers())
    })
}

/// Subscribers of the topic that do not match the publisher.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_mismatched(publisher: *const rgaps_publisher_t) -> u32 {
    guard_value(0, || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        Ok(unsafe { borrow(publisher) }?.publisher.mismatched())
    })
}

/// The domain of the messages.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_domain(
    publisher: *const rgaps_publisher_t,
) -> *const c_char {
    guard_value(std::ptr::null(), || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        Ok(unsafe { borrow(publisher) }?.domain.as_ptr())
    })
}

/// Returns unused memory to the pools.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_trim(
    publisher: *mut rgaps_publisher_t,
    keep_bytes: u64,
    freed_bytes: *mut u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, publisher) = unsafe { (Out::optional(freed_bytes, 0), borrow(publisher)?) };
        out.set(publisher.publisher.trim(keep_bytes)?);
        Ok(())
    })
}

/// Loans a block.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_loan(
    publisher: *mut rgaps_publisher_t,
    bytes: usize,
    loan: *mut *mut rgaps_loan_t,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives, and a result that only we access until we return (rgaps.h: Handles, Pointers).
    unsafe { rgaps_publisher_loan_aligned(publisher, bytes, BLOCK_ALIGN as usize, loan) }
}

/// Loans a block at a multiple of an alignment.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_publisher_loan_aligned(
    publisher: *mut rgaps_publisher_t,
    bytes: usize,
    alignment: usize,
    loan: *mut *mut rgaps_loan_t,
) -> rgaps_status_t {
    let make = |publisher: &Publisher| Ok(publisher.loan_aligned(bytes as u64, alignment as u64)?);
    // SAFETY: C's own arguments: NULL or a publisher that lives, and a result that only we write, until we return
    // (rgaps.h: Handles, Pointers).
    unsafe { lend(publisher, loan, make) }
}

/// Gives C the loan that `make` takes from a publisher.
///
/// # Safety
/// `publisher` is NULL or a handle that lives until this returns; `loan` is NULL or may be written to until then.
pub(crate) unsafe fn lend(
    publisher: *mut rgaps_publisher_t,
    loan: *mut *mut rgaps_loan_t,
    make: impl FnOnce(&Publisher) -> Outcome<Loan>,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, publisher) = unsafe {
            let out = Out::new("loan", loan, std::ptr::null_mut())?;
            (out, borrow(publisher)?)
        };
        out.set(give(rgaps_loan_t::new(make(&publisher.publisher)?)));
        Ok(())
    })
}
