//! `topic echo`.

use super::message::{reader, Messages, Next};
use crate::args::{Common, Echo, Format};
use crate::output::Output;
use crate::stop::Stop;
use crate::{session, units};
use anyhow::Context;
use rgaps::{Sample, SubscriberQos};
use rgaps_sync::monotonic_ns;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};

/// Bytes that are copied at a time.
const CHUNK_BYTES: u64 = 1 << 20;

#[derive(Serialize)]
struct Message<'a> {
    topic: &'a str,
    sequence: u64,
    publisher: u32,
    publisher_id: String,
    publish_ns: u64,
    delay_us: f64,
    missed: u64,
    tag: u64,
    bytes: u64,
    domain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<Tensor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    /// Whether text or hex show less than all bytes.
    truncated: bool,
}

#[derive(Serialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    strides: Vec<i64>,
}

pub fn echo(common: &Common, echo: &Echo, output: &mut Output) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let mut file = match &echo.output {
        Some(path) => Some(
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("'{}' cannot be written", path.display()))?,
        ),
        None => None,
    };
    let node = session::join(common)?;
    let qos = SubscriberQos {
        reliable: echo.reliable,
        late: echo.late.unwrap_or(rgaps::Late::Nothing),
        ..SubscriberQos::default()
    };
    let subscriber = reader(&node, &echo.topic, &echo.place)?
        .type_name(&echo.type_name)
        .qos(qos)
        .create()?;
    let mut messages = Messages::new(&subscriber, &stop, echo.timeout);
    let mut left = echo.count.unwrap_or(u64::MAX);
    while left > 0 {
        let Next::Message(sample) = messages.next(None)? else {
            break;
        };
        left -= 1;
        match (&mut file, echo.format) {
            (Some(file), _) => {
                copy_out(&sample, |bytes| Ok(file.write_all(bytes)?))?;
                show(subscriber.topic(), &sample, Format::Summary, 0, output)?;
            }
            (None, Format::Raw) => copy_out(&sample, |bytes| output.raw(bytes))?,
            (None, format) => show(
                subscriber.topic(),
                &sample,
                format,
                echo.max_bytes.0,
                output,
            )?,
        }
    }
    Ok(())
}

/// Hands out all bytes of a message, piece by piece, wherever they live.
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

fn show(
    topic: &str,
    sample: &Sample,
    format: Format,
    max_bytes: u64,
    output: &mut Output,
) -> anyhow::Result<()> {
    let delay_ns = monotonic_ns().saturating_sub(sample.publish_ns());
    let shown = match format {
        Format::Summary | Format::Raw => Vec::new(),
        _ => read(sample, 0, max_bytes)?,
    };
    let truncated = format != Format::Summary && (shown.len() as u64) < sample.len();
    let as_text = match format {
        Format::Text => true,
        Format::Auto => is_text(&shown, truncated),
        _ => false,
    };
    let as_hex = !as_text && format != Format::Summary;
    let message = Message {
        topic,
        sequence: sample.sequence(),
        publisher: sample.publisher_slot(),
        publisher_id: format!("{:016x}", sample.publisher_id()),
        publish_ns: sample.publish_ns(),
        delay_us: delay_ns as f64 / 1e3,
        missed: sample.missed(),
        tag: sample.tag(),
        bytes: sample.len(),
        domain: sample.domain().to_string(),
        tensor: sample.tensor().map(tensor),
        text: as_text.then(|| String::from_utf8_lossy(&shown).into_owned()),
        hex: as_hex.then(|| shown.iter().map(|byte| format!("{byte:02x}")).collect()),
        truncated,
    };
    output.put(&message, |to| write_text(&message, &shown, to))
}

fn tensor(tensor: &rgaps::Tensor) -> Tensor {
    let dims = usize::from(tensor.ndim);
    Tensor {
        dtype: tensor.dtype.to_string(),
        shape: tensor.shape[..dims].to_vec(),
        strides: tensor.strides[..dims].to_vec(),
    }
}

/// Whether the bytes can be shown as they are: UTF-8 (which may be cut off inside a character)
/// without control characters other than those of lines.
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

fn write_text(message: &Message<'_>, shown: &[u8], to: &mut dyn Write) -> io::Result<()> {
    if message.missed > 0 {
        writeln!(to, "--- {} messages missed ---", message.missed)?;
    }
    if let Some(text) = &message.text {
        write!(to, "{text}")?;
        if message.truncated {
            write!(to, " ... ({} in all)", units::bytes(message.bytes))?;
        }
        if message.truncated || !text.ends_with('\n') {
            writeln!(to)?;
        }
        return Ok(());
    }
    let shape = match &message.tensor {
        Some(tensor) => format!(", {}{:?}", tensor.dtype, tensor.shape),
        None => String::new(),
    };
    writeln!(
        to,
        "publisher {} message {}: {} in {}{shape}, {:.1} us",
        message.publisher,
        message.sequence,
        units::bytes(message.bytes),
        message.domain,
        message.delay_us
    )?;
    if message.hex.is_some() {
        for (line, bytes) in shown.chunks(16).enumerate() {
            writeln!(to, "{}", hex_line(line * 16, bytes))?;
        }
        if message.truncated {
            writeln!(to, "...")?;
        }
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
