//! Publishers that stand here for publishers of other hosts. The links do not send their messages to other hosts.

use std::collections::HashSet;
use std::sync::{Arc, RwLock};

/// Those of this life of the links, and of former ones. Clones are the same.
#[derive(Clone, Default)]
pub struct OwnPublishers(Arc<RwLock<HashSet<u64>>>);

impl OwnPublishers {
    pub fn insert(&self, publisher: u64) {
        self.0.write().expect("no panic").insert(publisher);
    }

    pub fn remove(&self, publisher: u64) {
        self.0.write().expect("no panic").remove(&publisher);
    }

    pub fn contains(&self, publisher: u64) -> bool {
        self.0.read().expect("no panic").contains(&publisher)
    }
}
