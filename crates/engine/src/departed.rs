//! Publishers of links that left or died, and how many messages each published. The daemon sends this list to links that are
//! started again. The state file has the list too, so a successor knows these publishers after their orphans have ended.

use crate::topic::Publisher;
use rgaps_session::MAX_DEPARTED;
use std::collections::VecDeque;

/// The publishers that departed last, at most [`MAX_DEPARTED`].
#[derive(Debug, Default)]
pub(crate) struct Departed {
    /// Incarnation, and how many messages it published; the latest last.
    all: VecDeque<(u64, u64)>,
    is_unsaved: bool,
}

impl Departed {
    /// Adds a publisher of links, whose next message would have had the number `head`. Ignores other publishers.
    pub(crate) fn note(&mut self, publisher: &Publisher, head: u64) {
        if publisher.of_links {
            let published = head.saturating_sub(publisher.ring.start);
            self.add(publisher.incarnation, published);
            self.is_unsaved = true;
        }
    }

    /// Adds a publisher. Replaces its former entry.
    pub(crate) fn add(&mut self, incarnation: u64, published: u64) {
        self.all.retain(|(known, _)| *known != incarnation);
        if self.all.len() >= MAX_DEPARTED {
            self.all.pop_front();
        }
        self.all.push_back((incarnation, published));
    }

    /// Whether the state file lacks a publisher.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// Notes that the state file was written, or that the engine will write all of it again.
    pub(crate) fn note_saved(&mut self) {
        self.is_unsaved = false;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, u64)> {
        self.all.iter()
    }
}
