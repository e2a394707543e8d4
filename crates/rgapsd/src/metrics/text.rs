//! A snapshot as text, in the format of OpenMetrics, which Prometheus reads. Each figure is explained in
//! docs/reference/metrics.md.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use rgaps_engine::{Snapshot, TopicFigures};
use rgaps_session::{Histogram, LaneEnd, LinkFigures, PeerRow, PeerState, PoolRow, Stage};
use std::fmt;

/// The cap of a bucket's count, so that no sum overflows, whatever counts a peer reports.
const COUNT_MAX: u64 = 1 << 56;

type Labels = Vec<(&'static str, String)>;

/// A metric with one value per row: `T` is the daemon, a topic, a pool, a peer or a link.
struct Family<T> {
    name: &'static str,
    unit: Option<Unit>,
    kind: Kind,
    help: &'static str,
    of: fn(&T) -> u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}
use Kind::{Counter, Gauge};

const fn plain<T>(
    kind: Kind,
    name: &'static str,
    help: &'static str,
    of: fn(&T) -> u64,
) -> Family<T> {
    Family {
        name,
        unit: None,
        kind,
        help,
        of,
    }
}

const fn bytes<T>(
    kind: Kind,
    name: &'static str,
    help: &'static str,
    of: fn(&T) -> u64,
) -> Family<T> {
    Family {
        name,
        unit: Some(Unit::Bytes),
        kind,
        help,
        of,
    }
}

const DAEMON: &[Family<Snapshot>] = &[
    plain(
        Gauge,
        "rgaps_clients",
        "Client processes with a session",
        |s| s.status.clients.into(),
    ),
    plain(Gauge, "rgaps_topics", "Topics of all zones", |s| {
        s.status.topics.into()
    }),
    plain(Gauge, "rgaps_zones", "Zones", |s| s.status.zones.into()),
    plain(
        Gauge,
        "rgaps_topics_left_out",
        "Topics that have no figures here, since there are more than metrics.topics_max",
        |s| s.topics_left_out as u64,
    ),
    bytes(
        Gauge,
        "rgaps_daemon_resident",
        "Memory of the daemon's own",
        |s| s.status.rss_bytes,
    ),
    plain(
        Gauge,
        "rgaps_quarantined_clients",
        "Dead clients of which MPS has not confirmed that their GPU work is over",
        |s| s.quarantined.into(),
    ),
    plain(
        Counter,
        "rgaps_requests",
        "Requests of clients that the daemon answered",
        |s| s.requests,
    ),
    plain(
        Counter,
        "rgaps_clients_reaped",
        "Clients whose death was cleaned up",
        |s| s.status.clients_reaped,
    ),
    plain(
        Counter,
        "rgaps_blocks_reclaimed",
        "Blocks that were freed by that",
        |s| s.status.blocks_reclaimed,
    ),
    plain(
        Counter,
        "rgaps_sessions_cut_off",
        "Sessions that were cut off for breaking the protocol",
        |s| s.status.sessions_cut_off,
    ),
    plain(
        Counter,
        "rgaps_zones_adopted",
        "Zones that were taken over from former daemons",
        |s| s.zones_adopted,
    ),
    plain(
        Counter,
        "rgaps_trace_spans",
        "Spans of messages between hosts that the collector of traces took",
        |s| s.traces.spans,
    ),
    plain(
        Counter,
        "rgaps_trace_dropped_spans",
        "Spans that were dropped, since there were too many or the collector did not take them",
        |s| s.traces.dropped,
    ),
];

const TOPIC: &[Family<TopicFigures>] = &[
    plain(Counter, "rgaps_topic_published_messages", "Messages that publishers here announced", |t| t.row.messages),
    bytes(Counter, "rgaps_topic_published", "Bytes of these messages", |t| t.row.bytes),
    plain(Counter, "rgaps_topic_received_messages", "Messages that subscribers here took, counted by each of them", |t| t.row.received),
    plain(Counter, "rgaps_topic_missed_messages", "Messages that subscribers here missed, since they were evicted first, counted by each of them", |t| t.row.missed),
    plain(Gauge, "rgaps_topic_kept_messages", "Messages in the publishers' histories", |t| t.row.kept),
    plain(Gauge, "rgaps_topic_held_samples", "Samples that subscribers hold", |t| t.row.held),
    plain(Gauge, "rgaps_topic_publishers", "Publishers", |t| t.row.publishers.into()),
    plain(Gauge, "rgaps_topic_orphans", "Publishers that left or died, whose history is kept", |t| t.row.orphans.into()),
    plain(Gauge, "rgaps_topic_subscribers", "Subscribers on this host, also that of the links", |t| t.row.subscribers.into()),
    plain(Gauge, "rgaps_topic_remote_subscribers", "Subscribers on other hosts that are reached", |t| t.row.remote.into()),
];

const POOL: &[Family<(PoolRow, u64)>] = &[
    bytes(
        Gauge,
        "rgaps_pool_capacity",
        "What the pool grows to at most",
        |(p, _)| p.cap_bytes,
    ),
    bytes(
        Gauge,
        "rgaps_pool_allocated",
        "Memory of its segments",
        |(p, _)| p.segment_bytes.saturating_mul(p.segments.into()),
    ),
    bytes(
        Gauge,
        "rgaps_pool_leased",
        "Memory that publishers have leased",
        |(p, _)| p.leased_bytes,
    ),
    plain(Gauge, "rgaps_pool_segments", "Segments", |(p, _)| {
        p.segments.into()
    }),
    plain(
        Counter,
        "rgaps_pool_copied_messages",
        "Messages of other domains that publishers copied there for those who read there",
        |(p, _)| p.copied_messages,
    ),
    bytes(
        Counter,
        "rgaps_pool_copied",
        "Bytes of these messages",
        |(p, _)| p.copied_bytes,
    ),
    plain(
        Gauge,
        "rgaps_pool_blocks",
        "Blocks that the pool's publishers have in use or keep for the next messages",
        |(_, blocks)| *blocks,
    ),
];

const PEER: &[Family<PeerRow>] = &[
    plain(Gauge, "rgaps_link_up", "1 if messages cross, else 0", |p| {
        u64::from(p.state == PeerState::Linked)
    }),
    plain(
        Gauge,
        "rgaps_link_topics_out",
        "Topics that go to the host",
        |p| p.topics_out.into(),
    ),
    plain(
        Gauge,
        "rgaps_link_topics_in",
        "Topics that come from the host",
        |p| p.topics_in.into(),
    ),
];

const LINK: &[Family<LinkFigures>] = &[
    plain(Gauge, "rgaps_link_lanes", "Lanes that are open", |l| {
        l.lanes.into()
    }),
    bytes(
        Gauge,
        "rgaps_link_retained",
        "Bytes of messages that are not acknowledged",
        |l| l.retained_bytes,
    ),
    plain(
        Counter,
        "rgaps_link_sent_messages",
        "Messages that went to the host",
        |l| l.messages_out,
    ),
    bytes(Counter, "rgaps_link_sent", "Bytes of these messages", |l| {
        l.bytes_out
    }),
    plain(
        Counter,
        "rgaps_link_received_messages",
        "Messages that came from the host",
        |l| l.messages_in,
    ),
    bytes(
        Counter,
        "rgaps_link_received",
        "Bytes of these messages",
        |l| l.bytes_in,
    ),
    bytes(
        Counter,
        "rgaps_link_wire_sent",
        "Bytes that lanes wrote, with frames and what was sent again, without TLS",
        |l| l.wire_bytes_out,
    ),
    bytes(
        Counter,
        "rgaps_link_wire_received",
        "Bytes that lanes read",
        |l| l.wire_bytes_in,
    ),
    plain(
        Counter,
        "rgaps_link_skipped_messages",
        "Messages for best-effort subscribers there for which the link had no room",
        |l| l.skipped,
    ),
    plain(
        Counter,
        "rgaps_link_given_up_messages",
        "Messages that were given up since the host was gone for too long, or too many waited",
        |l| l.given_up,
    ),
    plain(
        Counter,
        "rgaps_link_missed_messages",
        "Messages of the host that never came",
        |l| l.missed,
    ),
    plain(
        Counter,
        "rgaps_link_resent_messages",
        "Messages that were on their way when a lane was lost, and were sent again",
        |l| l.resent,
    ),
    plain(
        Counter,
        "rgaps_link_duplicate_messages",
        "Messages that came again, and were thrown away",
        |l| l.duplicates,
    ),
    plain(
        Counter,
        "rgaps_link_connects",
        "How often the link came up",
        |l| l.connects,
    ),
    plain(Counter, "rgaps_link_lanes_ended", "Lanes that ended", |l| {
        l.lanes_ended
    }),
    plain(
        Counter,
        "rgaps_link_violations",
        "How often the host was cut off since what it sent could not be",
        |l| l.violations,
    ),
    plain(
        Counter,
        "rgaps_rdma_lanes_opened",
        "Lanes over RDMA that were opened",
        |l| l.rdma.opened,
    ),
    plain(
        Counter,
        "rgaps_rdma_failures",
        "How often RDMA broke, or could not be had",
        |l| l.rdma.failed,
    ),
    bytes(
        Counter,
        "rgaps_rdma_direct_sent",
        "Bytes that cards wrote from messages here into their place there",
        |l| l.rdma.direct_bytes_out,
    ),
    bytes(
        Counter,
        "rgaps_rdma_direct_received",
        "Bytes that the host's cards wrote into their place here",
        |l| l.rdma.direct_bytes_in,
    ),
    bytes(
        Counter,
        "rgaps_rdma_ring_sent",
        "Bytes that were copied through the host's rings, with frames",
        |l| l.rdma.ring_bytes_out,
    ),
    bytes(
        Counter,
        "rgaps_rdma_ring_received",
        "Bytes that were copied through rings here, with frames",
        |l| l.rdma.ring_bytes_in,
    ),
    plain(Counter, "rgaps_rdma_works", "Works that were posted", |l| {
        l.rdma.works
    }),
    plain(
        Counter,
        "rgaps_rdma_doorbells",
        "Doorbells that were rung for them",
        |l| l.rdma.doorbells,
    ),
];

/// Writes a snapshot as text.
pub fn text(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Of(snapshot)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Of(Snapshot);

impl Collector for Of {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let Of(snapshot) = self;
        build(&mut to, snapshot)?;
        put(&mut to, DAEMON, &[(Labels::new(), snapshot)])?;
        let topics = snapshot.topics.iter();
        let topics: Vec<_> = topics.map(|t| (topic_labels(t), t)).collect();
        put(&mut to, TOPIC, &topics)?;
        readers(&mut to, &snapshot.topics)?;
        let pools = snapshot.pools.iter();
        let pools: Vec<_> = pools.map(|p| (pool_labels(&p.0), p)).collect();
        put(&mut to, POOL, &pools)?;
        let peers = snapshot.peers.iter();
        let peers: Vec<_> = peers.map(|p| (host(&p.host), p)).collect();
        put(&mut to, PEER, &peers)?;
        let links = snapshot.links.iter();
        let links: Vec<_> = links.map(|l| (host(&l.host), l)).collect();
        put(&mut to, LINK, &links)?;
        lanes(&mut to, &snapshot.links)?;
        stages(&mut to, &snapshot.links)
    }
}

fn build(to: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let status = &snapshot.status;
    let labels = [
        ("version", plain_text(&status.version)),
        ("realm", plain_text(&status.realm)),
    ];
    let help = "The daemon";
    to.encode_descriptor("rgaps_build", help, None, MetricType::Info)?
        .encode_info(&labels)?;
    let help = "How long the daemon has been there";
    let unit = Unit::Seconds;
    to.encode_descriptor("rgaps_uptime", help, Some(&unit), MetricType::Gauge)?
        .encode_gauge(&(status.uptime_ms as f64 / 1e3))
}

fn put<T>(
    to: &mut DescriptorEncoder<'_>,
    families: &[Family<T>],
    rows: &[(Labels, &T)],
) -> fmt::Result {
    for family in families {
        let kind = match family.kind {
            Counter => MetricType::Counter,
            Gauge => MetricType::Gauge,
        };
        let unit = family.unit.as_ref();
        // The encoder appends the unit to the name.
        let mut metric = to.encode_descriptor(family.name, family.help, unit, kind)?;
        for (labels, row) in rows {
            let value = (family.of)(row);
            match labels.is_empty() {
                true => one(&mut metric, family.kind, value)?,
                false => one(&mut metric.encode_family(labels)?, family.kind, value)?,
            }
        }
    }
    Ok(())
}

fn one(metric: &mut MetricEncoder<'_>, kind: Kind, value: u64) -> fmt::Result {
    match kind {
        Counter => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
        // Gauges of `prometheus_client` are signed.
        Gauge => metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX)),
    }
}

fn readers(to: &mut DescriptorEncoder<'_>, topics: &[TopicFigures]) -> fmt::Result {
    let name = "rgaps_topic_readers";
    let help = "Subscribers by the domain in which they read; where that is not the topic's, each message \
                is copied there once";
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for topic in topics {
        for (domain, count) in &topic.readers {
            let mut labels = topic_labels(topic);
            labels.push(("domain", domain.clone()));
            metric.encode_family(&labels)?.encode_gauge(count)?;
        }
    }
    Ok(())
}

/// Writes a counter of each link with one more label, for example the reason why lanes ended. `of` returns a link's counts, each with
/// its value of that label.
fn by(
    to: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    label: &'static str,
    links: &[LinkFigures],
    of: impl Fn(&LinkFigures) -> Vec<(&'static str, u64)>,
) -> fmt::Result {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for link in links {
        for (kind, count) in of(link) {
            let mut labels = host(&link.host);
            labels.push((label, kind.to_owned()));
            metric
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
        }
    }
    Ok(())
}

fn lanes(to: &mut DescriptorEncoder<'_>, links: &[LinkFigures]) -> fmt::Result {
    let ends = ("rgaps_link_lane_ends", "Lanes that ended, by why");
    by(to, ends, "reason", links, |link| {
        let ends = LaneEnd::ALL.iter().zip(&link.ends);
        ends.map(|(end, count)| (end.name(), *count)).collect()
    })?;
    let stalls = (
        "rgaps_rdma_stalls",
        "How often a frame waited for a credit of its lane",
    );
    by(to, stalls, "credit", links, |link| {
        vec![
            ("ring", link.rdma.stalls_ring),
            ("receives", link.rdma.stalls_receives),
            ("sends", link.rdma.stalls_sends),
        ]
    })
}

fn stages(to: &mut DescriptorEncoder<'_>, links: &[LinkFigures]) -> fmt::Result {
    let name = "rgaps_link_stage";
    let help = "How long stages of messages' way took";
    let unit = Unit::Seconds;
    let mut metric = to.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for link in links {
        for (stage, times) in Stage::ALL.iter().zip(&link.stages) {
            let mut labels = host(&link.host);
            labels.push(("stage", stage.name().to_owned()));
            let buckets = times.counts.iter().enumerate().map(|(at, count)| {
                let bound = Histogram::bound_ns(at);
                let bound = bound.map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
                (bound, (*count).min(COUNT_MAX))
            });
            let buckets: Vec<(f64, u64)> = buckets.collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let sum = times.sum_ns as f64 / 1e9;
            metric
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
    }
    Ok(())
}

fn topic_labels(topic: &TopicFigures) -> Labels {
    vec![
        ("topic", plain_text(&topic.row.name)),
        ("access", plain_text(&topic.access)),
    ]
}

fn pool_labels(pool: &PoolRow) -> Labels {
    vec![
        ("domain", pool.domain.to_string()),
        ("access", plain_text(&pool.access)),
    ]
}

fn host(name: &str) -> Labels {
    vec![("host", plain_text(name))]
}

/// Replaces characters that would end a label's value.
fn plain_text(text: &str) -> String {
    let ends = |c: char| c == '"' || c == '\\' || c.is_control();
    text.replace(ends, "_")
}
