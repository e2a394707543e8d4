//! What a recording says about a publisher's messages: one MCAP channel for each publisher and message type.

use crate::schema::Kind;
use rgaps::{History, PublisherRow};
use std::collections::BTreeMap;

pub(crate) const PUBLISHER: &str = "rgaps.publisher";
const TYPE: &str = "rgaps.type";
const RELIABLE: &str = "rgaps.reliable";
const TRANSIENT_LOCAL: &str = "rgaps.transient_local";
const HISTORY: &str = "rgaps.history";

/// A channel as it is written. A file gets it with its first message.
pub(crate) struct Described {
    /// Unique in the recorder.
    pub(crate) id: u64,
    pub(crate) topic: String,
    pub(crate) publisher_id: u64,
    /// Late joiners get the publisher's history.
    pub(crate) transient_local: bool,
    pub(crate) kind: Kind,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// What a channel says of its publisher and its messages. No row: the publisher left before anyone could ask.
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

/// A channel as it is read. Several publishers of a topic have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The name of the topic.
    pub topic: String,
    /// The type that the publisher declared; of a file that rgaps did not write, the name of the schema.
    pub type_name: String,
    /// The publisher: a random number. 0 in a file that rgaps did not write.
    pub publisher_id: u64,
    /// Whether late joiners got the publisher's history.
    pub transient_local: bool,
    /// Whether reliable subscribers could read the publisher.
    pub reliable: bool,
    /// How many messages the publisher kept.
    pub history: u32,
    /// The name of the schema in the file.
    pub schema: String,
    /// What the file says of the channel, in its words.
    pub metadata: BTreeMap<String, String>,
    /// Whether rgaps knows how messages lie in it. Otherwise a message's bytes are those of the file.
    pub(crate) is_from_rgaps: bool,
}

impl Channel {
    pub(crate) fn of(channel: &mcap::Channel<'_>) -> Channel {
        let said = |key: &str| channel.metadata.get(key).map(String::as_str);
        let schema = channel.schema.as_ref().map_or("", |schema| &schema.name);
        let publisher_id = said(PUBLISHER).and_then(|id| u64::from_str_radix(id, 16).ok());
        let history = said(HISTORY).and_then(|depth| depth.parse().ok());
        Channel {
            topic: rgaps_session::bare_topic_name(&channel.topic).to_owned(),
            type_name: match publisher_id {
                Some(_) => said(TYPE).unwrap_or_default().to_owned(),
                None => schema.to_owned(),
            },
            publisher_id: publisher_id.unwrap_or_default(),
            transient_local: said(TRANSIENT_LOCAL) == Some("true"),
            reliable: said(RELIABLE) != Some("false"),
            history: history.unwrap_or(History::KeepLast(16).depth()),
            schema: schema.to_owned(),
            metadata: channel.metadata.clone(),
            is_from_rgaps: publisher_id.is_some(),
        }
    }
}
