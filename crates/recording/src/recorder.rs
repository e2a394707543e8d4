//! The recorder: a thread that receives, a thread that writes, and a queue between them.

use crate::clock::WallClock;
use crate::counts::{Counters, Counts};
use crate::error::RecordError;
use crate::options::Options;
use crate::queue::Queue;
use crate::receive::Receiver;
use crate::write::{Failure, Files};
use rgaps::Node;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Records topics to files, in two threads of its own, until it is stopped or a write fails.
///
/// No publisher waits for the disk (unless the recorder is [`reliable`](Options::reliable)): one thread receives each
/// message and copies it into a bounded queue, the other writes. A message that has no room in the queue is dropped and
/// counted with its reason.
pub struct Recorder {
    queue: Arc<Queue>,
    counters: Arc<Counters>,
    failure: Arc<OnceLock<Failure>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Recorder {
    /// Joins the existing topics, creates the file, and starts both threads.
    pub fn start(node: Node, options: Options) -> Result<Recorder, RecordError> {
        if options.patterns.is_empty() {
            return Err(RecordError::NoPattern);
        }
        let clock = WallClock::now();
        let queue = Arc::new(Queue::new(
            options.queue_bytes,
            options.keep,
            options.is_series(),
        ));
        let counters = Arc::<Counters>::default();
        let failure = Arc::<OnceLock<Failure>>::default();
        let stop = Arc::<AtomicBool>::default();
        // Joins topics first: if that fails, no file stays behind.
        let receiver = Receiver::begin(
            node,
            options.clone(),
            clock,
            queue.clone(),
            counters.clone(),
            stop.clone(),
        )?;
        let files = Files::begin(options, clock.begun_ns, counters.clone(), failure.clone())?;
        let mut recorder = Recorder {
            queue: queue.clone(),
            counters,
            failure,
            stop,
            threads: Vec::new(),
        };
        recorder.spawn("rgaps-write", move || files.run(&queue))?;
        recorder.spawn("rgaps-record", move || receiver.run())?;
        Ok(recorder)
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), RecordError> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(run).map_err(RecordError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }

    /// What the recorder has done so far.
    pub fn counts(&self) -> Counts {
        self.counters.read(self.queue.waiting())
    }

    /// Whether the recorder has ended by itself because it has [`count`](Options::count) messages.
    pub fn is_complete(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// The write that failed, if one did. The recorder then writes no more; stop it.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Makes a recorder that [keeps](Options::keep) the last seconds write them to a file. The call does not wait.
    pub fn trigger(&self) {
        self.queue.trigger();
    }

    /// Records what was published before this call, and ends the file with its index. Returns what the recorder has done, and
    /// the write that failed, if one did.
    pub fn stop(mut self) -> (Counts, Option<Failure>) {
        self.end();
        (self.counts(), self.failure.get().cloned())
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.threads.len() < 2 {
            // No thread receives, so none ends the queue.
            self.queue.end();
        }
        for thread in self.threads.drain(..) {
            // A panic of the thread has printed its message.
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
