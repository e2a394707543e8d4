//! Buffers of registered host memory between the connection and a GPU, so that copies of a piece run while the next piece is
//! on its way.

use super::api::{cu, Api};
use crate::codes::Code;
use crate::limits::{STAGING_BYTES, STAGING_COUNT};
use std::collections::HashMap;

const REGISTER_PORTABLE: u32 = 1;
const EVENT_WITHOUT_TIMES: u32 = 2;

/// [`STAGING_COUNT`] buffers, used in turn.
pub(crate) struct Staging {
    start: *mut u8,
    /// By device and buffer.
    events: HashMap<(u16, usize), usize>,
    /// The device that uses a buffer, and the event after which it is free.
    busy: [Option<(u16, usize)>; STAGING_COUNT],
    next: usize,
}

// SAFETY: `new` maps the memory at `start` for this value alone. It stays mapped as long as the process, for all threads. All else is
// `Send`.
unsafe impl Send for Staging {}

impl Staging {
    /// Maps the memory, and has the driver pin it. Without pinning, copies are slower and right.
    pub(crate) fn new(api: &Api) -> Result<Staging, Code> {
        let bytes = STAGING_BYTES * STAGING_COUNT;
        // SAFETY: a new private mapping. The kernel chooses free addresses, so it replaces nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        // SAFETY: the mapping of `bytes` bytes was just made, and is never given back: the process ends with its client.
        if let Err(code) = unsafe { cu!(api, host_register(start, bytes, REGISTER_PORTABLE)) } {
            tracing::debug!(code = code.0, "staging is not pinned");
        }
        Ok(Staging {
            start: start.cast(),
            events: HashMap::new(),
            busy: [None; STAGING_COUNT],
            next: 0,
        })
    }

    /// Takes the next buffer, once the driver has finished with it.
    pub(crate) fn take(&mut self, api: &Api) -> Result<usize, Code> {
        let buffer = self.next;
        self.next = (buffer + 1) % STAGING_COUNT;
        self.wait(api, buffer)?;
        Ok(buffer)
    }

    /// Waits until the driver has finished with a buffer.
    pub(crate) fn wait(&mut self, api: &Api, buffer: usize) -> Result<(), Code> {
        match self.busy[buffer].take() {
            // SAFETY: `mark` made the event. Only a reset of its device destroys it, and `reset` forgets it then.
            Some((_, event)) => unsafe { cu!(api, event_synchronize(event)) },
            None => Ok(()),
        }
    }

    /// Notes that work on a stream uses a buffer.
    pub(crate) fn mark(
        &mut self,
        api: &Api,
        buffer: usize,
        device: u16,
        stream: usize,
    ) -> Result<(), Code> {
        let event = match self.events.get(&(device, buffer)) {
            Some(event) => *event,
            None => {
                let mut event = 0;
                // SAFETY: the out pointer is to a variable of this function.
                unsafe { cu!(api, event_create(&mut event, EVENT_WITHOUT_TIMES))? };
                self.events.insert((device, buffer), event);
                event
            }
        };
        // SAFETY: the event is the one just found; the stream is one of the session.
        unsafe { cu!(api, event_record(event, stream))? };
        self.busy[buffer] = Some((device, event));
        Ok(())
    }

    /// Call when a device was reset: forgets its events, and which buffers it uses. Other devices may still copy from theirs.
    pub(crate) fn reset(&mut self, device: u16) {
        self.events.retain(|(of, _), _| *of != device);
        for busy in &mut self.busy {
            *busy = busy.filter(|(of, _)| *of != device);
        }
    }

    /// A buffer's address.
    pub(crate) fn address(&self, buffer: usize) -> u64 {
        self.start.wrapping_add(buffer * STAGING_BYTES) as u64
    }

    /// A buffer's bytes, for its owner to fill or read while the driver does not use it.
    pub(crate) fn bytes(&mut self, buffer: usize, count: usize) -> &mut [u8] {
        assert!(
            buffer < STAGING_COUNT && count <= STAGING_BYTES,
            "inside a buffer"
        );
        // SAFETY: inside the mapping, as was just checked. The callers have the buffer from `take` or `wait`, which return when the
        // driver has finished with it, and queue no work for it while they have the slice. `&mut self` keeps other slices away.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(buffer * STAGING_BYTES), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_int, c_uint, c_void};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static MADE: AtomicUsize = AtomicUsize::new(0);
    static WAITED_FOR: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn register(_: *mut c_void, _: usize, _: c_uint) -> c_int {
        0
    }

    unsafe extern "C" fn create(to: *mut usize, _: c_uint) -> c_int {
        // SAFETY: `mark` passes a variable of its own.
        unsafe { *to = MADE.fetch_add(1, Ordering::Relaxed) + 1 };
        0
    }

    unsafe extern "C" fn record(_: usize, _: usize) -> c_int {
        0
    }

    unsafe extern "C" fn synchronize(event: usize) -> c_int {
        WAITED_FOR.store(event, Ordering::Relaxed);
        0
    }

    #[test]
    fn a_reset_keeps_the_buffers_that_other_devices_use() {
        let api = Api {
            host_register: Some(register),
            event_create: Some(create),
            event_record: Some(record),
            event_synchronize: Some(synchronize),
            ..Api::default()
        };
        let mut staging = Staging::new(&api).unwrap();
        for device in [0, 1] {
            let buffer = staging.take(&api).unwrap();
            staging.mark(&api, buffer, device, 0).unwrap();
        }
        staging.reset(0);
        assert_eq!(staging.busy[..3], [None, Some((1, 2)), None]);
        staging.wait(&api, 0).unwrap();
        assert_eq!(WAITED_FOR.load(Ordering::Relaxed), 0);
        staging.wait(&api, 1).unwrap();
        assert_eq!(WAITED_FOR.load(Ordering::Relaxed), 2);
    }
}
