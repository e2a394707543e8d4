//! Publishers that stand here for publishers of other hosts. The links do not send their messages to other hosts.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

/// Those of this life of the links, and of former ones. Clones are the same.
#[derive(Clone, Default)]
pub struct OwnPublishers(Arc<RwLock<HashSet<u64>>>);

impl OwnPublishers {
    pub fn insert(&self, publisher: u64) {
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        own.insert(publisher);
    }

    pub fn remove(&self, publisher: u64) {
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        own.remove(&publisher);
    }

    pub fn contains(&self, publisher: u64) -> bool {
        let own = self.0.read().unwrap_or_else(PoisonError::into_inner);
        own.contains(&publisher)
    }
}
