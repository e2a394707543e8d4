//! `doctor`: finds out by trying what this machine supports.
//!
//! No check relies on a version number where it can try: sandboxes, containers and WSL2 announce features that they then refuse.
//! Each check does what rgaps would do, releases what it took, and gives advice on what is missing.

mod gpu;
mod handover;
mod limits;
mod links;
mod memory;
mod mps;
mod rdma;
mod system;

use crate::args::{Common, Doctor};
use crate::output::Output;
use crate::session;
use crate::status::describe_history;
use crate::units;
use rgaps::{Config, Node, Status};
use rgaps_session::{visible_daemons, ConfigError, DaemonRole, VisibleDaemon, DAEMON_FILES_MIN};
use serde::Serialize;
use std::io::{self, Write};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It works.
    Ok,
    /// rgaps works without it, but not as well or not with all it has.
    Lack,
    /// rgaps does not work here.
    Fail,
}

/// One check.
#[derive(Serialize)]
pub struct Check {
    /// The name of the check. Names are stable, so that programs can look for them.
    name: String,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// An error's text up to its first semicolon, behind which errors give advice: a check gives its own advice.
pub fn cause(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.split(';').next().unwrap_or_default().to_owned()
}

impl Check {
    pub fn ok(name: &str, found: impl Into<String>) -> Check {
        Check {
            name: name.to_owned(),
            verdict: Verdict::Ok,
            found: found.into(),
            advice: None,
        }
    }

    pub fn lack(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check {
            verdict: Verdict::Lack,
            advice: Some(advice.into()),
            ..Check::ok(name, found)
        }
    }

    pub fn fail(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check {
            verdict: Verdict::Fail,
            ..Check::lack(name, found, advice)
        }
    }
}

#[derive(Serialize)]
struct Report {
    /// No check failed.
    usable: bool,
    /// The domains that can hold messages on this machine.
    domains: Vec<String>,
    checks: Vec<Check>,
    /// The realm's daemons that this process can see.
    daemons: Vec<VisibleDaemon>,
    /// Ports of network cards with RDMA.
    rdma: Vec<rdma::Card>,
    /// Times from kernel to kernel. Empty unless `--handover` is given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    handovers: Vec<handover::Figure>,
}

/// At least one check failed.
#[derive(Debug, thiserror::Error)]
#[error("rgaps cannot work here; fix the checks marked FAIL above")]
struct Unusable;

pub fn doctor(common: &Common, doctor: &Doctor, output: &mut Output) -> anyhow::Result<()> {
    let (config, invalid) = session::config_or_address(common)?;
    let mut checks = vec![configuration(&config, invalid)];
    checks.extend(system::checks());
    checks.extend(memory::checks(&config));
    checks.extend(limits::checks(&config));
    let (gpu_checks, gpus) = gpu::checks(&config);
    checks.extend(gpu_checks);
    let (rdma_checks, cards) = rdma::checks(&gpus);
    checks.extend(rdma_checks);
    checks.push(limits::locked_memory(&config, !cards.is_empty()));
    let gpus: Vec<String> = gpus.iter().map(gpu::Gpu::domain).collect();
    checks.push(mps::check(&config, &gpus));
    let mut handovers = Vec::new();
    if doctor.handover {
        let (measured, figures) = handover::checks(&config, &gpus);
        checks.extend(measured);
        handovers = figures;
    }
    let (check, status) = daemon(&config);
    checks.push(check);
    let daemons = visible_daemons(&config);
    checks.extend(other_daemons(&config, &daemons));
    checks.push(links::check(&config, status.as_ref()));
    let usable = checks.iter().all(|check| check.verdict != Verdict::Fail);
    let mut domains = Vec::new();
    if usable {
        domains.push("host".to_owned());
        domains.extend(gpus);
    }
    let report = Report {
        usable,
        domains,
        checks,
        daemons,
        rdma: cards,
        handovers,
    };
    output.put(&report, |to| write_text(&report, to))?;
    if usable {
        Ok(())
    } else {
        Err(Unusable.into())
    }
}

fn configuration(config: &Config, invalid: Option<ConfigError>) -> Check {
    match (invalid, &config.file) {
        (Some(error), _) => Check::fail(
            "configuration",
            error.to_string(),
            "correct it; the checks below use built-in values",
        ),
        (None, Some(file)) => Check::ok(
            "configuration",
            format!("'{}', realm '{}'", file.display(), config.realm),
        ),
        (None, None) => Check::ok(
            "configuration",
            format!("built-in values, realm '{}'", config.realm),
        ),
    }
}

fn write_text(report: &Report, to: &mut dyn Write) -> io::Result<()> {
    for check in &report.checks {
        let mark = match check.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Lack => "lack",
            Verdict::Fail => "FAIL",
        };
        let below = |text: &str| text.replace('\n', &format!("\n{:25}", ""));
        writeln!(to, "{mark}  {:<18} {}", check.name, below(&check.found))?;
        if let Some(advice) = &check.advice {
            writeln!(to, "{:25}-> {}", "", below(advice))?;
        }
    }
    writeln!(to, "\ndomains: {}", report.domains.join(", "))
}

/// Checks the daemon and returns its state. A missing daemon is fine, since clients start one.
fn daemon(config: &Config) -> (Check, Option<Status>) {
    const NAME: &str = "daemon";
    let fail = |error: &dyn std::fmt::Display, advice| Check::fail(NAME, error.to_string(), advice);
    match rgaps_session::connect(config) {
        Ok(Some(_)) => {}
        Ok(None) => return (no_daemon(config), None),
        Err(error) => return (fail(&error, "see the check 'socket folder'"), None),
    }
    let config = Config {
        autostart: false,
        ..config.clone()
    };
    let node = Node::builder("rgaps-doctor").config(config).build();
    let status = match node.map(|node| node.status()) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return (fail(&error, "run 'rgaps down', then 'rgaps up'"), None),
        Err(error) => return (fail(&error, "run 'rgaps down', then 'rgaps up'"), None),
    };
    let check = match status.warnings.is_empty() {
        true => {
            let kept = match status.kept.messages {
                0 => String::new(),
                _ => format!("; keeps {}", describe_history(&status.kept)),
            };
            Check::ok(
                NAME,
                format!(
                    "process {}, {}, {}{kept}",
                    status.pid,
                    units::counted(status.clients.into(), "client"),
                    units::counted(status.topics.into(), "topic")
                ),
            )
        }
        false => Check::lack(NAME, "running, with warnings", status.warnings.join("; ")),
    };
    (check, Some(status))
}

/// Warns of other daemons of the realm, which processes could use by mistake.
fn other_daemons(config: &Config, daemons: &[VisibleDaemon]) -> Option<Check> {
    const NAME: &str = "other daemons";
    let others = daemons
        .iter()
        .filter(|daemon| daemon.role != DaemonRole::Used);
    let list: Vec<String> = others.map(|daemon| daemon.to_string()).collect();
    if list.is_empty() {
        return None;
    }
    let found = format!("realm '{}': {}", config.realm, list.join("; "));
    Some(match VisibleDaemon::warning_of(config, daemons) {
        Some(warning) => Check::lack(NAME, found, warning.cures.join(", or ")),
        None => Check::ok(
            NAME,
            format!(
                "{found}; programs of other users, under sudo or with another socket have their own daemon and topics"
            ),
        ),
    })
}

fn no_daemon(config: &Config) -> Check {
    let files = limits::open_files_max();
    match rgaps_session::find_daemon(&[]) {
        Ok(_) if config.autostart && files < DAEMON_FILES_MIN => Check::fail(
            "daemon",
            format!("not running, and it cannot be started here: the limit of open files is {files}"),
            format!("set ulimit -Hn to {DAEMON_FILES_MIN} or more, or run 'rgaps up' where it is higher"),
        ),
        Ok(program) if config.autostart => Check::ok(
            "daemon",
            format!(
                "not running; the first client starts '{}'",
                program.display()
            ),
        ),
        Ok(_) => Check::lack("daemon", "not running, and autostart is off", "rgaps up"),
        Err(error) => Check::fail(
            "daemon",
            error.to_string(),
            "install rgapsd in the folder of rgaps, or set RGAPS_DAEMON to its path",
        ),
    }
}
