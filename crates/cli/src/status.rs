//! `status`: the state of the daemon and its clients.

use crate::args::Common;
use crate::output::{table, Output};
use crate::{links, mps, session, units};
use rgaps::{
    ClientRow, KeptHistory, LinksFailure, LinksInfo, LinksState, MpsInfo, MpsState, Status,
};
use rgaps_session::{visible_daemons, SplitWarning, VisibleDaemon};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    daemon: Status,
    mps: MpsInfo,
    processes: Vec<ClientRow>,
    /// The file of the daemon's standard error. None: it is no file, or the daemon is another user's.
    log: Option<PathBuf>,
    /// All daemons of this realm that this process can see.
    daemons: Vec<VisibleDaemon>,
}

pub fn status(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let config = session::config(common)?;
    let node = session::look_by(config.clone())?;
    let daemon = node.status()?;
    let report = Report {
        log: log_file(daemon.pid),
        daemon,
        mps: node.mps()?,
        processes: node.clients()?,
        daemons: visible_daemons(&config),
    };
    let failure = links::failure(&config, &report.daemon.links);
    let split = VisibleDaemon::warning_of(&config, &report.daemons);
    output.put(&report, |to| {
        write_text(&report, failure.as_ref(), split.as_ref(), to)
    })
}

fn write_text(
    report: &Report,
    failure: Option<&LinksFailure>,
    split: Option<&SplitWarning>,
    to: &mut dyn Write,
) -> io::Result<()> {
    let daemon = &report.daemon;
    writeln!(
        to,
        "rgapsd {}, process {}, realm '{}'",
        daemon.version, daemon.pid, daemon.realm
    )?;
    writeln!(to, "socket       {}", daemon.socket)?;
    if let Some(log) = &report.log {
        writeln!(to, "log          {}", log.display())?;
    }
    let stays = describe_end(daemon);
    writeln!(
        to,
        "up           {}, {stays}",
        units::span(daemon.uptime_ms)
    )?;
    writeln!(
        to,
        "memory       {} of its own",
        units::bytes(daemon.rss_bytes)
    )?;
    writeln!(
        to,
        "serves       {}, {}, {}",
        units::counted(daemon.clients.into(), "client"),
        units::counted(daemon.topics.into(), "topic"),
        units::counted(daemon.zones.into(), "zone")
    )?;
    if daemon.kept.messages > 0 {
        let kept = describe_history(&daemon.kept);
        writeln!(
            to,
            "keeps        {kept}; 'rgaps topic forget TOPIC' drops it"
        )?;
    }
    writeln!(
        to,
        "cleaned up   {}, {}; {} closed for protocol violations",
        units::counted(daemon.clients_reaped, "dead client"),
        units::counted(daemon.blocks_reclaimed, "block"),
        units::counted(daemon.sessions_cut_off, "session")
    )?;
    if report.mps.state != MpsState::Off {
        writeln!(to, "MPS          {}", mps::describe(&report.mps))?;
    }
    write_links(&daemon.links, failure, to)?;
    let warnings = split.map(SplitWarning::to_string).into_iter();
    for warning in warnings.chain(daemon.warnings.iter().cloned()) {
        writeln!(to, "warning      {}", indented(&warning))?;
    }
    writeln!(to)?;
    let columns = ["CLIENT", "PID", "USER", "PUBLISHERS", "SUBSCRIBERS"];
    let rows: Vec<_> = report.processes.iter().map(row).collect();
    table(to, &columns, &rows)
}

fn write_links(
    links: &LinksInfo,
    failure: Option<&LinksFailure>,
    to: &mut dyn Write,
) -> io::Result<()> {
    match failure {
        Some(failure) => {
            let text = format!("not running: {failure}");
            writeln!(to, "links        {}", indented(&text))
        }
        None if links.state == LinksState::Off => Ok(()),
        None => writeln!(to, "links        {}", links::describe(links)),
    }
}

/// Indents all lines but the first, so that they align behind the heads.
fn indented(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    lines.join("\n             ")
}

fn log_file(pid: u32) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/{pid}/fd/2")).ok()?;
    path.is_file().then_some(path)
}

/// Says when the daemon ends by itself.
fn describe_end(daemon: &Status) -> String {
    match daemon.idle_exit_ms {
        None => "stays without clients".to_owned(),
        Some(_) if daemon.kept.messages > 0 => "stays for the history that it keeps".to_owned(),
        Some(ms) => format!("stops {} after its last client", units::span(ms)),
    }
}

/// Describes the history that publishers left for late joiners.
pub fn describe_history(kept: &KeptHistory) -> String {
    let more = match kept.topics as usize > kept.names.len() {
        true => ", ...",
        false => "",
    };
    format!(
        "{} of publishers that have closed or died, in {} ({}{more})",
        units::counted(kept.messages, "message"),
        units::counted(kept.topics.into(), "topic"),
        kept.names.join(", ")
    )
}

fn row(client: &ClientRow) -> Vec<String> {
    vec![
        client.name.clone(),
        client.pid.to_string(),
        client.uid.to_string(),
        client.publishers.to_string(),
        client.subscribers.to_string(),
    ]
}
