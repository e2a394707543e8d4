//! Other hosts: their lives, how they come and go, and the links with them.

use super::{LinksConductor, TRY_AGAIN};
use crate::control_plane::{token, versions, Address, LaneSecret, PlaneEvent};
use crate::counts::HostCounts;
use crate::host_link::{HostLink, RetainLimits};
use crate::ingress::LinkIngress;
use crate::keys::{HostLife, Token, PLANE_VERSION};
use crate::reach::{Reach, UNANSWERED_LIMIT};
use crate::remote_host::{OutgoingStream, RemoteHost};
use crate::traces::LinkTraces;
use rgaps_client::links::{Links, Rdma, MAX_REMOTE_HOSTS};
use rgaps_transport::{LaneKey, LinkConfig, Peer as LanePeer, RdmaMode};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before a host is asked again how to reach it.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long a host that is to open the lanes has for it, before it is told that this one is there.
const ASK_ANYWAY: Duration = Duration::from_secs(2);
const MAX_PEERS: usize = MAX_REMOTE_HOSTS;

impl LinksConductor {
    pub(super) fn plane_event(&mut self, event: PlaneEvent) {
        match event {
            PlaneEvent::Appeared(token) => {
                self.presence.appeared(&token);
                self.appeared(token);
            }
            PlaneEvent::Left(node) => self.left(&node),
            PlaneEvent::AddressAsked(node, secret) => self.accept(&node, secret),
            PlaneEvent::AddressAnswer(node, outcome) => self.address_answered(&node, outcome),
            PlaneEvent::NoAnswer(node, why) => self.address_unanswered(&node, &why),
            PlaneEvent::Reopened => {
                for life in self.presence.take_all() {
                    self.left(&life.node);
                }
            }
        }
    }

    pub(super) fn left(&mut self, node: &HostLife) {
        let other = self.presence.left(node);
        let Some(peer) = self.known(node) else { return };
        tracing::info!(host = node.host, "a host has left");
        peer.reach.left(Instant::now());
        if let Some(life) = other {
            self.appeared(life);
        }
    }

    /// The host, if that is the life of it that is known.
    pub(super) fn known(&mut self, node: &HostLife) -> Option<&mut RemoteHost> {
        self.peers
            .get_mut(&node.host)
            .filter(|peer| peer.reach.node() == node)
    }

    pub(super) fn appeared(&mut self, token: Token) {
        let now = Instant::now();
        let (node, protocol) = (token.node.clone(), token.protocol);
        let before = self.peers.get(&node.host).map(|peer| peer.reach.protocol());
        if let Some(peer) = self.peers.get_mut(&node.host) {
            if *peer.reach.node() != node {
                tracing::info!(host = node.host, "a host has restarted its links");
            }
            peer.reach.appeared(token, now);
        } else if self.has_room() {
            let peer = RemoteHost::new(Reach::new(token, now), self.new_ingress(&node.host));
            self.peers.insert(node.host.clone(), peer);
        } else {
            tracing::error!(
                host = node.host,
                "there are more than {MAX_PEERS} hosts; this one is ignored"
            );
            return;
        }
        if protocol != PLANE_VERSION && before != Some(protocol) {
            tracing::error!("{}", versions(&node.host, protocol));
        }
    }

    /// Whether there is room for one more host: for that, one that was given up is forgotten.
    fn has_room(&mut self) -> bool {
        let mut peers = self.peers.iter();
        if peers.len() < MAX_PEERS {
            return true;
        }
        let given_up = peers.find(|(_, peer)| peer.reach.is_given_up());
        let given_up = given_up.map(|(host, _)| host.clone());
        given_up.is_some_and(|host| self.peers.remove(&host).is_some())
    }

    fn new_ingress(&self, host: &str) -> Arc<LinkIngress> {
        let tracer = self.tracer.as_ref();
        let traces = tracer.map(|tracer| LinkTraces::new(tracer, host));
        let (events, memory) = (self.event_sender.clone(), self.memory.clone());
        LinkIngress::new(host, events, memory, HostCounts::new(traces))
    }

    pub(super) fn address_answered(&mut self, node: &HostLife, outcome: Result<Address, String>) {
        let opens = self.opens(&node.host);
        let Some(peer) = self.known(node) else { return };
        peer.reach.answered();
        match outcome {
            Ok(address) if opens => self.join(node, address.secret, address.lanes),
            // It knows of this host now, if it did not.
            Ok(_) => peer.reach.ask_again(Instant::now()),
            Err(why) => {
                tracing::debug!(host = node.host, why, "looking up a host's address failed");
                peer.reach.failed(&why);
                peer.reach.ask_again(Instant::now() + ASK_AGAIN);
            }
        }
    }

    /// A host did not answer. If that lasts, the fault may be the control plane's.
    fn address_unanswered(&mut self, node: &HostLife, why: &str) {
        let now = Instant::now();
        let Some(peer) = self.known(node) else { return };
        tracing::debug!(
            host = node.host,
            why,
            "a host that was asked for its address did not answer"
        );
        peer.reach.ask_again(now + ASK_AGAIN);
        if peer.reach.did_not_answer(why, now) {
            self.presence.unanswered(&node.host, UNANSWERED_LIMIT);
        }
    }

    /// A host has asked us: it will come with this secret.
    pub(super) fn accept(&mut self, node: &HostLife, secret: LaneSecret) {
        // A host that asks is there, though its token is on its way, or was lost.
        if self.known(node).is_none_or(|peer| peer.reach.is_lost()) {
            self.appeared(token(node.clone()));
        }
        if let Some(peer) = self.known(node) {
            peer.reach.asked(Instant::now());
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
    pub(super) fn join(&mut self, node: &HostLife, secret: LaneSecret, dial: Vec<SocketAddr>) {
        let links = &self.config.links;
        let peer = self.peers.get_mut(&node.host);
        let Some(peer) = peer.filter(|peer| peer.reach.node() == node) else {
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
                let ends = peer.ingress.ends();
                HostLink::new(&self.endpoint, &node.host, limits, lanes, ends).map(Some)
            }
        };
        match outcome {
            Ok(Some(link)) => {
                peer.link = Some((node.clone(), link));
                self.forget_answers(&node.host);
            }
            Ok(None) => {
                let life = peer.link.as_mut().map(|(life, _)| life);
                if let Some(life) = life.filter(|life| *life != node) {
                    life.clone_from(node);
                    self.forget_answers(&node.host);
                }
            }
            Err(error) => {
                tracing::error!(%error, host = node.host, "creating a link to a host failed");
                peer.reach.failed(&error.to_string());
                peer.reach.ask_again(Instant::now() + TRY_AGAIN);
            }
        }
    }

    /// Another life of a host knows nothing of what was said, and has said nothing.
    pub(super) fn forget_answers(&mut self, host: &str) {
        if let Some(peer) = self.peers.get_mut(host) {
            peer.reported_written.clear();
        }
        let topics = self.topics.values_mut();
        let branches = topics.filter_map(|topic| topic.branches.get_mut(host));
        branches.for_each(OutgoingStream::forget_answers);
    }

    pub(super) fn reconcile_peers(&mut self) {
        let now = Instant::now();
        let outage = Duration::from_millis(self.config.links.outage_ms);
        let mut given_up = Vec::new();
        for (host, peer) in &mut self.peers {
            let has_token = self.presence.has(peer.reach.node());
            if peer.reach.give_up(has_token, outage, now) {
                given_up.push(host.clone());
            }
            // One of two hosts opens the lanes; the other one asks where that does not: perhaps it has not heard of it.
            let pause = match *self.own.host < **host {
                true => Duration::ZERO,
                false => ASK_ANYWAY,
            };
            if peer.ask(pause, now) {
                if let Err(error) = self.presence.plane.ask_address(peer.reach.node()) {
                    tracing::error!("{error:#}");
                    peer.reach.ask_again(now + ASK_AGAIN);
                }
            }
            // What a former life of it published ends if this one does not go on with it.
            peer.orphans.retain(|(_, since)| now - *since <= outage);
            peer.report_given_up();
        }
        for host in given_up {
            tracing::warn!(
                host,
                "a host was away longer than outage_ms; no messages are kept for it any more"
            );
            if let Some(peer) = self.peers.get_mut(&host) {
                // The host may not have noticed. With a new link it says everything again.
                peer.end_link();
            }
            self.network.link_ended(&host);
            self.end_transits(&host);
            self.dirty = true;
        }
    }
}

fn link_config(links: &Links) -> LinkConfig {
    let mut config = LinkConfig {
        lanes: links.lanes as usize,
        spin: links.spin(),
        rdma: match links.rdma {
            Rdma::Off => RdmaMode::No,
            Rdma::Auto => RdmaMode::Prefer,
            Rdma::Only => RdmaMode::Require,
        },
        ..LinkConfig::default()
    };
    config.beat_ms = (links.lease_ms / 4).clamp(50, 1000);
    config.quiet_ms = (links.lease_ms * 3 / 2).max(300);
    config
}

fn retain_limits(links: &Links) -> RetainLimits {
    RetainLimits {
        in_flight_max: links.in_flight_max.0,
        outage_max: links.outage_max.0,
        outage: Duration::from_millis(links.outage_ms),
    }
}
