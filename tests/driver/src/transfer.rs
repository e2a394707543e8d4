//! Copies and fills, each waiting for as little as the documentation promises
//! (CUDA driver API, "API synchronization behavior").

use crate::abi::Code;
use crate::call::{global, trace, Global};
use crate::context::{current, Context};
use crate::memory::Place;
use crate::stream::{Point, Stream};
use std::sync::Arc;

/// On which stream, and by which form of the function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The form without a stream: on the legacy default stream.
    Plain,
    /// The form with a stream.
    Async(usize),
}

/// Bytes to write.
enum Source {
    Address(u64),
    Staged(Vec<u8>),
    Pattern { value: u32, width: usize },
}

impl Source {
    fn address(&self) -> Option<u64> {
        match self {
            Source::Address(from) => Some(*from),
            _ => None,
        }
    }
}

/// A copy between any two addresses.
///
/// # Safety
/// Host ranges are valid as the driver function's caller promises.
pub(crate) unsafe fn copy(
    g: &Global,
    to: u64,
    from: u64,
    bytes: u64,
    form: Form,
) -> Result<(), Code> {
    let context = current()?;
    let stream = stream_of(g, &context, form)?;
    let (target, source) = {
        let memory = g.memory();
        if !memory.permits(to, bytes, context.position, true)
            || !memory.permits(from, bytes, context.position, false)
        {
            return Err(Code::INVALID_VALUE);
        }
        (memory.place_of(to, bytes), memory.place_of(from, bytes))
    };
    let is_split =
        |address, place| place == Place::Pageable && g.memory().place(address) == Place::Pinned;
    if is_split(to, target) || is_split(from, source) {
        trace("copyOverRegistrations", bytes as usize);
    }
    if target == Place::Pageable || source == Place::Pageable {
        trace("copyPageable", bytes as usize);
    }
    let queue = |source| write(g, &context, &stream, to, source, bytes);
    let plain = form == Form::Plain;
    match (source, target) {
        (Place::Pageable, Place::Device(_)) => {
            if plain {
                // What was queued before is waited for; the bytes that are staged now are not.
                context.submit(g, &stream, Vec::new(), || ())?.wait();
            }
            // SAFETY: the caller's: the source is readable until we return.
            let staged = unsafe { std::slice::from_raw_parts(from as *const u8, bytes as usize) };
            queue(Source::Staged(staged.to_vec()))?;
        }
        (Place::Device(_), Place::Device(_)) => drop(queue(Source::Address(from))?),
        (_, Place::Pageable) | (Place::Pageable, _) | (Place::Pinned, Place::Pinned) => {
            queue(Source::Address(from))?.wait();
        }
        _ if plain => queue(Source::Address(from))?.wait(),
        _ => drop(queue(Source::Address(from))?),
    }
    context.lost().map_or(Ok(()), Err)
}

/// Sets `count` elements of `width` bytes. Does not wait, in either form.
pub(crate) fn fill(
    g: &Global,
    to: u64,
    (value, width): (u32, usize),
    count: u64,
    form: Form,
) -> Result<(), Code> {
    let context = current()?;
    let stream = stream_of(g, &context, form)?;
    let bytes = count.checked_mul(width as u64).ok_or(Code::INVALID_VALUE)?;
    {
        let memory = g.memory();
        let is_host = memory.place(to) == Place::Pageable;
        if is_host || to % width as u64 != 0 || !memory.permits(to, bytes, context.position, true) {
            return Err(Code::INVALID_VALUE);
        }
    }
    write(
        g,
        &context,
        &stream,
        to,
        Source::Pattern { value, width },
        bytes,
    )
    .map(drop)
}

fn stream_of(g: &Global, context: &Arc<Context>, form: Form) -> Result<Arc<Stream>, Code> {
    match form {
        Form::Plain => context.stream(g, 0),
        Form::Async(handle) => context.stream(g, handle),
    }
}

fn write(
    g: &Global,
    context: &Arc<Context>,
    stream: &Arc<Stream>,
    to: u64,
    source: Source,
    bytes: u64,
) -> Result<Point, Code> {
    let owner = Arc::downgrade(context);
    // What is a device's address now has to be one when the work runs. Once given back, the
    // addresses may be anything.
    let place_of = |address| g.memory().place(address);
    let before = (place_of(to), source.address().map(place_of));
    context.submit(g, stream, Vec::new(), move || {
        let Some(context) = owner.upgrade() else {
            return;
        };
        // Held until the bytes are there, so that nothing is unmapped under us.
        let memory = global().memory();
        let from = source.address();
        let now = (memory.place(to), from.map(|from| memory.place(from)));
        let readable = |from| memory.permits(from, bytes, context.position, false);
        if now != before
            || !from.is_none_or(readable)
            || !memory.permits(to, bytes, context.position, true)
        {
            return context.lose(Code::ILLEGAL_ADDRESS);
        }
        // SAFETY: device ranges were just checked and stay mapped while the lock is held; host
        // ranges are valid until the work has finished, as the driver function's caller promises.
        unsafe { put_bytes(to, &source, bytes as usize) };
    })
}

/// # Safety
/// The ranges are valid.
unsafe fn put_bytes(to: u64, source: &Source, bytes: usize) {
    let to = to as *mut u8;
    // SAFETY: the caller's. Other processes may write the same bytes at the same time, as with a
    // GPU; volatile or not, that is a fault of the program under test.
    unsafe {
        match source {
            Source::Address(from) => std::ptr::copy(*from as *const u8, to, bytes),
            Source::Staged(staged) => std::ptr::copy_nonoverlapping(staged.as_ptr(), to, bytes),
            Source::Pattern { value, width: 4 } => {
                (0..bytes / 4).for_each(|i| to.cast::<u32>().add(i).write(*value));
            }
            Source::Pattern { value, .. } => std::ptr::write_bytes(to, *value as u8, bytes),
        }
    }
}
