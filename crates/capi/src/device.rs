//! Device topics: `rgaps/device.h`.

use crate::boundary::{check_slice, guard, text, Out};
use crate::domain::Wish;
use crate::handle::{borrow, give, take, Birth, Object};
use crate::status::{rgaps_status_t, Code, Coded, Failure, Outcome};
use rgaps_device::{DeviceError, DeviceTopic, Geometry, Role};
use rgaps_layout::{DeviceTopicView, Domain};
use std::ffi::{c_char, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The number of a topic's segments, each of which has a descriptor.
const SEGMENTS: usize = 3;

/// `enum rgaps_device_role`.
pub(crate) const ROLES: [(&str, Role); 2] = [
    ("RGAPS_DEVICE_PUBLISHER", Role::Publisher),
    ("RGAPS_DEVICE_SUBSCRIBER", Role::Subscriber),
];

/// `rgaps_device_topic_t`.
pub type rgaps_device_topic_t = DeviceTopicView;

/// `rgaps_device_mapping_t`.
pub struct rgaps_device_mapping_t {
    birth: Birth,
    pub(crate) topic: Arc<DeviceTopic>,
}

impl Object for rgaps_device_mapping_t {
    const NAME: &'static str = "device topic's mapping";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

impl Coded for DeviceError {
    fn code(&self) -> Code {
        match self {
            DeviceError::Pool(error) => error.code(),
            DeviceError::Argument(_) => Code::Argument,
            DeviceError::NoSeat(_) => Code::Limit,
            DeviceError::Bridged => Code::Busy,
            DeviceError::Corrupt(_) => Code::Protocol,
            _ => Code::System,
        }
    }
}

pub(crate) fn hand_out(topic: DeviceTopic) -> *mut rgaps_device_mapping_t {
    give(rgaps_device_mapping_t {
        birth: Birth::now(),
        topic: Arc::new(topic),
    })
}

pub(crate) fn domain(name: &str) -> Outcome<Domain> {
    match Wish::parse(Some(name))? {
        Wish::Exactly(domain) => Ok(domain),
        _ => Err(Failure::argument(format!(
            "a device topic is in 'host' or in the memory of a GPU, not in '{name}'"
        ))),
    }
}

pub(crate) fn role(number: c_int) -> Outcome<Role> {
    let role = usize::try_from(number)
        .ok()
        .and_then(|role| ROLES.get(role));
    role.map(|(_, role)| *role)
        .ok_or_else(|| Failure::argument("the role is none of rgaps_device_role"))
}

/// Creates a topic.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_topic_create(
    domain: *const c_char,
    depth: u32,
    blocks: u32,
    block_bytes: u64,
    mapping: *mut *mut rgaps_device_mapping_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes text that nobody changes before we return, and a result that only we write until then.
        let (out, name) = unsafe {
            let out = Out::new("mapping", mapping, std::ptr::null_mut())?;
            (out, text("domain", domain)?)
        };
        let geometry = Geometry {
            depth,
            blocks,
            block_bytes,
        };
        out.set(hand_out(DeviceTopic::create(
            self::domain(name)?,
            geometry,
        )?));
        Ok(())
    })
}

/// Maps a topic of another process.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_topic_open(
    domain: *const c_char,
    descriptors: *const c_int,
    role: c_int,
    mapping: *mut *mut rgaps_device_mapping_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes text that nobody changes before we return, and a result that only we write until then.
        let (out, name) = unsafe {
            let out = Out::new("mapping", mapping, std::ptr::null_mut())?;
            (out, text("domain", domain)?)
        };
        let role = self::role(role)?;
        check_slice(
            "descriptors",
            descriptors.cast(),
            SEGMENTS * size_of::<c_int>(),
        )?;
        // SAFETY: `descriptors` is not NULL (`check_slice`), and C passes three descriptors there (rgaps/device.h).
        let numbers = unsafe { descriptors.cast::<[c_int; SEGMENTS]>().read_unaligned() };
        let own = |number: c_int| -> Outcome<OwnedFd> {
            if number < 0 {
                return Err(Failure::argument(format!("{number} is no descriptor")));
            }
            // SAFETY: `number` is not negative, and C keeps its descriptors open until we return. If one is not open, the
            // kernel refuses to duplicate it.
            let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
            borrowed
                .try_clone_to_owned()
                .map_err(|error| Failure::argument(format!("descriptor {number}: {error}")))
        };
        let [control, ring, words] = numbers;
        let fds = [own(control)?, own(ring)?, own(words)?];
        out.set(hand_out(DeviceTopic::open(self::domain(name)?, fds, role)?));
        Ok(())
    })
}

/// The topic as kernels take it as a parameter.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_topic(
    mapping: *const rgaps_device_mapping_t,
    topic: *mut rgaps_device_topic_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes a result that only we write until we return, and NULL or a handle that lives until then.
        let (out, mapping) = unsafe {
            let out = Out::new("topic", topic, DeviceTopicView::default())?;
            (out, borrow(mapping)?)
        };
        out.set(mapping.topic.view());
        Ok(())
    })
}

/// The topic's three descriptors.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_descriptors(
    mapping: *const rgaps_device_mapping_t,
    descriptors: *mut c_int,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes room for three descriptors that only we write until we return, and NULL or a handle that lives
        // until then.
        let (out, mapping) = unsafe {
            let out = Out::new("descriptors", descriptors.cast(), [-1; SEGMENTS])?;
            (out, borrow(mapping)?)
        };
        out.set(mapping.topic.descriptors().map(|fd| fd.as_raw_fd()));
        Ok(())
    })
}

/// Takes a seat.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_take_seat(
    mapping: *const rgaps_device_mapping_t,
    seat: *mut u32,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes a result that only we write until we return, and NULL or a handle that lives until then.
        let (out, mapping) = unsafe { (Out::new("seat", seat, 0)?, borrow(mapping)?) };
        out.set(mapping.topic.take_seat()?);
        Ok(())
    })
}

/// Returns a seat.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_leave_seat(
    mapping: *const rgaps_device_mapping_t,
    seat: u32,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives until we return.
    guard(|| Ok(unsafe { borrow(mapping) }?.topic.leave_seat(seat)?))
}

/// Evicts a subscriber.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_evict(
    mapping: *const rgaps_device_mapping_t,
    seat: u32,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives until we return.
    guard(|| Ok(unsafe { borrow(mapping) }?.topic.evict(seat)?))
}

/// Ends the waits of an endpoint's kernel.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_stop(
    mapping: *const rgaps_device_mapping_t,
    endpoint: u32,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives until we return.
    guard(|| Ok(unsafe { borrow(mapping) }?.topic.stop(endpoint)?))
}

/// Lets an endpoint's kernel wait again.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_resume(
    mapping: *const rgaps_device_mapping_t,
    endpoint: u32,
) -> rgaps_status_t {
    // SAFETY: C passes NULL or a handle that lives until we return.
    guard(|| Ok(unsafe { borrow(mapping) }?.topic.resume(endpoint)?))
}

/// The cursor of a subscriber, and the number of messages that it missed.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_seat(
    mapping: *const rgaps_device_mapping_t,
    seat: u32,
    next_sequence: *mut u64,
    missed: *mut u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes results that only we write until we return, and NULL or a handle that lives until then.
        let (next, missed, mapping) = unsafe {
            let next = Out::new("next_sequence", next_sequence, 0)?;
            (next, Out::new("missed", missed, 0)?, borrow(mapping)?)
        };
        let state = mapping.topic.seat(seat)?;
        next.set(if state.joined { state.next_sequence } else { 0 });
        missed.set(state.missed);
        Ok(())
    })
}

/// The sequence number of the newest message.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_newest(
    mapping: *const rgaps_device_mapping_t,
    sequence: *mut u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes a result that only we write until we return, and NULL or a handle that lives until then.
        let (out, mapping) = unsafe { (Out::new("sequence", sequence, 0)?, borrow(mapping)?) };
        out.set(mapping.topic.newest_sequence()?);
        Ok(())
    })
}

/// Whether processes take turns on the GPU.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_takes_turns(
    mapping: *const rgaps_device_mapping_t,
    takes_turns: *mut c_int,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes a result that only we write until we return, and NULL or a handle that lives until then.
        let (out, mapping) =
            unsafe { (Out::new("takes_turns", takes_turns, 0)?, borrow(mapping)?) };
        out.set(mapping.topic.takes_turns().into());
        Ok(())
    })
}

/// Unmaps a topic.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_mapping_destroy(mapping: *mut rgaps_device_mapping_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread and no kernel uses any more (rgaps/device.h).
        drop(unsafe { take(mapping) }?);
        Ok(())
    });
}
