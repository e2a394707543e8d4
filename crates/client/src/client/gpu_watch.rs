//! The watch thread: polls GPU work that nobody else waits for, since the end of such work rings no doorbell.
//!
//! A process has one such thread. It starts with the first work to watch, and sleeps while there is none. The conductor's thread
//! cannot do this: it must not wait for a driver whose queues are full.

use super::{ClientContext, Conductor, ZoneView};
use crate::pending::drain;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Pause between two runs of the chores.
const CHORE_PAUSE: Duration = Duration::from_millis(2);
/// Pause between two checks whether a CUDA context with queued work is lost.
const LOSS_PAUSE: Duration = Duration::from_millis(200);

/// Work to repeat until it returns true: a deferred release on several streams, or the closing of a member.
pub(crate) type Chore = Box<dyn FnMut() -> bool + Send>;

/// How long the end of the process waits for a running chore or check.
const LAST_LOOK: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Watch {
    list: Mutex<List>,
    woken: Condvar,
    /// Held while the thread runs chores and checks, and from the end of the process on: drivers shut down then, and must not
    /// be called.
    looking: Mutex<()>,
}

/// Stops the thread at the end of the process. Runs before the exit handlers of drivers: these were registered earlier, and exit
/// handlers run in reverse order.
extern "C" fn look_no_more() {
    let begun = Instant::now();
    loop {
        match watch().looking.try_lock() {
            Ok(guard) => return std::mem::forget(guard),
            Err(_) if begun.elapsed() >= LAST_LOOK => return,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[derive(Default)]
struct List {
    chores: Vec<Chore>,
    zones: Vec<(Weak<ZoneView>, Weak<Conductor>)>,
    is_running: bool,
}

fn watch() -> &'static Watch {
    static WATCH: OnceLock<Watch> = OnceLock::new();
    WATCH.get_or_init(Watch::default)
}

/// Runs `chore` every few milliseconds until it returns true.
pub(crate) fn add_chore(chore: Chore) {
    watch().change(|list| list.chores.push(chore));
}

/// Calls `then` once `is_over` returns true: here, if that happens within a second, otherwise on the watch thread.
pub(crate) fn once_over(
    mut is_over: impl FnMut() -> bool + Send + 'static,
    then: impl FnOnce() + Send + 'static,
) {
    if drain(&mut is_over) {
        return then();
    }
    let mut then = Some(then);
    add_chore(Box::new(move || {
        let over = is_over();
        if over {
            then.take().into_iter().for_each(|then| then());
        }
        over
    }));
}

/// Checks whether contexts of a zone are lost, as long as the zone has points queued.
pub(super) fn add_zone(client: &ClientContext) {
    let entry = (
        Arc::downgrade(&client.zone),
        Arc::downgrade(&client.conductor),
    );
    watch().change(|list| list.zones.push(entry));
}

impl Watch {
    fn change(&'static self, change: impl FnOnce(&mut List)) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut list);
        if !list.is_running {
            let thread = std::thread::Builder::new().name("rgaps-watch".to_owned());
            let started = thread.spawn(|| {
                super::conductor::block_signals();
                self.run();
            });
            match started {
                Ok(_) => {
                    list.is_running = true;
                    // SAFETY: `look_no_more` is a function of this library, which stays loaded as long as its thread runs, so to the end
                    // of the process. Registering can fail only without memory; then a check may call a driver that shuts down.
                    unsafe { libc::atexit(look_no_more) };
                }
                // The next change tries again.
                Err(error) => {
                    tracing::warn!(%error, "starting the thread that watches GPU work failed")
                }
            }
        }
        drop(list);
        self.woken.notify_one();
    }

    fn run(&self) {
        let mut next_loss = Instant::now() + LOSS_PAUSE;
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let pause = match (list.chores.is_empty(), list.zones.is_empty()) {
                (true, true) => Duration::MAX,
                (true, false) => next_loss.saturating_duration_since(Instant::now()),
                (false, _) => CHORE_PAUSE,
            };
            let waited = match pause {
                Duration::MAX => self.woken.wait(list).map_err(PoisonError::into_inner),
                pause => match self.woken.wait_timeout(list, pause) {
                    Ok((list, _)) => Ok(list),
                    Err(poisoned) => Err(poisoned.into_inner().0),
                },
            };
            list = waited.unwrap_or_else(|list| list);
            // Without the lock: chores and checks may call `add_chore`, and may take long.
            let mut chores = std::mem::take(&mut list.chores);
            let is_due = Instant::now() >= next_loss;
            let mut zones = match is_due {
                true => std::mem::take(&mut list.zones),
                false => Vec::new(),
            };
            drop(list);
            let looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
            chores.retain_mut(|chore| !chore());
            zones.retain(|(zone, conductor)| is_still_queued(zone, conductor));
            drop(looking);
            if is_due {
                next_loss = Instant::now() + LOSS_PAUSE;
            }
            list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.chores.append(&mut chores);
            list.zones.append(&mut zones);
        }
    }
}

/// Checks a zone's contexts. False: stop watching the zone, because no point is queued, or a context is lost.
fn is_still_queued(zone: &Weak<ZoneView>, conductor: &Weak<Conductor>) -> bool {
    let Some(zone) = zone.upgrade() else {
        return false;
    };
    let Some(order) = zone.known_order() else {
        return false;
    };
    if !order.is_watched_still() {
        return false;
    }
    if order.is_a_context_lost() {
        if let Some(conductor) = conductor.upgrade() {
            zone.gpu_is_lost(&conductor);
        }
        return false;
    }
    true
}
