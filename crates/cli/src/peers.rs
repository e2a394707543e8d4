//! `peers`.

use crate::args::Common;
use crate::output::{table, Output};
use crate::{session, units};
use rgaps::{PeerRow, PeerState, PeerTopic, PeersInfo};
use serde::Serialize;

#[derive(Serialize)]
struct Peer<'a> {
    host: &'a str,
    incarnation: String,
    protocol: u32,
    state: PeerState,
    detail: &'a str,
    lanes: u32,
    topics_out: u32,
    topics_in: u32,
    messages_out: u64,
    messages_in: u64,
    bytes_out: u64,
    bytes_in: u64,
    topics: &'a [PeerTopic],
}

#[derive(Serialize)]
struct Report<'a> {
    host: &'a str,
    peers: Vec<Peer<'a>>,
    troubles: &'a [String],
}

impl<'a> From<&'a PeerRow> for Peer<'a> {
    fn from(row: &'a PeerRow) -> Self {
        Peer {
            host: &row.host,
            incarnation: format!("{:016x}", row.incarnation),
            protocol: row.protocol,
            state: row.state,
            detail: &row.detail,
            lanes: row.lanes,
            topics_out: row.topics_out,
            topics_in: row.topics_in,
            messages_out: row.messages_out,
            messages_in: row.messages_in,
            bytes_out: row.bytes_out,
            bytes_in: row.bytes_in,
            topics: &row.topics,
        }
    }
}

pub fn peers(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let info: PeersInfo = session::look(common)?.peers()?;
    let report = Report {
        host: &info.host,
        peers: info.peers.iter().map(Peer::from).collect(),
        troubles: &info.troubles,
    };
    output.put(&report, |to| {
        if report.host.is_empty() {
            return writeln!(
                to,
                "this host has no links: set links.enabled = true in the daemon's rgaps.toml (see \
                 docs/configuration.md), and look for warnings in 'rgaps status'"
            );
        }
        writeln!(to, "this host is '{}'\n", report.host)?;
        let cells: Vec<_> = report.peers.iter().map(cells).collect();
        let heads = [
            "HOST",
            "STATE",
            "LANES",
            "TOPICS OUT",
            "IN",
            "SENT",
            "RECEIVED",
            "HOW",
        ];
        table(to, &heads, &cells)?;
        let of_peer = |peer: &Peer<'_>| {
            let host = peer.host.to_owned();
            let lines = peer.topics.iter().map(move |row| lost(&host, row));
            lines.collect::<Vec<_>>()
        };
        let topics: Vec<_> = report.peers.iter().flat_map(of_peer).collect();
        if !topics.is_empty() {
            writeln!(to)?;
            let heads = ["HOST", "TOPIC", "GIVEN UP", "MISSED", "REFUSED", "WHY"];
            table(to, &heads, &topics)?;
        }
        if !report.troubles.is_empty() {
            writeln!(to, "\nnot reached:")?;
        }
        for line in report.troubles {
            writeln!(to, "  {line}")?;
        }
        Ok(())
    })
}

/// What did not come across of a topic.
fn lost(host: &str, row: &PeerTopic) -> Vec<String> {
    vec![
        host.to_owned(),
        row.topic.clone(),
        row.gave_up.to_string(),
        row.missed.to_string(),
        row.refused.to_string(),
        row.why.clone(),
    ]
}

fn cells(peer: &Peer<'_>) -> Vec<String> {
    let state = match peer.state {
        PeerState::Joining => "joining",
        PeerState::Linked => "linked",
        PeerState::Lost => "lost",
        PeerState::Refused => "refused",
    };
    let sum = |messages: u64, bytes: u64| format!("{messages}, {}", units::bytes(bytes));
    vec![
        peer.host.to_owned(),
        state.to_owned(),
        peer.lanes.to_string(),
        peer.topics_out.to_string(),
        peer.topics_in.to_string(),
        sum(peer.messages_out, peer.bytes_out),
        sum(peer.messages_in, peer.bytes_in),
        peer.detail.to_owned(),
    ]
}
