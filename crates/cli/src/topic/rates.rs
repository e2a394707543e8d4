//! `topic hz`, `topic bw` and `topic delay`: figures of one or several topics, each over a window of its last messages.

use super::message::reader;
use super::window::{Figures, Rate, Window};
use crate::absent;
use crate::args::{Common, Watch};
use crate::exit::NotInTime;
use crate::output::{table, Output};
use crate::stop::Stop;
use crate::{session, units};
use rgaps::{Node, RecvError, Subscriber, SubscriberQos, Token, WaitSet};
use rgaps_session::{is_pattern, pattern_matches};
use rgaps_sync::monotonic_ns;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time between two looks for a signal.
const SLICE: Duration = Duration::from_millis(50);
/// Time between two searches for topics that match a pattern.
const DISCOVERY: Duration = Duration::from_millis(250);
/// Most messages that one turn takes from a topic before the next topic has its turn.
const BURST: u32 = 256;

/// A report on a topic. Leaves out the fields of other commands; null: not known yet.
#[derive(Serialize)]
struct Report<'a> {
    topic: &'a str,
    messages: u64,
    missed: u64,
    window: usize,
    /// Milliseconds since the last message. None: no message yet.
    last_ms: Option<f64>,
    #[serde(flatten)]
    figures: Figures,
}

struct Watched {
    subscriber: Subscriber,
    token: Token,
    window: Window,
}

/// The watched topics.
struct Topics<'a> {
    node: Node,
    watch: &'a Watch,
    patterns: Vec<String>,
    /// The depth of each subscriber. None: it reads every message.
    depth: Option<u32>,
    set: WaitSet,
    watched: Vec<Watched>,
    /// Topics that match a pattern and cannot be joined. Kept so that each is reported once.
    refused: BTreeSet<String>,
    looked: Option<Instant>,
    messages: u64,
    last: Instant,
}

pub fn watch(
    common: &Common,
    watch: &Watch,
    rate: Rate,
    depth: Option<u32>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let mut topics = Topics::new(session::join(common)?, watch, depth)?;
    let end = watch.duration.map(|duration| Instant::now() + duration);
    let mut report_at = Instant::now() + watch.every;
    loop {
        let now = Instant::now();
        let is_done = stop.is_set()
            || end.is_some_and(|end| now >= end)
            || watch.count.is_some_and(|count| topics.messages >= count);
        if is_done || now >= report_at {
            topics.report(rate, common.json, output)?;
            if is_done {
                return Ok(());
            }
            report_at = now + watch.every;
        }
        topics.look_for_more()?;
        let until = [Some(report_at), end, Some(now + SLICE)]
            .into_iter()
            .flatten()
            .min();
        topics.take(until.unwrap_or(now).saturating_duration_since(now))?;
        topics.check_patience()?;
    }
}

impl<'a> Topics<'a> {
    fn new(node: Node, watch: &'a Watch, depth: Option<u32>) -> anyhow::Result<Topics<'a>> {
        let named = watch.topics.iter().map(|topic| node.resolve_topic(topic));
        let (patterns, names): (Vec<String>, Vec<String>) =
            named.partition(|topic| is_pattern(topic));
        let node = node.with_full_names();
        let mut topics = Topics {
            set: node.wait_set(),
            node,
            watch,
            patterns,
            depth,
            watched: Vec::new(),
            refused: BTreeSet::new(),
            looked: None,
            messages: 0,
            last: Instant::now(),
        };
        for name in &names {
            if topics
                .watched
                .iter()
                .all(|known| known.subscriber.topic() != name)
            {
                topics.join(name)?;
                absent::warn(&topics.node, name)?;
            }
        }
        for pattern in &topics.patterns {
            absent::warn_of_pattern(&topics.node, pattern)?;
        }
        Ok(topics)
    }

    fn join(&mut self, topic: &str) -> anyhow::Result<()> {
        let qos = SubscriberQos {
            depth: self.depth,
            ..SubscriberQos::default()
        };
        let subscriber = reader(&self.node, topic, &self.watch.reads)?
            .qos(qos)
            .create()?;
        let token = self.set.attach(&subscriber)?;
        let window = Window::default();
        self.watched.push(Watched {
            subscriber,
            token,
            window,
        });
        self.watched
            .sort_by(|a, b| a.subscriber.topic().cmp(b.subscriber.topic()));
        Ok(())
    }

    /// Joins new topics that match a pattern, at most once per [`DISCOVERY`].
    fn look_for_more(&mut self) -> anyhow::Result<()> {
        let is_due = self
            .looked
            .is_none_or(|looked| looked.elapsed() >= DISCOVERY);
        if self.patterns.is_empty() || !is_due {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        for row in self.node.topics()? {
            let is_wanted = self
                .patterns
                .iter()
                .any(|pattern| pattern_matches(pattern, &row.name));
            let is_known = self
                .watched
                .iter()
                .any(|known| known.subscriber.topic() == row.name);
            if !is_wanted || is_known || self.refused.contains(&row.name) {
                continue;
            }
            if let Err(error) = self.join(&row.name) {
                rgaps_session::print_error(format_args!(
                    "rgaps: cannot read topic '{}': {}",
                    row.name,
                    rgaps_session::explain(error.as_ref())
                ));
                self.refused.insert(row.name);
            }
        }
        Ok(())
    }

    /// Takes the waiting messages. If none wait, sleeps until one comes, for at most `timeout`.
    fn take(&mut self, timeout: Duration) -> anyhow::Result<()> {
        if self.watched.is_empty() {
            std::thread::sleep(timeout);
            return Ok(());
        }
        for token in self.set.wait(timeout)? {
            let Some(watched) = self
                .watched
                .iter_mut()
                .find(|watched| watched.token == token)
            else {
                continue;
            };
            for _ in 0..BURST {
                if self.watch.count.is_some_and(|count| self.messages >= count) {
                    return Ok(());
                }
                match watched.subscriber.try_recv() {
                    Ok(Some(sample)) => {
                        watched.window.add(&sample, self.watch.window as usize);
                        self.messages += 1;
                        self.last = Instant::now();
                    }
                    Ok(None) => break,
                    Err(RecvError::Untrusted { topic, reason }) => {
                        rgaps_session::print_error(format_args!(
                            "rgaps: skipped a message of topic '{topic}': {reason}"
                        ));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn check_patience(&self) -> anyhow::Result<()> {
        let Some(timeout) = self
            .watch
            .timeout
            .filter(|timeout| self.last.elapsed() >= *timeout)
        else {
            return Ok(());
        };
        let names: Vec<String> = self
            .watch
            .topics
            .iter()
            .map(|topic| format!("'{topic}'"))
            .collect();
        let mut text = format!(
            "no message on {} for {} s",
            names.join(", "),
            timeout.as_secs_f64()
        );
        if self.watched.is_empty() {
            text += &format!("; no topic matches{}", absent::other_hosts(&self.node)?);
        }
        if let [only] = self.watched.as_slice() {
            text += &format!("; {}", only.subscriber.silence());
            return Err(NotInTime(text).into());
        }
        for watched in &self.watched {
            for reason in watched.subscriber.mismatches().unwrap_or_default() {
                text += &format!(
                    "; a publisher of '{}' does not match: {reason}",
                    watched.subscriber.topic()
                );
            }
        }
        Err(NotInTime(text).into())
    }

    /// Prints a table, or with `json` a document per topic.
    fn report(&self, rate: Rate, json: bool, output: &mut Output) -> anyhow::Result<()> {
        let reports: Vec<Report<'_>> = self
            .watched
            .iter()
            .map(|watched| watched.report(rate))
            .collect();
        if json {
            return reports
                .iter()
                .try_for_each(|report| output.put(report, |_| Ok(())));
        }
        let cells: Vec<_> = reports.iter().map(cells).collect();
        let several = self.watched.len() != 1 || !self.patterns.is_empty();
        output.put(&(), |to| {
            if reports.is_empty() {
                return writeln!(to, "no topic matches '{}' yet", self.patterns.join("', '"));
            }
            table(to, heads(rate), &cells)?;
            if several {
                writeln!(to)
            } else {
                Ok(())
            }
        })
    }
}

impl Watched {
    fn report(&self, rate: Rate) -> Report<'_> {
        let last = self.window.arrivals.back();
        Report {
            topic: self.subscriber.topic(),
            messages: self.window.messages,
            missed: self.subscriber.missed(),
            window: self.window.arrivals.len(),
            last_ms: last.map(|last| (monotonic_ns() - last.at_ns) as f64 / 1e6),
            figures: self.window.figures(rate),
        }
    }
}

fn heads(rate: Rate) -> &'static [&'static str] {
    match rate {
        Rate::Hz => &[
            "TOPIC",
            "HZ",
            "MIN ms",
            "MAX ms",
            "STDDEV ms",
            "MESSAGES",
            "MISSED",
            "LAST",
        ],
        Rate::Bandwidth => &[
            "TOPIC", "BYTES/s", "SMALLEST", "MEAN", "LARGEST", "MESSAGES", "MISSED", "LAST",
        ],
        Rate::Delay => &[
            "TOPIC", "p50 us", "p99 us", "MIN us", "MAX us", "MESSAGES", "MISSED", "LAST",
        ],
    }
}

fn cells(report: &Report<'_>) -> Vec<String> {
    let number = |value: &Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), units::bytes);
    let mut cells = vec![report.topic.to_owned()];
    cells.extend(match &report.figures {
        Figures::Hz {
            rate_hz,
            interval_min_ms,
            interval_max_ms,
            interval_stddev_ms,
            ..
        } => [
            number(rate_hz, 2),
            number(interval_min_ms, 2),
            number(interval_max_ms, 2),
            number(interval_stddev_ms, 2),
        ],
        Figures::Bandwidth {
            bytes_per_s,
            bytes_min,
            bytes_mean,
            bytes_max,
        } => [
            size(bytes_per_s.map(|rate| rate as u64)),
            size(*bytes_min),
            size(bytes_mean.map(|mean| mean as u64)),
            size(*bytes_max),
        ],
        Figures::Delay {
            min_us,
            p50_us,
            p99_us,
            max_us,
        } => [
            number(p50_us, 1),
            number(p99_us, 1),
            number(min_us, 1),
            number(max_us, 1),
        ],
    });
    cells.push(report.messages.to_string());
    cells.push(report.missed.to_string());
    let ago = |ms: f64| format!("{} ago", units::micros(ms * 1e3));
    cells.push(
        report
            .last_ms
            .map_or_else(|| "no message yet".to_owned(), ago),
    );
    cells
}
