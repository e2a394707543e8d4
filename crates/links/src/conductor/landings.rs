//! The landings of this host, by topics and publishers of other hosts. A landing may get messages through several hosts.

use crate::delivered::{DeliveredFile, DeliveredRecord};
use crate::egress::OwnPublishers;
use crate::ingress::RemotePublisher;
use crate::keys::number_of;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

pub(super) struct Landings {
    all: BTreeMap<(String, u64), Weak<RemotePublisher>>,
    delivered: DeliveredFile,
    pub(super) own_publishers: OwnPublishers,
}

impl Landings {
    pub(super) fn new(delivered: DeliveredFile, own_publishers: OwnPublishers) -> Landings {
        Landings {
            all: BTreeMap::new(),
            delivered,
            own_publishers,
        }
    }

    /// The landing of a publisher, if a flow or a host's orphans hold it.
    pub(super) fn find(&self, topic: &str, publisher: u64) -> Option<Arc<RemotePublisher>> {
        self.all.get(&(topic.to_owned(), publisher))?.upgrade()
    }

    pub(super) fn insert(&mut self, topic: &str, publisher: u64, landing: &Arc<RemotePublisher>) {
        let key = (topic.to_owned(), publisher);
        self.all.insert(key, Arc::downgrade(landing));
    }

    /// Forgets landings that no flow and no orphan holds.
    pub(super) fn forget_unused(&mut self) {
        self.all.retain(|_, landing| landing.strong_count() > 0);
    }

    /// A publisher's record, and its delivered position: former lives of the links delivered the messages below it.
    pub(super) fn delivered(&self, publisher: u64, topic: &str) -> (DeliveredRecord, u64) {
        self.delivered.mark(publisher, topic)
    }

    /// Sets the topics, by their numbers, that have subscribers here.
    pub(super) fn set_wanted(&self, topics: &BTreeSet<u64>) {
        self.delivered.forget_unwanted(topics);
        let unwanted = self.all.iter();
        let unwanted = unwanted.filter(|((topic, _), _)| !topics.contains(&number_of(topic)));
        for landing in unwanted.filter_map(|(_, landing)| landing.upgrade()) {
            landing.forget_first();
        }
    }

    /// Notes the landings' publishers: the links do not send their messages to other hosts.
    pub(super) fn note<'a>(&self, publishers: impl Iterator<Item = &'a u64>) {
        let mut own = self.own_publishers.write().expect("no panic");
        own.extend(publishers);
    }

    /// Bytes of a quota that the landings have reserved.
    pub(super) fn bytes_of_quota(&self, quota: &str) -> u64 {
        let landings = self.all.values().filter_map(Weak::upgrade);
        let parts = landings.filter_map(|landing| {
            let of = landing.limits.quota.as_ref()?;
            (of.name == quota).then_some(landing.limits.reserved)
        });
        parts.sum()
    }
}
