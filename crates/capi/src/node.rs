//! Nodes, and the process's default node.

use crate::boundary::{guard, optional_text, Out};
use crate::handle::{borrow, give, take, Birth, Object};
use crate::options::{read_options, Plain};
use crate::status::{rgaps_status_t, Failure, Outcome};
use rgaps_layout::MAX_CLIENT_NAME;
use rgaps_rs::Node;
use rgaps_session::{Argument, Config, Environment};
use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// `rgaps_node_t`. Publishers and subscribers share the node inside, so the handle may be destroyed before them.
pub struct rgaps_node_t {
    birth: Birth,
    node: Arc<Node>,
}

impl Object for rgaps_node_t {
    const NAME: &'static str = "node";
    fn birth(&self) -> &Birth {
        &self.birth
    }
}

/// `rgaps_node_options_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rgaps_node_options_t {
    size: usize,
    config_file: *const c_char,
    socket: *const c_char,
    realm: *const c_char,
    topic_namespace: *const c_char,
    remap: *const *const c_char,
    remap_count: usize,
}

// SAFETY: a size and pointers, for which 0 is a value, and without padding.
unsafe impl Plain for rgaps_node_options_t {
    const NAME: &'static str = "rgaps_node_options_t";
}

/// Connects to the daemon, or starts it.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_node_create(
    name: *const c_char,
    options: *const rgaps_node_options_t,
    node: *mut *mut rgaps_node_t,
) -> rgaps_status_t {
    guard(|| {
        // SAFETY: C passes text and options that nobody changes before we return, and results that only we write
        // until then (rgaps.h: Pointers).
        let (out, name, options) = unsafe {
            let out = Out::new("node", node, std::ptr::null_mut())?;
            (out, optional_text("name", name)?, read_options(options)?)
        };
        // SAFETY: what C's options point to is NULL or text that nobody changes before we return (rgaps.h: Pointers).
        let config = unsafe { configuration(&options) }?;
        let name = name.map_or_else(program_name, str::to_owned);
        let node = Node::builder(&name).config(config).build()?;
        out.set(give(rgaps_node_t {
            birth: Birth::now(),
            node: Arc::new(node),
        }));
        Ok(())
    })
}

/// Destroys the handle.
///
/// # Safety
/// As `rgaps.h` says.
#[no_mangle]
pub unsafe extern "C" fn rgaps_node_destroy(node: *mut rgaps_node_t) {
    guard(|| {
        // SAFETY: C passes NULL or a handle that no thread uses any more (rgaps.h: Handles).
        drop(unsafe { take(node) }?);
        Ok(())
    });
}

/// The rules of remapping in the field `remap`.
///
/// # Safety
/// `remap` is NULL or points to `remap_count` pointers, each NULL or a C string.
unsafe fn rules(options: &rgaps_node_options_t) -> Outcome<Vec<String>> {
    let missing = || Failure::argument("options->remap has no text for each of remap_count rules");
    if options.remap.is_null() {
        return Err(missing());
    }
    let rule = |at| {
        // SAFETY: `at` is below `remap_count`, and our caller promises that many pointers at `remap`, each NULL or a C string
        // that nobody changes. The text is copied before this closure returns.
        let rule = unsafe { optional_text("remap", options.remap.add(at).read_unaligned()) }?;
        Ok(rule.ok_or_else(missing)?.to_owned())
    };
    (0..options.remap_count).map(rule).collect()
}

/// The configuration of this machine and user, overridden by the options.
///
/// # Safety
/// Each text is NULL or a C string; `remap` is NULL or points to `remap_count` pointers, each NULL or a C string.
unsafe fn configuration(options: &rgaps_node_options_t) -> Outcome<Config> {
    // SAFETY: our caller promises that each is NULL or text, and the options' borrow outlasts our use of it.
    let (file, socket, realm, namespace) = unsafe {
        (
            optional_text("config_file", options.config_file)?,
            optional_text("socket", options.socket)?,
            optional_text("realm", options.realm)?,
            optional_text("topic_namespace", options.topic_namespace)?,
        )
    };
    let invalid = |error: &dyn std::fmt::Display| Failure::argument(error.to_string());
    let mut environment = Environment::current();
    for (field, key, value) in [
        ("realm", "realm", realm),
        ("topic_namespace", "namespace", namespace),
    ] {
        let argument = |value| Argument::text(&format!("options->{field}"), key, value);
        environment.arguments.extend(value.map(argument));
    }
    if options.remap_count > 0 {
        // SAFETY: our caller promises `remap` as `rules` wants it: NULL, or `remap_count` pointers, each NULL or a C string.
        let rules = unsafe { rules(options) }?;
        environment.arguments.push(Argument {
            name: "options->remap".to_owned(),
            key: "remap".to_owned(),
            value: rules.into(),
        });
    }
    let mut config =
        Config::load_from(file.map(Path::new), &environment).map_err(|error| invalid(&error))?;
    if let Some(socket) = socket {
        let socket = std::path::absolute(socket).map_err(|error| {
            Failure::argument(format!("socket '{socket}' is not a path: {error}"))
        })?;
        config.socket = Some(socket);
    }
    Ok(config)
}

/// The name of this process in listings if C passes none: its program's name, or "c".
fn program_name() -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("c"));
    let mut name = program.file_name().map_or_else(
        || "c".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let end = (0..=MAX_CLIENT_NAME)
        .rev()
        .find(|end| name.is_char_boundary(*end));
    name.truncate(end.unwrap_or(0));
    name
}

/// The process's default node, which its publishers and subscribers keep alive. NULL until somebody needs it.
static DEFAULT: AtomicPtr<Mutex<Weak<Node>>> = AtomicPtr::new(std::ptr::null_mut());

/// Forgets the default node, in a forked child: the node belongs to the parent, and another thread of the parent may have
/// held its lock during the fork.
pub(crate) fn forget_default() {
    DEFAULT.store(std::ptr::null_mut(), Ordering::Release);
}

/// The node behind a handle; the default one for NULL.
///
/// # Safety
/// `node` is NULL or a node's handle that lives until the function that C called returns.
pub(crate) unsafe fn node_or_default(node: *const rgaps_node_t) -> Outcome<Arc<Node>> {
    if node.is_null() {
        return default_node();
    }
    // SAFETY: it is not NULL, so our caller promises a node's handle that lives until C's call returns.
    Ok(unsafe { borrow(node) }?.node.clone())
}

fn default_node() -> Outcome<Arc<Node>> {
    // Registers the fork handler before there is a default node for it to forget.
    let _birth = Birth::now();
    let mut slot = DEFAULT.load(Ordering::Acquire);
    if slot.is_null() {
        // Never freed: there is one per process.
        let new = Box::into_raw(Box::new(Mutex::new(Weak::new())));
        let null = std::ptr::null_mut();
        slot = match DEFAULT.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: `new` comes from `Box::into_raw` above, and the failed exchange published it to nobody.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: DEFAULT points to a box that this function leaked, so it is never freed.
    let mut kept = unsafe { &*slot }
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(node) = kept.upgrade() {
        return Ok(node);
    }
    let node = Arc::new(Node::new(&program_name())?);
    *kept = Arc::downgrade(&node);
    Ok(node)
}
