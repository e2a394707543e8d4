//! Runs the scenarios, each in processes of its own, and judges them.

use crate::daemon::Daemon;
use crate::gpu::SOON;
use crate::plan::{Across, Found, Scenario, Spec};
use crate::Arguments;
use anyhow::{bail, ensure, Context};
use clap::ValueEnum;
use serde::Serialize;
use std::io::Read;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest kernel of a run without its wait.
const SLOWEST_KERNEL: Duration = Duration::from_secs(4);

/// One scenario, with or without its wait.
#[derive(Serialize)]
struct Run {
    scenario: Scenario,
    /// Its wait was left out.
    skip: bool,
    #[serde(flatten)]
    found: Found,
    seconds: f64,
    /// Without a skip: nothing was wrong. With one: something was, and was seen.
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// All of them.
#[derive(Serialize)]
struct Report {
    gpus: u64,
    across: Option<Across>,
    messages: u64,
    bytes: u64,
    kernel_ms: f64,
    seed: u64,
    runs: Vec<Run>,
    ok: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    ensure!(
        arguments.bytes >= 8 && arguments.bytes % 8 == 0,
        "a message has a multiple of 8 bytes"
    );
    ensure!(
        arguments.across.is_none() || arguments.gpus > 1,
        "--across takes two GPUs at least: --gpus 2"
    );
    let scenarios = match &arguments.scenario[..] {
        [] => Scenario::value_variants(),
        chosen => chosen,
    };
    let skips: &[bool] = match arguments.no_skips {
        true => &[false],
        false => &[false, true],
    };
    let mut runs = Vec::new();
    for scenario in scenarios {
        for skip in skips {
            if *skip && !scenario.is_seen(arguments.across) {
                continue;
            }
            let run = judge(arguments, *scenario, *skip);
            eprintln!("{}", serde_json::to_string(&run)?);
            runs.push(run);
        }
    }
    let report = Report {
        gpus: arguments.gpus,
        across: arguments.across,
        messages: arguments.messages,
        bytes: arguments.bytes,
        kernel_ms: arguments.kernel_ms,
        seed: arguments.seed,
        ok: runs.iter().all(|run| run.ok),
        runs,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(report.ok)
}

fn judge(arguments: &Arguments, scenario: Scenario, skip: bool) -> Run {
    let begun = Instant::now();
    let (found, error) = match race_until_seen(arguments, scenario, skip) {
        Ok(found) => (found, None),
        Err(error) => (Found::default(), Some(format!("{error:#}"))),
    };
    Run {
        scenario,
        skip,
        found,
        seconds: begun.elapsed().as_secs_f64(),
        ok: error.is_none() && (found.wrong > 0) == skip,
        error,
    }
}

/// Where processes wait for a processor longer than a slow kernel takes, nothing is early even without a wait. So a run that must
/// see something is repeated with kernels of twice the time until it does.
fn race_until_seen(arguments: &Arguments, scenario: Scenario, skip: bool) -> anyhow::Result<Found> {
    let mut kernel =
        Duration::try_from_secs_f64(arguments.kernel_ms / 1e3).context("--kernel-ms")?;
    loop {
        let found = race(arguments, scenario, skip, kernel)?;
        kernel *= 2;
        if !skip || found.wrong > 0 || kernel > SLOWEST_KERNEL {
            return Ok(found);
        }
    }
}

/// One run on all GPUs.
fn race(
    arguments: &Arguments,
    scenario: Scenario,
    skip: bool,
    kernel: Duration,
) -> anyhow::Result<Found> {
    let daemon = Daemon::start(arguments.bytes)?;
    let messages = match skip {
        true => arguments.skip_messages,
        false => arguments.messages,
    };
    let spec = |gpu: u64| Spec {
        scenario,
        skip,
        socket: daemon.socket(),
        topic: format!("races/{gpu}"),
        gpu: gpu as usize,
        read_on: match arguments.across {
            Some(_) => ((gpu + 1) % arguments.gpus) as usize,
            None => gpu as usize,
        },
        across: arguments.across,
        messages,
        words: arguments.bytes / 8,
        kernel_ns: kernel.as_nanos() as u64,
        seed: arguments.seed,
    };
    let specs: Vec<Spec> = (0..arguments.gpus).map(spec).collect();
    // A message takes two and a half slow kernels at most, were they all one after the other.
    let patience = 2 * SOON + kernel * 5 * u32::try_from(messages)?;
    let end = Instant::now() + patience;

    let mut subscribers = Vec::new();
    let mut publishers = Vec::new();
    for spec in &specs {
        subscribers.push(Process::start("subscriber", spec)?);
        publishers.push(Process::start("publisher", spec)?);
    }
    let mut sum = Found::default();
    for subscriber in &mut subscribers {
        // Whoever fails, the others would wait for it.
        let text = subscriber.outcome(end, &mut publishers)?;
        let found: Found = serde_json::from_str(text.trim()).context("what a subscriber says")?;
        ensure!(
            found.checked == messages,
            "a subscriber checked {} messages of {messages}",
            found.checked
        );
        sum.checked += found.checked;
        sum.wrong += found.wrong;
        sum.wrong_words += found.wrong_words;
    }
    for publisher in &mut publishers {
        drop(publisher.input.take());
        publisher.outcome(end, &mut [])?;
    }
    Ok(sum)
}

/// A publisher or subscriber; killed when it is dropped.
struct Process {
    child: Child,
    part: &'static str,
    /// A publisher stays until this is closed.
    input: Option<ChildStdin>,
}

impl Process {
    fn start(part: &'static str, spec: &Spec) -> anyhow::Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([part, &serde_json::to_string(spec)?])
            // Hardware queues for all its streams, so that slow kernels do not queue behind each other.
            .env("CUDA_DEVICE_MAX_CONNECTIONS", "32")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting a {part}"))?;
        let input = child.stdin.take();
        Ok(Process { child, part, input })
    }

    /// Waits until it ends, and says what it said. An error if it fails, or one of `others` does
    /// before, or time is up.
    fn outcome(&mut self, end: Instant, others: &mut [Process]) -> anyhow::Result<String> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "a {} ended with {status}", self.part);
                let mut text = String::new();
                let mut output = self.child.stdout.take().context("its output")?;
                output.read_to_string(&mut text)?;
                return Ok(text);
            }
            for other in others.iter_mut() {
                if let Some(status) = other.child.try_wait()? {
                    bail!("a {} ended too early, with {status}", other.part);
                }
            }
            ensure!(Instant::now() < end, "a {} takes too long", self.part);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
