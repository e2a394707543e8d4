//! Callbacks: a thread per listener that waits for something and calls a handler.

use crate::client::ForkGuard;
use crate::{ClientError, RecvError, Sample, Subscriber};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a listener for messages checks whether it was dropped.
const STOP_CHECK: Duration = Duration::from_millis(50);
/// Pause between two attempts to wake the thread: an attempt just before it falls asleep has no effect.
const WAKE_PAUSE: Duration = Duration::from_millis(1);

/// Calls a handler in a thread of its own until it is dropped: with each message of a subscriber
/// ([`Subscriber::listen`]), or when members of the other side join or leave ([`Subscriber::on_matched`],
/// [`Publisher::on_matched`](crate::Publisher::on_matched)). Dropping it waits until the handler has returned (unless the
/// handler itself drops it).
pub struct Listener {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    guard: ForkGuard,
    /// Wakes the thread. None: the thread never sleeps long.
    wake: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl Listener {
    /// Runs `body` in a new thread. `body` must return soon after its flag is set and `wake` was called.
    pub(crate) fn start(
        guard: &ForkGuard,
        wake: Option<Box<dyn Fn() + Send + Sync>>,
        body: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Result<Listener, ClientError> {
        guard.check()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("rgaps-listener".to_owned())
            .spawn(move || body(&stopped))
            .map_err(|source| ClientError::System {
                call: "creating a thread",
                source,
            })?;
        Ok(Listener {
            stop,
            thread: Some(thread),
            guard: guard.clone(),
            wake,
        })
    }

    pub(crate) fn of_messages(
        subscriber: Subscriber,
        mut handler: impl FnMut(Result<Sample, RecvError>) + Send + 'static,
    ) -> Result<Listener, RecvError> {
        let guard = subscriber.core.guard.clone();
        let body = move |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                match subscriber.recv_timeout(STOP_CHECK) {
                    Err(RecvError::TimedOut(_)) => {}
                    outcome => {
                        let full = matches!(outcome, Err(RecvError::TooManyHeld { .. }));
                        handler(outcome);
                        if full {
                            // No message can be received until the program drops samples.
                            std::thread::park_timeout(STOP_CHECK);
                        }
                    }
                }
            }
        };
        Ok(Listener::start(&guard, None, body)?)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // A forked child has no such thread. A handler that drops its own listener must not wait for itself.
        if self.guard.is_child() || thread.thread().id() == std::thread::current().id() {
            return;
        }
        thread.thread().unpark();
        while let Some(wake) = self.wake.as_ref().filter(|_| !thread.is_finished()) {
            wake();
            std::thread::sleep(WAKE_PAUSE);
        }
        let _ = thread.join();
    }
}
