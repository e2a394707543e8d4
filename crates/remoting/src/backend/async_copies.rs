//! Copies to the client's pinned memory that nobody waits for: asynchronous copies. The GPU copies to a region of the backend; the bytes
//! follow in an answer of their own.
//!
//! A program that has seen an event or a stream come to its end relies on the copies before it. So no answer is sent while
//! there are copies that the GPU has finished and whose bytes are not sent ([`AsyncCopies::settle`]): whatever an answer proves,
//! the bytes came before.

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
    /// Waits for the GPU's part.
    pub(crate) fn wait(&self, api: &Api) -> Result<(), Code> {
        // SAFETY: an event that `begin` made; one of a device that was reset gets the driver's answer.
        unsafe { cu!(api, event_synchronize(self.event)) }
    }
}

#[derive(Default)]
struct AsyncCopyState {
    last: u64,
    pending: Vec<AsyncCopy>,
    /// Events that are not in use, by device.
    spare: HashMap<u16, Vec<usize>>,
    /// Resets of devices, each of which ended their events.
    resets: u64,
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
            resets: state.resets,
        };
        state.pending.push(copy);
        Ok(copy)
    }

    /// The bytes are sent, or never will be.
    pub(crate) fn end(&self, copy: &AsyncCopy) {
        let mut state = self.lock();
        state.pending.retain(|other| other != copy);
        if state.resets == copy.resets {
            state.spare.entry(copy.device).or_default().push(copy.event);
        }
        self.sent.notify_all();
    }

    /// Waits until the bytes of all copies that the GPU has finished are sent.
    pub(crate) fn settle(&self, api: &Api) {
        let mut state = self.lock();
        let is_finished = |copy: &&AsyncCopy| {
            // SAFETY: an event that `begin` made; one of a device that was reset gets the driver's answer.
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

    /// Forgets the events of a device that is reset.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.resets += 1;
        state.spare.clear();
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
        copies.reset();
        copies.end(&again);
        assert!(copies.lock().spare.is_empty());
    }
}
