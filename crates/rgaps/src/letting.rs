//! Letting go of samples behind the work that still reads them.

use crate::client::{Conductor, PoolMapping, ZoneView};
use crate::pending::Pause;
use rgaps_cuda::CudaError;
use rgaps_pool::Stream;
use rgaps_topic::{progress, Held, LettingGo, Point, Progress, Shared};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The holds that a subscriber lets go of.
pub(crate) struct Letting {
    /// How many there are, so that a look for none costs a load.
    waiting: AtomicUsize,
    state: Mutex<State>,
    storage: Shared,
}

struct State {
    list: LettingGo<Shared>,
    /// What cannot go to the list yet: it waits for several streams, or for one that captures a graph.
    gathering: Vec<Gathering>,
}

/// A hold that several streams have to pass.
struct Gathering {
    held: Held<Shared>,
    mapping: Arc<PoolMapping>,
    points: Vec<Point>,
    /// Streams that cannot be asked now.
    unasked: Vec<Stream>,
}

/// What came of asking a stream.
enum Asked {
    /// It has passed, or never will.
    Done,
    At(Point),
    /// It captures a graph: ask later.
    Later,
}

impl Letting {
    pub(crate) fn new(list: LettingGo<Shared>, storage: Shared) -> Letting {
        Letting {
            waiting: AtomicUsize::new(0),
            state: Mutex::new(State {
                list,
                gathering: Vec::new(),
            }),
            storage,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in there panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of a hold when all work queued on `streams` so far has finished.
    pub(crate) fn let_go(
        &self,
        zone: &ZoneView,
        conductor: &Conductor,
        held: Held<Shared>,
        mapping: &Arc<PoolMapping>,
        streams: &[Stream],
    ) {
        if let [stream] = streams {
            match ask(zone, conductor, mapping, *stream) {
                Asked::Done => return held.release(),
                Asked::At(point) => return self.push(held, point),
                Asked::Later => {}
            }
        }
        let mut gathering = Gathering {
            held,
            mapping: mapping.clone(),
            points: Vec::new(),
            unasked: streams.to_vec(),
        };
        gathering.ask(zone, conductor);
        if let Err(gathering) = self.try_push(gathering) {
            let mut state = self.lock();
            state.gathering.push(gathering);
            self.count(&state);
        }
    }

    /// Does what can be done now. Call it now and then: a publisher clears what is on the list, but
    /// not what is being gathered.
    #[inline]
    pub(crate) fn tidy(&self, zone: &ZoneView, conductor: &Conductor) {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.tidy_now(zone, conductor);
        }
    }

    /// Whether holds wait that only this process can let go of.
    pub(crate) fn is_gathering(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0 && !self.lock().gathering.is_empty()
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    #[cold]
    fn tidy_now(&self, zone: &ZoneView, conductor: &Conductor) {
        let mut state = self.lock();
        state.list.tidy();
        for mut gathering in std::mem::take(&mut state.gathering) {
            gathering.ask(zone, conductor);
            gathering
                .points
                .retain(|point| progress(&self.storage, *point) == Progress::Pending);
            if let Err(gathering) = push_gathered(&mut state.list, gathering) {
                state.gathering.push(gathering);
            }
        }
        self.count(&state);
    }

    fn count(&self, state: &State) {
        self.waiting
            .store(state.list.len() + state.gathering.len(), Ordering::Relaxed);
    }

    fn try_push(&self, gathering: Gathering) -> Result<(), Gathering> {
        let mut state = self.lock();
        let outcome = push_gathered(&mut state.list, gathering);
        self.count(&state);
        outcome
    }

    /// Puts a hold on the list; where that is full, waits for the oldest on it.
    fn push(&self, mut held: Held<Shared>, point: Point) {
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
            pause.pause();
        }
    }
}

/// Puts a hold that waits for one point at most where it goes.
fn push_gathered(list: &mut LettingGo<Shared>, gathering: Gathering) -> Result<(), Gathering> {
    match (&gathering.points[..], gathering.unasked.is_empty()) {
        ([], true) => gathering.held.release(),
        ([point], true) => {
            let point = *point;
            let Gathering {
                held,
                mapping,
                points,
                unasked,
            } = gathering;
            return list.push(held, point).map_err(|held| Gathering {
                held,
                mapping,
                points,
                unasked,
            });
        }
        _ => return Err(gathering),
    }
    Ok(())
}

impl Gathering {
    fn ask(&mut self, zone: &ZoneView, conductor: &Conductor) {
        let Gathering {
            mapping,
            points,
            unasked,
            ..
        } = self;
        unasked.retain(|stream| match ask(zone, conductor, mapping, *stream) {
            Asked::Done => false,
            Asked::At(point) => {
                points.push(point);
                false
            }
            Asked::Later => true,
        });
    }
}

/// Queues a point on a stream.
fn ask(zone: &ZoneView, conductor: &Conductor, mapping: &PoolMapping, stream: Stream) -> Asked {
    match mapping.point(zone, conductor, stream) {
        Ok(point) if point.is_none() => Asked::Done,
        Ok(point) => Asked::At(point),
        Err(CudaError::Capturing) => Asked::Later,
        // The context is lost, and its work has ended.
        Err(error) if error.is_lost() => Asked::Done,
        Err(error) => {
            // A stream that was destroyed with work queued: the context knows of that work.
            tracing::warn!(%error, "letting go of a sample waits for all work on the GPU");
            let all = mapping.context().map(|context| context.synchronize());
            match all {
                Some(Err(CudaError::Call { .. })) if !zone.is_gpu_lost() => Asked::Later,
                _ => Asked::Done,
            }
        }
    }
}
