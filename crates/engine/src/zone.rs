//! A zone: the topics of one access class, and the owners of all that belongs to them.
//!
//! Most changes concern several owners together; the files of this module make them. Other modules read the owners, and change
//! one through an accessor that ends in `_mut`.

mod claims;
mod join;
mod leases;
mod leave;
mod reports;
mod restore;

pub(crate) use join::Seat;

use crate::adoption::Adoption;
use crate::clients::Clients;
use crate::control::Control;
use crate::deferred_release::DeferredReleases;
use crate::departed::Departed;
use crate::history::History;
use crate::memory::Memory;
use crate::random;
use crate::refuse::memory;
use crate::registry::RegistryFile;
use crate::topic::Topic;
use crate::topics::Topics;
use rgaps_session::{Limits, Refusal, ZoneId};

/// The topics of one access class.
pub(crate) struct Zone {
    id: ZoneId,
    class: String,
    limits: Limits,
    registry: RegistryFile,
    control: Control,
    clients: Clients,
    memory: Memory,
    topics: Topics,
    history: History,
    deferred: DeferredReleases,
    adoption: Adoption,
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

    pub(crate) fn id(&self) -> ZoneId {
        self.id
    }

    pub(crate) fn class(&self) -> &str {
        &self.class
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn control_mut(&mut self) -> &mut Control {
        &mut self.control
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(crate) fn clients_mut(&mut self) -> &mut Clients {
        &mut self.clients
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn topics(&self) -> &Topics {
        &self.topics
    }

    pub(crate) fn topics_mut(&mut self) -> &mut Topics {
        &mut self.topics
    }

    pub(crate) fn topic_named(&self, name: &str) -> Option<&Topic> {
        self.topics.get(self.topics.find(name)?)
    }

    /// Publishers of links that left or died.
    pub(crate) fn departed(&self) -> &Departed {
        self.history.departed()
    }

    /// Topics with history that publishers left.
    pub(crate) fn orphaned_topics(&self) -> impl Iterator<Item = &Topic> {
        self.history.orphaned_topics(&self.topics)
    }

    /// Whether late joiners can get anything of publishers that left or died.
    pub(crate) fn keeps_history(&self) -> bool {
        self.history.is_kept(&self.topics)
    }

    /// Keeps a pool from shrinking, since a client registers its pages with a driver.
    pub(crate) fn pin(&mut self, pool: u32) -> Result<(), Refusal> {
        self.memory.pin(pool, &self.registry)
    }

    /// Takes a doorbell for a wait set of a client.
    pub(crate) fn take_doorbell(&mut self, client: u32) -> Result<u32, Refusal> {
        let of_members = self.topics.members_of(client).len();
        self.control.doorbells.take_for_wait_set(client, of_members)
    }

    /// Takes back a doorbell of a wait set.
    pub(crate) fn return_doorbell(&mut self, client: u32, doorbell: u32) -> Result<(), Refusal> {
        let taken = self.topics.have_doorbell(doorbell);
        self.control.doorbells.give_back(client, doorbell, taken)
    }

    pub(crate) fn return_timeline(&mut self, client: u32, timeline: u32) -> Result<(), Refusal> {
        self.control
            .return_timeline(client, timeline, &mut self.topics)
    }

    /// Ends all timelines of a client.
    pub(crate) fn end_timelines_of(&mut self, client: u32) {
        self.control.end_timelines_of(client, &mut self.topics);
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
