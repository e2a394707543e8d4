//! The command `rgaps-links bridge`, by which `rgaps bridge` replaces itself.

use crate::{ros2_topics, Bridge, BridgeError, Counts, Reason, RosTopic};
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use rgaps_client::{ClientError, Config, Node, OpenError};
use rgaps_session::{explain, print_error, start_log};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of this process in listings.
const CLIENT_NAME: &str = "rgaps-bridge";
/// Time between two looks for a signal.
const SLICE: Duration = Duration::from_millis(50);
/// After this time without another Zenoh node the bridge warns the user.
const ALONE_LIMIT: Duration = Duration::from_secs(3);
/// Exit codes, the same as those of `rgaps`.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NO_DAEMON: u8 = 3;

/// Which bridge runs, and what it reports. The rest is in the configuration.
#[derive(Args)]
pub struct Arguments {
    /// The other system.
    system: System,
    /// Report in JSON.
    #[arg(long)]
    json: bool,
    /// Milliseconds between two reports; 0: only at the end.
    #[arg(long, value_name = "MS", default_value = "0")]
    every_ms: u64,
    /// List the topics of ROS 2, and end.
    #[arg(long)]
    list: bool,
}

/// The other system.
#[derive(Clone, Copy, ValueEnum)]
enum System {
    /// Zenoh.
    Zenoh,
    /// ROS 2.
    Ros2,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    counts: &'a Counts,
    /// Whether the bridge has ended.
    ended: bool,
}

/// Runs a bridge until Ctrl-C or SIGTERM. The exit codes are those of `rgaps`.
pub fn run(arguments: &Arguments, config: Config) -> ExitCode {
    match run_bridge(arguments, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("rgaps bridge: {}", explain(error.as_ref())));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let is_usage = matches!(
        error.downcast_ref(),
        Some(
            BridgeError::NoRule
                | BridgeError::NoHash(_)
                | BridgeError::NoEndpoint
                | BridgeError::Key { .. }
        )
    );
    if is_usage {
        return USAGE;
    }
    match error.downcast_ref() {
        Some(OpenError::Client(ClientError::Launch(_))) => NO_DAEMON,
        _ => FAILED,
    }
}

fn run_bridge(arguments: &Arguments, config: Config) -> anyhow::Result<()> {
    // Zenoh logs a lot that users of rgaps do not need.
    start_log(&format!("zenoh=off,{}", config.log), config.log_format)
        .with_context(|| format!("log = {:?} is no filter", config.log))?;
    if arguments.list {
        return list(arguments.json, &ros2_topics(&config.bridge)?);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).context("a signal cannot be handled")?;
    }
    let node = Node::builder(CLIENT_NAME).config(config.clone()).build()?;
    let bridge = match arguments.system {
        System::Zenoh => Bridge::zenoh(node, &config.bridge)?,
        System::Ros2 => Bridge::ros2(node, &config.bridge)?,
    };
    let mut peer_watch = PeerWatch::new(&config.bridge);
    let every = Duration::from_millis(arguments.every_ms);
    let mut reported = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(SLICE);
        let counts = bridge.counts();
        peer_watch.look(&counts);
        if !every.is_zero() && reported.elapsed() >= every {
            reported = Instant::now();
            report(arguments.json, &counts, false)?;
        }
    }
    let counts = bridge.stop();
    report(arguments.json, &counts, true)
}

/// Warns the user while the bridge reaches no other Zenoh node, and reports when it reaches one again.
struct PeerWatch {
    since: Option<Instant>,
    is_reported: bool,
    endpoints: String,
}

impl PeerWatch {
    fn new(config: &rgaps_session::BridgeConfig) -> PeerWatch {
        let mut endpoints = Vec::new();
        if !config.connect.is_empty() {
            endpoints.push(format!("trying {}", config.connect.join(", ")));
        }
        if !config.listen.is_empty() {
            endpoints.push(format!("listening at {}", config.listen.join(", ")));
        }
        if config.scouting {
            endpoints.push("looking by multicast".to_owned());
        }
        PeerWatch {
            since: Some(Instant::now()),
            is_reported: false,
            endpoints: endpoints.join("; "),
        }
    }

    fn look(&mut self, counts: &Counts) {
        if counts.peers > 0 {
            if self.is_reported {
                tracing::info!("connected to {} Zenoh nodes", counts.peers);
            }
            (self.since, self.is_reported) = (None, false);
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.is_reported && since.elapsed() >= ALONE_LIMIT {
            self.is_reported = true;
            tracing::warn!(
                "no Zenoh node is reached, so no message crosses; {}",
                self.endpoints
            );
        }
    }
}

/// Prints the topics of ROS 2.
fn list(json: bool, topics: &[RosTopic]) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::json!({ "topics": topics }).to_string(),
        false => table(topics),
    };
    // The reader may have closed standard output.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

fn table(topics: &[RosTopic]) -> String {
    let longest = |of: fn(&RosTopic) -> &str, head: &str| {
        let lengths = topics.iter().map(|topic| of(topic).len());
        lengths.max().unwrap_or_default().max(head.len())
    };
    let name = longest(|topic| &topic.name, "TOPIC");
    let kind = longest(|topic| &topic.type_name, "TYPE");
    let row = |[topic, type_name, publishers, subscribers, hash]: [&str; 5]| {
        format!("{topic:name$}  {type_name:kind$}  {publishers:>10}  {subscribers:>11}  {hash}")
    };
    let mut lines = vec![row(["TOPIC", "TYPE", "PUBLISHERS", "SUBSCRIBERS", "HASH"])];
    lines.extend(topics.iter().map(|topic| {
        let counts = [topic.publishers, topic.subscribers].map(|count| count.to_string());
        row([
            &topic.name,
            &topic.type_name,
            &counts[0],
            &counts[1],
            &topic.hash,
        ])
    }));
    lines.join("\n")
}

/// Prints counters: JSON to standard output, text to standard error while the bridge runs and to standard output at the end.
fn report(json: bool, counts: &Counts, ended: bool) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::to_string(&Report { counts, ended })?,
        false => words(counts, ended),
    };
    if !json && !ended {
        print_error(format_args!("{text}"));
        return Ok(());
    }
    // The reader may have closed standard output.
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
    Ok(())
}

fn words(counts: &Counts, ended: bool) -> String {
    let mut text = format!(
        "sent {} messages of {} topics, received {} of {}; {} dropped",
        counts.sent, counts.topics_out, counts.received, counts.topics_in, counts.dropped
    );
    if !ended {
        text += &format!("; Zenoh nodes: {}", counts.peers);
    }
    for reason in Reason::ALL {
        if let Some(count) = counts.dropped_by.get(reason.name()).filter(|_| ended) {
            text += &format!("\ndropped: {count}: {}", reason.explain());
        }
    }
    if ended && counts.not_returned > 0 {
        let count = counts.not_returned;
        text += &format!("\nnot sent back: {count}: they had come from the other side");
    }
    text
}
