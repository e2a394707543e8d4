//! Subscribers.

use crate::argument;
use crate::error::{in_python, is_answerable, raise, IntoPyErr};
use crate::handle::{drop_detached, Handle};
use crate::listener::{Listener, Listeners};
use crate::sample;
use crate::wait::{in_slices, timeout};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rgaps::RecvError;
use rgaps_sync::lock;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A subscriber and its node.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) subscriber: rgaps::Subscriber,
    pub(crate) node: rgaps::Node,
}

/// A subscriber of one topic. Make one with `Node.subscriber` or `rgaps.subscriber`.
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Subscriber {
    receiver: Handle<Receiver>,
    topic: Arc<str>,
    listeners: Listeners,
    /// The `rgaps._asyncio.Waiters` objects, one per event loop.
    waiters: Mutex<Vec<Py<PyAny>>>,
    /// The last answer of [`Subscriber::silence`], and when it was found. Lock it only detached from the interpreter.
    silence: Mutex<Option<(Instant, String)>>,
}

/// How long [`Subscriber::silence`] repeats its last answer.
const SILENCE_AGE_MAX: Duration = Duration::from_secs(1);

impl Subscriber {
    pub(crate) fn new(receiver: Receiver) -> Subscriber {
        Subscriber {
            topic: receiver.subscriber.topic().into(),
            receiver: Handle::new("subscriber", receiver),
            listeners: Listeners::default(),
            waiters: Mutex::default(),
            silence: Mutex::default(),
        }
    }

    pub(crate) fn receiver(&self) -> PyResult<Receiver> {
        self.receiver.get()
    }

    fn wrap<'py>(&self, py: Python<'py>, sample: rgaps::Sample) -> PyResult<Bound<'py, PyAny>> {
        sample::wrap(py, sample, &self.topic)
    }

    fn receive(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<rgaps::Sample>> {
        let timeout = timeout("timeout", seconds)?;
        let Receiver { subscriber, .. } = self.receiver.get()?;
        // Fast path: if a message is waiting, stay attached.
        if let Some(sample) = subscriber.try_recv().map_err(IntoPyErr::into_py_err)? {
            return Ok(Some(sample));
        }
        in_slices(py, timeout, |slice| {
            match subscriber.recv_timeout(slice) {
                Ok(sample) => Ok(Some(sample)),
                // Fails if another thread has closed the subscriber meanwhile.
                Err(RecvError::TimedOut(_)) => self.receiver.get().map(|_| None),
                Err(error) => Err(error.into_py_err()),
            }
        })
    }
}

impl Subscriber {
    /// The error that no message arrived in time.
    fn timed_out(&self, py: Python<'_>, seconds: f64) -> PyErr {
        let mut text = format!("no message on topic '{}' within {seconds} s", self.topic);
        if let Ok(receiver) = self.receiver.get() {
            text += "; ";
            text += &py.detach(|| self.silence(&receiver.subscriber));
        }
        raise("TimedOut", text)
    }

    /// Says why no message comes. Caches the answer, which may need the daemon: programs with short time-outs ask often.
    fn silence(&self, subscriber: &rgaps::Subscriber) -> String {
        let mut last = lock(&self.silence);
        match &*last {
            Some((at, text)) if at.elapsed() < SILENCE_AGE_MAX => text.clone(),
            _ => {
                let text = in_python(subscriber.silence());
                *last = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

#[pymethods]
impl Subscriber {
    /// The name of the topic.
    #[getter]
    fn topic(&self) -> &str {
        &self.topic
    }

    /// The type that it expects; empty if it takes any.
    #[getter]
    fn r#type(&self) -> PyResult<String> {
        Ok(self.receiver.get()?.subscriber.type_name().to_owned())
    }

    /// Whether the subscriber was closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.receiver.is_open()
    }

    /// How many publishers match this subscriber now, including those on other hosts.
    #[getter]
    fn publishers(&self) -> PyResult<u32> {
        Ok(self.receiver.get()?.subscriber.publishers())
    }

    /// How many publishers do not match this subscriber. They publish another type, or do not offer the quality of service
    /// that it requests, and it gets none of their messages.
    #[getter]
    fn mismatched(&self) -> PyResult<u32> {
        Ok(self.receiver.get()?.subscriber.mismatched())
    }

    /// Why those publishers do not match: one text each, for the first few. Asks the daemon.
    fn mismatches(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let receiver = self.receiver.get()?;
        let reasons = py.detach(|| receiver.subscriber.mismatches());
        let reasons = reasons.map_err(IntoPyErr::into_py_err)?;
        Ok(reasons.into_iter().map(in_python).collect())
    }

    /// How many messages this subscriber has missed so far, over all publishers.
    #[getter]
    fn missed(&self) -> PyResult<u64> {
        Ok(self.receiver.get()?.subscriber.missed())
    }

    /// How many samples are held now, by sample objects and by arrays and tensors over them.
    #[getter]
    fn held(&self) -> PyResult<u32> {
        Ok(self.receiver.get()?.subscriber.held())
    }

    /// Waits for the next message.
    ///
    /// Args:
    ///     timeout: How many seconds to wait, 0 or more. Default: None, without limit, also when the last publisher has left.
    ///
    /// Returns:
    ///     The message, as a `Sample`.
    ///
    /// Raises:
    ///     TimedOut: No message arrived within ``timeout``.
    ///     TooManyHeld: The subscriber holds ``max_held`` samples.
    ///     Closed: Another thread closed the subscriber.
    #[pyo3(signature = (timeout=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.receive(py, timeout)? {
            Some(sample) => self.wrap(py, sample),
            None => Err(self.timed_out(py, timeout.unwrap_or(f64::INFINITY))),
        }
    }

    /// The next message, or None if none is waiting. Does not block.
    fn try_recv<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let receiver = self.receiver.get()?;
        let sample = receiver
            .subscriber
            .try_recv()
            .map_err(IntoPyErr::into_py_err)?;
        sample.map(|sample| self.wrap(py, sample)).transpose()
    }

    /// Waits until a message is waiting, without taking it. Returns False if there is none after the time-out.
    ///
    /// Args:
    ///     timeout: Seconds to wait; None waits without limit. Default: None.
    #[pyo3(signature = (timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Option<f64>,
    ) -> PyResult<bool> {
        let timeout = crate::wait::timeout("timeout", timeout)?;
        let Receiver { subscriber, .. } = self.receiver.get()?;
        // Fast path: if a message is waiting, stay attached.
        if subscriber
            .wait(Duration::ZERO)
            .map_err(IntoPyErr::into_py_err)?
        {
            return Ok(true);
        }
        let found = in_slices(py, timeout, |slice| {
            match subscriber.wait(slice).map_err(IntoPyErr::into_py_err)? {
                true => Ok(Some(())),
                false => self.receiver.get().map(|_| None),
            }
        })?;
        Ok(found.is_some())
    }

    /// Like `recv`, for ``await``: waits for the next message without blocking the event loop.
    ///
    /// Args:
    ///     timeout: Seconds to wait; None waits without limit. Default: None.
    #[pyo3(signature = (timeout=None))]
    fn recv_async<'py>(
        slf: &Bound<'py, Self>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        crate::wait::timeout("timeout", timeout)?;
        let module = slf.py().import("rgaps._asyncio")?;
        module.call_method1("receive", (slf, timeout))
    }

    /// Calls ``callback`` with each message, in a thread of its own.
    ///
    /// Args:
    ///     callback: Called with each `Sample`. An exception that it raises goes to ``sys.unraisablehook``, and the listener
    ///         continues.
    ///     on_error: Called with each error of receiving. Default: they go to ``sys.unraisablehook``.
    ///
    /// Returns:
    ///     The listener. It stops when it or the subscriber is closed, or when neither is referenced any more.
    #[pyo3(signature = (callback, *, on_error=None))]
    fn listen(
        &self,
        py: Python<'_>,
        callback: Py<PyAny>,
        on_error: Option<Py<PyAny>>,
    ) -> PyResult<Listener> {
        argument::callable("callback", callback.bind(py))?;
        if let Some(on_error) = &on_error {
            argument::callable("on_error", on_error.bind(py))?;
        }
        let Receiver { subscriber, .. } = self.receiver.get()?;
        let topic = self.topic.clone();
        self.listeners
            .listen(py, subscriber, topic, callback, on_error)
    }

    /// Calls ``callback`` with the publishers that match already, if there are any, and then whenever publishers come or go,
    /// in a thread of its own. Publishers on other hosts count one by one.
    ///
    /// Args:
    ///     callback: Called with an `rgaps.Matched`. An exception that it raises goes to ``sys.unraisablehook``, and the
    ///         listener continues.
    ///
    /// Returns:
    ///     The listener. It stops when it or the subscriber is closed, or when neither is referenced any more.
    fn on_matched(&self, callback: &Bound<'_, PyAny>) -> PyResult<Listener> {
        let Receiver { subscriber, .. } = self.receiver.get()?;
        self.listeners
            .on_matched(callback, |handler| subscriber.on_matched(handler))
    }

    /// A file descriptor that is readable while messages are waiting, for ``select`` and event loops. When it is readable,
    /// call `try_recv` until it returns None; do not read the descriptor.
    fn fileno(&self) -> PyResult<i32> {
        let receiver = self.receiver.get()?;
        let readiness = receiver.subscriber.readiness();
        readiness
            .map(|fd| fd.as_raw_fd())
            .map_err(IntoPyErr::into_py_err)
    }

    /// For `rgaps._asyncio`: the error that no message arrived within ``seconds``.
    fn _timed_out<'py>(&self, py: Python<'py>, seconds: f64) -> Bound<'py, PyAny> {
        self.timed_out(py, seconds)
            .into_value(py)
            .into_bound(py)
            .into_any()
    }

    /// For `rgaps._asyncio`: the `Waiters` of an event loop, made by ``factory`` if there are none yet.
    fn _waiters<'py>(
        slf: &Bound<'py, Self>,
        event_loop: &Bound<'py, PyAny>,
        factory: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        // Taken out of the lock: the Python code that runs below may call this method again.
        let known = std::mem::take(&mut *lock(&slf.get().waiters));
        let mut found = None;
        let mut kept = Vec::new();
        for waiter in known {
            let its_loop = waiter.bind(py).getattr("loop")?;
            if its_loop.is(event_loop) {
                found = Some(waiter.clone_ref(py));
            }
            // Drops the waiters of closed loops.
            if !its_loop.call_method0("is_closed")?.is_truthy()? {
                kept.push(waiter);
            }
        }
        let found = match found {
            Some(found) => found,
            None => {
                let made = factory.call1((slf,))?.unbind();
                kept.push(made.clone_ref(py));
                made
            }
        };
        lock(&slf.get().waiters).append(&mut kept);
        Ok(found.into_bound(py))
    }

    /// Closes the subscriber. It leaves the topic when its last sample, and the last array or tensor over one, has ended. In a
    /// thread or task that waits for a message, this raises `Closed`; iterations end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let receiver = self.receiver.take();
        self.listeners.stop(py);
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        for waiter in waiters {
            waiter.call_method0(py, "close")?;
        }
        drop_detached(py, receiver);
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if !self.receiver.is_open() {
            return Ok(None);
        }
        match self.receive(py, None) {
            Ok(Some(sample)) => self.wrap(py, sample).map(Some),
            Ok(None) => Err(raise("Error", "a wait without end ended".to_owned())),
            Err(error) if is_answerable(&error) && !self.receiver.is_open() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn __aiter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rgaps._asyncio")?
            .call_method1("Receiver", (slf,))
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { " closed" } else { "" };
        format!("<rgaps.Subscriber '{}'{state}>", self.topic)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // Dropped detached: leaving asks the daemon, and the last reference to a listener waits for its thread.
        let mut parts = Some((self.receiver.take(), self.listeners.take()));
        // Attaching fails while the interpreter shuts down.
        let _ = Python::try_attach(|py| drop_detached(py, parts.take()));
    }
}
