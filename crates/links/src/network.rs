//! How hosts reach each other, and what they want: the parts of `rgaps_routing` as links use them, by the names of hosts.
//!
//! | what | how it gets here |
//! |---|---|
//! | links of this host | [`Network::link_up`], [`Network::lanes_lost`], [`Network::link_ended`] |
//! | routes of other hosts | neighbours advertise them ([`LinkMessage::Paths`]), with the names of all hosts on them |
//! | interest | each host that is reached is asked for all of it over its control channel ([`LinkMessage::Datagram`]), and then says what changes |
//! | how far messages are | final hosts confirm, or refuse, flows of this host over the same channels ([`FlowReport`]) |
//!
//! Withdrawn interest stays for [`WITHDRAWN_FOR`], since subscribers are back a moment after their daemon restarts. The network
//! forgets a host that cannot be reached for `outage_ms`.
//!
//! A hash of its name numbers each host. The network does no I/O: [`Network::poll`] has what is to be sent.

use crate::keys::{number_of, Node, TopicInterest, MAX_WANTED};
use crate::wire::{clip, exactly, LinkMessage};
use anyhow::{ensure, Context};
use rgaps_routing::{
    build, ChannelEvent, Channels, ControlMessage, Datagram, FlowName, Hop, HostId, InterestTable,
    Life, Load, Path, PathTable, Time, Tree, MAX_TOPICS,
};
use rgaps_session::check_topic_name;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const WITHDRAWN_FOR: Duration = Duration::from_secs(1);

/// A host that reaches others, and is reached.
pub struct Network {
    own: Life,
    start: Instant,
    names: BTreeMap<HostId, String>,
    paths: PathTable,
    channels: Channels,
    interest: InterestTable,
    wants: BTreeMap<HostId, BTreeMap<String, KnownWant>>,
    /// The last advertisement of each neighbour: it may overtake the event that its link is up.
    advertised: BTreeMap<HostId, Vec<Path>>,
    /// Neighbours whose links were made again: they know nothing of what was advertised to them.
    restarted: BTreeSet<HostId>,
    /// Hosts without a path, and since when.
    unreachable: BTreeMap<HostId, Instant>,
    /// Hosts with new channels: what was said to them before, they may not have.
    renewed: BTreeSet<HostId>,
}

/// What a host says of a flow of this one.
#[derive(Debug, PartialEq)]
pub struct FlowReport {
    pub from: HostId,
    pub flow: FlowName,
    /// The host that its messages are for.
    pub host: HostId,
    /// They are delivered there below this number; or why they do not come there.
    pub outcome: Result<u64, String>,
}

/// What a host wants of a topic, and since when it does not any more.
struct KnownWant {
    want: TopicInterest,
    withdrawn: Option<Instant>,
}

#[derive(Debug, Default, PartialEq)]
pub struct Received {
    /// It goes on to this host.
    pub egress: Option<(String, LinkMessage)>,
    /// It has changed what is known of its sender's interest.
    pub is_changed: bool,
    pub reports: Vec<FlowReport>,
}

pub fn id(host: &str) -> HostId {
    HostId(number_of(host))
}

fn life(node: &Node) -> Life {
    Life {
        host: id(&node.host),
        incarnation: node.incarnation,
    }
}

impl Network {
    pub fn new(own: &Node) -> Network {
        let life = life(own);
        Network {
            own: life,
            start: Instant::now(),
            names: BTreeMap::from([(life.host, own.host.clone())]),
            paths: PathTable::new(life),
            channels: Channels::new(life),
            interest: InterestTable::default(),
            wants: BTreeMap::new(),
            advertised: BTreeMap::new(),
            restarted: BTreeSet::new(),
            unreachable: BTreeMap::new(),
            renewed: BTreeSet::new(),
        }
    }

    fn now(&self) -> Time {
        self.start.elapsed()
    }

    pub fn link_up(&mut self, node: &Node) -> anyhow::Result<()> {
        let life = life(node);
        self.note_name(node)?;
        if self.restarted.remove(&life.host) {
            self.paths.link_ended(life.host);
        }
        self.paths.link_up(life);
        if let Some(paths) = self.advertised.get(&life.host).cloned() {
            // Of a former life perhaps, and then not valid.
            let _ = self.paths.advertised(life, paths, self.now());
        }
        Ok(())
    }

    pub fn lanes_lost(&mut self, host: &str) {
        let now = self.now();
        self.paths.lanes_lost(id(host), now);
    }

    /// The host has another link machine, and knows nothing of what it was sent.
    pub fn link_restarted(&mut self, host: &str) {
        self.restarted.insert(id(host));
    }

    pub fn link_ended(&mut self, host: &str) {
        self.advertised.remove(&id(host));
        self.paths.link_ended(id(host));
    }

    /// A neighbour advertises all its paths.
    pub fn advertised(&mut self, from: &str, paths: &[Vec<Node>]) -> anyhow::Result<()> {
        let used = self.advertised.values().flatten().flat_map(Path::lives);
        let used: BTreeSet<HostId> = used.map(|life| life.host).collect();
        let (own, known) = (self.own.host, &self.paths);
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
        let from = id(from);
        self.advertised.insert(from, paths.clone());
        let now = self.now();
        let neighbour = self.paths.neighbours().find(|life| life.host == from);
        neighbour.map_or(Ok(()), |life| self.paths.advertised(life, paths, now))?;
        Ok(())
    }

    fn note_name(&mut self, node: &Node) -> anyhow::Result<()> {
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

    /// Takes what another host sends over a control channel, or finds out where it goes on to. `relays`: this host forwards.
    pub fn receive(&mut self, datagram: Datagram, relays: bool) -> anyhow::Result<Received> {
        let mut received = Received::default();
        match datagram.hop(self.own.host) {
            Hop::Forward(next, datagram) if relays => {
                let is_neighbour = self.paths.neighbours().any(|life| life.host == next);
                let name = self.names.get(&next).filter(|_| is_neighbour);
                received.egress = name.map(|name| (name.clone(), LinkMessage::Datagram(datagram)));
            }
            Hop::Deliver(segment) => {
                let from = segment.from.life.host;
                for event in self.channels.receive(segment, self.now()) {
                    self.channel_event(event, &mut received)?;
                }
                if received.is_changed {
                    self.note_wants(from)?;
                }
            }
            Hop::Forward(..) | Hop::Drop => {}
        }
        Ok(received)
    }

    fn channel_event(&mut self, event: ChannelEvent, to: &mut Received) -> anyhow::Result<()> {
        let (from, message) = match event {
            ChannelEvent::Restarted(life) => {
                self.interest.restarted(life, &mut self.channels);
                self.renewed.insert(life.host);
                return Ok(());
            }
            ChannelEvent::Message(from, message) => (from, message),
        };
        let (flow, host, outcome) = match message {
            ControlMessage::Confirm { flow, next } => (flow, from.host, Ok(next)),
            ControlMessage::Refused { flow, host, reason } => (flow, host, Err(clip(&reason))),
            message => {
                if let ControlMessage::Interest { topic, want } = &message {
                    check_topic_name(topic)?;
                    want.as_deref().map(decode_want).transpose()?;
                }
                let channels = &mut self.channels;
                to.is_changed |= self.interest.receive(from, &message, channels);
                return Ok(());
            }
        };
        to.reports.push(FlowReport {
            from: from.host,
            flow,
            host,
            outcome,
        });
        Ok(())
    }

    /// Takes over what a host wants now. What it does not want any more stays for a moment.
    fn note_wants(&mut self, host: HostId) -> anyhow::Result<()> {
        let wants = self.interest.host(host).map(|host| &host.wants);
        let known = self.wants.entry(host).or_default();
        for (topic, known) in known.iter_mut() {
            if wants.is_none_or(|wants| !wants.contains_key(&topic[..])) {
                known.withdrawn.get_or_insert_with(Instant::now);
            }
        }
        for (topic, want) in wants.into_iter().flatten() {
            let (want, withdrawn) = (decode_want(want)?, None);
            if known.len() < 2 * MAX_TOPICS || known.contains_key(&topic[..]) {
                known.insert(topic.to_string(), KnownWant { want, withdrawn });
            }
        }
        Ok(())
    }

    /// Tells a flow's origin how far its messages are here.
    pub fn confirm(&mut self, origin: &str, flow: FlowName, next: u64) {
        let confirm = ControlMessage::Confirm { flow, next };
        self.channels.send(id(origin), confirm);
    }

    /// Whether little waits to be said to a host.
    pub fn has_room(&self, host: &str) -> bool {
        self.channels.has_room(id(host))
    }

    /// Tells a flow's origin why its messages do not come to a host.
    pub fn refuse(&mut self, origin: &str, flow: FlowName, (host, why): (&str, &str)) {
        let refused = ControlMessage::Refused {
            flow,
            host: id(host),
            reason: clip(why).into(),
        };
        self.channels.send(id(origin), refused);
    }

    /// Hosts that may not have what was said to them before; each once.
    pub fn take_renewed(&mut self) -> BTreeSet<HostId> {
        std::mem::take(&mut self.renewed)
    }

    pub fn incarnation(&self, host: &str) -> Option<u64> {
        Some(self.paths.path(id(host))?.end().incarnation)
    }

    /// What is to be sent to which neighbours now. `relays`: this host forwards, and says so.
    pub fn poll(&mut self, relays: bool) -> Vec<(String, LinkMessage)> {
        let now = self.now();
        self.paths.tick(now);
        let mut all = Vec::new();
        let neighbours: Vec<HostId> = self.paths.neighbours().map(|life| life.host).collect();
        for host in neighbours.into_iter().filter(|_| relays) {
            if let Some(paths) = self.paths.advertisement(host) {
                let nodes = paths.iter().filter_map(|path| self.nodes(path));
                all.push((host, LinkMessage::Paths(nodes.collect())));
            }
        }
        for path in self.paths.paths() {
            self.interest.ask(path.end().host, &mut self.channels);
        }
        for datagram in self.channels.poll(now, &self.paths) {
            all.push((datagram.path[0], LinkMessage::Datagram(datagram)));
        }
        let named = all
            .into_iter()
            .filter_map(|(host, said)| Some((self.names.get(&host)?.clone(), said)));
        named.collect()
    }

    fn nodes(&self, path: &Path) -> Option<Vec<Node>> {
        let nodes = path.lives().iter().map(|life| {
            Some(Node {
                host: self.names.get(&life.host)?.clone(),
                incarnation: life.incarnation,
            })
        });
        nodes.collect()
    }

    /// Changes what this host wants of a topic; none: nothing any more.
    fn want(&mut self, topic: &str, want: Option<TopicInterest>) {
        let want = want.map(|want| encode_want(want).into());
        self.interest.set(topic, want, &mut self.channels);
    }

    /// This host wants these topics, and no others.
    pub fn set_wants(&mut self, wants: BTreeMap<&str, TopicInterest>) {
        let own: Vec<Box<str>> = self.interest.own().keys().cloned().collect();
        for topic in own.iter().filter(|topic| !wants.contains_key(&topic[..])) {
            self.want(topic, None);
        }
        for (topic, want) in wants {
            self.want(topic, Some(want));
        }
    }

    /// It rises whenever routes may have changed.
    pub fn version(&self) -> u64 {
        self.paths.version()
    }

    pub fn reached(&self) -> impl Iterator<Item = &String> {
        self.paths
            .paths()
            .filter_map(|path| self.names.get(&path.end().host))
    }

    /// The hosts on the way to another, the next one first, the other one last.
    pub fn path(&self, host: &str) -> Option<Vec<String>> {
        let lives = self.paths.path(id(host))?.lives().iter();
        lives
            .map(|life| self.names.get(&life.host).cloned())
            .collect()
    }

    /// The paths of a tree from here to those of these hosts that are reached, as [`Network::path`] has them.
    pub fn tree_paths<'a>(
        &self,
        ends: impl Iterator<Item = &'a String>,
        load: Load,
    ) -> BTreeMap<String, Vec<String>> {
        let wanted = ends.filter_map(|end| Some(self.paths.path(id(end))?.end()));
        let tree = build(&self.paths.graph(), &wanted.collect(), load);
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

    pub fn knows_wants(&self, host: &str) -> bool {
        self.interest
            .host(id(host))
            .is_some_and(|host| host.is_complete)
    }

    /// Forgets withdrawn interest, and hosts but `kept` ones that were not reached for `outage`. Whether anybody wants less now.
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
        let hosts: Vec<HostId> = self.channels.hosts().map(|(host, _)| host).collect();
        for host in hosts {
            if self.paths.path(host).is_some() || kept.contains(&host) {
                self.unreachable.remove(&host);
                continue;
            }
            let since = *self.unreachable.entry(host).or_insert_with(Instant::now);
            if since.elapsed() >= outage {
                self.unreachable.remove(&host);
                self.channels.forget(host);
                self.renewed.insert(host);
                self.interest.forget(host);
                is_changed |= self.wants.remove(&host).is_some();
            }
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
