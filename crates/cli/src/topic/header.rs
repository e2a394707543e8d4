//! Formats a message's header for `topic echo`.

use crate::units;
use rgaps::{Header, Value};
use serde_json::json;

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn header_line(header: &Header) -> String {
    let mut entries = Vec::new();
    entries.extend(
        header
            .capture_ns
            .map(|ns| format!("captured {}", units::utc(ns))),
    );
    entries.extend(
        header
            .frame_id
            .as_ref()
            .map(|id| format!("frame {}", printable(id))),
    );
    let value = |(key, value): (&String, &Value)| {
        format!(
            "{}={}",
            printable(key),
            printable(&value_json(value).to_string())
        )
    };
    entries.extend(header.values.iter().map(value));
    format!("  header: {}", entries.join(", "))
}

/// Replaces control characters, which a terminal would obey.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

pub fn header_json(header: &Header) -> serde_json::Value {
    let values = header
        .values
        .iter()
        .map(|(key, value)| (key.clone(), value_json(value)));
    let mut object: serde_json::Map<_, _> = values.collect();
    object.extend(
        header
            .capture_ns
            .map(|ns| ("capture_ns".to_owned(), json!(ns))),
    );
    object.extend(
        header
            .frame_id
            .as_ref()
            .map(|id| ("frame_id".to_owned(), json!(id))),
    );
    object.into()
}

fn value_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Nil => serde_json::Value::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Unsigned(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Text(value) => json!(value),
        Value::Bytes(bytes) => json!(hex(bytes)),
        Value::List(values) => values.iter().map(value_json).collect(),
        Value::Map(values) => {
            let entries = values
                .iter()
                .map(|(key, value)| (key.clone(), value_json(value)));
            serde_json::Value::Object(entries.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_cannot_command_the_terminal() {
        let header = Header::default().frame_id("a\x1b[2J").value("k", "v\n");
        let line = header_line(&header);
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(line.contains("frame a") && line.contains("k="), "{line}");
    }
}
