//! Connections of a session beside its first one ("stripes"), over which the bytes of large copies travel in pieces, in turn and at the
//! same time: one connection keeps one processor busy at each end, and that is less than a network or a GPU takes.
//!
//! The frame goes over the first connection and says that its bytes travel so. The thread that writes a frame writes all its bytes before
//! the next frame's, so each stripe keeps their order.

use crate::communicator::{read_exact, write_all, Communicator};
use crate::limits::STRIPED_BYTES_MIN;
use crate::pieces::stripe;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The client's stripes; perhaps none.
#[derive(Default)]
pub(crate) struct Stripes(Vec<Arc<dyn Communicator>>);

/// Calls `act` for each of several stripes, at the same time; gives the first error.
pub(crate) fn each<E: Send>(
    count: usize,
    act: impl Fn(usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let act = &act;
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..count)
            .map(|index| scope.spawn(move || act(index)))
            .collect();
        let own = act(0);
        helpers.into_iter().fold(own, |result, helper| {
            let joined = helper
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.and(joined)
        })
    })
}

/// Memory whose parts several threads fill.
struct Destination(*mut u8);
// SAFETY: threads only take the address out of it. `read` gives each of them parts that no other one has (`stripe`), and joins them all
// before its caller, who promises the memory until then, goes on.
unsafe impl Sync for Destination {}

impl Stripes {
    pub(crate) fn new(all: Vec<Arc<dyn Communicator>>) -> Stripes {
        Stripes(all)
    }

    pub(crate) fn all(&self) -> &[Arc<dyn Communicator>] {
        &self.0
    }

    /// Over how many so many bytes travel; 0: over the first connection.
    pub(crate) fn wanted(&self, bytes: u64) -> usize {
        match bytes >= STRIPED_BYTES_MIN {
            true => self.0.len(),
            false => 0,
        }
    }

    /// Writes bytes over all stripes, and counts the calls that it took.
    pub(crate) fn write(&self, bytes: &[u8], calls: &AtomicU64) -> io::Result<()> {
        each(self.0.len(), |index| {
            stripe(bytes.len(), index, self.0.len()).try_for_each(|(offset, length)| {
                let piece = &bytes[offset..offset + length];
                let count = write_all(&*self.0[index], [piece, &[]])?;
                calls.fetch_add(count, Ordering::Relaxed);
                Ok(())
            })
        })
    }

    /// Reads bytes that travel over the first `count` stripes (the server may not have the last ones yet), and counts the calls that it
    /// took.
    ///
    /// # Safety
    /// `bytes` bytes at `to` may be written, by any thread, until this returns.
    pub(crate) unsafe fn read(
        &self,
        count: usize,
        (to, bytes): (*mut u8, usize),
        calls: &AtomicU64,
    ) -> io::Result<()> {
        let used = self.0.get(..count).ok_or(io::ErrorKind::InvalidData)?;
        let destination = &Destination(to);
        each(count, |index| {
            let start = destination.0;
            stripe(bytes, index, count).try_for_each(|(offset, length)| {
                // SAFETY: `stripe` cuts the `bytes` bytes into parts, and gives each to one index: so this part is inside, and no other
                // thread has it. Our caller promises that all of them may be written until `read` returns, which joins the threads first.
                let piece = unsafe { std::slice::from_raw_parts_mut(start.add(offset), length) };
                let count = read_exact(&*used[index], piece)?;
                calls.fetch_add(count, Ordering::Relaxed);
                Ok(())
            })
        })
    }

    /// Closes all stripes, also for threads that wait.
    pub(crate) fn close(&self) {
        self.0.iter().for_each(|stripe| stripe.close());
    }
}
