//! A zone: the topics of one access class, and the owners of all that belongs to them.

use crate::adoption::Adoption;
use crate::clients::Clients;
use crate::control::Control;
use crate::deferred_release::DeferredReleases;
use crate::history::History;
use crate::memory::Memory;
use crate::random;
use crate::refuse::memory;
use crate::registry::RegistryFile;
use crate::topics::Topics;
use rgaps_session::{Limits, Refusal, ZoneId};

/// The topics of one access class.
pub(crate) struct Zone {
    pub(crate) id: ZoneId,
    pub(crate) class: String,
    pub(crate) limits: Limits,
    pub(crate) registry: RegistryFile,
    pub(crate) control: Control,
    pub(crate) clients: Clients,
    pub(crate) memory: Memory,
    pub(crate) topics: Topics,
    pub(crate) history: History,
    pub(crate) deferred: DeferredReleases,
    pub(crate) adoption: Adoption,
}

impl Zone {
    /// A new zone without topics.
    pub(crate) fn create(class: &str, limits: &Limits) -> Result<Zone, Refusal> {
        let id = random::u128();
        let control = Control::create(id).map_err(memory)?;
        Ok(Zone {
            id,
            class: class.to_owned(),
            limits: limits.clone(),
            registry: RegistryFile::create(id, control.inode())?,
            control,
            clients: Clients::default(),
            memory: Memory::default(),
            topics: Topics::default(),
            history: History::default(),
            deferred: DeferredReleases::default(),
            adoption: Adoption::default(),
        })
    }

    /// Forgets a client that has nothing left.
    pub(crate) fn remove_client(&mut self, index: u32) {
        self.control.doorbells.give_all(index);
        self.control.end_timelines_of(index, &mut self.topics);
        self.adoption.finish(index);
        self.clients.remove(&self.registry, index);
    }

    /// Whether the client has members, doorbells, timelines or seats of device topics here.
    pub(crate) fn has_holdings(&self, client: u32) -> bool {
        let known = self.clients.get(client);
        known.is_some_and(|client| client.has_devices)
            || self.control.doorbells.count(client) > 0
            || !self.control.timelines.of(client).is_empty()
            || !self.topics.members_of(client).is_empty()
    }
}
