//! Timelines on streams: queues points on the streams of this process, and waits for points of other processes.
//!
//! See `docs/decisions/0009-streams.md`.

use super::gpu_watch::add_zone;
use super::{ClientContext, Conductor, ZoneView};
use rgaps_cuda::{memory_operations_work, Context, CudaError, OnStream, Registered};
use rgaps_layout::{GpuUuid, Timeline, CONTROL_BYTES, TIMELINE_TABLE_BYTES, TIMELINE_TABLE_OFFSET};
use rgaps_session::ZoneId;
use rgaps_sync::atomic::{fence, Ordering};
use rgaps_topic::{progress, timeline, Point, Progress, Shared};
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many streams of a zone have a timeline at once. A further stream takes over the timeline of one whose points have all
/// passed.
const LINES_MAX: usize = 64;
/// The last count of a tenure: the lower 32 bits of a timeline count, the upper ones are its tenure.
const COUNT_END: u64 = u32::MAX as u64;

/// A zone's timelines, as this process uses them on its GPUs.
pub(crate) struct ZoneTimelines {
    /// The table of timelines, as GPUs see it.
    table: Registered,
    storage: Shared,
    zone: ZoneId,
    lines: Mutex<HashMap<u64, Arc<Mutex<Line>>>>,
    /// The GPUs in use, with their contexts, and whether streams there can write numbers and wait for them.
    able: Mutex<HashMap<GpuUuid, (Arc<Context>, bool)>>,
    /// Whether the watch thread checks if a context with queued points is lost.
    is_watched: AtomicBool,
}

/// A stream's timeline.
#[derive(Clone, Copy)]
struct Line {
    timeline: u32,
    /// The last point that was queued.
    last: u64,
}

impl Line {
    fn point(self) -> Point {
        Point {
            timeline: self.timeline,
            value: self.last,
        }
    }
}

impl ZoneTimelines {
    /// Registers the zone's table with the driver.
    ///
    /// # Safety
    /// The control segment stays mapped until the result is dropped.
    pub(super) unsafe fn new(
        zone: &ZoneView,
        context: &Arc<Context>,
    ) -> Result<ZoneTimelines, CudaError> {
        memory_operations_work(context)?;
        // SAFETY: the control segment is mapped for `CONTROL_BYTES`, and the layout places the table in it.
        let start = unsafe { zone.control().add(TIMELINE_TABLE_OFFSET as usize) };
        // SAFETY: the table is whole pages of the control segment, which the caller promises to keep mapped until the result is dropped.
        let table = unsafe {
            Registered::new(
                context.clone(),
                start.as_ptr().cast(),
                TIMELINE_TABLE_BYTES as usize,
            )?
        };
        Ok(ZoneTimelines {
            table,
            // SAFETY: the caller promises that the control segment stays mapped, for writing, until the result is dropped. All
            // processes access it only as atomics.
            storage: unsafe { Shared::new(zone.control().as_ptr(), CONTROL_BYTES) },
            zone: zone.id(),
            lines: Mutex::default(),
            able: Mutex::new(HashMap::from([(
                context.device().uuid,
                (context.clone(), true),
            )])),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Whether streams of this GPU can be ordered. The first call for a GPU tests it.
    pub(super) fn is_able(&self, context: &Arc<Context>) -> bool {
        let mut able = self.able.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = able.entry(context.device().uuid).or_insert_with(|| {
            let works = memory_operations_work(context);
            if let Err(error) = &works {
                warn_of(error);
            }
            (context.clone(), works.is_ok())
        });
        entry.1
    }

    /// Queues a point behind all work queued on a stream so far. [`Point::NONE`]: this waited for the work instead.
    pub(super) fn point(
        &self,
        client: &ClientContext,
        on: &OnStream<'_>,
    ) -> Result<Point, CudaError> {
        let id = on.id()?;
        let Some(line) = self.line(&client.conductor, id) else {
            on.synchronize()?;
            return Ok(Point::NONE);
        };
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.last & COUNT_END == COUNT_END {
            self.renew(&client.conductor, id, &line, on)?;
            return Ok(Point::NONE);
        }
        let point = Point {
            timeline: line.timeline,
            value: line.last + 1,
        };
        // SAFETY: the address is a word of the table, which stays registered and mapped as long as the zone. Members wait for their
        // points before they drop the zone. All readers read the word atomically.
        unsafe { on.write_value(self.address(point.timeline), point.value)? };
        line.last = point.value;
        drop(line);
        // `is_watched_still` clears the flag, fences, then checks the lines again; here the point comes first, then the fence, then
        // the flag. So either that check sees this point, or this load sees that the flag is cleared. If watched, this is one load.
        fence(Ordering::SeqCst);
        if !self.is_watched.load(Ordering::Relaxed) && !self.is_watched.swap(true, Ordering::SeqCst)
        {
            add_zone(client);
        }
        Ok(point)
    }

    /// Whether points are queued, so that the watch thread must go on checking their contexts. Otherwise clears the flag.
    pub(super) fn is_watched_still(&self) -> bool {
        if self.is_pending() {
            return true;
        }
        self.is_watched.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.is_pending() && !self.is_watched.swap(true, Ordering::SeqCst)
    }

    /// Whether a stream has still to reach its last point.
    fn is_pending(&self) -> bool {
        self.lines().values().any(|line| match line.try_lock() {
            Ok(line) => progress(&self.storage, line.point()) == Progress::Pending,
            // Another thread is queuing a point on it.
            Err(_) => true,
        })
    }

    /// Asks the driver whether the context of any GPU in use is lost.
    pub(super) fn is_a_context_lost(&self) -> bool {
        self.contexts().iter().any(|context| context.is_lost())
    }

    /// Waits for the work of all contexts that are not lost.
    pub(super) fn finish_others(&self) {
        for context in self.contexts() {
            // An error means that this context is lost, so its work has ended.
            let _ = context.synchronize();
        }
    }

    fn contexts(&self) -> Vec<Arc<Context>> {
        let able = self.able.lock().unwrap_or_else(PoisonError::into_inner);
        able.values().map(|(context, _)| context.clone()).collect()
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mutex<Line>>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a stream wait until a point has passed or is aborted. Queues nothing if that is so already.
    pub(crate) fn wait_on(&self, on: &OnStream<'_>, point: Point) -> Result<(), CudaError> {
        if progress(&self.storage, point) != Progress::Pending {
            return Ok(());
        }
        // SAFETY: `progress` found that the timeline exists, so the address is a word of the table, which stays registered and mapped as
        // long as the zone. All writers write the word atomically.
        unsafe { on.wait_value(self.address(point.timeline), point.value) }
    }

    /// The device address of a timeline's value, for GPUs of this process.
    pub(crate) fn address(&self, timeline: u32) -> u64 {
        let at = timeline as usize * size_of::<Timeline>() + offset_of!(Timeline, value);
        self.table.device_address() + at as u64
    }

    /// Forgets all timelines of this process, after the daemon has ended them.
    pub(crate) fn forget(&self) {
        self.lines().clear();
    }

    /// The stream's timeline; takes one if it has none. None: no timeline is free, or there is no daemon.
    fn line(&self, conductor: &Conductor, id: u64) -> Option<Arc<Mutex<Line>>> {
        let mut lines = self.lines();
        if let Some(line) = lines.get(&id) {
            return Some(line.clone());
        }
        let line = if lines.len() >= LINES_MAX {
            let (unused, line) = lines.iter().find_map(|(id, line)| self.idle(*id, line))?;
            lines.remove(&unused);
            line
        } else {
            drop(lines);
            let line = self.take_line(conductor)?;
            lines = self.lines();
            if let Some(faster) = lines.get(&id).cloned() {
                // Another thread has taken one for the same stream.
                drop(lines);
                self.give_line(conductor, line.timeline);
                return Some(faster);
            }
            line
        };
        let line = Arc::new(Mutex::new(line));
        lines.insert(id, line.clone());
        Some(line)
    }

    /// The timeline of a stream, if all its points have passed and no thread is queuing one.
    fn idle(&self, id: u64, line: &Arc<Mutex<Line>>) -> Option<(u64, Line)> {
        if Arc::strong_count(line) > 1 {
            return None;
        }
        let line = *line.lock().unwrap_or_else(PoisonError::into_inner);
        (progress(&self.storage, line.point()) == Progress::Reached).then_some((id, line))
    }

    fn take_line(&self, conductor: &Conductor) -> Option<Line> {
        let taken = conductor.take_timeline(self.zone);
        let index = match taken {
            Ok(index) => index,
            Err(error) => {
                tracing::debug!(%error, "no timeline: waiting for a stream on the CPU");
                return None;
            }
        };
        let view = timeline(&self.storage, index)?;
        Some(Line {
            timeline: index,
            // The daemon has set the value to the start of this tenure; points count from there.
            last: view.value().load(Ordering::Acquire) >> 32 << 32,
        })
    }

    /// Returns a timeline whose tenure is used up, after waiting for its last point.
    fn renew(
        &self,
        conductor: &Conductor,
        id: u64,
        line: &Line,
        on: &OnStream<'_>,
    ) -> Result<(), CudaError> {
        on.synchronize()?;
        self.lines().remove(&id);
        self.give_line(conductor, line.timeline);
        Ok(())
    }

    fn give_line(&self, conductor: &Conductor, timeline: u32) {
        if let Err(error) = conductor.return_timeline(self.zone, timeline) {
            tracing::debug!(%error, "returning a timeline failed");
        }
    }
}

/// Warns, once per zone or GPU, that publishing and releasing wait for streams on the CPU.
pub(super) fn warn_of(error: &CudaError) {
    tracing::warn!(
        %error,
        "streams cannot be ordered on the GPU; publishing and releasing wait on the CPU \
         ('rgaps doctor' says why)"
    );
}
