//! Bridges to Zenoh and ROS 2, which `rgaps bridge` runs.

use crate::access::{bare_topic_name, check_topic_name};
use serde::{Deserialize, Serialize};

/// Largest number of endpoints in a list, and of rules.
const MAX_ENTRIES: usize = 256;

/// Bridges to Zenoh and ROS 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bridge {
    /// Zenoh endpoints of routers and peers: `tcp/10.0.0.2:7447`. The bridge tries them until it reaches them.
    pub connect: Vec<String>,
    /// Zenoh endpoints at which the bridge listens.
    pub listen: Vec<String>,
    /// Whether the bridge also looks for peers and routers by multicast.
    pub scouting: bool,
    /// What precedes the name of a topic in the key of a rule without a key.
    pub prefix: String,
    /// Which topics `rgaps bridge zenoh` carries.
    pub zenoh: Vec<ZenohRule>,
}

/// Topics that a bridge carries to or from Zenoh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZenohRule {
    /// A topic, or a pattern of topics.
    pub topic: String,
    /// The key of the topic. `None`: [`Bridge::prefix`] and the name of the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Which way messages go.
    #[serde(default)]
    pub direction: BridgeDirection,
    /// Whether publishers of this realm wait until the bridge has read their messages.
    #[serde(default)]
    pub reliable: bool,
}

/// Which way a bridge carries messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BridgeDirection {
    /// Both ways.
    #[default]
    Both,
    /// From rgaps to the other system.
    To,
    /// From the other system to rgaps.
    From,
}

impl BridgeDirection {
    /// Whether messages of this realm leave it.
    pub fn is_to(self) -> bool {
        self != BridgeDirection::From
    }

    /// Whether messages come into this realm.
    pub fn is_from(self) -> bool {
        self != BridgeDirection::To
    }
}

impl Bridge {
    pub(super) fn check(&self) -> Result<(), String> {
        for (key, count) in [
            ("connect", self.connect.len()),
            ("listen", self.listen.len()),
            ("zenoh", self.zenoh.len()),
        ] {
            if count > MAX_ENTRIES {
                return Err(format!(
                    "bridge.{key} can have at most {MAX_ENTRIES} entries"
                ));
            }
        }
        for rule in &self.zenoh {
            rule.check()?;
        }
        Ok(())
    }
}

impl ZenohRule {
    /// Whether the rule is about all topics of a pattern.
    pub fn is_pattern(&self) -> bool {
        self.topic.contains(['*', '?'])
    }

    fn check(&self) -> Result<(), String> {
        let topic = bare_topic_name(&self.topic);
        let Self { key, direction, .. } = self;
        if !self.is_pattern() {
            return check_topic_name(topic).map_err(|error| format!("bridge.zenoh: {error}"));
        }
        if key.is_some() {
            return Err(format!(
                "bridge.zenoh: '{topic}' is a pattern, which cannot have one key; set bridge.prefix, or name the topics"
            ));
        }
        if direction.is_from() && topic.contains('?') {
            return Err(format!(
                "bridge.zenoh: '{topic}': Zenoh has nothing like '?'; use '*'"
            ));
        }
        // The name of a topic does not change when it is empty between two slashes.
        let is_topic = check_topic_name(&topic.replace(['*', '?'], "x"));
        is_topic.map_err(|error| format!("bridge.zenoh: '{topic}': {}", error.reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Bridge, String> {
        let bridge: Bridge = toml::from_str(text).map_err(|error| error.to_string())?;
        bridge.check().map(|()| bridge)
    }

    #[test]
    fn what_cannot_be_is_named() {
        let rule = |rule: &str| parse(&format!("[[zenoh]]\n{rule}"));
        assert_eq!(parse("").unwrap(), Bridge::default());
        let both = rule("topic = \"camera\"").unwrap();
        assert!(both.zenoh[0].direction.is_to() && both.zenoh[0].direction.is_from());
        rule("topic = \"/camera\"\nkey = \"a/b\"\ndirection = \"to\"").unwrap();
        rule("topic = \"camera/?\"\ndirection = \"to\"").unwrap();
        for (text, named) in [
            ("topic = \"\"", "empty"),
            ("topic = \"a/\"", "empty part"),
            ("topic = \"a//*\"", "empty part"),
            ("topic = \"camera/*\"\nkey = \"a\"", "bridge.prefix"),
            ("topic = \"camera/?\"", "'?'"),
            ("topic = \"a\"\ndirection = \"up\"", "unknown variant"),
            ("topic = \"a\"\nkeys = \"b\"", "unknown field"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
