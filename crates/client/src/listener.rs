//! Callbacks: a thread per listener that receives and calls a handler.

use crate::{RecvError, Sample, Subscriber};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a dropped listener may take to notice.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Calls a handler with each message of a subscriber, in a thread of its own, until it is dropped. Dropping it waits
/// until the handler has returned (unless the handler itself drops it).
#[derive(Debug)]
pub struct Listener {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(crate) fn start(
        subscriber: Subscriber,
        mut handler: impl FnMut(Result<Sample, RecvError>) + Send + 'static,
    ) -> Result<Listener, RecvError> {
        subscriber.core.guard.check()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("rgaps-listener".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    match subscriber.recv_timeout(STOP_CHECK) {
                        Err(RecvError::TimedOut(_)) => {}
                        outcome => {
                            let full = matches!(outcome, Err(RecvError::TooManyHeld { .. }));
                            handler(outcome);
                            if full {
                                // Nothing can be read before samples are dropped elsewhere.
                                std::thread::park_timeout(STOP_CHECK);
                            }
                        }
                    }
                }
            })
            .map_err(|source| {
                RecvError::Client(crate::ClientError::System {
                    call: "creating a thread",
                    source,
                })
            })?;
        Ok(Listener {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A handler that drops its own listener must not wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
