//! Publishers of other hosts, and those that stand for them here.

use super::gpu_path::incoming_path;
use super::{LinksConductor, CONFIRM_EVERY};
use crate::ingress::{ArrivalLimits, Bound, RemotePublisher};
use crate::network::id;
use crate::quotas::Kind;
use crate::remote_host::{IngressPlan, RemoteHost};
use crate::wire::{clip, FlowDescription};
use rgaps_client::links::{Direction, LinksPublisherBuilder};
use rgaps_client::{ClientError, OpenError, PublisherQos, RefusalCode};
use rgaps_routing::FlowName;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Loans of a publisher that stands for one elsewhere.
const INGRESS_LOANS: u32 = 256;
/// How long a flow waits for a place where there is none yet.
const ADMIT_LIMIT: Duration = Duration::from_secs(20);
/// A flow that was refused is shown for so long, unless its sender opens it again.
const REFUSED_SHOWN: Duration = Duration::from_secs(15);

/// Why a publisher of another host has no place here.
struct NoRoom {
    why: String,
    /// Others will leave the topic in a moment, or the daemon is away: messages of reliable publishers wait.
    passes: bool,
    /// Whether former publishers may be in the way.
    crowded: bool,
}

impl NoRoom {
    fn lasting(why: String) -> NoRoom {
        NoRoom {
            why,
            passes: false,
            crowded: false,
        }
    }

    fn of(error: &OpenError) -> NoRoom {
        let (passes, crowded) = match error {
            OpenError::Client(ClientError::Refused(refusal)) => {
                (refusal.code == RefusalCode::LimitReached, true)
            }
            OpenError::Client(_) => (true, false),
            _ => (false, true),
        };
        NoRoom {
            why: error.to_string(),
            passes,
            crowded,
        }
    }
}

impl LinksConductor {
    /// A host opens flows. Whoever sees the history of one of these publishers sees that of all: so messages are taken of none before
    /// all of them have been looked at.
    pub(super) fn opened(&mut self, host: &str, all: Vec<(FlowName, FlowDescription)>) {
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        let flows: Vec<FlowName> = all.iter().map(|(flow, _)| *flow).collect();
        for (flow, description) in all {
            peer.incoming.insert(flow, IngressPlan::new(description));
        }
        self.admit_all(host, &flows);
    }

    fn admit_all(&mut self, host: &str, flows: &[FlowName]) {
        flows.iter().for_each(|flow| self.admit(host, *flow));
        flows
            .iter()
            .for_each(|flow| self.take_messages(host, *flow));
        self.buffer_free(host);
    }

    /// Messages of a flow are taken, if it has a place.
    pub(super) fn take_messages(&mut self, host: &str, flow: FlowName) {
        let incoming = |peer: &RemoteHost| {
            let incoming = peer.incoming.get(&flow)?;
            Some(incoming.refused.is_none() && incoming.waits.is_none())
        };
        if self.peers.get(host).and_then(incoming) != Some(true) {
            return;
        }
        let transit = self.begin_transit(host, flow);
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        let Some(incoming) = peer.incoming.get_mut(&flow) else {
            return;
        };
        if !incoming.description.via.is_empty() {
            let position = || peer.ingress.new_position();
            incoming.position.get_or_insert_with(position);
            self.confirms = true;
        }
        let bound = Bound {
            landing: incoming.landing.clone(),
            transit,
            position: incoming.position.clone(),
        };
        peer.ingress.accept(flow, bound);
    }

    /// Tells origins how far their messages are that come here through other hosts, as far as that is new.
    pub(super) fn send_confirmed(&mut self) {
        let renewed = self.network.take_renewed();
        let is_renewed = |origin: &str| renewed.contains(&id(origin));
        self.refuse_again(is_renewed);
        let is_due = self.confirmed_at.elapsed() >= CONFIRM_EVERY;
        if !(self.confirms && is_due || !renewed.is_empty()) {
            return;
        }
        (self.confirms, self.confirmed_at) = (false, Instant::now());
        for (host, peer) in &mut self.peers {
            peer.ingress.forget_reported();
            for (flow, of) in &mut peer.incoming {
                let origin = of.description.origin(host);
                if is_renewed(origin) {
                    of.confirmed = None;
                }
                let Some(next) = of.unconfirmed() else {
                    continue;
                };
                if !self.network.has_room(origin) {
                    self.confirms = true;
                    continue;
                }
                of.confirmed = Some(next);
                self.network.confirm(origin, *flow, next);
            }
        }
    }

    /// Finds a flow its place here, or says why there is none.
    fn admit(&mut self, host: &str, flow: FlowName) {
        let outcome = self.landing_of(host, flow);
        if let Ok(Some(landing)) = &outcome {
            let goes_on = |of: &Arc<RemotePublisher>| Arc::ptr_eq(of, landing);
            let peers = self.peers.values_mut();
            peers.for_each(|peer| peer.orphans.retain(|(of, _)| !goes_on(of)));
        }
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        let Some(incoming) = peer.incoming.get_mut(&flow) else {
            return;
        };
        let topic = incoming.description.topic.clone();
        let no_room = match outcome {
            Ok(landing) => {
                (incoming.refused, incoming.waits) = (None, None);
                let publisher = flow.publisher;
                landing
                    .iter()
                    .for_each(|landing| self.routes.landed(&topic, publisher, landing));
                incoming.landing = landing;
                peer.ingress.counts.issues.allowed(&topic);
                return;
            }
            Err(no_room) => no_room,
        };
        let why = clip(&no_room.why);
        if peer.ingress.counts.issues.refused(&topic, 0, &why) {
            tracing::warn!(
                host,
                topic,
                "this host cannot take messages of another host: {why}"
            );
        }
        let waits = no_room.passes && incoming.description.offer.reliable;
        let since = *incoming.waits.get_or_insert_with(Instant::now);
        // Messages wait as long as this; a host that hears that there is no place would send none at all.
        if !waits || since.elapsed() >= ADMIT_LIMIT {
            incoming.waits = None;
            peer.ingress.refuse(flow, &why);
            let of = &incoming.description;
            for end in of.tree.ends().filter(|_| !of.via.is_empty()) {
                self.network.refuse(of.origin(host), flow, (end, &why));
            }
            incoming.refused = Some((why, Instant::now()));
        }
        if no_room.crowded {
            self.end_orphaned(&topic);
        }
    }

    /// The publisher that stands for one of another host's; none if its messages only go on.
    fn landing_of(
        &mut self,
        host: &str,
        flow: FlowName,
    ) -> Result<Option<Arc<RemotePublisher>>, NoRoom> {
        let incoming = self.peers.get(host).and_then(|p| p.incoming.get(&flow));
        let incoming = incoming.ok_or_else(|| NoRoom::lasting("it has ended".to_owned()))?;
        let of = &incoming.description;
        // What another host said of it does not count less because it came through this one.
        let mut through = std::iter::once(host).chain(of.via.iter().map(String::as_str));
        let links = &self.config.links;
        let barred =
            through.find_map(|on| links.may_cross(Direction::Receive, on, &of.topic).err());
        if let Some(why) = barred {
            return Err(NoRoom::lasting(why));
        }
        if !of.tree.ends_here() {
            return Ok(None);
        }
        // The same publisher may come in a stream that takes the place of another, through another host, or from the next
        // life of its host, and goes on where that one stands.
        let known = incoming.landing.clone();
        let known = known.or_else(|| self.routes.landing(&of.topic, flow.publisher));
        match known {
            Some(landing) => Ok(Some(landing)),
            None => self.create_landing(host, flow, of.clone()).map(Some),
        }
    }

    fn create_landing(
        &mut self,
        host: &str,
        flow: FlowName,
        of: FlowDescription,
    ) -> Result<Arc<RemotePublisher>, NoRoom> {
        let (topic, publisher) = (&of.topic, flow.publisher);
        let domain = self.lands_in(topic).map_err(NoRoom::lasting)?;
        let links = &self.config.links;
        let quota = links.quota(host, topic);
        let reserved = quota.map_or(Ok(None), |quota| {
            self.quotas.reserve(quota, Kind::RemotePublisher, &of.offer)
        });
        let reserved = reserved.map_err(NoRoom::lasting)?;
        let qos = PublisherQos {
            history: of.offer.history,
            reliable: of.offer.reliable,
            transient_local: of.offer.transient_local,
            deadline: Duration::ZERO,
            loan_timeout: Duration::ZERO,
            max_loans: INGRESS_LOANS,
            ..PublisherQos::default()
        };
        let mut builder = self.node.publisher(topic).type_name(&of.type_name).qos(qos);
        if let Some(domain) = domain {
            builder = builder.domain(domain);
        }
        if let Some(peer) = self.peers.get(host) {
            let here = (&self.written(topic), links.relay);
            builder = builder.came_over(incoming_path(peer, &of, here));
        }
        let created = builder.create().map_err(|error| NoRoom::of(&error))?;
        let message_max = quota.and_then(|quota| Some((quota.message_max?.0, quota.name.clone())));
        let limits = ArrivalLimits {
            landing_max: links.landing_max.0,
            message_max,
            reserved,
        };
        Ok(RemotePublisher::new(
            created,
            (publisher, self.own_publishers.clone()),
            self.committed.mark(publisher, topic),
            of.history,
            limits,
        ))
    }

    /// Looks again whether there is a place for what waits for one.
    pub(super) fn admit_again(&mut self) {
        let mut all = Vec::new();
        for (host, peer) in &mut self.peers {
            let is_shown = |since: &Instant| since.elapsed() < REFUSED_SHOWN;
            peer.incoming
                .retain(|_, i| i.refused.as_ref().is_none_or(|(_, at)| is_shown(at)));
            let waits = peer.incoming.iter();
            let waits = waits.filter(|(_, i)| i.waits.is_some());
            let flows: Vec<FlowName> = waits.map(|(flow, _)| *flow).collect();
            all.extend((!flows.is_empty()).then(|| (host.clone(), flows)));
        }
        for (host, flows) in all {
            self.admit_all(&host, &flows);
        }
    }

    /// Gives up the places of publishers whose host's links ended, and may come back: what they published here is known.
    fn end_orphaned(&mut self, topic: &str) {
        for peer in self.peers.values_mut() {
            peer.orphans
                .retain(|(of, _)| of.publisher().topic() != topic);
        }
    }
}
