//! Takes over a zone from its registry and control segment. Clients could write the control segment and handed both back, so their
//! contents are checked, and invalid records are dropped.

use super::Zone;
use crate::adoption::Adoption;
use crate::clients::Clients;
use crate::control::Control;
use crate::deferred_release::DeferredReleases;
use crate::history::History;
use crate::membership::{
    announce, begin_topic, describe_publisher, describe_subscriber, empty_publisher,
};
use crate::memory::Memory;
use crate::records::TopicRecords;
use crate::refuse::{bad, memory, system};
use crate::registry::{check_owner, reopen, RegistryFile};
use crate::sources::Sources;
use crate::state_file::SavedZone;
use crate::step::step;
use rgaps_layout::{CONTROL_BYTES, MAX_PUBLISHERS, MAX_SUBSCRIBERS};
use rgaps_pool::verify_memfd;
use rgaps_session::{Limits, Refusal, Side};
use rustix::fs::OFlags;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

impl Zone {
    /// Takes over a predecessor's zone from the descriptors that a client hands back.
    pub(crate) fn adopt(
        saved: &SavedZone,
        registry: OwnedFd,
        control: OwnedFd,
        sources: &mut dyn Sources,
        limits: &Limits,
    ) -> Result<Zone, Refusal> {
        // Check that each is a memfd before anything else: a `stat` or `open` of another file may block.
        let (registry, header) =
            RegistryFile::adopt(registry.as_fd(), saved.id, saved.registry_inode)?;
        verify_memfd(control.as_fd(), CONTROL_BYTES).map_err(memory)?;
        check_owner(control.as_fd())?;
        // Reopened, since a client can change the flags of the file description that it sent.
        let control = reopen(control.as_fd(), OFlags::RDWR)
            .map_err(|e| system("open the control segment that a client handed back", e))?;
        let mut control = Control::adopt(control).map_err(memory)?;
        if control.inode() != header.control_inode {
            return Err(bad(
                "the client handed back the control segment of another zone",
            ));
        }
        step!("adopt.begin");
        let read = |e| system("read the registry that a client handed back", e);
        let saved_pids = saved.pids.iter().filter(|_| saved.are_local_pids);
        let clients = Clients::load(&registry, saved_pids.copied().collect()).map_err(read)?;
        let memory = Memory::load(&registry, sources)?;
        let topics = TopicRecords {
            registry: &registry,
            clients: &clients,
            memory: &memory,
            control: &mut control,
        };
        let mut zone = Zone {
            id: saved.id,
            class: saved.class.clone(),
            limits: limits.clone(),
            topics: topics.load().map_err(read)?,
            registry,
            control,
            clients,
            memory,
            history: History::load(&saved.departed),
            deferred: DeferredReleases::default(),
            adoption: Adoption::default(),
        };
        zone.restore_topics();
        zone.load_leases().map_err(read)?;
        step!("adopt.loaded");
        zone.adoption
            .set_aside(header.control_used, &zone.topics, &mut zone.control);
        if let Err(error) = zone.registry.count_daemon(header.daemons.wrapping_add(1)) {
            tracing::warn!(%error, "counting this daemon in the registry failed");
        }
        Ok(zone)
    }

    /// What the state file keeps of the zone, so that a successor can take it over.
    pub(crate) fn saved(&self) -> SavedZone {
        SavedZone {
            id: self.id,
            class: self.class.clone(),
            registry_inode: self.registry.inode(),
            pids: self.clients.pids_to_save(),
            are_local_pids: true,
            departed: self.history.departed().iter().copied().collect(),
        }
    }

    /// Notes that the state file has the zone's departed publishers, or will be written again as a whole.
    pub(crate) fn note_saved(&mut self) {
        self.history.note_saved();
    }

    fn restore_topics(&mut self) {
        let topics: Vec<u32> = self.topics.iter().map(|topic| topic.index).collect();
        for index in topics {
            self.restore_words(index);
            self.remove_lost_subscribers(index);
        }
    }

    /// Writes the daemon's words in a topic's region again: its predecessor may have died while it wrote them, and clients can
    /// overwrite them. Finds the messages that orphans left.
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
                self.history.add(index, publisher, &words, &self.control);
                if let Err(error) = self.registry.set_publisher(index, publisher) {
                    tracing::error!(%error, "recording an orphan failed");
                }
            }
            let publisher = topic.publisher(slot).expect("the one of this slot");
            describe_publisher(&words, topic, publisher);
        }
        self.history.order(topic, &self.control);
        for slot in 0..MAX_SUBSCRIBERS as u32 {
            describe_subscriber(&view, slot, topic.subscriber(slot));
        }
        self.deferred.restore(topic, &self.control);
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
        // In any pool: a publisher's replicas are in other pools than its own.
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
}
