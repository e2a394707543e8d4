//! Taking over a zone from its registry and control segment. Both were in clients' hands: what
//! they say is checked, and what cannot be is left out.

use crate::clients::Clients;
use crate::control::Control;
use crate::history::order_orphans;
use crate::leave::has_reached;
use crate::membership::{
    announce, begin_topic, describe_publisher, describe_subscriber, empty_publisher,
};
use crate::memory::Memory;
use crate::refuse::{bad, memory, refuse, system};
use crate::registry::{reopen, RegistryFile};
use crate::sources::Sources;
use crate::state_file::SavedZone;
use crate::step::step;
use crate::topic::{Orphan, Owner};
use crate::zone::Zone;
use rgaps_layout::{
    RegistryHeader, CONTROL_BYTES, CONTROL_PAGE, LAYOUT_VERSION, MAX_PUBLISHERS, MAX_SUBSCRIBERS,
    REGISTRY_MAGIC,
};
use rgaps_pool::verify_memfd;
use rgaps_session::{Limits, Range, Refusal, RefusalCode, Side};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::abandon;
use rustix::fs::OFlags;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a client has claimed so far, while it hands back.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Per pool: what a publisher leases there.
    pub(crate) members: HashMap<(u32, Side, u32), BTreeMap<u32, Vec<Range>>>,
}

/// Ranges of the control segment that a predecessor may have had in quarantine.
#[derive(Debug)]
pub(crate) struct SetAside {
    ranges: Vec<(u64, u64)>,
    /// Subscribers that may still look there: topic, slot, incarnation, and the epoch after which
    /// they do not.
    waits: Vec<(u32, u32, u64, u32)>,
}

impl Zone {
    /// Takes over a predecessor's zone from the descriptors that a client hands back.
    pub(crate) fn adopt(
        saved: &SavedZone,
        registry: OwnedFd,
        control: OwnedFd,
        sources: &mut dyn Sources,
        limits: &Limits,
    ) -> Result<Zone, Refusal> {
        let inode = verify_memfd(registry.as_fd(), RegistryHeader::bytes()).map_err(memory)?;
        if inode != saved.registry_inode {
            return Err(bad("the client handed back the registry of another zone"));
        }
        // Each is known for a memfd before anything else is done with it: other files may block whoever stats or opens them.
        verify_memfd(control.as_fd(), CONTROL_BYTES).map_err(memory)?;
        check_owner(registry.as_fd())?;
        check_owner(control.as_fd())?;
        let registry = RegistryFile::reopen_from(registry.as_fd())
            .map_err(|e| system("open the registry that a client handed back", e))?;
        let read = |e| system("read the registry that a client handed back", e);
        let header = registry.header().map_err(read)?;
        let sound = header.magic == REGISTRY_MAGIC
            && header.version == LAYOUT_VERSION
            && header.zone_id == saved.id.to_le_bytes();
        if !sound {
            return Err(refuse(
                RefusalCode::ZoneLost,
                "the registry that the client handed back is damaged or of another version; restart the clients",
            ));
        }
        // Through a description of our own, that no client can change the flags of.
        let control = reopen(control.as_fd(), OFlags::RDWR)
            .map_err(|e| system("open the control segment that a client handed back", e))?;
        let control = Control::adopt(control).map_err(memory)?;
        if control.inode() != header.control_inode {
            return Err(bad(
                "the client handed back the control segment of another zone",
            ));
        }
        step!("adopt.begin");
        let mut zone = Zone::new(saved.id, &saved.class, registry, inode, control, limits);
        let saved_pids = saved.pids.iter().filter(|_| saved.are_local_pids);
        let saved_pids = saved_pids.copied().collect();
        for (incarnation, published) in &saved.departed {
            zone.departed.add(*incarnation, *published);
        }
        zone.clients = Clients::load(&zone.registry, saved_pids).map_err(read)?;
        zone.memory = Memory::load(&zone.registry, sources)?;
        zone.load_topics().map_err(read)?;
        zone.restore_topics();
        zone.load_leases().map_err(read)?;
        step!("adopt.loaded");
        zone.set_aside(header.control_used);
        if let Err(error) = zone.registry.count_daemon(header.daemons.wrapping_add(1)) {
            tracing::warn!(%error, "counting this daemon in the registry failed");
        }
        Ok(zone)
    }

    fn restore_topics(&mut self) {
        let topics: Vec<u32> = self.topics.iter().map(|topic| topic.index).collect();
        for index in topics {
            self.restore_words(index);
            self.remove_lost_subscribers(index);
        }
    }

    /// Writes what the daemon writes of a topic's region again: its predecessor may have died half
    /// way, and clients can write there too. Finds out what publishers that are gone left.
    fn restore_words(&mut self, index: u32) {
        let Some(topic) = self.topics.get_mut(index) else {
            return;
        };
        begin_topic(&self.control, topic);
        let view = self.control.topic(topic.region);
        for slot in 0..MAX_PUBLISHERS as u32 {
            let words = view.publisher(slot as usize);
            let Some(publisher) = topic.publisher_mut(slot) else {
                empty_publisher(&view, slot);
                continue;
            };
            if publisher.is_orphan() {
                let region = self
                    .control
                    .region(publisher.ring.region_offset, publisher.geometry());
                let left = abandon(&words, &region, publisher.incarnation, publisher.ring.start);
                self.departed.note(publisher, left.head);
                publisher.owner = Owner::Orphan(Orphan {
                    order: 0,
                    tail: left.tail,
                    head: left.head,
                    pending: 0,
                });
                self.control.settle(publisher);
                self.orphaned.insert(index);
                let record = publisher.record();
                let written =
                    self.registry
                        .set_publisher(index, slot, &record, &publisher.type_name);
                if let Err(error) = written {
                    tracing::error!(%error, "recording an orphan failed");
                }
            }
            let publisher = topic.publisher(slot).expect("the one of this slot");
            describe_publisher(&words, topic, publisher);
        }
        self.next_orphan += order_orphans(&self.control, topic, self.next_orphan);
        for slot in 0..MAX_SUBSCRIBERS as u32 {
            describe_subscriber(&view, slot, topic.subscriber(slot));
        }
        // Of one that has left, publishers may have still to finish entries.
        topic.held_up = view.deferring().load(Ordering::Acquire)
            & ((1 << MAX_SUBSCRIBERS) - 1)
            & !topic.subscriber_bits();
        if topic.held_up != 0 {
            self.held_up.insert(index);
        }
        announce(&self.control, topic);
        for publisher in topic.publishers.iter().filter(|p| !p.is_orphan()) {
            self.control.settle_active(topic, publisher);
        }
    }

    fn remove_lost_subscribers(&mut self, index: u32) {
        let lost: Vec<u32> = self.topics.get(index).map_or_else(Vec::new, |topic| {
            let lost = topic.subscribers.iter().filter(|s| s.doorbell == 0);
            lost.map(|s| s.slot).collect()
        });
        for slot in lost {
            self.remove_member(index, Side::Subscriber, slot);
        }
    }

    fn load_leases(&mut self) -> std::io::Result<()> {
        // Of any pool: copies are in others than the publisher's own.
        let owners: HashSet<u32> = self
            .topics
            .iter()
            .flat_map(|topic| {
                let slots = topic.publishers.iter().map(|p| p.slot);
                slots.map(|slot| topic.granule_owner(slot))
            })
            .collect();
        self.memory.load_leases(&self.registry, &owners)
    }

    /// Keeps what a predecessor may have had in quarantine from being handed out until all
    /// subscribers of its time have looked at who is in their topics now.
    fn set_aside(&mut self, control_used: u64) {
        let end = control_used
            .next_multiple_of(CONTROL_PAGE)
            .clamp(self.control.used_end(), CONTROL_BYTES);
        let ranges = self.control.set_aside_below(end);
        let waits = self.topics.iter().flat_map(|topic| {
            topic
                .subscribers
                .iter()
                .map(|s| (topic.index, s.slot, s.incarnation, topic.epoch))
        });
        self.set_aside = Some(SetAside {
            ranges,
            waits: waits.collect(),
        });
    }

    /// Hands on what `set_aside` kept, once that is safe.
    pub(crate) fn release_set_aside(&mut self) -> bool {
        let Some(mut aside) = self.set_aside.take() else {
            return false;
        };
        aside.waits.retain(|(topic, slot, incarnation, epoch)| {
            let topic = self.topics.get(*topic);
            let there = topic.and_then(|topic| {
                let subscriber = topic.subscriber(*slot)?;
                (subscriber.incarnation == *incarnation).then_some(topic)
            });
            there.is_some_and(|topic| {
                let view = self.control.topic(topic.region);
                let seen = view
                    .subscriber(*slot as usize)
                    .seen_epoch()
                    .load(Ordering::Acquire);
                !has_reached(seen, *epoch)
            })
        });
        if !aside.waits.is_empty() {
            self.set_aside = Some(aside);
            return false;
        }
        for (offset, bytes) in aside.ranges {
            self.control.give(offset, bytes);
        }
        true
    }
}

/// The file belongs to the daemon's user: only a process of that user can have made it.
fn check_owner(fd: BorrowedFd<'_>) -> Result<(), Refusal> {
    let about =
        rustix::fs::fstat(fd).map_err(|e| system("inspect what a client handed back", e))?;
    if about.st_uid != rustix::process::geteuid().as_raw() {
        return Err(bad("the client handed back a memfd of another user"));
    }
    Ok(())
}
