//! `topic echo`: prints or saves the messages of a topic.

use super::content::{Content, Part};
use super::header::{header_json, header_line, hex};
use super::message::{reader, Messages, Next};
use super::save::Save;
use super::thumbnail::{self, Style};
use super::window::delay_ns;
use crate::absent;
use crate::args::{Common, Echo, Format, Thumbnail};
use crate::array::{summary, Number, Summary};
use crate::exit::Usage;
use crate::output::Output;
use crate::stop::Stop;
use crate::{session, units};
use ratatui::crossterm::terminal;
use rgaps::{Node, Sample, SubscriberQos, Tensor};
use rgaps_session::{is_pattern, pattern_matches};
use rgaps_sync::monotonic_ns;
use serde::Serialize;
use serde_json::json;
use std::io::{self, IsTerminal, Write};

/// Bytes that one step copies from a message to the host.
const CHUNK_BYTES: u64 = 1 << 20;
/// Most topics that an error about a pattern names.
const NAMES_MAX: usize = 10;

#[derive(Serialize)]
struct Message<'a> {
    topic: &'a str,
    sequence: u64,
    publisher: u32,
    publisher_id: String,
    /// The publish time on this host's monotonic clock. Negative for messages from before this host started.
    publish_ns: i64,
    delay_us: f64,
    missed: u64,
    tag: u64,
    bytes: u64,
    domain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    header: Option<serde_json::Value>,
    /// The attachment in hex, if it is no header.
    #[serde(skip_serializing_if = "Option::is_none")]
    attachment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<Shape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    numbers: Option<Numbers>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Array>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    /// Whether `text` or `hex` leaves bytes out.
    truncated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    saved: Vec<String>,
    /// The text for people, below the message's first line.
    #[serde(skip)]
    lines: Vec<String>,
}

#[derive(Serialize)]
struct Shape {
    dtype: String,
    shape: Vec<u64>,
    strides: Vec<i64>,
}

/// A part of a message.
#[derive(Serialize)]
struct Array {
    name: String,
    tensor: Shape,
    #[serde(skip_serializing_if = "Option::is_none")]
    numbers: Option<Numbers>,
}

#[derive(Serialize)]
struct Numbers {
    count: u64,
    min: serde_json::Value,
    max: serde_json::Value,
    mean: Option<f64>,
    nan: u64,
    first: Vec<serde_json::Value>,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

impl From<&Tensor> for Shape {
    fn from(tensor: &Tensor) -> Self {
        let dims = usize::from(tensor.ndim);
        Shape {
            dtype: tensor.dtype.to_string(),
            shape: tensor.shape[..dims].to_vec(),
            strides: tensor.strides[..dims].to_vec(),
        }
    }
}

impl From<&Summary> for Numbers {
    fn from(summary: &Summary) -> Self {
        let number = |number: Option<Number>| number.map_or(serde_json::Value::Null, to_json);
        Numbers {
            count: summary.count,
            min: number(summary.min),
            max: number(summary.max),
            mean: summary.mean,
            nan: summary.nan,
            first: summary.first.iter().copied().map(to_json).collect(),
        }
    }
}

fn to_json(number: Number) -> serde_json::Value {
    match number {
        Number::Int(int) => match i64::try_from(int) {
            Ok(int) => json!(int),
            Err(_) => json!(int as u64),
        },
        Number::Float(float) => json!(float),
        Number::Complex(re, im) => json!([re, im]),
    }
}

pub fn echo(common: &Common, echo: &Echo, output: &mut Output) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let mut save = echo.save.as_deref().map(Save::new).transpose()?;
    let mut left = echo.count.unwrap_or(u64::MAX);
    if save.as_ref().is_some_and(|save| !save.is_numbered()) {
        if echo.count.is_some_and(|count| count > 1) {
            let text = "--save with --count above 1 needs {sequence} or %d in the file name";
            return Err(Usage(text.to_owned()).into());
        }
        left = left.min(1);
    }
    let node = session::join(common)?;
    refuse_pattern(&node, &node.resolve_topic(&echo.topic))?;
    let every_message = echo.reliable || echo.late.is_some() || echo.format == Format::Raw;
    let qos = SubscriberQos {
        reliable: echo.reliable,
        depth: echo.queue.depth(every_message),
        late: echo.late.unwrap_or(rgaps::Late::Nothing),
        ..SubscriberQos::default()
    };
    let subscriber = reader(&node, &echo.topic, &echo.reads)?
        .type_name(&echo.type_name)
        .qos(qos)
        .create()?;
    absent::warn(&node, subscriber.topic())?;
    // A command that reads the newest message skips most of a fast topic on purpose, so it does not report that each time.
    let tells_missed = echo.queue.depth.is_some() || qos.depth.is_none();
    let mut missed = Missed::default();
    let mut messages = Messages::new(&subscriber, &stop, echo.timeout);
    while left > 0 {
        let Next::Message(sample) = messages.next(None)? else {
            break;
        };
        left -= 1;
        if echo.format == Format::Raw && save.is_none() {
            copy_out(&sample, |bytes| output.raw(bytes))?;
            continue;
        }
        let mut message = describe(subscriber.topic(), &sample);
        if !tells_missed {
            missed.0 += message.missed;
        }
        match &mut save {
            Some(save) => save_files(save, &sample, &mut message)?,
            None => show(&sample, echo, &mut message)?,
        }
        output.put(&message, |to| write_text(&message, tells_missed, to))?;
    }
    if left == 0 && echo.count.is_none() && save.is_some_and(|save| save.names_parts()) {
        rgaps_session::print_error(format_args!(
            "rgaps: saved one message; with {{sequence}} or %d in the file name, every message is saved"
        ));
    }
    Ok(())
}

fn save_files(save: &mut Save, sample: &Sample, message: &mut Message<'_>) -> anyhow::Result<()> {
    let files = save.save(sample, &Content::read(sample)?)?;
    let files = files.iter().map(|file| file.display().to_string());
    message.saved = files.collect();
    let lines = message.saved.iter().map(|file| format!("  saved {file}"));
    message.lines = lines.collect();
    Ok(())
}

/// How many messages the command skipped for newer ones. The drop prints the number, so it is printed also after an error, and after
/// the reader of the output has closed it.
#[derive(Default)]
struct Missed(u64);

impl Drop for Missed {
    fn drop(&mut self) {
        if self.0 > 0 {
            rgaps_session::print_error(format_args!(
                "rgaps: missed {}, since echo prints the newest one; --all prints every message",
                units::counted(self.0, "message")
            ));
        }
    }
}

/// Fails if `topic` is a pattern, and names topics that match it.
fn refuse_pattern(node: &Node, topic: &str) -> anyhow::Result<()> {
    if !is_pattern(topic) {
        return Ok(());
    }
    let rows = node.topics()?;
    let names = rows.iter().map(|row| row.name.as_str());
    let matching: Vec<&str> = names
        .filter(|name| pattern_matches(topic, name))
        .take(NAMES_MAX)
        .collect();
    let found = match matching.as_slice() {
        [] => "no topic matches it now".to_owned(),
        names => format!("it matches '{}'", names.join("', '")),
    };
    Err(Usage(format!(
        "echo prints one topic, and '{topic}' is a pattern: {found}; start one echo per topic, or use 'rgaps topic hz' or 'bw', \
         which take patterns"
    ))
    .into())
}

/// Passes all bytes of a message to `to` in pieces, in whatever domain they are.
fn copy_out(
    sample: &Sample,
    mut to: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut at = 0;
    while at < sample.len() {
        let piece = read(sample, at, CHUNK_BYTES)?;
        at += piece.len() as u64;
        to(&piece)?;
    }
    Ok(())
}

fn read(sample: &Sample, at: u64, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; most.min(sample.len() - at) as usize];
    sample.read(at, &mut bytes)?;
    Ok(bytes)
}

/// Describes a message, without its bytes.
fn describe<'a>(topic: &'a str, sample: &Sample) -> Message<'a> {
    let delay_ns = delay_ns(sample, monotonic_ns());
    let header = match sample.header() {
        Ok(header) => header,
        Err(error) => {
            rgaps_session::print_error(format_args!(
                "rgaps: message {} of topic '{topic}': {error}",
                sample.sequence()
            ));
            None
        }
    };
    let attachment = sample.attachment().filter(|_| header.is_none());
    let mut lines = Vec::new();
    lines.extend(header.as_ref().map(header_line));
    lines.extend(
        attachment.map(|bytes| format!("  attachment: {}", hex(&bytes[..bytes.len().min(64)]))),
    );
    Message {
        topic,
        sequence: sample.sequence(),
        publisher: sample.publisher_slot(),
        publisher_id: format!("{:016x}", sample.publisher_id()),
        publish_ns: sample.publish_ns() as i64,
        delay_us: delay_ns as f64 / 1e3,
        missed: sample.missed(),
        tag: sample.tag(),
        bytes: sample.len(),
        domain: sample.domain().to_string(),
        header: header.as_ref().map(header_json),
        attachment: attachment.map(hex),
        tensor: sample.tensor().map(Shape::from),
        numbers: None,
        parts: Vec::new(),
        text: None,
        hex: None,
        truncated: false,
        saved: Vec::new(),
        lines,
    }
}

/// Adds the message's bytes to its description, in the format of the command line.
fn show(sample: &Sample, echo: &Echo, message: &mut Message<'_>) -> anyhow::Result<()> {
    if echo.format == Format::Summary {
        return Ok(());
    }
    let is_typed = sample.tensor().is_some() || !sample.parts()?.is_empty();
    if echo.format == Format::Numbers || echo.format == Format::Auto && is_typed {
        let content = Content::read(sample)?;
        for part in &content.parts {
            show_part(part, echo, message)?;
        }
        return Ok(());
    }
    let shown = read(sample, 0, echo.max_bytes.0)?;
    message.truncated = (shown.len() as u64) < sample.len();
    let as_text = match echo.format {
        Format::Text => true,
        Format::Auto => is_text(&shown, message.truncated),
        _ => false,
    };
    if as_text {
        message.text = Some(String::from_utf8_lossy(&shown).into_owned());
        return Ok(());
    }
    message.hex = Some(hex(&shown));
    let lines = shown.chunks(16).enumerate();
    message
        .lines
        .extend(lines.map(|(line, bytes)| hex_line(line * 16, bytes)));
    message
        .lines
        .extend(message.truncated.then(|| "...".to_owned()));
    Ok(())
}

/// Adds the figures of a part, and a small picture if its array is an image.
fn show_part(part: &Part<'_>, echo: &Echo, message: &mut Message<'_>) -> anyhow::Result<()> {
    let array = part.as_array()?;
    let found = summary(&array, echo.values as usize);
    let name = part.name.as_ref().map_or_else(String::new, |name| {
        format!("{name}: {}, ", Shape::from(&array.tensor))
    });
    let line = match &found {
        Some(found) => figures(found),
        None => {
            let bytes = &array.bytes[..array.bytes.len().min(echo.values as usize)];
            format!("bytes {}", hex(bytes))
        }
    };
    message.lines.push(format!("  {name}{line}"));
    if let Some((style, columns)) = style(echo.thumbnail) {
        let drawn = thumbnail::draw(&array, style, columns).unwrap_or_default();
        message.lines.extend(drawn.lines().map(str::to_owned));
    }
    let numbers = found.as_ref().map(Numbers::from);
    match &part.name {
        None => message.numbers = numbers,
        Some(name) => message.parts.push(Array {
            name: name.clone(),
            tensor: Shape::from(&array.tensor),
            numbers,
        }),
    }
    Ok(())
}

/// Figures in one line: `min 0, max 255, mean 117.3, first 1 2 3 ...`.
fn figures(summary: &Summary) -> String {
    let mut text = String::new();
    if let (Some(min), Some(max), Some(mean)) = (summary.min, summary.max, summary.mean) {
        text = format!("min {min}, max {max}, mean {}, ", crate::array::short(mean));
    }
    if summary.nan > 0 {
        text += &format!("{} NaN, ", summary.nan);
    }
    let first: Vec<String> = summary.first.iter().map(Number::to_string).collect();
    text += &format!("first {}", first.join(" "));
    if (summary.first.len() as u64) < summary.count {
        text += " ...";
    }
    text
}

/// The style and the width in columns of pictures on this output. None: no pictures.
fn style(wanted: Thumbnail) -> Option<(Style, u16)> {
    let columns = terminal::size().map_or(80, |(columns, _)| columns);
    let style = match wanted {
        Thumbnail::None => return None,
        Thumbnail::Color => Style::Color,
        Thumbnail::Grey => Style::Grey,
        Thumbnail::Auto if !io::stdout().is_terminal() => return None,
        Thumbnail::Auto => {
            let depth = std::env::var("COLORTERM").unwrap_or_default();
            match depth.as_str() {
                "truecolor" | "24bit" => Style::Color,
                _ => Style::Grey,
            }
        }
    };
    Some((style, columns))
}

/// Whether the bytes can be printed as text: UTF-8 without control characters other than line ends and tabs. `truncated`: the
/// bytes may end inside a character.
fn is_text(bytes: &[u8], truncated: bool) -> bool {
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if truncated && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !valid
        .chars()
        .any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
}

fn write_text(message: &Message<'_>, tells_missed: bool, to: &mut dyn Write) -> io::Result<()> {
    if tells_missed && message.missed > 0 {
        writeln!(
            to,
            "--- {} missed ---",
            units::counted(message.missed, "message")
        )?;
    }
    if let Some(text) = &message.text {
        for line in &message.lines {
            writeln!(to, "{line}")?;
        }
        write!(to, "{text}")?;
        if message.truncated {
            write!(to, " ... ({} in all)", units::bytes(message.bytes))?;
        }
        if message.truncated || !text.ends_with('\n') {
            writeln!(to)?;
        }
        return Ok(());
    }
    let tensor = message
        .tensor
        .as_ref()
        .map_or_else(String::new, |shape| format!("{shape}, "));
    let tag = match message.tag {
        0 => String::new(),
        tag => format!(", tag {tag}"),
    };
    writeln!(
        to,
        "message {} of publisher {}: {tensor}{} in {}, {} after publish{tag}",
        message.sequence,
        message.publisher,
        units::bytes(message.bytes),
        message.domain,
        units::spaced_micros(message.delay_us)
    )?;
    for line in &message.lines {
        writeln!(to, "{line}")?;
    }
    Ok(())
}

fn hex_line(offset: usize, bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
    let printable = |byte: &u8| match byte {
        0x20..0x7f => char::from(*byte),
        _ => '.',
    };
    let text: String = bytes.iter().map(printable).collect();
    format!("{offset:08x}  {hex:<48} |{text}|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_bytes() {
        assert!(is_text("grüße\n".as_bytes(), false));
        assert!(
            is_text(&"grü".as_bytes()[..3], true),
            "cut off inside a character"
        );
        assert!(!is_text(&"grü".as_bytes()[..3], false));
        assert!(
            !is_text(b"\x1b[2J", false),
            "a terminal's control sequences"
        );
        assert!(!is_text(&[0xff, 0xfe], true));
    }

    #[test]
    fn hex_lines_are_aligned() {
        assert_eq!(
            hex_line(16, b"a\n"),
            format!("00000010  61 0a {:42} |a.|", "")
        );
    }
}
