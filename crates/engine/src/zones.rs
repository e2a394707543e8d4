//! The zones of this daemon: one for each access class that has topics.

use crate::zone::Zone;
use rgaps_session::ZoneId;
use std::collections::{BTreeMap, HashMap};

/// All zones, by number and by access class.
#[derive(Default)]
pub(crate) struct Zones {
    all: BTreeMap<ZoneId, Zone>,
    of_class: HashMap<String, ZoneId>,
}

impl Zones {
    /// Adds a zone, and drops the former one of its access class.
    pub(crate) fn add(&mut self, zone: Zone) {
        let replaced = self.of_class.insert(zone.class().to_owned(), zone.id());
        if let Some(replaced) = replaced {
            self.all.remove(&replaced);
        }
        self.all.insert(zone.id(), zone);
    }

    pub(crate) fn get(&self, zone: ZoneId) -> Option<&Zone> {
        self.all.get(&zone)
    }

    pub(crate) fn get_mut(&mut self, zone: ZoneId) -> Option<&mut Zone> {
        self.all.get_mut(&zone)
    }

    pub(crate) fn of_class(&self, class: &str) -> Option<&Zone> {
        self.get(*self.of_class.get(class)?)
    }

    pub(crate) fn of_class_mut(&mut self, class: &str) -> Option<&mut Zone> {
        let zone = *self.of_class.get(class)?;
        self.get_mut(zone)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.all.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Zone> {
        self.all.values_mut()
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether any zone has a client, also one of a predecessor that has not returned.
    pub(crate) fn have_clients(&self) -> bool {
        self.iter().any(|zone| !zone.clients().is_empty())
    }

    /// How many descriptors of memory the zones keep: segments, registries and control segments.
    pub(crate) fn segment_count(&self) -> usize {
        let of_pools = |zone: &Zone| -> usize {
            let pools = zone.memory().iter();
            pools.map(|pool| pool.segment_count() as usize).sum()
        };
        self.iter().map(|zone| 2 + of_pools(zone)).sum()
    }
}
