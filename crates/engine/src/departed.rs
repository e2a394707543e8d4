//! Publishers of links that left or died, and how many messages each published: links that are started again are told.
//! The state file has them, too, so a successor tells them when their orphans have ended.

use crate::topic::Publisher;
use rgaps_session::MAX_DEPARTED;
use std::collections::VecDeque;

/// These publishers.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    all: VecDeque<(u64, u64)>,
    is_unsaved: bool,
}

impl Departed {
    /// Notes a publisher whose ring goes up to `head`, if it is one of links.
    pub(crate) fn note(&mut self, publisher: &Publisher, head: u64) {
        if publisher.of_links {
            let published = head.saturating_sub(publisher.ring.start);
            self.add(publisher.incarnation, published);
            self.is_unsaved = true;
        }
    }

    /// Adds one that a predecessor saved, or noted now. What was known of it before is forgotten.
    pub(crate) fn add(&mut self, incarnation: u64, published: u64) {
        self.all.retain(|(known, _)| *known != incarnation);
        if self.all.len() >= MAX_DEPARTED {
            self.all.pop_front();
        }
        self.all.push_back((incarnation, published));
    }

    /// Whether the state file lacks some.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// The state file has been written, or will be tried again as a whole.
    pub(crate) fn note_saved(&mut self) {
        self.is_unsaved = false;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, u64)> {
        self.all.iter()
    }
}
