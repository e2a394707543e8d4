//! A topic on its way to one host.

use super::held::{Held, Outgoing};
use super::timed::Carried;
use super::Route;
use crate::host_link::{Flow, Sent};
use crate::rate::Rate;
use rgaps_transport::Payload;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

/// A host that a topic goes to, and how far that is.
pub struct Going {
    pub route: Route,
    /// Its bytes a second, by this clock.
    rate: Option<Rate>,
    clock: Instant,
    /// Per publisher, what it gets next.
    next: HashMap<u64, u64>,
    /// What goes there before anything else.
    backlog: VecDeque<Outgoing>,
    /// Messages that the host has, and hosts behind it perhaps not yet: by publishers, in their order.
    unconfirmed: HashMap<u64, VecDeque<(u64, Arc<Held>)>>,
    unconfirmed_bytes: u64,
    /// It began with another subscriber: what the former one still has is not for it.
    pub skips_former: bool,
}

impl Going {
    /// `backlog` goes there first.
    pub fn new(route: Route, backlog: VecDeque<Outgoing>, skips_former: bool) -> Going {
        let mut going = Going {
            rate: None,
            clock: Instant::now(),
            next: HashMap::new(),
            backlog,
            unconfirmed: HashMap::new(),
            unconfirmed_bytes: 0,
            skips_former,
            route,
        };
        going.set_rate();
        going
    }

    /// Goes on with other limits.
    pub fn set_route(&mut self, route: Route) {
        self.route = route;
        self.set_rate();
    }

    fn set_rate(&mut self) {
        let now = self.now_ns();
        let known = self.rate.map(|rate| rate.bytes_s());
        if known != self.route.limits.rate {
            self.rate = self.route.limits.rate.map(|rate| Rate::new(rate, now));
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A publisher's messages on this link.
    pub fn flow(&self, publisher: u64) -> Flow {
        Flow {
            topic: self.route.stream,
            incarnation: publisher,
        }
    }

    /// The former subscriber has nothing any more.
    pub fn begin(&mut self) {
        self.skips_former = false;
    }

    /// A publisher's messages below this sequence are where they are to go.
    pub fn confirm(&mut self, publisher: u64, next: u64) {
        let Some(messages) = self.unconfirmed.get_mut(&publisher) else {
            return;
        };
        while messages
            .front()
            .is_some_and(|(sequence, _)| *sequence < next)
        {
            if let Some((_, held)) = messages.pop_front() {
                self.unconfirmed_bytes -= held.bytes() as u64;
            }
        }
        if messages.is_empty() {
            self.unconfirmed.remove(&publisher);
        }
    }

    /// Lets go of what waits for hosts behind this one, if it leads to none any more.
    pub fn confirm_nothing_needed(&mut self) {
        if !self.leads_on() {
            self.unconfirmed.clear();
            self.unconfirmed_bytes = 0;
        }
    }

    /// Whether it leads to other hosts, which are not to miss anything.
    fn leads_on(&self) -> bool {
        let Route {
            reliable,
            leads_to,
            host,
            ..
        } = &self.route;
        *reliable && leads_to.iter().any(|end| end != host)
    }

    /// Whether something of a publisher's waits to go before anything else.
    pub fn waits(&self, publisher: u64) -> bool {
        let mut waiting = self.backlog.iter();
        waiting.any(|message| message.letter.publisher == publisher)
    }

    /// Sends what goes first. False: not all of it yet.
    pub fn catch_up(&mut self, topic: &str) -> bool {
        while let Some(message) = self.backlog.pop_front() {
            if !self.offer(topic, &message) {
                self.backlog.push_front(message);
                return false;
            }
        }
        true
    }

    /// False: not now.
    pub fn offer(&mut self, topic: &str, message: &Outgoing) -> bool {
        let letter = &message.letter;
        let (publisher, sequence) = (letter.publisher, letter.sequence);
        let flow = self.flow(publisher);
        let now_ns = self.now_ns();
        let Route {
            link,
            reliable,
            sent,
            notes,
            limits,
            host,
            leads_to,
            ..
        } = &self.route;
        if letter
            .carry
            .as_ref()
            .is_some_and(|carry| !carry.goes(host, leads_to))
        {
            return true;
        }
        if limits.paused || limits.barred.contains(&publisher) {
            return true;
        }
        let bytes = message.held.bytes() as u64;
        let (longest, key) = self.route.longest;
        let too_long = match limits.message_max.is_some_and(|max| bytes > max) {
            true => Some(format!(
                "quota '{}': message_max: a message of {bytes} bytes",
                limits.quota
            )),
            false if bytes > longest => Some(format!(
                "a message of {bytes} bytes; raise {key} on this host, which is {longest}"
            )),
            false => None,
        };
        if let Some(why) = too_long {
            if notes.refused(topic, 1, &why) {
                tracing::warn!(topic, "messages are not sent to another host: {why}");
            }
            sent.left_out.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let is_for = |end: &String| {
            let carry = letter.carry.as_ref();
            end != host && carry.is_none_or(|carry| carry.hosts.contains(end))
        };
        let leads_on = *reliable && leads_to.iter().any(is_for);
        let most = self.route.unconfirmed_max;
        if leads_on && self.unconfirmed_bytes > 0 && self.unconfirmed_bytes + bytes > most {
            return false;
        }
        if let Some(rate) = &mut self.rate {
            if !rate.is_open(now_ns) {
                if !*reliable {
                    sent.left_out.fetch_add(1, Ordering::Relaxed);
                }
                return !*reliable;
            }
        }
        let staging = limits.staging.get(&publisher).copied();
        let next = self.next.entry(publisher).or_insert_with(|| {
            link.open(flow, sequence, *reliable, staging.unwrap_or(u64::MAX));
            sequence
        });
        // Of a subscriber that began again where the history does.
        if sequence < *next {
            return true;
        }
        let traces = sent.traces.as_ref();
        let mut trace = traces.and_then(|traces| traces.pick(topic, publisher, sequence, bytes));
        if let (Some(trace), Some(carry)) = (&mut trace, &letter.carry) {
            trace.came_from = carry.way.last().cloned();
        }
        let carried = Carried::new(
            message.held.clone(),
            sent.clone(),
            letter.taken_ns,
            trace.clone(),
        );
        match link.send(flow, sequence, carried, letter.meta.clone()) {
            Sent::Taken => {
                if let Some(rate) = &mut self.rate {
                    rate.spend(bytes);
                }
                sent.times.take.span(letter.published_ns, letter.taken_ns);
                if let (Some(traces), Some(trace)) = (traces, &trace) {
                    if letter.carry.is_none() && message.held.trace_once() {
                        traces.taken(trace, letter.published_ns, letter.taken_ns);
                    }
                }
                sent.messages.fetch_add(1, Ordering::Relaxed);
                sent.bytes.fetch_add(bytes, Ordering::Relaxed);
                if leads_on {
                    let messages = self.unconfirmed.entry(publisher).or_default();
                    messages.push_back((sequence, message.held.clone()));
                    self.unconfirmed_bytes += bytes;
                }
            }
            Sent::Full if *reliable => return false,
            Sent::Full | Sent::Never => {
                sent.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        *next = sequence + 1;
        true
    }

    /// A publisher is gone, and all that was taken of its messages is sent.
    pub fn close(&mut self, publisher: u64) {
        let flow = self.flow(publisher);
        let Route { link, reliable, .. } = &self.route;
        // One that sent nothing has a place there, too, until its flow ends.
        if self.next.remove(&publisher).is_none() {
            link.open(flow, 0, *reliable, u64::MAX);
        }
        link.close_flow(flow);
    }

    /// The topic does not go there any more.
    pub fn close_all(&mut self) {
        for publisher in self.next.keys().copied().collect::<Vec<_>>() {
            self.close(publisher);
        }
    }
}
