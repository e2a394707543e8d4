//! Two ends of a link on loopback: what one sends, and what the other got.
use rgaps_transport::{
    Endpoint, EndpointConfig, Event, Flow, LaneKey, Link, LinkConfig, Meta, OnCard, Owner, Payload,
    Peer, Place, Rdma, Room, Security,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Every wait of these tests ends after this.
pub const LIMIT: Duration = Duration::from_secs(120);

/// From the third on, so many bytes at a time of a message are its first ones from another place on.
const BLOCK: usize = 8 << 10;

/// The bytes of a message, which no other has, nor another part of it: cheap to make, also in a debug build.
pub fn content(flow: Flow, sequence: u64, bytes: usize) -> Vec<u8> {
    let seed = flow.topic.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ flow.incarnation.rotate_left(17)
        ^ sequence.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut out = Vec::with_capacity(bytes + BLOCK);
    let mut word = seed | 1;
    while out.len() < bytes.min(2 * BLOCK) {
        out.extend_from_slice(&word.to_le_bytes());
        word = word
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
    }
    for block in 2.. {
        if out.len() >= bytes {
            break;
        }
        let from = block * 8 % BLOCK;
        out.extend_from_within(from..from + BLOCK);
    }
    out.truncate(bytes);
    out
}

/// Memory for messages.
pub trait Arena: Send + Sync {
    fn piece(&self, bytes: usize) -> Box<dyn Piece>;
}

/// Some of it, until it is dropped.
pub trait Piece: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Where only network cards have it.
    fn direct(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, bytes: &[u8]) {
        self.bytes_mut().copy_from_slice(bytes);
    }
    /// Who hears what lands in such memory.
    fn on_card(&self) -> Option<Arc<dyn OnCard>> {
        None
    }
    /// What landed.
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
    /// Of each flow: sequences in the order in which they were committed.
    pub committed: BTreeMap<Flow, Vec<u64>>,
    pub missed: BTreeMap<Flow, Vec<(u64, u64)>>,
    pub acknowledged: BTreeMap<Flow, Vec<u64>>,
    pub gave_up: BTreeMap<Flow, Vec<(u64, u64)>>,
    pub events: Vec<Event>,
    pub landed: u64,
}

impl Seen {
    /// Those that were acknowledged, each as often. A large one may be told behind the next, when its lane lets go.
    pub fn acknowledged(&self, flow: Flow) -> Vec<u64> {
        let mut all = self.acknowledged.get(&flow).cloned().unwrap_or_default();
        all.sort_unstable();
        all
    }
}

/// An owner that checks every byte.
pub struct Host {
    pub seen: Mutex<Seen>,
    pub changed: Condvar,
    /// Memory that is out; more than this is full.
    pub in_use: Arc<AtomicUsize>,
    pub memory_max: AtomicUsize,
    /// Messages that may still be committed.
    pub commits_left: Arc<AtomicU64>,
    /// Topics that are refused.
    pub refused_topic: u64,
    /// How long hearing of landed bytes takes, once.
    pub dawdle: Mutex<Duration>,
    /// Called when the last lane has ended.
    pub at_down: Mutex<Option<Box<dyn FnMut() + Send>>>,
    arena: Arc<dyn Arena>,
    me: std::sync::Weak<Host>,
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

impl Place for Memory {
    fn memory(&mut self) -> &mut [u8] {
        self.piece.bytes_mut()
    }

    fn on_card(&mut self) -> Option<Arc<dyn OnCard>> {
        self.piece.on_card()
    }

    fn commit(self: Box<Self>, sequence: u64, meta: &[u8]) -> Result<(), Box<dyn Place>> {
        let left = &self.host.commits_left;
        let take = |left: u64| left.checked_sub(1);
        if left.fetch_update(SeqCst, SeqCst, take).is_err() {
            return Err(self);
        }
        assert_eq!(meta, sequence.to_le_bytes());
        let bytes = self.piece.landed();
        let expected = content(self.flow, sequence, bytes.len());
        assert!(bytes == expected, "{:?} {sequence} is damaged", self.flow);
        let mut seen = self.host.seen.lock().unwrap();
        seen.committed.entry(self.flow).or_default().push(sequence);
        self.host.changed.notify_all();
        Ok(())
    }
}

impl Owner for Host {
    fn place(&self, flow: Flow, _sequence: u64, _meta: &[u8], bytes: u64) -> Room {
        if flow.topic == self.refused_topic {
            return Room::Refused;
        }
        let bytes = bytes as usize;
        let max = self.memory_max.load(SeqCst);
        let take = |used: usize| (used + bytes <= max).then_some(used + bytes);
        if self.in_use.fetch_update(SeqCst, SeqCst, take).is_err() {
            return Room::Full;
        }
        let host = self.me.upgrade().unwrap();
        let piece = self.arena.piece(bytes);
        Room::Place(Box::new(Memory {
            piece,
            bytes,
            flow,
            host,
        }))
    }

    fn landed(&self, _flow: Flow, _sequence: u64, _from: u64, bytes: u64) {
        std::thread::sleep(std::mem::take(&mut *self.dawdle.lock().unwrap()));
        self.seen.lock().unwrap().landed += bytes;
    }

    fn event(&self, event: Event) {
        if let (Event::Down { .. }, Some(at_down)) = (&event, &mut *self.at_down.lock().unwrap()) {
            at_down();
        }
        let mut seen = self.seen.lock().unwrap();
        match &event {
            Event::Acknowledged { flow, sequence } => {
                seen.acknowledged.entry(*flow).or_default().push(*sequence);
            }
            Event::Missed { flow, first, next } => {
                seen.missed.entry(*flow).or_default().push((*first, *next));
            }
            Event::GaveUp { flow, first, next } => {
                seen.gave_up.entry(*flow).or_default().push((*first, *next));
            }
            _ => seen.events.push(event.clone()),
        }
        self.changed.notify_all();
    }
}

impl Host {
    pub fn new() -> Arc<Self> {
        Self::with(Arc::new(Heap))
    }

    /// One whose messages are in this memory.
    pub fn with(arena: Arc<dyn Arena>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            seen: Mutex::default(),
            changed: Condvar::new(),
            in_use: Arc::default(),
            memory_max: AtomicUsize::new(1 << 30),
            commits_left: Arc::new(AtomicU64::new(u64::MAX)),
            refused_topic: u64::MAX,
            dawdle: Mutex::default(),
            at_down: Mutex::default(),
            arena,
            me: me.clone(),
        })
    }

    /// Waits for something to be so; fails with what it waited for.
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

    /// All memory is back, or comes back: a lane that was being opened when the link was closed knows the link a little
    /// longer.
    pub fn gives_back(&self) {
        let until = Instant::now() + LIMIT;
        while self.in_use.load(SeqCst) > 0 {
            assert!(Instant::now() < until, "waited {LIMIT:?} for memory");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn has(&self, what: &str, event: impl Fn(&Event) -> bool) {
        self.wait(what, |seen| seen.events.iter().any(&event));
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

pub fn link(endpoint: &Endpoint, config: LinkConfig, peer: Peer, host: &Arc<Host>) -> Link {
    let owner: Arc<dyn Owner> = Arc::clone(host) as Arc<dyn Owner>;
    endpoint.link("peer", config, peer, owner).unwrap()
}

/// A message's description, as its place expects it.
pub fn described(sequence: u64) -> Meta {
    Meta::new(&sequence.to_le_bytes()).unwrap()
}

/// Sends a message when there is room for it.
pub fn send(link: &Link, host: &Host, flow: Flow, sequence: u64, bytes: usize) {
    let mut piece = host.arena.piece(bytes);
    piece.fill(&content(flow, sequence, bytes));
    let payload: Arc<dyn Payload> = Arc::new(Message(piece, bytes));
    let until = Instant::now() + LIMIT;
    loop {
        let before = host.count(|event| *event == Event::Room { flow });
        match link.send(flow, sequence, payload.clone(), described(sequence)) {
            rgaps_transport::Sent::Taken => return,
            rgaps_transport::Sent::Never => panic!("{sequence} of {bytes} bytes was refused"),
            rgaps_transport::Sent::Full => {}
        }
        assert!(
            Instant::now() < until,
            "waited {LIMIT:?} to send {sequence}"
        );
        let room = |event: &&Event| **event == Event::Room { flow };
        host.wait("room", |seen| {
            seen.events.iter().filter(room).count() > before
        });
    }
}

/// Ends a thing that joins threads, with a limit.
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
