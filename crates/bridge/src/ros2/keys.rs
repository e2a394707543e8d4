//! Keys of `rmw_zenoh`: those of topics, and those of liveliness tokens, which make up the graph of nodes.
//!
//! ```text
//! <domain>/<topic>/<type>/<hash>
//! @ros2_lv/<domain>/<session>/<node>/<entity>/NN/<enclave>/<namespace>/<name>
//! @ros2_lv/<domain>/<session>/<node>/<entity>/MP or MS/<enclave>/<namespace>/<name>/<topic>/<type>/<hash>/<qos>
//! ```

/// The name of the bridge's node.
const NODE: &str = "rgaps_bridge";
/// Stands for a slash in names within tokens, and for an empty name.
const SLASH: &str = "%";
/// The history depth that rmw_zenoh leaves out of tokens.
const DEFAULT_DEPTH: u32 = 42;

/// A publisher or subscriber of a topic of ROS 2.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint<'a> {
    pub(crate) domain: u32,
    /// The topic, with its leading slash.
    pub(crate) topic: &'a str,
    pub(crate) type_name: &'a str,
    pub(crate) hash: &'a str,
    pub(crate) reliable: bool,
    pub(crate) transient_local: bool,
    pub(crate) depth: u32,
}

/// The name of a type in DDS: `sensor_msgs::msg::dds_::Image_` for `sensor_msgs/msg/Image`.
fn dds(type_name: &str) -> String {
    match type_name.rsplit_once('/') {
        Some((package, name)) => format!("{}::dds_::{name}_", package.replace('/', "::")),
        None => format!("{type_name}_"),
    }
}

impl Endpoint<'_> {
    /// The key of the topic's messages. `hash`: `*` matches messages with any hash.
    pub(crate) fn key(&self, hash: &str) -> String {
        let (domain, topic) = (self.domain, self.topic.trim_matches('/'));
        format!("{domain}/{topic}/{}/{hash}", dds(self.type_name))
    }

    /// The liveliness token. `entity`: the number of the publisher or subscriber in its session.
    pub(crate) fn token(&self, session: &str, entity: usize, is_publisher: bool) -> String {
        let kind = if is_publisher { "MP" } else { "MS" };
        let topic = self.topic.replace('/', SLASH);
        format!(
            "@ros2_lv/{}/{session}/0/{entity}/{kind}/{SLASH}/{SLASH}/{NODE}/{topic}/{}/{}/{}",
            self.domain,
            dds(self.type_name),
            self.hash,
            self.qos()
        )
    }

    /// The quality of service in a token. Fields with ROS 2's defaults (reliable, volatile, keep last) are empty.
    fn qos(&self) -> String {
        let reliability = if self.reliable { "" } else { "2" };
        let durability = if self.transient_local { "1" } else { "" };
        let depth = match self.depth {
            DEFAULT_DEPTH => String::new(),
            depth => depth.to_string(),
        };
        format!("{reliability}:{durability}:,{depth}:,:,:,,")
    }
}

/// The inverse of [`dds`].
fn ros(type_name: &str) -> String {
    let name = type_name.strip_suffix('_').unwrap_or(type_name);
    name.replace("::dds_::", "/").replace("::", "/")
}

/// A key expression for all tokens of a domain.
pub(crate) fn tokens(domain: u32) -> String {
    format!("@ros2_lv/{domain}/**")
}

/// A publisher or subscriber, as its token describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) is_publisher: bool,
    pub(crate) topic: String,
    pub(crate) type_name: String,
    pub(crate) hash: String,
}

impl Seen {
    /// Parses a token. None: it is the token of a node or a service, or no token.
    pub(crate) fn read(token: &str) -> Option<Seen> {
        let words: Vec<&str> = token.split('/').collect();
        let [_, _, _, _, _, kind, _, _, _, topic, type_name, hash, _] = words[..] else {
            return None;
        };
        Some(Seen {
            is_publisher: match kind {
                "MP" => true,
                "MS" => false,
                _ => return None,
            },
            topic: topic.replace(SLASH, "/"),
            type_name: ros(type_name),
            hash: hash.to_owned(),
        })
    }
}

/// The token of the bridge's node.
pub(crate) fn node_token(domain: u32, session: &str) -> String {
    format!("@ros2_lv/{domain}/{session}/0/0/NN/{SLASH}/{SLASH}/{NODE}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys are as in rmw_zenoh's design document, and as the crate `hiroz-protocol` writes them, which was tested with rmw_zenoh.
    #[test]
    fn keys_are_those_of_rmw_zenoh() {
        let mut chatter = Endpoint {
            domain: 2,
            topic: "/robot/chatter",
            type_name: "std_msgs/msg/String",
            hash: "RIHS01_df66",
            reliable: true,
            transient_local: false,
            depth: 7,
        };
        assert_eq!(
            chatter.key("RIHS01_df66"),
            "2/robot/chatter/std_msgs::msg::dds_::String_/RIHS01_df66"
        );
        assert_eq!(
            chatter.token("aac3178e146ba6f1fc6e6a4085e77f21", 10, true),
            "@ros2_lv/2/aac3178e146ba6f1fc6e6a4085e77f21/0/10/MP/%/%/rgaps_bridge/%robot%chatter/\
             std_msgs::msg::dds_::String_/RIHS01_df66/::,7:,:,:,,"
        );
        let token = chatter.token("a", 10, true);
        let seen = Seen::read(&token).unwrap();
        assert_eq!(
            (seen.topic.as_str(), seen.is_publisher),
            ("/robot/chatter", true)
        );
        assert_eq!(
            (seen.type_name.as_str(), seen.hash.as_str()),
            ("std_msgs/msg/String", "RIHS01_df66")
        );
        assert_eq!(Seen::read(&node_token(2, "a")), None);
        (chatter.reliable, chatter.transient_local, chatter.depth) = (false, true, 42);
        assert!(chatter.token("a", 1, false).ends_with("/2:1:,:,:,:,,"));
        assert_eq!(node_token(2, "a"), "@ros2_lv/2/a/0/0/NN/%/%/rgaps_bridge");
    }
}
