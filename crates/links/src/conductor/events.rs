//! Events: what links, control channels and the control plane report to the conductor.

use super::hosts::ASK_AGAIN;
use super::LinksConductor;
use crate::egress::EgressCommand;
use crate::event::{ConductorEvent, EventSource, SourcedEvent};
use crate::remote_host::{OutgoingStream, RemoteHost};
use crate::wire::{clip, LinkMessage};
use rgaps_routing::{ControlMessage, Datagram, FlowName, HostId};
use rgaps_transport::{LaneEnd, LinkEvent};
use std::time::Instant;

fn violates(host: &str, error: &anyhow::Error) {
    tracing::error!(host, "a host violates the protocol: {error:#}");
}

impl LinksConductor {
    pub(super) fn handle(&mut self, (source, event): SourcedEvent) {
        // A link that was given up ends while the next one begins: its events are void, except that memory it freed serves the next one.
        let is_lasting = matches!(event, ConductorEvent::Room);
        let is_current = |source: &EventSource| {
            let peer = self.peers.get(&source.host);
            peer.is_some_and(|peer| peer.ingress().reporter.source == *source)
        };
        if !is_lasting && source.as_ref().is_some_and(|source| !is_current(source)) {
            return;
        }
        let host = source.as_ref().map_or("", |source| &source.host);
        self.dirty |= !matches!(
            event,
            ConductorEvent::Progress
                | ConductorEvent::TransitBroken(_)
                | ConductorEvent::LinkMessage(_)
        );
        match event {
            ConductorEvent::PlaneEvent(event) => self.plane_event(event),
            // Setting `dirty` is enough: the conductor asks the daemon for the new publisher at once.
            ConductorEvent::Unknown => {}
            ConductorEvent::Unplanned(name, bytes) => {
                if let Some(topic) = self.topics.get_mut(&name) {
                    topic.waits_for_routes(bytes);
                }
            }
            ConductorEvent::Progress => self.confirms = true,
            ConductorEvent::TransitBroken(number) => self.transit_broken(number),
            ConductorEvent::LinkMessage(bytes) => match LinkMessage::decode(&bytes) {
                Ok(LinkMessage::Datagram(datagram)) => self.datagram(host, datagram),
                Ok(link_message) => self.link_message(host, link_message),
                Err(error) => violates(host, &error),
            },
            ConductorEvent::Opened(flows) => self.opened(host, flows),
            ConductorEvent::Room => self.buffer_free(host),
            ConductorEvent::Link(event) => self.link_changed(host, event),
            ConductorEvent::Answered(flow, answer) => {
                let answer = (answer, Instant::now());
                let branch = self.branch_to(host, flow.stream);
                let is_new =
                    branch.and_then(|of| of.answered(flow.publisher, host, answer.clone()));
                if is_new.is_none() {
                    let children = self.transits.children_of(host, flow);
                    children.for_each(|child| child.answer = Some(answer.clone()));
                }
            }
            ConductorEvent::Closed(flow) => self.closed(host, flow),
            ConductorEvent::Ended(flow) => {
                let children = self.transits.children_of(host, flow);
                children.for_each(|child| child.has_ended = true);
            }
        }
    }

    fn closed(&mut self, host: &str, flow: FlowName) {
        let peer = self.peers.get_mut(host);
        let ended = peer.and_then(|peer| peer.close_incoming(flow));
        if let Some((next, of)) = ended.and_then(|of| Some((of.unconfirmed()?, of))) {
            let origin = of.description().origin(host);
            self.network.confirm(origin, flow, next);
        }
        self.close_transit(host, flow);
    }

    fn stream_mut(&mut self, number: u64) -> Option<&mut OutgoingStream> {
        let topic = self.topics.get_mut(self.streams.get(&number)?)?;
        topic.stream_mut(number)
    }

    /// A stream of this host by its number, if `host` is its root.
    fn branch_to(&mut self, host: &str, stream: u64) -> Option<&mut OutgoingStream> {
        let branch = self.stream_mut(stream);
        branch.filter(|branch| branch.tree().root() == host)
    }

    pub(super) fn buffer_free(&self, host: &str) {
        let link = self.peers.get(host).and_then(RemoteHost::linked);
        link.inspect(|link| link.buffer_free());
    }

    /// Handles what a final host, or a host between, reported of a flow of this host: the delivered position, or why it refuses the flow.
    fn flow_reported(&mut self, from: HostId, message: ControlMessage) {
        let (flow, host, outcome) = match message {
            ControlMessage::Confirm { flow, next } => (flow, from, Ok(next)),
            ControlMessage::Refused { flow, host, reason } => (flow, host, Err(clip(&reason))),
            _ => return,
        };
        let Some(name) = self.streams.get(&flow.stream).cloned() else {
            return;
        };
        let Some(branch) = self.stream_mut(flow.stream) else {
            return;
        };
        let Some(end) = branch.end_reported_by(from, host) else {
            return;
        };
        let next = *outcome.as_ref().unwrap_or(&u64::MAX);
        let answer = (outcome.map(|_| ()), Instant::now());
        if let Some(is_new) = branch.answered(flow.publisher, &end, answer) {
            self.dirty |= is_new;
            if let (u64::MAX, Some(topic)) = (next, self.topics.get_mut(&name)) {
                topic.take_off_trees(end);
            }
        }
        let command = EgressCommand::Confirmed(name.clone(), flow, host, next);
        self.egress.send(&name, command);
    }

    /// Handles a datagram of a control channel. Most do not make the state dirty.
    fn datagram(&mut self, host: &str, datagram: Datagram) {
        match self.network.receive(datagram, self.config.links.relay) {
            Ok(received) => {
                self.dirty |= received.interest.is_some();
                for (from, message) in received.reports {
                    self.flow_reported(from.host, message);
                }
                if let Some((next, datagram)) = received.forward {
                    let next = self.network.name(next);
                    let next = next.and_then(|next| self.peers.get(next));
                    next.inspect(|next| next.say(&LinkMessage::Datagram(datagram)));
                }
            }
            Err(error) => violates(host, &error),
        }
    }

    fn link_message(&mut self, host: &str, link_message: LinkMessage) {
        self.dirty = true;
        match link_message {
            LinkMessage::Written(stream, outcome) => {
                if let Some(branch) = self.branch_to(host, stream) {
                    branch.set_written(outcome);
                }
            }
            LinkMessage::Paths(paths) => {
                if let Err(error) = self.network.advertised(host, &paths) {
                    violates(host, &error);
                }
            }
            LinkMessage::Broken(stream, end) => {
                if let Some(branch) = self.branch_to(host, stream) {
                    branch.set_broken();
                }
                self.broken_below(host, stream, &end);
            }
            LinkMessage::Datagram(_) => {}
        }
    }

    fn link_changed(&mut self, host: &str, event: LinkEvent) {
        let Some(peer) = self.peers.get_mut(host) else {
            return;
        };
        match event {
            LinkEvent::Up => {
                tracing::info!(host, "linked with a host");
                peer.reach_mut().lanes_up();
                if let Some(Err(error)) = peer.linked_life().map(|life| self.network.link_up(life))
                {
                    tracing::error!("{error:#}");
                }
            }
            LinkEvent::Down { why } => {
                tracing::warn!(host, why, "lost the link with a host");
                peer.reach_mut().lanes_lost(why, Instant::now());
                self.network.lanes_lost(host);
            }
            LinkEvent::LaneEnded { lane, end, why } => match end {
                LaneEnd::Closed | LaneEnd::Replaced => {
                    tracing::debug!(host, lane, why, "a lane was closed");
                }
                _ => tracing::warn!(host, lane, why, "a lane to a host failed"),
            },
            LinkEvent::Restarted => {
                self.network.link_restarted(host);
                peer.end_life();
                let topics = self.topics.values_mut();
                let branches = topics.filter_map(|topic| topic.branch_mut(host));
                branches.for_each(OutgoingStream::root_restarted);
                self.forget_answers(host);
                self.end_transits(host);
            }
            LinkEvent::LaneRefused { why } => {
                let why = clip(&why);
                if peer.reach_mut().failed(&why) {
                    tracing::warn!(host, "no lane to a host could be opened: {why}");
                }
                // The secret may be that of another life of the host, so this host asks for a new one.
                peer.reach_mut().ask_again(Instant::now() + ASK_AGAIN);
            }
        }
    }
}
