//! Topics: what this host wants, and what goes from here to those that want it.

use super::{forwarder, Coordinator, TRY_AGAIN};
use crate::forward::{Order, Route};
use crate::keys::Want;
use crate::plane::random_u64;
use crate::wire::{clip, Said, Stream};
use rgaps::links::Demand;
use rgaps::{Domain, Late, RemoteRow, Subscriber, SubscriberQos};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A topic of this host that others want.
pub(super) struct Outward {
    /// What its subscriber asks for, once there is one.
    pub(super) has: Option<(Demand, Subscriber)>,
    /// The streams of the hosts that it goes to.
    pub(super) streams: BTreeMap<String, (u64, Want)>,
    /// Why there is no subscriber, and when that is tried again.
    pub(super) failed: Option<(String, Instant)>,
    /// What the daemon was told.
    pub(super) told: Option<Vec<RemoteRow>>,
    /// Publishers that were seen.
    publishers: BTreeSet<u64>,
}

impl Coordinator {
    /// Tells other hosts what is wanted here.
    pub(super) fn announce_wants(&mut self) {
        for name in self.plane.wanted() {
            if self.rows.get(&name).is_none_or(|row| row.subscribers == 0) {
                let _ = self.plane.want(&name, None);
            }
        }
        for row in self.rows.values().filter(|row| row.subscribers > 0) {
            let want = Want {
                subscribers: row.subscribers,
                demand: row.demand,
            };
            if let Err(error) = self.plane.want(&row.name, Some(want)) {
                tracing::warn!("{error:#}");
            }
        }
    }

    pub(super) fn end_gone_publishers(&mut self) {
        for (name, topic) in &mut self.topics {
            let row = self.rows.get(name);
            let publishers = row.map_or_else(BTreeSet::new, |row| {
                row.publishers.iter().map(|p| p.incarnation).collect()
            });
            let gone: Vec<u64> = topic.publishers.difference(&publishers).copied().collect();
            topic.publishers = publishers;
            if !gone.is_empty() {
                let order = Order::Gone(name.clone(), gone);
                forwarder(&self.forwarders, name).order(order);
            }
        }
    }

    /// Makes what is so what should be so.
    pub(super) fn reconcile(&mut self) {
        self.reconcile_peers();
        let now = Instant::now();
        if !self.dirty && now < self.reconcile_at {
            return;
        }
        self.dirty = false;
        self.reconcile_at = now + TRY_AGAIN;
        let wanted: BTreeSet<String> = self
            .peers
            .values()
            .filter(|peer| peer.is_usable())
            .flat_map(|peer| peer.wants.keys().cloned())
            .collect();
        let over: Vec<String> = self
            .topics
            .keys()
            .filter(|topic| !wanted.contains(*topic))
            .cloned()
            .collect();
        for name in over {
            self.end_topic(&name);
        }
        for name in wanted {
            self.reconcile_topic(&name);
        }
    }

    pub(super) fn end_topic(&mut self, name: &str) {
        if let Some(topic) = self.topics.remove(name) {
            for (host, (stream, _)) in &topic.streams {
                if let Some(peer) = self.peers.get_mut(host) {
                    peer.announced.remove(stream);
                    peer.ready.remove(stream);
                }
            }
            forwarder(&self.forwarders, name).order(Order::End(name.to_owned()));
        }
    }

    pub(super) fn reconcile_topic(&mut self, name: &str) {
        let now = Instant::now();
        let topic = self
            .topics
            .entry(name.to_owned())
            .or_insert_with(|| Outward {
                has: None,
                streams: BTreeMap::new(),
                failed: None,
                told: None,
                publishers: BTreeSet::new(),
            });
        let wants: BTreeMap<&String, Want> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_usable())
            .filter_map(|(host, peer)| Some((host, *peer.wants.get(name)?)))
            .collect();
        let mut demand = Demand {
            reliable: false,
            transient_local: false,
            depth: 0,
        };
        for want in wants.values() {
            demand.reliable |= want.demand.reliable;
            demand.transient_local |= want.demand.transient_local;
            demand.depth = demand.depth.max(want.demand.depth);
        }
        let before = topic.streams.clone();
        topic.streams.retain(|host, _| wants.contains_key(host));
        let mut wants_history = false;
        for (host, want) in &wants {
            let known = topic.streams.get_mut(*host);
            match known {
                Some((_, known)) => *known = *want,
                None => {
                    // Without a number there is no stream; there will be one in a moment.
                    let Ok(number) = random_u64() else { continue };
                    topic.streams.insert((*host).clone(), (number, *want));
                    wants_history |= want.demand.transient_local;
                }
            }
        }
        let fits = topic
            .has
            .as_ref()
            .is_some_and(|(has, _)| *has == demand && !wants_history);
        let waits = topic.failed.as_ref().is_some_and(|(_, at)| now < *at);
        let mut subscriber = None;
        if !fits && (!waits || before.len() != topic.streams.len()) {
            let qos = SubscriberQos {
                reliable: demand.reliable,
                late: match demand.transient_local {
                    true => Late::AllKept,
                    false => Late::Nothing,
                },
                depth: demand.depth,
                max_held: self.config.links.held_max,
                ..SubscriberQos::default()
            };
            let builder = self.node.subscriber(name).domain(Domain::Host).qos(qos);
            match builder.create() {
                Ok(created) => {
                    topic.has = Some((demand, created.clone()));
                    (topic.failed, topic.told) = (None, None);
                    subscriber = Some(created);
                }
                Err(error) => {
                    let why = clip(&error.to_string());
                    if topic.failed.as_ref().is_none_or(|(known, _)| *known != why) {
                        tracing::warn!(topic = name, "a topic cannot leave this host: {why}");
                    }
                    topic.failed = Some((why, now + TRY_AGAIN));
                }
            }
        }
        if topic.has.is_none() {
            return;
        }
        let changed = before
            .iter()
            .map(|(host, (stream, want))| (host, *stream, want.demand.reliable))
            .ne(topic
                .streams
                .iter()
                .map(|(host, (stream, want))| (host, *stream, want.demand.reliable)));
        if changed || subscriber.is_some() {
            let routes = topic.streams.iter().filter_map(|(host, (stream, want))| {
                let peer = self.peers.get(host)?;
                Some(Route {
                    link: peer.linked()?.clone(),
                    stream: *stream,
                    reliable: want.demand.reliable,
                    sent: peer.departed.clone(),
                })
            });
            let order = Order::Topic(name.to_owned(), subscriber, routes.collect());
            forwarder(&self.forwarders, name).order(order);
        }
        self.announce(name);
        self.tell_remote(name);
    }

    /// Says what goes where, where that has changed.
    pub(super) fn announce(&mut self, name: &str) {
        let (Some(topic), row) = (self.topics.get(name), self.rows.get(name)) else {
            return;
        };
        for (host, (number, _)) in &topic.streams {
            // What is said without lanes may be given up; there will be some.
            let Some(peer) = self.peers.get_mut(host).filter(|peer| peer.up) else {
                continue;
            };
            let stream = Stream {
                number: *number,
                topic: name.to_owned(),
                type_name: row.map(|row| row.type_name.clone()).unwrap_or_default(),
                publishers: row.map_or_else(Vec::new, |row| {
                    let publishers = row.publishers.iter();
                    publishers.map(|p| (p.incarnation, p.offer)).collect()
                }),
            };
            if peer.announced.get(number) != Some(&stream) {
                peer.announced.insert(*number, stream.clone());
                peer.say(self.own.incarnation, &Said::Stream(stream));
            }
        }
    }
}
