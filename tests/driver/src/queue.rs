//! Hardware queues: what is queued in one starts in the order of the queue, whatever streams it is
//! on, and there is room for so much.

use crate::abi::Code;
use crate::call::Global;
use crate::stream::{Point, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a caller who waits for room sleeps before it looks whether the context is lost.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default)]
struct State {
    pending: u64,
    last: Option<Point>,
}

/// The queue of one stream, or one that the streams of a context share.
#[derive(Default)]
pub(crate) struct HardwareQueue {
    state: Mutex<State>,
    left: Condvar,
    /// Whether it sees to the order of its work; that of one stream has its order already.
    orders: bool,
}

impl HardwareQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work on a stream; waits for room first.
    pub(crate) fn submit(
        self: &Arc<Self>,
        global: &Global,
        stream: &Arc<Stream>,
        mut after: Vec<Point>,
        work: impl FnOnce() + Send + 'static,
        lost: impl Fn() -> Option<Code>,
    ) -> Result<Point, Code> {
        let mut state = self.state();
        loop {
            if let Some(code) = lost() {
                return Err(code);
            }
            if state.pending < global.config().depth {
                break;
            }
            state = self
                .left
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        after.extend(state.last.clone());
        let point = stream.submit(after, Box::new(work), self.clone())?;
        state.pending += 1;
        state.last = self.orders.then(|| point.clone());
        Ok(point)
    }

    /// Room for one more.
    pub(crate) fn leave(&self) {
        self.state().pending -= 1;
        self.left.notify_all();
    }
}

/// The queues that streams of a context share.
#[derive(Default)]
pub(crate) struct Queues {
    shared: Mutex<HashMap<u64, Arc<HardwareQueue>>>,
}

impl Queues {
    /// The queue of a stream, where there are `count` queues; 0: one for each stream.
    pub(crate) fn of(&self, stream: &Stream, count: u64) -> Arc<HardwareQueue> {
        if count == 0 {
            return stream.own_queue.clone();
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || HardwareQueue {
            orders: true,
            ..HardwareQueue::default()
        };
        let number = stream.number % count;
        shared
            .entry(number)
            .or_insert_with(|| Arc::new(new()))
            .clone()
    }
}
