//! A zone's control segment: the daemon's mapping of it, and which ranges, doorbells and timelines are handed out.

use crate::doorbells::Doorbells;
use crate::granule_set::LiveGranules;
use crate::ranges::Ranges;
use crate::refuse::{refuse, system};
use crate::registry::{punch, write_control_header, RegistryFile};
use crate::timelines::Timelines;
use crate::topic::{Publisher, Topic};
use rgaps_layout::{ControlHeader, CONTROL_BYTES, CONTROL_MAGIC, DYNAMIC_OFFSET, LAYOUT_VERSION};
use rgaps_pool::{create_sealed_memfd, verify_memfd, Access, PoolError, SharedMap};
use rgaps_session::{Refusal, RefusalCode, ZoneId};
use rgaps_topic::{live_blocks, PublisherView, RegionView, Shared, TopicView};
use rustix::fs::{seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes that one sweep gives back at most: more would keep the daemon's clients waiting.
const SWEEP_BYTES_MAX: u64 = 64 << 20;

/// A zone's control segment.
#[derive(Debug)]
pub(crate) struct Control {
    /// Views of the mapping. No view is stored beyond the call that made it, so none outlives `map`.
    words: Shared,
    map: SharedMap,
    fd: OwnedFd,
    inode: u64,
    ranges: Ranges,
    pub(crate) doorbells: Doorbells,
    pub(crate) timelines: Timelines,
}

impl Control {
    /// A new control segment.
    pub(crate) fn create(zone: ZoneId) -> Result<Control, PoolError> {
        let fd = create_sealed_memfd("rgaps-control", CONTROL_BYTES)?;
        let header = ControlHeader {
            magic: CONTROL_MAGIC,
            version: LAYOUT_VERSION,
            zone_id: zone.to_le_bytes(),
            bytes: CONTROL_BYTES,
            ..ControlHeader::default()
        };
        write_control_header(fd.as_fd(), &header).map_err(|source| PoolError::System {
            call: "pwrite",
            source,
            hint: "is the daemon's control group at its limit of memory?".to_owned(),
        })?;
        Control::map(fd)
    }

    /// Takes over a predecessor's control segment, which a client handed back. Ignores its header: clients could have written
    /// anything there, and the daemon needs nothing of it.
    pub(crate) fn adopt(fd: OwnedFd) -> Result<Control, PoolError> {
        let mut control = Control::map(fd)?;
        control.timelines.unclaimed = true;
        Ok(control)
    }

    fn map(fd: OwnedFd) -> Result<Control, PoolError> {
        let inode = verify_memfd(fd.as_fd(), CONTROL_BYTES)?;
        let map = SharedMap::new(fd.as_fd(), CONTROL_BYTES, Access::ReadWrite)?;
        // SAFETY: `map` is a page-aligned read-write mapping of CONTROL_BYTES bytes of a sealed
        // memfd, which cannot shrink. It lives as long as `self`, and views are not stored: they
        // live no longer than the request or tick that made them. Nobody makes references into it.
        let words = unsafe { Shared::new(map.base().as_ptr(), map.bytes()) };
        Ok(Control {
            words,
            map,
            fd,
            inode,
            ranges: Ranges::new(DYNAMIC_OFFSET, CONTROL_BYTES),
            doorbells: Doorbells::default(),
            timelines: Timelines::new(),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    pub(crate) fn words(&self) -> &Shared {
        &self.words
    }

    /// The view of a topic. This daemon handed out `offset`, or has checked it.
    pub(crate) fn topic(&self, offset: u64) -> TopicView<Shared> {
        TopicView::new(self.words, offset).expect("an offset that the daemon chose or checked")
    }

    /// A publisher's slot.
    pub(crate) fn publisher(&self, topic: &Topic, slot: u32) -> PublisherView<Shared> {
        self.topic(topic.region).publisher(slot as usize)
    }

    /// A publisher's region, whose offset this daemon handed out, or has checked.
    pub(crate) fn ring(&self, publisher: &Publisher) -> RegionView<Shared> {
        let (offset, geometry) = (publisher.ring.region_offset, publisher.geometry());
        RegionView::new(self.words, offset, geometry)
            .expect("an offset and numbers that the daemon chose or checked")
    }

    /// The granules with blocks of a publisher that any holder word holds.
    pub(crate) fn live_granules(&self, topic: &Topic, publisher: &Publisher) -> LiveGranules {
        let words = self.publisher(topic, publisher.slot);
        let mut live = LiveGranules::default();
        for (pool, offset, bytes) in live_blocks(&words, &self.ring(publisher)) {
            live.add(pool.unwrap_or(publisher.pool), offset, bytes);
        }
        live
    }

    /// Hands out a range of zeros. First writes the end of the highest range to the registry: each time, because that end
    /// also falls when the highest ranges are given back.
    pub(crate) fn take(&mut self, bytes: u64, registry: &RegistryFile) -> Result<u64, Refusal> {
        let offset = self.ranges.take(bytes).ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                "the control segment is full; close publishers, or publish with less history",
            )
        })?;
        if let Err(error) = registry.set_control_used(self.used_end()) {
            self.give(offset, bytes);
            return Err(system("write its registry", error));
        }
        Ok(offset)
    }

    /// Marks a range as handed out. False, and no change: a part of it already is.
    pub(crate) fn reserve(&mut self, offset: u64, bytes: u64) -> bool {
        self.ranges.reserve(offset, bytes)
    }

    /// Marks all free ranges below `end` as handed out. Returns their offsets and lengths.
    pub(crate) fn set_aside_below(&mut self, end: u64) -> Vec<(u64, u64)> {
        self.ranges.take_all_below(end)
    }

    /// One past the highest byte that is handed out.
    pub(crate) fn used_end(&self) -> u64 {
        self.ranges.used_end()
    }

    /// Returns the memory of a range whose contents nobody needs to the system. The range stays handed out.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) {
        if let Err(error) = punch(self.fd.as_fd(), offset, bytes) {
            tracing::warn!(%error, offset, bytes, "returning memory of a control segment to the system failed");
        }
    }

    /// Zeroes a range and makes it free.
    pub(crate) fn give(&mut self, offset: u64, bytes: u64) {
        match punch(self.fd.as_fd(), offset, bytes) {
            Ok(()) => self.ranges.give(offset, bytes),
            // The range is never handed out again: a lost range costs only addresses, and old words would mislead its next owner.
            Err(error) => {
                tracing::error!(%error, offset, bytes, "freeing a range of a control segment failed; the range is lost")
            }
        }
    }

    /// Returns to the system the memory that clients touched in free ranges: every member can write the whole segment. One call
    /// returns at most [`SWEEP_BYTES_MAX`] bytes. True: there may be more.
    pub(crate) fn sweep(&self) -> bool {
        let mut left = SWEEP_BYTES_MAX;
        for (offset, bytes) in self.ranges.free() {
            let end = offset + bytes;
            while let Ok(touched) = seek(&self.fd, SeekFrom::Data(offset)) {
                if touched >= end {
                    break;
                }
                if left == 0 {
                    return true;
                }
                let hole = seek(&self.fd, SeekFrom::Hole(touched)).unwrap_or(end);
                let piece = hole.min(end).saturating_sub(touched).min(left);
                if piece == 0 || punch(self.fd.as_fd(), touched, piece).is_err() {
                    break;
                }
                left -= piece;
            }
        }
        false
    }

    /// Drops this process's page table entries for the segment, so that the daemon stays small after it has looked at many
    /// topics. The memory itself stays.
    pub(crate) fn forget_pages(&self) {
        // SAFETY: the range is `map`'s own; for a shared file mapping MADV_DONTNEED loses nothing,
        // the next access finds the same pages in the file again.
        let result = unsafe {
            rustix::mm::madvise(
                self.map.base().as_ptr().cast(),
                self.map.bytes() as usize,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
        if let Err(error) = result {
            tracing::debug!(%error, "madvise(MADV_DONTNEED) on a control segment");
        }
    }
}
