//! Streams of work of a host's members. What is queued runs when somebody asks for it; when its
//! owner is gone, it never does.

use rgaps_sync::atomic::Ordering;
use rgaps_topic::{progress, timeline, Point, Progress, Shared};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Timelines of the members, one for each slot: those of publishers come first.
pub const STREAMS: usize = 2 * rgaps_layout::MAX_PUBLISHERS;

/// Work that runs when another stream has reached `after`, and is told whether it has: otherwise
/// what it was to wait for never will be.
struct Work {
    after: Point,
    point: u64,
    act: Box<dyn FnOnce(bool) + Send>,
}

#[derive(Default)]
struct Stream {
    /// Points of this tenure so far.
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

    /// A stream's owner is gone, and its work: what the daemon does then.
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
