//! Bridges to Zenoh and ROS 2, which `rgaps bridge` runs.

use crate::access::{bare_topic_name, check_topic_name, is_pattern};
use serde::{Deserialize, Serialize};

/// Largest number of endpoints in a list, and of rules.
const MAX_ENTRIES: usize = 256;
/// Largest ROS 2 domain.
const MAX_ROS_DOMAIN: u32 = 232;
/// Most messages that a publisher keeps.
const MAX_DEPTH: u32 = 32_768;

/// Bridges to Zenoh and ROS 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BridgeConfig {
    /// Zenoh endpoints of routers and peers: `tcp/10.0.0.2:7447`. The bridge tries them until it reaches them.
    pub connect: Vec<String>,
    /// Zenoh endpoints at which the bridge listens.
    pub listen: Vec<String>,
    /// Whether the bridge also looks for peers and routers by multicast.
    pub scouting: bool,
    /// The prefix of the topic's name in the key, for rules without a key.
    pub prefix: String,
    /// Which topics `rgaps bridge zenoh` carries.
    pub zenoh: Vec<ZenohRule>,
    /// The domain of ROS 2: `ROS_DOMAIN_ID` of its nodes.
    pub ros_domain: u32,
    /// The middleware of the ROS 2 nodes.
    pub ros_middleware: RosMiddleware,
    /// Which topics `rgaps bridge ros2` carries.
    pub ros2: Vec<Ros2Rule>,
}

/// The middleware of ROS 2 nodes, which determines the keys of their topics in Zenoh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RosMiddleware {
    /// `rmw_zenoh`.
    #[default]
    Zenoh,
    /// DDS, behind `zenoh-bridge-ros2dds`.
    Dds,
}

/// Topics that a bridge carries to or from Zenoh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZenohRule {
    /// A topic, or a pattern of topics.
    pub topic: String,
    /// The key of the topic. `None`: [`BridgeConfig::prefix`] and the name of the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The direction of messages.
    #[serde(default)]
    pub direction: BridgeDirection,
    /// Whether publishers of this realm wait until the bridge has read their messages.
    #[serde(default)]
    pub reliable: bool,
}

/// A topic that a bridge carries to or from ROS 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ros2Rule {
    /// The topic.
    pub topic: String,
    /// Its name in ROS 2. `None`: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The type of its messages: `sensor_msgs/msg/Image`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The direction of messages.
    #[serde(default)]
    pub direction: BridgeDirection,
    /// Whether the bridge is reliable in ROS 2's graph, and publishers of this realm wait until it has read their messages.
    #[serde(default)]
    pub reliable: bool,
    /// Whether late joiners get the last messages.
    #[serde(default)]
    pub transient_local: bool,
    /// How many messages are kept.
    #[serde(default = "depth")]
    pub depth: u32,
    /// The hash of the type, for types that the bridge does not know, and for Humble: `TypeHashNotSupported`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

fn depth() -> u32 {
    10
}

/// The direction in which a bridge carries messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BridgeDirection {
    /// Both directions.
    #[default]
    Both,
    /// From rgaps to the other system.
    To,
    /// From the other system to rgaps.
    From,
}

impl BridgeDirection {
    /// Whether messages leave this realm.
    pub fn is_to(self) -> bool {
        self != BridgeDirection::From
    }

    /// Whether messages come into this realm.
    pub fn is_from(self) -> bool {
        self != BridgeDirection::To
    }
}

impl BridgeConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        for (key, count) in [
            ("connect", self.connect.len()),
            ("listen", self.listen.len()),
            ("zenoh", self.zenoh.len()),
            ("ros2", self.ros2.len()),
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
        if self.ros_domain > MAX_ROS_DOMAIN {
            let domain = self.ros_domain;
            return Err(format!(
                "bridge.ros_domain = {domain}: it must be 0 to {MAX_ROS_DOMAIN}"
            ));
        }
        self.ros2.iter().try_for_each(Ros2Rule::check)
    }
}

impl Ros2Rule {
    fn check(&self) -> Result<(), String> {
        for name in [Some(&self.topic), self.name.as_ref()]
            .into_iter()
            .flatten()
        {
            let is_topic = check_topic_name(bare_topic_name(name));
            is_topic.map_err(|error| format!("bridge.ros2: {error}"))?;
        }
        let parts: Vec<&str> = self.type_name.split('/').collect();
        let is_word = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if parts.len() != 3 || !parts.iter().all(is_word) {
            return Err(format!(
                "bridge.ros2: '{}' is no type; a type is like \"sensor_msgs/msg/Image\"",
                self.type_name
            ));
        }
        match self.depth {
            1..=MAX_DEPTH => Ok(()),
            depth => Err(format!(
                "bridge.ros2: depth = {depth}: it must be 1 to {MAX_DEPTH}"
            )),
        }
    }
}

impl ZenohRule {
    /// Whether the rule is about all topics of a pattern.
    pub fn is_pattern(&self) -> bool {
        is_pattern(&self.topic)
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

    fn parse(text: &str) -> Result<BridgeConfig, String> {
        let bridge: BridgeConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        bridge.check().map(|()| bridge)
    }

    #[test]
    fn what_cannot_be_is_named() {
        let rule = |rule: &str| parse(&format!("[[zenoh]]\n{rule}"));
        assert_eq!(parse("").unwrap(), BridgeConfig::default());
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
        let ros = |rule: &str| parse(&format!("[[ros2]]\n{rule}"));
        let image = "topic = \"/cam\"\ntype = \"sensor_msgs/msg/Image\"\n";
        assert_eq!(ros(image).unwrap().ros2[0].depth, 10);
        for (text, named) in [
            (format!("{image}name = \"a//b\""), "empty part"),
            (format!("{image}depth = 0"), "depth = 0"),
            ("topic = \"a\"".to_owned(), "missing field `type`"),
            (
                "topic = \"a\"\ntype = \"Image\"".to_owned(),
                "'Image' is no type",
            ),
            ("topic = \"a/*\"\ntype = \"a/msg/B\"".to_owned(), "patterns"),
        ] {
            let error = ros(&text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
        let error = parse("ros_domain = 233").unwrap_err();
        assert!(error.contains("bridge.ros_domain"), "{error}");
    }
}
