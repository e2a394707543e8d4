//! What links say, and where the messages that come through them land.

use super::hosts::MEET_AGAIN;
use super::Coordinator;
use crate::land::{Heard, Landing};
use crate::peer::Incoming;
use crate::wire::{clip, Said, Stream, SAID};
use rgaps::{Domain, PublisherQos};
use rgaps_transport::{Event, Flow};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Loans of a publisher that stands for one elsewhere.
const LANDING_LOANS: u32 = 256;

impl Coordinator {
    pub(super) fn listen(&mut self, host: &str, heard: Heard) {
        self.dirty = true;
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        match heard {
            Heard::Said(bytes) => match Said::decode(&bytes) {
                Ok(Said::Stream(stream)) => self.announced(host, stream),
                Ok(Said::Ready(stream, outcome)) => {
                    if peer.announced.contains_key(&stream) {
                        peer.ready.insert(stream, outcome);
                    }
                }
                Err(error) => {
                    tracing::error!(host, "a host says what it may not: {error:#}");
                }
            },
            Heard::Event(Event::Up) => {
                tracing::info!(host, "a host is linked");
                peer.up = true;
                if std::mem::take(&mut peer.said_lost) {
                    // Once more, all of it: what of it was heard does no harm twice.
                    peer.announced.clear();
                    let here = peer.incoming.iter();
                    let answers: Vec<Said> = here
                        .filter(|(_, incoming)| incoming.former.is_none())
                        .map(|(stream, incoming)| Said::Ready(*stream, incoming.outcome.clone()))
                        .collect();
                    for answer in answers {
                        peer.say(self.own.incarnation, &answer);
                    }
                }
            }
            Heard::Event(Event::Down { why }) => {
                tracing::warn!(host, why, "the link with a host is down");
                (peer.up, peer.detail) = (false, why);
            }
            Heard::Event(Event::PeerRestarted) => {
                peer.forget_said();
                for incoming in peer.incoming.values_mut() {
                    incoming.former.get_or_insert_with(Instant::now);
                }
            }
            Heard::Event(Event::Refused { why }) => {
                let why = clip(&why);
                if peer.detail != why {
                    tracing::warn!(host, "no lane with a host: {why}");
                }
                peer.detail = why;
                // Its secret may be of another life.
                peer.meet_at = Some(Instant::now() + MEET_AGAIN);
            }
            Heard::Event(Event::Closed { flow }) => {
                if let Some(incoming) = peer.incoming.get_mut(&flow.topic) {
                    incoming.landings.remove(&flow.incarnation);
                    incoming
                        .stream
                        .publishers
                        .retain(|(publisher, _)| *publisher != flow.incarnation);
                    if incoming.landings.is_empty() && incoming.stream.publishers.is_empty() {
                        peer.incoming.remove(&flow.topic);
                    }
                }
                peer.landings.remove(flow);
            }
            Heard::Event(Event::GaveUp { flow, .. }) if flow.topic == SAID => {
                peer.said_lost = true;
            }
            Heard::Event(Event::GaveUp { first, next, .. }) => {
                peer.gave_up.0 += next - first;
                peer.tell_given_up();
            }
            Heard::Event(_) => {}
        }
    }

    /// A host says that messages of a topic come from there.
    pub(super) fn announced(&mut self, host: &str, stream: Stream) {
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        let (number, topic) = (stream.number, stream.topic.clone());
        // The same publisher may come in a stream that takes the place of another, and goes on where
        // that one stands.
        let mut landings: HashMap<u64, Arc<Landing>> = peer
            .incoming
            .values()
            .filter(|incoming| incoming.stream.topic == topic)
            .flat_map(|incoming| &incoming.landings)
            .map(|(publisher, landing)| (*publisher, landing.clone()))
            .collect();
        let mut outcome = Ok(());
        for (publisher, offer) in &stream.publishers {
            let flow = Flow {
                topic: number,
                incarnation: *publisher,
            };
            if peer.landings.has(flow) {
                continue;
            }
            let landing = match landings.remove(publisher) {
                Some(landing) => Ok(landing),
                None => {
                    let qos = PublisherQos {
                        history: offer.history,
                        reliable: offer.reliable,
                        transient_local: offer.transient_local,
                        deadline: Duration::ZERO,
                        loan_timeout: Duration::ZERO,
                        max_loans: LANDING_LOANS,
                    };
                    let mut builder = self.node.publisher(&topic).type_name(&stream.type_name);
                    // Where the topic lives here, or on the host.
                    if self.rows.get(&topic).is_none_or(|row| row.domain.is_none()) {
                        builder = builder.domain(Domain::Host);
                    }
                    builder.qos(qos).create().map(|created| {
                        let mark = self.committed.mark(*publisher);
                        let most = self.config.links.landing_max.0;
                        Landing::new(created, self.ours.clone(), mark, most)
                    })
                }
            };
            match landing {
                Ok(landing) => {
                    peer.landings.insert(flow, landing.clone());
                    let incoming = peer.incoming.entry(number).or_insert_with(|| Incoming {
                        stream: stream.clone(),
                        landings: HashMap::new(),
                        outcome: Ok(()),
                        former: None,
                    });
                    incoming.landings.insert(*publisher, landing);
                }
                Err(error) => {
                    tracing::warn!(%error, host, topic, "messages of another host have no place here");
                    outcome = Err(clip(&error.to_string()));
                }
            }
        }
        peer.landings.refuse(number, outcome.is_err());
        let incoming = peer.incoming.entry(number).or_insert_with(|| Incoming {
            stream: stream.clone(),
            landings: HashMap::new(),
            outcome: Ok(()),
            former: None,
        });
        (incoming.stream, incoming.outcome) = (stream, outcome.clone());
        if let Some(link) = peer.linked() {
            link.retry();
        }
        peer.say(self.own.incarnation, &Said::Ready(number, outcome));
    }
}
