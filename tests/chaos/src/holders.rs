//! The zone as it is in shared memory: who is in which topic, and who holds which block.

use anyhow::Context;
use rgaps_layout::{
    BlockWord, ClientRecord, PoolRecord, PublisherRecord, PublisherRegion, RegistryHeader,
    TopicRecord, CONTROL_BYTES, GRANULE_BYTES, MAX_CLIENTS, MAX_POOLS, MAX_PUBLISHERS,
    MAX_SUBSCRIBERS, PRODUCER_BIT, RECORD_LIVE, RECORD_ORPHAN, RING_BIT,
};
use rgaps_pool::{Access, SharedMap};
use rgaps_topic::{replicas, Holders, RegionView, Shared, TopicView};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{size_of, MaybeUninit};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Topics of the registry that are looked at.
const TOPICS_LOOKED_AT: usize = 64;

/// A zone.
pub struct Zone {
    registry: OwnedFd,
    words: Shared,
    // Keeps mapped what `words` looks at.
    _control: SharedMap,
}

/// A topic.
pub struct Topic {
    pub name: String,
    /// Names of the clients that subscribe.
    pub subscribers: Vec<String>,
    pub publishers: Vec<Publisher>,
    /// Whether the masks in shared memory are those of the registry.
    pub masks_fit: bool,
}

/// A publisher.
pub struct Publisher {
    pub client: String,
    pub orphan: bool,
    pub granules_leased: u64,
    /// Granules in which blocks live.
    pub granules_live: u64,
    /// Bytes of blocks that live.
    pub bytes_live: u64,
    /// Messages that the ring holds.
    pub kept: u64,
    /// Their copies in other pools.
    pub copies: u64,
    /// Blocks with a subscriber's bit.
    pub held: Vec<String>,
    /// Blocks with the publisher's bit: loans.
    pub loaned: Vec<String>,
    /// Blocks with the ring's bit and no message in the ring, and the other way round.
    pub stray: Vec<String>,
}

/// # Safety
/// Integers only: any bytes are a value.
unsafe trait Record: Copy {}
// SAFETY: integers only, as are the following.
unsafe impl Record for RegistryHeader {}
// SAFETY: see above.
unsafe impl Record for TopicRecord {}
// SAFETY: see above.
unsafe impl Record for ClientRecord {}
// SAFETY: see above.
unsafe impl Record for PoolRecord {}
// SAFETY: see above.
unsafe impl Record for u32 {}

impl Zone {
    pub fn open([registry, control]: [OwnedFd; 2]) -> anyhow::Result<Zone> {
        let control = SharedMap::new(control.as_fd(), CONTROL_BYTES, Access::ReadWrite)?;
        // SAFETY: a page-aligned mapping of that size, which lives as long as the zone; views do
        // not leave this module.
        let words = unsafe { Shared::new(control.base().as_ptr(), CONTROL_BYTES) };
        Ok(Zone {
            registry,
            words,
            _control: control,
        })
    }

    fn read<T: Record>(&self, at: u64) -> anyhow::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: the bytes of `value`, initialised, which nobody else refers to.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>())
        };
        let read = rustix::io::pread(&self.registry, &mut bytes[..], at).context("pread")?;
        anyhow::ensure!(read == size_of::<T>(), "the registry ends early");
        // SAFETY: any bytes are a `Record`.
        Ok(unsafe { value.assume_init() })
    }

    /// One past the last byte of the control segment that was ever handed out.
    pub fn control_used(&self) -> anyhow::Result<u64> {
        Ok(self.read::<RegistryHeader>(0)?.control_used)
    }

    /// All topics.
    pub fn topics(&self) -> anyhow::Result<Vec<Topic>> {
        let owners = self.granule_owners()?;
        let mut topics = Vec::new();
        for index in 0..TOPICS_LOOKED_AT {
            let record: TopicRecord = self.read(RegistryHeader::topic(index))?;
            if record.state == RECORD_LIVE {
                topics.push(self.topic(index, &record, &owners)?);
            }
        }
        Ok(topics)
    }

    /// How many granules of all pools each publisher slot leases.
    fn granule_owners(&self) -> anyhow::Result<BTreeMap<u32, u64>> {
        let mut owners = BTreeMap::new();
        for index in 0..MAX_POOLS {
            let pool: PoolRecord = self.read(RegistryHeader::pool(index))?;
            if pool.state != RECORD_LIVE {
                continue;
            }
            let segments = &pool.segments[..(pool.segment_count as usize).min(pool.segments.len())];
            let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
            for granule in 0..(bytes / GRANULE_BYTES) as usize {
                let owner: u32 = self.read(RegistryHeader::granule(index, granule))?;
                if owner != 0 {
                    *owners.entry(owner).or_default() += 1;
                }
            }
        }
        Ok(owners)
    }

    fn client(&self, index: u32) -> anyhow::Result<String> {
        if index as usize >= MAX_CLIENTS {
            return Ok("nobody".to_owned());
        }
        let record: ClientRecord = self.read(RegistryHeader::client(index as usize))?;
        let end = record.name.iter().position(|byte| *byte == 0).unwrap_or(0);
        Ok(String::from_utf8_lossy(&record.name[..end]).into_owned())
    }

    fn topic(
        &self,
        index: usize,
        record: &TopicRecord,
        owners: &BTreeMap<u32, u64>,
    ) -> anyhow::Result<Topic> {
        let view = TopicView::new(self.words, record.region_offset).context("a topic's region")?;
        let (mut publisher_bits, mut subscriber_bits, mut reliable_bits) = (0u64, 0u64, 0u64);
        let mut subscribers = Vec::new();
        for (slot, subscriber) in record.subscribers.iter().enumerate() {
            if subscriber.state == RECORD_LIVE {
                subscriber_bits |= 1 << slot;
                reliable_bits |= u64::from(subscriber.qos_flags & 1) << slot;
                subscribers.push(self.client(subscriber.client)?);
            }
        }
        let mut publishers = Vec::new();
        for (slot, publisher) in record.publishers.iter().enumerate() {
            if matches!(publisher.state, RECORD_LIVE | RECORD_ORPHAN) {
                publisher_bits |= 1 << slot;
                let owner = 1 + (index * MAX_PUBLISHERS + slot) as u32;
                let leased = owners.get(&owner).copied().unwrap_or(0);
                publishers.push(self.publisher(&view, slot, publisher, leased)?);
            }
        }
        let name = &record.name[..(record.name_bytes as usize).min(record.name.len())];
        Ok(Topic {
            name: String::from_utf8_lossy(name).into_owned(),
            subscribers,
            publishers,
            masks_fit: view.publishers().load(Ordering::Acquire) == publisher_bits
                && view.subscribers().load(Ordering::Acquire) == subscriber_bits
                && view.reliable().load(Ordering::Acquire) == reliable_bits,
        })
    }

    fn publisher(
        &self,
        topic: &TopicView<Shared>,
        slot: usize,
        record: &PublisherRecord,
        granules_leased: u64,
    ) -> anyhow::Result<Publisher> {
        let words = topic.publisher(slot);
        let geometry = PublisherRegion {
            ring_capacity: record.ring_capacity,
            block_capacity: record.block_capacity,
        };
        let region = RegionView::new(self.words, record.region_offset, geometry)
            .context("a publisher's region")?;
        let (tail, head) = (
            words.tail().load(Ordering::Acquire),
            words.head().load(Ordering::Acquire),
        );
        // Block and generation of each message that the ring holds, and of its copies.
        let mut in_ring: BTreeSet<(u32, u64)> = (tail..head.min(tail + 65536))
            .filter_map(|sequence| announced(&region, record.incarnation, sequence))
            .collect();
        let copies: BTreeSet<(u32, u64)> = (tail..head.min(tail + 65536))
            .flat_map(|sequence| replicas(&region, sequence))
            .collect();
        in_ring.extend(&copies);
        let orphan = record.state == RECORD_ORPHAN;
        let mut found = Publisher {
            client: self.client(record.client)?,
            orphan,
            granules_leased,
            granules_live: 0,
            bytes_live: 0,
            kept: head - tail.min(head),
            copies: copies.len() as u64,
            held: Vec::new(),
            loaned: Vec::new(),
            stray: Vec::new(),
        };
        let mut granules = BTreeSet::new();
        let used = words.blocks_used().load(Ordering::Acquire);
        for block in 0..used.min(geometry.block_capacity) {
            let word = region.holders(block).context("a block")?;
            let Holders { generation, mask } = Holders::load(word);
            if mask == 0 {
                continue;
            }
            let entry = region.block(block).context("a block")?;
            let offset = entry.offset().load(Ordering::Acquire);
            let bytes = entry.bytes().load(Ordering::Acquire);
            let pool = entry.pool().load(Ordering::Acquire);
            found.bytes_live += bytes;
            let covered = offset / GRANULE_BYTES..=(offset + bytes - 1) / GRANULE_BYTES;
            granules.extend(covered.map(|granule| (pool, granule)));
            let what = format!("block {block} of generation {generation} with mask {mask:#x}");
            if mask & ((1 << MAX_SUBSCRIBERS) - 1) != 0 {
                found.held.push(what.clone());
            }
            if mask & 1 << PRODUCER_BIT != 0 {
                found.loaned.push(what.clone());
            }
            if (mask & 1 << RING_BIT != 0) != in_ring.remove(&(block, generation)) {
                found.stray.push(what);
            }
        }
        found
            .stray
            .extend(in_ring.iter().map(|(block, generation)| {
                format!("a message of block {block}, generation {generation}, which is free")
            }));
        found.granules_live = granules.len() as u64;
        Ok(found)
    }
}

/// Block and generation of a message that the ring holds.
fn announced(region: &RegionView<Shared>, incarnation: u64, sequence: u64) -> Option<(u32, u64)> {
    let descriptor = region.descriptor(sequence);
    let get = |word: &AtomicU64| word.load(Ordering::Acquire);
    let there =
        get(descriptor.committed()) == sequence + 1 && get(descriptor.incarnation()) == incarnation;
    there.then(|| {
        let BlockWord { block, .. } = BlockWord::of_word(get(descriptor.block()));
        (block, get(descriptor.generation()))
    })
}
