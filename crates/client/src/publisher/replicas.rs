//! Replicas: one copy of each message for every other domain in which subscribers read.
//!
//! Publishing does not wait for the GPU. The publisher queues each copy on a stream of its own that waits for the message's
//! point, and announces the replica with another point, which passes when the copy is complete.

use super::memory::MappedArena;
use super::streaming_copy::Ranges;
use super::PublisherCore;
use crate::client::{Conductor, PoolMapping};
use crate::loan::Filled;
use crate::pending::Pause;
use crate::{ClientError, LoanError, PublishError};
use rgaps_cuda::{CudaError, CudaStream, Driver, PinnedBuffer};
use rgaps_layout::{Domain, BLOCK_ALIGN, MAX_COPY_PIECES, MAX_POOLS, MAX_REPLICAS};
use rgaps_pool::{Access, Mapping, PoolError, Stream};
use rgaps_session::{CudaUse, PeerUse, RefusalCode};
use rgaps_sync::atomic::Ordering;
use rgaps_sync::monotonic_ns;
use rgaps_topic::{pool_copies, progress, Copied, Point, Progress, Shared};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes per step of a copy over pinned host memory, between GPUs without peer access.
const CHUNK_BYTES: u64 = 4 << 20;
/// Larger copies to the host are made in parts, so that readers can begin before the last part is there: in [`PARTS`] parts, in more
/// if these would exceed [`PART_BYTES`]. Each part costs an operation of the stream, whose queue holds a thousand, so there are at
/// most [`MAX_COPY_PIECES`].
const WHOLE_BYTES_MAX: u64 = 1 << 20;
/// See [`WHOLE_BYTES_MAX`].
const PARTS: u64 = 4;
/// See [`WHOLE_BYTES_MAX`].
const PART_BYTES: u64 = 4 << 20;
/// How long after a failed attempt to open a pool the publisher tries again, if the daemon was missing or nobody read there.
const RETRY_NS: u64 = 500_000_000;

/// The pools to which a publisher copies, cached until the topic's members change.
#[derive(Default)]
pub(super) struct Replicas {
    /// The topic's `membership_epoch`, and the matched subscribers of its `elsewhere()`, for which `wanted` was made.
    seen: Option<(u32, u64)>,
    wanted: Vec<ReadDomain>,
    /// When to make `wanted` again although nothing changed: a pool could not be opened, and may be possible later. On the
    /// monotonic clock.
    again_ns: Option<u64>,
    /// By pool number: how to copy there. None: no copy is needed or possible.
    targets: Vec<(u32, Option<Arc<CopyTarget>>)>,
}

/// A pool in which subscribers read.
#[derive(Clone)]
struct ReadDomain {
    target: Arc<CopyTarget>,
    /// How many subscribers read there.
    readers: u64,
}

/// A pool to copy to, and how.
pub(super) struct CopyTarget {
    mapped: MappedArena,
    path: CopyPath,
}

enum CopyPath {
    /// One copy on a stream of a GPU that reaches both ends.
    Direct {
        stream: CudaStream,
        from: Arc<PoolMapping>,
        /// Whether both ends are GPUs that reach each other, so that subscribers can also read the message in place.
        peers: bool,
        /// Held while one thread queues a copy in parts, so that the points of its parts are consecutive.
        turn: Mutex<()>,
    },
    /// Over pinned host memory, between GPUs that do not reach each other.
    Staged(Staged),
}

struct Staged {
    /// On the publisher's GPU: copies into the buffer.
    near: CudaStream,
    /// On the subscribers' GPU: copies out of the buffer.
    far: CudaStream,
    buffer: PinnedBuffer,
    /// For each half of the buffer, the point after which it is free.
    free: Mutex<[Point; 2]>,
}

/// A block that waits for its copy.
pub(crate) struct ReplicaBlock {
    target: Arc<CopyTarget>,
    loan: rgaps_topic::Loan,
    offset: u64,
    /// The ranges of the message whose copies were queued before publishing.
    copied: Ranges,
}

impl PublisherCore {
    /// Allocates the blocks for all replicas that a message of `bytes` bytes needs, and queues nothing. Takes blocks of its
    /// streaming copy from `begun`; those that are not needed stay in `begun`.
    pub(super) fn provide(
        &self,
        bytes: u64,
        begun: &mut Vec<ReplicaBlock>,
    ) -> Result<Vec<ReplicaBlock>, PublishError> {
        if self.read_in_other_domains() == 0 {
            return Ok(Vec::new());
        }
        let mut blocks = Vec::new();
        for ReadDomain { target, readers } in self.wanted() {
            let same = |begun: &ReplicaBlock| Arc::ptr_eq(&begun.target, &target);
            if let Some(at) = begun.iter().position(same) {
                blocks.push(begun.swap_remove(at));
                continue;
            }
            if target.is_read_directly(&self.client.conductor, bytes, readers) {
                continue;
            }
            match self.block(&target.mapped, bytes, BLOCK_ALIGN) {
                Ok((loan, offset)) => blocks.push(ReplicaBlock {
                    target,
                    loan,
                    offset,
                    copied: Ranges::default(),
                }),
                // The subscribers there have left since `wanted` was made: nobody needs the copy.
                Err(LoanError::Client(error)) if is_unread(&error) => {}
                Err(error) => {
                    self.withdraw(blocks);
                    return Err(match error {
                        LoanError::Client(error) => PublishError::Client(error),
                        error => PublishError::Replica(Box::new(error)),
                    });
                }
            }
        }
        Ok(blocks)
    }

    /// Gives back blocks of a message that is not published. Waits until streaming copies into them no longer read the message.
    pub(super) fn withdraw(&self, blocks: Vec<ReplicaBlock>) {
        let (begun, others) = blocks
            .into_iter()
            .partition(|block| !block.copied.is_empty());
        for ReplicaBlock { loan, .. } in Vec::from_iter::<Vec<ReplicaBlock>>(others) {
            self.give_back(loan, Point::NONE);
        }
        let read = self.end_begun(begun);
        self.wait_for(read);
    }

    /// Gives back the queued copies of a message that is not published after all. Waits until they no longer read the message,
    /// since its loan returns to the caller, who may write it.
    #[cold]
    pub(super) fn take_back(&self, copies: Vec<Copied>, read: Point) {
        if copies.is_empty() {
            return;
        }
        for Copied { loan, point, .. } in copies {
            self.give_back(loan, point);
        }
        self.wait_for(read);
    }

    /// Gives back the blocks of streaming copies that are not needed. Returns the point after which these no longer read the
    /// message.
    pub(super) fn end_begun(&self, begun: Vec<ReplicaBlock>) -> Point {
        let mut read = Point::NONE;
        for ReplicaBlock { target, loan, .. } in begun {
            let written = match target.end(self, read) {
                Ok(queued) => {
                    read = queued.read;
                    queued.written
                }
                Err(error) => {
                    tracing::debug!(%error, "ending the copy of a cancelled replica failed");
                    target.settle();
                    Point::NONE
                }
            };
            self.give_back(loan, written);
        }
        read
    }

    /// Waits on the CPU until a point of our own has passed.
    pub(super) fn wait_for(&self, point: Point) {
        let mut pause = Pause::default();
        while progress(&self.storage, point) == Progress::Pending && !self.client.zone.is_gpu_lost()
        {
            self.notice_loss();
            pause.pause();
        }
    }

    /// Asks the driver whether a CUDA context whose work may use blocks is lost, so that waiting for it ends.
    pub(super) fn notice_loss(&self) {
        self.own.mapping.notice_loss(&self.client);
        let replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        for target in replicas.targets.iter().filter_map(|(_, t)| t.as_ref()) {
            let mapping = &target.mapped.mapping;
            mapping.notice_loss(&self.client);
        }
    }

    /// Queues the copies of a message that is complete at `point`. `before`: the point after which streaming copies that are not
    /// needed no longer read the message. Returns the point after which no copy reads the message, and the copies.
    pub(super) fn copy(
        &self,
        blocks: Vec<ReplicaBlock>,
        filled: &Filled<'_>,
        point: Point,
        before: Point,
    ) -> (Point, Vec<Copied>) {
        let mut copies = Vec::new();
        let mut read = match before.is_none() {
            true => point,
            false => before,
        };
        for ReplicaBlock {
            target,
            loan,
            offset,
            copied,
        } in blocks
        {
            let copied = target.copy(self, filled, (offset, &copied), point, read);
            // A lost context ends the order of this process's streams: a copy that was queued after the loss did not wait for the
            // message. Only the message's own point shows that.
            let aborted = progress(&self.storage, point) == Progress::Aborted;
            match copied {
                Ok(_) if aborted => {
                    target.settle();
                    self.give_back(loan, Point::NONE);
                }
                Ok(copied) => {
                    read = copied.read;
                    target.count(&self.storage, filled.bytes);
                    copies.push(Copied {
                        loan,
                        point: copied.written,
                        part_bytes: copied.part_bytes,
                    });
                }
                Err(error) => {
                    // The subscribers there read the message itself: in place, or through a private copy.
                    tracing::warn!(%error, topic = self.topic_name, "copying a message to another domain failed; it was published without this replica");
                    target.settle();
                    self.give_back(loan, Point::NONE);
                }
            }
        }
        (read, copies)
    }

    fn give_back(&self, loan: rgaps_topic::Loan, point: Point) {
        let mut state = self.lock();
        let super::ArenaState { writer, memory, .. } = &mut *state;
        writer.abandon(loan, point, &mut |block| memory.free(block));
    }

    /// The pools in which subscribers read, for which copies are needed and possible.
    fn wanted(&self) -> Vec<ReadDomain> {
        let mut replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (
            self.topic.membership_epoch().load(Ordering::Acquire),
            self.read_in_other_domains(),
        );
        let again = replicas.again_ns.is_some_and(|at| monotonic_ns() >= at);
        if replicas.seen == Some(now) && !again {
            return replicas.wanted.clone();
        }
        let mut readers = [0u64; MAX_POOLS];
        let mut slots = now.1;
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            if slot >= rgaps_layout::MAX_SUBSCRIBERS {
                break;
            }
            let pool = self.topic.subscriber(slot).pool().load(Ordering::Acquire);
            if let Some(count) = readers.get_mut((pool as usize).wrapping_sub(1)) {
                *count += 1;
            }
        }
        let mut wanted = Vec::new();
        replicas.again_ns = None;
        for (pool, readers) in (0u32..).zip(readers) {
            if readers == 0 || pool == self.own.pool.pool || wanted.len() == MAX_REPLICAS {
                continue;
            }
            if let Some(target) = self.target(&mut replicas, pool) {
                wanted.push(ReadDomain { target, readers });
            }
        }
        replicas.seen = Some(now);
        replicas.wanted.clone_from(&wanted);
        wanted
    }

    /// How to copy to a pool. `None`: its subscribers read in place, or copying is not possible now; a warning has told why, unless they left.
    fn target(&self, replicas: &mut Replicas, pool: u32) -> Option<Arc<CopyTarget>> {
        if let Some((_, known)) = replicas.targets.iter().find(|(known, _)| *known == pool) {
            return known.clone();
        }
        let target = match self.open(pool) {
            Ok(target) => target.map(Arc::new),
            // The subscribers there have left; others may join later.
            Err(error) if is_unread(&error) => {
                replicas.again_ns = Some(monotonic_ns() + RETRY_NS);
                return None;
            }
            // There was no daemon; the next one can open the pool.
            Err(error) if !matches!(error, ClientError::Pool(_) | ClientError::Refused(_)) => {
                tracing::warn!(%error, topic = self.topic_name, pool,
                    "messages are not copied to the domain of some subscribers for now");
                replicas.again_ns = Some(monotonic_ns() + RETRY_NS);
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, topic = self.topic_name, pool,
                    "messages cannot be copied to the domain of some subscribers, which read them in place");
                None
            }
        };
        replicas.targets.push((pool, target.clone()));
        target
    }

    /// How to copy to a pool. `None`: subscribers there read the messages in place.
    fn open(&self, pool: u32) -> Result<Option<CopyTarget>, ClientError> {
        let (conductor, zone) = (&self.client.conductor, self.member.zone);
        let pool = conductor.pool_grant(zone, pool)?;
        if self.own.pool.domain == Domain::Host && self.reads_host_memory(pool.domain) {
            return Ok(None);
        }
        conductor.write_in(self.member, pool.pool)?;
        let map = |pool, at| conductor.pool_mapping(zone, pool, Access::ReadWrite, at);
        let stream = |mapping: &Arc<PoolMapping>| -> Result<CudaStream, ClientError> {
            let Some(context) = mapping.context() else {
                return Err(crate::client::broken("a copy without a GPU"));
            };
            Ok(CudaStream::new(context.clone()).map_err(|error| mapping.fail(error))?)
        };
        let direct = |from: Arc<PoolMapping>, peers| -> Result<CopyPath, ClientError> {
            Ok(CopyPath::Direct {
                stream: stream(&from)?,
                from,
                peers,
                turn: Mutex::default(),
            })
        };
        let own = self.own.pool;
        let (mapping, path) = match (own.domain, pool.domain) {
            // The GPU that the copies go to makes them.
            (Domain::Host, _) => {
                let mapping = map(pool, pool.domain)?;
                (mapping, direct(map(own, pool.domain)?, false)?)
            }
            (Domain::Cuda(_), Domain::Cuda(_)) if !self.reaches(&pool)? => {
                let mapping = map(pool, pool.domain)?;
                let near = stream(&self.own.mapping)?;
                let far = stream(&mapping)?;
                let buffer = PinnedBuffer::new(near.context().clone(), 2 * CHUNK_BYTES)
                    .map_err(|error| self.own.mapping.fail(error))?;
                let staged = Staged {
                    near,
                    far,
                    buffer,
                    free: Mutex::default(),
                };
                (mapping, CopyPath::Staged(staged))
            }
            (Domain::Cuda(_), domain) => {
                let mapping = map(pool, own.domain)?;
                let peers = domain != Domain::Host;
                (mapping, direct(self.own.mapping.clone(), peers)?)
            }
        };
        mapping.prepare(&self.client.zone);
        let arena = self.lock().memory.arena_of(pool.pool);
        Ok(Some(CopyTarget {
            mapped: MappedArena {
                arena,
                pool,
                mapping,
            },
            path,
        }))
    }

    /// Whether the domain is a GPU that shares the host's memory. Asks the driver without creating a context.
    fn reads_host_memory(&self, domain: Domain) -> bool {
        let Domain::Cuda(uuid) = domain else {
            return false;
        };
        self.client.conductor.config().pool.cuda.enabled != CudaUse::Off
            && Driver::load()
                .and_then(|driver| driver.device(uuid))
                .is_ok_and(|device| device.reads_host_memory())
    }

    /// Whether the publisher's GPU reaches the memory of the pool's.
    fn reaches(&self, pool: &rgaps_session::PoolGrant) -> Result<bool, PoolError> {
        let (Some(context), Domain::Cuda(peer)) = (self.own.mapping.context(), pool.domain) else {
            return Ok(false);
        };
        let reaches = context.driver().reaches(context.device(), peer);
        reaches.map_err(|error| error.into_pool(peer))
    }
}

/// Whether the daemon says that nobody reads in a pool.
fn is_unread(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.code == RefusalCode::NotPermitted)
}

/// Bytes of each part in which a message of `bytes` bytes is copied to the host. 0: the copy is made in one part.
fn part_bytes(bytes: u64) -> u64 {
    let part = |parts| bytes.div_ceil(parts).next_multiple_of(WHOLE_BYTES_MAX);
    match bytes > WHOLE_BYTES_MAX {
        true => part(PARTS).min(PART_BYTES).max(part(MAX_COPY_PIECES)),
        false => 0,
    }
}

/// A copy that was queued on a stream.
struct QueuedCopy {
    /// The point after which neither this copy nor those before it read the message.
    read: Point,
    /// The point at which the copy is complete.
    written: Point,
    /// Bytes of each part; 0 if the copy is made in one part.
    part_bytes: u64,
}

impl ReplicaBlock {
    /// Queues the copy of the bytes `from..end` of a loan in host memory. `offset`: that of the loan in its pool.
    pub(super) fn copy_part(
        &mut self,
        core: &PublisherCore,
        offset: u64,
        (from, end): (u64, u64),
    ) -> Result<(), CudaError> {
        let CopyPath::Direct {
            stream, from: pool, ..
        } = &self.target.path
        else {
            return Ok(());
        };
        let copying = CopyStream {
            core,
            mapping: pool,
            target: &self.target.mapped.mapping,
            stream: stream.handle(),
        };
        let to = self.target.mapped.mapping.base() + self.offset;
        copying.copy(to + from, pool.base() + offset + from, end - from)?;
        self.copied.insert(from, end);
        Ok(())
    }

    /// Gives back the block after a failed copy, once the copies that were queued before have ended.
    pub(super) fn fail(self, core: &PublisherCore, error: &CudaError) {
        tracing::debug!(%error, topic = core.topic_name, "copying while a loan is being filled failed; the message is copied when it is published");
        self.target.settle();
        core.give_back(self.loan, Point::NONE);
    }
}

impl CopyTarget {
    /// Whether the `readers` subscribers there read a message of `bytes` bytes in place, over peer access, instead of a replica.
    fn is_read_directly(&self, conductor: &Conductor, bytes: u64, readers: u64) -> bool {
        let CopyPath::Direct { peers: true, .. } = self.path else {
            return false;
        };
        let cuda = &conductor.config().pool.cuda;
        match cuda.peer {
            PeerUse::Copy => false,
            PeerUse::Map => true,
            PeerUse::Auto => bytes.saturating_mul(readers) <= cuda.map_max.0,
        }
    }

    /// Queues the copy of a message that is complete at `point`. `read`: the point after which earlier copies no longer read the
    /// message; this copy's `read` includes it. `copied`: ranges that a streaming copy has queued.
    fn copy(
        &self,
        core: &PublisherCore,
        filled: &Filled<'_>,
        (offset, copied): (u64, &Ranges),
        point: Point,
        read: Point,
    ) -> Result<QueuedCopy, CudaError> {
        let to = self.mapped.mapping.base() + offset;
        let (from, stream, turn) = match &self.path {
            CopyPath::Staged(staged) => {
                return self.copy_staged(staged, core, filled, to, (point, read))
            }
            CopyPath::Direct {
                stream, from, turn, ..
            } => (from, stream, turn),
        };
        let copying = self.stream(core, from, stream);
        copying.wait(point)?;
        let source = from.base() + filled.offset;
        let mut part_bytes = match self.mapped.pool.domain {
            Domain::Host => part_bytes(filled.bytes),
            // Readers on a GPU cannot use parts.
            Domain::Cuda(_) => 0,
        };
        let written = if part_bytes == 0 {
            for (start, end) in copied.missing(filled.bytes) {
                copying.copy(to + start, source + start, end - start)?;
            }
            copying.point()?
        } else {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let (written, in_order) =
                copying.copy_in_parts(to, source, filled.bytes, part_bytes)?;
            if !in_order {
                part_bytes = 0;
            }
            written
        };
        let mut queued = copying.end(written, point, read)?;
        queued.part_bytes = part_bytes;
        Ok(queued)
    }

    /// The stream that copies to this pool.
    fn stream<'a>(
        &'a self,
        core: &'a PublisherCore,
        mapping: &'a Arc<PoolMapping>,
        stream: &CudaStream,
    ) -> CopyStream<'a> {
        CopyStream {
            core,
            mapping,
            target: &self.mapped.mapping,
            stream: stream.handle(),
        }
    }

    /// Like `copy`, over pinned memory with two halves: one stream fills a half while the other stream empties the other half.
    fn copy_staged(
        &self,
        staged: &Staged,
        core: &PublisherCore,
        filled: &Filled<'_>,
        to: u64,
        (point, read): (Point, Point),
    ) -> Result<QueuedCopy, CudaError> {
        let near = CopyStream {
            target: &core.own.mapping,
            ..self.stream(core, &core.own.mapping, &staged.near)
        };
        let far = self.stream(core, &self.mapped.mapping, &staged.far);
        near.wait(point)?;
        let mut free = staged.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        let mut written = Point::NONE;
        while at < filled.bytes {
            let half = (at / CHUNK_BYTES % 2) as usize;
            let bytes = (filled.bytes - at).min(CHUNK_BYTES);
            let buffer = staged.buffer.address() + half as u64 * CHUNK_BYTES;
            near.wait(free[half])?;
            near.copy(buffer, core.own.mapping.base() + filled.offset + at, bytes)?;
            let there = near.point()?;
            far.wait(there)?;
            far.copy(to + at, buffer, bytes)?;
            written = far.point()?;
            free[half] = written;
            at += bytes;
        }
        near.wait(read)?;
        let read = near.point()?;
        Ok(QueuedCopy {
            read,
            written,
            part_bytes: 0,
        })
    }

    /// Counts one more message copied to this pool, for the metrics.
    fn count(&self, storage: &Shared, bytes: u64) {
        if let Some((messages, all)) = pool_copies(storage, self.mapped.pool.pool) {
            messages.fetch_add(1, Ordering::Relaxed);
            all.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Queues the end of a streaming copy that is not needed. `read`: as for [`copy`](Self::copy).
    fn end(&self, core: &PublisherCore, read: Point) -> Result<QueuedCopy, CudaError> {
        let CopyPath::Direct { stream, from, .. } = &self.path else {
            return Ok(QueuedCopy {
                read,
                written: Point::NONE,
                part_bytes: 0,
            });
        };
        let copying = self.stream(core, from, stream);
        let written = copying.point()?;
        copying.end(written, Point::NONE, read)
    }

    /// Waits on the CPU for all work of this target's streams, after a failure.
    fn settle(&self) {
        let streams = match &self.path {
            CopyPath::Direct { stream, .. } => [Some(stream), None],
            CopyPath::Staged(staged) => [Some(&staged.near), Some(&staged.far)],
        };
        for stream in streams.into_iter().flatten() {
            if let Err(error) = stream.synchronize() {
                tracing::debug!(%error, "synchronizing a stream after a failure failed, too");
            }
        }
    }
}

/// The point after which a message is no longer read: `written`, that of the last copy. If `written` is none, the copy is complete
/// already, and so is everything that it waited for.
fn written_or(written: Point, read: Point, point: Point) -> Point {
    match written.is_none() {
        true if read == point => Point::NONE,
        true => read,
        false => written,
    }
}

/// A stream of the publisher that copies.
struct CopyStream<'a> {
    core: &'a PublisherCore,
    /// The source, or on the way out of pinned memory the target; its GPU owns the stream.
    mapping: &'a Arc<PoolMapping>,
    /// The target, or on the way into pinned memory the source.
    target: &'a Arc<PoolMapping>,
    stream: Stream,
}

impl CopyStream<'_> {
    fn wait(&self, point: Point) -> Result<(), CudaError> {
        let core = self.core;
        let on_cpu = || core.wait_for(point);
        self.mapping
            .wait_on(&core.client, self.stream, point, on_cpu)
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), CudaError> {
        let Some(on) = self.mapping.on_stream(self.stream) else {
            return Ok(());
        };
        let on = on?;
        let mut at = 0;
        while at < bytes {
            let at_once = self.mapping.bytes_at_once(from + at, bytes - at);
            let at_once = self.target.bytes_at_once(to + at, at_once);
            // SAFETY: the source is the message's block and the target a block that this publisher allocated for the copy; or one of
            // them is a half of the staging buffer. The publisher holds the blocks until the point behind the copy has passed, reuses a
            // half only behind its point, and nobody else writes any of them.
            unsafe { on.copy(to + at, from + at, at_once)? };
            at += at_once;
        }
        Ok(())
    }

    /// Queues a copy in parts, each with a point of its own. Returns the last point, and whether the points are consecutive.
    fn copy_in_parts(
        &self,
        to: u64,
        from: u64,
        bytes: u64,
        part_bytes: u64,
    ) -> Result<(Point, bool), CudaError> {
        let core = self.core;
        let (mut at, mut last, mut in_order) = (0, Point::NONE, true);
        while at < bytes {
            let part = part_bytes.min(bytes - at);
            self.copy(to + at, from + at, part)?;
            let point = self.mapping.next_point(&core.client, self.stream)?;
            let next = Point {
                value: last.value + 1,
                ..last
            };
            in_order &= !point.is_none() && (at == 0 || point == next);
            last = point;
            at += part;
        }
        Ok((last, in_order))
    }

    /// Describes a queued copy that is complete at `written`. If earlier copies run on another stream, queues a point behind both
    /// as its `read`. `point`: the message's; `read`: the point after which earlier copies no longer read the message.
    fn end(&self, written: Point, point: Point, read: Point) -> Result<QueuedCopy, CudaError> {
        let queued = |read| QueuedCopy {
            read,
            written,
            part_bytes: 0,
        };
        if read == point || written.timeline == read.timeline {
            return Ok(queued(written_or(written, read, point)));
        }
        // Earlier copies run on another stream: the new point comes behind them and this copy.
        self.wait(read)?;
        Ok(queued(self.point()?))
    }

    fn point(&self) -> Result<Point, CudaError> {
        let core = self.core;
        self.mapping.point(&core.client, self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_cut_into_a_few_parts() {
        const MIB: u64 = 1 << 20;
        for (bytes, part) in [
            (0, 0),
            (MIB, 0),
            (MIB + 1, MIB),
            (4 * MIB, MIB),
            (8 * MIB, 2 * MIB),
            (16 * MIB, 4 * MIB),
            (64 * MIB, 4 * MIB),
            (1024 * MIB, 32 * MIB),
        ] {
            assert_eq!(part_bytes(bytes), part, "{bytes}");
            assert!(part == 0 || bytes.div_ceil(part) <= MAX_COPY_PIECES);
        }
    }
}
