//! `bench link --tree`: one publisher's large messages to subscribers on many hosts, over a tree and directly.
//!
//! Each host is a network namespace with a cable of its own to a router. The cable's rate is limited in both directions, so a host
//! that sends the same message twice needs twice as long. The benchmark measures three times: to one host, to all hosts over the
//! tree, and to all hosts directly (a star). It also counts the bytes that each cable carries for a message over the tree.

use super::hosts::{
    bench_config, geometry, name_space, run, sent_bytes, until, Host, Start, CONTROL_PORT,
};
use crate::board::Board;
use crate::contents;
use crate::crew::Crew;
use crate::stage::node;
use crate::summary::round;
use anyhow::Context;
use rgaps::{Config, Node, PeerState, Publisher};
use rgaps_session::{ByteSize, Rdma};
use serde::Serialize;
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Most hosts: each has a daemon and a process of links on this machine.
pub const HOSTS_MAX: usize = 32;
/// Limit of each wait for a message, a loan or the subscribers.
const PATIENCE: Duration = Duration::from_secs(300);
/// A tenth of the interval in which the benchmark looks whether the cables are quiet.
const LOOK: Duration = Duration::from_millis(50);

/// The parameters of `bench link --tree`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names say it
pub struct TreeOptions {
    /// Number of hosts, including the publisher's.
    pub hosts: usize,
    pub size: u64,
    /// Rate of each cable in each direction.
    pub rate_mbit: u64,
    /// Most hosts to which a host sends a message directly.
    pub fanout: u32,
    /// Messages that are timed.
    pub messages: u64,
}

/// A tree beside one hop and a star.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct TreeReport {
    pub hosts: usize,
    pub size: u64,
    /// Median time from the publish call until the subscriber on one other host has the message.
    pub one_hop_ms: f64,
    /// Median time until the last of all subscribers has it, over the tree.
    pub tree_ms: f64,
    /// The same with messages sent to all hosts directly.
    pub star_ms: f64,
    pub tree_of_one_hop: f64,
    /// Bytes that the busiest host sent for each message over the tree.
    pub bytes_per_cable_max: u64,
    pub lost: u64,
    pub duplicate: u64,
    pub corrupt: u64,
}

/// Measures a tree.
pub fn tree(user: &Config, options: &TreeOptions) -> anyhow::Result<TreeReport> {
    anyhow::ensure!(
        (2..=HOSTS_MAX).contains(&options.hosts),
        "--hosts is 2 to {HOSTS_MAX}"
    );
    let mut counts = Counts::default();
    let mut hosts = Routed::start(user, options, options.fanout)?;
    let one_hop = hosts.measure("bench/hop", 2, options, &mut counts)?;
    let over_tree = hosts.measure("bench/tree", options.hosts, options, &mut counts)?;
    drop(hosts);
    let mut hosts = Routed::start(user, options, 0)?;
    let star = hosts.measure("bench/star", options.hosts, options, &mut counts)?;
    Ok(TreeReport {
        hosts: options.hosts,
        size: options.size,
        one_hop_ms: round(one_hop.ms, 1),
        tree_ms: round(over_tree.ms, 1),
        star_ms: round(star.ms, 1),
        tree_of_one_hop: round(over_tree.ms / one_hop.ms, 3),
        bytes_per_cable_max: over_tree.bytes_per_cable_max,
        lost: counts.lost,
        duplicate: counts.duplicate,
        corrupt: counts.corrupt,
    })
}

#[derive(Default)]
struct Counts {
    lost: u64,
    duplicate: u64,
    corrupt: u64,
}

struct Measured {
    ms: f64,
    bytes_per_cable_max: u64,
}

/// Hosts that are joined by a router, with a cable each.
struct Routed {
    hosts: Vec<Host>,
    fanout: u32,
    crew: Crew,
    _board: Board,
    _folder: TempDir,
}

/// The address of an end of a host's cable: end 1 is the router's, 2 the host's.
fn address(at: usize, end: u8) -> IpAddr {
    [10, 213, 100 + at as u8, end].into()
}

/// The configuration of one of the hosts.
fn config(
    user: &Config,
    (folder, at): (&Path, usize),
    options: &TreeOptions,
    fanout: u32,
) -> Config {
    let mut config = bench_config(user, folder.join(format!("{at}.sock")));
    let links = &mut config.links;
    links.host = Some(format!("bench-{at:02}"));
    links.listen = Some((address(at, 2), 0).into());
    let endpoint = |at: usize| format!("tcp/{}:{CONTROL_PORT}", address(at, 2));
    links.control = vec![endpoint(at)];
    links.connect = (0..options.hosts)
        .filter(|other| *other != at)
        .map(endpoint)
        .collect();
    links.insecure = true;
    links.rdma = Rdma::Off;
    links.fanout = fanout;
    let held = ByteSize(2 * options.size.max(128 << 20));
    (links.outage_max, links.landing_max, links.in_flight_max) = (held, held, held);
    config
}

impl Routed {
    fn start(user: &Config, options: &TreeOptions, fanout: u32) -> anyhow::Result<Routed> {
        let folder = tempfile::Builder::new().prefix("rgaps-bench-").tempdir();
        let folder = folder.context("no temporary folder can be made; set TMPDIR")?;
        let board = Board::create(geometry())?;
        let mut start = Start {
            crew: Crew::default(),
            board: &board,
        };
        let router = name_space(&mut start, user).context("network namespaces cannot be made")?;
        inside(
            &router.1,
            "sh",
            &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
        )?;
        let mut hosts = Vec::new();
        for at in 0..options.hosts {
            let own = name_space(&mut start, user)?;
            lay_cable(
                (own.0, &own.1),
                (router.0, &router.1),
                at,
                options.rate_mbit,
            )?;
            let config = config(user, (folder.path(), at), options, fanout);
            hosts.push(start.host(config, address(at, 2), Some(own.1))?);
        }
        let mut routed = Routed {
            hosts,
            fanout,
            crew: start.crew,
            _board: board,
            _folder: folder,
        };
        for at in 0..options.hosts {
            let node = node(&routed.hosts[at].config, "rgaps-bench-peers")?;
            until(&mut routed.crew, "the hosts to be linked", || {
                let peers = node.peers().unwrap_or_default().peers;
                let linked = peers.iter().filter(|peer| peer.state == PeerState::Linked);
                linked.count() + 1 == options.hosts
            })?;
        }
        Ok(routed)
    }

    /// Times messages from the first host to the others among the first `hosts`.
    fn measure(
        &mut self,
        topic: &str,
        hosts: usize,
        options: &TreeOptions,
        counts: &mut Counts,
    ) -> anyhow::Result<Measured> {
        let (events, seen) = channel();
        let readers = (1..hosts).map(|at| {
            let config = self.hosts[at].config.clone();
            Reader::start(config, topic, at, events.clone())
        });
        let readers = readers.collect::<anyhow::Result<Vec<Reader>>>()?;
        let here = node(&self.hosts[0].config, "rgaps-bench-tree")?;
        let publisher = here.publisher(topic).keep_last(1).deadline(PATIENCE);
        let publisher = publisher.loan_timeout(PATIENCE).create()?;
        let mut round = Round {
            publisher,
            readers,
            seen,
            size: options.size,
            counts,
        };
        // The links build a tree only for large messages, so one message comes before it.
        round.send(0)?;
        self.wait_for_tree(&here, topic, hosts)?;
        let before = self.sent();
        let mut times = Vec::new();
        for number in 1..=options.messages {
            times.push(round.send(number)?);
        }
        times.sort_unstable();
        let sent = self.sent().into_iter().zip(before);
        let most = sent.map(|(after, before)| after - before).max();
        Ok(Measured {
            ms: times[times.len() / 2].as_secs_f64() * 1e3,
            bytes_per_cable_max: most.unwrap_or(0) / options.messages.max(1),
        })
    }

    fn sent(&self) -> Vec<u64> {
        let hosts = self.hosts.iter();
        hosts.map(|host| sent_bytes(host.links, true)).collect()
    }

    /// Waits until the topic reaches all hosts, with a fan-out also until no more than `fanout` of them are sent to directly, and
    /// until the cables are quiet: changing the routes may make the links send messages again.
    fn wait_for_tree(&mut self, here: &Node, topic: &str, hosts: usize) -> anyhow::Result<()> {
        let direct = match self.fanout {
            0 => hosts,
            fanout => fanout as usize,
        };
        until(&mut self.crew, "the tree", || {
            let rows = here
                .topic(topic)
                .map_or_else(|_| Vec::new(), |topic| topic.remote);
            let ready = rows.iter().filter(|row| row.ready);
            let near = rows.iter().filter(|row| !row.path.starts_with("through"));
            ready.count() + 1 == hosts && near.count() <= direct
        })?;
        let mut before = self.sent();
        loop {
            std::thread::sleep(10 * LOOK);
            let now = self.sent();
            // Idle links still exchange keep-alives, so quiet means below 64 KiB, not 0.
            let quiet = now
                .iter()
                .zip(&before)
                .all(|(now, before)| now - before < 64 << 10);
            if quiet {
                return Ok(());
            }
            before = now;
        }
    }
}

/// Lays a rate-limited cable between a host and the router.
fn lay_cable(
    (host, netns): (u32, &Path),
    (router, router_netns): (u32, &Path),
    at: usize,
    rate_mbit: u64,
) -> anyhow::Result<()> {
    let (end, port) = (format!("c{at}"), format!("p{at}"));
    let (host, router) = (host.to_string(), router.to_string());
    let add = ["link", "add", &end, "netns", &host, "type", "veth"];
    let peer = ["peer", "name", &port, "netns", &router];
    run("ip", &[&add[..], &peer].concat())?;
    let (near, far) = (address(at, 2).to_string(), address(at, 1).to_string());
    let rate = format!("{rate_mbit}mbit");
    for (netns, device, own) in [(netns, &end, &near), (router_netns, &port, &far)] {
        inside(
            netns,
            "ip",
            &["addr", "add", &format!("{own}/24"), "dev", device],
        )?;
        inside(netns, "ip", &["link", "set", "lo", "up"])?;
        inside(netns, "ip", &["link", "set", device, "up"])?;
        let limit = ["qdisc", "add", "dev", device, "root", "tbf", "rate", &rate];
        let depth = ["burst", "256kb", "latency", "50ms"];
        inside(netns, "tc", &[&limit[..], &depth].concat())?;
    }
    inside(netns, "ip", &["route", "add", "default", "via", &far])
}

fn inside(netns: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let path = format!("--net={}", netns.display());
    run("nsenter", &[&[path.as_str(), program], arguments].concat())
}

/// A report of a reader.
enum Event {
    /// The reader received a message: its number, how many messages were missed before it, and when it arrived.
    Has(u64, u64, Instant),
    /// Whether the message had the right bytes.
    Checked(bool),
}

/// A subscriber on a host, in a thread.
struct Reader {
    check: Sender<()>,
}

impl Reader {
    fn start(
        config: Config,
        topic: &str,
        at: usize,
        events: Sender<anyhow::Result<Event>>,
    ) -> anyhow::Result<Reader> {
        let node = node(&config, "rgaps-bench-reader")?;
        let subscriber = node.subscriber(topic).reliable().create()?;
        let (check, checks) = channel();
        let thread = std::thread::Builder::new().name(format!("reader-{at}"));
        thread.spawn(move || loop {
            let sample = match subscriber.recv_timeout(PATIENCE) {
                Ok(sample) => sample,
                Err(error) => {
                    let _ = events.send(Err(error.into()));
                    return;
                }
            };
            let has = Event::Has(sample.tag(), sample.missed(), Instant::now());
            // Verify the bytes only when all readers have the message.
            if events.send(Ok(has)).is_err() || checks.recv().is_err() {
                return;
            }
            let bytes = sample.as_slice();
            let is_whole = bytes.is_ok_and(|bytes| contents::is(sample.tag(), 0, bytes));
            drop(sample);
            if events.send(Ok(Event::Checked(is_whole))).is_err() {
                return;
            }
        })?;
        Ok(Reader { check })
    }
}

/// Sends the messages of a topic one after the other.
struct Round<'a> {
    publisher: Publisher,
    readers: Vec<Reader>,
    seen: Receiver<anyhow::Result<Event>>,
    size: u64,
    counts: &'a mut Counts,
}

impl Round<'_> {
    /// Publishes a message. Returns how long it took until all readers had it.
    fn send(&mut self, number: u64) -> anyhow::Result<Duration> {
        let count = self.readers.len() as u32;
        anyhow::ensure!(
            self.publisher.wait_for_subscribers(count, PATIENCE)?,
            "{}",
            self.publisher.missing_subscribers(count)
        );
        let mut loan = self.publisher.loan(self.size)?;
        contents::make(number, 0, loan.as_mut_slice()?);
        loan.set_tag(number);
        let begun = Instant::now();
        loan.publish().map_err(|unpublished| unpublished.error)?;
        let mut last = begun;
        let mut missing = self.readers.len();
        while missing > 0 {
            let Event::Has(tag, missed, at) = self.seen.recv_timeout(PATIENCE)?? else {
                anyhow::bail!("a reader reported a check before its message");
            };
            self.counts.lost += missed;
            match tag == number {
                true => missing -= 1,
                false => self.counts.duplicate += 1,
            }
            last = last.max(at);
        }
        for reader in &self.readers {
            reader.check.send(()).context("a reader has ended")?;
        }
        for _ in &self.readers {
            match self.seen.recv_timeout(PATIENCE)?? {
                Event::Checked(is_whole) => self.counts.corrupt += u64::from(!is_whole),
                Event::Has(..) => self.counts.duplicate += 1,
            }
        }
        Ok(last - begun)
    }
}
