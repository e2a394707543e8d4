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
    /// The event after which a buffer is free.
    busy: [Option<usize>; STAGING_COUNT],
    next: usize,
}

// SAFETY: the memory is this value's alone, and whoever has the value may use it from any thread.
unsafe impl Send for Staging {}

impl Staging {
    /// Maps the memory, and has the driver pin it. Without pinning, copies are slower and right.
    pub(crate) fn new(api: &Api) -> Result<Staging, Code> {
        let bytes = STAGING_BYTES * STAGING_COUNT;
        // SAFETY: a new private mapping where the kernel likes.
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
        // SAFETY: the mapping was just made and is never given back: the process ends with its client.
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

    /// The next buffer, once the driver has finished with it.
    pub(crate) fn take(&mut self, api: &Api) -> Result<usize, Code> {
        let buffer = self.next;
        self.next = (buffer + 1) % STAGING_COUNT;
        self.wait(api, buffer)?;
        Ok(buffer)
    }

    /// Waits until the driver has finished with a buffer.
    pub(crate) fn wait(&mut self, api: &Api, buffer: usize) -> Result<(), Code> {
        match self.busy[buffer].take() {
            // SAFETY: an event that `mark` made and that stays until the process ends.
            Some(event) => unsafe { cu!(api, event_synchronize(event)) },
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
        self.busy[buffer] = Some(event);
        Ok(())
    }

    /// Forgets the events of a device that was reset: nothing runs there any more.
    pub(crate) fn reset(&mut self, device: u16) {
        self.events.retain(|(of, _), _| *of != device);
        self.busy = [None; STAGING_COUNT];
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
        // SAFETY: inside the mapping, as was just checked; `take` or `wait` returned when the driver had finished with the
        // buffer, and nothing has been queued for it since.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(buffer * STAGING_BYTES), count) }
    }
}
