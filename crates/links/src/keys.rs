//! The keys of the control plane. Each host of a realm has a liveliness token for itself and one for
//! each topic that it has subscribers of; a token carries no payload, so the key says all.
//!
//! ```text
//! rgaps/<realm>/node/<host>/<incarnation>/<protocol>
//! rgaps/<realm>/want/<host>/<incarnation>/<topic>/<demand>
//! rgaps/<realm>/meet/<host>/<incarnation>          queries: lanes' address and key
//! ```
//! What other hosts declare is an allegation: it is checked here, and what does not fit is no key of ours.

use rgaps_client::links::Demand;
use rgaps_session::{check_topic_name, MAX_HOST_NAME};
use serde::{Deserialize, Serialize};

/// Version of all that hosts say to each other: these keys, the meeting, and what is said over links.
pub const PLANE_VERSION: u32 = 7;
/// Longest key that is looked at: a topic's name of 255 bytes, each escaped, and what is around it.
const MAX_KEY_BYTES: usize = 1200;
/// Subscribers of a topic on a host that are believed at most.
pub const MAX_WANTED: u32 = 1 << 16;

/// Another host, or this one: its name, and which life of its links.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Its name.
    pub host: String,
    /// Random, never 0.
    pub incarnation: u64,
}

/// What a host's subscribers of a topic ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// How many there are.
    pub subscribers: u32,
    /// All that any of them asks for.
    pub demand: Demand,
}

impl Want {
    fn text(&self) -> String {
        let Want {
            subscribers,
            demand,
        } = self;
        format!(
            "{subscribers}.{}.{}.{}",
            u32::from(demand.reliable),
            u32::from(demand.transient_local),
            demand.depth
        )
    }

    fn summand(&self, topic: &str) -> u64 {
        number_of(&format!("{topic}/{}", self.text()))
    }
}

/// The sum of all that a host wants, by which two hosts find out whether they know the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(pub u64);

impl Sum {
    /// Of a topic something else is wanted than before.
    pub fn change(&mut self, topic: &str, before: Option<Want>, now: Option<Want>) {
        let of = |want: Option<Want>| want.map_or(0, |want| want.summand(topic));
        self.0 = self.0.wrapping_add(of(now)).wrapping_sub(of(before));
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The host is there, and speaks this version.
    Node(Node, u32),
    /// It has subscribers of this topic.
    Want(Node, String, Want),
}

impl Token {
    /// The token's key.
    pub fn key(&self, realm: &str) -> String {
        match self {
            Token::Node(node, protocol) => format!("{}/{protocol}", node.key(realm, "node")),
            Token::Want(node, topic, want) => {
                let base = node.key(realm, "want");
                format!("{base}/{}/{}", escape(topic), want.text())
            }
        }
    }

    /// What a key of this realm says; none: it is no token.
    pub fn parse(realm: &str, key: &str) -> Option<Token> {
        if key.len() > MAX_KEY_BYTES {
            return None;
        }
        let rest = key.strip_prefix("rgaps/")?.strip_prefix(realm)?;
        let mut parts = rest.strip_prefix('/')?.split('/');
        let kind = parts.next()?;
        let host = parts.next().filter(|host| is_host(host))?.to_owned();
        let incarnation = u64::from_str_radix(parts.next()?, 16).ok()?;
        let node = Node { host, incarnation };
        let token = match kind {
            "node" => Token::Node(node, parts.next()?.parse().ok()?),
            "want" => {
                let topic = unescape(parts.next()?)?;
                check_topic_name(&topic).ok()?;
                Token::Want(node, topic, parse_want(parts.next()?)?)
            }
            _ => return None,
        };
        (parts.next().is_none() && incarnation != 0).then_some(token)
    }
}

impl Node {
    fn key(&self, realm: &str, kind: &str) -> String {
        format!("rgaps/{realm}/{kind}/{}/{:x}", self.host, self.incarnation)
    }

    /// Where it is asked for its lanes.
    pub fn meeting(&self, realm: &str) -> String {
        self.key(realm, "meet")
    }
}

fn parse_want(text: &str) -> Option<Want> {
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    let subscribers = next().filter(|count| (1..=MAX_WANTED).contains(count))?;
    let flags = (next().filter(|f| *f < 2)?, next().filter(|f| *f < 2)?);
    let depth = next()?;
    let demand = Demand {
        reliable: flags.0 == 1,
        transient_local: flags.1 == 1,
        depth,
    };
    numbers.next().is_none().then_some(Want {
        subscribers,
        demand,
    })
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

/// A topic's name as one part of a key: what Zenoh has other uses for is written in hexadecimal.
fn escape(topic: &str) -> String {
    let mut key = String::with_capacity(topic.len());
    for byte in topic.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => key.push(byte.into()),
            _ => key.push_str(&format!("%{byte:02x}")),
        }
    }
    key
}

fn unescape(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node {
            host: "robot-1".to_owned(),
            incarnation: 0xfeed,
        }
    }

    fn want(topic: &str) -> Token {
        let demand = Demand {
            reliable: true,
            transient_local: false,
            depth: 7,
        };
        let subscribers = 3;
        Token::Want(
            node(),
            topic.to_owned(),
            Want {
                subscribers,
                demand,
            },
        )
    }

    #[test]
    fn a_token_says_what_it_said() {
        for token in [
            Token::Node(node(), PLANE_VERSION),
            want("camera"),
            want("camera/left"),
            want("täglich/100% $#@ {}"),
            want(&"ü".repeat(127)),
        ] {
            let key = token.key("lab");
            assert_eq!(Token::parse("lab", &key), Some(token), "{key}");
            assert_eq!(
                key.split('/').count(),
                key.trim_matches('/').split('/').count()
            );
            assert!(!key.contains(['$', '#', '?', '*', ' ']), "{key}");
        }
    }

    #[test]
    fn another_realm_is_not_heard() {
        let key = want("camera").key("lab");
        assert_eq!(Token::parse("la", &key), None);
        assert_eq!(Token::parse("lab2", &key), None);
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
            "rgaps/lab/want/a/1/%2",
            "rgaps/lab/want/a/1/%2f/1.0.0.0",
            "rgaps/lab/want/a/1/%ff/1.0.0.0",
            "rgaps/lab/want/a/1/t/0.0.0.0",
            "rgaps/lab/want/a/1/t/1.2.0.0",
            "rgaps/lab/want/a/1/t/1.0.0",
            "rgaps/lab/want/a/1/t/1.0.0.0.0",
            "rgaps/lab/want/a/1/t/99999999.0.0.0",
            "rgaps/lab/else/a/1/t",
        ] {
            assert_eq!(Token::parse("lab", key), None, "{key}");
        }
        assert!(Token::parse("lab", "rgaps/lab/want/a/1/t/1.0.0.0").is_some());
    }
}
