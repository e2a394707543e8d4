//! The landing side: what comes from another host becomes a message here. Bytes go from the socket into a
//! loan of the publisher that stands for the one elsewhere, and are published in their turn.

use crate::committed::Mark;
use crate::figures::TimesIn;
use crate::wire::{from_wall, monotonic_ns, Meta, SAID};
use rgaps::links::EarlyCopies;
use rgaps::{Domain, Loan, LoanError, PublishError, Publisher};
use rgaps_transport::{Event, Flow, Owner, Place, Room};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// What is said at once at most.
const MAX_SAID_BYTES: u64 = 16 << 10;
/// Messages from this size on are copied to GPUs that they are read on while they land.
const EARLY_BYTES_MIN: u64 = 1 << 20;
/// How long messages of flows that were not announced wait for that.
const ANNOUNCE_LIMIT: Duration = Duration::from_secs(20);
/// Flows that were not announced, whose time is taken.
const MAX_STRANGERS: usize = 1024;

/// What a link tells the coordinator.
#[derive(Debug)]
pub enum Heard {
    /// Something happened.
    Event(Event),
    /// The peer said something.
    Said(Vec<u8>),
}

/// Publishers on this host that are ours: their messages are nobody's to carry on.
#[derive(Clone, Default)]
pub struct Ours(Arc<RwLock<HashSet<u64>>>);

impl Ours {
    /// One more.
    pub fn insert(&self, publisher: u64) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(publisher);
    }

    /// One less.
    pub fn remove(&self, publisher: u64) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&publisher);
    }

    /// Whether it is one.
    pub fn contains(&self, publisher: u64) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&publisher)
    }
}

/// A publisher elsewhere, and the one that stands for it here.
pub struct Landing {
    publisher: Publisher,
    ours: Ours,
    /// What is published here, below which nothing is published again.
    next: AtomicU64,
    mark: Mark,
    /// What the publisher here has published.
    published: AtomicU64,
    /// Bytes of messages that land here now, and how many there may be.
    landing_bytes: AtomicU64,
    landing_max: u64,
    /// Messages that land, by their sequences, and are copied to GPUs meanwhile.
    early: Mutex<Vec<(u64, EarlyCopies)>>,
}

impl Landing {
    /// `next`: what of its messages was published in a former life.
    pub fn new(
        publisher: Publisher,
        ours: Ours,
        (mark, next): (Mark, u64),
        landing_max: u64,
    ) -> Arc<Landing> {
        ours.insert(publisher.id());
        Arc::new(Landing {
            publisher,
            ours,
            next: AtomicU64::new(next),
            mark,
            published: AtomicU64::new(0),
            landing_bytes: AtomicU64::new(0),
            landing_max,
            early: Mutex::default(),
        })
    }

    fn begin(self: &Arc<Self>, sequence: u64, bytes: u64, arrived: &Arc<Arrived>) -> Room {
        if sequence < self.next.load(Ordering::Acquire) {
            return Room::Refused;
        }
        let landing = self.landing_bytes.load(Ordering::Relaxed);
        // One message may be larger than what there may be.
        if landing > 0 && landing + bytes > self.landing_max {
            return Room::Full;
        }
        let mut loan = match self.publisher.loan(bytes) {
            Ok(loan) => loan,
            Err(
                LoanError::PoolFull { .. }
                | LoanError::NoBlocks { .. }
                | LoanError::TooManyLoans { .. }
                | LoanError::Client(_),
            ) => return Room::Full,
            Err(error) => {
                tracing::warn!(%error, topic = self.publisher.topic(), sequence, "a message cannot land");
                return Room::Refused;
            }
        };
        self.landing_bytes.fetch_add(bytes, Ordering::Relaxed);
        let early = match bytes >= EARLY_BYTES_MIN {
            true => loan.copy_early(),
            false => None,
        };
        if let Some(early) = &early {
            self.early().push((sequence, early.clone()));
        }
        let staged = match loan.domain() {
            Domain::Host => None,
            _ => Some(vec![0; bytes as usize].into_boxed_slice()),
        };
        Room::Place(Box::new(Landed {
            loan: Some(loan),
            staged,
            early,
            bytes,
            landing: self.clone(),
            arrived: arrived.clone(),
            placed_ns: monotonic_ns(),
            turn_ns: None,
        }))
    }

    fn early(&self) -> MutexGuard<'_, Vec<(u64, EarlyCopies)>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a message have landed.
    fn arrived(&self, sequence: u64, from: u64, bytes: u64) {
        let found = {
            let early = self.early();
            // The one that was begun last.
            let mut all = early.iter().rev();
            let of = all.find(|(number, _)| *number == sequence);
            of.map(|(_, early)| early.clone())
        };
        if let Some(early) = found {
            early.arrived(from, bytes);
        }
    }

    /// Messages up to `next` are done with.
    fn pass(&self, next: u64) {
        if next > self.next.fetch_max(next, Ordering::AcqRel) {
            self.mark.set(next);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.ours.remove(self.publisher.id());
    }
}

/// A message that lands.
struct Landed {
    loan: Option<Loan>,
    /// Where the loan is on a GPU.
    staged: Option<Box<[u8]>>,
    /// Copies that are begun while it lands.
    early: Option<EarlyCopies>,
    bytes: u64,
    landing: Arc<Landing>,
    arrived: Arc<Arrived>,
    /// When it had its place, and its turn.
    placed_ns: u64,
    turn_ns: Option<u64>,
}

impl Place for Landed {
    fn memory(&mut self) -> &mut [u8] {
        if let Some(staged) = &mut self.staged {
            return staged;
        }
        let loan = self.loan.as_mut().map(Loan::as_mut_slice);
        // Of another length than was asked for: the link throws the message away.
        loan.and_then(Result::ok).unwrap_or_default()
    }

    fn commit(mut self: Box<Self>, sequence: u64, meta: &[u8]) -> Result<(), Box<dyn Place>> {
        let landing = self.landing.clone();
        let topic = landing.publisher.topic();
        let Some(mut loan) = self.loan.take() else {
            return Ok(());
        };
        if sequence < self.landing.next.load(Ordering::Acquire) {
            return Ok(());
        }
        let turn_ns = *self.turn_ns.get_or_insert_with(monotonic_ns);
        let described = Meta::decode(meta).filter(|meta| meta.bytes.max(1) == self.bytes);
        let Some(meta) = described else {
            tracing::warn!(topic, sequence, "a message with a description that is none");
            self.landing.pass(sequence + 1);
            return Ok(());
        };
        if let Some(staged) = self.staged.take() {
            if let Err(error) = loan.write(0, &staged) {
                tracing::warn!(%error, topic, sequence, "a message did not reach the GPU");
                self.landing.pass(sequence + 1);
                return Ok(());
            }
        }
        loan.truncate(meta.bytes);
        loan.set_tag(meta.tag);
        loan.set_publish_ns(from_wall(meta.published_ns));
        if let Some(tensor) = meta.tensor {
            if let Err(error) = loan.set_tensor(tensor) {
                tracing::warn!(%error, topic, sequence, "a message with a shape that cannot be");
            }
        }
        let published = landing.published.load(Ordering::Relaxed);
        landing
            .mark
            .begin(sequence, landing.publisher.id(), published);
        match loan.publish() {
            Ok(number) => {
                landing.published.store(number + 1, Ordering::Relaxed);
                let times = &self.arrived.times;
                times.published(self.placed_ns, turn_ns, meta.published_ns);
            }
            Err(unpublished) => match (unpublished.error, unpublished.loan) {
                // A reliable subscriber here is slow: asked again in a moment.
                (PublishError::HeldBack { .. } | PublishError::Elsewhere(_), Some(loan)) => {
                    self.loan = Some(*loan);
                    return Err(self);
                }
                (error, _) => tracing::warn!(%error, topic, sequence, "a message was lost here"),
            },
        }
        self.landing.pass(sequence + 1);
        Ok(())
    }
}

impl Drop for Landed {
    fn drop(&mut self) {
        if let Some(early) = &self.early {
            self.landing
                .early()
                .retain(|(_, other)| !other.is_same(early));
        }
        self.landing
            .landing_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What the peer says.
struct Saying {
    bytes: Vec<u8>,
    to: Sender<(String, Heard)>,
    host: String,
}

impl Place for Saying {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn commit(mut self: Box<Self>, _: u64, _: &[u8]) -> Result<(), Box<dyn Place>> {
        let said = Heard::Said(std::mem::take(&mut self.bytes));
        let _ = self.to.send((std::mem::take(&mut self.host), said));
        Ok(())
    }
}

/// Counts of what came.
#[derive(Debug, Default)]
pub struct Arrived {
    /// Messages.
    pub messages: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Messages that never came.
    pub missed: AtomicU64,
    /// Messages for the host that were given up.
    pub given_up: AtomicU64,
    /// How often the link came up.
    pub connects: AtomicU64,
    /// How long it took.
    pub times: TimesIn,
}

#[derive(Default)]
struct Flows {
    known: HashMap<Flow, Arc<Landing>>,
    /// Streams that have no place here.
    refused: HashSet<u64>,
    /// Since when others were waited for.
    strangers: HashMap<Flow, Instant>,
}

/// Owns the link with a host.
pub struct Landings {
    host: String,
    flows: Mutex<Flows>,
    /// Counts.
    pub arrived: Arc<Arrived>,
    to: Sender<(String, Heard)>,
}

impl Landings {
    /// Those of a host. What the link tells goes to `to`.
    pub fn new(host: &str, to: Sender<(String, Heard)>) -> Arc<Landings> {
        Arc::new(Landings {
            host: host.to_owned(),
            flows: Mutex::default(),
            arrived: Arc::default(),
            to,
        })
    }

    fn flows(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flow's messages land there.
    pub fn insert(&self, flow: Flow, landing: Arc<Landing>) {
        let mut flows = self.flows();
        flows.strangers.remove(&flow);
        flows.known.insert(flow, landing);
    }

    /// Where a flow's messages land.
    pub fn has(&self, flow: Flow) -> bool {
        self.flows().known.contains_key(&flow)
    }

    /// A stream has no place here, or has again.
    pub fn refuse(&self, stream: u64, refused: bool) {
        let mut flows = self.flows();
        match refused {
            true => flows.refused.insert(stream),
            false => flows.refused.remove(&stream),
        };
    }

    /// A flow has ended.
    pub fn remove(&self, flow: Flow) {
        // A publisher leaves when it is dropped, which is not for this lock.
        let gone = self.flows().known.remove(&flow);
        drop(gone);
    }

    /// All of them have.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut *self.flows());
        drop(gone);
    }

    /// Streams that messages come in.
    pub fn streams(&self) -> usize {
        let flows = self.flows();
        let streams: HashSet<u64> = flows.known.keys().map(|flow| flow.topic).collect();
        streams.len()
    }
}

impl Owner for Landings {
    fn place(&self, flow: Flow, sequence: u64, _: &[u8], bytes: u64) -> Room {
        if flow.topic == SAID {
            if bytes > MAX_SAID_BYTES {
                return Room::Refused;
            }
            return Room::Place(Box::new(Saying {
                bytes: vec![0; bytes as usize],
                to: self.to.clone(),
                host: self.host.clone(),
            }));
        }
        let landing = {
            let mut flows = self.flows();
            match flows.known.get(&flow) {
                Some(landing) => landing.clone(),
                None if flows.refused.contains(&flow.topic) => return Room::Refused,
                None => {
                    // What it belongs to was said before, or is being said again.
                    if flows.strangers.len() >= MAX_STRANGERS {
                        return Room::Refused;
                    }
                    let since = *flows.strangers.entry(flow).or_insert_with(Instant::now);
                    return match since.elapsed() < ANNOUNCE_LIMIT {
                        true => Room::Full,
                        false => Room::Refused,
                    };
                }
            }
        };
        let room = landing.begin(sequence, bytes, &self.arrived);
        if matches!(room, Room::Place(_)) {
            self.arrived.messages.fetch_add(1, Ordering::Relaxed);
            self.arrived.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        room
    }

    fn landed(&self, flow: Flow, sequence: u64, from: u64, bytes: u64) {
        let landing = self.flows().known.get(&flow).cloned();
        if let Some(landing) = landing {
            landing.arrived(sequence, from, bytes);
        }
    }

    fn event(&self, event: Event) {
        match &event {
            Event::Acknowledged { .. } | Event::Room { .. } => return,
            Event::Up => {
                self.arrived.connects.fetch_add(1, Ordering::Relaxed);
            }
            Event::GaveUp { flow, first, next } if flow.topic != SAID => {
                let given_up = &self.arrived.given_up;
                given_up.fetch_add(next.saturating_sub(*first), Ordering::Relaxed);
            }
            Event::Missed { flow, first, next } => {
                let landing = self.flows().known.get(flow).cloned();
                let Some(landing) = landing else { return };
                let published = landing.next.load(Ordering::Acquire);
                let missed = next.saturating_sub(published.max(*first));
                if missed == 0 {
                    return;
                }
                self.arrived.missed.fetch_add(missed, Ordering::Relaxed);
                tracing::warn!(
                    host = self.host,
                    topic = landing.publisher.topic(),
                    missed,
                    "messages were missed between hosts"
                );
                landing.pass(*next);
                return;
            }
            _ => {}
        }
        let _ = self.to.send((self.host.clone(), Heard::Event(event)));
    }
}
