//! Path vectors, as in BGP: which hosts this host reaches, and through which others.
//!
//! Each host advertises to its neighbours one path to every host that it reaches, with all lives on it. A receiver drops paths that
//! name itself, so no path circles. It does not use paths that name an earlier life of a host than it knows.
//!
//! | event | action |
//! |---|---|
//! | a link gets lanes | the link is a path of one host, which is used at once |
//! | a link loses its lanes | nothing for [`WITHDRAW_AFTER`]; then the link is withdrawn, with all paths that were advertised over it |
//! | a neighbour advertises paths | they replace all that it advertised before |
//! | a neighbour has advertised a path to a life for [`SETTLE_AFTER`] | the path is *settled*: it may be used |
//! | a later life of a host appears | paths through its earlier lives are not used, and links to them without lanes end |
//! | any of these changes | each neighbour gets this host's shortest paths that avoid the neighbour, settled or not |
//!
//! The shortest of the settled paths to a host is used; of equally short ones, the first in the order of hosts.
//!
//! The table trusts its neighbours: a neighbour that advertises false paths can cut this host off from others. Hosts of a realm
//! prove who they are before they become neighbours.

use crate::graph::Graph;
use crate::ids::{HostId, Life, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The most hosts on a path, its end included.
pub const MAX_HOPS: usize = 8;
/// The most paths in one advertisement.
pub const MAX_PATHS: usize = 64;
/// A path is used once it has been known for so long, so that hosts that start together do not begin with detours.
pub const SETTLE_AFTER: Duration = Duration::from_millis(500);
/// A link without lanes is withdrawn after this.
pub const WITHDRAW_AFTER: Duration = Duration::from_millis(500);

/// The hosts from the next hop to the end, both included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(Arc<[Life]>);

/// How an advertisement breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It has more than [`MAX_PATHS`] paths.
    #[error("{0} paths in one advertisement, and {MAX_PATHS} are allowed")]
    TooMany(usize),
    /// A path that is empty, too long, names a host twice, or does not begin at the neighbour.
    #[error("a path of {0} hosts does not begin at its sender, names a host twice, or is longer than {MAX_HOPS}")]
    NoPath(usize),
    /// It has two paths to one host.
    #[error("two paths to host {0:?}")]
    Twice(HostId),
}

impl Path {
    /// A path through these hosts.
    pub fn new(lives: Vec<Life>) -> Result<Path, PathError> {
        let mut before = 0..lives.len().min(MAX_HOPS);
        let is_twice = before.any(|at| lives[..at].iter().any(|life| life.host == lives[at].host));
        if (1..=MAX_HOPS).contains(&lives.len()) && !is_twice {
            Ok(Path(lives.into()))
        } else {
            Err(PathError::NoPath(lives.len()))
        }
    }

    /// All lives, the next hop first.
    pub fn lives(&self) -> &[Life] {
        &self.0
    }

    /// The host that it ends at.
    pub fn end(&self) -> Life {
        self.0[self.0.len() - 1]
    }

    fn names(&self, host: HostId) -> bool {
        self.0.iter().any(|life| life.host == host)
    }

    /// The order of preference, lowest first: by length, then by hosts.
    fn rank(&self) -> (usize, &[Life]) {
        (self.0.len(), &self.0)
    }
}

/// A path that a neighbour advertised.
#[derive(Debug)]
struct Advertised {
    path: Path,
    /// Since when the neighbour has advertised a path to this life, perhaps another one.
    since: Time,
    is_settled: bool,
}

#[derive(Debug)]
struct Neighbour {
    life: Life,
    /// When its link lost the last lane; `None` while it has lanes.
    lanes_lost: Option<Time>,
    /// The paths that it advertises, by the hosts at their ends.
    advertised: BTreeMap<HostId, Advertised>,
    /// The last advertisement that this host sent it.
    sent: Option<Vec<Path>>,
    /// The table's version of which `sent` was made.
    sent_version: u64,
}

/// A host's table of paths to all other hosts.
#[derive(Debug)]
pub struct PathTable {
    own: Life,
    neighbours: BTreeMap<HostId, Neighbour>,
    /// The paths in use, by their ends.
    used: BTreeMap<HostId, Path>,
    /// The latest known incarnation of each host.
    latest: BTreeMap<HostId, u64>,
    version: u64,
}

impl PathTable {
    /// The table of a host without links.
    pub fn new(own: Life) -> PathTable {
        PathTable {
            own,
            neighbours: BTreeMap::new(),
            used: BTreeMap::new(),
            latest: BTreeMap::new(),
            version: 0,
        }
    }

    /// A link to this life has lanes, perhaps again.
    pub fn link_up(&mut self, life: Life) {
        match self.neighbours.get_mut(&life.host) {
            Some(known) if known.life == life => known.lanes_lost = None,
            _ => {
                let neighbour = Neighbour {
                    life,
                    lanes_lost: None,
                    advertised: BTreeMap::new(),
                    sent: None,
                    sent_version: 0,
                };
                self.neighbours.insert(life.host, neighbour);
            }
        }
        self.changed();
    }

    /// The link to a host has lost its last lane.
    pub fn lanes_lost(&mut self, host: HostId, now: Time) {
        if let Some(neighbour) = self.neighbours.get_mut(&host) {
            neighbour.lanes_lost.get_or_insert(now);
        }
    }

    /// The link to a host ended for certain, for example because the other end withdrew it.
    pub fn link_ended(&mut self, host: HostId) {
        if self.neighbours.remove(&host).is_some() {
            self.changed();
        }
    }

    /// Takes a neighbour's advertisement, which has all its paths. One from any other life is checked and ignored.
    pub fn advertised(&mut self, from: Life, paths: Vec<Path>, now: Time) -> Result<(), PathError> {
        check(from, &paths)?;
        let own = self.own.host;
        let Some(neighbour) = self.neighbours.get_mut(&from.host) else {
            return Ok(());
        };
        if neighbour.life != from {
            return Ok(());
        }
        let mut before = std::mem::take(&mut neighbour.advertised);
        for path in paths.into_iter().filter(|path| !path.names(own)) {
            let end = path.end();
            let known = before.remove(&end.host);
            let known = known.filter(|known| known.path.end() == end);
            let (since, is_settled) =
                known.map_or((now, false), |known| (known.since, known.is_settled));
            let advertised = Advertised {
                path,
                since,
                is_settled,
            };
            neighbour.advertised.insert(end.host, advertised);
        }
        self.changed();
        Ok(())
    }

    /// Takes the advertisement for a neighbour, if it differs from the last one.
    pub fn advertisement(&mut self, to: HostId) -> Option<Vec<Path>> {
        let neighbour = self.neighbours.get_mut(&to)?;
        if neighbour.lanes_lost.is_some() || neighbour.sent_version == self.version {
            return None;
        }
        neighbour.sent_version = self.version;
        let ends = self.latest.keys().filter(|end| **end != to);
        let paths = ends.filter_map(|end| {
            let best = self.best(*end, |advertised| !advertised.path.names(to))?;
            let lives = [&[self.own], best.lives()].concat();
            Path::new(lives).ok()
        });
        let mut paths: Vec<Path> = paths.collect();
        paths.sort_by(|a, b| a.rank().cmp(&b.rank()));
        paths.truncate(MAX_PATHS);
        let neighbour = self.neighbours.get_mut(&to)?;
        let is_new = neighbour.sent.as_ref() != Some(&paths);
        neighbour.sent = Some(paths.clone());
        is_new.then_some(paths)
    }

    /// Withdraws links and settles paths that are due.
    pub fn tick(&mut self, now: Time) {
        let mut is_changed = false;
        self.neighbours.retain(|_, neighbour| {
            let stays = neighbour
                .lanes_lost
                .is_none_or(|since| now.saturating_sub(since) < WITHDRAW_AFTER);
            is_changed |= !stays;
            stays
        });
        let advertised = self.neighbours.values_mut();
        for advertised in advertised.flat_map(|neighbour| neighbour.advertised.values_mut()) {
            let is_due = now.saturating_sub(advertised.since) >= SETTLE_AFTER;
            is_changed |= is_due && !advertised.is_settled;
            advertised.is_settled |= is_due;
        }
        if is_changed {
            self.changed();
        }
    }

    /// The neighbours, with or without lanes. When one is missing that was there before, its link has ended, and with it all its flows.
    pub fn neighbours(&self) -> impl Iterator<Item = Life> + '_ {
        self.neighbours.values().map(|neighbour| neighbour.life)
    }

    /// Whether this host has a link to this life.
    pub fn is_neighbour(&self, life: Life) -> bool {
        self.neighbours
            .get(&life.host)
            .is_some_and(|neighbour| neighbour.life == life)
    }

    /// Whether a host is a neighbour, or on a path that a neighbour advertises.
    pub fn knows(&self, host: HostId) -> bool {
        self.latest.contains_key(&host)
    }

    /// The path in use to a host.
    pub fn path(&self, host: HostId) -> Option<&Path> {
        self.used.get(&host)
    }

    /// The paths in use.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.used.values()
    }

    /// A number that rises whenever paths or the graph may have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The graph of this host's links, and of the links on settled paths of its neighbours.
    pub fn graph(&self) -> Graph {
        let mut graph = Graph::new(self.own);
        for neighbour in self.neighbours.values() {
            graph.join(self.own, neighbour.life);
            let advertised = neighbour.advertised.values();
            let advertised = advertised.filter(|advertised| advertised.is_settled);
            for advertised in advertised.filter(|advertised| self.is_live(&advertised.path)) {
                for pair in advertised.path.lives().windows(2) {
                    graph.join(pair[0], pair[1]);
                }
            }
        }
        graph
    }

    /// The best path to a host: its own link, or else the best one among the neighbours' paths that `allowed` accepts.
    fn best(&self, end: HostId, allowed: impl Fn(&Advertised) -> bool) -> Option<Path> {
        if let Some(neighbour) = self.neighbours.get(&end) {
            return Some(Path([neighbour.life].into()));
        }
        let advertised = self.neighbours.values();
        let advertised = advertised.filter_map(|neighbour| neighbour.advertised.get(&end));
        let advertised =
            advertised.filter(|advertised| allowed(advertised) && self.is_live(&advertised.path));
        let best = advertised.min_by(|a, b| a.path.rank().cmp(&b.path.rank()));
        best.map(|advertised| advertised.path.clone())
    }

    /// Whether all lives on a path are the latest known ones. A path that is not live stays in the table: it may become live again, and its
    /// neighbour would not repeat it.
    fn is_live(&self, path: &Path) -> bool {
        let mut lives = path.lives().iter();
        lives.all(|life| self.latest.get(&life.host) == Some(&life.incarnation))
    }

    /// Ends links that a later life has replaced, and chooses the paths to use.
    fn changed(&mut self) {
        self.version += 1;
        self.latest.clear();
        for neighbour in self.neighbours.values() {
            let lives = neighbour.advertised.values();
            let lives = lives.flat_map(|advertised| advertised.path.lives());
            for life in lives.chain([&neighbour.life]) {
                let latest = self.latest.entry(life.host).or_default();
                *latest = life.incarnation.max(*latest);
            }
        }
        // An open lane proves which life is at its other end; that counts more than advertised paths.
        let linked = self.neighbours.values();
        for neighbour in linked.filter(|neighbour| neighbour.lanes_lost.is_none()) {
            let Life { host, incarnation } = neighbour.life;
            self.latest.insert(host, incarnation);
        }
        let latest = &self.latest;
        self.neighbours
            .retain(|host, neighbour| latest[host] == neighbour.life.incarnation);
        let hosts = self.latest.keys();
        let used = hosts.filter_map(|host| {
            let best = self.best(*host, |advertised| advertised.is_settled)?;
            Some((*host, best))
        });
        self.used = used.collect();
    }
}

/// Checks the rules that every advertisement of `from` keeps.
fn check(from: Life, paths: &[Path]) -> Result<(), PathError> {
    if paths.len() > MAX_PATHS {
        return Err(PathError::TooMany(paths.len()));
    }
    let mut ends = BTreeSet::new();
    for path in paths {
        if path.lives().first() != Some(&from) || path.lives().len() < 2 {
            return Err(PathError::NoPath(path.lives().len()));
        }
        if !ends.insert(path.end().host) {
            return Err(PathError::Twice(path.end().host));
        }
    }
    Ok(())
}
