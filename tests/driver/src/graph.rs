//! Graphs: work that capturing streams recorded, in an order that respects theirs.

use crate::abi::Code;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a stream runs once for each launch of a graph.
pub(crate) type Work = Arc<dyn Fn() + Send + Sync>;

/// Far from zero and from small numbers, which a mistaken caller would pass.
const FIRST_EXECUTABLE: usize = 0x6ea0_0000;

/// Recorded work. Streams that fork and join share one graph, and the order in which work was recorded is one of those that their
/// events allow.
#[derive(Default)]
pub(crate) struct Graph {
    work: Mutex<Vec<Work>>,
    is_ended: AtomicBool,
}

impl Graph {
    /// No stream records any more.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, work: Work) {
        self.lock().push(work);
    }

    /// Handles of its nodes, in the order in which they were recorded.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        let first = std::ptr::from_ref(self) as usize;
        (1..=self.lock().len()).map(|at| first + at).collect()
    }

    /// Its work as it is now.
    pub(crate) fn work(&self) -> Vec<Work> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The user's graphs, and those that can be launched, by handle.
#[derive(Default)]
pub(crate) struct Graphs {
    graphs: Mutex<HashMap<usize, Arc<Graph>>>,
    executables: Mutex<HashMap<usize, Arc<Vec<Work>>>>,
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graphs {
    pub(crate) fn add(&self, graph: Arc<Graph>) -> usize {
        let handle = Arc::as_ptr(&graph) as usize;
        lock(&self.graphs).insert(handle, graph);
        handle
    }

    pub(crate) fn get(&self, graph: usize) -> Result<Arc<Graph>, Code> {
        let found = lock(&self.graphs).get(&graph).cloned();
        found.ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn remove(&self, graph: usize) -> Result<(), Code> {
        let gone = lock(&self.graphs).remove(&graph);
        gone.map(drop).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn instantiate(&self, graph: usize) -> Result<usize, Code> {
        let executable = Arc::new(self.get(graph)?.work());
        let mut executables = lock(&self.executables);
        // Not an address: an update puts another graph behind the same handle.
        let handle = executables
            .keys()
            .max()
            .map_or(FIRST_EXECUTABLE, |last| last + 16);
        executables.insert(handle, executable);
        Ok(handle)
    }

    pub(crate) fn executable(&self, handle: usize) -> Result<Arc<Vec<Work>>, Code> {
        let found = lock(&self.executables).get(&handle).cloned();
        found.ok_or(Code::INVALID_VALUE)
    }

    /// Gives an executable graph the work of another with as many nodes; whether it has as many.
    pub(crate) fn update(&self, handle: usize, graph: usize) -> Result<bool, Code> {
        let work = self.get(graph)?.work();
        let mut executables = lock(&self.executables);
        let known = executables.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        if known.len() != work.len() {
            return Ok(false);
        }
        *known = Arc::new(work);
        Ok(true)
    }

    pub(crate) fn remove_executable(&self, handle: usize) -> Result<(), Code> {
        let gone = lock(&self.executables).remove(&handle);
        gone.map(drop).ok_or(Code::INVALID_VALUE)
    }
}
