//! Listeners: threads that call Python callbacks.

use crate::argument;
use crate::error::IntoPyErr;
use crate::sample;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rgaps::{ClientError, Matched, RecvError};
use rgaps_sync::lock;
use std::sync::{Arc, Mutex, Weak};

/// All listeners that may run. `_stop_listeners` stops them before the interpreter ends.
static ALL: Mutex<Vec<Weak<Running>>> = Mutex::new(Vec::new());

/// A listener's thread. Dropping the last reference stops it. None inside: stopped.
pub(crate) struct Running(Mutex<Option<rgaps::Listener>>);

impl Running {
    fn is_running(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Stops the thread. When this returns, the callback has returned, unless the callback itself calls this.
    fn stop(&self, py: Python<'_>) {
        let listener = lock(&self.0).take();
        // Detached: dropping waits for the thread, which may wait for the interpreter.
        py.detach(|| drop(listener));
    }
}

/// The listeners of a publisher or subscriber, which keeps them running.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Arc<Running>>>);

impl Listeners {
    fn add(&self, listener: rgaps::Listener) -> Listener {
        let running = Arc::new(Running(Mutex::new(Some(listener))));
        let mut all = lock(&ALL);
        all.retain(|listener| listener.strong_count() > 0);
        all.push(Arc::downgrade(&running));
        drop(all);
        let mut own = lock(&self.0);
        own.retain(|listener| listener.is_running());
        own.push(running.clone());
        Listener(Mutex::new(Some(running)))
    }

    pub(crate) fn stop(&self, py: Python<'_>) {
        for listener in self.take() {
            listener.stop(py);
        }
    }

    /// Takes the listeners. Drop them detached from the interpreter, since that may wait for their threads.
    pub(crate) fn take(&self) -> Vec<Arc<Running>> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// Starts a listener that calls `callback` with each message, and `on_error` with each error.
    pub(crate) fn listen(
        &self,
        py: Python<'_>,
        subscriber: rgaps::Subscriber,
        topic: Arc<str>,
        callback: Py<PyAny>,
        on_error: Option<Py<PyAny>>,
    ) -> PyResult<Listener> {
        let handler = move |outcome: Result<rgaps::Sample, RecvError>| {
            // Attaching fails while the interpreter shuts down.
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
        let listener = py.detach(|| subscriber.listen(handler));
        Ok(self.add(listener.map_err(IntoPyErr::into_py_err)?))
    }

    /// Starts a listener that calls `callback` with match events. `on_matched` is the publisher's or subscriber's method.
    pub(crate) fn on_matched(
        &self,
        callback: &Bound<'_, PyAny>,
        on_matched: impl FnOnce(Handler) -> Result<rgaps::Listener, ClientError>,
    ) -> PyResult<Listener> {
        argument::callable("callback", callback)?;
        let callback = callback.clone().unbind();
        let handler = move |matched: Matched| {
            // Attaching fails while the interpreter shuts down.
            let _ = Python::try_attach(|py| {
                let called = as_tuple(py, &matched).and_then(|event| callback.call1(py, (event,)));
                if let Err(error) = called {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            });
        };
        let listener = on_matched(Box::new(handler)).map_err(IntoPyErr::into_py_err)?;
        Ok(self.add(listener))
    }
}

type Handler = Box<dyn FnMut(Matched) + Send>;

/// `rgaps.Matched`.
fn as_tuple<'py>(py: Python<'py>, matched: &Matched) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("rgaps._matched")?.getattr("Matched")?;
    class.call1((
        matched.current_count,
        matched.current_count_change,
        matched.total_count,
        matched.total_count_change,
    ))
}

/// Stops all listeners. Python calls this at exit, since a thread must not call into an interpreter that shuts down.
#[pyfunction]
pub(crate) fn _stop_listeners(py: Python<'_>) {
    let all = std::mem::take(&mut *lock(&ALL));
    for listener in all.iter().filter_map(Weak::upgrade) {
        listener.stop(py);
    }
}

/// Calls a callback in a thread of its own. `listen` and `on_matched` of subscribers and publishers make one.
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Listener(Mutex<Option<Arc<Running>>>);

#[pymethods]
impl Listener {
    /// Whether the listener may still call the callback.
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
        // Detached: dropping the last reference waits for the thread.
        let _ = Python::try_attach(|py| crate::handle::drop_detached(py, running.take()));
    }
}
