//! Other hosts: how they appear and leave, and how links with them begin and end.

use super::{LinksConductor, TRY_AGAIN};
use crate::control_plane::{token, versions, Address, LaneSecret, PlaneEvent};
use crate::counts::HostCounts;
use crate::host_link::{HostLink, RetainLimits};
use crate::ingress::LinkIngress;
use crate::keys::{HostLife, HostToken, PLANE_VERSION};
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
/// How long this host waits for the other one to open lanes before it asks for them itself: the other may not know that this one is there.
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
        peer.reach_mut().left(Instant::now());
        if let Some(life) = other {
            self.appeared(life);
        }
    }

    /// The host, if its current life is this one.
    pub(super) fn known(&mut self, node: &HostLife) -> Option<&mut RemoteHost> {
        self.peers
            .get_mut(&node.host)
            .filter(|peer| peer.reach().node() == node)
    }

    pub(super) fn appeared(&mut self, token: HostToken) {
        let now = Instant::now();
        let (node, protocol) = (token.node.clone(), token.protocol);
        let before = self
            .peers
            .get(&node.host)
            .map(|peer| peer.reach().protocol());
        if let Some(peer) = self.peers.get_mut(&node.host) {
            if *peer.reach().node() != node {
                tracing::info!(host = node.host, "a host has restarted its links");
            }
            peer.reach_mut().appeared(token, now);
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

    /// Whether there is room for one more host. If not, it forgets a host that was given up, to make room.
    fn has_room(&mut self) -> bool {
        let mut peers = self.peers.iter();
        if peers.len() < MAX_PEERS {
            return true;
        }
        let given_up = peers.find(|(_, peer)| peer.reach().is_given_up());
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
        peer.reach_mut().answered();
        match outcome {
            Ok(address) if opens => self.join(node, address.secret, address.lanes),
            // The other host opens the lanes. It knows now that this one is there.
            Ok(_) => peer.reach_mut().ask_again(Instant::now()),
            Err(why) => {
                tracing::debug!(host = node.host, why, "looking up a host's address failed");
                peer.reach_mut().failed(&why);
                peer.reach_mut().ask_again(Instant::now() + ASK_AGAIN);
            }
        }
    }

    /// A host did not answer. After [`UNANSWERED_LIMIT`], reopens the control plane: the fault may be there.
    fn address_unanswered(&mut self, node: &HostLife, why: &str) {
        let now = Instant::now();
        let Some(peer) = self.known(node) else { return };
        tracing::debug!(
            host = node.host,
            why,
            "a host that was asked for its address did not answer"
        );
        peer.reach_mut().ask_again(now + ASK_AGAIN);
        if peer.reach_mut().did_not_answer(why, now) {
            self.presence.unanswered(&node.host, UNANSWERED_LIMIT);
        }
    }

    /// Another host asked for this one's address: its lanes will present this secret.
    pub(super) fn accept(&mut self, node: &HostLife, secret: LaneSecret) {
        // A host that asks is there, even if its token has not arrived yet or was lost.
        if self.known(node).is_none_or(|peer| peer.reach().is_lost()) {
            self.appeared(token(node.clone()));
        }
        if let Some(peer) = self.known(node) {
            peer.reach_mut().asked(Instant::now());
        }
        if !self.opens(&node.host) {
            self.join(node, secret, Vec::new());
        }
    }

    /// Whether this host opens the lanes to another: the one whose name sorts first does.
    fn opens(&self, host: &str) -> bool {
        *self.own.host < *host
    }

    /// Creates the link with a host, or continues it with the host's next life. `dial`: where to open lanes; empty: the other host opens
    /// them.
    pub(super) fn join(&mut self, node: &HostLife, secret: LaneSecret, dial: Vec<SocketAddr>) {
        let links = &self.config.links;
        let peer = self.peers.get_mut(&node.host);
        let Some(peer) = peer.filter(|peer| peer.reach().node() == node) else {
            return;
        };
        let lanes = LanePeer {
            incarnation: node.incarnation,
            key: LaneKey(secret.0),
            dial,
        };
        let outcome = peer.join(node, lanes, |lanes, ingress| {
            let limits = (link_config(links), retain_limits(links));
            HostLink::new(&self.endpoint, &node.host, limits, lanes, ingress.ends())
        });
        match outcome {
            Ok(true) => self.forget_answers(&node.host),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, host = node.host, "creating a link to a host failed");
                peer.reach_mut().failed(&error.to_string());
                peer.reach_mut().ask_again(Instant::now() + TRY_AGAIN);
            }
        }
    }

    /// Call when another life of a host is linked: forgets what its former life answered, and what this host reported to that.
    pub(super) fn forget_answers(&mut self, host: &str) {
        if let Some(peer) = self.peers.get_mut(host) {
            peer.forget_reported();
        }
        let topics = self.topics.values_mut();
        let branches = topics.filter_map(|topic| topic.branch_mut(host));
        branches.for_each(OutgoingStream::forget_answers);
    }

    pub(super) fn reconcile_peers(&mut self) {
        let now = Instant::now();
        let outage = Duration::from_millis(self.config.links.outage_ms);
        let mut given_up = Vec::new();
        for (host, peer) in &mut self.peers {
            let has_token = self.presence.has(peer.reach().node());
            if peer.reach_mut().give_up(has_token, outage, now) {
                given_up.push(host.clone());
            }
            // The host that does not open the lanes asks only if the other one does not open them: that may not know that this one is
            // there.
            let pause = match *self.own.host < **host {
                true => Duration::ZERO,
                false => ASK_ANYWAY,
            };
            if peer.ask(pause, now) {
                if let Err(error) = self.presence.plane.ask_address(peer.reach().node()) {
                    tracing::error!("{error:#}");
                    peer.reach_mut().ask_again(now + ASK_AGAIN);
                }
            }
            // Landings of a former life end if the host's next life has not continued them in time.
            peer.retain_orphans(|_, since| now - since <= outage);
            peer.report_given_up();
        }
        for host in given_up {
            tracing::warn!(
                host,
                "a host was away longer than outage_ms; no messages are kept for it any more"
            );
            if let Some(peer) = self.peers.get_mut(&host) {
                // The host may not have noticed the outage. With a new link it announces everything again.
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
