//! A client that writes where it may write: the control segment is everybody's.

use crate::liar::{publisher, subscriber, Liar};
use rgaps_layout::{
    DeferredRelease, Doorbell, PublisherRecord, PublisherRegion, RegistryHeader, Timeline,
    TopicRecord, TopicRegion, CONTROL_BYTES, DOORBELL_TABLE_OFFSET, MAX_DEFERRED_RELEASES,
    RECORD_LIVE, TIMELINE_TABLE_OFFSET,
};
use rgaps_pool::{Access, SharedMap};
use rgaps_session::{Member, Side, ZoneId};
use rgaps_testkit::Random;
use std::mem::{offset_of, size_of, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Topics of the registry that are looked at.
const TOPICS_LOOKED_AT: usize = 64;
/// Subscribers whose lists of holds that they let go of are written over.
const LISTS: u64 = 4;

/// What to write over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Words of the topic: masks, slots, cursors.
    Topic,
    /// Rings of descriptors.
    Rings,
    /// Holder words, extents, bitmaps.
    Blocks,
    /// What the topic's first subscribers let go of.
    DeferredRelease,
    /// Everybody's doorbells.
    Doorbells,
    /// Everybody's timelines.
    Timelines,
    /// All of these.
    All,
}

/// A member of a topic that has the zone's memory mapped.
pub struct Scribbler {
    _session: Liar,
    registry: OwnedFd,
    control: SharedMap,
    zone: ZoneId,
    topic: String,
}

impl Scribbler {
    /// Joins `topic` on both sides, in order.
    pub fn join(socket: &Path, topic: &str) -> Scribbler {
        let mut session = Liar::welcomed(socket);
        let joined = session.join(topic, subscriber(false)).expect("not cut off");
        let joined = joined.expect("a subscriber");
        let [registry, control] = <[OwnedFd; 2]>::try_from(joined.fds).expect("two descriptors");
        let also = session.join(topic, publisher()).expect("not cut off");
        also.expect("a publisher");
        let control =
            SharedMap::new(control.as_fd(), CONTROL_BYTES, Access::ReadWrite).expect("a mapping");
        Scribbler {
            _session: session,
            registry,
            control,
            zone: joined.member.zone,
            topic: topic.to_owned(),
        }
    }

    /// All members of the zone, as they really are.
    pub fn members(&self) -> Vec<Member> {
        let mut members = Vec::new();
        for topic in 0..TOPICS_LOOKED_AT as u32 {
            let record = self.record_at(topic as usize);
            let mut add = |side, slot: usize, state, incarnation| {
                if record.state == RECORD_LIVE && state == RECORD_LIVE {
                    members.push(Member {
                        zone: self.zone,
                        topic,
                        side,
                        slot: slot as u32,
                        incarnation,
                    });
                }
            };
            for (slot, publisher) in record.publishers.iter().enumerate() {
                add(
                    Side::Publisher,
                    slot,
                    publisher.state,
                    publisher.incarnation,
                );
            }
            for (slot, subscriber) in record.subscribers.iter().enumerate() {
                add(
                    Side::Subscriber,
                    slot,
                    subscriber.state,
                    subscriber.incarnation,
                );
            }
        }
        members
    }

    fn record(&self) -> TopicRecord {
        let mut records = (0..TOPICS_LOOKED_AT).map(|index| self.record_at(index));
        let ours = |record: &TopicRecord| {
            let name = &record.name[..(record.name_bytes as usize).min(255)];
            record.state == RECORD_LIVE && name == self.topic.as_bytes()
        };
        records.find(ours).expect("the topic is in the registry")
    }

    fn record_at(&self, index: usize) -> TopicRecord {
        let mut record = MaybeUninit::<TopicRecord>::zeroed();
        // SAFETY: the bytes of `record`, initialised, which nobody else refers to.
        let bytes = unsafe {
            let start = record.as_mut_ptr().cast::<u8>();
            std::slice::from_raw_parts_mut(start, size_of::<TopicRecord>())
        };
        let at = RegistryHeader::topic(index);
        rustix::io::pread(&self.registry, &mut bytes[..], at).expect("pread");
        // SAFETY: a record is integers, for which any bytes are a value.
        unsafe { record.assume_init() }
    }

    fn ranges(&self, target: Target) -> Vec<Range<u64>> {
        let topic = self.record();
        let mut ranges = Vec::new();
        if matches!(target, Target::Topic | Target::All) {
            let end = topic.region_offset + offset_of!(TopicRegion, deferred_releases) as u64;
            ranges.push(topic.region_offset..end);
        }
        if matches!(target, Target::DeferredRelease | Target::All) {
            let lists = topic.region_offset + offset_of!(TopicRegion, deferred_releases) as u64;
            let list = (MAX_DEFERRED_RELEASES * size_of::<DeferredRelease>()) as u64;
            ranges.push(lists..lists + LISTS * list);
            // Without it nobody looks at them.
            let deferring = topic.region_offset + offset_of!(TopicRegion, deferring) as u64;
            ranges.push(deferring..deferring + 8);
        }
        let publishers = topic.publishers.iter().filter(|p| p.state != 0);
        for PublisherRecord {
            region_offset: at,
            ring_capacity,
            block_capacity,
            ..
        } in publishers.copied()
        {
            let region = PublisherRegion {
                ring_capacity,
                block_capacity,
            };
            if matches!(target, Target::Rings | Target::All) {
                ranges.push(at..at + region.block(0));
            }
            if matches!(target, Target::Blocks | Target::All) {
                // The entries that are in use, mostly.
                ranges.push(at + region.block(0)..at + region.block(64));
                ranges.push(at + region.returned(0)..at + region.bytes());
            }
        }
        if matches!(target, Target::Doorbells | Target::All) {
            let end = DOORBELL_TABLE_OFFSET + 64 * size_of::<Doorbell>() as u64;
            ranges.push(DOORBELL_TABLE_OFFSET..end);
        }
        if matches!(target, Target::Timelines | Target::All) {
            let end = TIMELINE_TABLE_OFFSET + 64 * size_of::<Timeline>() as u64;
            ranges.push(TIMELINE_TABLE_OFFSET..end);
        }
        ranges
    }

    /// Writes `count` words of nonsense.
    pub fn scribble(&self, target: Target, count: u64, random: &mut Random) {
        let ranges = self.ranges(target);
        for _ in 0..count {
            let range = &ranges[random.below(ranges.len() as u64) as usize];
            let words = (range.end - range.start) / 8;
            let at = range.start + random.below(words) * 8;
            let word = self.word(at);
            match random.below(4) {
                0 => word.store(random.nasty(), Ordering::Relaxed),
                1 => drop(word.fetch_xor(1 << random.below(64), Ordering::Relaxed)),
                2 => drop(word.fetch_add(random.below(5).wrapping_sub(2), Ordering::Relaxed)),
                // What was true elsewhere, or before.
                _ => {
                    let from = range.start + random.below(words) * 8;
                    word.store(self.word(from).load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at % 8 == 0 && at + 8 <= CONTROL_BYTES);
        // SAFETY: an aligned word within a mapping that lives as long as `self`; everybody who
        // looks at it does so atomically.
        unsafe {
            &*self
                .control
                .base()
                .as_ptr()
                .add(at as usize)
                .cast::<AtomicU64>()
        }
    }
}
