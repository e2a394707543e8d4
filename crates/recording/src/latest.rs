//! The latest message of each transient-local publisher. Each file of a recording after the first begins with these messages, so
//! that it has what a late joiner would get: a map that was published once is in every file.
//!
//! Memory is bounded: a topic keeps the messages of its last [`PUBLISHERS_MAX`] publishers.

use crate::entry::Entry;
use std::collections::HashMap;
use std::sync::Arc;

/// Most publishers of a topic whose latest message is kept: as many as a topic may have at a time.
const PUBLISHERS_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Latest {
    /// For each topic, the latest message of each publisher, in the order of publishing.
    topics: HashMap<String, Vec<Arc<Entry>>>,
}

impl Latest {
    /// Replaces the latest message of the publisher, or of the oldest publisher if there are too many. Returns the buffer of the
    /// replaced message.
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
        // While the writer still holds the message, `into_inner` returns None, and its buffer is freed later.
        before.and_then(Arc::into_inner).map(|entry| entry.bytes)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.topics.values().flatten().cloned().collect()
    }
}
