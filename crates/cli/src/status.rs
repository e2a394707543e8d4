//! `status`.

use crate::args::Common;
use crate::output::{table, Output};
use crate::{mps, session, units};
use rgaps::{ClientRow, MpsInfo, MpsState, Status};
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    daemon: Status,
    mps: MpsInfo,
    processes: Vec<ClientRow>,
}

pub fn status(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let node = session::look(common)?;
    let report = Report {
        daemon: node.status()?,
        mps: node.mps()?,
        processes: node.clients()?,
    };
    output.put(&report, |to| {
        let daemon = &report.daemon;
        writeln!(
            to,
            "rgapsd {}, process {}, realm '{}'",
            daemon.version, daemon.pid, daemon.realm
        )?;
        writeln!(to, "socket       {}", daemon.socket)?;
        let stays = daemon.idle_exit_ms.map_or_else(
            || "stays when nobody needs it".to_owned(),
            |ms| format!("leaves {} after the last client", units::span(ms)),
        );
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
            "serves       {} clients, {} topics, {} zones",
            daemon.clients, daemon.topics, daemon.zones
        )?;
        writeln!(
            to,
            "cleaned up   {} dead clients, {} blocks; {} sessions cut off",
            daemon.clients_reaped, daemon.blocks_reclaimed, daemon.sessions_cut_off
        )?;
        if report.mps.state != MpsState::Off {
            writeln!(to, "MPS          {}", mps::describe(&report.mps))?;
        }
        for warning in &daemon.warnings {
            writeln!(to, "warning      {warning}")?;
        }
        writeln!(to)?;
        let rows: Vec<_> = report.processes.iter().map(row).collect();
        table(
            to,
            &["CLIENT", "PID", "USER", "PUBLISHERS", "SUBSCRIBERS"],
            &rows,
        )
    })
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
