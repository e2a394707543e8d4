//! Foxglove's WebSocket protocol, versions `foxglove.sdk.v1` and `foxglove.websocket.v1`, which differ only in their names: the
//! server announces channels, a client subscribes to them, the server sends messages. Text frames are JSON; binary frames carry
//! messages. See the specification at <https://github.com/foxglove/ws-protocol>.

use data_encoding::BASE64;
use rgaps_recording::SchemaKind;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Names of the protocol's versions, the preferred one first.
const NAMES: [&str; 2] = ["foxglove.sdk.v1", "foxglove.websocket.v1"];
/// Opcode of a frame with a message.
const MESSAGE_DATA: u8 = 1;
/// Bytes before a message: opcode, subscription, log time.
pub(crate) const MESSAGE_HEAD: usize = 1 + 4 + 8;
/// Operations that the server does not offer. Some clients ask for them anyway, and get a warning.
const NOT_OFFERED: [&str; 7] = [
    "advertise",
    "unadvertise",
    "getParameters",
    "setParameters",
    "subscribeParameterUpdates",
    "unsubscribeParameterUpdates",
    "fetchAsset",
];

/// A request of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Subscribe(Vec<Subscription>),
    Unsubscribe(Vec<u32>),
    /// Starts or stops to follow the users of topics.
    FollowGraph(bool),
    /// A part of the protocol that the server does not offer.
    NotOffered(String),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subscription {
    /// The number that the client chose.
    pub(crate) id: u32,
    pub(crate) channel_id: u32,
}

/// Chooses a version from a client's list, which is separated by commas. None: it offers none that the server speaks.
pub(crate) fn choose(offered: &str) -> Option<&'static str> {
    let offers = |name: &&str| offered.split(',').any(|offer| offer.trim() == *name);
    NAMES.into_iter().find(offers)
}

/// Parses a text frame of a client. The error is a text for the client.
pub(crate) fn parse(text: &str) -> Result<Command, String> {
    let mut parsed: Value = serde_json::from_str(text).map_err(|_| "this is no JSON".to_owned())?;
    let op = match parsed.get("op") {
        Some(Value::String(op)) => op.clone(),
        _ => return Err("this has no op".to_owned()),
    };
    let wrong = |error: serde_json::Error| format!("op {op}: {error}");
    match op.as_str() {
        "subscribe" => serde_json::from_value(parsed["subscriptions"].take())
            .map(Command::Subscribe)
            .map_err(wrong),
        "unsubscribe" => serde_json::from_value(parsed["subscriptionIds"].take())
            .map(Command::Unsubscribe)
            .map_err(wrong),
        "subscribeConnectionGraph" => Ok(Command::FollowGraph(true)),
        "unsubscribeConnectionGraph" => Ok(Command::FollowGraph(false)),
        op if NOT_OFFERED.contains(&op) => Ok(Command::NotOffered(op.to_owned())),
        _ => Err("this has an op that the protocol does not have".to_owned()),
    }
}

pub(crate) fn server_info(name: &str, session: &str) -> String {
    json!({"op": "serverInfo", "name": name, "capabilities": ["connectionGraph"], "sessionId": session}).to_string()
}

/// The description of a channel in an `advertise` message.
pub(crate) fn channel(
    id: u32,
    topic: &str,
    kind: SchemaKind,
    metadata: &BTreeMap<String, String>,
) -> Value {
    json!({
        "id": id,
        "topic": topic,
        "encoding": "protobuf",
        "schemaName": kind.name(),
        "schemaEncoding": "protobuf",
        "schema": BASE64.encode(&kind.descriptor()),
        "metadata": metadata,
    })
}

pub(crate) fn advertise(channels: &[Value]) -> String {
    json!({"op": "advertise", "channels": channels}).to_string()
}

pub(crate) fn unadvertise(channel_ids: &[u32]) -> String {
    json!({"op": "unadvertise", "channelIds": channel_ids}).to_string()
}

/// The processes that publish to a topic, and those that subscribe.
pub(crate) type Users = (BTreeSet<String>, BTreeSet<String>);

/// The update with all users of all topics, and with topics that have disappeared since the last update.
pub(crate) fn connection_graph(topics: &BTreeMap<String, Users>, removed: &[&str]) -> String {
    let rows = |key: &str, of: fn(&Users) -> &BTreeSet<String>| {
        let rows = topics.iter();
        rows.map(|(name, users)| json!({"name": name, key: of(users)}))
            .collect::<Vec<_>>()
    };
    json!({
        "op": "connectionGraphUpdate",
        "publishedTopics": rows("publisherIds", |users| &users.0),
        "subscribedTopics": rows("subscriberIds", |users| &users.1),
        "advertisedServices": [],
        "removedTopics": removed,
        "removedServices": [],
    })
    .to_string()
}

/// A warning that the client shows.
pub(crate) fn warning(message: &str) -> String {
    json!({"op": "status", "level": 1, "message": message}).to_string()
}

/// A frame with a message.
pub(crate) fn message(subscription: u32, log_ns: u64, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(MESSAGE_HEAD + bytes.len());
    frame.push(MESSAGE_DATA);
    frame.extend_from_slice(&subscription.to_le_bytes());
    frame.extend_from_slice(&log_ns.to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_protocol_is_chosen() {
        assert_eq!(
            choose("foxglove.websocket.v1, foxglove.sdk.v1"),
            Some(NAMES[0])
        );
        assert_eq!(choose("x,foxglove.websocket.v1"), Some(NAMES[1]));
        assert_eq!(choose("foxglove.sdk.v1.1"), None);
        assert_eq!(choose(""), None);
    }

    #[test]
    fn what_clients_say_is_read_or_refused() {
        let frame = r#"{"op":"subscribe","subscriptions":[{"id":3,"channelId":7}]}"#;
        let (id, channel_id) = (3, 7);
        let wanted = Command::Subscribe(vec![Subscription { id, channel_id }]);
        assert_eq!(parse(frame), Ok(wanted));
        let frame = r#"{"op":"unsubscribe","subscriptionIds":[3,4]}"#;
        assert_eq!(parse(frame), Ok(Command::Unsubscribe(vec![3, 4])));
        let frame = parse(r#"{"op":"fetchAsset","uri":"x"}"#);
        assert_eq!(frame, Ok(Command::NotOffered("fetchAsset".to_owned())));
        for wrong in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"op":7}"#,
            r#"{"op":"dance"}"#,
            r#"{"op":"subscribe"}"#,
            r#"{"op":"subscribe","subscriptions":[{"id":-1,"channelId":7}]}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_message_has_its_head() {
        let frame = message(0x0403_0201, 5, b"xy");
        assert_eq!(frame[..5], [1, 1, 2, 3, 4]);
        assert_eq!(frame[5..], [5, 0, 0, 0, 0, 0, 0, 0, b'x', b'y']);
    }
}
