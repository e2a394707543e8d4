//! A simulated GPU with one stream per member. Queued work runs when a test calls `run`. When the stream's owner has
//! died, its queued work never runs.

use rgaps_sync::atomic::Ordering;
use rgaps_topic::{progress, timeline, Point, Progress, Shared};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of streams: one for each slot, those of publishers first.
pub const STREAMS: usize = 2 * rgaps_layout::MAX_PUBLISHERS;

/// Work that runs once `after` is reached or aborted. `act` learns which: true if it was reached.
struct Work {
    after: Point,
    point: u64,
    act: Box<dyn FnOnce(bool) + Send>,
}

#[derive(Default)]
struct Stream {
    /// How many points the stream's owner has queued.
    count: u64,
    queue: VecDeque<Work>,
}

pub struct Gpu {
    shared: Shared,
    streams: Vec<Mutex<Stream>>,
}

impl Gpu {
    pub fn new(shared: Shared) -> Gpu {
        Gpu {
            shared,
            streams: (0..STREAMS).map(|_| Mutex::default()).collect(),
        }
    }

    fn lock(&self, stream: usize) -> MutexGuard<'_, Stream> {
        let stream = self.streams[stream].lock();
        stream.unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self, stream: usize) -> rgaps_topic::TimelineView<Shared> {
        timeline(&self.shared, stream as u32 + 1).unwrap()
    }

    /// Queues work on a stream. Returns the point behind it.
    pub fn enqueue(
        &self,
        stream: usize,
        after: Point,
        act: impl FnOnce(bool) + Send + 'static,
    ) -> Point {
        let mut queue = self.lock(stream);
        queue.count += 1;
        let tenure = self.words(stream).value().load(Ordering::Acquire) >> 32;
        let point = tenure << 32 | queue.count;
        queue.queue.push_back(Work {
            after,
            point,
            act: Box::new(act),
        });
        Point {
            timeline: stream as u32 + 1,
            value: point,
        }
    }

    /// Runs the oldest work of a stream, if there is any that can run.
    pub fn run(&self, stream: usize) {
        let mut queue = self.lock(stream);
        let Some(Work { after, .. }) = queue.queue.front() else {
            return;
        };
        let there = match progress(&self.shared, *after) {
            Progress::Pending => return,
            Progress::Reached => true,
            Progress::Aborted => false,
        };
        if let Some(Work { point, act, .. }) = queue.queue.pop_front() {
            act(there);
            self.words(stream).value().store(point, Ordering::Release);
        }
    }

    /// Runs the oldest work of each stream.
    pub fn run_each(&self) {
        for stream in 0..STREAMS {
            self.run(stream);
        }
    }

    /// Ends a stream whose owner has died, as the daemon does: drops its work, and gives the timeline its next tenure.
    pub fn tear_down(&self, stream: usize) {
        let mut queue = self.lock(stream);
        *queue = Stream::default();
        let words = self.words(stream);
        let value = words.value().load(Ordering::Acquire);
        words.reached().store(value, Ordering::Release);
        let tenure = (value >> 32) + 1;
        words.value().store(tenure << 32, Ordering::Release);
    }
}
