//! Compares two states of a realm: the figures and rates that `rgaps top` and the page show.

use rgaps::{
    ClientError, ClientRow, Histogram, LinkFigures, Node, PeerRow, PeerState, PoolRow, Stage,
    Status, TopicRow,
};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The links report about once a second, so their rates cover this longer time.
const LINKS_SPAN: Duration = Duration::from_secs(4);
/// Most states of links that are kept for their rates.
const MAX_LOOKS: usize = 64;

/// The daemon's answers at one moment.
#[allow(missing_docs)]
#[derive(Debug)]
pub struct Look {
    pub at: Instant,
    pub status: Status,
    pub topics: Vec<TopicRow>,
    pub pools: Vec<PoolRow>,
    pub clients: Vec<ClientRow>,
    pub host: String,
    pub peers: Vec<PeerRow>,
    pub links: Vec<LinkFigures>,
}

impl Look {
    /// Asks the daemon for its state.
    pub fn take(node: &Node) -> Result<Look, ClientError> {
        let peers = node.peers()?;
        Ok(Look {
            status: node.status()?,
            topics: node.topics()?,
            pools: node.pools()?,
            clients: node.clients()?,
            host: peers.host,
            peers: peers.peers,
            links: node.link_figures()?,
            at: Instant::now(),
        })
    }
}

/// The state of a realm, with rates since an earlier look.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, Serialize)]
pub struct RealmReport {
    /// Seconds that the rates of topics cover.
    pub interval_s: f64,
    pub daemon: Daemon,
    pub topics: Vec<Topic>,
    pub links: Vec<Link>,
    pub pools: Vec<Pool>,
    pub clients: Vec<Client>,
}

/// The daemon.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, Serialize)]
pub struct Daemon {
    pub version: String,
    pub realm: String,
    pub host: String,
    pub pid: u32,
    pub uptime_ms: u64,
    pub rss_bytes: u64,
    pub clients: u32,
    pub topics: u32,
    pub warnings: Vec<String>,
}

/// A topic.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, Serialize)]
pub struct Topic {
    pub topic: String,
    pub domain: Option<String>,
    pub publishers: u32,
    pub subscribers: u32,
    pub remote_subscribers: u32,
    pub messages: u64,
    pub bytes: u64,
    pub messages_per_s: f64,
    pub bytes_per_s: f64,
    /// The sum over all subscribers.
    pub received: u64,
    pub missed: u64,
    pub missed_per_s: f64,
    pub kept: u64,
    pub held: u64,
    /// How many publishers wait for reliable subscribers.
    pub waiting: u32,
}

/// Another host and the link to it.
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
pub struct Link {
    pub host: String,
    pub state: PeerState,
    pub lanes: u32,
    pub topics_out: u32,
    pub topics_in: u32,
    pub messages_out: u64,
    pub messages_in: u64,
    pub messages_out_per_s: f64,
    pub messages_in_per_s: f64,
    pub bytes_out_per_s: f64,
    pub bytes_in_per_s: f64,
    pub wire_bytes_out: u64,
    pub wire_bytes_in: u64,
    pub retained_bytes: u64,
    pub missed: u64,
    pub skipped: u64,
    pub given_up: u64,
    pub resent: u64,
    pub duplicates: u64,
    pub connects: u64,
    pub violations: u64,
    /// Times of messages of the last seconds, by stage. None: no message passed the stage.
    pub stages: BTreeMap<&'static str, Option<Times>>,
}

/// How long messages took.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    pub count: u64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// A pool.
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
pub struct Pool {
    pub domain: String,
    pub access: String,
    pub cap_bytes: u64,
    pub allocated_bytes: u64,
    pub leased_bytes: u64,
}

/// A process that uses the realm.
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
pub struct Client {
    pub name: String,
    pub pid: u32,
    pub publishers: u32,
    pub subscribers: u32,
}

/// The last look, and the figures of links in earlier ones.
#[derive(Debug, Default)]
pub struct Window {
    last: Option<Look>,
    links: VecDeque<(Instant, Vec<LinkFigures>)>,
}

impl Window {
    /// Adds a look, and compares it with the last one. None: it is the first look.
    pub fn add(&mut self, look: Look) -> Option<RealmReport> {
        let report = self.last.as_ref().map(|last| {
            let since = self.links.front();
            report(last, &look, since.map(|(at, links)| (*at, &links[..])))
        });
        self.links.push_back((look.at, look.links.clone()));
        // Keeps one entry that is at least `LINKS_SPAN` old, and drops older ones.
        while self.links.len() > MAX_LOOKS
            || self
                .links
                .get(1)
                .is_some_and(|(at, _)| look.at - *at >= LINKS_SPAN)
        {
            self.links.pop_front();
        }
        self.last = Some(look);
        report
    }
}

/// The growth of a counter per second. A counter that is less than before has restarted from 0.
fn rate(now: u64, before: Option<u64>, span: Duration) -> f64 {
    let before = before.filter(|before| *before <= now).unwrap_or(0);
    (now - before) as f64 / span.as_secs_f64().max(1e-3)
}

fn report(before: &Look, now: &Look, links: Option<(Instant, &[LinkFigures])>) -> RealmReport {
    let span = now.at - before.at;
    let known: BTreeMap<&str, &TopicRow> = before
        .topics
        .iter()
        .map(|row| (row.name.as_str(), row))
        .collect();
    let topics = now.topics.iter().map(|row| {
        let known = known.get(row.name.as_str());
        Topic {
            topic: row.name.clone(),
            domain: row.domain.map(|domain| domain.to_string()),
            publishers: row.publishers,
            subscribers: row.subscribers,
            remote_subscribers: row.remote,
            messages: row.messages,
            bytes: row.bytes,
            messages_per_s: rate(row.messages, known.map(|row| row.messages), span),
            bytes_per_s: rate(row.bytes, known.map(|row| row.bytes), span),
            received: row.received,
            missed: row.missed,
            missed_per_s: rate(row.missed, known.map(|row| row.missed), span),
            kept: row.kept,
            held: row.held,
            waiting: row.waiting,
        }
    });
    let peers = now.peers.iter().map(|peer| {
        let of = |links: &[LinkFigures]| links.iter().find(|l| l.host == peer.host).cloned();
        let figures = of(&now.links).unwrap_or_default();
        let (since, earlier) = match links {
            Some((since, links)) => (since, of(links)),
            None => (before.at, None),
        };
        link(peer, &figures, earlier.as_ref(), now.at - since)
    });
    let status = &now.status;
    RealmReport {
        interval_s: span.as_secs_f64(),
        daemon: Daemon {
            version: status.version.clone(),
            realm: status.realm.clone(),
            host: now.host.clone(),
            pid: status.pid,
            uptime_ms: status.uptime_ms,
            rss_bytes: status.rss_bytes,
            clients: status.clients,
            topics: status.topics,
            warnings: status.warnings.clone(),
        },
        topics: topics.collect(),
        links: peers.collect(),
        pools: now.pools.iter().map(pool).collect(),
        clients: now.clients.iter().map(client).collect(),
    }
}

fn link(peer: &PeerRow, now: &LinkFigures, earlier: Option<&LinkFigures>, span: Duration) -> Link {
    // Links that were restarted count from 0.
    let earlier = earlier.filter(|earlier| earlier.connects <= now.connects);
    let per_s = |of: fn(&LinkFigures) -> u64| rate(of(now), earlier.map(of), span);
    let stages = Stage::ALL.iter().enumerate().map(|(at, stage)| {
        let times = match earlier {
            Some(earlier) => now.stages[at].since(&earlier.stages[at]),
            None => now.stages[at],
        };
        (stage.name(), self::times(&times))
    });
    Link {
        host: peer.host.clone(),
        state: peer.state,
        lanes: peer.lanes,
        topics_out: peer.topics_out,
        topics_in: peer.topics_in,
        messages_out: now.messages_out,
        messages_in: now.messages_in,
        messages_out_per_s: per_s(|l| l.messages_out),
        messages_in_per_s: per_s(|l| l.messages_in),
        bytes_out_per_s: per_s(|l| l.bytes_out),
        bytes_in_per_s: per_s(|l| l.bytes_in),
        wire_bytes_out: now.wire_bytes_out,
        wire_bytes_in: now.wire_bytes_in,
        retained_bytes: now.retained_bytes,
        missed: now.missed,
        skipped: now.skipped,
        given_up: now.given_up,
        resent: now.resent,
        duplicates: now.duplicates,
        connects: now.connects,
        violations: now.violations,
        stages: stages.collect(),
    }
}

/// The count, median and 99th percentile of a histogram. None: it is empty.
pub fn times(histogram: &Histogram) -> Option<Times> {
    let us = |share| histogram.quantile_ns(share).map(|ns| ns as f64 / 1e3);
    Some(Times {
        count: histogram.count(),
        p50_us: us(0.5)?,
        p99_us: us(0.99)?,
    })
}

fn pool(row: &PoolRow) -> Pool {
    Pool {
        domain: row.domain.to_string(),
        access: row.access.clone(),
        cap_bytes: row.cap_bytes,
        allocated_bytes: row.segment_bytes.saturating_mul(row.segments.into()),
        leased_bytes: row.leased_bytes,
    }
}

fn client(row: &ClientRow) -> Client {
    Client {
        name: row.name.clone(),
        pid: row.pid,
        publishers: row.publishers,
        subscribers: row.subscribers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_was_counted_since() {
        let second = Duration::from_secs(2);
        assert_eq!(rate(30, Some(10), second), 10.0);
        assert_eq!(rate(30, None, second), 15.0);
        // The counter restarted.
        assert_eq!(rate(4, Some(10), second), 2.0);
        assert!(rate(4, None, Duration::ZERO).is_finite());
    }

    #[test]
    fn times_of_a_link_are_those_of_the_last_seconds() {
        let mut earlier = LinkFigures::default();
        earlier.stages[2].counts[20] = 100;
        let mut now = earlier.clone();
        (now.messages_out, now.stages[2].counts[5]) = (10, 10);
        let row = link(
            &PeerRow::default(),
            &now,
            Some(&earlier),
            Duration::from_secs(2),
        );
        assert_eq!(row.messages_out_per_s, 5.0);
        let wire = row.stages["wire"].unwrap();
        assert_eq!(wire.count, 10);
        assert!(wire.p99_us <= 32.0, "{wire:?}");
        assert_eq!(row.stages["total"], None);
        // The links were restarted, so all their counts are new.
        earlier.connects = 3;
        let row = link(
            &PeerRow::default(),
            &now,
            Some(&earlier),
            Duration::from_secs(2),
        );
        assert_eq!(row.stages["wire"].unwrap().count, 110);
    }
}
