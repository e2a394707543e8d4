//! Copies to the client's pinned memory that nobody waits for: asynchronous copies. The GPU copies to a region of the backend; the bytes
//! follow in an answer of their own.
//!
//! A program that has seen an event or a stream come to its end relies on the copies before it. So the backend sends no answer while
//! there are copies that the GPU has finished and whose bytes are not sent ([`AsyncCopies::settle`]): the bytes come before each answer
//! that proves their copy.

use super::api::{cu, Api};
use crate::codes::Code;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const EVENT_WITHOUT_TIMES: u32 = 2;

/// A copy whose bytes are not sent yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AsyncCopy {
    number: u64,
    device: u16,
    event: usize,
    resets: u64,
}

impl AsyncCopy {
    /// Waits until the GPU has made the copy.
    pub(crate) fn wait(&self, api: &Api) -> Result<(), Code> {
        // SAFETY: `begin` made the event, and only a reset of its device destroys it, after which the driver refuses it.
        unsafe { cu!(api, event_synchronize(self.event)) }
    }
}

#[derive(Default)]
struct AsyncCopyState {
    last: u64,
    pending: Vec<AsyncCopy>,
    /// Events that are not in use, by device.
    spare: HashMap<u16, Vec<usize>>,
    /// How often each device was reset. Each reset destroyed the device's events.
    resets: HashMap<u16, u64>,
}

impl AsyncCopyState {
    fn resets_of(&self, device: u16) -> u64 {
        self.resets.get(&device).copied().unwrap_or(0)
    }
}

/// All asynchronous copies of a client.
#[derive(Default)]
pub(crate) struct AsyncCopies {
    state: Mutex<AsyncCopyState>,
    sent: Condvar,
}

impl AsyncCopies {
    fn lock(&self) -> MutexGuard<'_, AsyncCopyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a copy that was just queued on a stream.
    pub(crate) fn begin(&self, api: &Api, device: u16, stream: usize) -> Result<AsyncCopy, Code> {
        let mut state = self.lock();
        let event = match state.spare.get_mut(&device).and_then(Vec::pop) {
            Some(event) => event,
            None => {
                let mut event = 0;
                // SAFETY: the out pointer is to a variable of this function.
                unsafe { cu!(api, event_create(&mut event, EVENT_WITHOUT_TIMES))? };
                event
            }
        };
        // SAFETY: the event is the one just found; the stream is one of the session.
        unsafe { cu!(api, event_record(event, stream))? };
        state.last += 1;
        let copy = AsyncCopy {
            number: state.last,
            device,
            event,
            resets: state.resets_of(device),
        };
        state.pending.push(copy);
        Ok(copy)
    }

    /// Call when the bytes of a copy are sent, or never will be.
    pub(crate) fn end(&self, copy: &AsyncCopy) {
        let mut state = self.lock();
        state.pending.retain(|other| other != copy);
        if state.resets_of(copy.device) == copy.resets {
            state.spare.entry(copy.device).or_default().push(copy.event);
        }
        self.sent.notify_all();
    }

    /// Waits until the bytes of all copies that the GPU has finished are sent.
    pub(crate) fn settle(&self, api: &Api) {
        let mut state = self.lock();
        let is_finished = |copy: &&AsyncCopy| {
            // SAFETY: `begin` made the event, and only a reset of its device destroys it, after which the driver refuses it.
            unsafe { cu!(api, event_query(copy.event)) }.is_ok()
        };
        let finished: Vec<u64> = state
            .pending
            .iter()
            .filter(is_finished)
            .map(|copy| copy.number)
            .collect();
        while state
            .pending
            .iter()
            .any(|copy| finished.contains(&copy.number))
        {
            state = self
                .sent
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Call when a device is reset: none of its events that were made before is used again.
    pub(crate) fn reset(&self, device: u16) {
        let mut state = self.lock();
        *state.resets.entry(device).or_default() += 1;
        state.spare.remove(&device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_int, c_uint};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::Arc;

    static IS_DONE: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn create(to: *mut usize, _: c_uint) -> c_int {
        // SAFETY: `begin` passes a variable of its own.
        unsafe { *to = 7 };
        0
    }

    unsafe extern "C" fn record(_: usize, _: usize) -> c_int {
        0
    }

    unsafe extern "C" fn query(_: usize) -> c_int {
        if IS_DONE.load(Ordering::Acquire) {
            0
        } else {
            600
        }
    }

    #[test]
    fn what_the_gpu_has_finished_is_sent_before_it_is_proved() {
        let api = Api {
            event_create: Some(create),
            event_record: Some(record),
            event_query: Some(query),
            ..Api::default()
        };
        let copies = Arc::new(AsyncCopies::default());
        let copy = copies.begin(&api, 0, 0).unwrap();
        // The GPU has not finished, so nothing proves it, and nobody waits.
        copies.settle(&api);
        IS_DONE.store(true, Ordering::Release);
        let is_sent = Arc::new(AtomicBool::new(false));
        let sender = {
            let (copies, is_sent) = (copies.clone(), is_sent.clone());
            std::thread::spawn(move || {
                is_sent.store(true, Ordering::Release);
                copies.end(&copy);
            })
        };
        copies.settle(&api);
        assert!(is_sent.load(Ordering::Acquire));
        sender.join().unwrap();
        // Its event is used again, unless a reset has ended it.
        let again = copies.begin(&api, 0, 0).unwrap();
        assert_eq!(copies.lock().spare[&0].len(), 0);
        copies.reset(0);
        copies.end(&again);
        assert!(copies.lock().spare.is_empty());
        // The reset of another device ends neither its spare events nor those in use.
        let both = [0, 0].map(|device| copies.begin(&api, device, 0).unwrap());
        copies.end(&both[0]);
        copies.reset(1);
        copies.end(&both[1]);
        assert_eq!(copies.lock().spare[&0].len(), 2);
    }
}
