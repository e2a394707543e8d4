//! `rgaps record`.

use crate::absent;
use crate::args::{Common, Compression, Record};
use crate::output::Output;
use crate::stop::Stop;
use crate::{session, units};
use anyhow::{bail, Context};
use rgaps_recording::{Counts, Options, Reason, Recorder};
use rgaps_session::is_pattern;
use rgaps_sync::wall_ns;
use serde::Serialize;
use signal_hook::consts::SIGUSR1;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks for a signal.
const SLICE: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Report<'a> {
    file: &'a str,
    #[serde(flatten)]
    counts: &'a Counts,
    /// Since the last report.
    bytes_per_s: f64,
    /// Whether the recording has ended.
    ended: bool,
}

pub fn record(common: &Common, command: &Record, output: &mut Output) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let trigger = Arc::<AtomicBool>::default();
    signal_hook::flag::register(SIGUSR1, trigger.clone()).context("signals cannot be handled")?;
    let options = options(command);
    let file = options.file.display().to_string();
    let node = session::join(common)?;
    let recorder = Recorder::start(node.clone(), options)?;
    for topic in &command.patterns {
        let topic = node.resolve_topic(topic);
        match is_pattern(&topic) {
            true => absent::warn_of_pattern(&node, &topic)?,
            false => absent::warn(&node, &topic)?,
        }
    }
    let begun = Instant::now();
    let mut progress = Progress::new(&file, command.every);
    loop {
        if trigger.swap(false, Ordering::Relaxed) {
            recorder.trigger();
        }
        let counts = recorder.counts();
        let is_over = command.duration.is_some_and(|most| begun.elapsed() >= most);
        let is_over = is_over || recorder.is_complete() || recorder.failure().is_some();
        if stop.is_set() || is_over {
            break;
        }
        progress.report(&counts, common.json, output)?;
        std::thread::sleep(SLICE);
    }
    let (counts, failure) = recorder.stop();
    progress.end(&counts, output)?;
    if let Some(failure) = failure {
        bail!(
            "{} cannot be written any further: {}; its first {} can be read ('rgaps info' says what they hold)",
            failure.path.display(),
            failure.reason,
            units::bytes(failure.readable_bytes)
        );
    }
    Ok(())
}

fn options(command: &Record) -> Options {
    let file = command.output.clone().unwrap_or_else(default_name);
    let mut options = Options::new(&command.patterns, file);
    options.compression = match command.compression {
        Compression::None => rgaps_recording::Compression::None,
        Compression::Lz4 => rgaps_recording::Compression::Lz4,
        Compression::Zstd => rgaps_recording::Compression::Zstd,
    };
    options.ros2 = command.ros2;
    options.jpeg = command.jpeg;
    options.chunk_bytes = command.chunk.0;
    options.queue_bytes = command.queue.0;
    options.split_bytes = command.split_size.map(|size| size.0);
    options.split_time = command.split_time;
    options.keep = command.keep;
    options.reliable = command.reliable;
    options.count = command.count;
    options
}

/// A name such as `rgaps-2026-11-26T06-00-00.mcap`. It has no colons, which some file systems refuse.
fn default_name() -> PathBuf {
    let now = units::utc(wall_ns());
    let seconds = now.split('.').next().unwrap_or_default();
    format!("rgaps-{}.mcap", seconds.replace(':', "-")).into()
}

/// Prints lines of progress to standard error. In a terminal each overwrites the last.
struct Progress<'a> {
    file: &'a str,
    every: Duration,
    last: Instant,
    last_bytes: u64,
    is_terminal: bool,
}

impl<'a> Progress<'a> {
    fn new(file: &'a str, every: Duration) -> Progress<'a> {
        Progress {
            file,
            every,
            last: Instant::now(),
            last_bytes: 0,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn report(&mut self, counts: &Counts, json: bool, output: &mut Output) -> anyhow::Result<()> {
        let since = self.last.elapsed();
        if self.every.is_zero() || since < self.every {
            return Ok(());
        }
        let written = counts.file_bytes.saturating_sub(self.last_bytes);
        let bytes_per_s = written as f64 / since.as_secs_f64();
        (self.last, self.last_bytes) = (Instant::now(), counts.file_bytes);
        if json {
            let (file, ended) = (self.file, false);
            return output.put(
                &Report {
                    file,
                    counts,
                    bytes_per_s,
                    ended,
                },
                |_| Ok(()),
            );
        }
        let line = format!(
            "{}: {} at {}/s, {} messages of {}, {} dropped{}",
            self.file,
            units::bytes(counts.file_bytes),
            units::bytes(bytes_per_s as u64),
            counts.recorded,
            units::counted(counts.topics, "topic"),
            counts.dropped,
            kept(counts, self.file_is_kept(counts)),
        );
        let mut to = std::io::stderr().lock();
        // Nobody may read standard error, which is no reason to stop recording.
        let _ = match self.is_terminal {
            true => write!(to, "\r\x1b[K{line}"),
            false => writeln!(to, "{line}"),
        };
        let _ = to.flush();
        Ok(())
    }

    fn file_is_kept(&self, counts: &Counts) -> bool {
        counts.files == 0 && counts.queue_bytes > 0
    }

    /// Prints the result.
    fn end(&self, counts: &Counts, output: &mut Output) -> anyhow::Result<()> {
        if self.is_terminal && !self.every.is_zero() {
            let _ = writeln!(std::io::stderr());
        }
        let (file, bytes_per_s, ended) = (self.file, 0.0, true);
        output.put(
            &Report {
                file,
                counts,
                bytes_per_s,
                ended,
            },
            |to| {
                writeln!(
                    to,
                    "{}: {} of {} in {}, {}",
                    self.file,
                    units::counted(counts.recorded, "message"),
                    units::counted(counts.topics, "topic"),
                    units::counted(counts.files, "file"),
                    units::bytes(counts.file_bytes)
                )?;
                for reason in Reason::ALL {
                    if let Some(count) = counts.dropped_by.get(reason.name()) {
                        writeln!(to, "dropped: {count}: {}", reason.explain())?;
                    }
                }
                for (topic, why) in &counts.not_ros2 {
                    writeln!(to, "  {topic}: {why}")?;
                }
                if counts.pushed_out > 0 {
                    let count = counts.pushed_out;
                    writeln!(
                        to,
                        "forgotten before their time: {count}: --queue is too small for --keep"
                    )?;
                }
                Ok(())
            },
        )
    }
}

fn kept(counts: &Counts, is_kept: bool) -> String {
    match is_kept {
        true => format!(", {} kept", units::bytes(counts.queue_bytes)),
        false => String::new(),
    }
}
