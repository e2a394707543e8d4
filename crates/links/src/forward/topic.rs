//! A topic that other hosts want.

use super::going::Going;
use super::held::{Growing, Held, Kept, Letter, Outgoing};
use super::Route;
use crate::host_link::Flow;
use crate::relay::{Carry, Origin, Ours, Passing, Relay};
use crate::wire::{monotonic_ns, to_wall, FlowDescription, Meta};
use rgaps_client::links::WithMetadata;
use rgaps_client::{Domain, RecvError, Sample, Subscriber, Token};
use rgaps_transport::{Description, Payload};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Messages of a topic before others get their turn.
const TURN: usize = 32;
/// Messages that are looked for among what links hold: twice what a subscriber may hold.
const KEPT_MAX: usize = 8192;

/// One message after the other goes to all hosts that want it.
pub struct Topic {
    pub subscriber: Subscriber,
    /// The subscriber before this one, as long as there is something that only it has.
    former: Option<Subscriber>,
    /// In the wait set.
    pub token: Option<Token>,
    going: Vec<Going>,
    /// Taken, and its bytes are not there yet.
    unfinished: Option<(Sample, bool)>,
    outgoing: Option<Offered>,
    /// Sent, and not whole yet.
    growing: Vec<Growing>,
    /// What links may hold, the oldest first.
    kept: VecDeque<Kept>,
    /// Publishers of all that is kept or to come, as they were described last.
    described: BTreeMap<u64, Arc<FlowDescription>>,
    /// Publishers that are to be closed, and those of what is kept that were.
    gone: Vec<u64>,
    past: BTreeSet<u64>,
    /// The next look may find something without a doorbell.
    pub held_up: bool,
}

/// A message that some route may not have had yet.
struct Offered {
    message: Outgoing,
    /// The former subscriber's: routes that began since get it in another way, or not at all.
    is_former: bool,
    /// Routes that have had it, by their streams.
    done: Vec<u64>,
}

/// What there was to take.
enum Next {
    /// A message, or one that is skipped.
    Taken,
    Nothing,
    /// A message that cannot be taken now.
    Waits,
}

/// A message cannot be read.
fn skip(topic: &str, error: &RecvError) -> Next {
    tracing::warn!(%error, topic, "a message cannot be sent to other hosts; skipped");
    Next::Taken
}

/// Who published a message, and as which one. Of a message from elsewhere, also where it goes.
struct Source {
    publisher: u64,
    sequence: u64,
    onward: Option<(Arc<Carry>, Passing)>,
}

impl Source {
    /// None: the message came from elsewhere, and goes nowhere.
    fn of(sample: &Sample, relay: Option<Arc<Relay>>) -> Option<Source> {
        let Some(relay) = relay else {
            return Some(Source {
                publisher: sample.publisher_id(),
                sequence: sample.sequence(),
                onward: None,
            });
        };
        let (sequence, carry, passing) = relay.take(sample.sequence())?;
        Some(Source {
            publisher: relay.publisher,
            sequence,
            onward: Some((carry, passing)),
        })
    }
}

impl Topic {
    /// One that goes nowhere yet.
    pub fn new(subscriber: Subscriber) -> Topic {
        Topic {
            subscriber,
            former: None,
            token: None,
            going: Vec::new(),
            unfinished: None,
            outgoing: None,
            growing: Vec::new(),
            kept: VecDeque::new(),
            described: BTreeMap::new(),
            gone: Vec::new(),
            past: BTreeSet::new(),
            held_up: false,
        }
    }

    /// Its subscribers.
    pub fn into_subscribers(self) -> impl Iterator<Item = Subscriber> {
        std::iter::once(self.subscriber).chain(self.former)
    }

    /// Another subscriber, which began before the one that it takes the place of ends.
    pub fn set_subscriber(&mut self, subscriber: Subscriber) {
        let former = std::mem::replace(&mut self.subscriber, subscriber);
        // Of two changes at once, the first one is what has most.
        self.former.get_or_insert(former);
    }

    /// The hosts that it goes to.
    pub fn set_routes(&mut self, routes: Vec<Route>) {
        self.note_described(&routes);
        let mut former = std::mem::take(&mut self.going);
        let mut reopened = BTreeSet::new();
        for route in routes {
            let same = former
                .iter()
                .position(|going| going.route.stream == route.stream);
            self.going.push(match same {
                Some(at) => {
                    let mut going = former.swap_remove(at);
                    going.set_route(route);
                    going
                }
                None => {
                    let again = self.kept.iter().filter(|_| route.takes_over);
                    let mut again: Vec<Outgoing> = again.filter_map(Kept::outgoing).collect();
                    // What went again to others may have come after what follows it.
                    again
                        .sort_by_key(|message| (message.letter.publisher, message.letter.sequence));
                    let backlog = VecDeque::from(again);
                    let begun = backlog
                        .iter()
                        .map(|message: &Outgoing| message.letter.publisher);
                    reopened.extend(begun.filter(|publisher| self.past.contains(publisher)));
                    let skips_former = self.former.is_some() && !route.takes_over;
                    let route = self.with_past(route, &backlog);
                    Going::new(route, backlog, skips_former)
                }
            });
        }
        self.gone.extend(reopened);
        former.iter_mut().for_each(Going::close_all);
        // Now that whoever takes over has it.
        self.going
            .iter_mut()
            .for_each(Going::confirm_nothing_needed);
    }

    fn note_described(&mut self, routes: &[Route]) {
        let kept: BTreeSet<u64> = self.kept.iter().map(Kept::publisher).collect();
        self.described
            .retain(|publisher, _| kept.contains(publisher));
        for of in routes.iter().flat_map(|route| &route.publishers) {
            self.described.insert(of.publisher, of.clone());
        }
    }

    /// A route also opens flows of publishers that are gone, for what is sent of theirs again.
    fn with_past(&self, mut route: Route, backlog: &VecDeque<Outgoing>) -> Route {
        for Letter {
            publisher, carry, ..
        } in backlog.iter().map(|message| &message.letter)
        {
            let is_described = |of: &Arc<FlowDescription>| of.publisher == *publisher;
            if route.publishers.iter().any(is_described) {
                continue;
            }
            let Some(past) = self.described.get(publisher) else {
                continue;
            };
            let is_for = |end: &&String| {
                **end != route.host
                    && carry
                        .as_ref()
                        .is_none_or(|carry| carry.hosts.contains(*end))
            };
            let ends = route.leads_to.iter().filter(is_for).cloned().collect();
            route.publishers.push(Arc::new(FlowDescription {
                carry: ends,
                ..(**past).clone()
            }));
        }
        route
    }

    /// Messages below this one are at hosts that one leads to.
    pub fn passed(&mut self, flow: Flow, next: u64) {
        let mut going = self.going.iter_mut();
        if let Some(going) = going.find(|going| going.route.stream == flow.topic) {
            going.confirm(flow.incarnation, next);
        }
    }

    /// It goes nowhere any more.
    pub fn close_all(&mut self) {
        self.going.iter_mut().for_each(Going::close_all);
    }

    /// Publishers are gone, and others are there again.
    pub fn set_publishers(&mut self, gone: Vec<u64>, back: &[u64]) {
        self.past.extend(&gone);
        self.gone.extend(gone);
        self.close_gone();
        self.gone.retain(|gone| !back.contains(gone));
        self.past.retain(|past| !back.contains(past));
    }

    /// Whether somebody is to find out who publishes.
    pub fn asks(&mut self) -> bool {
        let all = self.going.iter_mut();
        all.fold(false, |asks, going| going.asks() | asks)
    }

    /// Whether there are messages that are not whole yet.
    pub fn is_growing(&self) -> bool {
        !self.growing.is_empty() || self.unfinished.is_some()
    }

    /// Flows of publishers that are gone end when all that was taken of theirs is sent.
    fn close_gone(&mut self) {
        let waits = self.outgoing.as_ref();
        let waits = waits.map(|offered| offered.message.letter.publisher);
        let unfinished = self.unfinished.as_ref();
        let unfinished = unfinished.map(|(sample, _)| sample.publisher_id());
        let mut gone = std::mem::take(&mut self.gone);
        gone.retain(|publisher| {
            if waits == Some(*publisher) || unfinished == Some(*publisher) {
                return true;
            }
            let waits = self.going.iter().any(|going| going.waits(*publisher));
            if !waits {
                let all = self.going.iter_mut();
                all.for_each(|going| going.close(*publisher));
            }
            waits
        });
        self.gone = gone;
    }

    /// The next sample, and whether the former subscriber had it.
    fn receive(&mut self) -> Result<Option<(Sample, bool)>, RecvError> {
        if let Some(unfinished) = self.unfinished.take() {
            return Ok(Some(unfinished));
        }
        if let Some(former) = &self.former {
            if let Some(sample) = former.try_recv()? {
                return Ok(Some((sample, true)));
            }
            self.former = None;
            self.going.iter_mut().for_each(Going::begin);
        }
        let sample = self.subscriber.try_recv()?;
        Ok(sample.map(|sample| (sample, false)))
    }

    /// Sends what there is. True: there may be more.
    pub fn forward(&mut self, name: &str, ours: &Ours) -> bool {
        self.held_up = false;
        for _ in 0..TURN {
            if !self.send(name) {
                self.held_up = true;
                return false;
            }
            if !self.gone.is_empty() {
                self.close_gone();
            }
            match self.take(name, ours) {
                Next::Taken => {}
                Next::Nothing => return false,
                Next::Waits => {
                    self.held_up = true;
                    return false;
                }
            }
        }
        true
    }

    /// Takes the next message.
    fn take(&mut self, name: &str, ours: &Ours) -> Next {
        // Those are not after what is received next.
        let again = ours.again(name);
        let (sample, is_former) = match self.receive() {
            Ok(Some(sample)) => sample,
            Ok(None) if self.repeat(&again, u64::MAX) => return Next::Taken,
            Ok(None) => return Next::Nothing,
            // What the links hold comes back when it is acknowledged.
            Err(RecvError::TooManyHeld { .. } | RecvError::Client(_)) => return Next::Waits,
            Err(error) => return skip(name, &error),
        };
        let relay = match ours.origin(sample.publisher_id()) {
            Origin::Here => None,
            Origin::Former => return Next::Taken,
            Origin::Elsewhere(relay) => Some(relay),
        };
        if let Some(relay) = &relay {
            if self.repeat(std::slice::from_ref(relay), sample.sequence()) {
                self.unfinished = Some((sample, is_former));
                return Next::Taken;
            }
        }
        match sample.ready_bytes() {
            // The first part of it is enough.
            Ok(ready) if ready > 0 || sample.is_empty() => {}
            Ok(_) => {
                self.unfinished = Some((sample, is_former));
                return Next::Waits;
            }
            Err(error) => return skip(name, &error),
        }
        let is_read_here = sample.domain() == Domain::Host;
        if let Some(Err(error)) = is_read_here.then(|| sample.ready_slice()) {
            return skip(name, &error);
        }
        if let Some(source) = Source::of(&sample, relay) {
            self.set_taken(sample, is_former, source);
        }
        Next::Taken
    }

    /// Describes a message that was taken, for all routes.
    fn set_taken(&mut self, sample: Sample, is_former: bool, source: Source) {
        let Source {
            publisher,
            sequence,
            onward,
        } = source;
        let (carry, passing) = onward.unzip();
        let meta = Meta {
            bytes: sample.len(),
            tag: sample.tag(),
            published_ns: to_wall(sample.publish_ns()),
            tensor: sample.tensor().copied(),
            metadata: sample.metadata().cloned().unwrap_or_default(),
        };
        let letter = Letter {
            publisher,
            sequence,
            meta: Description::new(&meta.encode()).expect("descriptions are short"),
            published_ns: sample.publish_ns(),
            taken_ns: monotonic_ns(),
            carry,
        };
        let held = Held::sample(sample, passing);
        // What it says is the links' to hear when they have the message.
        let ready = held.look().unwrap_or(0);
        if ready < held.bytes() {
            self.growing.push(Growing {
                held: held.clone(),
                publisher,
                sequence,
                told: 0,
            });
        }
        self.set_outgoing(Outgoing { held, letter }, is_former);
    }

    /// Takes one of the messages that go again before this one. False: there is none.
    fn repeat(&mut self, relays: &[Arc<Relay>], number: u64) -> bool {
        let found = relays
            .iter()
            .find_map(|relay| Some((relay.publisher, relay.take_again(number)?)));
        let Some((publisher, (again, passing))) = found else {
            return false;
        };
        let message = Outgoing::again(publisher, again, passing, monotonic_ns());
        self.set_outgoing(message, false);
        true
    }

    fn set_outgoing(&mut self, message: Outgoing, is_former: bool) {
        while self.kept.front().is_some_and(Kept::is_gone) {
            self.kept.pop_front();
        }
        if self.kept.len() >= KEPT_MAX {
            self.kept.retain(|kept| !kept.is_gone());
        }
        if !self.past.is_empty() {
            let publishers: BTreeSet<u64> = self.kept.iter().map(Kept::publisher).collect();
            self.past.retain(|publisher| publishers.contains(publisher));
        }
        self.kept.push_back(message.kept());
        self.outgoing = Some(Offered {
            message,
            is_former,
            done: Vec::new(),
        });
    }

    /// Tells the links how far messages are that they have. Whether any has grown.
    pub fn grow(&mut self, name: &str) -> bool {
        let mut grew = false;
        let Topic {
            growing,
            going,
            outgoing,
            ..
        } = self;
        growing.retain_mut(|message| {
            let Growing {
                held,
                publisher,
                sequence,
                told,
            } = message;
            // Routes that it is still to be offered to see what is there then, but not that it never will be whole.
            let is_outgoing = outgoing
                .as_ref()
                .is_some_and(|offered| Arc::ptr_eq(&offered.message.held, held));
            match held.look() {
                Ok(ready) if ready > *told => {
                    *told = ready;
                    grew = true;
                    for going in going.iter() {
                        let flow = going.flow(*publisher);
                        going.route.link.ready(flow, *sequence, ready as u64);
                    }
                    ready < held.bytes() || is_outgoing
                }
                Ok(ready) => ready < held.bytes() || is_outgoing,
                Err(error) => {
                    for going in going.iter() {
                        let flow = going.flow(*publisher);
                        going.route.link.give_up(flow, *sequence);
                    }
                    if is_outgoing {
                        *outgoing = None;
                    }
                    tracing::warn!(%error, topic = name, "a message cannot be sent to other hosts; skipped");
                    false
                }
            }
        });
        grew
    }

    /// False: some route has no room for it now.
    fn send(&mut self, name: &str) -> bool {
        let mut all = true;
        let offered = &mut self.outgoing;
        for going in &mut self.going {
            let stream = going.route.stream;
            if !going.catch_up(name) {
                all = false;
                continue;
            }
            let Some(offered) = offered else { continue };
            if offered.done.contains(&stream) {
                continue;
            }
            let skips = offered.is_former && going.skips_former;
            match skips || going.offer(name, &offered.message) {
                true => offered.done.push(stream),
                false => all = false,
            }
        }
        if all {
            self.outgoing = None;
        }
        all
    }
}
