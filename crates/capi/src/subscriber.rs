//! Subscribers.

use crate::boundary::{guard, guard_value, optional_text, text, timeout, Out};
use crate::domain::Wish;
use crate::handle::{borrow, give, take, Birth, Object};
use crate::node::{node_or_default, rgaps_node_t};
use crate::options::{read_options, Plain};
use crate::path::required;
use crate::pulled::Pulled;
use crate::sample::rgaps_sample_t;
use crate::status::{rgaps_status_t, Code, Failure, Outcome};
use rgaps_rs::{Late, Node, RecvError, Sample, Subscriber, SubscriberQos};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `rgaps_subscriber_t`.
pub struct rgaps_subscriber_t {
    birth: Birth,
    pub(crate) subscriber: Subscriber,
    pulled: Mutex<Pulled>,
    /// Messages that pulls took but did not return, since their GPU work did not finish in time. The next pulls return them, first
    /// to last. There are several if several threads pull.
    late: Mutex<VecDeque<Sample>>,
    /// Keeps the default node alive for the process's next publisher or subscriber. Wait sets compare it.
    pub(crate) node: Arc<Node>,
}

impl Object for rgaps_subscriber_t {
    const NAME: &'static str = "subscriber";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

impl rgaps_subscriber_t {
    fn pulled(&self) -> MutexGuard<'_, Pulled> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next message and for the work that writes it. If that work does not finish in time, the next call
    /// returns the same message.
    fn pull(&self, timeout_ns: u64) -> Result<Sample, RecvError> {
        let begun = Instant::now();
        let late = self.late().pop_front();
        let sample = match late {
            Some(sample) => sample,
            None => self.recv(timeout_ns)?,
        };
        let left = match timeout(timeout_ns) {
            None => Duration::MAX,
            Some(timeout) => timeout.saturating_sub(begun.elapsed()),
        };
        match sample.synchronize(left) {
            Ok(()) => Ok(sample),
            Err(RecvError::Unfinished { topic, .. }) => {
                self.put_back(sample);
                Err(RecvError::TimedOut(topic))
            }
            Err(error) => Err(error),
        }
    }

    /// Puts a message among the late ones, before later messages of its publisher.
    fn put_back(&self, sample: Sample) {
        let mut late = self.late();
        let is_later = |other: &Sample| {
            other.publisher_id() == sample.publisher_id() && other.sequence() > sample.sequence()
        };
        let at = late.iter().position(is_later).unwrap_or(late.len());
        late.insert(at, sample);
    }

    fn late(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recv(&self, timeout_ns: u64) -> Result<Sample, RecvError> {
        match timeout(timeout_ns) {
            None => self.subscriber.recv(),
            Some(Duration::ZERO) => self
                .subscriber
                .try_recv()?
                .ok_or_else(|| RecvError::TimedOut(self.subscriber.topic().to_owned())),
            Some(timeout) => self.subscriber.recv_timeout(timeout),
        }
    }
}

/// `rgaps_subscriber_options_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_subscriber_options_t {
    size: usize,
    node: *mut rgaps_node_t,
    domain: *const c_char,
    type_name: *const c_char,
    reliable: u32,
    depth: u32,
    late: u32,
    late_messages: u32,
    max_held: u32,
    require: u32,
    spin_ns: u64,
}

// SAFETY: numbers and pointers, for which 0 is a value, and without padding.
unsafe impl Plain for rgaps_subscriber_options_t {
    const NAME: &'static str = "rgaps_subscriber_options_t";
}

/// `enum rgaps_late`.
pub(crate) const LATE: [(&str, u32); 4] = [
    ("RGAPS_LATE_NOTHING", 0),
    ("RGAPS_LATE_LATEST", 1),
    ("RGAPS_LATE_LAST", 2),
    ("RGAPS_LATE_ALL_KEPT", 3),
];

impl rgaps_subscriber_options_t {
    fn qos(&self) -> Outcome<SubscriberQos> {
        let default = SubscriberQos::default();
        let late = match (self.late, self.late_messages) {
            (0, 0) => Late::Nothing,
            (1, 0) => Late::Latest,
            (2, messages) if messages > 0 => Late::Last(messages),
            (3, 0) => Late::AllKept,
            (late, messages) => {
                return Err(Failure::argument(format!(
                    "late {late} with late_messages {messages}: late is one of {}, and \
                     late_messages above 0 for RGAPS_LATE_LAST only",
                    LATE.map(|(name, _)| name).join(", ")
                )))
            }
        };
        Ok(SubscriberQos {
            reliable: self.reliable != 0,
            late,
            depth: (self.depth > 0).then_some(self.depth),
            max_held: match self.max_held {
                0 => default.max_held,
                samples => samples,
            },
            spin: match self.spin_ns {
                0 => default.spin,
                spin_ns => Duration::from_nanos(spin_ns),
            },
        })
    }
}

/// Joins a topic as a subscriber.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_create(
    topic: *const c_char,
    options: *const rgaps_subscriber_options_t,
    subscriber: *mut *mut rgaps_subscriber_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes text and options that nobody changes before we return, and results that only we write
        // until then (rgaps.h: Pointers).
        let (out, topic, options) = unsafe {
            let out = Out::new("subscriber", subscriber, std::ptr::null_mut())?;
            (out, text("topic", topic)?, read_options(options)?)
        };
        let (qos, require) = (options.qos()?, required(options.require)?);
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
        let subscriber = domain.join(|domain| {
            let mut builder = node.subscriber(topic).type_name(type_name).qos(qos);
            if let Some(domain) = domain {
                builder = builder.domain(domain);
            }
            if let Some(path) = require {
                builder = builder.require(path);
            }
            builder.create()
        })?;
        out.set(give(rgaps_subscriber_t {
            birth: Birth::now(),
            subscriber,
            pulled: Mutex::default(),
            late: Mutex::default(),
            node,
        }));
        Ok(())
    })
}

/// Leaves the topic.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_destroy(subscriber: *mut rgaps_subscriber_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps.h: Handles).
        drop(unsafe { take(subscriber) }?);
        Ok(())
    });
}

/// Takes the next message and keeps it by its address.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_pull(
    subscriber: *mut rgaps_subscriber_t,
    timeout_ns: u64,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, out_bytes, subscriber) = unsafe {
            let out = Out::new("data", data, std::ptr::null())?;
            (out, Out::optional(bytes, 0), borrow(subscriber)?)
        };
        let sample = subscriber.pull(timeout_ns)?;
        let (address, bytes) = (sample.address(), sample.len());
        subscriber.pulled().insert(sample);
        out.set(address as *const c_void);
        out_bytes.set(bytes as usize);
        Ok(())
    })
}

fn not_held(data: *const c_void, subscriber: &rgaps_subscriber_t) -> Failure {
    Failure::new(
        Code::NotHeld,
        format!(
            "{data:p} was not pulled by this subscriber of topic '{}', or was released already",
            subscriber.subscriber.topic()
        ),
    )
}

/// The size of a pulled message.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_pulled_bytes(
    subscriber: *mut rgaps_subscriber_t,
    data: *const c_void,
    bytes: *mut usize,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, subscriber) = unsafe { (Out::new("bytes", bytes, 0)?, borrow(subscriber)?) };
        let pulled = subscriber.pulled();
        let sample = pulled
            .get(data as u64)
            .ok_or_else(|| not_held(data, subscriber))?;
        out.set(sample.len() as usize);
        Ok(())
    })
}

/// Releases a pulled message, or all.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_release(
    subscriber: *mut rgaps_subscriber_t,
    data: *const c_void,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let subscriber = unsafe { borrow(subscriber) }?;
        if data.is_null() {
            // Drop them after the lock is released: dropping may take long, and other threads wait for the lock.
            let samples = subscriber.pulled().take_all();
            drop(samples);
            return Ok(());
        }
        let sample = subscriber.pulled().remove(data as u64);
        sample.map(drop).ok_or_else(|| not_held(data, subscriber))
    })
}

/// Takes the next message as a sample.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_recv(
    subscriber: *mut rgaps_subscriber_t,
    timeout_ns: u64,
    sample: *mut *mut rgaps_sample_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, subscriber) = unsafe {
            let out = Out::new("sample", sample, std::ptr::null_mut())?;
            (out, borrow(subscriber)?)
        };
        out.set(give(rgaps_sample_t::new(subscriber.recv(timeout_ns)?)));
        Ok(())
    })
}

/// Takes the next message, if there is one.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_try_recv(
    subscriber: *mut rgaps_subscriber_t,
    sample: *mut *mut rgaps_sample_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, subscriber) = unsafe {
            let out = Out::new("sample", sample, std::ptr::null_mut())?;
            (out, &borrow(subscriber)?.subscriber)
        };
        let Some(sample) = subscriber.try_recv()? else {
            let topic = subscriber.topic();
            return Err(Failure::new(
                Code::Empty,
                format!("no message on topic '{topic}' now"),
            ));
        };
        out.set(give(rgaps_sample_t::new(sample)));
        Ok(())
    })
}

/// Waits for a message without taking it.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_wait(
    subscriber: *mut rgaps_subscriber_t,
    timeout_ns: u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        let subscriber = &unsafe { borrow(subscriber) }?.subscriber;
        let timeout = timeout(timeout_ns).unwrap_or(Duration::MAX);
        if subscriber.wait(timeout)? {
            return Ok(());
        }
        Err(Failure::from(RecvError::TimedOut(
            subscriber.topic().to_owned(),
        )))
    })
}

/// A file descriptor that is readable while messages are waiting.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_fd(
    subscriber: *mut rgaps_subscriber_t,
    fd: *mut c_int,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes NULL or a handle that lives until we return, and results that only we write until then
        // (rgaps.h: Handles, Pointers).
        let (out, subscriber) = unsafe { (Out::new("fd", fd, -1)?, borrow(subscriber)?) };
        out.set(subscriber.subscriber.readiness()?.as_raw_fd());
        Ok(())
    })
}

/// Messages missed so far.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_missed(subscriber: *const rgaps_subscriber_t) -> u64 {
    // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
    guard_value(0, || Ok(unsafe { borrow(subscriber) }?.subscriber.missed()))
}

/// Publishers of the topic that do not match the subscriber.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_mismatched(subscriber: *const rgaps_subscriber_t) -> u32 {
    guard_value(0, || {
        // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
        Ok(unsafe { borrow(subscriber) }?.subscriber.mismatched())
    })
}

/// Samples held now.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_subscriber_held(subscriber: *const rgaps_subscriber_t) -> u32 {
    // SAFETY: C passes NULL or a handle that lives until we return (rgaps.h: Handles).
    guard_value(0, || Ok(unsafe { borrow(subscriber) }?.subscriber.held()))
}
