//! Errors of a configuration that name the location of the mistake, the key, and the key that was probably meant.

use super::ConfigError;
use crate::similar::{nearest_name, similar_name};
use toml::de::DeTable;

pub(super) fn wrong(location: &str, reason: impl ToString) -> ConfigError {
    ConfigError::Wrong {
        location: location.to_owned(),
        reason: reason.to_string().trim_end().to_owned(),
    }
}

/// Converts an error of serde, for a source without lines.
pub(super) fn rejected(location: &str, error: &toml::de::Error) -> ConfigError {
    wrong(location, in_words(error.message()))
}

/// Converts an error of serde, for a file.
pub(super) fn rejected_in_file(file: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let line = error.span().map(|span| line_of_offset(text, span.start));
    let location = at_line(file, line);
    let source = line.and_then(|line| text.lines().nth(line - 1));
    match source.map(str::trim).filter(|source| !source.is_empty()) {
        Some(source) => wrong(
            &format!("{location} ('{source}')"),
            in_words(error.message()),
        ),
        None => wrong(&location, in_words(error.message())),
    }
}

/// The error for an invalid value in a file; `reason` starts with its key.
pub(super) fn refused_in_file(file: &str, text: &str, reason: &str) -> ConfigError {
    wrong(&at_line(file, line_of_key(text, key_in(reason))), reason)
}

/// The key that a reason starts with.
pub(super) fn key_in(reason: &str) -> &str {
    let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    reason.split(|c| !is_key(c)).next().unwrap_or_default()
}

fn at_line(file: &str, line: Option<usize>) -> String {
    line.map_or_else(|| file.to_owned(), |line| format!("{file}, line {line}"))
}

fn line_of_offset(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// The line of the key, or of the longest part of it that the file has.
pub(super) fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?.into_inner();
    let (mut table, mut line) = (Some(&root), None);
    for part in key.split('.') {
        let found = table.and_then(|table| table.iter().find(|(key, _)| key.get_ref() == part));
        let Some((key, value)) = found else {
            break;
        };
        line = Some(line_of_offset(text, key.span().start));
        table = value.get_ref().as_table();
    }
    line
}

/// Names of types in errors of serde, and their descriptions for users.
const EXPECTED: [(&str, &str); 8] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("a map", "a table"),
];

/// Rephrases an error of serde about unknown keys and wrong types: "unknown field `foo`, expected one of `log`, `pool`",
/// "invalid type: string \"x\", expected u32".
fn in_words(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else {
        let (head, expected) = message.rsplit_once(", expected ").unwrap_or_default();
        let found = EXPECTED.iter().find(|(serde, _)| *serde == expected);
        return found.map_or_else(
            || message.to_owned(),
            |(_, words)| format!("{head}, expected {words}"),
        );
    };
    let mut quoted = rest.split('`');
    let key = quoted.next().unwrap_or_default();
    // Every second part is between quotes.
    let known: Vec<&str> = quoted.skip(1).step_by(2).collect();
    if let Some(meant) = similar_name(key, known.iter().copied()) {
        return format!("there is no key '{key}' here; did you mean '{meant}'?");
    }
    match nearest_name(key, known.iter().copied()) {
        Some(nearest) => format!(
            "there is no key '{key}' here; the nearest is '{nearest}', and all are: {}",
            known.join(", ")
        ),
        None => format!("there is no key '{key}' here"),
    }
}
