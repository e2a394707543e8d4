//! A host's receive memory, and the user of its link.
use crate::content::content;
use rgaps_transport::machine::frame::Remote;
use rgaps_transport::machine::{BufferReply, CardBuffer, FlowReceiver, ReceiveBuffer, Turn};
use rgaps_transport::Payload;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The value of bytes that no buffer owns, and of the `CANARY` bytes around each buffer.
pub const POISON: u8 = 0xdd;
const CANARY: usize = 16;
/// The address of a host's arena for network cards.
pub const ARENA_AT: u64 = 0x10_0000;

/// Memory that network cards write, allocated first fit. Freed bytes are poisoned and soon reused, so a late write is found.
#[derive(Default)]
pub struct Arena {
    pub bytes: Vec<u8>,
    used: BTreeMap<usize, usize>,
}

impl Arena {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![POISON; bytes],
            used: BTreeMap::new(),
        }
    }

    fn take(&mut self, bytes: usize) -> Option<usize> {
        let mut at = 0;
        for (start, length) in &self.used {
            if start - at >= bytes {
                break;
            }
            at = start + length;
        }
        (at + bytes <= self.bytes.len()).then(|| {
            self.used.insert(at, bytes);
            at
        })
    }

    fn give(&mut self, at: usize) {
        let bytes = self.used.remove(&at).expect("it is given back once");
        self.bytes[at..at + bytes].fill(POISON);
    }

    pub fn is_free(&self) -> bool {
        self.used.is_empty()
    }
}

/// The chunks of a buffer that have landed: offset, length, and whether in the arena.
type Record = Arc<Mutex<Vec<(usize, usize, bool)>>>;

pub struct SimBuffer {
    memory: Vec<u8>,
    arena: Arc<Mutex<Arena>>,
    at: usize,
    record: Record,
    has_card: bool,
    /// The bytes that `deliver` saw.
    delivered: Arc<Mutex<Option<Vec<u8>>>>,
    refuses: Arc<AtomicUsize>,
}

struct SimCard {
    address: u64,
    record: Record,
}

impl CardBuffer for SimCard {
    fn address(&self) -> Option<u64> {
        Some(self.address)
    }

    fn landed(&self, from: u64, bytes: u64, directly: bool) {
        let entry = (from as usize, bytes as usize, directly);
        self.record.lock().unwrap().push(entry);
    }
}

impl ReceiveBuffer for SimBuffer {
    fn memory(&mut self) -> &mut [u8] {
        let end = self.memory.len() - CANARY;
        &mut self.memory[CANARY..end]
    }

    fn on_card(&mut self) -> Option<Arc<dyn CardBuffer>> {
        let card = SimCard {
            address: ARENA_AT + self.at as u64,
            record: self.record.clone(),
        };
        self.has_card.then(|| Arc::new(card) as _)
    }

    fn deliver(
        mut self: Box<Self>,
        _sequence: u64,
        _description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        let refuse = |left: usize| left.checked_sub(1);
        let refused = self
            .refuses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuse);
        if refused.is_ok() {
            return Err(self);
        }
        let memory = self.memory().to_vec();
        let mut bytes = memory.clone();
        let arena = self.arena.lock().unwrap();
        for (from, length, directly) in self.record.lock().unwrap().iter() {
            let part = *from..from + length;
            match directly {
                true => bytes[part].copy_from_slice(&arena.bytes[self.at + from..][..*length]),
                false => bytes[part.clone()].copy_from_slice(&memory[part]),
            }
        }
        drop(arena);
        *self.delivered.lock().unwrap() = Some(bytes);
        Ok(())
    }
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        let end = self.memory.len() - CANARY;
        let around = self.memory[..CANARY].iter().chain(&self.memory[end..]);
        assert!(
            around.into_iter().all(|byte| *byte == POISON),
            "bytes around a buffer were written"
        );
        self.arena.lock().unwrap().give(self.at);
    }
}

/// What the user of a link decides, shared with the machine.
#[derive(Default)]
pub struct Decisions {
    /// The publisher of each flow of the current link.
    pub publishers: BTreeMap<u64, u64>,
    /// The delivered position of each publisher.
    pub positions: BTreeMap<u64, u64>,
    pub full_one_in: u64,
    pub refuses_large: bool,
    pub asked: u64,
}

pub struct SimUser {
    pub arena: Arc<Mutex<Arena>>,
    pub has_cards: bool,
    pub decisions: Mutex<Decisions>,
    /// How many more times `deliver` gives the buffer back.
    pub refuses: Arc<AtomicUsize>,
    /// The bytes that the last `deliver` saw.
    pub delivered: Arc<Mutex<Option<Vec<u8>>>>,
}

impl SimUser {
    pub fn new(arena_bytes: usize, has_cards: bool) -> Self {
        Self {
            arena: Arc::new(Mutex::new(Arena::new(arena_bytes))),
            has_cards,
            decisions: Mutex::default(),
            refuses: Arc::default(),
            delivered: Arc::default(),
        }
    }
}

impl FlowReceiver for SimUser {
    fn buffer(&self, flow: u64, sequence: u64, description: &[u8], bytes: u64) -> BufferReply {
        let mut decisions = self.decisions.lock().unwrap();
        assert_eq!(description, describe(sequence));
        let is_accepted = decisions.publishers.contains_key(&flow);
        assert!(is_accepted, "it is asked only for flows that were accepted");
        decisions.asked += 1;
        if decisions.refuses_large {
            return BufferReply::Refused;
        }
        let one_in = decisions.full_one_in;
        if one_in > 0 && decisions.asked % one_in == 0 {
            return BufferReply::Full;
        }
        let at = self.arena.lock().unwrap().take(bytes as usize);
        let Some(at) = at else {
            return BufferReply::Full;
        };
        BufferReply::Buffer(Box::new(SimBuffer {
            memory: vec![POISON; bytes as usize + 2 * CANARY],
            arena: self.arena.clone(),
            at,
            record: Record::default(),
            has_card: self.has_cards,
            delivered: self.delivered.clone(),
            refuses: self.refuses.clone(),
        }))
    }
}

pub fn remote_of(address: u64, _bytes: u64) -> Option<Remote> {
    let is_arena = (ARENA_AT..ARENA_AT + (1 << 20)).contains(&address);
    is_arena.then(|| Remote::new(address, &[1, 2]).unwrap())
}

/// The description of a message.
pub fn describe(sequence: u64) -> [u8; 8] {
    sequence.to_le_bytes()
}

/// A message's bytes, some of which may follow later.
pub struct SimPayload {
    bytes: Vec<u8>,
    ready: AtomicUsize,
}

impl SimPayload {
    pub fn new(publisher: u64, sequence: u64, bytes: u64, ready: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: content(publisher, 0, sequence, bytes),
            ready: AtomicUsize::new(ready as usize),
        })
    }

    pub fn grow(&self, to: u64) {
        self.ready.store(to as usize, Ordering::Relaxed);
    }
}

impl Payload for SimPayload {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        assert!(to <= self.ready(), "bytes are read that are not there");
        &self.bytes[from..to]
    }
}

/// A turn as text.
pub fn name(turn: &Turn) -> String {
    match turn {
        Turn::Opened { first, .. } => format!("opened at {first}"),
        Turn::Small { sequence, .. } => format!("small {sequence}"),
        Turn::Large { sequence, .. } => format!("large {sequence}"),
        Turn::Missed { first, next } => format!("missed {first}..{next}"),
        Turn::Closed { next } => format!("closed at {next}"),
    }
}
