//! Copies from the device that the program does not wait for. An answer of its own brings the bytes of each copy; the thread that
//! reads the answer writes them to the program's memory.
//!
//! While such answers are expected, a thread of this module reads if no other does. So the server can always send the bytes, and
//! does so before it answers a call that proves the copy.

use crate::call::Call;
use crate::client::{From, Lost, ServerConnection, Target};
use crate::expected_copies::{ExpectedCopies, ExpectedCopy};
use crate::limits::ASYNC_COPIES_MAX;
use rgaps_sync::lock;
use std::sync::{Arc, PoisonError};

impl ServerConnection {
    /// Makes a call that gives bytes, and does not wait for them.
    ///
    /// # Safety
    /// `bytes` bytes at `to` may be written, by any thread, until [`ServerConnection::wait_for_async_copies`] has returned for them.
    pub unsafe fn call_out_async(
        self: &Arc<Self>,
        from: From,
        call: &Call<'_>,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Lost> {
        self.wait_until(|copies| copies.expected.len() < ASYNC_COPIES_MAX)?;
        let target = Target { start: to, bytes };
        let waited = self.begin(from, call, &[], Some(target), |inbox, request| {
            let copy = ExpectedCopy {
                start: to as usize,
                bytes,
                thread: from.thread,
            };
            inbox.expected_copies.expected.insert(request, copy);
        })?;
        drop(waited);
        let mut inbox = lock(&self.inbox);
        if !inbox.expected_copies.has_reader {
            inbox.expected_copies.has_reader = true;
            let reader = self.clone();
            let spawned = std::thread::Builder::new()
                .name("rgaps-gpu-read".to_owned())
                .spawn(move || reader.read_expected_copies());
            if spawned.is_err() {
                inbox.expected_copies.has_reader = false;
                drop(inbox);
                // A thread has to read, so this one does until no answers are expected.
                return self.wait_until(ExpectedCopies::is_empty);
            }
        }
        drop(inbox);
        self.answered.notify_all();
        Ok(())
    }

    /// Waits until no bytes are expected for a range.
    pub fn wait_for_async_copies(&self, start: usize, bytes: usize) -> Result<(), Lost> {
        self.wait_until(|copies| !copies.touches(start, bytes))
    }

    fn wait_until(&self, holds: impl Fn(&ExpectedCopies) -> bool) -> Result<(), Lost> {
        let mut inbox = lock(&self.inbox);
        while !holds(&inbox.expected_copies) {
            if inbox.is_lost && !inbox.is_read {
                return Err(Lost);
            }
            inbox = self.read_or_wait(inbox);
        }
        Ok(())
    }

    /// Runs on a thread of its own: reads while answers are expected and nobody else does.
    fn read_expected_copies(&self) {
        let mut inbox = lock(&self.inbox);
        while !inbox.is_lost {
            if inbox.expected_copies.is_empty() {
                inbox = self
                    .answered
                    .wait(inbox)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            inbox = self.read_or_wait(inbox);
        }
    }
}
