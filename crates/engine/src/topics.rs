//! The topics of a zone and their members. A topic is found by its index and by its name, which are both unique.

use crate::control::Control;
use crate::membership::begin_topic;
use crate::qos::check_path;
use crate::random;
use crate::refuse::{bad, refuse, system};
use crate::registry::RegistryFile;
use crate::topic::{Publisher, Topic, TOPIC_BYTES};
use rgaps_layout::MAX_TOPICS;
use rgaps_session::{Member, Refusal, RefusalCode, Side};
use std::collections::{BTreeMap, HashMap};
use std::ops::{Index, IndexMut};

/// The topics of a zone.
#[derive(Default)]
pub(crate) struct Topics {
    all: BTreeMap<u32, Topic>,
    indices: BTreeMap<String, u32>,
}

impl Topics {
    pub(crate) fn add(&mut self, topic: Topic) {
        self.indices.insert(topic.name.clone(), topic.index);
        self.all.insert(topic.index, topic);
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Topic> {
        self.all.get(&index)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Topic> {
        self.all.get_mut(&index)
    }

    /// The index of a topic.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.indices.get(name).copied()
    }

    /// Creates a topic. The caller knows that there is none of this name. `most`: the limit of topics.
    pub(crate) fn create(
        &mut self,
        name: &str,
        most: u32,
        control: &mut Control,
        registry: &RegistryFile,
    ) -> Result<u32, Refusal> {
        let most = most.min(MAX_TOPICS as u32);
        let index = (0..most).find(|index| !self.all.contains_key(index)).ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                format!("the limit of {most} topics is reached; raise limits.topics in rgaps.toml, then run 'rgaps down'"),
            )
        })?;
        let region = control.take(TOPIC_BYTES, registry)?;
        let topic = Topic::new(index, name.to_owned(), random::nonzero_u64(), region);
        begin_topic(control, &topic);
        if let Err(error) = registry.set_topic(index, &topic.record()) {
            control.give(region, TOPIC_BYTES);
            return Err(system("write its registry", error));
        }
        self.add(topic);
        Ok(index)
    }

    /// Removes a topic that has neither members nor orphans, and returns it.
    pub(crate) fn remove_deserted(&mut self, index: u32, registry: &RegistryFile) -> Option<Topic> {
        self.get(index).filter(|topic| topic.is_deserted())?;
        let topic = self.all.remove(&index)?;
        self.indices.remove(&topic.name);
        if let Err(error) = registry.clear_topic(index) {
            tracing::error!(%error, topic = topic.name, "recording the end of a topic failed");
        }
        Some(topic)
    }

    /// The publishers of a client, each with its topic.
    pub(crate) fn publishers_of(&self, client: u32) -> impl Iterator<Item = (&Topic, &Publisher)> {
        self.iter().flat_map(move |topic| {
            let publishers = topic.publishers.iter().filter(move |p| p.is_of(client));
            publishers.map(move |publisher| (topic, publisher))
        })
    }

    /// The members of a client: topic, side, slot.
    pub(crate) fn members_of(&self, client: u32) -> Vec<(u32, Side, u32)> {
        let mut members = Vec::new();
        for topic in self.iter() {
            let publishers = topic.publishers.iter().filter(|p| p.is_of(client));
            members.extend(publishers.map(|p| (topic.index, Side::Publisher, p.slot)));
            let subscribers = topic.subscribers.iter().filter(|s| s.client == client);
            members.extend(subscribers.map(|s| (topic.index, Side::Subscriber, s.slot)));
        }
        members
    }

    /// By client: how many publishers and subscribers it has.
    pub(crate) fn member_counts(&self) -> HashMap<u32, (u32, u32)> {
        let mut counts: HashMap<u32, (u32, u32)> = HashMap::new();
        for topic in self.iter() {
            for client in topic.publishers.iter().filter_map(Publisher::client) {
                counts.entry(client).or_default().0 += 1;
            }
            for subscriber in &topic.subscribers {
                counts.entry(subscriber.client).or_default().1 += 1;
            }
        }
        counts
    }

    /// Refuses unless `member` exists and belongs to `client`. Returns its topic.
    pub(crate) fn check_member(&self, member: &Member, client: u32) -> Result<&Topic, Refusal> {
        let topic = self.get(member.topic).filter(|topic| {
            let incarnation = match member.side {
                Side::Publisher => {
                    let publisher = topic.publisher(member.slot).filter(|p| p.is_of(client));
                    publisher.map(|publisher| publisher.incarnation)
                }
                Side::Subscriber => {
                    let subscriber = topic.subscriber(member.slot);
                    let subscriber = subscriber.filter(|s| s.client == client);
                    subscriber.map(|subscriber| subscriber.incarnation)
                }
            };
            incarnation == Some(member.incarnation)
        });
        topic.ok_or_else(|| {
            refuse(
                RefusalCode::NotFound,
                "this session has no such publisher or subscriber; it has left, or never joined",
            )
        })
    }

    /// The publisher `member` of `client` and its topic, or a refusal.
    pub(crate) fn publisher_of(
        &self,
        member: &Member,
        client: u32,
    ) -> Result<(&Topic, &Publisher), Refusal> {
        // First: a subscriber's slot number may be that of a publisher, too.
        if member.side != Side::Publisher {
            return Err(bad("only publishers lease memory; this is a subscriber"));
        }
        let topic = self.check_member(member, client)?;
        let publisher = topic.publisher(member.slot);
        publisher
            .map(|publisher| (topic, publisher))
            .ok_or_else(|| bad("there is no such publisher"))
    }

    /// Whether a publisher or subscriber has a doorbell.
    pub(crate) fn have_doorbell(&self, doorbell: u32) -> bool {
        self.iter().any(|topic| {
            topic.publishers.iter().any(|p| p.doorbell == doorbell)
                || topic.subscribers.iter().any(|s| s.doorbell == doorbell)
        })
    }

    /// Notes how a subscriber's messages reach it, as its client reports.
    pub(crate) fn set_path(
        &mut self,
        member: &Member,
        client: u32,
        path: String,
    ) -> Result<(), Refusal> {
        if member.side != Side::Subscriber {
            return Err(bad("only subscribers report a path"));
        }
        check_path(&path)?;
        self.check_member(member, client)?;
        let topic = self.get_mut(member.topic);
        if let Some(subscriber) = topic.and_then(|topic| topic.subscriber_mut(member.slot)) {
            subscriber.path = Some(path);
        }
        Ok(())
    }

    /// All topics, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Topic> {
        self.all.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Topic> {
        self.all.values_mut()
    }

    /// All topics, by name.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = &Topic> {
        self.indices.values().map(|index| &self[*index])
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// A topic that is known to be there.
impl Index<u32> for Topics {
    type Output = Topic;

    fn index(&self, index: u32) -> &Topic {
        &self.all[&index]
    }
}

impl IndexMut<u32> for Topics {
    fn index_mut(&mut self, index: u32) -> &mut Topic {
        self.get_mut(index)
            .expect("a topic that is known to be there")
    }
}
