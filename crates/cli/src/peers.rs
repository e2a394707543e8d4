//! `peers`: the other hosts of the realm, and the links to them.

use crate::args::Common;
use crate::output::{table, Output};
use crate::{links, session, units};
use rgaps::{
    Config, LaneEnd, LinkFigures, LinksInfo, LinksState, NotReached, PathKind, PeerRow, PeerState,
    PeerTopic, PeersInfo, RdmaFigures, Stage, TraceFigures,
};
use rgaps_session::Links;
use rgaps_view::overview::{times, Times};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Heads of the table of other hosts.
const PEER_HEADS: [&str; 8] = [
    "HOST",
    "STATE",
    "LANES",
    "TOPICS OUT",
    "IN",
    "SENT",
    "RECEIVED",
    "HOW",
];
/// Heads of the table of the bytes and times of links.
const WIRE_HEADS: [&str; 5] = [
    "HOST",
    "WIRE OUT",
    "WIRE IN",
    "WIRE p50/p99",
    "TOTAL p50/p99",
];
/// Heads of the table of losses and errors of links.
const TROUBLE_HEADS: [&str; 8] = [
    "HOST",
    "CONNECTS",
    "SKIPPED",
    "GIVEN UP",
    "MISSED",
    "RESENT",
    "DUPLICATES",
    "VIOLATIONS",
];

#[derive(Serialize)]
struct Peer<'a> {
    host: &'a str,
    incarnation: String,
    protocol: u32,
    state: PeerState,
    detail: &'a str,
    lanes: u32,
    path: PathKind,
    over: &'a str,
    why_not: &'a str,
    topics_out: u32,
    topics_in: u32,
    messages_out: u64,
    messages_in: u64,
    bytes_out: u64,
    bytes_in: u64,
    topics: &'a [PeerTopic],
    /// None: the links have reported no figures of this host yet.
    link: Option<Link>,
}

/// Counters and times of a link since the start of the links' process.
#[derive(Serialize)]
struct Link {
    wire_bytes_out: u64,
    wire_bytes_in: u64,
    retained_bytes: u64,
    skipped: u64,
    given_up: u64,
    missed: u64,
    resent: u64,
    duplicates: u64,
    connects: u64,
    lanes_ended: u64,
    violations: u64,
    /// How many lanes ended, by reason.
    ends: BTreeMap<&'static str, u64>,
    rdma: RdmaFigures,
    stages: BTreeMap<&'static str, Option<Times>>,
}

impl From<&LinkFigures> for Link {
    fn from(figures: &LinkFigures) -> Self {
        let stages = Stage::ALL.iter().zip(&figures.stages);
        let ends = LaneEnd::ALL.iter().zip(&figures.ends);
        Link {
            wire_bytes_out: figures.wire_bytes_out,
            wire_bytes_in: figures.wire_bytes_in,
            retained_bytes: figures.retained_bytes,
            skipped: figures.skipped,
            given_up: figures.given_up,
            missed: figures.missed,
            resent: figures.resent,
            duplicates: figures.duplicates,
            connects: figures.connects,
            lanes_ended: figures.lanes_ended,
            violations: figures.violations,
            ends: ends.map(|(end, count)| (end.name(), *count)).collect(),
            rdma: figures.rdma,
            stages: stages
                .map(|(stage, all)| (stage.name(), times(all)))
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    host: &'a str,
    links: LinksInfo,
    peers: Vec<Peer<'a>>,
    not_reached: &'a [NotReached],
    /// None: no network card has registered a pool, or the pools' segments are no dma-bufs.
    dma_bufs: Option<DmaBufs<'a>>,
    /// None: no messages are traced.
    traces: Option<Traces<'a>>,
}

/// How network cards know the host's pools.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum DmaBufs<'a> {
    Registered,
    /// By their addresses, with the reason why not as dma-bufs.
    ByAddress(&'a str),
}

impl<'a> From<&'a Result<(), String>> for DmaBufs<'a> {
    fn from(known: &'a Result<(), String>) -> Self {
        match known {
            Ok(()) => DmaBufs::Registered,
            Err(why) => DmaBufs::ByAddress(why),
        }
    }
}

/// Traces of single messages that went to a collector since the start of the links' process.
#[derive(Serialize)]
struct Traces<'a> {
    endpoint: &'a str,
    spans: u64,
    dropped: u64,
    error: &'a str,
}

impl<'a> Traces<'a> {
    fn of(figures: &'a TraceFigures) -> Option<Self> {
        let TraceFigures {
            endpoint,
            spans,
            dropped,
            error,
        } = figures;
        (!endpoint.is_empty()).then_some(Traces {
            endpoint,
            spans: *spans,
            dropped: *dropped,
            error,
        })
    }
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
            path: row.path,
            over: &row.over,
            why_not: &row.why_not,
            topics_out: row.topics_out,
            topics_in: row.topics_in,
            messages_out: row.messages_out,
            messages_in: row.messages_in,
            bytes_out: row.bytes_out,
            bytes_in: row.bytes_in,
            topics: &row.topics,
            link: None,
        }
    }
}

pub fn peers(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let config = session::config(common)?;
    let node = session::look_by(config.clone())?;
    let info: PeersInfo = node.peers()?;
    let links = node.status()?.links;
    let failure = links::failure(&config, &links);
    let figures = node.link_figures()?;
    let mut report = Report {
        host: &info.host,
        links,
        peers: info.peers.iter().map(Peer::from).collect(),
        not_reached: &info.not_reached,
        dma_bufs: info.dma_bufs.as_ref().map(DmaBufs::from),
        traces: Traces::of(&info.traces),
    };
    for peer in &mut report.peers {
        let known = figures.iter().find(|link| link.host == peer.host);
        peer.link = known.map(Link::from);
    }
    output.put(&report, |to| match report.host {
        "" => write_no_links(report.links.state, &config, to),
        _ => write_text(&report, &config.links, to),
    })?;
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

fn write_no_links(state: LinksState, config: &Config, to: &mut dyn Write) -> io::Result<()> {
    match state {
        LinksState::Off if !config.links.enabled => writeln!(
            to,
            "this host has no links to other hosts. To enable them, set links.enabled = true in rgaps.toml, then run 'rgaps \
             down' and 'rgaps up'"
        ),
        LinksState::Off | LinksState::Failed => writeln!(to, "this host has no links to other hosts"),
        LinksState::Starting | LinksState::Running => writeln!(
            to,
            "the links to other hosts are starting; run this command again in a moment"
        ),
    }
}

fn write_text(report: &Report<'_>, links: &Links, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "this host is '{}'\n", report.host)?;
    let expects_rdma = links.trusted_fabric || has_rdma_card();
    let peers = report.peers.iter().map(|peer| cells(peer, expects_rdma));
    let peers: Vec<_> = peers.collect();
    match (peers.is_empty(), report.not_reached, &links.connect[..]) {
        (true, [], [_, ..]) => {
            // These endpoints are from this command's configuration; the daemon may have read an older one.
            for endpoint in &links.connect {
                writeln!(to, "no host yet at {endpoint}, which rgaps.toml names")?;
            }
        }
        _ => table(to, &PEER_HEADS, &peers)?,
    }
    let apart: Vec<_> = report.peers.iter().filter_map(why_apart).collect();
    if !apart.is_empty() {
        writeln!(to)?;
        table(to, &["HOST", "WHY IT IS NOT LINKED"], &apart)?;
    }
    let links: Vec<(&str, &Link)> = report
        .peers
        .iter()
        .filter_map(|peer| Some((peer.host, peer.link.as_ref()?)))
        .collect();
    write_links(&links, to)?;
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
    write_dma_bufs(report.dma_bufs.as_ref(), to)?;
    if let Some(traces) = &report.traces {
        write_traces(traces, to)?;
    }
    if report.not_reached.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = report.not_reached.iter().map(why_not_reached).collect();
    writeln!(to)?;
    table(to, &["NOT REACHED", "WHY"], &rows)
}

/// How network cards know the host's pools.
fn write_dma_bufs(dma_bufs: Option<&DmaBufs<'_>>, to: &mut dyn Write) -> io::Result<()> {
    match dma_bufs {
        None => Ok(()),
        Some(DmaBufs::Registered) => {
            writeln!(to, "\nnetwork cards know the host's pools as dma-bufs")
        }
        Some(DmaBufs::ByAddress(why)) => writeln!(
            to,
            "\nnetwork cards know the host's pools by their addresses, and not as dma-bufs: {why}"
        ),
    }
}

fn write_traces(traces: &Traces<'_>, to: &mut dyn Write) -> io::Result<()> {
    write!(
        to,
        "\ntraces: {} to {}, {} dropped",
        units::counted(traces.spans, "span"),
        traces.endpoint,
        traces.dropped
    )?;
    match traces.error {
        "" => writeln!(to),
        error => writeln!(to, ": {error}"),
    }
}

fn has_rdma_card() -> bool {
    let cards = std::fs::read_dir("/sys/class/infiniband");
    cards.is_ok_and(|mut cards| cards.next().is_some())
}

/// The row of an endpoint that the links do not reach, with the reason. Adds advice to errors of the operating system.
fn why_not_reached(of: &NotReached) -> Vec<String> {
    let NotReached { endpoint, reason } = of;
    let port = endpoint
        .rsplit_once(':')
        .filter(|_| reason.contains("(os error"));
    let remedy = port.map_or_else(String::new, |(_, port)| {
        format!("; check the address, the firewall (port {port}) and that rgaps runs there with links enabled")
    });
    vec![endpoint.clone(), format!("{reason}{remedy}")]
}

/// The row of a host without a link. None: the host has a link, or the reason is unknown.
fn why_apart(peer: &Peer<'_>) -> Option<Vec<String>> {
    let is_told = peer.state.is_apart() && !peer.detail.is_empty();
    is_told.then(|| vec![peer.host.to_owned(), peer.detail.to_owned()])
}

/// Prints the traffic of each link, then its losses and errors.
fn write_links(links: &[(&str, &Link)], to: &mut dyn Write) -> io::Result<()> {
    if links.is_empty() {
        return Ok(());
    }
    let wires: Vec<_> = links.iter().map(wire_cells).collect();
    writeln!(to)?;
    table(to, &WIRE_HEADS, &wires)?;
    let troubles: Vec<_> = links.iter().map(trouble_cells).collect();
    writeln!(to)?;
    table(to, &TROUBLE_HEADS, &troubles)
}

/// The cells of a link's bytes and times.
fn wire_cells((host, link): &(&str, &Link)) -> Vec<String> {
    let stage = |name: &str| {
        let times = link.stages.get(name).copied().flatten();
        units::times(times)
    };
    vec![
        (*host).to_owned(),
        units::bytes(link.wire_bytes_out),
        units::bytes(link.wire_bytes_in),
        stage("wire"),
        stage("total"),
    ]
}

/// The cells of a link's losses and errors.
fn trouble_cells((host, link): &(&str, &Link)) -> Vec<String> {
    let counts = [
        link.connects,
        link.skipped,
        link.given_up,
        link.missed,
        link.resent,
        link.duplicates,
        link.violations,
    ];
    let mut cells = vec![(*host).to_owned()];
    cells.extend(counts.map(|count| count.to_string()));
    cells
}

/// The row of a topic's lost messages.
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

fn cells(peer: &Peer<'_>, expects_rdma: bool) -> Vec<String> {
    let state = match peer.state {
        PeerState::Joining => "joining",
        PeerState::Linked => "linked",
        PeerState::Lost => "lost",
        PeerState::Refused => "refused",
        PeerState::Through => "through",
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
        how(peer, expects_rdma),
    ]
}

/// The transport that carries messages to a host; where RDMA could be expected, also why it is not used.
fn how(peer: &Peer<'_>, expects_rdma: bool) -> String {
    if peer.state.is_apart() {
        return "-".to_owned();
    }
    if !peer.detail.is_empty() {
        return peer.detail.to_owned();
    }
    match (peer.over, peer.why_not) {
        ("", why_not) => why_not.to_owned(),
        (over, "") => over.to_owned(),
        (over, _) if !expects_rdma => over.to_owned(),
        (over, why_not) => format!("{over} (no RDMA: {why_not})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_has_carried_much_fits_a_line() {
        let many = 123_456_789_012;
        let figures = LinkFigures {
            wire_bytes_out: many,
            wire_bytes_in: many,
            skipped: many,
            given_up: many,
            missed: many,
            resent: many,
            duplicates: many,
            connects: many,
            violations: many,
            ..LinkFigures::default()
        };
        let link = Link::from(&figures);
        let mut out = Vec::new();
        write_links(&[("camera-rig-7", &link)], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.lines().all(|line| line.chars().count() <= 120),
            "{text}"
        );
        assert_eq!(text.matches("camera-rig-7").count(), 2, "{text}");
        assert_eq!(text.matches(&many.to_string()).count(), 7, "{text}");
    }

    #[test]
    fn a_healthy_link_says_over_what_and_why_not_over_rdma_where_that_is_expected() {
        let link = |over: &str, why_not: &str, detail: &str| {
            let row = PeerRow {
                state: PeerState::Linked,
                over: over.to_owned(),
                why_not: why_not.to_owned(),
                detail: detail.to_owned(),
                ..PeerRow::default()
            };
            [true, false].map(|expects_rdma| how(&Peer::from(&row), expects_rdma))
        };
        let rdma = "rdma on mlx5_0/1";
        assert_eq!(link(rdma, "", ""), [rdma; 2]);
        let why_not = "tcp (no RDMA: links.rdma is off)";
        assert_eq!(link("tcp", "links.rdma is off", ""), [why_not, "tcp"]);
        let none = "it has no lanes now";
        assert_eq!(link("", none, ""), [none; 2]);
    }

    #[test]
    fn a_host_without_a_link_has_its_reason_below_and_not_under_how() {
        let row = PeerRow {
            host: "robot".to_owned(),
            state: PeerState::Lost,
            detail: "the peer closed the link".to_owned(),
            ..PeerRow::default()
        };
        let peer = Peer::from(&row);
        assert_eq!(how(&peer, true), "-");
        let why = why_apart(&peer).unwrap();
        assert_eq!(why, ["robot", "the peer closed the link"]);
    }

    #[test]
    fn a_host_that_is_not_reached_comes_with_what_to_check() {
        let row = |endpoint: &str, reason: &str| {
            why_not_reached(&NotReached {
                endpoint: endpoint.to_owned(),
                reason: reason.to_owned(),
            })
        };
        let cells = row("tcp/10.77.0.9:7448", "No route to host (os error 113)");
        assert_eq!(cells[0], "tcp/10.77.0.9:7448");
        assert!(
            cells[1].starts_with("No route to host (os error 113); check the address")
                && cells[1].contains("the firewall (port 7448) and that rgaps runs there"),
            "{cells:?}"
        );
        let cells = row("tcp/robot", "it names no port");
        assert_eq!(cells, ["tcp/robot", "it names no port"]);
    }

    #[test]
    fn before_a_host_answers_its_endpoint_is_shown() {
        let report = Report {
            host: "desk",
            links: LinksInfo::default(),
            peers: Vec::new(),
            not_reached: &[],
            dma_bufs: None,
            traces: None,
        };
        let mut links = Links::default();
        links.connect.push("tcp/10.0.0.2:7447".to_owned());
        let mut out = Vec::new();
        write_text(&report, &links, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.ends_with("\nno host yet at tcp/10.0.0.2:7447, which rgaps.toml names\n"),
            "{text}"
        );
    }
}
