//! The topics of a zone, by index and by name. Names are unique; both ways always lead to the same topic.

use crate::topic::Topic;
use std::collections::BTreeMap;
use std::ops::Index;

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

    pub(crate) fn remove(&mut self, index: u32) -> Option<Topic> {
        let topic = self.all.remove(&index)?;
        self.indices.remove(&topic.name);
        Some(topic)
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

    /// The lowest index below `end` that no topic has.
    pub(crate) fn free_index(&self, end: u32) -> Option<u32> {
        (0..end).find(|index| !self.all.contains_key(index))
    }

    /// All topics, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Topic> {
        self.all.values()
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
