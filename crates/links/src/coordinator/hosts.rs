//! Other hosts: their lives, how they come and go, and the links with them.

use super::lanes::{link_config, retain_limits};
use super::{Coordinator, TRY_AGAIN};
use crate::counts::EgressCounts;
use crate::host_link::HostLink;
use crate::keys::{Node as Host, Sum, Want, PLANE_VERSION};
use crate::land::Landings;
use crate::peer::{Incoming, Peer};
use crate::plane::{versions, Address, LaneSecret, News};
use crate::through::{Wanted, MAX_WANTS};
use crate::traces::LinkTraces;
use crate::wire::clip;
use rgaps_client::links::MAX_REMOTE_HOSTS;
use rgaps_transport::{LaneKey, Peer as LanePeer};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a want that was taken back stays, in case that the host is gone and not the want.
const WANT_STAYS: Duration = Duration::from_secs(1);
/// Pause before a host is asked again how to reach it.
pub(super) const MEET_AGAIN: Duration = Duration::from_millis(200);
/// How long a host that is to open the lanes has for it, before it is told that this one is there.
const MEET_ANYWAY: Duration = Duration::from_secs(2);
/// Hosts that are linked with.
const MAX_PEERS: usize = MAX_REMOTE_HOSTS;
/// Lives of hosts that are remembered.
const MAX_LIVES: usize = 4 * MAX_PEERS;

/// What is known of a life of another host's links. A dead one may be heard of for a while beside the next.
pub(super) struct Life {
    pub(super) node: Host,
    /// Once its token was seen.
    protocol: Option<u32>,
    wants: Wanted,
    sum: Sum,
}

impl Life {
    fn set(&mut self, topic: &str, want: Option<Want>) {
        let known = match want {
            Some(_) if self.wants.len() >= MAX_WANTS && !self.wants.contains_key(topic) => return,
            Some(want) => self.wants.insert(topic.to_owned(), want),
            None => self.wants.remove(topic),
        };
        self.sum.change(topic, known, want);
    }
}

impl Coordinator {
    pub(super) fn learn(&mut self, news: News) {
        self.dirty = true;
        match news {
            News::Came(node, protocol) => {
                if let Some(life) = self.life(&node) {
                    life.protocol = Some(protocol);
                }
                self.came(node, protocol);
            }
            News::Went(node) => self.went(&node),
            News::Wants(node, topic, want) => {
                if let Some(life) = self.life(&node) {
                    life.set(&topic, Some(want));
                }
                if let Some(peer) = self.known(&node) {
                    peer.wanted.remove(&topic);
                    if peer.wants.len() < MAX_WANTS {
                        peer.wants.insert(topic, want);
                    }
                }
            }
            News::WantsNot(node, topic, want) => {
                // Another want of the same topic came before this one went.
                let life = self.lives.iter_mut().find(|life| life.node == node);
                if let Some(life) = life.filter(|life| life.wants.get(&topic) == Some(&want)) {
                    life.set(&topic, None);
                }
                if let Some(peer) = self.known(&node) {
                    if peer.wants.get(&topic) == Some(&want) {
                        peer.wanted.insert(topic, (want, Instant::now()));
                    }
                }
            }
            News::Met(node, secret) => self.accept(&node, secret),
            News::Meeting(node, outcome) => self.met(&node, outcome),
        }
    }

    /// A life of a host, remembered from now on; none: there are too many.
    pub(super) fn life(&mut self, node: &Host) -> Option<&mut Life> {
        let at = self.lives.iter().position(|life| life.node == *node);
        let at = match at {
            Some(at) => at,
            None if self.lives.len() >= MAX_LIVES => return None,
            None => {
                self.lives.push(Life {
                    node: node.clone(),
                    protocol: None,
                    wants: Wanted::new(),
                    sum: Sum::default(),
                });
                self.lives.len() - 1
            }
        };
        self.lives.get_mut(at)
    }

    pub(super) fn went(&mut self, node: &Host) {
        self.lives.retain(|life| life.node != *node);
        let Some(peer) = self.known(node) else { return };
        tracing::info!(host = node.host, "a host has left");
        peer.lost = Some(Instant::now());
        // Another life of it may have come before.
        let of_host = self.lives.iter().rev();
        let next = of_host
            .filter(|life| life.node.host == node.host)
            .find_map(|life| Some((life.node.clone(), life.protocol?)));
        if let Some((node, protocol)) = next {
            self.came(node, protocol);
        }
    }

    /// The host, if that is the life of it that is known.
    pub(super) fn known(&mut self, node: &Host) -> Option<&mut Peer> {
        self.peers
            .get_mut(&node.host)
            .filter(|peer| peer.node == *node)
    }

    pub(super) fn came(&mut self, node: Host, protocol: u32) {
        if !self.peers.contains_key(&node.host) {
            if self.peers.len() >= MAX_PEERS {
                let given_up = self.peers.iter().find(|(_, peer)| peer.given_up);
                if let Some(host) = given_up.map(|(host, _)| host.clone()) {
                    if let Some(peer) = self.peers.remove(&host) {
                        peer.linked().iter().for_each(|link| link.close());
                    }
                }
            }
            if self.peers.len() >= MAX_PEERS {
                tracing::error!(
                    host = node.host,
                    "there are more than {MAX_PEERS} hosts; this one is ignored"
                );
                return;
            }
            let traces = || {
                let tracer = self.tracer.as_ref();
                tracer.map(|tracer| LinkTraces::new(tracer, &node.host))
            };
            let landings =
                Landings::new(&node.host, self.hear.clone(), self.memory.clone(), traces());
            let ends = (EgressCounts::new(traces()), landings);
            let peer = Peer::new(node.clone(), protocol, ends);
            self.peers.insert(node.host.clone(), peer);
        }
        let life = self.lives.iter().find(|life| life.node == node);
        let wants = life.map(|life| life.wants.clone()).unwrap_or_default();
        let Some(peer) = self.peers.get_mut(&node.host) else {
            return;
        };
        if peer.node != node {
            tracing::info!(host = node.host, "a host has restarted its links");
            peer.node = node;
            // What its former life wanted, this one may want in a moment.
            let former = std::mem::take(&mut peer.wants);
            peer.wanted = former
                .iter()
                .map(|(topic, want)| (topic.clone(), (*want, Instant::now())))
                .collect();
            peer.wants = former;
        }
        for wanted in peer.wanted.values_mut() {
            wanted.1 = Instant::now();
        }
        for (topic, want) in wants {
            peer.wanted.remove(&topic);
            peer.wants.insert(topic, want);
        }
        peer.given_up = false;
        peer.protocol = protocol;
        (peer.seen, peer.lost) = (Instant::now(), None);
        let refused = (protocol != PLANE_VERSION).then(|| versions(&peer.node.host, protocol));
        if let Some(why) = refused.as_ref().filter(|_| peer.refused.is_none()) {
            tracing::error!("{why}");
        }
        peer.refused = refused;
        peer.meet_at = Some(Instant::now());
    }

    /// What a host says over the link that it wants counts, whatever its tokens said.
    pub(super) fn believe(&mut self, host: &str) {
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        let Some(lead) = peer.through.leads.get(host).filter(|lead| lead.is_whole) else {
            return;
        };
        if let Some(life) = self.lives.iter_mut().find(|life| life.node == peer.node) {
            let gone = life
                .wants
                .keys()
                .filter(|topic| !lead.wants.contains_key(*topic));
            for topic in gone.cloned().collect::<Vec<_>>() {
                life.set(&topic, None);
            }
            for (topic, want) in &lead.wants {
                life.set(topic, Some(*want));
            }
        }
        for (topic, want) in &peer.wants {
            if !lead.wants.contains_key(topic) && !peer.wanted.contains_key(topic) {
                peer.wanted.insert(topic.clone(), (*want, Instant::now()));
            }
        }
        for (topic, want) in &lead.wants {
            peer.wanted.remove(topic);
            peer.wants.insert(topic.clone(), *want);
        }
    }

    /// We asked a host how to reach it.
    pub(super) fn met(&mut self, node: &Host, outcome: Result<Address, String>) {
        let opens = self.opens(&node.host);
        let Some(peer) = self.known(node) else { return };
        match outcome {
            Ok(address) if opens => self.join(node, address.secret, address.lanes),
            // It knows of this host now, if it did not.
            Ok(_) => peer.meet_at = Some(Instant::now()),
            Err(why) => {
                tracing::debug!(host = node.host, why, "looking up a host's address failed");
                peer.detail = clip(&why);
                peer.meet_at = Some(Instant::now() + MEET_AGAIN);
            }
        }
    }

    /// A host has asked us: it will come with this secret.
    pub(super) fn accept(&mut self, node: &Host, secret: LaneSecret) {
        // A host that asks is there, though its token is on its way, or was lost.
        if self.known(node).is_none_or(|peer| peer.lost.is_some()) {
            self.came(node.clone(), PLANE_VERSION);
        }
        if let Some(peer) = self.known(node) {
            peer.seen = Instant::now();
        }
        if !self.opens(&node.host) {
            self.join(node, secret, Vec::new());
        }
    }

    /// Whether this host opens the lanes with another: one of the two does.
    fn opens(&self, host: &str) -> bool {
        *self.own.host < *host
    }

    /// Makes the link with a host, or has it go on with another life of it.
    pub(super) fn join(&mut self, node: &Host, secret: LaneSecret, dial: Vec<SocketAddr>) {
        let links = &self.config.links;
        let Some(peer) = self
            .peers
            .get_mut(&node.host)
            .filter(|peer| peer.node == *node)
        else {
            return;
        };
        let lanes = LanePeer {
            incarnation: node.incarnation,
            key: LaneKey(secret.0),
            dial,
        };
        let outcome = match &peer.link {
            Some((_, link)) => link.set_peer(lanes).map(|()| None),
            None => {
                let limits = (link_config(links), retain_limits(links));
                let ingress = peer.landings.clone();
                HostLink::new(&self.endpoint, &node.host, limits, lanes, ingress).map(Some)
            }
        };
        match outcome {
            Ok(Some(link)) => peer.begin_link(node.incarnation, link),
            Ok(None) => {
                if let Some((life, _)) = &mut peer.link {
                    if *life != node.incarnation {
                        *life = node.incarnation;
                        peer.forget_said();
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, host = node.host, "creating a link to a host failed");
                peer.detail = clip(&error.to_string());
                peer.meet_at = Some(Instant::now() + TRY_AGAIN);
            }
        }
    }

    pub(super) fn reconcile_peers(&mut self) {
        let now = Instant::now();
        let outage = Duration::from_millis(self.config.links.outage_ms);
        let own_sum = self.own_sum.settled(self.plane.sum(), now);
        for (host, peer) in &mut self.peers {
            if let Some(said) = own_sum
                .filter(|_| peer.up)
                .and_then(|sum| peer.agreement.tell(sum))
            {
                peer.say(&said);
            }
            let life = self.lives.iter().find(|life| life.node == peer.node);
            // Of a host that asked for its lanes before its token came, nothing was heard yet.
            let known = life.map_or(0, |life| life.sum.0);
            if peer.up && peer.agreement.look(known, now) {
                tracing::warn!(
                    host,
                    "the control plane lost part of a host's interest; asking the host over the link"
                );
                self.dirty = true;
            }
            // It is not gone as long as there are lanes, whatever the control plane says. A token that never came cannot go.
            let has_token = life.is_some_and(|life| life.protocol.is_some());
            let lost = peer.lost.or((!has_token).then_some(peer.seen));
            let gone = lost.zip(peer.away).map(|(lost, away)| lost.max(away));
            if !peer.given_up && gone.is_some_and(|since| now - since > outage) {
                tracing::warn!(
                    host,
                    "a host was away longer than outage_ms; no messages are kept for it any more"
                );
                peer.given_up = true;
                peer.lost = lost;
                self.routes.ways.forget(host);
                peer.through.leads.clear();
                peer.wants.clear();
                peer.wanted.clear();
                peer.end_incoming();
                // The host may not have noticed. With a new link it says everything again.
                peer.end_link();
                self.dirty = true;
            }
            if peer.lost.is_none() {
                let due = |since: &Instant| now - *since > WANT_STAYS;
                let gone: Vec<(String, Want)> = peer
                    .wanted
                    .iter()
                    .filter(|(_, (_, since))| due(since))
                    .map(|(topic, (want, _))| (topic.clone(), *want))
                    .collect();
                for (topic, want) in gone {
                    peer.wanted.remove(&topic);
                    if peer.wants.get(&topic) == Some(&want) {
                        peer.wants.remove(&topic);
                    }
                    self.dirty = true;
                }
            }
            // One of the two opens the lanes; the other one asks where that does not: perhaps it has not heard of it.
            let opens = self.own.host < *host;
            let linked = peer.link.as_ref().map(|(life, _)| *life);
            let pause = match opens {
                true => Duration::ZERO,
                false => MEET_ANYWAY,
            };
            let meets = peer.refused.is_none()
                && peer.lost.is_none()
                && peer.meet_at.is_some_and(|at| now >= at + pause)
                && (linked != Some(peer.node.incarnation) || !peer.up);
            if meets {
                peer.meet_at = None;
                if let Err(error) = self.plane.meet(&peer.node) {
                    tracing::error!("{error:#}");
                    peer.meet_at = Some(now + MEET_AGAIN);
                }
            }
            // What a former life of it published ends if this one does not go on with it.
            let over = |incoming: &Incoming| incoming.former.is_some_and(|at| now - at > outage);
            peer.incoming.retain(|_, incoming| !over(incoming));
            peer.tell_given_up();
        }
    }
}
