//! Bridges between device topics and ordinary topics: `rgaps/device.h`.

use crate::boundary::{guard, optional_text, text, Out};
use crate::device::{domain, hand_out, rgaps_device_mapping_t, role};
use crate::handle::{borrow, give, take, Birth, Object};
use crate::node::{node_or_default, rgaps_node_t};
use crate::status::{rgaps_status_t, Code, Failure};
use rgaps_rs::{Bridge, Direction};
use std::ffi::{c_char, c_int};

/// `enum rgaps_device_direction`.
pub(crate) const DIRECTIONS: [(&str, Direction); 2] = [
    ("RGAPS_DEVICE_TO_HOSTS", Direction::ToHosts),
    ("RGAPS_DEVICE_TO_KERNELS", Direction::ToKernels),
];

/// `rgaps_device_bridge_t`.
pub struct rgaps_device_bridge_t {
    birth: Birth,
    bridge: Bridge,
}

impl Object for rgaps_device_bridge_t {
    const NAME: &'static str = "device topic's bridge";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

/// Maps the device topic of a bridge by the name of the ordinary topic.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_topic_attach(
    node: *const rgaps_node_t,
    topic: *const c_char,
    domain: *const c_char,
    role: c_int,
    mapping: *mut *mut rgaps_device_mapping_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes texts that nobody changes before we return, a result that only we write until then, and NULL or a
        // handle that lives until then.
        let (out, topic, wanted, node) = unsafe {
            let out = Out::new("mapping", mapping, std::ptr::null_mut())?;
            let topic = text("topic", topic)?;
            let wanted = optional_text("domain", domain)?;
            (out, topic, wanted, node_or_default(node)?)
        };
        let wanted = wanted.map(self::domain).transpose()?;
        out.set(hand_out(node.open_device(
            topic,
            wanted,
            self::role(role)?,
        )?));
        Ok(())
    })
}

/// Starts a bridge.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_bridge_create(
    node: *const rgaps_node_t,
    topic: *const c_char,
    mapping: *const rgaps_device_mapping_t,
    direction: c_int,
    bridge: *mut *mut rgaps_device_bridge_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes text that nobody changes before we return, a result that only we write until then, and NULL or
        // handles that live until then.
        let (out, topic, mapping, node) = unsafe {
            let out = Out::new("bridge", bridge, std::ptr::null_mut())?;
            let topic = text("topic", topic)?;
            (out, topic, borrow(mapping)?, node_or_default(node)?)
        };
        let direction = usize::try_from(direction)
            .ok()
            .and_then(|direction| DIRECTIONS.get(direction));
        let (_, direction) = direction
            .ok_or_else(|| Failure::argument("the direction is none of rgaps_device_direction"))?;
        out.set(give(rgaps_device_bridge_t {
            birth: Birth::now(),
            bridge: node.bridge(topic, mapping.topic.clone(), *direction)?,
        }));
        Ok(())
    })
}

/// The numbers of forwarded and refused messages.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_bridge_figures(
    bridge: *const rgaps_device_bridge_t,
    forwarded: *mut u64,
    refused: *mut u64,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes results that only we write until we return, and NULL or a handle that lives until then.
        let (forwarded, refused, bridge) = unsafe {
            let forwarded = Out::new("forwarded", forwarded, 0)?;
            (forwarded, Out::new("refused", refused, 0)?, borrow(bridge)?)
        };
        let figures = bridge.bridge.figures();
        forwarded.set(figures.forwarded);
        refused.set(figures.refused);
        match figures.failure {
            None => Ok(()),
            Some(message) => Err(Failure {
                code: Code::System,
                message,
            }),
        }
    })
}

/// Ends a bridge.
///
/// # Safety
/// As `rgaps/device.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_device_bridge_destroy(bridge: *mut rgaps_device_bridge_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps/device.h).
        drop(unsafe { take(bridge) }?);
        Ok(())
    });
}
