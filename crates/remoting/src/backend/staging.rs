//! Buffers of registered host memory between the connection and a GPU, so that copies of a piece run while the next piece is
//! on its way.

use super::api::{cu, Api};
use crate::call::{Extent, Pitched};
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

/// A part of a copy that fits a buffer: where it begins on the device, and how much it is.
pub(crate) type Piece = (Pitched, Extent);

/// Cuts a copy into pieces, in the order in which the bytes travel.
pub(crate) fn pieces(at: Pitched, extent: Extent) -> impl Iterator<Item = Piece> {
    let width = extent.width_bytes;
    let column = width.min(STAGING_BYTES as u64).max(1);
    let columns = width.div_ceil(column);
    // Rows that go together; one where a row is cut itself.
    let group = match columns {
        0 | 1 => (STAGING_BYTES as u64 / column).clamp(1, extent.height.max(1)),
        _ => 1,
    };
    let groups = extent.height.div_ceil(group);
    let count = extent.depth * groups * columns;
    (0..count).map(move |number| {
        let (layer, rest) = (number / (groups * columns), number % (groups * columns));
        let (row, x) = (rest / columns * group, rest % columns * column);
        let piece = Pitched {
            address: at.address + layer * at.layer_bytes + row * at.row_bytes + x,
            ..at
        };
        let extent = Extent {
            width_bytes: column.min(width - x),
            height: group.min(extent.height - row),
            depth: 1,
        };
        (piece, extent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(width_bytes: u64, height: u64, depth: u64) -> Vec<Piece> {
        let at = Pitched {
            address: 0,
            row_bytes: width_bytes + 10,
            layer_bytes: (width_bytes + 10) * height + 100,
        };
        let extent = Extent {
            width_bytes,
            height,
            depth,
        };
        let all: Vec<_> = pieces(at, extent).collect();
        let bytes: u64 = all.iter().map(|(_, e)| e.width_bytes * e.height).sum();
        assert_eq!(bytes, width_bytes * height * depth);
        assert!(all
            .iter()
            .all(|(_, e)| e.width_bytes * e.height <= STAGING_BYTES as u64));
        all
    }

    #[test]
    fn copies_are_cut_into_pieces_that_fit() {
        assert_eq!(cut(100, 1, 1).len(), 1);
        assert_eq!(cut(100, 50, 3).len(), 3);
        let most = STAGING_BYTES as u64;
        let long = cut(most * 2 + 1, 2, 1);
        assert_eq!(long.len(), 6);
        assert_eq!(long[3].0.address, most * 2 + 11);
        assert_eq!(
            cut(1 << 20, 9, 1).len(),
            9_usize.div_ceil(STAGING_BYTES >> 20)
        );
        assert!(cut(0, 1, 1).is_empty() && cut(5, 0, 1).is_empty());
    }
}
