//! The landing side: what comes from another host becomes a message here. Bytes go from the socket into a
//! loan of the publisher that stands for the one elsewhere, and are published in their turn.

use crate::committed::Mark;
use crate::fetch::Wanted;
use crate::figures::TimesIn;
use crate::notes::Notes;
use crate::plane::News;
use crate::quotas::Reserved;
use crate::relay::{Admission, Carry, Ours, Relay};
use crate::traces::LinkTraces;
use crate::wire::{from_wall, monotonic_ns, Meta, MAX_SAID_BYTES, SAID};
use rgaps::links::EarlyCopies;
use rgaps::{Domain, Loan, LoanError, PublishError, Publisher};
use rgaps_transport::{Event, Flow, Owner, Place, Room};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Messages from this size on are copied to GPUs that they are read on while they land.
const EARLY_BYTES_MIN: u64 = 1 << 20;
/// Pause before the daemon is asked again for memory that it had not.
const FETCH_AGAIN: Duration = Duration::from_millis(20);
/// How long messages of flows that were not announced wait for that.
const ANNOUNCE_LIMIT: Duration = Duration::from_secs(20);
/// Flows that were not announced, whose time is taken.
const MAX_STRANGERS: usize = 1024;

/// Flows and streams that have no place, and are known by it.
const MAX_REFUSED: usize = 8192;

/// What a link tells the coordinator.
#[derive(Debug)]
pub enum Heard {
    /// Something happened.
    Event(Event),
    /// The peer said something.
    Said(Vec<u8>),
    /// A message that waited for memory may have some.
    Room,
    /// Something happened to another host; it is said for no host.
    News(News),
}

/// A publisher elsewhere, and the one that stands for it here.
pub struct Landing {
    publisher: Publisher,
    ours: Ours,
    /// For what goes on to other hosts.
    pub relay: Arc<Relay>,
    /// Messages may come through several links; one is published at a time.
    turn: Mutex<()>,
    /// What is published here, below which nothing is published again.
    next: AtomicU64,
    mark: Mark,
    /// What the publisher here has published.
    published: AtomicU64,
    /// Bytes of messages that land here now, and how many there may be.
    landing_bytes: AtomicU64,
    /// Messages that land, by their sequences, and are copied to GPUs meanwhile.
    early: Mutex<Vec<(u64, EarlyCopies)>>,
    limits: LandingLimits,
    /// Memory for the next message.
    fetched: Mutex<Fetched>,
    /// Messages that never came, of which the next one is to tell.
    gap: AtomicU64,
    /// The first message tells how many there were since `next`.
    resumes: AtomicBool,
}

/// Memory that the daemon is asked for.
#[derive(Default)]
enum Fetched {
    /// It was not.
    #[default]
    No,
    /// It is being asked.
    Asked,
    /// It had none; it is not asked again before then.
    Later(Instant),
    /// Here.
    Here(Box<Loan>),
}

/// How much may land of a publisher elsewhere.
pub struct LandingLimits {
    /// Bytes at the same time.
    pub landing_max: u64,
    /// The longest message, and the quota that says so.
    pub message_max: Option<(u64, String)>,
    /// What is set aside for it.
    pub reserved: Option<Reserved>,
}

impl Landing {
    /// `next`: what of its messages was published in a former life.
    pub fn new(
        publisher: Publisher,
        relay: Arc<Relay>,
        ours: Ours,
        (mark, next): (Mark, u64),
        limits: LandingLimits,
    ) -> Arc<Landing> {
        ours.insert(publisher.id(), Some(relay.clone()));
        Arc::new(Landing {
            publisher,
            ours,
            relay,
            turn: Mutex::new(()),
            next: AtomicU64::new(next),
            mark,
            published: AtomicU64::new(0),
            landing_bytes: AtomicU64::new(0),
            early: Mutex::default(),
            limits,
            fetched: Mutex::default(),
            gap: AtomicU64::new(0),
            resumes: AtomicBool::new(false),
        })
    }

    /// The domain that messages land in.
    pub fn domain(&self) -> Domain {
        self.publisher.domain()
    }

    /// It goes on after this host was given up: what was published meanwhile never comes.
    pub fn resume(&self) {
        let was_here = self.next.load(Ordering::Acquire) > 0;
        self.resumes.store(was_here, Ordering::Release);
    }

    fn begin(
        self: &Arc<Self>,
        sequence: u64,
        bytes: u64,
        carry: Option<Arc<Carry>>,
        owner: &Landings,
    ) -> Room {
        let (arrived, notes) = (&owner.arrived, &owner.notes);
        let is_here = sequence < self.next.load(Ordering::Acquire);
        if is_here && carry.is_none() {
            return Room::Refused;
        }
        if let Some((max, quota)) = &self.limits.message_max {
            if bytes > *max {
                let why = format!("quota '{quota}': message_max: a message of {bytes} bytes");
                let topic = self.publisher.topic();
                if notes.refused(topic, 1, &why) {
                    tracing::warn!(topic, "messages of another host do not land: {why}");
                }
                return Room::Refused;
            }
        }
        let landing = self.landing_bytes.load(Ordering::Relaxed);
        // One message may be larger than what there may be.
        if landing > 0 && landing + bytes > self.limits.most() {
            return Room::Full;
        }
        if let Some(carry) = carry.clone().filter(|_| is_here) {
            self.landing_bytes.fetch_add(bytes, Ordering::Relaxed);
            return Room::Place(Box::new(Repeated {
                bytes: vec![0; bytes as usize].into_boxed_slice(),
                length: bytes,
                landing: self.clone(),
                carry,
            }));
        }
        let mut loan = match self.loan(bytes, owner) {
            Ok(Some(loan)) => loan,
            Ok(None) | Err(LoanError::TooManyLoans { .. } | LoanError::Client(_)) => {
                return Room::Full
            }
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
            carry,
            arrived: arrived.clone(),
            placed_ns: monotonic_ns(),
            turn_ns: None,
            notes: notes.clone(),
        }))
    }

    /// Memory that is there. If there is none, it is asked for.
    fn loan(self: &Arc<Self>, bytes: u64, owner: &Landings) -> Result<Option<Loan>, LoanError> {
        let mut fetched = self.fetched();
        if matches!(&*fetched, Fetched::Here(loan) if loan.len() == bytes) {
            if let Fetched::Here(loan) = std::mem::take(&mut *fetched) {
                return Ok(Some(*loan));
            }
        }
        if let Some(loan) = self.publisher.try_loan(bytes)? {
            return Ok(Some(loan));
        }
        match &*fetched {
            Fetched::Asked => return Ok(None),
            Fetched::Later(then) if Instant::now() < *then => return Ok(None),
            Fetched::No | Fetched::Later(_) | Fetched::Here(_) => {}
        }
        let wanted = Wanted {
            landing: self.clone(),
            bytes,
            host: owner.host.clone(),
            to: owner.to.clone(),
        };
        *fetched = match owner.memory.send(wanted) {
            Ok(()) => Fetched::Asked,
            Err(_) => Fetched::Later(Instant::now() + FETCH_AGAIN),
        };
        Ok(None)
    }

    /// Asks the daemon for memory. Whether there is some.
    pub fn fetch(&self, bytes: u64) -> bool {
        let loan = self.publisher.loan(bytes);
        let mut fetched = self.fetched();
        *fetched = match loan {
            Ok(loan) => Fetched::Here(Box::new(loan)),
            // What is wrong for good is said when the message asks again.
            Err(_) => Fetched::Later(Instant::now() + FETCH_AGAIN),
        };
        matches!(&*fetched, Fetched::Here(_))
    }

    fn fetched(&self) -> MutexGuard<'_, Fetched> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Below this all is where it is to go.
    pub fn passed(&self) -> u64 {
        // In this order: what is published between is not passed.
        let next = self.next.load(Ordering::Acquire);
        self.relay.floor().min(next)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message that was published here before goes on.
    fn repeat(&self, sequence: u64, meta: &[u8], bytes: Box<[u8]>, carry: Arc<Carry>) {
        let published = self.published.load(Ordering::Relaxed);
        self.relay.repeat(sequence, meta, bytes, carry, published);
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

    /// How many messages were missed before this one, which is about to be published.
    fn missed_before(&self, sequence: u64) -> (u64, u64) {
        let jump = match self.resumes.swap(false, Ordering::AcqRel) {
            true => sequence.saturating_sub(self.next.load(Ordering::Acquire)),
            false => 0,
        };
        (self.gap.swap(0, Ordering::AcqRel) + jump, jump)
    }

    /// Messages up to `next` are done with.
    fn pass(&self, next: u64) {
        if next > self.next.fetch_max(next, Ordering::AcqRel) {
            self.mark.set(next);
        }
    }
}

impl LandingLimits {
    fn most(&self) -> u64 {
        let reserved = self.reserved.as_ref().map(|reserved| reserved.bytes);
        self.landing_max.min(reserved.unwrap_or(u64::MAX))
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
    carry: Option<Arc<Carry>>,
    arrived: Arc<Arrived>,
    /// When it had its place, and its turn.
    placed_ns: u64,
    turn_ns: Option<u64>,
    notes: Arc<Notes>,
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
        if let Some(carry) = &self.carry {
            if landing.relay.admit(carry) == Admission::Wait {
                return Err(self);
            }
        }
        let _turn = landing.turn();
        if sequence < self.landing.next.load(Ordering::Acquire) {
            // It came another way meanwhile.
            if let Some(carry) = self.carry.clone() {
                let bytes: Box<[u8]> = self.memory().into();
                landing.repeat(sequence, meta, bytes, carry);
            }
            return Ok(());
        }
        let Some(mut loan) = self.loan.take() else {
            return Ok(());
        };
        let turn_ns = *self.turn_ns.get_or_insert_with(monotonic_ns);
        let described = Meta::decode(meta).filter(|meta| meta.bytes.max(1) == self.bytes);
        let Some(meta) = described else {
            tracing::warn!(topic, sequence, "a message with a description that is none");
            landing.gap.fetch_add(1, Ordering::AcqRel);
            self.landing.pass(sequence + 1);
            return Ok(());
        };
        if let Some(staged) = self.staged.take() {
            if let Err(error) = loan.write(0, &staged) {
                tracing::warn!(%error, topic, sequence, "a message did not reach the GPU");
                landing.gap.fetch_add(1, Ordering::AcqRel);
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
        let (missed, jump) = landing.missed_before(sequence);
        if jump > 0 {
            self.arrived.missed.fetch_add(jump, Ordering::Relaxed);
            self.notes.missed(topic, jump);
            tracing::warn!(
                topic,
                missed = jump,
                "messages were missed while this host was given up"
            );
        }
        loan.set_missed(missed);
        let published = landing.published.load(Ordering::Relaxed);
        landing
            .mark
            .begin(sequence, landing.publisher.id(), published);
        landing
            .relay
            .begin(published, sequence, self.carry.as_ref());
        match loan.publish() {
            Ok(number) => {
                landing.published.store(number + 1, Ordering::Relaxed);
                let times = [self.placed_ns, turn_ns, monotonic_ns()];
                self.arrived.times.published(times, meta.published_ns);
                if let Some(traces) = &self.arrived.traces {
                    let publisher = landing.relay.publisher;
                    let trace = traces.pick(topic, publisher, sequence, meta.bytes.max(1));
                    trace.inspect(|trace| traces.landed(trace, times));
                }
            }
            Err(unpublished) => match (unpublished.error, unpublished.loan) {
                // A reliable subscriber here is slow: asked again in a moment.
                (PublishError::HeldBack { .. } | PublishError::Elsewhere(_), Some(loan)) => {
                    landing.relay.undo(published);
                    landing.gap.fetch_add(missed, Ordering::AcqRel);
                    self.loan = Some(*loan);
                    return Err(self);
                }
                (error, _) => {
                    landing.relay.undo(published);
                    landing.gap.fetch_add(missed + 1, Ordering::AcqRel);
                    tracing::warn!(%error, topic, sequence, "a message was lost here");
                }
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

/// A message that was published here before, and goes on to other hosts.
struct Repeated {
    bytes: Box<[u8]>,
    length: u64,
    landing: Arc<Landing>,
    carry: Arc<Carry>,
}

impl Place for Repeated {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn commit(mut self: Box<Self>, sequence: u64, meta: &[u8]) -> Result<(), Box<dyn Place>> {
        if self.landing.relay.admit(&self.carry) == Admission::Wait {
            return Err(self);
        }
        let described = Meta::decode(meta);
        if described.is_some_and(|meta| meta.bytes.max(1) == self.length) {
            let bytes = std::mem::take(&mut self.bytes);
            let carry = self.carry.clone();
            self.landing.repeat(sequence, meta, bytes, carry);
        }
        Ok(())
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.landing
            .landing_bytes
            .fetch_sub(self.length, Ordering::Relaxed);
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
    /// What is told of single messages.
    pub traces: Option<LinkTraces>,
}

/// Where a flow's messages land, and where they go on to.
#[derive(Clone)]
struct Bound {
    landing: Arc<Landing>,
    carry: Option<Arc<Carry>>,
}

#[derive(Default)]
struct Flows {
    known: HashMap<Flow, Bound>,
    /// Flows that have no place here, and why.
    refused: HashMap<Flow, String>,
    /// Topics that have none, by their streams, and why.
    refused_streams: HashMap<u64, (String, String)>,
    /// Since when others were waited for.
    strangers: HashMap<Flow, Instant>,
}

/// Owns the link with a host.
pub struct Landings {
    host: String,
    flows: Mutex<Flows>,
    /// Counts.
    pub arrived: Arc<Arrived>,
    /// What did not come across.
    pub notes: Arc<Notes>,
    to: Sender<(String, Heard)>,
    memory: Sender<Wanted>,
}

impl Landings {
    /// Those of a host. What the link tells goes to `to`, what has to be asked of the daemon to `memory`.
    pub fn new(
        host: &str,
        to: Sender<(String, Heard)>,
        memory: Sender<Wanted>,
        traces: Option<LinkTraces>,
    ) -> Arc<Landings> {
        Arc::new(Landings {
            host: host.to_owned(),
            flows: Mutex::default(),
            arrived: Arc::new(Arrived {
                traces,
                ..Arrived::default()
            }),
            notes: Arc::default(),
            to,
            memory,
        })
    }

    fn flows(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flow's messages land there, and go on to others.
    pub fn insert(&self, flow: Flow, landing: Arc<Landing>, carry: Option<Arc<Carry>>) {
        let mut flows = self.flows();
        flows.strangers.remove(&flow);
        flows.refused.remove(&flow);
        flows.known.insert(flow, Bound { landing, carry });
    }

    /// Where a flow's messages land, and the publisher's others.
    pub fn landing(&self, flow: Flow) -> Option<Arc<Landing>> {
        let flows = self.flows();
        let bound = flows.known.get(&flow);
        bound.map(|bound| bound.landing.clone())
    }

    /// A stream of this topic has no place here, for this reason, or has again.
    pub fn refuse(&self, stream: u64, topic: &str, why: Option<&str>) {
        let mut flows = self.flows();
        match why {
            Some(why) => {
                if flows.refused_streams.len() >= MAX_REFUSED {
                    flows.refused_streams.clear();
                }
                let refused = (topic.to_owned(), why.to_owned());
                flows.refused_streams.insert(stream, refused);
            }
            None => {
                flows.refused_streams.remove(&stream);
            }
        }
    }

    /// One publisher's messages have none.
    pub fn refuse_flow(&self, flow: Flow, topic: &str) {
        let mut flows = self.flows();
        flows.strangers.remove(&flow);
        if flows.refused.len() >= MAX_REFUSED {
            flows.refused.clear();
        }
        flows.refused.insert(flow, topic.to_owned());
    }

    /// A flow has ended.
    pub fn remove(&self, flow: Flow) {
        // A publisher leaves when it is dropped, which is not for this lock.
        let mut flows = self.flows();
        flows.refused.remove(&flow);
        let gone = flows.known.remove(&flow);
        drop(flows);
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
            if bytes > MAX_SAID_BYTES as u64 {
                return Room::Refused;
            }
            return Room::Place(Box::new(Saying {
                bytes: vec![0; bytes as usize],
                to: self.to.clone(),
                host: self.host.clone(),
            }));
        }
        let Bound { landing, carry } = {
            let mut flows = self.flows();
            match flows.known.get(&flow) {
                Some(bound) => bound.clone(),
                None if flows.refused.contains_key(&flow) => {
                    let topic = flows.refused[&flow].clone();
                    drop(flows);
                    self.notes.refused_again(&topic);
                    return Room::Refused;
                }
                None if flows.refused_streams.contains_key(&flow.topic) => {
                    let (topic, why) = flows.refused_streams[&flow.topic].clone();
                    drop(flows);
                    if self.notes.refused(&topic, 1, &why) {
                        tracing::warn!(host = self.host, topic, "messages are refused: {why}");
                    }
                    return Room::Refused;
                }
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
        let room = landing.begin(sequence, bytes, carry, self);
        if matches!(room, Room::Place(_)) {
            self.arrived.messages.fetch_add(1, Ordering::Relaxed);
            self.arrived.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        room
    }

    fn landed(&self, flow: Flow, sequence: u64, from: u64, bytes: u64) {
        let landing = self.flows().known.get(&flow).cloned();
        if let Some(Bound { landing, .. }) = landing {
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
                let Some(Bound { landing, .. }) = landing else {
                    return;
                };
                let _turn = landing.turn();
                let published = landing.next.load(Ordering::Acquire);
                let missed = next.saturating_sub(published.max(*first));
                if missed == 0 {
                    return;
                }
                self.arrived.missed.fetch_add(missed, Ordering::Relaxed);
                self.notes.missed(landing.publisher.topic(), missed);
                landing.gap.fetch_add(missed, Ordering::AcqRel);
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
