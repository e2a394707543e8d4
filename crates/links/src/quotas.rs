//! Limits that topics share. A publisher reserves the longest message of its quota times the messages that it keeps, or the bytes
//! that it keeps: on its own host for messages on their way (*staging*), and on the host where they land.

use rgaps_client::links::{Links, Offer, Quota};
use rgaps_client::History;
use rgaps_session::ByteSize;
use std::collections::{BTreeMap, BTreeSet};

/// One of a quota's limits in bytes, and its key.
pub type Limit = (&'static str, Option<ByteSize>);

fn needs(offer: &Offer, message_max: u64) -> u64 {
    match offer.history {
        History::KeepLast(depth) => message_max.saturating_mul(u64::from(depth)),
        History::KeepAll { bytes, .. } => bytes.max(message_max),
    }
}

/// Why a message is too long for its quota, if it is.
pub fn too_long(quota: &Quota, bytes: u64) -> Option<String> {
    let is_over = quota.message_max.is_some_and(|max| bytes > max.0);
    let name = &quota.name;
    is_over.then(|| format!("quota '{name}': message_max: a message of {bytes} bytes"))
}

/// The bytes that a publisher needs of its quota, of which others have `taken` some. `None`: the quota does not limit that. `Err`: why
/// too few are left.
pub fn part_of(
    quota: &Quota,
    (name, total): Limit,
    offer: &Offer,
    taken: u64,
) -> Result<Option<u64>, String> {
    let (Some(total), Some(message_max)) = (total, quota.message_max) else {
        return Ok(None);
    };
    let bytes = needs(offer, message_max.0);
    let left = total.0.saturating_sub(taken);
    if bytes <= left {
        return Ok(Some(bytes));
    }
    let (bytes, left) = (ByteSize(bytes), ByteSize(left));
    Err(format!(
        "quota '{}': {name}: topic needs {bytes}, {left} left of {total}",
        quota.name
    ))
}

/// The bytes of quotas that publishers have reserved for messages on their way, by quotas and publishers.
#[derive(Default)]
pub struct Staged(BTreeMap<(String, u64), u64>);

impl Staged {
    /// Reserves a publisher's part, which it keeps until it is [not used](Self::set_used) any more.
    pub fn reserve(
        &mut self,
        quota: &Quota,
        publisher: u64,
        offer: &Offer,
    ) -> Result<Option<u64>, String> {
        let key = (quota.name.clone(), publisher);
        if let Some(bytes) = self.0.get(&key) {
            return Ok(Some(*bytes));
        }
        let of_quota = self.0.iter().filter(|((name, _), _)| *name == key.0);
        let taken = of_quota.map(|(_, bytes)| bytes).sum();
        let bytes = part_of(quota, ("staging_max", quota.staging_max), offer, taken)?;
        self.0.extend(bytes.map(|bytes| (key, bytes)));
        Ok(bytes)
    }

    /// Forgets all parts but these, which are used.
    pub fn set_used(&mut self, used: &BTreeSet<(&str, u64)>) {
        self.0
            .retain(|(name, publisher), _| used.contains(&(&name[..], *publisher)));
    }
}

/// Whether the link to a host has room for a topic's rate beside those of the other topics that go there, or why not.
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
        let quota = quota();
        let three = offer(History::KeepLast(3));
        let lands = |offer: &Offer, taken| part_of(&quota, landing(&quota), offer, taken);
        assert_eq!(lands(&three, 0), Ok(Some(3 * MIB)));
        assert_eq!(
            lands(&three, 3 * MIB).unwrap_err(),
            "quota 'cameras': landing_max: topic needs 3MiB, 1MiB left of 4MiB"
        );
        assert_eq!(lands(&three, MIB), Ok(Some(3 * MIB)));
        // More than there ever is.
        let five = offer(History::KeepLast(5));
        assert_eq!(
            lands(&five, 0).unwrap_err(),
            "quota 'cameras': landing_max: topic needs 5MiB, 4MiB left of 4MiB"
        );
        let bytes = offer(History::KeepAll {
            messages: 1000,
            bytes: 2 * MIB,
        });
        assert_eq!(lands(&bytes, 0), Ok(Some(2 * MIB)));
        let none = Quota {
            landing_max: None,
            ..quota
        };
        assert_eq!(part_of(&none, landing(&none), &five, 0), Ok(None));
    }

    #[test]
    fn a_publisher_keeps_its_part_until_it_is_not_used_any_more() {
        let (mut staged, quota) = (Staged::default(), quota());
        let (six, four) = (History::KeepLast(6), History::KeepLast(4));
        let mut reserve = |publisher, history| staged.reserve(&quota, publisher, &offer(history));
        assert_eq!(reserve(1, six), Ok(Some(6 * MIB)));
        assert_eq!(reserve(1, six), Ok(Some(6 * MIB)));
        assert_eq!(reserve(2, four), Ok(Some(4 * MIB)));
        assert_eq!(
            reserve(3, four).unwrap_err(),
            "quota 'cameras': staging_max: topic needs 4MiB, 0 left of 10MiB"
        );
        staged.set_used(&BTreeSet::from([("cameras", 2)]));
        let third = staged.reserve(&quota, 3, &offer(four));
        assert_eq!(third, Ok(Some(4 * MIB)));
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
