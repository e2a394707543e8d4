//! Streams: a thread each that runs what is queued, in order, after a delay.

use crate::abi::Code;
use crate::call::{give_up, global};
use crate::context::Context;
use crate::faults::Random;
use crate::graph::Graph;
use crate::queue::HardwareQueue;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How a stream stands to the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// A place in a stream's order.
#[derive(Clone)]
pub(crate) struct Point {
    stream: Arc<Stream>,
    sequence: u64,
}

struct Operation {
    after: Vec<Point>,
    work: Box<dyn FnOnce() + Send>,
    /// Which it leaves when it is done.
    queue: Arc<HardwareQueue>,
}

/// How long a thread that waits for something sleeps before it looks whether its context is lost.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    submitted: u64,
    completed: u64,
    running: bool,
    closing: bool,
    /// Nothing starts until a test says so.
    held: bool,
}

/// A stream of a context.
pub(crate) struct Stream {
    pub(crate) kind: Kind,
    context: Weak<Context>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// 0 not capturing, 1 capturing, 2 capturing in vain.
    pub(crate) capture: AtomicI32,
    /// Where its work goes while it captures.
    recording: Mutex<Option<Arc<Graph>>>,
    /// Which no other stream of the process has, from 1 on.
    pub(crate) number: u64,
    /// Operations of its own order, where streams do not share queues.
    pub(crate) own_queue: Arc<HardwareQueue>,
}

impl Stream {
    pub(crate) fn new(kind: Kind, context: Weak<Context>) -> Arc<Stream> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Arc::new(Stream {
            kind,
            context,
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: AtomicI32::new(0),
            recording: Mutex::default(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            own_queue: Arc::default(),
        })
    }

    /// Its context, while that exists.
    pub(crate) fn context(&self) -> Option<Arc<Context>> {
        self.context.upgrade()
    }

    /// Begins or ends recording.
    pub(crate) fn record(&self, graph: Option<Arc<Graph>>) {
        *self
            .recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = graph;
    }

    /// Where its work goes, if it captures.
    pub(crate) fn recording(&self) -> Option<Arc<Graph>> {
        let recording = self.recording.lock();
        recording.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_lost(&self) -> bool {
        self.context()
            .is_none_or(|context| context.lost().is_some())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is queued so far.
    pub(crate) fn point(self: &Arc<Self>) -> Point {
        Point {
            stream: self.clone(),
            sequence: self.queue().submitted,
        }
    }

    /// Queues work that starts after `after` and all that was queued before. The points in `after`
    /// were taken before this call, so no cycle can arise.
    pub(crate) fn submit(
        self: &Arc<Self>,
        after: Vec<Point>,
        work: Box<dyn FnOnce() + Send>,
        hardware: Arc<HardwareQueue>,
    ) -> Result<Point, Code> {
        let mut queue = self.queue();
        if !queue.running {
            let stream = self.clone();
            std::thread::Builder::new()
                .name("test-gpu-stream".to_owned())
                .stack_size(256 << 10)
                .spawn(move || stream.run())
                .map_err(|_| Code::OPERATING_SYSTEM)?;
            queue.running = true;
        }
        queue.submitted += 1;
        let sequence = queue.submitted;
        queue.waiting.push_back(Operation {
            after,
            work,
            queue: hardware,
        });
        self.changed.notify_all();
        Ok(Point {
            stream: self.clone(),
            sequence,
        })
    }

    /// Keeps what is queued and has not begun from beginning, or lets it begin.
    pub(crate) fn hold(&self, held: bool) {
        self.queue().held = held;
        self.changed.notify_all();
    }

    /// Waits while a test holds the stream, for no longer than it may.
    fn wait_for_release(&self) {
        let since = Instant::now();
        let mut queue = self.queue();
        while queue.held && !self.is_lost() {
            let patience = Duration::from_millis(global().config().patience_ms);
            if since.elapsed() > patience {
                give_up(&format!(
                    "a stream was held for {patience:?} with work queued"
                ));
            }
            queue = self
                .changed
                .wait_timeout(queue, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Runs on the stream's thread: returns when `is_so`, or when the context is lost, or ends the
    /// process if neither comes.
    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let since = Instant::now();
        let mut pause = Duration::from_micros(20);
        while !self.is_lost() && !is_so() {
            let patience = Duration::from_millis(global().config().patience_ms);
            if since.elapsed() > patience {
                give_up(&format!("a stream waits for {patience:?} already {what}"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Lets the thread end when all is done.
    pub(crate) fn close(&self) {
        self.queue().closing = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut random = None;
        loop {
            let mut queue = self.queue();
            let operation = loop {
                match queue.waiting.pop_front() {
                    Some(operation) => break operation,
                    None if queue.closing => return,
                    None => {
                        queue = self
                            .changed
                            .wait(queue)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(queue);
            operation.after.iter().for_each(Point::wait);
            std::thread::sleep(self.delay(&mut random));
            self.wait_for_release();
            // In a context that is lost nothing runs any more.
            if !self.is_lost() {
                (operation.work)();
            }
            operation.queue.leave();
            self.queue().completed += 1;
            self.changed.notify_all();
        }
    }

    fn delay(&self, random: &mut Option<(u64, Random)>) -> Duration {
        let (most, seed) = {
            let config = global().config();
            (config.delay_us, config.seed)
        };
        let Some(seed) = seed.filter(|_| most > 0) else {
            return Duration::from_micros(most);
        };
        if random.as_ref().is_none_or(|(of, _)| *of != seed) {
            *random = Some((seed, delays(seed, self.number)));
        }
        let drawn = random.as_mut().map_or(0, |(_, random)| random.next());
        Duration::from_micros(drawn % (most + 1))
    }
}

/// What a stream draws its delays from.
fn delays(seed: u64, stream: u64) -> Random {
    Random::new(seed.wrapping_add(stream << 32))
}

impl Point {
    /// Whether all up to here is done.
    pub(crate) fn is_done(&self) -> bool {
        self.stream.queue().completed >= self.sequence
    }

    /// Waits until it is.
    pub(crate) fn wait(&self) {
        let mut queue = self.stream.queue();
        while queue.completed < self.sequence {
            queue = self
                .stream
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The user's streams and events, by handle, which is an address as the driver's are.
#[derive(Default)]
pub(crate) struct Streams {
    streams: Mutex<HashMap<usize, Arc<Stream>>>,
    events: Mutex<HashMap<usize, Arc<Event>>>,
}

/// An event; holds the point that was recorded last.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) recorded: Mutex<Option<Point>>,
    /// When its stream came there.
    pub(crate) reached: Mutex<Option<Instant>>,
    /// The graph in which it was recorded last, while that is captured.
    captured: Mutex<Weak<Graph>>,
}

impl Event {
    /// Notes that it was recorded in a graph, or on a stream that does not capture.
    pub(crate) fn capture(&self, graph: Option<&Arc<Graph>>) {
        let graph = graph.map_or_else(Weak::new, Arc::downgrade);
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = graph;
    }

    /// The graph in which it was recorded.
    pub(crate) fn captured(&self) -> Option<Arc<Graph>> {
        let captured = self.captured.lock();
        let graph = captured.unwrap_or_else(PoisonError::into_inner).upgrade();
        graph.filter(|graph| !graph.is_ended())
    }
}

impl Streams {
    pub(crate) fn add(&self, stream: Arc<Stream>) -> usize {
        add(&self.streams, stream)
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<Stream>, Code> {
        get(&self.streams, handle)
    }

    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<Stream>, Code> {
        remove(&self.streams, handle)
    }

    /// Forgets the streams of a context that is gone.
    pub(crate) fn remove_of(&self, context: &Arc<Context>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|_, stream| {
            let gone = stream.context.as_ptr() == Arc::as_ptr(context);
            if gone {
                stream.close();
            }
            !gone
        });
    }

    /// The user's streams of a context.
    pub(crate) fn of(&self, context: &Arc<Context>) -> Vec<Arc<Stream>> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = |s: &&Arc<Stream>| s.context.as_ptr() == Arc::as_ptr(context);
        streams.values().filter(ours).cloned().collect()
    }

    pub(crate) fn add_event(&self) -> usize {
        add(&self.events, Arc::default())
    }

    pub(crate) fn event(&self, handle: usize) -> Result<Arc<Event>, Code> {
        get(&self.events, handle)
    }

    pub(crate) fn remove_event(&self, handle: usize) -> Result<(), Code> {
        remove(&self.events, handle).map(drop)
    }

    pub(crate) fn live(&self, what: &str) -> Option<u64> {
        match what {
            "streams" => Some(lock(&self.streams).len() as u64),
            "events" => Some(lock(&self.events).len() as u64),
            _ => None,
        }
    }
}

type Table<T> = Mutex<HashMap<usize, Arc<T>>>;

fn lock<T>(table: &Table<T>) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add<T>(table: &Table<T>, value: Arc<T>) -> usize {
    let handle = Arc::as_ptr(&value) as usize;
    lock(table).insert(handle, value);
    handle
}

fn get<T>(table: &Table<T>, handle: usize) -> Result<Arc<T>, Code> {
    lock(table)
        .get(&handle)
        .cloned()
        .ok_or(Code::INVALID_HANDLE)
}

fn remove<T>(table: &Table<T>, handle: usize) -> Result<Arc<T>, Code> {
    lock(table).remove(&handle).ok_or(Code::INVALID_HANDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_come_from_the_seed_and_the_stream() {
        let drawn = |seed, stream| {
            let mut random = delays(seed, stream);
            [(); 8].map(|()| random.next())
        };
        assert_eq!(drawn(1, 1), drawn(1, 1));
        assert_ne!(drawn(1, 1), drawn(2, 1));
        assert_ne!(drawn(1, 1), drawn(1, 2));
    }
}
