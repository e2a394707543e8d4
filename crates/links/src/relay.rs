//! What landed here and goes on to other hosts.
//!
//! What comes from another host is published here once, and the sending side's subscriber takes it as it takes
//! what this host's publishers publish. A [`Relay`] is what both sides know of such a publisher: which number a
//! message has where it comes from, where it goes, and which messages are not at the next hosts yet. Those are not
//! confirmed to the host before, so whatever ends in between, that host still has them and sends them again.
//! What was published here already then goes on without being published again ([`Again`]).

use crate::wire::FlowDescription;
use rgaps_transport::Description;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// Changes of where a publisher's messages go, and of how they are numbered, that are remembered.
const MAX_PARTS: usize = 4096;

/// Where messages of a stream go on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destinations {
    /// The hosts that they are for.
    pub hosts: BTreeSet<String>,
    /// The hosts that they came through, their publisher's first.
    pub via: Vec<String>,
}

impl Destinations {
    /// Of a publisher whose messages come from this host, and go on to those that they `may`; none: they go nowhere.
    pub fn new(
        source: &FlowDescription,
        from: &str,
        may: impl Fn(&str) -> bool,
    ) -> Option<Arc<Destinations>> {
        let mut via = source.via.clone();
        via.push(from.to_owned());
        let hosts = source.destinations.iter().filter(|host| may(host));
        let hosts: BTreeSet<String> = hosts.cloned().collect();
        (!hosts.is_empty()).then(|| Arc::new(Destinations { hosts, via }))
    }

    /// Whether they go by way of this host, which leads to these.
    pub fn goes(&self, by: &str, to: &BTreeSet<String>) -> bool {
        self.hosts.iter().any(|host| to.contains(host)) && !self.via.iter().any(|host| host == by)
    }
}

/// A message that was published here before, and goes on now.
pub struct Again {
    /// Its number where it comes from.
    pub sequence: u64,
    /// Its description.
    pub meta: Description,
    /// Its bytes.
    pub bytes: Box<[u8]>,
    /// Where it goes.
    pub destinations: Arc<Destinations>,
    /// What the publisher here had published then.
    after: u64,
}

/// From some number of the publisher here on.
struct Part {
    /// The publisher elsewhere calls it so.
    sequence: u64,
    /// It goes on to these; none: nowhere.
    destinations: Option<Arc<Destinations>>,
}

#[derive(Default)]
struct State {
    /// By numbers of the publisher here.
    parts: BTreeMap<u64, Part>,
    again: VecDeque<Again>,
    /// Published and not taken by the sending side: by their numbers here, and elsewhere.
    untaken: BTreeMap<u64, u64>,
    /// How often each is on its way, by its number elsewhere.
    outstanding: BTreeMap<u64, u32>,
    /// Hosts that the sending side sends to.
    served: BTreeSet<String>,
    /// Hosts that messages are to go to, by those that they come from.
    expected: BTreeMap<String, BTreeSet<String>>,
    /// Until then messages wait for those of them that it does not send to.
    until: BTreeMap<String, Instant>,
}

/// A publisher elsewhere, as messages of it go on.
pub struct Relay {
    /// Its number.
    pub publisher: u64,
    topic: String,
    state: Mutex<State>,
    own_publishers: OwnPublishers,
}

impl Relay {
    /// One of a topic.
    pub fn new(publisher: u64, topic: &str, own_publishers: &OwnPublishers) -> Arc<Relay> {
        Arc::new(Relay {
            publisher,
            topic: topic.to_owned(),
            state: Mutex::default(),
            own_publishers: own_publishers.clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Below this all is where it is to go; `u64::MAX`: all is.
    pub fn floor(&self) -> u64 {
        let state = self.state();
        let first = state.outstanding.first_key_value();
        first.map_or(u64::MAX, |(sequence, _)| *sequence)
    }

    /// The hosts that the sending side sends to from now on; it says so itself, so that none is waited for less before it
    /// does. Of what is published and not taken nothing is kept for others.
    pub fn serve(&self, hosts: BTreeSet<String>) {
        let mut state = self.state();
        if hosts.is_empty() && !state.served.is_empty() {
            for sequence in std::mem::take(&mut state.untaken).into_values() {
                state.confirmed(sequence);
            }
            let again = std::mem::take(&mut state.again);
            again
                .iter()
                .for_each(|again| state.confirmed(again.sequence));
            self.own_publishers
                .0
                .again
                .fetch_sub(again.len(), Ordering::AcqRel);
        }
        state.served = hosts;
        let State { served, until, .. } = &mut *state;
        until.retain(|host, _| !served.contains(host));
    }

    /// Messages from where these come from are to go to these hosts, and to no others. Each waits until then for ways to
    /// them, unless that was said of the host before.
    pub fn expect(&self, destinations: &Destinations, until: Instant) {
        let mut state = self.state();
        let from = destinations.via.last().cloned().unwrap_or_default();
        state.expected.insert(from, destinations.hosts.clone());
        let known = std::mem::take(&mut state.until);
        let missing = destinations.hosts.difference(&state.served);
        let missing = missing.map(|host| (host.clone(), known.get(host).copied().unwrap_or(until)));
        let missing: Vec<_> = missing.collect();
        let named = |host: &String| state.expected.values().any(|all| all.contains(host));
        let others = known.into_iter().filter(|(host, _)| named(host));
        state.until = others.chain(missing).collect();
    }

    /// Whether a message that is for these waits, as there is no way on yet and perhaps soon.
    pub fn waits(&self, destinations: &Destinations) -> bool {
        let state = self.state();
        let now = Instant::now();
        // Those that it was for when it set out, and is for still.
        let expected = destinations
            .via
            .last()
            .and_then(|from| state.expected.get(from));
        let mut missing = destinations.hosts.difference(&state.served);
        missing.any(|host| {
            expected.is_some_and(|hosts| hosts.contains(host))
                && state.until.get(host).is_some_and(|until| now < *until)
        })
    }

    /// A message is about to be published here as number `number`.
    pub fn begin(&self, number: u64, sequence: u64, destinations: Option<&Arc<Destinations>>) {
        let mut state = self.state();
        let last = state.parts.range(..=number).next_back();
        let follows = last.is_some_and(|(from, part)| {
            part.sequence + (number - from) == sequence
                && part.destinations.as_ref() == destinations
        });
        if !follows {
            let destinations = destinations.cloned();
            state.parts.insert(
                number,
                Part {
                    sequence,
                    destinations,
                },
            );
            if state.parts.len() > MAX_PARTS {
                state.parts.pop_first();
            }
        }
        if destinations.is_some_and(|destinations| {
            destinations
                .hosts
                .iter()
                .any(|host| state.served.contains(host))
        }) {
            state.untaken.insert(number, sequence);
            *state.outstanding.entry(sequence).or_default() += 1;
        }
    }

    /// It was not published.
    pub fn undo(&self, number: u64) {
        let mut state = self.state();
        if let Some(sequence) = state.untaken.remove(&number) {
            state.confirmed(sequence);
        }
    }

    /// A message that was published here before, when the publisher here had published `after`.
    pub fn repeat(
        &self,
        sequence: u64,
        meta: &[u8],
        bytes: Box<[u8]>,
        destinations: Arc<Destinations>,
        after: u64,
    ) {
        let mut state = self.state();
        if !destinations
            .hosts
            .iter()
            .any(|host| state.served.contains(host))
        {
            return;
        }
        state.again.push_back(Again {
            sequence,
            meta: Description::new(meta).expect("a frame brought it"),
            bytes,
            destinations,
            after,
        });
        *state.outstanding.entry(sequence).or_default() += 1;
        self.own_publishers.0.again.fetch_add(1, Ordering::AcqRel);
    }

    /// The sending side has taken message `number` from here: what it is elsewhere, and where it goes; none: nowhere.
    pub fn take(self: &Arc<Self>, number: u64) -> Option<(u64, Arc<Destinations>, InTransit)> {
        let mut state = self.state();
        let (from, part) = state.parts.range(..=number).next_back()?;
        let (sequence, destinations) = (part.sequence + (number - from), part.destinations.clone());
        let later = state.untaken.split_off(&(number + 1));
        let mut taken = std::mem::replace(&mut state.untaken, later);
        let counted = taken.remove(&number).is_some();
        // What was not taken before is not taken any more.
        taken
            .into_values()
            .for_each(|missed| state.confirmed(missed));
        if destinations.is_some() && !counted {
            *state.outstanding.entry(sequence).or_default() += 1;
        }
        drop(state);
        let in_transit = InTransit {
            relay: self.clone(),
            sequence,
        };
        Some((sequence, destinations?, in_transit))
    }

    /// What goes on again before message `number` from here.
    pub fn take_again(self: &Arc<Self>, number: u64) -> Option<(Again, InTransit)> {
        let mut state = self.state();
        let again = match state.again.front() {
            Some(again) if again.after <= number => state.again.pop_front()?,
            _ => return None,
        };
        drop(state);
        self.own_publishers.0.again.fetch_sub(1, Ordering::AcqRel);
        let in_transit = InTransit {
            relay: self.clone(),
            sequence: again.sequence,
        };
        Some((again, in_transit))
    }

    /// Whether nothing of it is on its way.
    pub fn is_idle(&self) -> bool {
        self.state().outstanding.is_empty()
    }
}

impl State {
    fn confirmed(&mut self, sequence: u64) {
        if let Some(count) = self.outstanding.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(&sequence);
            }
        }
    }
}

/// A message that is on its way on. Dropped, it is where it is to go, or was given up.
pub struct InTransit {
    relay: Arc<Relay>,
    sequence: u64,
}

impl Drop for InTransit {
    fn drop(&mut self) {
        let mut state = self.relay.state();
        state.confirmed(self.sequence);
    }
}

#[derive(Default)]
struct Known {
    /// By the publishers here.
    relays: RwLock<HashMap<u64, Option<Arc<Relay>>>>,
    /// Messages that wait to go again.
    again: AtomicUsize,
}

/// Publishers on this host that are ours: their messages are nobody's to carry on, but for what is to go on.
#[derive(Clone, Default)]
pub struct OwnPublishers(Arc<Known>);

/// Who published a message.
pub enum Origin {
    /// Somebody on this host.
    Here,
    /// Links of this host, in a former life.
    PreviousLife,
    /// Somebody elsewhere.
    Remote(Arc<Relay>),
}

impl OwnPublishers {
    /// One of ours, of this life if there is a relay.
    pub fn insert(&self, publisher: u64, relay: Option<Arc<Relay>>) {
        let mut relays = self
            .0
            .relays
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let known = relays.entry(publisher).or_default();
        if relay.is_some() {
            *known = relay;
        }
    }

    /// One less.
    pub fn remove(&self, publisher: u64) {
        let mut relays = self
            .0
            .relays
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let ended = relays.remove(&publisher).flatten();
        drop(relays);
        if let Some(relay) = ended {
            // What its messages were kept for is over.
            relay.serve(BTreeSet::new());
        }
    }

    /// Whose that is.
    pub fn origin(&self, publisher: u64) -> Origin {
        let relays = self.0.relays.read().unwrap_or_else(PoisonError::into_inner);
        match relays.get(&publisher) {
            None => Origin::Here,
            Some(None) => Origin::PreviousLife,
            Some(Some(relay)) => Origin::Remote(relay.clone()),
        }
    }

    /// Whether any have messages that go again.
    pub fn any_again(&self) -> bool {
        self.0.again.load(Ordering::Acquire) > 0
    }

    /// Those of a topic with messages that go again.
    pub fn again(&self, topic: &str) -> Vec<Arc<Relay>> {
        if !self.any_again() {
            return Vec::new();
        }
        let relays = self.0.relays.read().unwrap_or_else(PoisonError::into_inner);
        let relays = relays.values().flatten().filter(|r| r.topic == topic);
        let waits = |relay: &&Arc<Relay>| !relay.state().again.is_empty();
        relays.filter(waits).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn destinations(hosts: &[&str]) -> Arc<Destinations> {
        Arc::new(Destinations {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            via: vec!["a".to_owned()],
        })
    }

    fn served(hosts: &[&str]) -> Arc<Relay> {
        let relay = Relay::new(7, "t", &OwnPublishers::default());
        relay.serve(hosts.iter().map(|host| (*host).to_owned()).collect());
        relay
    }

    #[test]
    fn messages_go_to_hosts_that_they_are_for_and_never_back() {
        let to = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect();
        let destinations = destinations(&["c", "d"]);
        assert!(destinations.goes("c", &to(&["c"])) && destinations.goes("x", &to(&["x", "d"])));
        assert!(!destinations.goes("x", &to(&["x"])) && !destinations.goes("a", &to(&["a", "c"])));
    }

    #[test]
    fn what_is_on_its_way_is_not_confirmed() {
        let relay = served(&["c"]);
        let floor = || relay.floor();
        let destinations = destinations(&["c"]);
        for number in 0..3 {
            relay.begin(number, number + 10, Some(&destinations));
        }
        assert_eq!(floor(), 10);
        let (sequence, _, first) = relay.take(0).unwrap();
        let (_, _, second) = relay.take(1).unwrap();
        assert_eq!((sequence, floor()), (10, 10));
        drop(second);
        assert_eq!(floor(), 10);
        drop(first);
        assert_eq!(floor(), 12);
        // Not published after all.
        relay.undo(2);
        assert_eq!((floor(), relay.is_idle()), (u64::MAX, true));
    }

    #[test]
    fn what_is_missed_here_does_not_hold_anything() {
        let relay = served(&["c"]);
        let destinations = destinations(&["c"]);
        (0..5).for_each(|number| relay.begin(number, number, Some(&destinations)));
        drop(relay.take(4));
        assert!(relay.is_idle());
    }

    #[test]
    fn numbers_follow_gaps_and_streams_that_go_nowhere() {
        let relay = served(&["c"]);
        let destinations = destinations(&["c"]);
        relay.begin(0, 5, Some(&destinations));
        relay.begin(1, 6, Some(&destinations));
        relay.begin(2, 9, Some(&destinations));
        relay.begin(3, 10, None);
        relay.begin(4, 11, Some(&destinations));
        let taken: Vec<_> = (0..5)
            .map(|number| relay.take(number).map(|(sequence, ..)| sequence))
            .collect();
        assert_eq!(taken, [Some(5), Some(6), Some(9), None, Some(11)]);
        assert!(relay.is_idle());
    }

    #[test]
    fn what_goes_again_goes_before_what_was_published_after() {
        let own_publishers = OwnPublishers::default();
        let relay = Relay::new(7, "t", &own_publishers);
        own_publishers.insert(70, Some(relay.clone()));
        let destinations = destinations(&["c"]);
        let again = |sequence, after| {
            relay.repeat(sequence, &[], Box::new([1]), destinations.clone(), after)
        };
        assert!(!relay.waits(&destinations));
        relay.expect(&destinations, Instant::now() + Duration::from_secs(60));
        assert!(relay.waits(&destinations));
        relay.serve(["c".to_owned()].into());
        assert!(!relay.waits(&destinations));
        assert!(own_publishers.again("t").is_empty());
        again(3, 0);
        again(4, 1);
        assert_eq!(
            (
                own_publishers.again("t").len(),
                own_publishers.again("u").len()
            ),
            (1, 0)
        );
        let (first, in_transit) = relay.take_again(0).unwrap();
        assert_eq!(first.sequence, 3);
        assert!(relay.take_again(0).is_none());
        assert_eq!(relay.floor(), 3);
        drop(in_transit);
        assert_eq!(relay.floor(), 4);
        assert_eq!(relay.take_again(u64::MAX).unwrap().0.sequence, 4);
        assert!(own_publishers.again("t").is_empty() && relay.is_idle());
        // Nobody is reached any more.
        again(5, 1);
        own_publishers.remove(70);
        assert!(relay.is_idle() && own_publishers.0.again.load(Ordering::Acquire) == 0);
    }

    #[test]
    fn messages_wait_for_hosts_that_they_are_for_and_that_may_be_reached() {
        let relay = served(&["c"]);
        let (both, one) = (destinations(&["c", "d"]), destinations(&["c"]));
        let soon = Instant::now() + Duration::from_secs(60);
        assert!(!relay.waits(&both));
        relay.expect(&both, soon);
        assert!(relay.waits(&both));
        assert!(!relay.waits(&one));
        // It is not for them any more.
        relay.expect(&one, soon);
        assert!(!relay.waits(&both));
        // For long, and from then on again and again.
        relay.expect(&both, Instant::now());
        relay.expect(&both, soon);
        assert!(!relay.waits(&both));
        // They were reached.
        relay.serve(["c", "d"].map(str::to_owned).into());
        relay.serve(["c"].map(str::to_owned).into());
        relay.expect(&both, soon);
        assert!(relay.waits(&both));
    }

    #[test]
    fn publishers_of_former_lives_are_known() {
        let own_publishers = OwnPublishers::default();
        own_publishers.insert(1, None);
        own_publishers.insert(2, Some(served(&[])));
        // Seen among the daemon's.
        own_publishers.insert(2, None);
        assert!(matches!(own_publishers.origin(1), Origin::PreviousLife));
        assert!(matches!(own_publishers.origin(2), Origin::Remote(_)));
        assert!(matches!(own_publishers.origin(3), Origin::Here));
    }
}
