//! Measures the time from a kernel of one process to a kernel of another on each GPU, without and under MPS.

use super::{mps, Check};
use rgaps::{Config, GpuUuid, MpsState};
use rgaps_session::{MpsControl, MPS_CONTROL_PROGRAM, MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE};
use serde::Serialize;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A directory without MPS pipes: a process that looks for MPS here runs without MPS.
const NOWHERE: &str = "/nonexistent";
/// Limit on MPS's start, and on its answer to `quit`.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit on one question to MPS, and on the end of its process.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// A measured hand-over.
#[derive(Serialize)]
pub struct Figure {
    gpu: String,
    mps: bool,
    #[serde(flatten)]
    time: rgaps_bench::Handover,
}

/// Measures on the GPUs of these domains, with one check for each.
pub fn checks(config: &Config, domains: &[String]) -> (Vec<Check>, Vec<Figure>) {
    let gpus: Vec<GpuUuid> = domains
        .iter()
        .filter_map(|domain| domain.strip_prefix("cuda:")?.parse().ok())
        .collect();
    if gpus.is_empty() {
        let check = Check::lack(
            "hand-over",
            "there is no GPU to measure",
            "see the check 'GPUs'",
        );
        return (vec![check], Vec::new());
    }
    let service = Service::of(config);
    let mut figures = Vec::new();
    let checks = gpus.into_iter().map(|gpu| {
        let name = format!("hand-over {gpu}");
        let without = measure(gpu, false, NOWHERE, &mut figures);
        let under = match &service {
            Ok(service) => measure(gpu, true, &service.pipes.to_string_lossy(), &mut figures),
            Err(reason) => Err(reason.clone()),
        };
        let shown = |time: &Result<f64, String>| match time {
            Ok(us) => format!("{us:.1} us"),
            Err(reason) => format!("not measured ({reason})"),
        };
        let found = format!(
            "kernel to kernel, one way: {} without MPS (taking turns), {} under MPS",
            shown(&without),
            shown(&under)
        );
        match (without, under) {
            (Ok(_), Ok(_)) => Check::ok(&name, found),
            _ => Check::lack(&name, found, "see docs/how-to/mps.md"),
        }
    });
    (checks.collect(), figures)
}

fn measure(gpu: GpuUuid, mps: bool, pipes: &str, figures: &mut Vec<Figure>) -> Result<f64, String> {
    match rgaps_bench::handover(gpu, &[(MPS_PIPE_VARIABLE, pipes)]) {
        Ok(time) => {
            let gpu = gpu.to_string();
            figures.push(Figure { gpu, mps, time });
            Ok(time.p50_us)
        }
        Err(error) => Err(format!("{error:#}")),
    }
}

/// The MPS to measure under.
struct Service {
    pipes: PathBuf,
    /// The folder and the process of an MPS that this value started, and ends when dropped. None: the realm's MPS.
    own: Option<(PathBuf, Child)>,
}

impl Service {
    fn of(config: &Config) -> Result<Service, String> {
        let realms = mps::of_the_daemon(config);
        let usable = |state| matches!(state, MpsState::Own | MpsState::Foreign);
        let pipes = realms
            .filter(|info| usable(info.state))
            .and_then(|info| info.pipe_directory);
        match pipes {
            Some(pipes) => Ok(Service {
                pipes: pipes.into(),
                own: None,
            }),
            None => Service::start(),
        }
    }

    fn start() -> Result<Service, String> {
        let folder = PathBuf::from(format!("/tmp/rgaps-doctor-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| format!("'{}': {error}", folder.display()))?;
        let child = Command::new(MPS_CONTROL_PROGRAM)
            .arg("-f")
            .env(MPS_PIPE_VARIABLE, &folder)
            .env(MPS_LOG_VARIABLE, &folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                // If this fails, an empty folder stays, which harms nothing.
                let _ = std::fs::remove_dir_all(&folder);
                return Err(format!("starting '{MPS_CONTROL_PROGRAM}' failed: {error}"));
            }
        };
        let mut service = Service {
            pipes: folder.clone(),
            own: Some((folder, child)),
        };
        let deadline = Instant::now() + LIMIT;
        let control = MpsControl::at(&service.pipes);
        while !control.answers(ASK_LIMIT) {
            let ended = |(_, child): &mut (PathBuf, Child)| !matches!(child.try_wait(), Ok(None));
            if service.own.as_mut().is_none_or(ended) || Instant::now() >= deadline {
                return Err("the MPS for this measurement did not start in time".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Some((folder, child)) = &mut self.own else {
            return;
        };
        // The measurement's processes have ended, so MPS has no clients. If it does not end by itself, it is killed.
        let _ = MpsControl::at(&self.pipes).ask("quit", LIMIT);
        let deadline = Instant::now() + ASK_LIMIT;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        let _ = std::fs::remove_dir_all(folder);
    }
}
