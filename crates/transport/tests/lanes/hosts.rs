//! The ends of a link on loopback: a user that checks every message, and a link whose flows have names.
use rgaps_connection::Security;
#[allow(unused_imports, reason = "every test program uses a part of it")]
pub use rgaps_testkit::{until, LIMIT};
use rgaps_transport::machine::frame::Description;
use rgaps_transport::machine::{BufferReply, CardBuffer, ReceiveBuffer};
#[allow(unused_imports, reason = "every test program uses a part of it")]
pub use rgaps_transport::LinkEvent;
use rgaps_transport::{
    Endpoint, EndpointConfig, FlowEvent, FlowId, FlowReceiver, LinkConfig, LinkRuntime, LinkUser,
    OpenReply, Peer,
};
use rgaps_transport::{LaneKey, Payload, Rdma};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// One publisher's messages, as both ends name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    pub topic: u64,
    pub incarnation: u64,
}

impl Flow {
    pub fn description(self) -> Description {
        let bytes = [self.topic.to_le_bytes(), self.incarnation.to_le_bytes()].concat();
        Description::new(&bytes).unwrap()
    }

    fn of(description: &Description) -> Self {
        let number = |at: usize| {
            let bytes = &description.as_slice()[at..at + 8];
            u64::from_le_bytes(bytes.try_into().unwrap())
        };
        Self {
            topic: number(0),
            incarnation: number(8),
        }
    }
}

/// The events of a link, with the names of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Ended {
        flow: Flow,
    },
    Opened {
        flow: Flow,
    },
    Closed {
        flow: Flow,
    },
    Accepted {
        flow: Flow,
    },
    FlowRefused {
        flow: Flow,
        why: String,
        dropped: Vec<u64>,
    },
    Link(LinkEvent),
}

/// The bytes of a message, different for each message and in each part of it.
pub fn content(flow: Flow, sequence: u64, bytes: usize) -> Vec<u8> {
    let number = flow.topic.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ flow.incarnation.rotate_left(17)
        ^ sequence.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    rgaps_testkit::content(number, bytes)
}

/// Memory for messages.
pub trait Arena: Send + Sync {
    fn piece(&self, bytes: usize) -> Box<dyn Piece>;
}

/// A piece of an arena's memory, which is free again when this is dropped.
pub trait Piece: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The address for network cards, if the CPU does not reach the memory.
    fn direct(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, bytes: &[u8]) {
        self.bytes_mut().copy_from_slice(bytes);
    }
    /// The observer of chunks that land in such memory.
    fn on_card(&self) -> Option<Arc<dyn CardBuffer>> {
        None
    }
    /// The bytes that have landed.
    fn landed(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }
}

struct Heap;

impl Arena for Heap {
    fn piece(&self, bytes: usize) -> Box<dyn Piece> {
        Box::new(vec![0xdd; bytes])
    }
}

impl Piece for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

struct Message(Box<dyn Piece>, usize);

impl Payload for Message {
    fn bytes(&self) -> usize {
        self.1
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        &self.0.bytes()[from..to]
    }

    fn direct(&self) -> Option<u64> {
        self.0.direct()
    }
}

#[derive(Default)]
pub struct Seen {
    /// The sequences of each flow in the order of their delivery.
    pub committed: BTreeMap<Flow, Vec<u64>>,
    pub missed: BTreeMap<Flow, Vec<(u64, u64)>>,
    pub acknowledged: BTreeMap<Flow, Vec<u64>>,
    pub events: Vec<Event>,
    pub landed: u64,
}

impl Seen {
    /// The acknowledged sequences, sorted, with repetitions. The acknowledgement of a large one may be reported after the next one's.
    pub fn acknowledged(&self, flow: Flow) -> Vec<u64> {
        let mut all = self.acknowledged.get(&flow).cloned().unwrap_or_default();
        all.sort_unstable();
        all
    }
}

/// A link's user that checks every byte.
pub struct Host {
    pub seen: Mutex<Seen>,
    pub changed: Condvar,
    /// Bytes of receive buffers in use; above `memory_max` the user has none.
    pub in_use: Arc<AtomicUsize>,
    pub memory_max: AtomicUsize,
    /// How many more messages the user takes.
    pub commits_left: Arc<AtomicU64>,
    /// How often the user did not take a message.
    pub commits_refused: AtomicU64,
    /// The user refuses all messages of this topic.
    pub refused_topic: u64,
    /// How long the next report of landed bytes takes.
    pub dawdle: Mutex<Duration>,
    /// The answers to the next flows that begin; later ones are accepted.
    pub replies: Mutex<VecDeque<OpenReply>>,
    /// Called when the last lane has ended.
    pub at_down: Mutex<Option<Box<dyn FnMut() + Send>>>,
    flows: Mutex<Flows>,
    arena: Arc<dyn Arena>,
    me: std::sync::Weak<Host>,
}

/// The flows of a host's link.
#[derive(Default)]
struct Flows {
    sent: BTreeMap<Flow, SentFlow>,
    received: BTreeMap<FlowId, Flow>,
    /// The delivered position of each flow.
    positions: BTreeMap<Flow, u64>,
}

struct SentFlow {
    id: FlowId,
    retained: BTreeMap<u64, Arc<dyn Payload>>,
}

impl Flows {
    fn name(&self, id: FlowId) -> Flow {
        let mut sent = self.sent.iter();
        *sent.find(|(_, flow)| flow.id == id).unwrap().0
    }
}

struct Memory {
    piece: Box<dyn Piece>,
    bytes: usize,
    flow: Flow,
    host: Arc<Host>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.host.in_use.fetch_sub(self.bytes, SeqCst);
    }
}

/// Observes the chunks that land in a host's memory.
struct Follower(Arc<Host>);

impl CardBuffer for Follower {
    fn address(&self) -> Option<u64> {
        None
    }

    fn landed(&self, _from: u64, bytes: u64, directly: bool) {
        assert!(!directly, "it has no memory");
        std::thread::sleep(std::mem::take(&mut *self.0.dawdle.lock().unwrap()));
        self.0.seen.lock().unwrap().landed += bytes;
    }
}

impl ReceiveBuffer for Memory {
    fn memory(&mut self) -> &mut [u8] {
        self.piece.bytes_mut()
    }

    fn on_card(&mut self) -> Option<Arc<dyn CardBuffer>> {
        let follower = || Arc::new(Follower(Arc::clone(&self.host))) as Arc<dyn CardBuffer>;
        Some(self.piece.on_card().unwrap_or_else(follower))
    }

    fn deliver(
        self: Box<Self>,
        sequence: u64,
        description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        let left = &self.host.commits_left;
        let take = |left: u64| left.checked_sub(1);
        if left.fetch_update(SeqCst, SeqCst, take).is_err() {
            self.host.commits_refused.fetch_add(1, SeqCst);
            return Err(self);
        }
        assert_eq!(description, sequence.to_le_bytes());
        let bytes = self.piece.landed();
        let expected = content(self.flow, sequence, bytes.len());
        assert!(bytes == expected, "{:?} {sequence} is damaged", self.flow);
        let next = sequence + 1;
        let mut flows = self.host.flows.lock().unwrap();
        flows.positions.insert(self.flow, next);
        drop(flows);
        let mut seen = self.host.seen.lock().unwrap();
        seen.committed.entry(self.flow).or_default().push(sequence);
        self.host.changed.notify_all();
        Ok(())
    }
}

impl FlowReceiver for Host {
    fn buffer(&self, id: FlowId, sequence: u64, _: &[u8], bytes: u64) -> BufferReply {
        let flows = self.flows.lock().unwrap();
        let flow = flows.received[&id];
        let position = flows.positions.get(&flow).copied();
        drop(flows);
        if flow.topic == self.refused_topic {
            return BufferReply::Refused;
        }
        if position.is_some_and(|position| sequence < position) {
            return BufferReply::Refused;
        }
        let bytes = bytes as usize;
        let max = self.memory_max.load(SeqCst);
        let take = |used: usize| (used + bytes <= max).then_some(used + bytes);
        if self.in_use.fetch_update(SeqCst, SeqCst, take).is_err() {
            return BufferReply::Full;
        }
        let host = self.me.upgrade().unwrap();
        let piece = self.arena.piece(bytes);
        BufferReply::Buffer(Box::new(Memory {
            piece,
            bytes,
            flow,
            host,
        }))
    }

    fn opened(&self, id: FlowId, description: &Description) -> OpenReply {
        let flow = Flow::of(description);
        let reply = match self.replies.lock().unwrap().pop_front() {
            Some(OpenReply::Waits) => return OpenReply::Waits,
            reply => reply.unwrap_or(OpenReply::Accepted),
        };
        self.flows.lock().unwrap().received.insert(id, flow);
        let mut seen = self.seen.lock().unwrap();
        seen.events.push(Event::Opened { flow });
        self.changed.notify_all();
        reply
    }

    fn missed(&self, flow: FlowId, first: u64, next: u64) {
        let flows = self.flows.lock().unwrap();
        let flow = flows.received[&flow];
        // A gap below the position is of messages that an earlier life delivered.
        if flows.positions.get(&flow).is_none_or(|at| next > *at) {
            let mut seen = self.seen.lock().unwrap();
            seen.missed.entry(flow).or_default().push((first, next));
        }
        self.changed.notify_all();
    }

    fn closed(&self, flow: FlowId) {
        let flow = self.flows.lock().unwrap().received[&flow];
        self.seen
            .lock()
            .unwrap()
            .events
            .push(Event::Closed { flow });
        self.changed.notify_all();
    }
}

impl LinkUser for Host {
    fn event(&self, event: LinkEvent, link: &LinkRuntime) {
        if let (LinkEvent::Down { .. }, Some(at_down)) =
            (&event, &mut *self.at_down.lock().unwrap())
        {
            at_down();
        }
        if event == LinkEvent::Restarted {
            self.open_again(link);
        }
        self.seen.lock().unwrap().events.push(Event::Link(event));
        self.changed.notify_all();
    }

    fn flow_event(&self, event: FlowEvent, _: &LinkRuntime) {
        let mut flows = self.flows.lock().unwrap();
        let mut seen = self.seen.lock().unwrap();
        let event = match event {
            FlowEvent::Acknowledged { flow, sequence, .. } => {
                let flow = flows.name(flow);
                let sent = flows.sent.get_mut(&flow).unwrap();
                sent.retained.remove(&sequence);
                seen.acknowledged.entry(flow).or_default().push(sequence);
                None
            }
            FlowEvent::Ended { flow } => Some(Event::Ended {
                flow: flows.name(flow),
            }),
            FlowEvent::Refused { flow, why, dropped } => Some(Event::FlowRefused {
                flow: flows.name(flow),
                why: String::from_utf8(why.as_slice().to_vec()).unwrap(),
                dropped: dropped.iter().map(|(sequence, _)| *sequence).collect(),
            }),
            FlowEvent::Accepted { flow } => Some(Event::Accepted {
                flow: flows.name(flow),
            }),
        };
        seen.events.extend(event);
        self.changed.notify_all();
    }
}

impl Host {
    /// Reopens all flows after the peer restarted: it gets the messages that were not acknowledged.
    fn open_again(&self, link: &LinkRuntime) {
        link.change(|link| {
            let mut flows = self.flows.lock().unwrap();
            flows.received.clear();
            for (flow, sent) in &flows.sent {
                link.reopen(sent.id, flow.description());
            }
        });
    }

    /// Sets the position that an earlier life of this host has reached.
    pub fn has_delivered(&self, flow: Flow, next: u64) {
        self.flows.lock().unwrap().positions.insert(flow, next);
    }
}

impl Host {
    pub fn new() -> Arc<Self> {
        Self::with(Arc::new(Heap))
    }

    /// A host whose messages are in this memory.
    pub fn with(arena: Arc<dyn Arena>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            seen: Mutex::default(),
            changed: Condvar::new(),
            in_use: Arc::default(),
            memory_max: AtomicUsize::new(1 << 30),
            commits_left: Arc::new(AtomicU64::new(u64::MAX)),
            commits_refused: AtomicU64::new(0),
            refused_topic: u64::MAX,
            dawdle: Mutex::default(),
            at_down: Mutex::default(),
            replies: Mutex::default(),
            flows: Mutex::default(),
            arena,
            me: me.clone(),
        })
    }

    /// Waits for a condition; fails with its name.
    pub fn wait(&self, what: &str, mut is: impl FnMut(&Seen) -> bool) {
        let until = Instant::now() + LIMIT;
        let mut seen = self.seen.lock().unwrap();
        while !is(&seen) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "waited {LIMIT:?} for {what}: committed {:?}, acknowledged {:?}, missed {:?}, events {:?}",
                last(&seen.committed),
                last(&seen.acknowledged),
                seen.missed,
                seen.events
            );
            let slice = left.min(Duration::from_millis(100));
            seen = self.changed.wait_timeout(seen, slice).unwrap().0;
        }
    }

    /// Waits until all memory is free: a lane that was being opened when the link was closed holds the link a little longer.
    pub fn gives_back(&self) {
        until("all memory", || self.in_use.load(SeqCst) == 0);
    }

    pub fn has(&self, what: &str, event: impl Fn(&Event) -> bool) {
        self.wait(what, |seen| seen.events.iter().any(&event));
    }

    /// Bytes of a flow's messages that are not acknowledged.
    fn retained_bytes(&self, flow: Flow) -> usize {
        let flows = self.flows.lock().unwrap();
        let retained = flows.sent[&flow].retained.values();
        retained.map(|payload| payload.bytes()).sum()
    }

    pub fn count(&self, event: impl Fn(&Event) -> bool) -> usize {
        self.seen
            .lock()
            .unwrap()
            .events
            .iter()
            .filter(|one| event(one))
            .count()
    }
}

fn last(of: &BTreeMap<Flow, Vec<u64>>) -> Vec<(Flow, usize, Option<u64>)> {
    of.iter()
        .map(|(flow, all)| (*flow, all.len(), all.last().copied()))
        .collect()
}

pub fn endpoint(incarnation: u64) -> Endpoint {
    endpoint_in(incarnation, 7)
}

pub fn endpoint_in(incarnation: u64, realm: u64) -> Endpoint {
    endpoint_with(incarnation, realm, None)
}

pub fn endpoint_with(incarnation: u64, realm: u64, rdma: Option<Rdma>) -> Endpoint {
    Endpoint::new(EndpointConfig {
        incarnation,
        realm,
        listen: Some("127.0.0.1:0".parse().unwrap()),
        security: Security::Loopback,
        rdma,
    })
    .unwrap()
}

pub const KEY: LaneKey = LaneKey([9; 32]);

pub fn peer(incarnation: u64, dial: &[SocketAddr]) -> Peer {
    Peer {
        incarnation,
        key: KEY,
        dial: dial.to_vec(),
    }
}

/// The most unacknowledged bytes of a flow.
const RETAINED_MAX: usize = 256 << 20;

/// A link whose flows have names.
pub struct Link {
    link: rgaps_transport::Link,
    host: Arc<Host>,
}

impl std::ops::Deref for Link {
    type Target = rgaps_transport::Link;

    fn deref(&self) -> &rgaps_transport::Link {
        &self.link
    }
}

impl Link {
    /// How often the peer was disconnected for a protocol violation.
    pub fn violations(&self) -> u64 {
        self.status().counts.disconnected
    }

    /// Waits for so many lanes. The two ends of a link do not get a lane at the same moment.
    pub fn wait_lanes(&self, count: usize) {
        until("lanes", || self.status().lanes.len() == count);
    }

    pub fn open(&self, flow: Flow, first: u64) {
        self.link.change(|link| {
            let id = link.open(first, flow.description()).unwrap();
            let sent = SentFlow {
                id,
                retained: BTreeMap::new(),
            };
            self.host.flows.lock().unwrap().sent.insert(flow, sent);
        });
    }

    pub fn offer(&self, flow: Flow, sequence: u64, payload: &Arc<dyn Payload>) -> bool {
        self.link.change(|link| {
            let mut flows = self.host.flows.lock().unwrap();
            let sent = flows.sent.get_mut(&flow).unwrap();
            let payload = Arc::clone(payload);
            let is_taken = link.send(sent.id, sequence, payload.clone(), described(sequence));
            if is_taken {
                sent.retained.insert(sequence, payload);
            }
            is_taken
        })
    }

    pub fn cancel(&self, flow: Flow, sequence: u64) -> bool {
        let cancelled = self.link.change(|link| {
            let mut flows = self.host.flows.lock().unwrap();
            let sent = flows.sent.get_mut(&flow).unwrap();
            sent.retained.remove(&sequence);
            link.cancel(sent.id, sequence)
        });
        cancelled.is_some()
    }

    pub fn close_flow(&self, flow: Flow) {
        let id = self.host.flows.lock().unwrap().sent[&flow].id;
        self.link.change(|link| link.close(id));
    }

    /// Refuses a flow that arrives.
    pub fn refuse(&self, flow: Flow, why: &str) -> bool {
        let flows = self.host.flows.lock().unwrap();
        let mut received = flows.received.iter();
        let id = *received.find(|(_, of)| **of == flow).unwrap().0;
        drop(flows);
        let why = Description::new(why.as_bytes()).unwrap();
        self.link.change(|link| link.refuse(id, why))
    }
}

pub fn link(endpoint: &Endpoint, config: LinkConfig, peer: Peer, host: &Arc<Host>) -> Link {
    named(endpoint, "peer", config, peer, host)
}

pub fn named(
    endpoint: &Endpoint,
    name: &str,
    config: LinkConfig,
    peer: Peer,
    host: &Arc<Host>,
) -> Link {
    let users = (Arc::clone(host) as _, Arc::clone(host) as _);
    let link = endpoint.link(name, config, peer, users).unwrap();
    Link {
        link,
        host: Arc::clone(host),
    }
}

/// A message's description, as `Memory::deliver` expects it.
pub fn described(sequence: u64) -> Description {
    Description::new(&sequence.to_le_bytes()).unwrap()
}

/// Sends a message, after waiting until it fits into [`RETAINED_MAX`].
pub fn send(link: &Link, host: &Host, flow: Flow, sequence: u64, bytes: usize) {
    let mut piece = host.arena.piece(bytes);
    piece.fill(&content(flow, sequence, bytes));
    let payload: Arc<dyn Payload> = Arc::new(Message(piece, bytes));
    let until = Instant::now() + LIMIT;
    loop {
        let acknowledged = |seen: &Seen| seen.acknowledged.get(&flow).map_or(0, Vec::len);
        let before = acknowledged(&host.seen.lock().unwrap());
        if host.retained_bytes(flow) + bytes <= RETAINED_MAX {
            let is_taken = link.offer(flow, sequence, &payload);
            assert!(is_taken, "{sequence} of {bytes} bytes was refused");
            return;
        }
        assert!(
            Instant::now() < until,
            "waited {LIMIT:?} to send {sequence}"
        );
        host.wait("room", |seen| acknowledged(seen) > before);
    }
}

/// Runs a call that joins threads; fails if it takes longer than the limit.
pub fn within_limit(what: &str, end: impl FnOnce() + Send + 'static) {
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        end();
        let _ = told.send(());
    });
    assert!(
        heard.recv_timeout(LIMIT).is_ok(),
        "waited {LIMIT:?} for {what}"
    );
}
