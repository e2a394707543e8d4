//! A zone: the topics of one access class, their control segment, registry, pools and clients.

use crate::adoption::SetAside;
use crate::clients::Clients;
use crate::control::Control;
use crate::leave::Departed;
use crate::memory::Memory;
use crate::random;
use crate::refuse::{bad, memory, refuse, system};
use crate::registry::RegistryFile;
use crate::sessions::SessionId;
use crate::topic::{Publisher, Topic};
use crate::topics::Topics;
use rgaps_layout::RegistryHeader;
use rgaps_pool::{create_sealed_memfd, verify_memfd};
use rgaps_session::{Limits, Member, Refusal, RefusalCode, Side, ZoneId};
use std::collections::BTreeSet;
use std::os::fd::AsFd;

/// Doorbells that one client may take for wait sets.
const MAX_CLIENT_DOORBELLS: usize = 1024;

/// The topics of one access class.
pub(crate) struct Zone {
    pub(crate) id: ZoneId,
    pub(crate) class: String,
    pub(crate) registry: RegistryFile,
    pub(crate) registry_inode: u64,
    pub(crate) control: Control,
    pub(crate) clients: Clients,
    pub(crate) memory: Memory,
    pub(crate) topics: Topics,
    /// Topics with orphans.
    pub(crate) orphaned: BTreeSet<u32>,
    /// Topics with regions that wait for their subscribers to look away.
    pub(crate) quarantined: BTreeSet<u32>,
    /// Topics with subscriber slots that are held up.
    pub(crate) held_up: BTreeSet<u32>,
    /// Counts orphans, for their order.
    pub(crate) next_orphan: u64,
    pub(crate) set_aside: Option<SetAside>,
    /// Publishers of links that left or died, and how many messages each published.
    pub(crate) departed: Departed,
    pub(crate) limits: Limits,
}

impl Zone {
    /// A new zone without topics.
    pub(crate) fn create(class: &str, limits: &Limits) -> Result<Zone, Refusal> {
        let id = random::u128();
        let control = Control::create(id).map_err(memory)?;
        let file =
            create_sealed_memfd("rgaps-registry", RegistryHeader::bytes()).map_err(memory)?;
        let inode = verify_memfd(file.as_fd(), RegistryHeader::bytes()).map_err(memory)?;
        let registry = RegistryFile::create(file, id, control.inode())
            .map_err(|e| system("write a registry", e))?;
        Ok(Zone::new(id, class, registry, inode, control, limits))
    }

    pub(crate) fn new(
        id: ZoneId,
        class: &str,
        registry: RegistryFile,
        registry_inode: u64,
        control: Control,
        limits: &Limits,
    ) -> Zone {
        Zone {
            id,
            class: class.to_owned(),
            registry,
            registry_inode,
            control,
            clients: Clients::default(),
            memory: Memory::default(),
            topics: Topics::default(),
            orphaned: BTreeSet::new(),
            quarantined: BTreeSet::new(),
            held_up: BTreeSet::new(),
            next_orphan: 0,
            set_aside: None,
            departed: Departed::default(),
            limits: limits.clone(),
        }
    }

    /// Forgets a client that has nothing left.
    pub(crate) fn remove_client(&mut self, index: u32) {
        self.control.doorbells.give_all(index);
        self.end_timelines_of(index);
        self.clients.remove(&self.registry, index);
    }

    /// Whether the client has members, doorbells or timelines here.
    pub(crate) fn has_holdings(&self, client: u32) -> bool {
        self.control.doorbells.count(client) > 0
            || !self.control.timelines.of(client).is_empty()
            || !self.members_of(client).is_empty()
    }

    /// What the client is in: topic, side, slot.
    pub(crate) fn members_of(&self, client: u32) -> Vec<(u32, Side, u32)> {
        let mut members = Vec::new();
        for topic in self.topics.iter() {
            let publishers = topic.publishers.iter().filter(|p| p.is_of(client));
            members.extend(publishers.map(|p| (topic.index, Side::Publisher, p.slot)));
            let subscribers = topic.subscribers.iter().filter(|s| s.client == client);
            members.extend(subscribers.map(|s| (topic.index, Side::Subscriber, s.slot)));
        }
        members
    }

    /// Sessions of the topic's subscribers, each once.
    pub(crate) fn subscribed_sessions(&self, topic: u32) -> BTreeSet<SessionId> {
        let subscribers = self.topics.get(topic).map_or(&[][..], |t| &t.subscribers);
        let clients = subscribers
            .iter()
            .filter_map(|s| self.clients.get(s.client));
        clients.filter_map(|client| client.session).collect()
    }

    /// Checks that `member` is what it says it is, and `client`'s.
    pub(crate) fn check_member(&self, member: &Member, client: u32) -> Result<(), Refusal> {
        let topic = self.topics.get(member.topic);
        let found = topic.and_then(|topic| match member.side {
            Side::Publisher => topic
                .publisher(member.slot)
                .filter(|p| p.is_of(client))
                .map(|p| p.incarnation),
            Side::Subscriber => topic
                .subscriber(member.slot)
                .filter(|s| s.client == client)
                .map(|s| s.incarnation),
        });
        match found {
            Some(incarnation) if incarnation == member.incarnation => Ok(()),
            _ => Err(refuse(
                RefusalCode::NotFound,
                "this session has no such publisher or subscriber; it has left, or never joined",
            )),
        }
    }

    /// The publisher that `member` is, if it is one and `client`'s.
    pub(crate) fn publisher_of(
        &self,
        member: &Member,
        client: u32,
    ) -> Result<(&Topic, &Publisher), Refusal> {
        // Before the slot is looked at: a subscriber's number may be some publisher's too.
        if member.side != Side::Publisher {
            return Err(bad("only publishers lease memory; this is a subscriber"));
        }
        self.check_member(member, client)?;
        let topic = self.topics.get(member.topic);
        topic
            .and_then(|topic| Some((topic, topic.publisher(member.slot)?)))
            .ok_or_else(|| bad("there is no such publisher"))
    }

    /// A doorbell for a wait set of the client's.
    pub(crate) fn take_doorbell(&mut self, client: u32) -> Result<u32, Refusal> {
        let of_members = self.members_of(client).len();
        if self.control.doorbells.count(client) >= MAX_CLIENT_DOORBELLS + of_members {
            return Err(refuse(
                RefusalCode::LimitReached,
                format!("this process has {MAX_CLIENT_DOORBELLS} wait sets, which is the limit; use one wait set for many topics"),
            ));
        }
        self.new_doorbell(client)
    }

    pub(crate) fn new_doorbell(&mut self, client: u32) -> Result<u32, Refusal> {
        self.control.doorbells.take(client).ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                "all doorbells of the daemon are in use; close publishers, subscribers or wait sets",
            )
        })
    }

    /// Takes back a wait set's doorbell.
    pub(crate) fn return_doorbell(&mut self, client: u32, doorbell: u32) -> Result<(), Refusal> {
        let of_a_member = self.topics.iter().any(|topic| {
            topic.publishers.iter().any(|p| p.doorbell == doorbell)
                || topic.subscribers.iter().any(|s| s.doorbell == doorbell)
        });
        if self.control.doorbells.owner(doorbell) != Some(client) || of_a_member {
            return Err(bad(format!(
                "doorbell {doorbell} is not one of this session's wait sets"
            )));
        }
        self.control.doorbells.give(doorbell);
        Ok(())
    }
}
