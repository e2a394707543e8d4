//! The link with a host, as topics use it. It names flows as control messages do, and goes on when the host restarts.
//!
//! A link's machine is for one life of the host, and never gives a message up. What lasts longer is here:
//!
//! - *Names.* A [`FlowName`] has one name for both hosts, and a new number in each machine. OPEN carries the name, and the description.
//! - *Groups.* Flows that begin together are one [`Group`], so that the receiver knows all of them before it takes messages.
//! - *Restart.* Each flow retains its messages until they are acknowledged. When the host restarts, all flows are opened again, and
//!   what they retain is sent again.
//! - *Outage.* A host without lanes for `outage_ms` gets nothing of what was retained. Before that, a reliable flow retains no more than
//!   `outage_max`, and a best-effort one its newest message.
//! - *Back-pressure.* A reliable flow holds its sender back at `in_flight_max`; a best-effort one gives up its oldest message instead,
//!   of those of which no byte is on its way.
//!
//! **Locks.** The link's comes first, then `Sending` or `received`; none of them is held while topics learn what happened.

use rgaps_routing::FlowName;
use rgaps_transport::machine::frame::{Description, MESSAGE_BYTES_MAX, SEQUENCE_MAX};
use rgaps_transport::machine::{BufferReply, FLOWS_MAX};
use rgaps_transport::{
    Endpoint, EndpointError, FlowId, Link, LinkChange, LinkConfig, LinkEvent, LinkRuntime,
    LinkStatus, LinkUser, OpenReply, Payload, Peer,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Flows of a stream that are opened in one step: the receiver takes messages of none before it knows all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// No other group of this machine has it.
    pub number: u32,
    /// How many flows.
    pub flows: u16,
}

/// A flow that begins.
pub struct NewFlow {
    /// Its name.
    pub flow: FlowName,
    /// It retains no more bytes than this.
    pub retained_max: u64,
    /// What the receiver is told of it.
    pub description: Vec<u8>,
    /// The host sends its messages on. Its next life needs more of them than the flow retains, and in their order: so it gets none of
    /// this flow, and another takes its place.
    pub leads_on: bool,
}

/// What OPEN carries: the flow's name, its group, and its own description.
fn encode_open(flow: FlowName, group: Group, description: &[u8]) -> Option<Description> {
    let mut to = postcard::to_stdvec(&(flow, group)).ok()?;
    to.extend(description);
    Description::new(&to)
}

fn decode_open(from: &[u8]) -> Option<(FlowName, Group, &[u8])> {
    let ((flow, group), rest) = postcard::take_from_bytes::<(FlowName, Group)>(from).ok()?;
    (group.flows > 0).then_some((flow, group, rest))
}

/// What happened on the link with a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A message that was sent was given up; the host misses it.
    GaveUp(FlowName),
    /// The host takes the messages of a flow that is sent there.
    Accepted(FlowName),
    /// The host takes nothing of a flow, which has ended: why, and how many messages it does not have.
    Refused(FlowName, String, u64),
    /// All of a flow that arrives was delivered, and nothing follows.
    Closed(FlowName),
    /// The host has acknowledged all of a flow that is sent there, and knows that nothing follows.
    Ended(FlowName),
    /// To the link, and to no flow of it.
    Link(LinkEvent),
}

/// What messages from a host become here.
pub trait Ingress: Send + Sync + 'static {
    /// A flow begins. It is asked again as long as it answers [`OpenReply::Waits`]. It does not block.
    fn opened(&self, flow: FlowName, group: Group, description: &[u8]) -> OpenReply;

    /// Memory for a message. It may be called with the link locked: it is quick and does not call the link.
    fn buffer(&self, flow: FlowName, sequence: u64, description: &[u8], bytes: u64) -> BufferReply;

    /// Memory for something that the host says.
    fn control_buffer(&self, bytes: u64) -> BufferReply;

    /// Messages of a flow below this one have come, or never will. It does not block.
    fn missed(&self, flow: FlowName, next: u64);

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
    id: FlowId,
    of: NewFlow,
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
        let is_acknowledged = link.is_current(self.id) && !link.cancel(self.id, sequence);
        (!is_acknowledged).then(|| self.remove(sequence))?
    }
}

/// All flows that are sent to the host.
struct Sending {
    limits: RetainLimits,
    flows: BTreeMap<FlowName, SentFlow>,
    names: HashMap<FlowId, FlowName>,
    /// Since when the host has no lanes.
    down_since: Option<Instant>,
    /// The last group that was opened.
    groups: u32,
}

impl Sending {
    fn group(&mut self, flows: usize) -> Group {
        self.groups = self.groups.wrapping_add(1);
        Group {
            number: self.groups,
            flows: u16::try_from(flows).expect("there are no more than FLOWS_MAX"),
        }
    }

    /// Opens a flow in the link's machine. No more are opened than it takes.
    fn begin(
        &mut self,
        of: &NewFlow,
        (first, group): (u64, Group),
        link: &mut LinkChange<'_>,
    ) -> Option<FlowId> {
        let description = encode_open(of.flow, group, &of.description)?;
        let id = link.open(first, description)?;
        self.names.insert(id, of.flow);
        Some(id)
    }

    /// The machine is a new one: it gets all flows that it does not have, and what they retain. Those that are over are returned, to
    /// be dropped without locks.
    fn begin_again(&mut self, link: &mut LinkChange<'_>) -> Vec<SentFlow> {
        self.names.retain(|id, _| link.is_current(*id));
        // Some began when the machine was new, and that was not known here.
        let is_current = |sent: &SentFlow| link.is_current(sent.id);
        let all = std::mem::take(&mut self.flows).into_iter();
        // Flows that lead on take messages until they are closed, and send none.
        let (current, over): (BTreeMap<FlowName, SentFlow>, BTreeMap<FlowName, SentFlow>) =
            all.partition(|(_, sent)| sent.of.leads_on || is_current(sent));
        let (ended, current): (BTreeMap<FlowName, SentFlow>, _) = current
            .into_iter()
            .partition(|(_, sent)| sent.is_closing && !is_current(sent));
        self.flows = current;
        let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
        for flow in over.keys() {
            let count = || over.range(FlowName::all_of(flow.stream)).count();
            let group = groups.entry(flow.stream);
            group.or_insert_with(|| self.group(count()));
        }
        for (flow, mut sent) in over {
            let first = sent.retained.front();
            let first = first.map_or(sent.next, |retained| retained.sequence);
            let Some(id) = self.begin(&sent.of, (first, groups[&flow.stream]), link) else {
                continue;
            };
            sent.id = id;
            for of in &sent.retained {
                link.send(id, of.sequence, &of.payload, of.description.clone());
            }
            if sent.is_closing {
                link.close(id);
            }
            self.flows.insert(flow, sent);
        }
        ended.into_values().collect()
    }

    /// A flow has ended, or the host refused it. What it retains is to be dropped without locks.
    fn end(&mut self, id: FlowId) -> Option<SentFlow> {
        let flow = self.names.remove(&id)?;
        self.flows.remove(&flow)
    }
}

/// A message that was given up, and its payload, which is dropped without locks.
type GivenUp = (FlowName, Retained);

/// The user of the link.
struct HostUser {
    ingress: Arc<dyn Ingress>,
    sending: Mutex<Sending>,
    received: Mutex<HashMap<FlowId, FlowName>>,
}

impl HostUser {
    fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self) -> MutexGuard<'_, HashMap<FlowId, FlowName>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, given_up: Vec<GivenUp>) {
        for (flow, retained) in given_up {
            drop(retained);
            self.ingress.event(HostEvent::GaveUp(flow));
        }
    }

    fn acknowledged(&self, id: FlowId, sequence: u64) {
        let mut sending = self.sending();
        let Sending { names, flows, .. } = &mut *sending;
        let sent = names.get(&id).and_then(|name| flows.get_mut(name));
        let acknowledged = sent.and_then(|sent| sent.remove(sequence));
        drop(sending);
        drop(acknowledged);
    }

    /// A flow that is sent has ended.
    fn end(&self, id: FlowId) -> Option<SentFlow> {
        self.sending().end(id)
    }

    /// Something happened to the link.
    fn changed(&self, event: &LinkEvent, link: &LinkRuntime) {
        match event {
            LinkEvent::Up => self.sending().down_since = None,
            LinkEvent::Down { .. } => self.sending().down_since = Some(Instant::now()),
            LinkEvent::Restarted => {
                self.received().clear();
                let ended = link.change(|link| self.sending().begin_again(link));
                drop(ended);
            }
            _ => {}
        }
    }
}

impl LinkUser for HostUser {
    fn buffer(&self, flow: FlowId, sequence: u64, description: &[u8], bytes: u64) -> BufferReply {
        let name = self.received().get(&flow).copied();
        match name {
            Some(flow) => self.ingress.buffer(flow, sequence, description, bytes),
            None if flow.is_control() => self.ingress.control_buffer(bytes),
            None => BufferReply::Full,
        }
    }

    fn opened(&self, id: FlowId, description: &Description) -> OpenReply {
        let Some((flow, group, description)) = decode_open(description.as_slice()) else {
            return OpenReply::Violation("its description does not name it");
        };
        let mut received = self.received();
        if !received.contains_key(&id) {
            if received.values().any(|other| *other == flow) {
                return OpenReply::Violation("its publisher has a flow of this stream already");
            }
            received.insert(id, flow);
        }
        drop(received);
        let reply = self.ingress.opened(flow, group, description);
        if matches!(reply, OpenReply::Refused(_) | OpenReply::Violation(_)) {
            self.received().remove(&id);
        }
        reply
    }

    fn event(&self, event: LinkEvent, link: &LinkRuntime) {
        let event = match event {
            LinkEvent::Acknowledged { flow, sequence } => return self.acknowledged(flow, sequence),
            LinkEvent::Missed { flow, next, .. } => {
                let flow = self.received().get(&flow).copied();
                return flow.map_or((), |flow| self.ingress.missed(flow, next));
            }
            LinkEvent::Accepted { flow } => {
                let flow = self.sending().names.get(&flow).copied();
                flow.map(HostEvent::Accepted)
            }
            LinkEvent::FlowRefused { flow, why, .. } => self.end(flow).map(|sent| {
                let why = String::from_utf8_lossy(why.as_slice()).into_owned();
                HostEvent::Refused(sent.of.flow, why, sent.retained.len() as u64)
            }),
            LinkEvent::Ended { flow } => self.end(flow).map(|sent| HostEvent::Ended(sent.of.flow)),
            LinkEvent::Closed { flow, .. } => {
                let flow = self.received().remove(&flow);
                flow.map(HostEvent::Closed)
            }
            event => {
                self.changed(&event, link);
                Some(HostEvent::Link(event))
            }
        };
        if let Some(event) = event {
            self.ingress.event(event);
        }
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
                groups: 0,
            }),
            received: Mutex::default(),
        });
        let link = endpoint.link(host, config, peer, user.clone())?;
        Ok(HostLink { link, user })
    }

    /// Says something to the host, in its turn. A host that restarts does not hear what it had not heard. False: too much waits.
    pub fn say(&self, said: Vec<u8>) -> bool {
        self.link.change(|link| link.say(Arc::new(said)))
    }

    /// Begins flows of one stream as a group, but for those that are there. Their messages may have any numbers.
    pub fn open(&self, mut flows: Vec<NewFlow>) {
        self.link.change(|link| {
            let mut sending = self.user.sending();
            flows.retain(|new| !sending.flows.contains_key(&new.flow));
            let room = FLOWS_MAX - sending.flows.len();
            if flows.len() > room {
                tracing::error!(
                    "a host gets too many publishers' messages; those of some are not sent"
                );
                flows.truncate(room);
            }
            let group = sending.group(flows.len());
            for new in flows {
                let Some(id) = sending.begin(&new, (0, group), link) else {
                    continue;
                };
                let sent = SentFlow {
                    id,
                    next: 0,
                    retained: VecDeque::new(),
                    retained_bytes: 0,
                    is_closing: false,
                    of: new,
                };
                sending.flows.insert(sent.of.flow, sent);
            }
        });
    }

    /// Sends a message; it does not block. Sequences ascend, and the host misses those that are left out. `reliable`: it is not
    /// to miss any for want of room.
    pub fn send(
        &self,
        (flow, reliable): (FlowName, bool),
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
                [limits.in_flight_max, limits.outage_max].map(|max| max.min(sent.of.retained_max));
            let is_sized = bytes > 0 && bytes <= all.min(outage).min(MESSAGE_BYTES_MAX);
            let is_next = sequence >= sent.next && sequence <= SEQUENCE_MAX;
            if !is_sized || !is_next || sent.is_closing {
                return Sent::Never;
            }
            let max = match (link.has_lanes(), reliable) {
                (true, _) => all,
                (false, true) => outage,
                (false, false) => bytes,
            };
            let holds_back = reliable && link.has_lanes();
            while sent.retained_bytes + bytes > max {
                let oldest = match holds_back {
                    true => None,
                    false => link.oldest_unsent(sent.id),
                };
                let Some(oldest) = oldest else {
                    return Sent::Full;
                };
                let retained = sent.give_up(oldest, link);
                given_up.extend(retained.map(|retained| (flow, retained)));
            }
            // The machine may be of the host's next life already: then the message is sent when that is known.
            link.send(sent.id, sequence, &payload, description.clone());
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
    pub fn ready(&self, flow: FlowName, sequence: u64, ready: u64) {
        self.link.change(|link| {
            let sending = self.user.sending();
            if let Some(sent) = sending.flows.get(&flow) {
                link.ready(sent.id, sequence, ready);
            }
        });
    }

    /// A message that was sent while it grew never will be complete: the host misses it. A complete one goes on.
    pub fn give_up(&self, flow: FlowName, sequence: u64) {
        let given_up = self.link.change(|link| {
            let mut sending = self.user.sending();
            let sent = sending.flows.get_mut(&flow)?;
            let payload = &sent.retained.get(sent.position(sequence)?)?.payload;
            let is_growing = payload.ready() < payload.bytes();
            let retained = is_growing.then(|| sent.give_up(sequence, link))??;
            Some((flow, retained))
        });
        self.user.report(given_up.into_iter().collect());
    }

    /// The host misses the messages of a flow below this one that were not sent.
    pub fn skip(&self, flow: FlowName, next: u64) {
        let is_due = |sending: &Sending| sending.flows.get(&flow).is_some_and(|of| of.next < next);
        if !is_due(&self.user.sending()) {
            return;
        }
        self.link.change(|link| {
            let mut sending = self.user.sending();
            if let Some(sent) = sending.flows.get_mut(&flow) {
                sent.next = sent.next.max(next);
                link.skip(sent.id, next);
            }
        });
    }

    /// No message of a flow follows. It ends when all that it retains is acknowledged or given up.
    pub fn close_flow(&self, flow: FlowName) {
        self.end_flow(flow, false);
    }

    /// Ends a flow before what the host has not delivered, for which there is no gap: it comes in another flow.
    pub fn cut_flow(&self, flow: FlowName) {
        self.end_flow(flow, true);
    }

    fn end_flow(&self, flow: FlowName, is_cut: bool) {
        let mut dropped = VecDeque::new();
        let ended = self.link.change(|link| {
            let mut sending = self.user.sending();
            let sent = sending.flows.get_mut(&flow)?;
            if !link.is_current(sent.id) && sent.of.leads_on {
                return sending.flows.remove(&flow);
            }
            sent.is_closing = true;
            if is_cut {
                dropped = std::mem::take(&mut sent.retained);
                sent.retained_bytes = 0;
                link.cut(sent.id);
            } else {
                link.close(sent.id);
            }
            None
        });
        drop((ended, dropped));
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
                    given_up.extend(retained.map(|retained| (*flow, retained)));
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

#[cfg(test)]
#[path = "host_link_tests.rs"]
mod tests;
