//! The link with a host, as topics use it. It names flows as control messages do, and goes on when the host restarts.
//!
//! A link's machine is for one life of the host, and never gives a message up. What lasts longer is here:
//!
//! - *Names.* A [`Flow`] has one name for both hosts, and a new number in each machine. OPEN carries the name.
//! - *Restart.* Each flow retains its messages until they are acknowledged. When the host restarts, all flows are opened again, and
//!   what they retain is sent again.
//! - *Outage.* A host without lanes for `outage_ms` gets nothing of what was retained; before that, no more than `outage_max` for a flow.
//! - *Back-pressure.* A reliable flow holds its sender back at `in_flight_max`; a best-effort one gives up its oldest message instead,
//!   of those of which no byte is on its way.
//!
//! **Locks.** The link's comes first, then `Sending` or `received`; none of them is held while topics learn what happened.

use rgaps_transport::machine::frame::{Description, MESSAGE_BYTES_MAX, SEQUENCE_MAX};
use rgaps_transport::machine::{BufferReply, FlowOptions, SendOutcome};
use rgaps_transport::{
    Endpoint, EndpointError, FlowId, LaneEnd, Link, LinkChange, LinkConfig, LinkEvent, LinkRuntime,
    LinkStatus, LinkUser, Payload, Peer,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One publisher's messages in one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The stream.
    pub topic: u64,
    /// The publisher.
    pub incarnation: u64,
}

impl Flow {
    fn describe(self) -> Description {
        let [topic, publisher] = [self.topic, self.incarnation].map(u64::to_le_bytes);
        Description::new(&[topic, publisher].concat()).expect("16 bytes are few")
    }

    fn named(description: &Description) -> Option<Flow> {
        let (topic, publisher) = description.as_slice().split_first_chunk()?;
        Some(Flow {
            topic: u64::from_le_bytes(*topic),
            incarnation: u64::from_le_bytes(publisher.try_into().ok()?),
        })
    }
}

/// What happened on the link with a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// Messages that were sent were given up; the host misses them.
    GaveUp {
        /// Their flow.
        flow: Flow,
        /// The first.
        first: u64,
        /// The number after the last.
        next: u64,
    },
    /// These messages never arrive.
    Missed {
        /// Their flow.
        flow: Flow,
        /// The number after the last.
        next: u64,
    },
    /// All of a flow that arrives was delivered, and nothing follows.
    Closed {
        /// The flow.
        flow: Flow,
    },
    /// There is a lane, where there was none.
    Up,
    /// There is no lane any more.
    Down {
        /// Why.
        why: String,
    },
    /// A lane ended; others may go on.
    LaneEnded {
        /// Its number.
        lane: u32,
        /// Why.
        end: LaneEnd,
        /// In words.
        why: String,
    },
    /// The host restarted; it is sent again what its former life did not acknowledge.
    Restarted,
    /// The host refused a lane, or was refused one.
    Refused {
        /// Why.
        why: String,
    },
}

/// What messages from a host become here.
pub trait Ingress: Send + Sync + 'static {
    /// Memory for a message. It may be called with the link locked: it is quick and does not call the link.
    fn buffer(&self, flow: Flow, sequence: u64, bytes: u64) -> BufferReply;

    /// Something happened. It does not block.
    fn event(&self, event: HostEvent);
}

/// How long messages are retained, and how many.
#[derive(Clone, Copy, Debug)]
pub struct RetainLimits {
    /// Bytes of a flow, as long as the host has lanes.
    pub in_flight_max: u64,
    /// The same while it has none.
    pub outage_max: u64,
    /// A host that has no lanes for so long gets nothing of what was retained.
    pub outage: Duration,
}

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is retained until it is acknowledged or given up.
    Taken,
    /// Not now: a reliable publisher waits.
    Full,
    /// Never: the flow is closed, or the message is empty, too large or too late.
    Never,
}

/// The link with a host. The last clone closes it.
#[derive(Clone)]
pub struct HostLink {
    link: Link,
    user: Arc<HostUser>,
}

/// Messages that a flow has sent.
struct SentFlow {
    id: Option<FlowId>,
    reliable: bool,
    retained_max: u64,
    /// The least number of the next message.
    next: u64,
    retained: VecDeque<Retained>,
    retained_bytes: u64,
    is_closing: bool,
}

struct Retained {
    sequence: u64,
    payload: Arc<dyn Payload>,
    description: Description,
}

impl SentFlow {
    fn position(&self, sequence: u64) -> Option<usize> {
        let found = self
            .retained
            .binary_search_by_key(&sequence, |retained| retained.sequence);
        found.ok()
    }

    fn remove(&mut self, sequence: u64) -> Option<Retained> {
        let retained = self.retained.remove(self.position(sequence)?)?;
        self.retained_bytes -= retained.payload.bytes() as u64;
        Some(retained)
    }

    /// Gives a message up. `None` if it is acknowledged, which is known in a moment.
    fn give_up(&mut self, sequence: u64, link: &mut LinkChange<'_>) -> Option<Retained> {
        let is_acknowledged = self
            .id
            .is_some_and(|id| link.is_current(id) && !link.cancel(id, sequence));
        (!is_acknowledged).then(|| self.remove(sequence))?
    }
}

/// All flows that are sent to the host.
struct Sending {
    limits: RetainLimits,
    flows: BTreeMap<Flow, SentFlow>,
    names: HashMap<FlowId, Flow>,
    /// Since when the host has no lanes.
    down_since: Option<Instant>,
}

impl Sending {
    fn begin(&mut self, flow: Flow, first: u64, link: &mut LinkChange<'_>) -> Option<FlowId> {
        let id = link.open(FlowOptions {
            first,
            base: first,
            description: flow.describe(),
            // What a flow retains is limited here.
            retained_bytes_max: u64::MAX,
            ..FlowOptions::default()
        });
        match id {
            Some(id) => {
                self.names.insert(id, flow);
            }
            None => tracing::error!(
                stream = flow.topic,
                "a host gets too many publishers' messages; those of one more are not sent"
            ),
        }
        id
    }

    /// The machine is a new one: it gets all flows that it does not have, and what they retain.
    fn begin_again(&mut self, link: &mut LinkChange<'_>) {
        self.names.retain(|id, _| link.is_current(*id));
        for (flow, mut sent) in std::mem::take(&mut self.flows) {
            // It began when the machine was new, and that was not known here.
            if sent.id.is_some_and(|id| link.is_current(id)) {
                self.flows.insert(flow, sent);
                continue;
            }
            let first = sent.retained.front();
            let first = first.map_or(sent.next, |retained| retained.sequence);
            sent.id = self.begin(flow, first, link);
            if let Some(id) = sent.id {
                for of in &sent.retained {
                    link.send(id, of.sequence, &of.payload, of.description.clone());
                }
                if sent.is_closing {
                    link.close(id);
                }
            }
            self.flows.insert(flow, sent);
        }
    }
}

/// A message that was given up, and its payload, which is dropped without locks.
type GivenUp = (Flow, u64, Retained);

/// The user of the link.
struct HostUser {
    ingress: Arc<dyn Ingress>,
    sending: Mutex<Sending>,
    received: Mutex<HashMap<FlowId, Flow>>,
}

impl HostUser {
    fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self) -> MutexGuard<'_, HashMap<FlowId, Flow>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, given_up: Vec<GivenUp>) {
        for (flow, first, retained) in given_up {
            drop(retained);
            let next = first + 1;
            self.ingress.event(HostEvent::GaveUp { flow, first, next });
        }
    }

    fn opened(&self, id: FlowId, description: &Description, link: &LinkRuntime) {
        match Flow::named(description) {
            Some(flow) => {
                self.received().insert(id, flow);
            }
            None => {
                let why = Description::new(b"its description is not a flow's name");
                let why = why.expect("it is short");
                link.change(|link| link.refuse(id, why));
            }
        }
    }
}

impl LinkUser for HostUser {
    fn buffer(&self, flow: FlowId, sequence: u64, _: &[u8], bytes: u64) -> BufferReply {
        let name = self.received().get(&flow).copied();
        match name {
            Some(flow) => self.ingress.buffer(flow, sequence, bytes),
            // The flow is being refused.
            None => BufferReply::Full,
        }
    }

    fn event(&self, event: LinkEvent, link: &LinkRuntime) {
        let event = match event {
            LinkEvent::Acknowledged { flow, sequence } => {
                let mut sending = self.sending();
                let Sending { names, flows, .. } = &mut *sending;
                let name = names.get(&flow);
                let sent = name.and_then(|name| flows.get_mut(name));
                let acknowledged = sent.and_then(|sent| sent.remove(sequence));
                drop(sending);
                drop(acknowledged);
                return;
            }
            LinkEvent::Ended { flow } => {
                let mut sending = self.sending();
                let ended = sending.names.remove(&flow);
                let ended = ended.and_then(|name| sending.flows.remove(&name));
                drop(sending);
                drop(ended);
                return;
            }
            LinkEvent::Opened {
                flow, description, ..
            } => return self.opened(flow, &description, link),
            LinkEvent::Missed { flow, next, .. } => match self.received().get(&flow) {
                Some(flow) => HostEvent::Missed { flow: *flow, next },
                None => return,
            },
            LinkEvent::Closed { flow, .. } => match self.received().remove(&flow) {
                Some(flow) => HostEvent::Closed { flow },
                None => return,
            },
            // A host refuses only what no host of this version sends.
            LinkEvent::Room { .. } | LinkEvent::FlowRefused { .. } => return,
            LinkEvent::Up => {
                self.sending().down_since = None;
                HostEvent::Up
            }
            LinkEvent::Down { why } => {
                self.sending().down_since = Some(Instant::now());
                HostEvent::Down { why }
            }
            LinkEvent::LaneEnded { lane, end, why } => HostEvent::LaneEnded { lane, end, why },
            LinkEvent::Restarted => {
                self.received().clear();
                link.change(|link| self.sending().begin_again(link));
                HostEvent::Restarted
            }
            LinkEvent::LaneRefused { why } => HostEvent::Refused { why },
        };
        self.ingress.event(event);
    }
}

impl HostLink {
    /// The link with a host of this name.
    pub fn new(
        endpoint: &Endpoint,
        host: &str,
        (config, limits): (LinkConfig, RetainLimits),
        peer: Peer,
        ingress: Arc<dyn Ingress>,
    ) -> Result<HostLink, EndpointError> {
        let user = Arc::new(HostUser {
            ingress,
            sending: Mutex::new(Sending {
                limits,
                flows: BTreeMap::new(),
                names: HashMap::new(),
                down_since: Some(Instant::now()),
            }),
            received: Mutex::default(),
        });
        let link = endpoint.link(host, config, peer, user.clone())?;
        Ok(HostLink { link, user })
    }

    /// Begins a flow, unless it is there, that retains no more than so many bytes.
    pub fn open(&self, flow: Flow, first: u64, reliable: bool, retained_max: u64) {
        self.link.change(|link| {
            let mut sending = self.user.sending();
            if sending.flows.contains_key(&flow) {
                return;
            }
            let sent = SentFlow {
                id: sending.begin(flow, first, link),
                reliable,
                retained_max,
                next: first,
                retained: VecDeque::new(),
                retained_bytes: 0,
                is_closing: false,
            };
            sending.flows.insert(flow, sent);
        });
    }

    /// Sends a message; it does not block. Sequences ascend, and the host misses those that are left out.
    pub fn send(
        &self,
        flow: Flow,
        sequence: u64,
        payload: Arc<dyn Payload>,
        description: Description,
    ) -> Sent {
        let mut given_up = Vec::new();
        let sent = self.link.change(|link| {
            let mut sending = self.user.sending();
            let limits = sending.limits;
            let Some(sent) = sending.flows.get_mut(&flow) else {
                return Sent::Never;
            };
            let bytes = payload.bytes() as u64;
            let [all, outage] =
                [limits.in_flight_max, limits.outage_max].map(|max| max.min(sent.retained_max));
            let is_sized = bytes > 0 && bytes <= all.min(outage).min(MESSAGE_BYTES_MAX);
            let is_next = sequence >= sent.next && sequence <= SEQUENCE_MAX;
            let (Some(id), true) = (sent.id, is_sized && is_next && !sent.is_closing) else {
                return Sent::Never;
            };
            let max = if link.has_lanes() { all } else { outage };
            let holds_back = sent.reliable && link.has_lanes();
            while sent.retained_bytes + bytes > max {
                let oldest = match holds_back {
                    true => None,
                    false => link.oldest_unsent(id),
                };
                let Some(oldest) = oldest else {
                    return Sent::Full;
                };
                let retained = sent.give_up(oldest, link);
                given_up.extend(retained.map(|retained| (flow, oldest, retained)));
            }
            // The machine may be of the host's next life already: then the message is sent when that is known.
            let outcome = link.send(id, sequence, &payload, description.clone());
            debug_assert_ne!(outcome, SendOutcome::Full, "it has no limit of its own");
            sent.next = sequence + 1;
            sent.retained_bytes += bytes;
            sent.retained.push_back(Retained {
                sequence,
                payload,
                description,
            });
            Sent::Taken
        });
        self.user.report(given_up);
        sent
    }

    /// So many bytes of a message that was sent while it grew are there now; see [`Payload::ready`].
    pub fn ready(&self, flow: Flow, sequence: u64, ready: u64) {
        self.link.change(|link| {
            let sending = self.user.sending();
            if let Some(id) = sending.flows.get(&flow).and_then(|sent| sent.id) {
                link.ready(id, sequence, ready);
            }
        });
    }

    /// A message that was sent while it grew never will be complete: the host misses it. A complete one goes on.
    pub fn give_up(&self, flow: Flow, sequence: u64) {
        let given_up = self.link.change(|link| {
            let mut sending = self.user.sending();
            let sent = sending.flows.get_mut(&flow)?;
            let payload = &sent.retained.get(sent.position(sequence)?)?.payload;
            let is_growing = payload.ready() < payload.bytes();
            let retained = is_growing.then(|| sent.give_up(sequence, link))??;
            Some((flow, sequence, retained))
        });
        self.user.report(given_up.into_iter().collect());
    }

    /// No message of a flow follows. It ends when all that it retains is acknowledged or given up.
    pub fn close_flow(&self, flow: Flow) {
        self.link.change(|link| {
            let mut sending = self.user.sending();
            if let Some(sent) = sending.flows.get_mut(&flow) {
                sent.is_closing = true;
                if let Some(id) = sent.id {
                    link.close(id);
                }
            }
        });
    }

    /// Gives up all that is retained for a host that has had no lanes for too long. To be called now and then.
    pub fn give_up_outage(&self) {
        let sending = self.user.sending();
        let outage = sending.limits.outage;
        let is_over = sending.down_since.is_some_and(|at| at.elapsed() >= outage);
        let retains = sending.flows.values().any(|sent| !sent.retained.is_empty());
        drop(sending);
        if !is_over || !retains {
            return;
        }
        let mut given_up = Vec::new();
        self.link.change(|link| {
            let mut sending = self.user.sending();
            if link.has_lanes() {
                return;
            }
            for (flow, sent) in &mut sending.flows {
                let all: Vec<u64> = sent.retained.iter().map(|of| of.sequence).collect();
                for sequence in all {
                    let retained = sent.give_up(sequence, link);
                    given_up.extend(retained.map(|retained| (*flow, sequence, retained)));
                }
            }
        });
        self.user.report(given_up);
    }

    /// There may be memory again, or a subscriber may take more.
    pub fn buffer_free(&self) {
        self.link.buffer_free();
    }

    /// What the control plane says of the host.
    pub fn set_peer(&self, peer: Peer) -> Result<(), EndpointError> {
        self.link.set_peer(peer)
    }

    /// Its state.
    pub fn status(&self) -> LinkStatus {
        self.link.status()
    }

    /// Ends it; clones of it do nothing any more.
    pub fn close(&self) {
        self.link.close();
    }
}
