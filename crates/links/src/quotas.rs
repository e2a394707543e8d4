//! Limits that topics share. A publisher reserves the longest message of its quota times the messages that it keeps, or the bytes
//! that it keeps: on its own host for messages on their way (*staging*), and on the host where they land.

use crate::lock;
use rgaps_client::links::{Links, Offer, Quota};
use rgaps_client::History;
use rgaps_session::ByteSize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// One of a quota's limits in bytes, and its key.
pub type Limit = (&'static str, Option<ByteSize>);

type Books = Mutex<BTreeMap<(String, &'static str), u64>>;

#[derive(Default)]
pub struct Quotas(Arc<Books>);

/// A publisher's part of a quota, until it is dropped.
pub struct Reserved {
    books: Arc<Books>,
    key: (String, &'static str),
    pub bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(reserved) = lock(&self.books).get_mut(&self.key) {
            *reserved -= self.bytes;
        }
    }
}

/// The parts of publishers that are sent, by quotas and publishers.
pub type Staged = BTreeMap<(String, u64), Reserved>;

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
        (name, total): Limit,
        offer: &Offer,
    ) -> Result<Option<Reserved>, String> {
        let (Some(total), Some(message_max)) = (total, quota.message_max) else {
            return Ok(None);
        };
        let bytes = needs(offer, message_max.0);
        let key = (quota.name.clone(), name);
        let mut books = lock(&self.0);
        let reserved = books.entry(key.clone()).or_default();
        let left = total.0.saturating_sub(*reserved);
        if bytes > left {
            let (bytes, left) = (ByteSize(bytes), ByteSize(left));
            return Err(format!(
                "quota '{}': {name}: topic needs {bytes}, {left} left of {total}",
                quota.name
            ));
        }
        *reserved += bytes;
        let books = self.0.clone();
        Ok(Some(Reserved { books, key, bytes }))
    }
}

/// Whether a topic may have its bytes a second to a host besides the other topics that go there.
pub fn check_rate<'a>(
    links: &Links,
    (host, topic): (&str, &str),
    others: impl FnOnce() -> BTreeSet<&'a String>,
) -> Result<(), String> {
    let rate_of = |topic: &str| links.quota(host, topic)?.rate_max;
    let (Some(all), Some(rate)) = (links.rate_max, rate_of(topic)) else {
        return Ok(());
    };
    let others = others().into_iter().filter_map(|topic| rate_of(topic));
    let taken = others.fold(0u64, |sum, rate| sum.saturating_add(rate.0));
    let left = ByteSize(all.0.saturating_sub(taken));
    if rate.0 <= left.0 {
        return Ok(());
    }
    let quota = links.quota(host, topic).map_or("", |quota| &quota.name);
    Err(format!(
        "quota '{quota}': rate_max: topic needs {rate} a second, {left} left of links.rate_max = {all}"
    ))
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

    fn landing(quota: &Quota) -> Limit {
        ("landing_max", quota.landing_max)
    }

    fn staging(quota: &Quota) -> Limit {
        ("staging_max", quota.staging_max)
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
        let first = quotas.reserve(&quota, landing(&quota), &three);
        let first = first.unwrap().unwrap();
        assert_eq!(first.bytes, 3 * MIB);
        let why = quotas.reserve(&quota, landing(&quota), &three).err();
        assert_eq!(
            why.unwrap(),
            "quota 'cameras': landing_max: topic needs 3MiB, 1MiB left of 4MiB"
        );
        // The other kind is another account.
        let staged = quotas.reserve(&quota, staging(&quota), &three);
        assert!(staged.unwrap().is_some());
        drop(first);
        assert!(quotas
            .reserve(&quota, landing(&quota), &three)
            .unwrap()
            .is_some());
        // More than there ever is.
        let five = offer(History::KeepLast(5));
        let why = quotas.reserve(&quota, landing(&quota), &five).err();
        assert_eq!(
            why.unwrap(),
            "quota 'cameras': landing_max: topic needs 5MiB, 4MiB left of 4MiB"
        );
        let bytes = offer(History::KeepAll {
            messages: 1000,
            bytes: 2 * MIB,
        });
        let log = quotas.reserve(&quota, landing(&quota), &bytes).unwrap();
        assert_eq!(log.unwrap().bytes, 2 * MIB);
        let none = Quota {
            landing_max: None,
            ..quota
        };
        assert!(quotas
            .reserve(&none, landing(&none), &five)
            .unwrap()
            .is_none());
    }

    #[test]
    fn rates_add_up_to_no_more_than_the_link_has() {
        let links = Links {
            rate_max: Some(ByteSize(1000)),
            quotas: vec![quota()],
            ..Links::default()
        };
        let check = |other: &str| {
            let others = [other.to_owned()];
            check_rate(&links, ("b", "camera/2"), || others.iter().collect())
        };
        assert_eq!(check("other"), Ok(()));
        assert_eq!(
            check("camera/1").unwrap_err(),
            "quota 'cameras': rate_max: topic needs 600 a second, 400 left of links.rate_max = 1000"
        );
    }
}
