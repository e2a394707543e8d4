//! A time limit for the use of a communicator, which has none of its own.

use super::Communicator;
use std::io;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::Duration;

/// Closes a communicator after a time, unless it is dropped before.
pub(crate) struct Deadline {
    _done: Sender<()>,
}

impl Deadline {
    pub(crate) fn new(of: Arc<dyn Communicator>, limit: Duration) -> io::Result<Deadline> {
        let (done, ended) = channel::<()>();
        std::thread::Builder::new()
            .name("rgaps-gpu-limit".to_owned())
            .spawn(move || {
                if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    of.close();
                }
            })?;
        Ok(Deadline { _done: done })
    }
}
