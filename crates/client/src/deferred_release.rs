//! Deferred releases: a dropped sample whose block GPU work still reads keeps its bit in the holder word until that work has
//! finished.
//!
//! A release that waits for one point goes to the subscriber's list in shared memory, where the publisher finds it. A release that
//! waits for several streams, or for a stream that is capturing a graph, stays in this process; a chore of the client tries
//! again to move it to the list.

use crate::client::{add_chore, ClientContext, PoolMapping, WorkEnd};
use crate::pending::Pause;
use rgaps_pool::Stream;
use rgaps_topic::{progress, Held, Point, Progress, ReleaseList, Shared};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The deferred releases of one subscriber.
pub(crate) struct DeferredReleases {
    /// How many there are, so that `tidy` costs one load when there is none.
    waiting: AtomicUsize,
    state: Mutex<ReleaseLists>,
    storage: Shared,
}

struct ReleaseLists {
    list: ReleaseList<Shared>,
    /// Releases that cannot go to the list yet: they wait for several streams, or for one that captures a graph.
    unplaced: Vec<UnplacedRelease>,
    /// Whether a chore calls `tidy_now` for `unplaced`.
    is_watched: bool,
}

/// A release that waits until all its points have passed.
struct UnplacedRelease {
    held: Held<Shared>,
    mapping: Arc<PoolMapping>,
    points: Vec<Point>,
    /// Streams on which no point could be queued yet.
    unasked: Vec<Recorded>,
}

/// A stream whose work may use a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recorded {
    stream: Stream,
    /// For `CU_STREAM_PER_THREAD`: the thread whose stream it is. None for all other handles.
    thread: Option<ThreadId>,
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: Stream = Stream(2);

impl Recorded {
    /// The default stream.
    pub(crate) const DEFAULT: Recorded = Recorded {
        stream: Stream(0),
        thread: None,
    };

    /// The stream that the handle means in the calling thread.
    pub(crate) fn here(stream: Stream) -> Recorded {
        Recorded {
            stream,
            thread: (stream == PER_THREAD).then(|| std::thread::current().id()),
        }
    }

    fn is_own(self) -> bool {
        self.thread
            .is_none_or(|thread| thread == std::thread::current().id())
    }

    /// When the work queued on the stream so far ends. Only its own thread can query a per-thread stream; for another thread's, a
    /// point behind all work of the context stands in.
    fn ask(self, mapping: &PoolMapping, client: &ClientContext) -> WorkEnd {
        match self.is_own() {
            true => mapping.ask(client, self.stream),
            false => mapping.ask_all(&client.zone),
        }
    }

    /// The same for a stream that was capturing a graph when it was asked before.
    pub(crate) fn ask_again(self, mapping: &PoolMapping, client: &ClientContext) -> WorkEnd {
        match self.is_own() {
            true => mapping.ask(client, self.stream),
            // Only its own thread can ask it.
            false if !client.zone.is_gpu_lost() => WorkEnd::Later,
            false => WorkEnd::Done,
        }
    }
}

impl DeferredReleases {
    pub(crate) fn new(list: ReleaseList<Shared>, storage: Shared) -> DeferredReleases {
        DeferredReleases {
            waiting: AtomicUsize::new(0),
            state: Mutex::new(ReleaseLists {
                list,
                unplaced: Vec::new(),
                is_watched: false,
            }),
            storage,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReleaseLists> {
        // A poisoned lock is safe to use: nothing under it panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases a hold when all work queued on `streams` so far has finished.
    pub(crate) fn release_behind(
        self: &Arc<Self>,
        client: &ClientContext,
        held: Held<Shared>,
        mapping: &Arc<PoolMapping>,
        streams: &[Recorded],
    ) {
        if let [stream] = streams {
            match stream.ask(mapping, client) {
                WorkEnd::Done => return held.release(),
                WorkEnd::At(point) => return self.push(client, mapping, held, point),
                WorkEnd::Later => {}
            }
        }
        let mut unplaced = UnplacedRelease {
            held,
            mapping: mapping.clone(),
            points: Vec::new(),
            unasked: streams.to_vec(),
        };
        unplaced.ask(client, Recorded::ask);
        if let Err(unplaced) = self.try_push(unplaced) {
            let mut state = self.lock();
            state.unplaced.push(unplaced);
            self.count(&state);
            if !std::mem::replace(&mut state.is_watched, true) {
                drop(state);
                self.watch(client);
            }
        }
    }

    /// Adds a chore that tidies `unplaced` until it is empty. Publishers cannot see these releases.
    fn watch(self: &Arc<Self>, client: &ClientContext) {
        let deferred = Arc::downgrade(self);
        let zone = Arc::downgrade(&client.zone);
        let conductor = Arc::downgrade(&client.conductor);
        add_chore(Box::new(move || {
            // A subscriber that is dropped waits for its releases itself.
            let (Some(zone), Some(conductor)) = (zone.upgrade(), conductor.upgrade()) else {
                return true;
            };
            let client = ClientContext { zone, conductor };
            deferred.upgrade().is_none_or(|deferred| {
                deferred.tidy_now(&client);
                let mut state = deferred.lock();
                state.is_watched = !state.unplaced.is_empty();
                !state.is_watched
            })
        }));
    }

    /// Releases what has passed its points, and moves releases to the list where possible.
    #[inline]
    pub(crate) fn tidy(&self, client: &ClientContext) {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.tidy_now(client);
        }
    }

    /// Whether no deferred release is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    #[cold]
    fn tidy_now(&self, client: &ClientContext) {
        let mut state = self.lock();
        state.list.tidy();
        for mut unplaced in std::mem::take(&mut state.unplaced) {
            unplaced.ask(client, Recorded::ask_again);
            unplaced
                .points
                .retain(|point| progress(&self.storage, *point) == Progress::Pending);
            if let Err(unplaced) = push_unplaced(&mut state.list, unplaced) {
                state.unplaced.push(unplaced);
            }
        }
        self.count(&state);
    }

    fn count(&self, state: &ReleaseLists) {
        self.waiting
            .store(state.list.len() + state.unplaced.len(), Ordering::Relaxed);
    }

    fn try_push(&self, unplaced: UnplacedRelease) -> Result<(), UnplacedRelease> {
        let mut state = self.lock();
        let outcome = push_unplaced(&mut state.list, unplaced);
        self.count(&state);
        outcome
    }

    /// Puts a hold on the list. If the list is full, waits until a release on it has passed.
    fn push(
        &self,
        client: &ClientContext,
        mapping: &PoolMapping,
        mut held: Held<Shared>,
        point: Point,
    ) {
        let mut pause = Pause::default();
        loop {
            let mut state = self.lock();
            let pushed = state.list.push(held, point);
            self.count(&state);
            match pushed {
                Ok(()) => return,
                Err(back) => held = back,
            }
            state.list.tidy();
            drop(state);
            if pause.is_long() {
                mapping.notice_loss(client);
            }
            pause.pause();
        }
    }
}

/// Releases a hold that waits for nothing, and puts one that waits for a single point on the list. Err: it waits for more, or the list
/// is full.
fn push_unplaced(
    list: &mut ReleaseList<Shared>,
    unplaced: UnplacedRelease,
) -> Result<(), UnplacedRelease> {
    match (&unplaced.points[..], unplaced.unasked.is_empty()) {
        ([], true) => unplaced.held.release(),
        ([point], true) => {
            let point = *point;
            let UnplacedRelease {
                held,
                mapping,
                points,
                unasked,
            } = unplaced;
            return list.push(held, point).map_err(|held| UnplacedRelease {
                held,
                mapping,
                points,
                unasked,
            });
        }
        _ => return Err(unplaced),
    }
    Ok(())
}

impl UnplacedRelease {
    fn ask(
        &mut self,
        client: &ClientContext,
        ask: impl Fn(Recorded, &PoolMapping, &ClientContext) -> WorkEnd,
    ) {
        let UnplacedRelease {
            mapping,
            points,
            unasked,
            ..
        } = self;
        unasked.retain(|stream| match ask(*stream, mapping, client) {
            WorkEnd::Done => false,
            WorkEnd::At(point) => {
                points.push(point);
                false
            }
            WorkEnd::Later => true,
        });
    }
}
