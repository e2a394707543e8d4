//! `topic pub`.

use super::describe::Description;
use super::interruptible::Interruptible;
use super::video::{self, Video};
use crate::args::{Common, Publish};
use crate::exit::{NotInTime, Unmatched, Usage};
use crate::files;
use crate::output::Output;
use crate::stop::Stop;
use crate::{domain, session, units};
use anyhow::{bail, Context};
use rgaps::{History, Loan, Publisher, PublisherQos, SlowReaderPolicy};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::time::{Duration, Instant};

/// How long a signal may go unnoticed.
const SLICE: Duration = Duration::from_millis(50);
/// Bytes that are generated at a time.
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Serialize)]
struct Report<'a> {
    topic: &'a str,
    messages: u64,
    bytes: u64,
    seconds: f64,
    /// How often it went on without a slow subscriber.
    drops: u64,
    /// How many subscribers matched at most, at a message.
    subscribers: u32,
}

/// Where messages come from.
enum Messages {
    /// The same every time.
    Same(Vec<u8>),
    /// One per line, without its end.
    Lines(Box<dyn BufRead>),
    /// Generated, different every time.
    Generated(u64),
    /// Pictures.
    Video(Box<Video>),
}

pub fn publish(common: &Common, publish: &Publish, output: &mut Output) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let mut description = Description::new(publish)?;
    let mut messages = open(publish, &mut description, &stop)?;
    if let Messages::Same(bytes) = &messages {
        description.check(bytes.len() as u64)?;
    }
    if let Messages::Generated(bytes) = &messages {
        description.check(*bytes)?;
    }
    let mut left = match (publish.count, publish.rate, &messages) {
        (Some(count), _, _) => count,
        (None, None, Messages::Same(_) | Messages::Generated(_)) => 1,
        _ => u64::MAX,
    };
    let publisher = create(common, publish, &description)?;
    wait_for_subscribers(&publisher, publish, &stop)?;
    let begun = Instant::now();
    let mut report = Report {
        topic: publisher.topic(),
        messages: 0,
        bytes: 0,
        seconds: 0.0,
        drops: 0,
        subscribers: 0,
    };
    while left > 0 && !stop.is_set() {
        // Before the message: a subscriber may leave as soon as it has it.
        report.subscribers = report.subscribers.max(publisher.subscribers());
        let Some(bytes) = send(
            &publisher,
            &mut messages,
            &mut description,
            report.messages,
            &stop,
        )?
        else {
            break;
        };
        report.messages += 1;
        report.bytes += bytes;
        left -= 1;
        if let (Some(hz), true) = (publish.rate, left > 0) {
            // Against the first one, so that the rate does not drift.
            let due = begun + Duration::from_secs_f64(report.messages as f64 / hz);
            sleep_until(due, &stop);
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    report.drops = publisher.drops();
    let unmatched = unmatched(&publisher)?;
    output.put(&report, |to| {
        write_text(&report, publish, unmatched.is_some(), to)
    })?;
    if report.messages == 0 && publish.lines && !stop.is_set() {
        bail!("the input has no line, so nothing was published");
    }
    match unmatched {
        Some(unmatched) => Err(unmatched.into()),
        None => Ok(()),
    }
}

fn write_text(
    report: &Report<'_>,
    publish: &Publish,
    is_mismatch: bool,
    to: &mut dyn Write,
) -> io::Result<()> {
    let bytes = units::bytes(report.bytes);
    let messages = units::counted(report.messages, "message");
    writeln!(to, "{messages}, {bytes} in {:.3} s", report.seconds)?;
    if report.drops > 0 {
        let times = units::counted(report.drops, "time");
        writeln!(
            to,
            "continued {times} without a slow subscriber, which missed messages"
        )?;
    }
    match (report.messages, report.subscribers) {
        (0, _) | (_, 1..) => Ok(()),
        _ if publish.transient_local => {
            writeln!(to, "no subscriber received them yet; the history keeps them for those that subscribe with --late")
        }
        // The error says so, and why.
        _ if is_mismatch => Ok(()),
        _ => writeln!(
            to,
            "no subscriber received them: the topic had none. Start it first, wait for it (--wait-subscribers 1), or \
             keep the messages for it (--transient-local)"
        ),
    }
}

/// Subscribers that were there and read none of it, and why.
fn unmatched(publisher: &Publisher) -> anyhow::Result<Option<Unmatched>> {
    let count = publisher.mismatched();
    if count == 0 {
        return Ok(None);
    }
    let mut text = match count {
        1 => format!(
            "1 subscriber of topic '{}' does not match",
            publisher.topic()
        ),
        count => format!(
            "{count} subscribers of topic '{}' do not match",
            publisher.topic()
        ),
    };
    for reason in publisher.mismatches()? {
        text += &format!("; {reason}");
    }
    Ok(Some(Unmatched(text)))
}

/// Opens what is to be published, and takes from a file what its array is.
fn open(publish: &Publish, description: &mut Description, stop: &Stop) -> anyhow::Result<Messages> {
    let source = &publish.source;
    if let Some(video) = Video::open(publish, stop)? {
        return Ok(Messages::Video(Box::new(video)));
    }
    if let Some(text) = &source.text {
        return Ok(Messages::Same(text.clone().into_bytes()));
    }
    if let Some(size) = source.size {
        return Ok(Messages::Generated(size.0));
    }
    if let Some(path) = source
        .file
        .as_ref()
        .filter(|_| !publish.lines && !publish.raw)
    {
        if let Some(array) = files::load(path)? {
            description.take(&array.tensor)?;
            return Ok(Messages::Same(array.bytes.into_owned()));
        }
    }
    let (mut input, name): (Box<dyn BufRead>, String) = match &source.file {
        Some(path) => {
            let name = format!("'{}'", path.display());
            let file = File::open(path).with_context(|| format!("reading {name} failed"))?;
            (Box::new(BufReader::new(file)), name)
        }
        None => (
            Box::new(BufReader::new(Interruptible {
                input: io::stdin(),
                stop: stop.clone(),
            })),
            "standard input".to_owned(),
        ),
    };
    if source.file.is_none() && io::stdin().is_terminal() {
        rgaps_session::print_error(format_args!(
            "rgaps: reading standard input; Ctrl-D ends it"
        ));
    }
    if publish.lines {
        return Ok(Messages::Lines(input));
    }
    let mut bytes = Vec::new();
    input
        .read_to_end(&mut bytes)
        .with_context(|| format!("reading {name} failed"))?;
    if source.file.is_none() && stop.is_set() {
        bail!("interrupted before the end of standard input, so nothing was published");
    }
    if bytes.is_empty() && source.file.is_none() {
        bail!("standard input is empty, so nothing was published; for a message without bytes, give --text ''");
    }
    Ok(Messages::Same(bytes))
}

fn create(
    common: &Common,
    publish: &Publish,
    description: &Description,
) -> anyhow::Result<Publisher> {
    let domain = publish.domain.as_deref().map(domain::parse).transpose()?;
    if publish.keep_last == 0 {
        return Err(Usage("--keep-last must be at least 1".to_owned()).into());
    }
    let qos = PublisherQos {
        history: History::KeepLast(publish.keep_last),
        reliable: !publish.best_effort,
        transient_local: publish.transient_local,
        deadline: publish.slow_reader.unwrap_or(publish.timeout),
        slow_reader: match publish.slow_reader {
            Some(_) => SlowReaderPolicy::Drop,
            None => SlowReaderPolicy::Fail,
        },
        loan_timeout: publish.timeout,
        ..PublisherQos::default()
    };
    let node = session::join(common)?;
    let is_video = publish.source.ffmpeg.is_some() || publish.source.v4l2.is_some();
    let type_name = match publish.type_name.as_str() {
        "" if is_video => video::ENCODING.to_owned(),
        "" => description.type_name(),
        name => name.to_owned(),
    };
    let mut builder = node
        .publisher(&publish.topic)
        .type_name(&type_name)
        .qos(qos);
    if let Some(path) = publish.require {
        builder = builder.require(path);
    }
    if let Some(domain) = domain {
        builder = builder.domain(domain);
    }
    Ok(builder.create()?)
}

fn wait_for_subscribers(
    publisher: &Publisher,
    publish: &Publish,
    stop: &Stop,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + publish.timeout;
    while !stop.is_set() {
        let left = deadline.saturating_duration_since(Instant::now());
        if publisher.wait_for_subscribers(publish.wait_subscribers, left.min(SLICE))? {
            return Ok(());
        }
        if left.is_zero() {
            return Err(NotInTime(format!(
                "after {} s {}",
                publish.timeout.as_secs_f64(),
                publisher.missing_subscribers(publish.wait_subscribers)
            ))
            .into());
        }
    }
    Ok(())
}

/// Publishes the next message. Returns its size, or none when there is no other.
fn send(
    publisher: &Publisher,
    messages: &mut Messages,
    description: &mut Description,
    number: u64,
    stop: &Stop,
) -> anyhow::Result<Option<u64>> {
    let whole = |bytes: &[u8]| -> anyhow::Result<Loan> {
        let mut loan = publisher.loan(bytes.len() as u64)?;
        loan.write(0, bytes)?;
        Ok(loan)
    };
    let mut loan = match messages {
        Messages::Same(bytes) => whole(bytes)?,
        Messages::Lines(input) => {
            let mut line = Vec::new();
            if input
                .read_until(b'\n', &mut line)
                .context("reading a line failed")?
                == 0
            {
                return Ok(None);
            }
            match line.last() {
                Some(b'\n') => drop(line.pop()),
                // The rest of the line is not there.
                _ if stop.is_set() => return Ok(None),
                _ => {}
            }
            description.check(line.len() as u64)?;
            whole(&line)?
        }
        Messages::Generated(bytes) => {
            let mut loan = publisher.loan(*bytes)?;
            let mut at = 0;
            while at < *bytes {
                let length = (*bytes - at).min(CHUNK_BYTES as u64);
                loan.write(at, &generated(number, at, length as usize))?;
                at += length;
            }
            loan
        }
        Messages::Video(video) => {
            let Some(picture) = video.next()? else {
                return Ok(None);
            };
            let Some(loan) = video.take(&picture, publisher)? else {
                return Ok(None);
            };
            description.show(&picture.tensor, picture.capture_ns);
            loan
        }
    };
    description.describe(&mut loan)?;
    let bytes = loan.len();
    loan.publish().map_err(|unpublished| unpublished.error)?;
    Ok(Some(bytes))
}

/// The message's number in eight bytes, then bytes that count up from it.
fn generated(number: u64, at: u64, length: usize) -> Vec<u8> {
    let head = number.to_le_bytes();
    let byte = |i: u64| match head.get(i as usize) {
        Some(byte) => *byte,
        None => (number.wrapping_add(i)) as u8,
    };
    (at..at + length as u64).map(byte).collect()
}

fn sleep_until(due: Instant, stop: &Stop) {
    while !stop.is_set() {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(SLICE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_messages_differ_and_fit_together() {
        let whole = generated(7, 0, 64);
        assert_eq!([generated(7, 0, 20), generated(7, 20, 44)].concat(), whole);
        assert_eq!(whole[..8], 7u64.to_le_bytes());
        assert_ne!(generated(8, 0, 64), whole);
    }
}
