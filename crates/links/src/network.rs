//! Routes between hosts and their interest in topics: wraps [`rgaps_routing::Router`], which knows hosts only as numbers and interest as
//! bytes.
//!
//! Withdrawn interest stays for [`WITHDRAWN_FOR`], since subscribers are back a moment after their daemon restarts. The network
//! forgets a host that cannot be reached for `outage_ms`.
//!
//! A host's number is a hash of its name. The network does no I/O: [`Network::poll`] returns the messages to send.

use crate::keys::{number_of, HostLife, TopicInterest, MAX_WANTED};
use crate::wire::{clip, exactly, LinkMessage};
use anyhow::{ensure, Context};
use rgaps_routing::{
    build, ControlMessage, Datagram, FlowName, HostId, Life, Load, Path, Received, Router,
    RouterFrame, StreamHealth, Time, Tree, MAX_TOPICS,
};
use rgaps_session::check_topic_name;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a host's interest stays after it was withdrawn.
const WITHDRAWN_FOR: Duration = Duration::from_secs(1);

/// This host's view of the network.
pub struct Network {
    own: HostId,
    /// The origin of the router's clock.
    start: Instant,
    /// Names of all hosts that the router knows or advertised.
    names: BTreeMap<HostId, String>,
    router: Router,
    wants: BTreeMap<HostId, BTreeMap<String, KnownWant>>,
}

/// What a host wants of a topic. `withdrawn`: since when it does not want the topic; None: it does.
struct KnownWant {
    want: TopicInterest,
    withdrawn: Option<Instant>,
}

pub fn id(host: &str) -> HostId {
    HostId(number_of(host))
}

fn life(node: &HostLife) -> Life {
    Life {
        host: id(&node.host),
        incarnation: node.incarnation,
    }
}

impl Network {
    pub fn new(own: &HostLife) -> Network {
        let life = life(own);
        Network {
            own: life.host,
            start: Instant::now(),
            names: BTreeMap::from([(life.host, own.host.clone())]),
            router: Router::new(life),
            wants: BTreeMap::new(),
        }
    }

    fn now(&self) -> Time {
        self.start.elapsed()
    }

    pub fn link_up(&mut self, node: &HostLife) -> anyhow::Result<()> {
        self.note_name(node)?;
        let now = self.now();
        self.router.link_up(life(node), now);
        Ok(())
    }

    pub fn lanes_lost(&mut self, host: &str) {
        let now = self.now();
        self.router.lanes_lost(id(host), now);
    }

    /// Call when a host restarted its end of the link: it does not know what it was sent.
    pub fn link_restarted(&mut self, host: &str) {
        self.router.link_restarted(id(host));
    }

    pub fn link_ended(&mut self, host: &str) {
        self.router.link_ended(id(host));
    }

    /// Takes over the paths that a neighbour advertises, which are all that it has.
    pub fn advertised(&mut self, from: &str, paths: &[Vec<HostLife>]) -> anyhow::Result<()> {
        let used: BTreeSet<HostId> = self.router.advertised_hosts().collect();
        let (own, known) = (self.own, self.router.paths());
        self.names
            .retain(|host, _| *host == own || known.knows(*host) || used.contains(host));
        paths
            .iter()
            .flatten()
            .try_for_each(|node| self.note_name(node))?;
        let paths = paths
            .iter()
            .map(|path| Path::new(path.iter().map(life).collect()));
        let paths = paths.collect::<Result<Vec<Path>, _>>()?;
        let now = self.now();
        Ok(self.router.advertised(id(from), paths, now)?)
    }

    fn note_name(&mut self, node: &HostLife) -> anyhow::Result<()> {
        let known = self
            .names
            .entry(id(&node.host))
            .or_insert_with(|| node.host.clone());
        ensure!(
            *known == node.host,
            "hosts '{known}' and '{}' have the same number; rename one of them (links.host)",
            node.host
        );
        Ok(())
    }

    /// Handles a datagram of a control channel, or returns the neighbour to forward it to. `relays`: this host forwards.
    pub fn receive(&mut self, datagram: Datagram, relays: bool) -> anyhow::Result<Received> {
        let now = self.now();
        let received = self.router.receive(datagram, relays, now);
        if let Some(host) = received.interest {
            self.note_wants(host)?;
        }
        Ok(received)
    }

    pub fn name(&self, host: HostId) -> Option<&String> {
        self.names.get(&host)
    }

    /// Takes over what a host wants. Withdrawn interest stays for [`WITHDRAWN_FOR`].
    fn note_wants(&mut self, host: HostId) -> anyhow::Result<()> {
        let wants = self.router.wants(host).map(|host| &host.wants);
        let known = self.wants.entry(host).or_default();
        for (topic, known) in known.iter_mut() {
            if wants.is_none_or(|wants| !wants.contains_key(&topic[..])) {
                known.withdrawn.get_or_insert_with(Instant::now);
            }
        }
        for (topic, want) in wants.into_iter().flatten() {
            check_topic_name(topic)?;
            let (want, withdrawn) = (decode_want(want)?, None);
            if known.len() < 2 * MAX_TOPICS || known.contains_key(&topic[..]) {
                known.insert(topic.to_string(), KnownWant { want, withdrawn });
            }
        }
        Ok(())
    }

    /// Confirms to a flow's origin that all its messages below `next` were delivered here or never come.
    pub fn confirm(&mut self, origin: &str, flow: FlowName, next: u64) {
        let confirm = ControlMessage::Confirm { flow, next };
        self.router.say(id(origin), confirm);
    }

    /// Whether the control channel to a host has room: few messages wait in it.
    pub fn has_room(&self, host: &str) -> bool {
        self.router.has_room(id(host))
    }

    /// Tells a flow's origin why its messages do not get to a host.
    pub fn refuse(&mut self, origin: &str, flow: FlowName, (host, why): (&str, &str)) {
        let refused = ControlMessage::Refused {
            flow,
            host: id(host),
            reason: clip(why).into(),
        };
        self.router.say(id(origin), refused);
    }

    /// Hosts that may have lost what this host told them before. Each is returned once.
    pub fn take_renewed(&mut self) -> BTreeSet<HostId> {
        self.router.take_renewed()
    }

    /// The life of a host that is reached now. None: there is no path to it.
    pub fn incarnation(&self, host: &str) -> Option<u64> {
        Some(self.router.paths().path(id(host))?.end().incarnation)
    }

    /// The messages to send to neighbours now. `relays`: this host forwards, and advertises that.
    pub fn poll(&mut self, relays: bool) -> Vec<(String, LinkMessage)> {
        let now = self.now();
        self.router.tick(now);
        let all = self.router.poll(relays, now).into_iter();
        let named = all.filter_map(|(host, frame)| {
            let message = match frame {
                RouterFrame::Paths(paths) => {
                    let nodes = paths.iter().filter_map(|path| self.nodes(path));
                    LinkMessage::Paths(nodes.collect())
                }
                RouterFrame::Datagram(datagram) => LinkMessage::Datagram(datagram),
            };
            Some((self.names.get(&host)?.clone(), message))
        });
        named.collect()
    }

    fn nodes(&self, path: &Path) -> Option<Vec<HostLife>> {
        let nodes = path.lives().iter().map(|life| {
            Some(HostLife {
                host: self.names.get(&life.host)?.clone(),
                incarnation: life.incarnation,
            })
        });
        nodes.collect()
    }

    /// Sets what this host wants of a topic. None: it does not want the topic.
    fn want(&mut self, topic: &str, want: Option<TopicInterest>) {
        let want = want.map(|want| encode_want(want).into());
        self.router.want(topic, want);
    }

    /// Sets the topics that this host wants.
    pub fn set_wants(&mut self, wants: BTreeMap<&str, TopicInterest>) {
        let own: Vec<Box<str>> = self.router.own_wants().keys().cloned().collect();
        for topic in own.iter().filter(|topic| !wants.contains_key(&topic[..])) {
            self.want(topic, None);
        }
        for (topic, want) in wants {
            self.want(topic, Some(want));
        }
    }

    /// A number that rises whenever routes may have changed.
    pub fn version(&self) -> u64 {
        self.router.paths().version()
    }

    /// The health of a stream that begins now.
    pub fn begin_stream(&self) -> StreamHealth {
        StreamHealth::new(self.version(), self.now())
    }

    /// Whether another stream has to replace this one now. `is_wanted`: its tree is the planned one, with the same lives.
    pub fn is_to_be_replaced(&self, stream: &StreamHealth, is_wanted: bool) -> bool {
        stream.is_to_be_replaced(is_wanted, self.version(), self.now())
    }

    pub fn reached(&self) -> impl Iterator<Item = &String> {
        self.router
            .paths()
            .paths()
            .filter_map(|path| self.names.get(&path.end().host))
    }

    /// The hosts on the path to a host: the next hop first, the host itself last.
    pub fn path(&self, host: &str) -> Option<Vec<String>> {
        let lives = self.router.paths().path(id(host))?.lives().iter();
        lives
            .map(|life| self.names.get(&life.host).cloned())
            .collect()
    }

    /// Builds a tree from here to those of `ends` that are reached. Returns their paths in it, in the form of [`Network::path`].
    pub fn tree_paths<'a>(
        &self,
        ends: impl Iterator<Item = &'a String>,
        load: Load,
    ) -> BTreeMap<String, Vec<String>> {
        let wanted = ends.filter_map(|end| Some(self.router.paths().path(id(end))?.end()));
        let tree = build(&self.router.paths().graph(), &wanted.collect(), load);
        let mut paths = BTreeMap::new();
        let mut rest: Vec<(&Tree, Vec<String>)> = vec![(&tree, Vec::new())];
        while let Some((tree, path)) = rest.pop() {
            for child in &tree.children {
                let Some(name) = self.names.get(&child.life.host) else {
                    continue;
                };
                let mut path = path.clone();
                path.push(name.clone());
                if child.is_final {
                    paths.insert(name.clone(), path.clone());
                }
                rest.push((child, path));
            }
        }
        paths
    }

    pub fn wants(&self, host: &str) -> impl Iterator<Item = (&String, &TopicInterest)> {
        let wants = self.wants.get(&id(host)).into_iter().flatten();
        wants.map(|(topic, known)| (topic, &known.want))
    }

    /// Whether this host has got all interest of another.
    pub fn knows_wants(&self, host: &str) -> bool {
        let wants = self.router.wants(id(host));
        wants.is_some_and(|host| host.is_complete)
    }

    /// Forgets withdrawn interest, and hosts that were not reached for `outage`, except `kept` ones. Returns whether a host wants less.
    pub fn expire<'a>(&mut self, outage: Duration, kept: impl Iterator<Item = &'a String>) -> bool {
        let kept: BTreeSet<HostId> = kept.map(|host| id(host)).collect();
        let mut is_changed = false;
        for known in self.wants.values_mut() {
            known.retain(|_, known| {
                let stays = known
                    .withdrawn
                    .is_none_or(|since| since.elapsed() < WITHDRAWN_FOR);
                is_changed |= !stays;
                stays
            });
        }
        let now = self.now();
        for host in self.router.expire(outage, &kept, now) {
            is_changed |= self.wants.remove(&host).is_some();
        }
        is_changed
    }
}

fn encode_want(want: TopicInterest) -> Vec<u8> {
    postcard::to_stdvec(&want).expect("it has only what can be written")
}

fn decode_want(from: &[u8]) -> anyhow::Result<TopicInterest> {
    let want = exactly::<TopicInterest>(from).context("its interest does not decode")?;
    let is_possible = (1..=MAX_WANTED).contains(&want.subscribers);
    ensure!(is_possible, "its interest cannot be");
    Ok(want)
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
