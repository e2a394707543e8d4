//! A pool: its segments, and who leases which granules of it.

use crate::granule_set::GranuleSet;
use crate::granules::{Granules, FREE};
use crate::refuse::{bad, memory, refuse, system};
use crate::registry::{make_private, reopen, RegistryFile};
use rgaps_layout::{Domain, PoolRecord, SegmentRecord, GRANULE_BYTES, MAX_SEGMENTS, RECORD_LIVE};
use rgaps_pool::{Provider, Segment, SegmentSource};
use rgaps_session::{PoolGrant, Range, Refusal, RefusalCode};
use rustix::fs::OFlags;
use std::os::fd::{AsFd, OwnedFd};

/// A pool of one domain.
pub(crate) struct Pool {
    pub(crate) index: u32,
    pub(crate) domain: Domain,
    pub(crate) cap_bytes: u64,
    /// Bytes of a new segment, as a rule.
    pub(crate) segment_bytes: u64,
    /// Whether clients have registered the pool's pages with drivers. Then free memory keeps its pages.
    pub(crate) pinned: bool,
    source: Box<dyn SegmentSource>,
    /// None: a predecessor's segment that no client has handed back yet.
    segments: Vec<Option<Segment>>,
    /// The registry's record of each segment, also of those that are not handed back yet.
    expected: Vec<SegmentRecord>,
    granules: Granules,
}

/// Why a lease failed.
pub(crate) enum LeaseError {
    /// The pool is full. Evicting history that nobody needs may help.
    Full(Refusal),
    /// Anything else.
    Other(Refusal),
}

impl Pool {
    /// A pool without segments. The caller writes its `record` to the registry.
    pub(crate) fn new(
        index: u32,
        source: Box<dyn SegmentSource>,
        cap_bytes: u64,
        segment_bytes: u64,
    ) -> Pool {
        let unit = source.granularity();
        Pool {
            index,
            domain: source.domain(),
            cap_bytes: (cap_bytes / unit * unit).clamp(unit, rgaps_layout::MAX_POOL_BYTES),
            segment_bytes: segment_bytes.max(1).next_multiple_of(unit),
            pinned: false,
            source,
            segments: Vec::new(),
            expected: Vec::new(),
            granules: Granules::default(),
        }
    }

    /// Adds the segments that the registry records. Clients have still to hand them back.
    pub(crate) fn expect(&mut self, segments: &[SegmentRecord]) {
        self.segments = segments.iter().map(|_| None).collect();
        self.expected = segments.to_vec();
        let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        self.granules.grow((bytes / GRANULE_BYTES) as usize);
    }

    /// Restores a lease.
    pub(crate) fn restore_owner(&mut self, first: usize, count: usize, owner: u32) {
        self.granules.set(first, count, owner);
    }

    pub(crate) fn granule_count(&self) -> usize {
        self.granules.len()
    }

    pub(crate) fn record(&self) -> PoolRecord {
        let (domain_kind, gpu_uuid) = match self.domain {
            Domain::Host => (0, [0; 16]),
            Domain::Cuda(uuid) => (1, uuid.0),
        };
        let mut segments = [SegmentRecord::default(); MAX_SEGMENTS];
        segments[..self.expected.len()].copy_from_slice(&self.expected);
        PoolRecord {
            state: RECORD_LIVE,
            domain_kind,
            gpu_uuid,
            cap_bytes: self.cap_bytes,
            segment_count: self.expected.len() as u32,
            pinned: u32::from(self.pinned),
            segments,
        }
    }

    pub(crate) fn grant(&self) -> PoolGrant {
        PoolGrant {
            pool: self.index,
            domain: self.domain,
            cap_bytes: self.cap_bytes,
            segments: self.segments.len() as u32,
        }
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().flatten()
    }

    pub(crate) fn segment_count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Whether clients have still to hand back segments of a predecessor.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.segments.iter().any(Option::is_none)
    }

    /// Bytes of the segments before the first one that is still to be handed back, which may turn out to be lost.
    fn present_bytes(&self) -> u64 {
        let present = self.segments.iter().map_while(Option::as_ref);
        present.map(|segment| segment.bytes).sum()
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.granules.len() as u64 * GRANULE_BYTES
    }

    pub(crate) fn leased_bytes(&self) -> u64 {
        self.granules.leased() as u64 * GRANULE_BYTES
    }

    pub(crate) fn granules_of(&self, owner: u32) -> usize {
        self.granules.count(owner)
    }

    pub(crate) fn leased_bytes_of(&self, owner: u32) -> u64 {
        self.granules_of(owner) as u64 * GRANULE_BYTES
    }

    /// Descriptors of segments from number `from` on, at most `most`, for reading or writing.
    pub(crate) fn descriptors(
        &self,
        from: u32,
        most: usize,
        writable: bool,
    ) -> Result<(Vec<u64>, Vec<OwnedFd>), Refusal> {
        let (mut bytes, mut fds) = (Vec::new(), Vec::new());
        if self
            .segments
            .get(from as usize)
            .is_some_and(Option::is_none)
        {
            return Err(refuse(
                RefusalCode::Recovering,
                "clients of the previous daemon have not handed back this segment yet; try again shortly",
            ));
        }
        for segment in self.segments.iter().skip(from as usize).take(most) {
            let Some(segment) = segment else { break };
            // A CUDA handle or a dma-buf is no file that could be opened again; its importer chooses how to map it.
            let fd = match is_file(segment) {
                true if writable => reopen(segment.fd.as_fd(), OFlags::RDWR),
                true => reopen(segment.fd.as_fd(), OFlags::RDONLY),
                false => segment.fd.try_clone(),
            };
            fds.push(fd.map_err(|e| system("open the memory of a segment", e))?);
            bytes.push(segment.bytes);
        }
        Ok((bytes, fds))
    }

    /// Leases at least `bytes` contiguous bytes to `owner`.
    pub(crate) fn lease(
        &mut self,
        registry: &RegistryFile,
        bytes: u64,
        owner: u32,
    ) -> Result<Range, LeaseError> {
        if bytes > self.cap_bytes {
            return Err(LeaseError::Other(self.full(bytes)));
        }
        let count = bytes.max(1).div_ceil(GRANULE_BYTES) as usize;
        let first = match self.granules.find(count) {
            Some(first) if (first + count) as u64 * GRANULE_BYTES > self.present_bytes() => {
                return Err(LeaseError::Other(refuse(
                    RefusalCode::Recovering,
                    "the pool's free memory has not been handed back to the new daemon yet; try again shortly",
                )));
            }
            Some(first) => first,
            None => {
                self.grow(registry, count, bytes)?;
                self.granules
                    .find(count)
                    .ok_or_else(|| LeaseError::Full(self.full(bytes)))?
            }
        };
        registry
            .set_granules(self.index, first, count, owner)
            .map_err(|e| LeaseError::Other(system("write its registry", e)))?;
        self.granules.set(first, count, owner);
        Ok(range(first, count))
    }

    /// Adds a segment, so that `count` granules in a row are free at the end.
    fn grow(
        &mut self,
        registry: &RegistryFile,
        count: usize,
        bytes: u64,
    ) -> Result<(), LeaseError> {
        if self.is_incomplete() {
            return Err(LeaseError::Other(refuse(
                RefusalCode::Recovering,
                "the pool cannot grow until its clients have handed it back to the new daemon",
            )));
        }
        let missing = (count - self.granules.free_tail()) as u64 * GRANULE_BYTES;
        let left = self.cap_bytes.saturating_sub(self.mapped_bytes());
        if self.segments.len() >= MAX_SEGMENTS {
            return Err(LeaseError::Full(refuse(
                RefusalCode::PoolFull,
                format!(
                    "the {} pool has {MAX_SEGMENTS} segments, which is the limit; raise the pool's segment in rgaps.toml, then run 'rgaps down'",
                    self.domain
                ),
            )));
        }
        let unit = self.source.granularity();
        let missing = missing.next_multiple_of(unit);
        if missing > left {
            return Err(LeaseError::Full(self.full(bytes)));
        }
        let size = self.segment_bytes.min(left).max(missing);
        let segment = match self.source.create(size) {
            // A segment of just the bytes that are needed may still fit.
            Err(_) if size > missing => self.source.create(missing),
            made => made,
        }
        .map_err(|error| LeaseError::Full(memory(error)))?;
        if is_file(&segment) {
            make_private(segment.fd.as_fd())
                .map_err(|e| LeaseError::Other(system("protect a segment", e)))?;
        }
        registry
            .add_segment(
                self.index,
                self.segment_count(),
                segment.bytes,
                segment.inode,
            )
            .map_err(|e| LeaseError::Other(system("write its registry", e)))?;
        self.granules.grow((segment.bytes / GRANULE_BYTES) as usize);
        self.expected.push(SegmentRecord {
            bytes: segment.bytes,
            inode: segment.inode,
        });
        self.segments.push(Some(segment));
        Ok(())
    }

    fn full(&self, bytes: u64) -> Refusal {
        refuse(
            RefusalCode::PoolFull,
            format!(
                "the {} pool has no {bytes} contiguous bytes left: {} of at most {} bytes are leased",
                self.domain,
                self.leased_bytes(),
                self.cap_bytes
            ),
        )
    }

    /// The granules of a range, if all of them are `owner`'s.
    pub(crate) fn owned(&self, range: &Range, owner: u32) -> Option<(usize, usize)> {
        let whole = range.offset % GRANULE_BYTES == 0 && range.bytes % GRANULE_BYTES == 0;
        let end = range.offset.checked_add(range.bytes)?;
        if !whole || range.bytes == 0 || end > self.mapped_bytes() {
            return None;
        }
        let first = (range.offset / GRANULE_BYTES) as usize;
        let count = (range.bytes / GRANULE_BYTES) as usize;
        self.granules
            .has(owner, first, count)
            .then_some((first, count))
    }

    /// Frees granules and gives their memory back to the system.
    pub(crate) fn free(&mut self, registry: &RegistryFile, first: usize, count: usize) {
        // The memory first: once the registry says that a granule is free, a successor may lease it.
        self.discard(first, count);
        if let Err(error) = registry.set_granules(self.index, first, count, FREE) {
            tracing::error!(%error, "recording the end of a lease failed; its memory stays leased");
            return;
        }
        self.granules.set(first, count, FREE);
    }

    /// Frees those of `owner`'s granules that are not in `keep`. Returns how many.
    pub(crate) fn free_except(
        &mut self,
        registry: &RegistryFile,
        owner: u32,
        keep: &GranuleSet,
    ) -> usize {
        let mut freed = 0;
        for (first, count) in self.granules.runs(owner) {
            for (first, count) in keep.missing(first, count) {
                self.free(registry, first, count);
                freed += count;
            }
        }
        freed
    }

    /// Notes that a client registers the pool's pages with a driver, which keeps them from then on. So free memory is not returned
    /// to the system: a hole would leave the driver with pages that nobody else maps.
    pub(crate) fn pin(&mut self, registry: &RegistryFile) -> Result<(), Refusal> {
        if self.domain != Domain::Host {
            return Err(bad(format!(
                "the {} pool is GPU memory; only host pools can be pinned",
                self.domain
            )));
        }
        if !self.pinned {
            registry
                .set_pinned(self.index)
                .map_err(|e| system("write its registry", e))?;
            self.pinned = true;
        }
        Ok(())
    }

    /// Returns the memory of granules to the system, unless the pool is pinned.
    fn discard(&mut self, first: usize, count: usize) {
        if self.pinned {
            return;
        }
        let (mut at, end) = (
            first as u64 * GRANULE_BYTES,
            (first + count) as u64 * GRANULE_BYTES,
        );
        let mut start = 0;
        for (segment, record) in self.segments.iter().zip(&self.expected) {
            let stop = start + record.bytes;
            if at < stop && end > start {
                let bytes = end.min(stop) - at;
                if let Some(segment) = segment {
                    self.source.discard(segment, at - start, bytes);
                }
                at += bytes;
            }
            start = stop;
        }
    }

    /// Takes a predecessor's segment from a client that hands it back. Does nothing if another client has handed it back.
    pub(crate) fn adopt(&mut self, number: u32, fd: OwnedFd) -> Result<(), Refusal> {
        let record = *self.expected.get(number as usize).ok_or_else(|| {
            refuse(
                RefusalCode::BadRequest,
                format!("the pool has no segment {number}"),
            )
        })?;
        let slot = &mut self.segments[number as usize];
        if slot.is_none() {
            let mut segment = self
                .source
                .adopt(fd, record.bytes, record.inode)
                .map_err(memory)?;
            if is_file(&segment) {
                // The descriptor may be a subscriber's read-only one, through which no memory could be returned to the system.
                segment.fd = reopen(segment.fd.as_fd(), OFlags::RDWR)
                    .map_err(|e| system("open a segment that a client handed back", e))?;
            }
            *slot = Some(segment);
        }
        Ok(())
    }

    /// Gives up the first segment that no client handed back, and all behind it. No block in them is in use, since clients map
    /// segments in order. Returns how many bytes of the pool are left.
    pub(crate) fn drop_missing(&mut self, registry: &RegistryFile) -> u64 {
        let Some(first) = self.segments.iter().position(Option::is_none) else {
            return self.mapped_bytes();
        };
        let kept: u64 = self.expected[..first]
            .iter()
            .map(|segment| segment.bytes)
            .sum();
        let kept = (kept / GRANULE_BYTES) as usize;
        let lost = self.granules.len() - kept;
        let written = registry
            .set_granules(self.index, kept, lost, FREE)
            .and_then(|()| registry.set_segment_count(self.index, first as u32));
        if let Err(error) = written {
            tracing::error!(%error, "recording lost segments failed");
        }
        tracing::warn!(
            pool = self.index,
            segments = self.segments.len() - first,
            "no client has these segments of the previous daemon any more; they are lost"
        );
        self.segments.truncate(first);
        self.expected.truncate(first);
        self.granules.truncate(kept);
        self.mapped_bytes()
    }
}

fn is_file(segment: &Segment) -> bool {
    let provider = segment.placement.provider;
    provider.is_some_and(Provider::gives_files)
}

fn range(first: usize, count: usize) -> Range {
    Range {
        offset: first as u64 * GRANULE_BYTES,
        bytes: count as u64 * GRANULE_BYTES,
    }
}
