//! What topics may use together: each publisher needs so much, and what is not there is refused by name.
//!
//! A publisher needs the longest message of its quota times the messages that it keeps, or the bytes that it
//! keeps; on the host that it publishes on for what is on its way (*staging*), and where it lands.

use crate::lock;
use rgaps_client::links::{Links, Offer, Quota};
use rgaps_client::History;
use rgaps_session::ByteSize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Which memory of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Of what goes to other hosts.
    Staging,
    /// Of what comes from them.
    RemotePublisher,
}

/// What publishers have of each quota.
type Books = Mutex<BTreeMap<(String, Kind), BTreeMap<u64, u64>>>;

/// All quotas of this host.
#[derive(Default)]
pub struct Quotas {
    books: Arc<Books>,
    /// Per host, and topic: bytes a second.
    rates: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What a publisher has of a quota, until it is dropped.
pub struct Reserved {
    books: Arc<Books>,
    key: (String, Kind),
    publisher: u64,
    /// How much that is.
    pub bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(reserves) = lock(&self.books).get_mut(&self.key) {
            reserves.remove(&self.publisher);
        }
    }
}

/// What publishers that are sent have of quotas.
#[derive(Default)]
pub struct Staged(BTreeMap<(String, u64), Reserved>);

impl Staged {
    /// What a publisher has of a quota, or gets now. See [`Quotas::reserve`].
    pub fn reserve(
        &mut self,
        (quotas, quota): (&Quotas, &Quota),
        publisher: u64,
        offer: &Offer,
    ) -> Result<Option<u64>, String> {
        let key = (quota.name.clone(), publisher);
        if !self.0.contains_key(&key) {
            let new = quotas.reserve(quota, Kind::Staging, publisher, offer)?;
            self.0.extend(new.map(|new| (key.clone(), new)));
        }
        Ok(self.0.get(&key).map(|reserved| reserved.bytes))
    }

    /// Gives back what others have than these: quotas and publishers.
    pub fn retain(&mut self, is_used: impl Fn(&(String, u64)) -> bool) {
        self.0.retain(|key, _| is_used(key));
    }
}

/// What a publisher needs.
fn needs(offer: &Offer, message_max: u64) -> u64 {
    match offer.history {
        History::KeepLast(depth) => message_max.saturating_mul(u64::from(depth)),
        History::KeepAll { bytes, .. } => bytes.max(message_max),
    }
}

impl Quotas {
    /// What a publisher needs of its quota; none: the quota says nothing of that. Or why it is not there.
    pub fn reserve(
        &self,
        quota: &Quota,
        kind: Kind,
        publisher: u64,
        offer: &Offer,
    ) -> Result<Option<Reserved>, String> {
        let (name, total) = match kind {
            Kind::Staging => ("staging_max", quota.staging_max),
            Kind::RemotePublisher => ("landing_max", quota.landing_max),
        };
        let (Some(total), Some(message_max)) = (total, quota.message_max) else {
            return Ok(None);
        };
        let bytes = needs(offer, message_max.0);
        let key = (quota.name.clone(), kind);
        let mut books = lock(&self.books);
        let reserves = books.entry(key.clone()).or_default();
        let refused = |why: String| Err(format!("quota '{}': {name}: {why}", quota.name));
        if reserves.contains_key(&publisher) {
            return refused(format!("publisher {publisher} already has a part of it"));
        }
        let left = total.0.saturating_sub(reserves.values().sum());
        if bytes > left {
            let (bytes, left) = (ByteSize(bytes), ByteSize(left));
            return refused(format!("topic needs {bytes}, {left} left of {total}"));
        }
        reserves.insert(publisher, bytes);
        drop(books);
        Ok(Some(Reserved {
            books: self.books.clone(),
            key,
            publisher,
            bytes,
        }))
    }

    /// A topic's bytes a second to a host, which stay its own until [`Quotas::give`]; none: as many as there are.
    pub fn rate(
        &mut self,
        links: &Links,
        quota: &Quota,
        host: &str,
        topic: &str,
    ) -> Result<Option<u64>, String> {
        let Some(rate) = quota.rate_max else {
            return Ok(None);
        };
        let topics = self.rates.entry(host.to_owned()).or_default();
        if topics.contains_key(topic) {
            return Ok(Some(rate.0));
        }
        if let Some(all) = links.rate_max {
            let taken = topics
                .values()
                .fold(0u64, |sum, rate| sum.saturating_add(*rate));
            let left = all.0.saturating_sub(taken);
            if rate.0 > left {
                return Err(format!(
                    "quota '{}': rate_max: topic needs {rate} a second, {} left of links.rate_max = {all}",
                    quota.name,
                    ByteSize(left)
                ));
            }
        }
        topics.insert(topic.to_owned(), rate.0);
        Ok(Some(rate.0))
    }

    /// A topic goes to a host no more.
    pub fn give(&mut self, host: &str, topic: &str) {
        if let Some(topics) = self.rates.get_mut(host) {
            topics.remove(topic);
            if topics.is_empty() {
                self.rates.remove(host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn quota() -> Quota {
        Quota {
            name: "cameras".to_owned(),
            peer: "*".to_owned(),
            topics: vec!["camera/**".to_owned()],
            message_max: Some(ByteSize(MIB)),
            staging_max: Some(ByteSize(10 * MIB)),
            landing_max: Some(ByteSize(4 * MIB)),
            rate_max: Some(ByteSize(600)),
        }
    }

    fn offer(history: History) -> Offer {
        Offer {
            history,
            reliable: true,
            transient_local: false,
            loans: 1,
        }
    }

    #[test]
    fn what_is_not_there_is_refused_by_name_until_somebody_leaves() {
        let (quotas, quota) = (Quotas::default(), quota());
        let three = offer(History::KeepLast(3));
        let first = quotas.reserve(&quota, Kind::RemotePublisher, 1, &three);
        let first = first.unwrap().unwrap();
        assert_eq!(first.bytes, 3 * MIB);
        let why = quotas
            .reserve(&quota, Kind::RemotePublisher, 2, &three)
            .err();
        assert_eq!(
            why.unwrap(),
            "quota 'cameras': landing_max: topic needs 3MiB, 1MiB left of 4MiB"
        );
        // The other kind is another account.
        let staged = quotas.reserve(&quota, Kind::Staging, 2, &three);
        assert!(staged.unwrap().is_some());
        drop(first);
        assert!(quotas
            .reserve(&quota, Kind::RemotePublisher, 2, &three)
            .unwrap()
            .is_some());
        // More than there ever is.
        let five = offer(History::KeepLast(5));
        let why = quotas
            .reserve(&quota, Kind::RemotePublisher, 3, &five)
            .err();
        assert_eq!(
            why.unwrap(),
            "quota 'cameras': landing_max: topic needs 5MiB, 4MiB left of 4MiB"
        );
        let bytes = offer(History::KeepAll {
            messages: 1000,
            bytes: 2 * MIB,
        });
        let log = quotas
            .reserve(&quota, Kind::RemotePublisher, 4, &bytes)
            .unwrap();
        assert_eq!(log.unwrap().bytes, 2 * MIB);
        let none = Quota {
            landing_max: None,
            ..quota
        };
        assert!(quotas
            .reserve(&none, Kind::RemotePublisher, 5, &five)
            .unwrap()
            .is_none());
    }

    #[test]
    fn rates_add_up_to_no_more_than_the_link_has() {
        let (mut quotas, quota) = (Quotas::default(), quota());
        let links = Links {
            rate_max: Some(ByteSize(1000)),
            ..Links::default()
        };
        assert_eq!(quotas.rate(&links, &quota, "b", "camera/1"), Ok(Some(600)));
        assert_eq!(quotas.rate(&links, &quota, "b", "camera/1"), Ok(Some(600)));
        assert_eq!(
            quotas.rate(&links, &quota, "b", "camera/2").unwrap_err(),
            "quota 'cameras': rate_max: topic needs 600 a second, 400 left of links.rate_max = 1000"
        );
        // Each host has a link of its own.
        quotas.rate(&links, &quota, "c", "camera/2").unwrap();
        quotas.give("b", "camera/1");
        quotas.rate(&links, &quota, "b", "camera/2").unwrap();
    }
}
