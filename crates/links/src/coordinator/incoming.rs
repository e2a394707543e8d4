//! What links say, and where the messages that come through them land.

use super::hosts::MEET_AGAIN;
use super::routes::WAY_PATIENCE;
use super::{forwarder, Coordinator};
use crate::event::Heard;
use crate::forward::Order;
use crate::host_link::{Flow, HostEvent};
use crate::land::{Landing, LandingLimits, PLACE_LIMIT};
use crate::peer::Incoming;
use crate::quotas::Kind;
use crate::relay::{Carry, Relay};
use crate::wire::{clip, Passed, Said, Source, Stream, SAID};
use rgaps_client::links::{Direction, LinksPublisherBuilder};
use rgaps_client::{ClientError, OpenError, PublisherQos, RefusalCode};
use rgaps_transport::LaneEnd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Loans of a publisher that stands for one elsewhere.
const LANDING_LOANS: u32 = 256;

/// How a publisher of another host has no place here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Short {
    /// As long as a rule, a quota or a domain stays as it is.
    Lasts,
    /// There may be some in a moment.
    MayPass,
    /// Others will leave the topic in a moment, so messages of reliable publishers wait.
    Crowded,
}

impl Short {
    fn of(error: &OpenError) -> Short {
        match error {
            OpenError::Client(ClientError::Refused(refusal))
                if refusal.code == RefusalCode::LimitReached =>
            {
                Short::Crowded
            }
            _ => Short::MayPass,
        }
    }
}

impl Coordinator {
    pub(super) fn listen(&mut self, host: &str, heard: Heard) {
        let heard = match heard {
            Heard::News(news) => return self.learn(news),
            heard => heard,
        };
        let was_dirty = std::mem::replace(&mut self.dirty, true);
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        match heard {
            Heard::Said(bytes) => match Said::decode(&bytes) {
                Ok(Said::Stream(mut stream)) => {
                    peer.early_ends.leave_out(&mut stream);
                    self.announced(host, stream, false);
                }
                Ok(Said::Ready(stream, outcome)) => {
                    if peer.announced.contains_key(&stream) {
                        peer.ready.insert(stream, outcome);
                    }
                }
                Ok(Said::Written(stream, outcome)) => {
                    if peer.announced.contains_key(&stream) {
                        peer.written.insert(stream, outcome);
                    }
                }
                Ok(Said::Ways(ways)) => self.learn_ways(host, ways),
                Ok(Said::Ask(hosts)) => peer.through.asks = hosts.into_iter().collect(),
                Ok(Said::Wants(wants)) => {
                    let of_itself = wants.host == host;
                    peer.through.hear(wants);
                    if of_itself {
                        self.believe(host);
                    }
                }
                Ok(Said::Wanting(sum)) => peer.agreement.hear(sum),
                Ok(Said::Reached(stream, end, outcome)) => {
                    if peer.announced.contains_key(&stream) {
                        peer.through.reached.insert((stream, end), outcome);
                    }
                }
                Ok(Said::Passed(passed)) => {
                    let topic = |passed: &Passed| Some((peer.names.get(&passed.stream)?, *passed));
                    for (name, passed) in passed.iter().filter_map(topic) {
                        let order = Order::Passed(name.clone(), passed);
                        forwarder(&self.forwarders, name).order(order);
                    }
                    // It changes nothing else.
                    self.dirty = was_dirty;
                }
                Ok(Said::Over(stream)) => {
                    peer.end_unused(stream);
                    peer.landings.end_stream(stream);
                    if let Some(link) = peer.linked() {
                        link.buffer_free();
                    }
                }
                Err(error) => {
                    tracing::error!(host, "a host violates the protocol: {error:#}");
                }
            },
            Heard::Over(stream) => {
                peer.say(self.own.incarnation, &Said::Over(stream));
                // It changes nothing here.
                self.dirty = was_dirty;
            }
            Heard::Room => {
                if let Some(link) = peer.linked() {
                    link.buffer_free();
                }
            }
            Heard::Event(HostEvent::Up) => {
                tracing::info!(host, "linked with a host");
                (peer.up, peer.away) = (true, None);
                if std::mem::take(&mut peer.said_lost) {
                    // Once more, all of it: what of it was heard does no harm twice.
                    peer.announced.clear();
                    peer.through.forget_told();
                    peer.agreement.forget_told();
                    let all = peer.incoming.values_mut();
                    all.for_each(|incoming| incoming.written = None);
                    let here = peer.incoming.iter();
                    let answers: Vec<Said> = here
                        .filter(|(_, incoming)| incoming.former.is_none() && incoming.said)
                        .map(|(stream, incoming)| Said::Ready(*stream, incoming.outcome.clone()))
                        .collect();
                    for answer in answers {
                        peer.say(self.own.incarnation, &answer);
                    }
                }
            }
            Heard::Event(HostEvent::Down { why }) => {
                tracing::warn!(host, why, "lost the link with a host");
                (peer.up, peer.detail) = (false, why);
                peer.away.get_or_insert_with(Instant::now);
            }
            Heard::Event(HostEvent::LaneEnded { lane, end, why }) => match end {
                LaneEnd::Closed | LaneEnd::Replaced => {
                    tracing::debug!(host, lane, why, "a lane was closed");
                }
                _ => tracing::warn!(host, lane, why, "a lane to a host failed"),
            },
            Heard::Event(HostEvent::Restarted) => {
                self.routes.ways.doubt(host);
                self.routes.restarted.insert(host.to_owned());
                peer.forget_said();
                for incoming in peer.incoming.values_mut() {
                    incoming.former.get_or_insert_with(Instant::now);
                }
            }
            Heard::Event(HostEvent::Refused { why }) => {
                let why = clip(&why);
                if peer.detail != why {
                    tracing::warn!(host, "no lane to a host could be opened: {why}");
                }
                peer.detail = why;
                // Its secret may be of another life.
                peer.meet_at = Some(Instant::now() + MEET_AGAIN);
            }
            Heard::Event(HostEvent::Closed { flow }) => {
                if let Some(landing) = peer.end_flow(flow) {
                    self.routes.leave(host, flow, landing);
                }
            }
            Heard::Event(HostEvent::GaveUp { flow, .. }) if flow.topic == SAID => {
                peer.said_lost = true;
            }
            // It has gone another way.
            Heard::Event(HostEvent::GaveUp { flow, first, next })
                if peer.moved.contains(&flow.topic) =>
            {
                let given_up = &peer.landings.arrived.given_up;
                given_up.fetch_sub(next - first, Ordering::Relaxed);
            }
            Heard::Event(HostEvent::GaveUp { flow, first, next }) => {
                peer.gave_up.0 += next - first;
                if let Some(topic) = peer.names.get(&flow.topic) {
                    peer.landings.notes.gave_up(topic, next - first);
                }
                peer.tell_given_up();
            }
            Heard::Event(_) | Heard::News(_) => {}
        }
    }

    /// Looks again whether there is a place for what had none.
    pub(super) fn ask_again(&mut self) {
        let mut streams = Vec::new();
        for (host, peer) in self.peers.iter().filter(|(_, peer)| peer.up) {
            let short = peer.incoming.values();
            let short = short.filter(|incoming| incoming.again && incoming.former.is_none());
            streams.extend(short.map(|incoming| (host.clone(), incoming.stream.clone())));
        }
        for (host, stream) in streams {
            self.announced(&host, stream, true);
        }
    }

    /// A host says that messages of a topic come from there; or it said so, and is not told again what it
    /// was told.
    pub(super) fn announced(&mut self, host: &str, stream: Stream, again: bool) {
        let links = &self.config.links;
        let lands_in = self.lands_in(&stream.topic);
        let mut come_over = self.come_over(host, &stream);
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        let (number, topic) = (stream.number, stream.topic.clone());
        let rule = links.may_cross(Direction::Receive, host, &topic).err();
        let quota = links.quota(host, &topic);
        let (mut short, mut crowded, mut all_wait) = (None, false, true);
        // A host that was started again does not know whom it reaches, and those that it did may be away too.
        let outage = Duration::from_millis(links.outage_ms);
        let until = (Instant::now() + WAY_PATIENCE).max(self.begun + outage);
        let mut placed = Vec::new();
        let sources = match rule {
            Some(_) => &[][..],
            None => &stream.publishers[..],
        };
        for source in sources {
            let Source {
                publisher, offer, ..
            } = source;
            let flow = Flow {
                topic: number,
                incarnation: *publisher,
            };
            let carry = links.relay.then(|| Carry::new(source, host)).flatten();
            // What another host said of it does not count less because it came through this one.
            let mut through = source.way.iter();
            let barred =
                through.find_map(|on| links.may_cross(Direction::Receive, on, &topic).err());
            // The same publisher may come in a stream that takes the place of another, or through another
            // host, and goes on where that one stands.
            let known = peer.landings.landing(flow);
            let known = known.or_else(|| self.routes.landing(&topic, *publisher));
            let landing = match (barred, known) {
                (Some(why), _) => Err((why, Short::Lasts)),
                (None, Some(landing)) => Ok(landing),
                (None, None) => {
                    let qos = PublisherQos {
                        history: offer.history,
                        reliable: offer.reliable,
                        transient_local: offer.transient_local,
                        deadline: Duration::ZERO,
                        loan_timeout: Duration::ZERO,
                        max_loans: LANDING_LOANS,
                        ..PublisherQos::default()
                    };
                    let mut builder = self.node.publisher(&topic).type_name(&source.type_name);
                    if let Ok(Some(domain)) = lands_in {
                        builder = builder.domain(domain);
                    }
                    if let Some(over) = come_over.remove(publisher) {
                        builder = builder.came_over(over);
                    }
                    let reserved = quota.map_or(Ok(None), |quota| {
                        self.quotas.reserve(quota, Kind::Landing, *publisher, offer)
                    });
                    let placed = lands_in.clone().and(reserved);
                    let placed = placed.map_err(|why| (why, Short::Lasts));
                    placed.and_then(|reserved| {
                        // The topic may have room for it in a moment.
                        let created = builder.qos(qos).create();
                        let created =
                            created.map_err(|error| (error.to_string(), Short::of(&error)))?;
                        let mark = self.committed.mark(*publisher, &topic);
                        let limits = LandingLimits {
                            landing_max: links.landing_max.0,
                            message_max: quota
                                .and_then(|quota| Some((quota.message_max?.0, quota.name.clone()))),
                            reserved,
                        };
                        let relay = Relay::new(*publisher, &topic, &self.ours);
                        Ok(Landing::new(
                            created,
                            relay,
                            self.ours.clone(),
                            mark,
                            source.history,
                            limits,
                        ))
                    })
                }
            };
            match landing {
                Ok(landing) => {
                    self.routes.landed(&topic, *publisher, &landing);
                    if let Some(carry) = &carry {
                        landing.relay.expect(carry, until);
                    }
                    placed.push((flow, landing.clone(), carry));
                    let incoming = peer.incoming.entry(number);
                    let incoming = incoming.or_insert_with(|| Incoming::new(stream.clone()));
                    incoming.landings.insert(*publisher, landing);
                }
                Err((why, is_short)) => {
                    crowded |= is_short != Short::Lasts;
                    if is_short == Short::Lasts || !offer.reliable {
                        peer.landings.refuse_flow(flow, &topic);
                    }
                    all_wait &= is_short == Short::Crowded && offer.reliable;
                    short = Some(clip(&why));
                }
            }
        }
        // Not before all of them have a place: whoever sees one's history sees all whose history is to land.
        for (flow, landing, carry) in placed {
            peer.landings.insert(flow, landing, carry);
        }
        let again_short = short.is_some();
        let lands = peer.incoming.get(&number);
        let lands = lands.is_some_and(|incoming| !incoming.landings.is_empty());
        let waits = rule.is_none() && short.is_some() && all_wait && !lands;
        let why = rule.map(|why| clip(&why)).or(short);
        match &why {
            Some(why) => {
                if peer.landings.notes.refused(&topic, 0, why) {
                    tracing::warn!(
                        host,
                        topic,
                        "this host cannot take messages of another host: {why}"
                    );
                }
            }
            None => peer.landings.notes.allowed(&topic),
        }
        // Some of its publishers may have a place.
        let outcome = why.filter(|_| !lands).map_or(Ok(()), Err);
        let incoming = peer.incoming.entry(number);
        let incoming = incoming.or_insert_with(|| Incoming::new(stream.clone()));
        let known = incoming.said && incoming.outcome == outcome;
        (incoming.stream, incoming.outcome) = (stream, outcome.clone());
        incoming.again = again_short;
        // Messages wait as long as this; a host that hears that there is no place would send none at all.
        incoming.waits = waits.then(|| incoming.waits.unwrap_or_else(Instant::now));
        let is_silent = incoming
            .waits
            .is_some_and(|since| since.elapsed() < PLACE_LIMIT);
        incoming.said |= !is_silent;
        let refused = outcome.as_ref().err().filter(|_| !is_silent);
        peer.landings
            .refuse(number, &topic, refused.map(String::as_str));
        if let Some(link) = peer.linked() {
            link.buffer_free();
        }
        if !(is_silent || again && known) {
            peer.say(self.own.incarnation, &Said::Ready(number, outcome));
        }
        if crowded {
            self.end_former(&topic);
        }
    }

    /// Gives up the places of publishers whose host's links ended, and may come back: what they published here is known.
    fn end_former(&mut self, topic: &str) {
        for peer in self.peers.values_mut() {
            let of_former = |incoming: &Incoming| incoming.former.is_some();
            let of_topic = peer.incoming.iter();
            let of_topic = of_topic.filter(|(_, i)| of_former(i) && i.stream.topic == topic);
            for stream in of_topic.map(|(stream, _)| *stream).collect::<Vec<_>>() {
                peer.end_incoming(stream);
            }
        }
    }
}
