//! Publishers of other hosts, and those that stand for them here.

use super::landing::incoming_path;
use super::{LinksConductor, CONFIRM_EVERY};
use crate::ingress::{ArrivalLimits, Bound, RemotePublisher};
use crate::network::id;
use crate::quotas::part_of;
use crate::remote_host::IngressPlan;
use crate::wire::{clip, FlowDescription};
use rgaps_client::links::{Direction, LinksPublisherBuilder};
use rgaps_client::{ClientError, OpenError, PublisherQos, RefusalCode};
use rgaps_routing::FlowName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Loans of a publisher that stands for one elsewhere.
const INGRESS_LOANS: u32 = 256;
/// How long a flow waits for a place where there is none yet.
const ADMIT_LIMIT: Duration = Duration::from_secs(20);
/// A flow that was refused is shown for so long, unless its sender opens it again.
const REFUSED_SHOWN: Duration = Duration::from_secs(15);

/// Why a publisher of another host has no place here.
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

    /// Finds places for all of these before it takes messages of any: whoever sees the history of one publisher sees that of all.
    fn admit_all(&mut self, host: &str, mut plans: Vec<(FlowName, IngressPlan)>) {
        for (flow, plan) in &mut plans {
            self.admit(host, *flow, plan);
        }
        let admitted = plans.iter_mut();
        for (flow, plan) in admitted.filter(|(_, of)| of.refused.is_none() && of.waits.is_none()) {
            self.take_messages(host, *flow, plan);
        }
        if let Some(peer) = self.peers.get_mut(host) {
            peer.incoming.extend(plans);
        }
        self.buffer_free(host);
    }

    fn take_messages(&mut self, host: &str, flow: FlowName, plan: &mut IngressPlan) {
        let transit = self.begin_transit(host, flow, &plan.description);
        let Some(peer) = self.peers.get(host) else {
            return;
        };
        let begins = plan.description.begins.get(&id(&self.own.host));
        if let (Some(next), Some(landing)) = (begins, &plan.landing) {
            landing.begin(*next);
        }
        if !plan.description.via.is_empty() {
            plan.position = Some(Arc::default());
            self.confirms = true;
        }
        let bound = Bound {
            landing: plan.landing.clone(),
            transit,
            position: plan.position.clone(),
        };
        peer.ingress.answer(flow, Ok(bound));
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
    fn admit(&mut self, host: &str, flow: FlowName, plan: &mut IngressPlan) {
        let outcome = self.landing_of(host, flow, &plan.description);
        let Some(peer) = self.peers.get(host) else {
            return;
        };
        let of = &plan.description;
        let issues = &peer.ingress.counts.issues;
        let no_room = match outcome {
            Ok(landing) => {
                issues.allowed(&of.topic);
                if let Some(landing) = &landing {
                    self.landings.insert(&of.topic, flow.publisher, landing);
                    for peer in self.peers.values_mut() {
                        peer.orphans.retain(|(of, _)| !Arc::ptr_eq(of, landing));
                    }
                }
                (plan.landing, plan.refused, plan.waits) = (landing, None, None);
                return;
            }
            Err(no_room) => no_room,
        };
        // Others will leave the topic in a moment, or the daemon is away: messages of reliable publishers wait. And former publishers
        // may be in the way.
        let (passes, is_crowded) = match &no_room {
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
        let waits = passes && of.offer.reliable;
        let since = *plan.waits.get_or_insert_with(Instant::now);
        // Messages wait as long as this; a host that hears that there is no place would send none at all.
        if !waits || since.elapsed() >= ADMIT_LIMIT {
            peer.ingress.answer(flow, Err(why.clone()));
            for end in of.tree.ends().filter(|_| !of.via.is_empty()) {
                self.network.refuse(of.origin(host), flow, (end, &why));
            }
            (plan.refused, plan.waits) = (Some((why, Instant::now())), None);
        }
        if is_crowded {
            // Places of publishers whose host's links ended, and may come back: what they published here is known.
            for peer in self.peers.values_mut() {
                peer.orphans
                    .retain(|(of, _)| of.publisher.topic() != plan.description.topic);
            }
        }
    }

    /// The publisher that stands for one of another host's; none if its messages only go on.
    fn landing_of(
        &mut self,
        host: &str,
        flow: FlowName,
        of: &FlowDescription,
    ) -> Result<Option<Arc<RemotePublisher>>, NoRoom> {
        // What another host said of it does not count less because it came through this one.
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
        // The same publisher may come in a stream that takes the place of another, through another host, or from the next
        // life of its host, and goes on where that one stands.
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

    /// Looks again whether there is a place for what waits for one.
    pub(super) fn admit_again(&mut self) {
        let mut all = Vec::new();
        for (host, peer) in &mut self.peers {
            let is_shown = |since: &Instant| since.elapsed() < REFUSED_SHOWN;
            peer.incoming
                .retain(|_, i| i.refused.as_ref().is_none_or(|(_, at)| is_shown(at)));
            let (waiting, others) = std::mem::take(&mut peer.incoming)
                .into_iter()
                .partition(|(_, i)| i.waits.is_some());
            peer.incoming = others;
            let waiting: BTreeMap<FlowName, IngressPlan> = waiting;
            all.extend((!waiting.is_empty()).then(|| (host.clone(), waiting)));
        }
        for (host, waiting) in all {
            self.admit_all(&host, waiting.into_iter().collect());
        }
    }
}
