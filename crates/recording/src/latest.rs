//! The latest message of each transient-local publisher, with which each further file of a recording begins. Whoever has
//! only that file then knows what a late joiner knew: a map that was published once is in each of them.
//!
//! Publishers come and go, so the latest messages of some that have gone are forgotten.

use crate::entry::Entry;
use std::collections::HashMap;
use std::sync::Arc;

/// Publishers of a topic whose latest message is remembered: as many as a topic may have at a time.
const PUBLISHERS_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Latest {
    /// Of each topic, the latest of each publisher in the order of publishing.
    topics: HashMap<String, Vec<Arc<Entry>>>,
}

impl Latest {
    /// Remembers a message instead of the one before it. Returns the buffer of the one that is forgotten.
    pub(crate) fn replace(&mut self, entry: Entry) -> Option<Vec<u8>> {
        let all = match self.topics.get_mut(&entry.channel.topic) {
            Some(all) => all,
            None => self.topics.entry(entry.channel.topic.clone()).or_default(),
        };
        let publisher = entry.channel.publisher_id;
        let before = all
            .iter()
            .position(|other| other.channel.publisher_id == publisher);
        let before = before.or((all.len() == PUBLISHERS_MAX).then_some(0));
        let before = before.map(|at| all.remove(at));
        all.push(Arc::new(entry));
        // While it is written, nobody gets its buffer.
        before.and_then(Arc::into_inner).map(|entry| entry.bytes)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.topics.values().flatten().cloned().collect()
    }
}
