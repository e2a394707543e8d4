//! Handles that can be closed.

use crate::error::closed;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Something that Python code may close at any time, also while another thread uses it.
pub(crate) struct Handle<T> {
    name: &'static str,
    open: Mutex<Option<T>>,
}

impl<T> Handle<T> {
    /// `name` is what the error about a closed handle calls it.
    pub(crate) fn new(name: &'static str, value: T) -> Handle<T> {
        Handle {
            name,
            open: Mutex::new(Some(value)),
        }
    }

    /// Closes the handle. Returns the value at the first call, then None.
    pub(crate) fn take(&self) -> Option<T> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.take()
    }

    pub(crate) fn is_open(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.is_some()
    }
}

impl<T: Clone> Handle<T> {
    /// A clone of the value, which stays valid if the handle is closed meanwhile. Raises `Closed` for a closed handle.
    pub(crate) fn get(&self) -> PyResult<T> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| closed(self.name))
    }
}

/// Drops a value detached from the interpreter, since dropping it may wait for the daemon or for a GPU.
pub(crate) fn drop_detached<T: Send>(py: Python<'_>, value: T) {
    py.detach(|| drop(value));
}
