//! The keys of the control plane. Each host of a realm has a liveliness token; a token carries no payload, so the key says all.
//!
//! ```text
//! rgaps/<realm>/node/<host>/<incarnation>/<protocol>
//! rgaps/<realm>/meet/<host>/<incarnation>          queries: lanes' address and key
//! ```
//! What other hosts declare is an allegation: it is checked here, and what does not fit is no key of ours.

use rgaps_client::links::Demand;
use rgaps_session::MAX_HOST_NAME;
use serde::{Deserialize, Serialize};

/// Version of all that hosts say to each other: these keys, the meeting, and what is said over links.
pub const PLANE_VERSION: u32 = 9;
/// Subscribers of a topic on a host that are believed at most.
pub const MAX_WANTED: u32 = 1 << 16;

/// Another host, or this one: its name, and which life of its links.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostLife {
    /// Its name.
    pub host: String,
    /// When it began, in nanoseconds of its wall clock, never 0: later lives have higher numbers.
    pub incarnation: u64,
}

/// What a host's subscribers of a topic ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicInterest {
    /// How many there are.
    pub subscribers: u32,
    /// All that any of them asks for.
    pub demand: Demand,
}

/// The token of a host that is there. A host that asks another for its lanes sends its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The version that it speaks.
    pub protocol: u32,
    /// The host.
    pub node: HostLife,
}

impl Token {
    /// The token's key.
    pub fn key(&self, realm: &str) -> String {
        format!("{}/{}", self.node.key(realm, "node"), self.protocol)
    }

    /// What a key of this realm says; none: it is no token.
    pub fn parse(realm: &str, key: &str) -> Option<Token> {
        let rest = key.strip_prefix("rgaps/")?.strip_prefix(realm)?;
        let mut parts = rest.strip_prefix("/node/")?.split('/');
        let host = parts.next().filter(|host| is_host(host))?.to_owned();
        let incarnation = u64::from_str_radix(parts.next()?, 16).ok()?;
        let protocol = parts.next()?.parse().ok()?;
        let node = HostLife { host, incarnation };
        (parts.next().is_none() && incarnation != 0).then_some(Token { node, protocol })
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

/// Realm and host of a token, of whichever realm.
pub(crate) fn realm_and_host(key: &str) -> Option<(&str, String)> {
    let realm = key.strip_prefix("rgaps/")?.split('/').next()?;
    let host = Token::parse(realm, key)?.node.host;
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

    fn token() -> Token {
        let node = HostLife {
            host: "robot-1".to_owned(),
            incarnation: 0xfeed,
        };
        let protocol = PLANE_VERSION;
        Token { node, protocol }
    }

    #[test]
    fn a_token_says_what_it_said() {
        let key = token().key("lab");
        assert_eq!(key, format!("rgaps/lab/node/robot-1/feed/{PLANE_VERSION}"));
        assert_eq!(Token::parse("lab", &key), Some(token()));
    }

    #[test]
    fn another_realm_is_not_heard() {
        let key = token().key("lab");
        assert_eq!(Token::parse("la", &key), None);
        assert_eq!(Token::parse("lab2", &key), None);
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
            assert_eq!(Token::parse("lab", key), None, "{key}");
        }
        assert!(Token::parse("lab", "rgaps/lab/node/a/1/1").is_some());
    }
}
