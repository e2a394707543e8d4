//! Callbacks.

use crate::error::IntoPyErr;
use crate::sample;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rgaps::RecvError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// All that may be running, to be stopped before the interpreter ends.
static ALL: Mutex<Vec<Weak<Running>>> = Mutex::new(Vec::new());

/// A thread that calls back. Dropping the last reference stops it.
pub(crate) struct Running(Mutex<Option<rgaps::Listener>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    pub(crate) fn is_running(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Stops it; the callback is not running any more afterwards, unless it is the caller.
    pub(crate) fn stop(&self, py: Python<'_>) {
        let listener = lock(&self.0).take();
        // Waits for the thread, which may wait for the interpreter.
        py.detach(|| drop(listener));
    }
}

pub(crate) fn start(
    py: Python<'_>,
    subscriber: rgaps::Subscriber,
    topic: Arc<str>,
    callback: Py<PyAny>,
    on_error: Option<Py<PyAny>>,
) -> PyResult<Arc<Running>> {
    let handler = move |outcome: Result<rgaps::Sample, RecvError>| {
        // None while the interpreter shuts down.
        let _ = Python::try_attach(|py| {
            let outcome = outcome
                .map_err(IntoPyErr::into_py_err)
                .and_then(|sample| sample::wrap(py, sample, &topic));
            let called = match (outcome, &on_error) {
                (Ok(sample), _) => callback.call1(py, (sample,)),
                (Err(error), Some(on_error)) => on_error.call1(py, (error.into_value(py),)),
                (Err(error), None) => Err(error),
            };
            if let Err(error) = called {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    };
    let listener = py
        .detach(|| subscriber.listen(handler))
        .map_err(IntoPyErr::into_py_err)?;
    let running = Arc::new(Running(Mutex::new(Some(listener))));
    let mut all = lock(&ALL);
    all.retain(|listener| listener.strong_count() > 0);
    all.push(Arc::downgrade(&running));
    Ok(running)
}

/// Stops all listeners: a thread must not call into an interpreter that is shutting down.
#[pyfunction]
pub(crate) fn _stop_listeners(py: Python<'_>) {
    let all = std::mem::take(&mut *lock(&ALL));
    for listener in all.iter().filter_map(Weak::upgrade) {
        listener.stop(py);
    }
}

/// Calls a callback with each message, in a thread of its own. `Subscriber.listen` makes one.
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Listener(Mutex<Option<Arc<Running>>>);

impl Listener {
    pub(crate) fn new(running: Arc<Running>) -> Listener {
        Listener(Mutex::new(Some(running)))
    }
}

#[pymethods]
impl Listener {
    /// Whether the listener still passes messages to the callback.
    #[getter]
    fn running(&self) -> bool {
        lock(&self.0)
            .as_ref()
            .is_some_and(|running| running.is_running())
    }

    /// Stops the listener, and waits until the callback has returned (unless the callback itself calls this).
    fn close(&self, py: Python<'_>) {
        let running = lock(&self.0).take();
        if let Some(running) = running {
            running.stop(py);
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut running = lock(&self.0).take();
        // If it is the last reference, dropping it waits for the thread.
        let _ = Python::try_attach(|py| crate::handle::drop_detached(py, running.take()));
    }
}
