//! What has to be looked at now and then although nobody calls: GPU work rings no doorbell.
//!
//! One thread per process, started when there is first something to look at, asleep while there is
//! nothing. It is not the conductor's thread, which must not wait for a driver whose queues are full.

use super::{ClientContext, Conductor, ZoneView};
use crate::pending::drain;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two looks at what cannot be left to others: holds on several streams, closing.
const CHORE_PAUSE: Duration = Duration::from_millis(2);
/// Between two looks whether a context that has work queued is lost.
const LOSS_PAUSE: Duration = Duration::from_millis(200);

/// Something to do until it is done. True: it is done.
pub(crate) type Chore = Box<dyn FnMut() -> bool + Send>;

/// How long the end of the process waits for what is being looked at.
const LAST_LOOK: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Watch {
    list: Mutex<List>,
    woken: Condvar,
    /// Held while something is looked at, and from the end of the process on: drivers take themselves down then, and
    /// must not be called.
    looking: Mutex<()>,
}

/// Called at the end of the process, before what was registered earlier: drivers were loaded before this was.
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

/// Has `chore` done every few milliseconds until it is.
pub(crate) fn add_chore(chore: Chore) {
    watch().change(|list| list.chores.push(chore));
}

/// Does `then` when something is over: here, if that is soon, or else in the background.
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

/// Has the contexts of a zone with work queued looked at, until nothing is queued any more.
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
                    // SAFETY: a function of this library, which stays loaded as long as its thread runs. It can only fail for
                    // want of memory; then the end of the process is as dangerous as without.
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
            // Without the lock: what is done here may call back, or take its time.
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

/// Looks at a zone's contexts. False: nothing is queued there, and it is looked at no more.
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
