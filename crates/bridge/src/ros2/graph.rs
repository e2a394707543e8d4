//! Lists the topics of nodes of ROS 2, for users who write the rules of a bridge.

use super::keys::{self, Seen};
use crate::error::BridgeError;
use crate::network;
use rgaps_session::BridgeConfig as Config;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zenoh::{Session, Wait as _};

/// How long to wait until the session reaches another Zenoh node.
const REACH_LIMIT: Duration = Duration::from_secs(5);
/// Time between two looks whether the session has reached one.
const SLICE: Duration = Duration::from_millis(20);
/// Limit on the query for liveliness tokens.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A topic of ROS 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RosTopic {
    /// The name, with its leading slash.
    pub name: String,
    /// The type: `package/msg/Name`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The hash of the type, as rules need it.
    pub hash: String,
    /// How many publishers there are, with those of bridges.
    pub publishers: u64,
    /// How many subscriptions there are, with those of bridges.
    pub subscribers: u64,
}

/// The topics that nodes of ROS 2 use now, ordered by name and type.
///
/// # Errors
/// Zenoh cannot be started, or reaches no other node.
pub fn ros2_topics(config: &Config) -> Result<Vec<RosTopic>, BridgeError> {
    let config = network::with_router(config);
    let session = network::open(&config)?;
    let seen = wait_for_node(&session, &config).and_then(|()| look(&session, config.ros_domain));
    network::close(session);
    let mut topics = BTreeMap::new();
    for seen in seen? {
        let key = (
            seen.topic.clone(),
            seen.type_name.clone(),
            seen.hash.clone(),
        );
        let topic = topics.entry(key).or_insert(RosTopic {
            name: seen.topic,
            type_name: seen.type_name,
            hash: seen.hash,
            publishers: 0,
            subscribers: 0,
        });
        match seen.is_publisher {
            true => topic.publishers += 1,
            false => topic.subscribers += 1,
        }
    }
    Ok(topics.into_values().collect())
}

fn wait_for_node(session: &Session, config: &Config) -> Result<(), BridgeError> {
    let begun = Instant::now();
    while network::peers(session) == 0 {
        if begun.elapsed() >= REACH_LIMIT {
            let endpoints = [&config.connect[..], &config.listen[..]].concat();
            return Err(BridgeError::Alone(endpoints.join(", ")));
        }
        std::thread::sleep(SLICE);
    }
    Ok(())
}

fn look(session: &Session, domain: u32) -> Result<Vec<Seen>, BridgeError> {
    let liveliness = session.liveliness();
    let replies = liveliness
        .get(keys::tokens(domain))
        .timeout(ANSWER_LIMIT)
        .wait();
    let replies = replies.map_err(|error| BridgeError::Zenoh(error.to_string()))?;
    let mut seen = Vec::new();
    while let Ok(reply) = replies.recv() {
        let token = reply.result().ok().map(|sample| sample.key_expr());
        seen.extend(token.and_then(|token| Seen::read(token)));
    }
    Ok(seen)
}
