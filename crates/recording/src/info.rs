//! A summary of a recording: its topics, with numbers.

use crate::recording::Recording;
use serde::Serialize;
use std::collections::BTreeMap;

/// A summary of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Info {
    /// The file.
    pub file: String,
    /// Its length.
    pub file_bytes: u64,
    /// Whether the file has its index, which the recorder writes when it stops.
    pub finished: bool,
    /// Bytes after the last whole chunk, which cannot be read.
    pub missing_bytes: u64,
    /// Why those bytes cannot be read. None: the file is finished.
    pub missing: Option<String>,
    /// When the first message was published that neither comes from a history nor repeats one of an earlier file: nanoseconds since 1970.
    pub begun_ns: u64,
    /// Seconds from `begun_ns` to the last message.
    pub duration_s: f64,
    /// Chunks.
    pub chunks: u64,
    /// Messages of all topics.
    pub messages: u64,
    /// Messages that were not written, by reason. Unknown for a file that was not finished.
    pub dropped_by: BTreeMap<String, u64>,
    /// The topics, by name.
    pub topics: Vec<RecordedTopic>,
}

/// A topic of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordedTopic {
    /// The name.
    pub topic: String,
    /// Messages of all its publishers.
    pub messages: u64,
    /// How many publishers were recorded.
    pub publishers: u64,
    /// The type of its first publisher.
    pub type_name: String,
    /// The schema in the file.
    pub schema: String,
    /// The first message, as the file describes it: element type, shape, parts, attachment.
    pub content: String,
    /// Whether a publisher kept its history for late joiners.
    pub transient_local: bool,
}

impl Recording {
    /// Summarizes the recording.
    pub fn info(&self) -> Info {
        let mut topics = BTreeMap::<&str, RecordedTopic>::new();
        let mut publishers = std::collections::BTreeSet::new();
        for (id, channel) in &self.channels {
            let topic = topics
                .entry(&channel.topic)
                .or_insert_with(|| RecordedTopic {
                    topic: channel.topic.clone(),
                    messages: 0,
                    publishers: 0,
                    type_name: channel.type_name.clone(),
                    schema: channel.schema.clone(),
                    content: content(&channel.metadata),
                    transient_local: false,
                });
            topic.messages += self.counts.get(id).copied().unwrap_or_default();
            topic.publishers +=
                u64::from(publishers.insert((&channel.topic, channel.publisher_id)));
            topic.transient_local |= channel.transient_local;
        }
        let missing = self.missing();
        Info {
            file: self.path.display().to_string(),
            file_bytes: self.file_bytes,
            finished: missing.is_none(),
            missing_bytes: missing.map_or(0, |missing| missing.bytes),
            missing: missing.map(|missing| missing.reason.clone()),
            begun_ns: self.begun_ns(),
            duration_s: self.end_ns().saturating_sub(self.begun_ns()) as f64 / 1e9,
            chunks: self.chunks.len() as u64,
            messages: self.counts.values().sum(),
            dropped_by: self.dropped.clone(),
            topics: topics.into_values().collect(),
        }
    }
}

fn content(metadata: &BTreeMap<String, String>) -> String {
    let value_of = |key: &str| metadata.get(key).map(String::as_str);
    let mut words = Vec::new();
    if let (Some(dtype), Some(shape)) = (value_of("rgaps.dtype"), value_of("rgaps.shape")) {
        words.push(format!("{dtype}[{shape}]"));
    }
    words.extend(value_of("rgaps.parts").map(str::to_owned));
    words.extend(
        value_of("rgaps.attachment").map(|attachment| match attachment {
            "bytes" => "with an attachment".to_owned(),
            header => format!("with {header}"),
        }),
    );
    words.join(" ")
}
