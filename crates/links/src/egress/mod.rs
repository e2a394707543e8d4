//! The sending side: one subscriber per topic that other hosts want. A sample goes to the link of each of those hosts
//! without a copy, and is held until none of them needs it.
//!
//! If a link has no room for a message, a reliable host's topic waits, and a best-effort host misses the message. A message that is larger
//! than the conductor has planned trees for waits, too: see [`ConductorEvent::Unplanned`].

mod host_flow;
mod message;
mod publisher;
mod topic;
mod transit;

pub use self::transit::{start_transit, InTransit, Transit, TransitCommand};

use self::topic::EgressTopic;
use crate::counts::HostCounts;
use crate::event::{ConductorEvent, SourcedEvent};
use crate::host_link::HostLink;
use crate::keys::number_of;
use crate::quotas::{too_long, Staged};
use crate::wire::{FlowDescription, Tree};
use rgaps_client::links::{Offer, Quota};
use rgaps_client::{Node, Subscriber, Token, WaitSet};
use rgaps_routing::{FlowName, HostId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

const THREADS: usize = 2;
/// Pause before a thread tries again to send messages for which a link or a limit had no room.
const BLOCKED_PAUSE: Duration = Duration::from_millis(1);
/// The longest sleep of a thread without messages, at first and when none come for a while. A command waits until the sleep ends.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_IDLE: Duration = Duration::from_millis(500);
/// Pause between two looks at messages of which more parts arrive.
const GROWS: Duration = Duration::from_micros(15);
/// After so many looks without growth, each pause is twice the one before, up to [`BLOCKED_PAUSE`]. A copy of some MiB from a GPU takes
/// fewer looks.
const SOON: u32 = 16;
/// How much longer than asked the kernel may let a thread sleep, in nanoseconds. The default is 50,000: twice the time in which a GPU
/// copies 1 MiB.
const TIMER_SLACK_NS: u64 = 1000;

/// The publishers here that publish messages of other hosts, of this life of the links and of former ones. The links do not send
/// their messages to other hosts.
pub type OwnPublishers = Arc<RwLock<HashSet<u64>>>;

/// A linked host to which a topic's messages go, or those of one flow in transit.
#[derive(Clone)]
pub struct FlowTarget {
    /// The tree that the messages follow from the linked host, which is its root.
    pub tree: Tree,
    pub link: HostLink,
    /// `FlowName::stream` of all flows to this host.
    pub stream: u64,
    pub publishers: Vec<Arc<FlowDescription>>,
    pub counts: Arc<HostCounts>,
    pub limits: FlowLimits,
    /// Whether the messages come from another host, their origin, which retains them for the hosts below.
    pub is_in_transit: bool,
}

impl FlowTarget {
    /// Why a message of so many bytes is too long for the quota or the link. None: it is not.
    fn too_long(&self, bytes: u64) -> Option<String> {
        let quota = self.limits.quota.as_ref();
        quota.and_then(|quota| too_long(quota, bytes)).or_else(|| {
            let (longest, key) = self.link.longest();
            (bytes > longest).then(|| {
                format!("a message of {bytes} bytes; raise {key} on this host, which is {longest}")
            })
        })
    }
}

/// Why a publisher's messages do not go to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The host refused the publisher's flow a moment ago.
    Refused,
    /// A quota has no room for them, or the path is worse than the publisher requires.
    Barred,
    /// The host has not yet said whether messages arrive there over the path that the publisher requires. The flow is open, so that the
    /// host answers; messages wait for the answer.
    Asks,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowLimits {
    /// Publishers whose messages do not go to the host, and why.
    pub held: BTreeMap<u64, Hold>,
    pub quota: Option<Quota>,
    /// Bytes of the quota that each publisher has reserved for messages on their way to that host.
    pub staging: BTreeMap<u64, u64>,
}

impl FlowLimits {
    /// The quota's rate in bytes per second. None: no limit.
    fn rate(&self) -> Option<u64> {
        Some(self.quota.as_ref()?.rate_max?.0)
    }

    pub fn is_refused(&self, publisher: u64) -> bool {
        self.held.get(&publisher) == Some(&Hold::Refused)
    }

    pub fn bars(&self, publisher: u64) -> bool {
        let hold = self.held.get(&publisher);
        matches!(hold, Some(Hold::Barred | Hold::Asks))
    }

    /// Reserves the bytes of the quota that a publisher needs. If the quota has too few left, bars the publisher and returns why.
    pub fn stage(
        &mut self,
        staged: &mut Staged,
        publisher: u64,
        offer: &Offer,
    ) -> Result<(), String> {
        let Some(quota) = &self.quota else {
            return Ok(());
        };
        let reserved = staged.reserve(quota, publisher, offer);
        let bytes = reserved.inspect_err(|_| {
            self.held.entry(publisher).or_insert(Hold::Barred);
        })?;
        self.staging.extend(bytes.map(|bytes| (publisher, bytes)));
        Ok(())
    }
}

pub enum EgressCommand {
    /// Send a topic's messages to these hosts. A subscriber replaces the former one. Messages of more than so many bytes wait.
    Topic(String, Option<Subscriber>, Vec<FlowTarget>, u64),
    /// A topic has these publishers on this host.
    Publishers(String, BTreeSet<u64>),
    /// A final host that is reached through others confirmed a flow's messages below this number; `u64::MAX`: it refuses the flow.
    Confirmed(String, FlowName, HostId, u64),
    /// No host wants the topic any more.
    End(String),
}

/// The threads that send topics to other hosts, each with its queue of commands. One thread serves a topic.
pub struct EgressThreads(Vec<(Sender<EgressCommand>, JoinHandle<Vec<Subscriber>>)>);

impl EgressThreads {
    /// Starts the threads, which report to `events`. They end soon after this value is dropped.
    pub fn start(
        node: &Node,
        own_publishers: &OwnPublishers,
        events: &Sender<SourcedEvent>,
    ) -> std::io::Result<EgressThreads> {
        let start = |_| {
            let (commands, received) = std::sync::mpsc::channel();
            let thread = Thread {
                set: node.wait_set(),
                topics: BTreeMap::new(),
                due: BTreeSet::new(),
                own_publishers: own_publishers.clone(),
                events: events.clone(),
            };
            let builder = std::thread::Builder::new().name("rgaps-egress".to_owned());
            Ok((commands, builder.spawn(move || thread.run(&received))?))
        };
        let threads = (0..THREADS).map(start);
        Ok(EgressThreads(threads.collect::<std::io::Result<_>>()?))
    }

    pub fn send(&self, topic: &str, command: EgressCommand) {
        let (commands, _) = &self.0[(number_of(topic) % self.0.len() as u64) as usize];
        // Sending fails only after a panic of the thread, which has printed it.
        let _ = commands.send(command);
    }

    /// Ends the threads. Returns their subscribers, which leave their topics when dropped.
    pub fn end(self) -> Vec<Subscriber> {
        let ended = self.0.into_iter().flat_map(|(commands, thread)| {
            drop(commands);
            // A thread that panicked has printed why.
            thread.join().unwrap_or_default()
        });
        ended.collect()
    }
}

struct Thread {
    set: WaitSet,
    topics: BTreeMap<String, EgressTopic>,
    due: BTreeSet<String>,
    own_publishers: OwnPublishers,
    events: Sender<SourcedEvent>,
}

/// What there is to do after topics were looked at.
#[derive(Default)]
struct TurnResult {
    more: bool,
    held_up: bool,
    growing: bool,
    grew: bool,
}

impl Thread {
    fn run(mut self, commands: &Receiver<EgressCommand>) -> Vec<Subscriber> {
        // Without it messages that grow are sent a little later.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        let (mut stalls, mut idle) = (0_u32, LOOK);
        loop {
            if self.topics.is_empty() {
                match commands.recv() {
                    Ok(command) => self.perform(command),
                    Err(_) => return self.end(),
                }
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.perform(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return self.end(),
                }
            }
            idle = match self.due.is_empty() {
                true => (2 * idle).min(LOOK_IDLE),
                false => LOOK,
            };
            let seen = self.look();
            stalls = match seen.growing && !seen.grew {
                true => stalls + 1,
                false => 0,
            };
            let doubled = stalls.saturating_sub(SOON).min(16);
            let pause = (GROWS * (1 << doubled)).min(BLOCKED_PAUSE);
            match (seen.more, seen.growing, seen.held_up) {
                (true, ..) => {}
                (_, true, _) => self.sleep(pause),
                (_, _, true) => self.sleep(BLOCKED_PAUSE),
                _ => self.sleep(idle),
            }
        }
    }

    /// Looks at the topics of which something is due.
    fn look(&mut self) -> TurnResult {
        let mut seen = TurnResult::default();
        for name in std::mem::take(&mut self.due) {
            let Some(topic) = self.topics.get_mut(&name) else {
                continue;
            };
            seen.grew |= topic.grow(&name);
            let more = topic.egress(&name, &self.own_publishers);
            if topic.asks() {
                let _ = self.events.send((None, ConductorEvent::Unknown));
            }
            if let Some(bytes) = topic.unplanned.take() {
                let event = ConductorEvent::Unplanned(name.clone(), bytes);
                let _ = self.events.send((None, event));
            }
            let (held_up, growing) = (topic.held_up, topic.is_growing());
            if held_up {
                // It would not let us sleep.
                topic.detach(&mut self.set);
            } else if topic.token.is_none() {
                topic.token = self.set.attach(&topic.subscriber).ok();
            }
            seen.more |= more;
            seen.held_up |= held_up;
            seen.growing |= growing;
            if more || held_up || growing || topic.token.is_none() {
                self.due.insert(name);
            }
        }
        seen
    }

    fn sleep(&mut self, limit: Duration) {
        match self.set.wait(limit) {
            Ok(ready) => {
                let ready: HashSet<Token> = ready.into_iter().collect();
                let is_ready =
                    |topic: &EgressTopic| topic.token.is_some_and(|of| ready.contains(&of));
                let due = self.topics.iter().filter(|(_, topic)| is_ready(topic));
                self.due.extend(due.map(|(name, _)| name.clone()));
            }
            // Nothing is in the set, or something is wrong with it.
            Err(_) => {
                // What is wrong with the set is found out by its topics.
                self.due.extend(self.topics.keys().cloned());
                std::thread::sleep(limit.min(LOOK));
            }
        }
    }

    fn perform(&mut self, command: EgressCommand) {
        match command {
            EgressCommand::Topic(name, subscriber, routes, planned) => {
                self.due.insert(name.clone());
                self.set_topic(name, subscriber, (routes, planned));
            }
            EgressCommand::Publishers(name, publishers) => {
                self.due.insert(name.clone());
                if let Some(topic) = self.topics.get_mut(&name) {
                    topic.set_publishers(&publishers);
                }
            }
            EgressCommand::Confirmed(name, flow, host, next) => {
                if let Some(topic) = self.topics.get_mut(&name) {
                    topic.confirmed(flow, host, next);
                }
            }
            EgressCommand::End(name) => {
                if let Some(topic) = self.topics.remove(&name) {
                    self.take_leave(topic);
                }
            }
        }
    }

    fn set_topic(
        &mut self,
        name: String,
        subscriber: Option<Subscriber>,
        (routes, planned): (Vec<FlowTarget>, u64),
    ) {
        match (self.topics.get_mut(&name), subscriber) {
            (Some(topic), subscriber) => {
                if let Some(subscriber) = subscriber {
                    topic.detach(&mut self.set);
                    topic.set_subscriber(subscriber);
                }
                topic.set_routes(routes, planned);
            }
            (None, Some(subscriber)) => {
                let mut topic = EgressTopic::new(subscriber);
                topic.set_routes(routes, planned);
                self.topics.insert(name, topic);
            }
            (None, None) => tracing::error!(name, "a topic to be sent has no subscriber"),
        }
    }

    fn take_leave(&mut self, mut topic: EgressTopic) -> EgressTopic {
        topic.detach(&mut self.set);
        topic.close_all();
        topic
    }

    fn end(mut self) -> Vec<Subscriber> {
        let topics = std::mem::take(&mut self.topics).into_values();
        let subscribers = topics.flat_map(|topic| self.take_leave(topic).into_subscribers());
        subscribers.collect()
    }
}
