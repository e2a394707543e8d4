//! MCAP channels: a recording has one for each publisher and schema, whose metadata describes the publisher.

use crate::jpeg;
use crate::schema::SchemaKind;
use rgaps::{History, PublisherRow};
use rgaps_ros2::Type;
use std::collections::BTreeMap;

pub(crate) const PUBLISHER: &str = "rgaps.publisher";
const TYPE: &str = "rgaps.type";
const RELIABLE: &str = "rgaps.reliable";
const TRANSIENT_LOCAL: &str = "rgaps.transient_local";
const HISTORY: &str = "rgaps.history";
/// The key of a bag of ROS 2 for the quality of service of a channel's publishers, in YAML.
const OFFERED: &str = "offered_qos_profiles";

/// A channel of a recorder. Each file gets it with its first message of the channel.
pub(crate) struct Described {
    /// Unique in the recorder.
    pub(crate) id: u64,
    pub(crate) topic: String,
    pub(crate) publisher_id: u64,
    /// Whether late joiners get the publisher's history.
    pub(crate) transient_local: bool,
    pub(crate) kind: SchemaKind,
    /// The type that the publisher declares.
    pub(crate) type_name: String,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// How the messages of a channel are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// As an [`Envelope`](crate::schema::Envelope).
    Rgaps,
    /// As a [`CompressedImage`](crate::jpeg::CompressedImage).
    Jpeg,
    /// In CDR, from a bag of ROS 2, with a type that rgaps decodes to arrays and a header.
    Ros2(&'static Type),
    /// The data of the record is the message.
    Plain,
}

/// The metadata of a channel. `row`: the daemon's row of the publisher; None if the publisher left before anyone asked.
/// `description`: of the first message, by [`describe`](crate::describe).
pub fn metadata_of(
    publisher_id: u64,
    row: Option<&PublisherRow>,
    description: Vec<(&'static str, String)>,
) -> BTreeMap<String, String> {
    let mut metadata: BTreeMap<String, String> = description
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    metadata.insert(PUBLISHER.to_owned(), format!("{publisher_id:016x}"));
    if let Some(row) = row {
        metadata.insert(TYPE.to_owned(), row.type_name.clone());
        metadata.insert(RELIABLE.to_owned(), row.offer.reliable.to_string());
        let is_kept = row.offer.transient_local.to_string();
        metadata.insert(TRANSIENT_LOCAL.to_owned(), is_kept);
        metadata.insert(HISTORY.to_owned(), row.offer.history.depth().to_string());
    }
    metadata
}

/// A channel of a file. Each publisher of a topic has at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The name of the topic.
    pub topic: String,
    /// The type that the publisher declared. In a file that rgaps did not write: the name of the schema.
    pub type_name: String,
    /// The random id of the publisher. 0 in a file that rgaps did not write.
    pub publisher_id: u64,
    /// Whether late joiners got the publisher's history.
    pub transient_local: bool,
    /// Whether reliable subscribers could read the publisher.
    pub reliable: bool,
    /// How many messages the publisher kept.
    pub history: u32,
    /// The name of the schema in the file.
    pub schema: String,
    /// The channel's metadata, as the file has it.
    pub metadata: BTreeMap<String, String>,
    pub(crate) coding: Coding,
}

impl Channel {
    pub(crate) fn of(channel: &mcap::Channel<'_>) -> Channel {
        let value_of = |key: &str| channel.metadata.get(key).map(String::as_str);
        let schema = channel.schema.as_ref().map_or("", |schema| &schema.name);
        let publisher_id = value_of(PUBLISHER).and_then(|id| u64::from_str_radix(id, 16).ok());
        let history = value_of(HISTORY).and_then(|depth| depth.parse().ok());
        let is_cdr = channel.message_encoding == "cdr";
        let coding = match (publisher_id, rgaps_ros2::find(schema)) {
            (Some(_), _) if schema == SchemaKind::CompressedImage.name() => Coding::Jpeg,
            (Some(_), _) if !is_cdr => Coding::Rgaps,
            (None, Some(known)) if is_cdr => Coding::Ros2(known),
            _ => Coding::Plain,
        };
        let offered = |key: &str, values: [&str; 2]| offers(value_of(OFFERED), key, values);
        Channel {
            topic: rgaps_session::bare_topic_name(&channel.topic).to_owned(),
            type_name: match publisher_id {
                _ if coding == Coding::Jpeg => jpeg::TYPE.to_owned(),
                Some(_) => value_of(TYPE).unwrap_or_default().to_owned(),
                None => schema.to_owned(),
            },
            publisher_id: publisher_id.unwrap_or_default(),
            transient_local: value_of(TRANSIENT_LOCAL) == Some("true")
                || offered("durability", ["1", "transient_local"]),
            reliable: value_of(RELIABLE) != Some("false")
                && !offered("reliability", ["2", "best_effort"]),
            history: history.unwrap_or(History::KeepLast(16).depth()),
            schema: schema.to_owned(),
            metadata: channel.metadata.clone(),
            coding,
        }
    }
}

/// Whether a quality of service of the bag's publishers has one of these values. Older releases of ROS 2 write numbers, newer
/// ones words.
fn offers(profiles: Option<&str>, key: &str, values: [&str; 2]) -> bool {
    profiles.unwrap_or_default().lines().any(|line| {
        let pair = line.trim_start_matches(['-', ' ']).split_once(':');
        pair.is_some_and(|(name, value)| name == key && values.contains(&value.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_of_service_of_bags_is_read_from_old_and_new_releases() {
        let humble = "- history: 1\n  depth: 1\n  reliability: 1\n  durability: 1\n  deadline:\n    sec: 9223372036";
        let jazzy =
            "- history: keep_last\n  depth: 5\n  reliability: best_effort\n  durability: volatile";
        let latched = |text| offers(Some(text), "durability", ["1", "transient_local"]);
        let lossy = |text| offers(Some(text), "reliability", ["2", "best_effort"]);
        assert_eq!((latched(humble), lossy(humble)), (true, false));
        assert_eq!((latched(jazzy), lossy(jazzy)), (false, true));
        assert!(!offers(None, "durability", ["1", "transient_local"]));
    }
}
