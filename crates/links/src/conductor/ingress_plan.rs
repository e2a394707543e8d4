//! Publishers of other hosts, and the publishers here that publish their messages: their landings.

use super::landing::incoming_path;
use super::{LinksConductor, CONFIRM_EVERY};
use crate::ingress::{ArrivalLimits, RemotePublisher};
use crate::network::id;
use crate::quotas::part_of;
use crate::remote_host::IngressPlan;
use crate::wire::{clip, FlowDescription};
use rgaps_client::links::{Direction, LinksPublisherBuilder};
use rgaps_client::{ClientError, OpenError, PublisherQos, RefusalCode};
use rgaps_routing::FlowName;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `max_loans` of a publisher here that publishes the messages of another host's publisher.
const INGRESS_LOANS: u32 = 256;
/// How long a flow waits for a free seat in its topic before this host refuses it.
const ADMIT_LIMIT: Duration = Duration::from_secs(20);

/// Why this host refuses a publisher of another host.
#[derive(Debug, thiserror::Error)]
enum NoRoom {
    #[error("{0}")]
    Barred(String),
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl LinksConductor {
    pub(super) fn opened(&mut self, host: &str, all: Vec<(FlowName, FlowDescription)>) {
        let plans = all.into_iter();
        let plans = plans.map(|(flow, description)| (flow, IngressPlan::new(description)));
        self.admit_all(host, plans.collect());
    }

    /// Admits all flows before it takes messages of any: a subscriber that sees the history of one publisher sees that of all.
    fn admit_all(&mut self, host: &str, mut plans: Vec<(FlowName, IngressPlan)>) {
        for (flow, plan) in &mut plans {
            self.admit(host, *flow, plan);
        }
        let admitted = plans.iter_mut();
        for (flow, plan) in admitted.filter(|(_, of)| of.is_admitted()) {
            self.take_messages(host, *flow, plan);
        }
        if let Some(peer) = self.peers.get_mut(host) {
            peer.add_incoming(plans);
        }
        self.buffer_free(host);
    }

    /// Has messages of an admitted flow received: tells the other host that this one takes them.
    fn take_messages(&mut self, host: &str, flow: FlowName, plan: &mut IngressPlan) {
        let transit = self.begin_transit(host, flow, plan.description());
        let Some(peer) = self.peers.get(host) else {
            return;
        };
        self.confirms |= !plan.description().via.is_empty();
        let bound = plan.bind(id(&self.own.host), transit);
        peer.ingress().answer(flow, Ok(bound));
    }

    /// Confirms new delivered positions to the origins of messages that come here through other hosts.
    pub(super) fn send_confirmed(&mut self) {
        let renewed = self.network.take_renewed();
        let is_renewed = |origin: &str| renewed.contains(&id(origin));
        self.refuse_again(is_renewed);
        let is_due = self.confirmed_at.elapsed() >= CONFIRM_EVERY;
        if !(self.confirms && is_due || !renewed.is_empty()) {
            return;
        }
        (self.confirms, self.confirmed_at) = (false, Instant::now());
        for peer in self.peers.values_mut() {
            let is_all = peer.confirm_positions(is_renewed, |origin, flow, next| {
                let has_room = self.network.has_room(origin);
                if has_room {
                    self.network.confirm(origin, flow, next);
                }
                has_room
            });
            self.confirms |= !is_all;
        }
    }

    /// Finds or creates the landing of a flow. If that fails, the flow waits, or this host refuses it and says why.
    fn admit(&mut self, host: &str, flow: FlowName, plan: &mut IngressPlan) {
        let outcome = self.landing_of(host, flow, plan.description());
        let Some(peer) = self.peers.get(host) else {
            return;
        };
        let of = plan.description();
        let issues = &peer.counts().issues;
        let no_room = match outcome {
            Ok(landing) => {
                issues.allowed(&of.topic);
                if let Some(landing) = &landing {
                    self.landings.insert(&of.topic, flow.publisher, landing);
                    for peer in self.peers.values_mut() {
                        peer.retain_orphans(|orphan, _| !Arc::ptr_eq(orphan, landing));
                    }
                }
                plan.admit(landing);
                return;
            }
            Err(no_room) => no_room,
        };
        // Where a seat may become free soon, or the daemon is away, a reliable flow waits. Orphans may hold the seats.
        let (is_passing, is_crowded) = match &no_room {
            NoRoom::Open(OpenError::Client(ClientError::Refused(refusal))) => {
                (refusal.code == RefusalCode::LimitReached, true)
            }
            NoRoom::Open(OpenError::Client(_)) => (true, false),
            NoRoom::Open(_) => (false, true),
            NoRoom::Barred(_) => (false, false),
        };
        let why = clip(&no_room.to_string());
        let what = "this host cannot take messages of another host";
        issues.warn_refused(&of.topic, 0, what, &why);
        let waits = is_passing && of.offer.reliable;
        let waited = plan.wait();
        let of = plan.description();
        // While there is no answer, the other host keeps the messages. It would not send a flow that was refused.
        if !waits || waited >= ADMIT_LIMIT {
            peer.ingress().answer(flow, Err(why.clone()));
            for end in of.tree.ends().filter(|_| !of.via.is_empty()) {
                self.network.refuse(of.origin(host), flow, (end, &why));
            }
            plan.refuse(why);
        }
        if is_crowded {
            // Frees the seats of orphans. If their hosts come back, the file of delivered positions says what they published here.
            for peer in self.peers.values_mut() {
                peer.retain_orphans(|orphan, _| {
                    orphan.publisher.topic() != plan.description().topic
                });
            }
        }
    }

    /// Finds or creates the landing of a flow. None: its messages only pass through this host.
    fn landing_of(
        &mut self,
        host: &str,
        flow: FlowName,
        of: &FlowDescription,
    ) -> Result<Option<Arc<RemotePublisher>>, NoRoom> {
        // Rules for every host on the path apply, not only those for the last one.
        let mut through = std::iter::once(host).chain(of.via.iter().map(String::as_str));
        let links = &self.config.links;
        let barred =
            through.find_map(|on| links.may_cross(Direction::Receive, on, &of.topic).err());
        if let Some(why) = barred {
            return Err(NoRoom::Barred(why));
        }
        if !of.tree.ends_here() {
            return Ok(None);
        }
        // A publisher may come in a replacing stream, through another host, or from its host's next life: it keeps its landing.
        match self.landings.find(&of.topic, flow.publisher) {
            Some(landing) => Ok(Some(landing)),
            None => self.create_landing(host, flow, of).map(Some),
        }
    }

    fn create_landing(
        &mut self,
        host: &str,
        flow: FlowName,
        of: &FlowDescription,
    ) -> Result<Arc<RemotePublisher>, NoRoom> {
        let (topic, publisher) = (&of.topic, flow.publisher);
        let domain = self.lands_in(topic).map_err(NoRoom::Barred)?;
        let links = &self.config.links;
        let quota = links.quota(host, topic);
        let reserved = quota.map_or(Ok(None), |quota| {
            let limit = ("landing_max", quota.landing_max);
            let taken = self.landings.bytes_of_quota(&quota.name);
            part_of(quota, limit, &of.offer, taken)
        });
        let reserved = reserved.map_err(NoRoom::Barred)?;
        let qos = PublisherQos {
            history: of.offer.history,
            reliable: of.offer.reliable,
            transient_local: of.offer.transient_local,
            deadline: Duration::ZERO,
            loan_timeout: Duration::ZERO,
            max_loans: INGRESS_LOANS,
            ..PublisherQos::default()
        };
        let builder = self.daemon.node.publisher(topic);
        let builder = builder.type_name(&of.type_name).qos(qos);
        let mut builder = match domain {
            Some(domain) => builder.domain(domain),
            None => builder,
        };
        if let Some(peer) = self.peers.get(host) {
            let here = (&self.written(topic), links.relay);
            builder = builder.arrives_over(incoming_path(peer, of, here));
        }
        let created = builder.create()?;
        let limits = ArrivalLimits {
            bytes_max: links.landing_max.0.min(reserved.unwrap_or(u64::MAX)),
            quota: quota.cloned(),
            reserved: reserved.unwrap_or(0),
        };
        Ok(RemotePublisher::new(
            created,
            (publisher, self.landings.own_publishers.clone()),
            self.landings.delivered(publisher, topic),
            of.history,
            limits,
        ))
    }

    /// Tries again to admit the flows that wait for a seat.
    pub(super) fn admit_again(&mut self) {
        let mut all = Vec::new();
        for (host, peer) in &mut self.peers {
            let waiting = peer.take_waiting();
            all.extend((!waiting.is_empty()).then(|| (host.clone(), waiting)));
        }
        for (host, waiting) in all {
            self.admit_all(&host, waiting);
        }
    }
}
