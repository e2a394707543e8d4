//! Wait sets: wait for many subscribers at once.

use crate::argument;
use crate::error::{invalid, IntoPyErr};
use crate::subscriber::Subscriber;
use crate::wait::in_slices;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rgaps::Token;
use rgaps_sync::lock;
use std::sync::Mutex;

/// Waits for messages of several subscribers of one node at once.
///
/// Args:
///     subscribers: The subscribers to attach at first. Default: none.
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct WaitSet {
    /// The wait set of the first subscriber's node; None before. Lock it only detached from the interpreter, since a thread
    /// holds the lock while it waits.
    set: Mutex<Option<rgaps::WaitSet>>,
    members: Mutex<Vec<(Token, Py<Subscriber>)>>,
    /// The process that created it. In a forked child the lock may stay locked for ever, so calls fail.
    process: u32,
}

impl WaitSet {
    fn check_process(&self) -> PyResult<()> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(rgaps::ClientError::Forked.into_py_err()),
        }
    }
}

#[pymethods]
impl WaitSet {
    #[new]
    #[pyo3(signature = (*subscribers))]
    fn new(py: Python<'_>, subscribers: &Bound<'_, PyTuple>) -> PyResult<WaitSet> {
        let set = WaitSet {
            set: Mutex::default(),
            members: Mutex::default(),
            process: std::process::id(),
        };
        for subscriber in subscribers {
            set.attach(py, argument::subscriber(&subscriber)?)?;
        }
        Ok(set)
    }

    /// Adds a subscriber. Fails if the subscriber is in a wait set: it may be in one at a time.
    ///
    /// Args:
    ///     subscriber: A subscriber of the same node as the others.
    fn attach(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::subscriber)] subscriber: Py<Subscriber>,
    ) -> PyResult<()> {
        self.check_process()?;
        let receiver = subscriber.get().receiver()?;
        let token = py
            .detach(|| {
                let mut set = lock(&self.set);
                let set = set.get_or_insert_with(|| receiver.node.wait_set());
                set.attach(&receiver.subscriber)
            })
            .map_err(IntoPyErr::into_py_err)?;
        lock(&self.members).push((token, subscriber));
        Ok(())
    }

    /// Removes a subscriber. Returns False if it was not in the wait set.
    ///
    /// Args:
    ///     subscriber: The subscriber to remove.
    fn detach(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::subscriber)] subscriber: Py<Subscriber>,
    ) -> PyResult<bool> {
        self.check_process()?;
        let mut members = lock(&self.members);
        let Some(at) = members
            .iter()
            .position(|(_, member)| member.is(&subscriber))
        else {
            return Ok(false);
        };
        let (token, _) = members.remove(at);
        drop(members);
        Ok(py.detach(|| {
            lock(&self.set)
                .as_mut()
                .is_some_and(|set| set.detach(token))
        }))
    }

    /// Waits until at least one subscriber has a message, and returns all subscribers that have one. Returns an empty list
    /// if none has one after the time-out.
    ///
    /// Args:
    ///     timeout: Seconds to wait; None waits without limit. Default: None.
    #[pyo3(signature = (timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<Py<Subscriber>>> {
        let timeout = crate::wait::timeout("timeout", timeout)?;
        self.check_process()?;
        let ready = in_slices(py, timeout, |slice| {
            if lock(&self.members).is_empty() {
                return Err(invalid("the wait set is empty: attach subscribers first"));
            }
            let set = lock(&self.set);
            let Some(set) = set.as_ref() else {
                return Ok(None);
            };
            let ready = set.wait(slice).map_err(IntoPyErr::into_py_err)?;
            Ok((!ready.is_empty()).then_some(ready))
        })?;
        let ready = ready.unwrap_or_default();
        let members = lock(&self.members);
        let found = members.iter().filter(|(token, _)| ready.contains(token));
        Ok(found
            .map(|(_, subscriber)| subscriber.clone_ref(py))
            .collect())
    }

    fn __len__(&self) -> usize {
        lock(&self.members).len()
    }

    /// Removes all subscribers.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        let members = std::mem::take(&mut *lock(&self.members));
        py.detach(|| drop(lock(&self.set).take()));
        drop(members);
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
