//! Contexts, and which one is current on a thread.

use crate::abi::{Code, STREAM_LEGACY, STREAM_PER_THREAD};
use crate::call::Global;
use crate::queue::Queues;
use crate::stream::{Kind, Point, Stream};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

/// A primary context, or one of the user's own.
pub(crate) struct Context {
    /// Position of its GPU.
    pub(crate) position: usize,
    /// The error that every call gives from now on, or 0.
    lost: AtomicI32,
    legacy: Arc<Stream>,
    per_thread: Mutex<HashMap<ThreadId, Arc<Stream>>>,
    queues: Queues,
    /// Streams that were destroyed with work in them.
    leaving: Mutex<Vec<Arc<Stream>>>,
    /// Limits that were set, by number.
    pub(crate) limits: Mutex<HashMap<usize, usize>>,
    /// Positions of GPUs whose memory was made accessible.
    pub(crate) peers: Mutex<HashSet<usize>>,
}

impl Context {
    fn new(position: usize) -> Arc<Context> {
        Arc::new_cyclic(|context: &Weak<Context>| Context {
            position,
            lost: AtomicI32::new(0),
            legacy: Stream::new(Kind::Legacy, context.clone()),
            per_thread: Mutex::default(),
            queues: Queues::default(),
            leaving: Mutex::default(),
            limits: Mutex::default(),
            peers: Mutex::default(),
        })
    }

    /// The error that ended it.
    pub(crate) fn lost(&self) -> Option<Code> {
        Some(self.lost.load(Ordering::Acquire))
            .filter(|code| *code != 0)
            .map(Code)
    }

    /// Ends it: from now on every call gives `code`.
    pub(crate) fn lose(&self, code: Code) {
        let _ = self
            .lost
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    fn check(&self) -> Result<(), Code> {
        self.lost().map_or(Ok(()), Err)
    }

    /// The stream that a handle means to this thread.
    pub(crate) fn stream(
        self: &Arc<Self>,
        global: &Global,
        handle: usize,
    ) -> Result<Arc<Stream>, Code> {
        match handle {
            0 | STREAM_LEGACY => Ok(self.legacy.clone()),
            STREAM_PER_THREAD => {
                let new = || Stream::new(Kind::Blocking, Arc::downgrade(self));
                let mut streams = self.per_thread();
                Ok(streams
                    .entry(std::thread::current().id())
                    .or_insert_with(new)
                    .clone())
            }
            other => global.streams.get(other),
        }
    }

    /// Closes its streams; whatever still refers to it gets errors.
    fn end(self: &Arc<Self>, global: &Global) {
        self.lose(Code::CONTEXT_IS_DESTROYED);
        global.streams.remove_of(self);
        global.modules.remove_of(self);
        global.libraries.remove_of(global, self);
        global
            .memory_mut()
            .unregister_of(Arc::as_ptr(self) as usize);
        self.legacy.close();
        self.per_thread()
            .drain()
            .for_each(|(_, stream)| stream.close());
    }

    fn per_thread(&self) -> MutexGuard<'_, HashMap<ThreadId, Arc<Stream>>> {
        self.per_thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// All its streams.
    pub(crate) fn all_streams(self: &Arc<Self>, global: &Global) -> Vec<Arc<Stream>> {
        let mut all = global.streams.of(self);
        all.push(self.legacy.clone());
        all.extend(self.per_thread().values().cloned());
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.retain(|stream| !stream.point().is_done());
        all.extend(leaving.iter().cloned());
        all
    }

    /// Keeps a stream that is destroyed until its work is done: whoever waits for the context waits for it.
    pub(crate) fn keep(&self, stream: Arc<Stream>) {
        self.leaving
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stream);
    }

    /// Queues work on a stream, behind what the rules of the legacy stream put before it.
    pub(crate) fn submit(
        self: &Arc<Self>,
        global: &Global,
        stream: &Arc<Stream>,
        mut after: Vec<Point>,
        work: impl Fn() + Send + Sync + 'static,
    ) -> Result<Point, Code> {
        self.check()?;
        match stream.kind {
            Kind::NonBlocking => {}
            Kind::Blocking => after.push(self.legacy.point()),
            Kind::Legacy => {
                let others = self.all_streams(global);
                let others = others.iter().filter(|other| other.kind == Kind::Blocking);
                for other in others {
                    if other.capture.load(Ordering::Acquire) != 0 {
                        return Err(Code::STREAM_CAPTURE_IMPLICIT);
                    }
                    after.push(other.point());
                }
            }
        }
        if let Some(graph) = stream.recording() {
            graph.add(Arc::new(work));
            return Ok(stream.point());
        }
        let queue = self.queues.of(stream, global.config().queues);
        queue.submit(global, stream, after, work, || self.lost())
    }

    /// Waits for everything.
    pub(crate) fn synchronize(self: &Arc<Self>, global: &Global) -> Result<(), Code> {
        self.all_streams(global)
            .iter()
            .for_each(|stream| stream.point().wait());
        self.check()
    }
}

struct Primary {
    context: Arc<Context>,
    retained: u64,
}

/// The contexts that exist: primary ones by position, those of `cuCtxCreate` by handle.
#[derive(Default)]
pub(crate) struct Contexts {
    primaries: Mutex<HashMap<usize, Primary>>,
    created: Mutex<HashMap<usize, Arc<Context>>>,
}

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

impl Contexts {
    fn primaries(&self) -> MutexGuard<'_, HashMap<usize, Primary>> {
        self.primaries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn retain(&self, position: usize) -> usize {
        let mut primaries = self.primaries();
        let new = || Primary {
            context: Context::new(position),
            retained: 0,
        };
        let primary = primaries.entry(position).or_insert_with(new);
        primary.retained += 1;
        Arc::as_ptr(&primary.context) as usize
    }

    pub(crate) fn release(&self, global: &Global, position: usize) -> Result<(), Code> {
        let mut primaries = self.primaries();
        let primary = primaries.get_mut(&position).ok_or(Code::INVALID_CONTEXT)?;
        primary.retained -= 1;
        if primary.retained > 0 {
            return Ok(());
        }
        let context = primaries.remove(&position).map(|primary| primary.context);
        drop(primaries);
        if let Some(context) = context {
            context.end(global);
        }
        Ok(())
    }

    /// Ends a primary context; those who retain it have a new one.
    pub(crate) fn reset(&self, global: &Global, position: usize) {
        let ended = {
            let mut primaries = self.primaries();
            let Some(primary) = primaries.get_mut(&position) else {
                return;
            };
            std::mem::replace(&mut primary.context, Context::new(position))
        };
        ended.end(global);
        // What was allocated in it goes with it.
        global.memory_mut().free_of(position);
    }

    fn created(&self) -> MutexGuard<'_, HashMap<usize, Arc<Context>>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn create(&self, position: usize) -> Arc<Context> {
        let context = Context::new(position);
        self.created()
            .insert(Arc::as_ptr(&context) as usize, context.clone());
        context
    }

    pub(crate) fn destroy(&self, global: &Global, handle: usize) -> Result<(), Code> {
        let context = self
            .created()
            .remove(&handle)
            .ok_or(Code::INVALID_CONTEXT)?;
        context.end(global);
        Ok(())
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<Context>, Code> {
        if let Some(created) = self.created().get(&handle) {
            return Ok(created.clone());
        }
        let primaries = self.primaries();
        let found = primaries
            .values()
            .find(|p| Arc::as_ptr(&p.context) as usize == handle);
        found
            .map(|primary| primary.context.clone())
            .ok_or(Code::INVALID_CONTEXT)
    }

    /// The context that exists for the GPU at `position`.
    pub(crate) fn primary(&self, position: usize) -> Option<Arc<Context>> {
        self.primaries()
            .get(&position)
            .map(|primary| primary.context.clone())
    }

    /// Contexts that exist.
    pub(crate) fn live(&self) -> u64 {
        (self.primaries().len() + self.created().len()) as u64
    }
}

/// Changes this thread's stack of current contexts.
pub(crate) fn with_stack<T>(change: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> T {
    STACK.with_borrow_mut(change)
}

/// The current context, if it is alive.
pub(crate) fn current() -> Result<Arc<Context>, Code> {
    let context = with_stack(|stack| stack.last().cloned()).ok_or(Code::INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

/// Ends the current context of this thread, where it has one.
pub(crate) fn lose_current(code: Code) {
    if let Some(context) = with_stack(|stack| stack.last().cloned()) {
        context.lose(code);
    }
}
