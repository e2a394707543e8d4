//! The keys of the control plane. Each host of a realm has a liveliness token; a token carries no payload, so the key says all.
//!
//! ```text
//! rgaps/<realm>/node/<host>/<incarnation>/<protocol>
//! rgaps/<realm>/meet/<host>/<incarnation>          queries: lanes' address and key
//! ```
//! Other hosts' keys are checked here. A key that does not parse is ignored.

use rgaps_client::links::Demand;
use rgaps_session::MAX_HOST_NAME;
use serde::{Deserialize, Serialize};

/// Version of everything that hosts exchange: these keys, queries for addresses, and the messages over links.
pub const PLANE_VERSION: u32 = 9;
/// The most subscribers of a topic that a host may claim to have.
pub const MAX_WANTED: u32 = 1 << 16;

/// One life of a host: the time between a start of its links and their end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostLife {
    /// The host's name.
    pub host: String,
    /// When the life began, in nanoseconds of the host's wall clock; never 0. Later lives have higher numbers.
    pub incarnation: u64,
}

/// What a host's subscribers to a topic ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicInterest {
    /// How many subscribers the host has.
    pub subscribers: u32,
    /// The strongest demand of any of them, member by member.
    pub demand: Demand,
}

/// The liveliness token of a host. A host that asks another for the address of its lanes sends its token along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostToken {
    /// The [`PLANE_VERSION`] that the host speaks.
    pub protocol: u32,
    /// The host and its life.
    pub node: HostLife,
}

impl HostToken {
    /// The token's key.
    pub fn key(&self, realm: &str) -> String {
        format!("{}/{}", self.node.key(realm, "node"), self.protocol)
    }

    /// Parses a key of this realm. None: it is no token.
    pub fn parse(realm: &str, key: &str) -> Option<HostToken> {
        let rest = key.strip_prefix("rgaps/")?.strip_prefix(realm)?;
        let mut parts = rest.strip_prefix("/node/")?.split('/');
        let host = parts.next().filter(|host| is_host(host))?.to_owned();
        let incarnation = u64::from_str_radix(parts.next()?, 16).ok()?;
        let protocol = parts.next()?.parse().ok()?;
        let node = HostLife { host, incarnation };
        (parts.next().is_none() && incarnation != 0).then_some(HostToken { node, protocol })
    }
}

impl HostLife {
    fn key(&self, realm: &str, kind: &str) -> String {
        format!("rgaps/{realm}/{kind}/{}/{:x}", self.host, self.incarnation)
    }

    /// Where it is asked for its lanes.
    pub fn address_key(&self, realm: &str) -> String {
        self.key(realm, "meet")
    }
}

/// The realm and the host of a token of any realm. None: the key is no token.
pub(crate) fn realm_and_host(key: &str) -> Option<(&str, String)> {
    let realm = key.strip_prefix("rgaps/")?.split('/').next()?;
    let host = HostToken::parse(realm, key)?.node.host;
    Some((realm, host))
}

pub(crate) fn is_host(host: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !host.is_empty() && host.len() <= MAX_HOST_NAME && host.chars().all(plain)
}

/// A number that all derive from a name (FNV-1a).
pub(crate) fn number_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> HostToken {
        let node = HostLife {
            host: "robot-1".to_owned(),
            incarnation: 0xfeed,
        };
        let protocol = PLANE_VERSION;
        HostToken { node, protocol }
    }

    #[test]
    fn a_token_says_what_it_said() {
        let key = token().key("lab");
        assert_eq!(key, format!("rgaps/lab/node/robot-1/feed/{PLANE_VERSION}"));
        assert_eq!(HostToken::parse("lab", &key), Some(token()));
    }

    #[test]
    fn another_realm_is_not_heard() {
        let key = token().key("lab");
        assert_eq!(HostToken::parse("la", &key), None);
        assert_eq!(HostToken::parse("lab2", &key), None);
        let robot = "robot-1".to_owned();
        assert_eq!(realm_and_host(&key), Some(("lab", robot)));
        assert_eq!(realm_and_host("rgaps/lab/meet/robot-1/feed"), None);
    }

    #[test]
    fn what_others_may_say_is_checked() {
        for key in [
            "",
            "rgaps/lab",
            "rgaps/lab/node/a/1",
            "rgaps/lab/node/a/0/1",
            "rgaps/lab/node/a/x/1",
            "rgaps/lab/node/a/1/1/1",
            "rgaps/lab/node//1/1",
            "rgaps/lab/node/a b/1/1",
            "rgaps/lab/else/a/1/1",
        ] {
            assert_eq!(HostToken::parse("lab", key), None, "{key}");
        }
        assert!(HostToken::parse("lab", "rgaps/lab/node/a/1/1").is_some());
    }
}
