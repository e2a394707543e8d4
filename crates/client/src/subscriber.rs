//! Subscribers: [`Subscriber`] and its builder. Takes messages from the publishers' rings, waits for them, and maps or copies
//! their bytes.

use crate::client::broken;
use crate::client::{
    once_over, ClientContext, Conductor, ForkGuard, Joined, PoolMapping, ZoneView,
};
use crate::deferred_release::{DeferredReleases, Recorded};
use crate::holds::Holds;
use crate::links::{LinksSubscriber, LinksSubscriberBuilder};
use crate::listener::Listener;
use crate::matched::{Members, Watched};
use crate::pending::Deadline;
use crate::readiness::Readiness;
use crate::reading::{how_copied, how_read_directly, is_reached, Private};
use crate::{ClientError, Late, Matched, Node, OpenError, RecvError, Sample, SubscriberQos};
use rgaps_layout::{
    Domain, MAX_DEPTH, MAX_HELD, MAX_POOLS, MAX_PUBLISHERS, PUBLISHER_ACTIVE, WAIT_SLICE_NS,
};
use rgaps_pool::{Access, Mapping};
use rgaps_session::{
    similar_name, Demand, Member, PathKind, PoolGrant, Refusal, RefusalCode, Role,
};
use rgaps_sync::{monotonic_ns, spin_hint};
use rgaps_topic::{
    progress, Held, Message, Progress, Reader, ReleaseList, Shared, Sleeper, Start, SubscriberView,
    Taken, TopicView,
};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long a subscriber sleeps at a time while it waits for the GPU work of a message that it must copy.
const COPY_SLICE_NS: u64 = 1_000_000;

/// How long a woken subscriber spins for the message before it sleeps again: a few times as long as publishing takes.
const WOKEN_SPIN_NS: u64 = 2_000;

// How messages reach a subscriber that named a domain: not known yet; as replicas; read in place; as private copies.
const PATH_UNKNOWN: u32 = 0;
const PATH_COPIED: u32 = 1;
const PATH_DIRECT: u32 = 2;
const PATH_PRIVATE: u32 = 3;

/// Configures and creates a [`Subscriber`].
#[derive(Clone, Debug)]
pub struct SubscriberBuilder {
    node: Node,
    topic: String,
    type_name: String,
    domain: Option<Domain>,
    require: Option<PathKind>,
    observer: bool,
    of_links: bool,
    qos: SubscriberQos,
}

impl SubscriberBuilder {
    pub(crate) fn new(node: Node, topic: String) -> Self {
        SubscriberBuilder {
            node,
            topic,
            type_name: String::new(),
            domain: None,
            require: None,
            observer: false,
            of_links: false,
            qos: SubscriberQos::default(),
        }
    }

    /// The type that the subscriber expects: a name, or a tensor type like `float16[3,*,1920]`
    /// ([`TensorType`](crate::TensorType)), where `*` is any length. It matches only publishers whose messages are all of
    /// this type. Default: it matches publishers of any type.
    pub fn type_name(mut self, name: &str) -> Self {
        self.type_name = name.to_owned();
        self
    }

    /// The domain in which this subscriber reads. The publisher copies messages of other domains there, once for all
    /// subscribers of that domain; between GPUs with peer access, the subscriber may read them in place instead.
    /// Default: the domain of the messages.
    pub fn domain(mut self, domain: Domain) -> Self {
        self.domain = Some(domain);
        self
    }

    /// The slowest acceptable path from each publisher. Where only a slower path exists, the second of the two to join is
    /// refused with [`RefusalCode::PathTooSlow`], and messages of another host do not arrive. Default: any path.
    pub fn require(mut self, path: PathKind) -> Self {
        self.require = Some(path);
        self
    }

    /// Makes this an observer, for tools such as `rgaps topic echo`. It matches every publisher of the type and gets the
    /// quality of service that it requests only from publishers that offer it; for example, no history from a volatile
    /// publisher. Publishers count it among their subscribers, and do not learn of mismatches with it.
    pub fn observer(mut self) -> Self {
        self.observer = true;
        self
    }

    /// Sets the whole quality of service at once.
    pub fn qos(mut self, qos: SubscriberQos) -> Self {
        self.qos = qos;
        self
    }

    /// Misses no message: publishers wait for this subscriber when their history is full. Default: best effort.
    pub fn reliable(mut self) -> Self {
        self.qos.reliable = true;
        self
    }

    /// Which earlier messages it gets first. Default: none.
    pub fn late(mut self, late: Late) -> Self {
        self.qos.late = late;
        self
    }

    /// Limits the subscriber's queue to the newest `messages` messages (1 to 32768) over all publishers. It skips older ones
    /// and counts them as missed. Default: the queue is every message that the publishers keep.
    pub fn depth(mut self, messages: u32) -> Self {
        self.qos.depth = Some(messages);
        self
    }

    /// Always reads the newest message: a [`depth`](Self::depth) of 1.
    pub fn keep_latest(self) -> Self {
        self.depth(1)
    }

    /// How many samples it may hold at once, 1 to 4096. Default: 64.
    pub fn max_held(mut self, samples: u32) -> Self {
        self.qos.max_held = samples;
        self
    }

    /// How long a receive spins before it sleeps. Default: 20 us.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.qos.spin = spin;
        self
    }

    /// Creates the subscriber: it joins the topic, and creates the topic if it does not exist.
    ///
    /// Errors: [`OpenError::Argument`] for a value outside its limits, and [`ClientError::Refused`] with the daemon's
    /// [`RefusalCode`], for example when access rules do not let this user subscribe.
    pub fn create(self) -> Result<Subscriber, OpenError> {
        let qos = self.qos;
        if qos.max_held == 0 || qos.max_held > MAX_HELD {
            return Err(OpenError::Argument(format!(
                "max_held of {} samples is outside the limits of 1 to {MAX_HELD}",
                qos.max_held
            )));
        }
        if qos
            .depth
            .is_some_and(|depth| !(1..=MAX_DEPTH).contains(&depth))
        {
            return Err(OpenError::Argument(format!(
                "a depth of {} messages is outside the limits of 1 to {MAX_DEPTH}; leave depth out to queue all that publishers keep",
                qos.depth.unwrap_or_default()
            )));
        }
        let demand = Demand {
            reliable: qos.reliable,
            transient_local: qos.late != Late::Nothing,
            depth: qos.depth.unwrap_or(0),
        };
        let conductor = &self.node.conductor;
        let role = match self.observer {
            true => Role::Observer(demand),
            false => Role::Subscriber(demand),
        };
        let joined = conductor.join(
            &self.topic,
            &self.type_name,
            self.domain,
            role,
            self.require,
            None,
        )?;
        let member = joined.member;
        let home = joined.pool;
        let names = (self.topic, self.type_name);
        match SubscriberCore::new(conductor.clone(), joined, names, qos, self.of_links) {
            // On an error `core` leaves the topic as it is dropped.
            Ok(core) => match core.check_path(self.require, home) {
                Ok(()) => Ok(Subscriber::new(Arc::new(core))),
                Err(refusal) => Err(ClientError::from(refusal).into()),
            },
            Err(error) => {
                // The caller needs the first error, not one of leaving.
                let _ = conductor.leave(member);
                Err(error.into())
            }
        }
    }
}

/// A subscriber of one topic.
///
/// Several threads may use it; each message goes to one of them. Clones are the same subscriber. Dropping the last
/// clone closes it: publishers neither wait for it nor copy for it from then on. Its samples stay readable until they are
/// dropped.
#[derive(Clone)]
pub struct Subscriber {
    pub(crate) core: Arc<SubscriberCore>,
    _open: Arc<Open>,
}

/// Closes the subscriber when its last clone is dropped. Samples do not hold this.
struct Open {
    core: Arc<SubscriberCore>,
}

impl Drop for Open {
    fn drop(&mut self) {
        // With one reference there are no samples: the core is dropped next, and leaves the topic.
        if Arc::strong_count(&self.core) > 1 && !self.core.guard.is_child() {
            self.core.close();
        }
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("topic", &self.core.topic_name)
            .finish_non_exhaustive()
    }
}

impl Subscriber {
    fn new(core: Arc<SubscriberCore>) -> Subscriber {
        let _open = Arc::new(Open { core: core.clone() });
        Subscriber { core, _open }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.core.topic_name
    }

    /// The type that the subscriber expects; empty if it takes any.
    pub fn type_name(&self) -> &str {
        &self.core.type_name
    }

    /// The next message, or `None` if none is waiting. Does not block. Publishers take turns, and the messages of each
    /// publisher keep their order.
    ///
    /// Errors: [`RecvError::TooManyHeld`], and [`RecvError::Untrusted`] for a message that was skipped; the next call
    /// continues with the message after it.
    pub fn try_recv(&self) -> Result<Option<Sample>, RecvError> {
        SubscriberCore::try_recv(&self.core)
    }

    /// The next message; waits for it without limit. Errors as of [`try_recv`](Self::try_recv).
    pub fn recv(&self) -> Result<Sample, RecvError> {
        self.recv_until(Deadline::NEVER)
    }

    /// The next message; waits for it at most `timeout`, then returns [`RecvError::TimedOut`]. Other errors as of
    /// [`try_recv`](Self::try_recv).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Sample, RecvError> {
        self.recv_until(Deadline::after(timeout))
    }

    fn recv_until(&self, deadline: Deadline) -> Result<Sample, RecvError> {
        let core = &self.core;
        if let Some(sample) = self.spin()? {
            return Ok(sample);
        }
        loop {
            let sleeper = core.announce_sleep()?;
            if let Some(sample) = self.try_recv()? {
                return Ok(sample);
            }
            let Some(left_ns) = deadline.left_ns() else {
                return Err(RecvError::TimedOut(core.topic_name.clone()));
            };
            sleeper.sleep(left_ns.min(core.slice_ns()));
            // Spin first: that costs less than announcing another sleep. A publisher rings when it begins to publish
            // (`ring_ahead`), so the message may follow a little later.
            if let Some(sample) = self.look(WOKEN_SPIN_NS)? {
                return Ok(sample);
            }
        }
    }

    fn spin(&self) -> Result<Option<Sample>, RecvError> {
        self.look(self.core.qos.spin.as_nanos() as u64)
    }

    /// Tries to receive for `spin_ns` nanoseconds, at least once. None: no message arrived.
    fn look(&self, spin_ns: u64) -> Result<Option<Sample>, RecvError> {
        let mut begun_ns = None;
        loop {
            if let Some(sample) = self.try_recv()? {
                return Ok(Some(sample));
            }
            if spin_ns == 0 {
                return Ok(None);
            }
            let now_ns = monotonic_ns();
            if now_ns - *begun_ns.get_or_insert(now_ns) >= spin_ns {
                return Ok(None);
            }
            spin_hint();
        }
    }

    /// Waits until a message can be received, without taking it. False after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<bool, RecvError> {
        let deadline = Deadline::after(timeout);
        loop {
            let sleeper = self.core.announce_sleep()?;
            if self.core.lock().is_ready() {
                return Ok(true);
            }
            let Some(left_ns) = deadline.left_ns() else {
                return Ok(false);
            };
            sleeper.sleep(left_ns.min(self.core.slice_ns()));
        }
    }

    /// Calls `handler` in a thread of its own with each message, or with the error of receiving it, until the listener is
    /// dropped. Fails if the thread cannot be started.
    pub fn listen(
        &self,
        handler: impl FnMut(Result<Sample, RecvError>) + Send + 'static,
    ) -> Result<Listener, RecvError> {
        Listener::of_messages(self.clone(), handler)
    }

    /// Calls `handler` in a thread of its own: first with the publishers that match already, if any, then whenever matching
    /// publishers join or leave. Ends when the listener is dropped or the subscriber is closed. Each publisher on another host
    /// counts as one. Fails if the thread cannot be started.
    pub fn on_matched(
        &self,
        handler: impl FnMut(Matched) + Send + 'static,
    ) -> Result<Listener, ClientError> {
        let core = &self.core;
        let watched = Watched {
            core: Arc::downgrade(core),
            topic: core.lock().reader.topic().clone(),
            zone: core.client.zone.clone(),
            members: SubscriberCore::members,
        };
        watched.listen(&core.guard, handler)
    }

    /// A file descriptor that is readable while messages are waiting, for `poll`, `epoll` and event loops. When it is
    /// readable, call [`try_recv`](Self::try_recv) until it returns `None`; do not read the descriptor. The first call
    /// starts a thread.
    pub fn readiness(&self) -> Result<BorrowedFd<'_>, RecvError> {
        self.core.guard.check()?;
        let mut failed = None;
        let readiness = self.core.readiness.get_or_init(|| {
            Readiness::start(&self.core)
                .map_err(|error| failed = Some(error))
                .ok()
        });
        match (readiness, failed) {
            (Some(readiness), _) => Ok(readiness.fd()),
            (None, error) => Err(RecvError::Client(ClientError::System {
                call: "starting the thread for a pollable file descriptor",
                source: error.unwrap_or_else(|| std::io::ErrorKind::OutOfMemory.into()),
            })),
        }
    }

    /// How many publishers match this subscriber now. Each publisher on another host counts as one.
    pub fn publishers(&self) -> u32 {
        let mut state = self.core.lock();
        // Makes the reader notice publishers that joined or left.
        state.reader.is_ready();
        state.reader.publishers()
    }

    /// A text for users that explains why no message arrives: how many publishers match; whether there was a publisher before,
    /// and a similar topic name that has one; why some publishers do not match; which hosts are not linked. Asks the daemon only
    /// if there is no publisher, some do not match, or links are configured. Leaves out what the daemon does not answer.
    pub fn silence(&self) -> String {
        let mismatched = self.mismatched();
        let mut text = match (self.publishers(), mismatched) {
            (0, 0) if self.core.slot.received().load(Ordering::Relaxed) > 0 => {
                "it has no publisher any more".to_owned()
            }
            (0, 0) => self.no_publisher(),
            (0, _) => "no publisher matches".to_owned(),
            (1, _) => "nothing came from its publisher in that time".to_owned(),
            (n, _) => format!("nothing came from its {n} publishers in that time"),
        };
        if mismatched > 0 {
            text += &match mismatched {
                1 => "; 1 publisher does not match".to_owned(),
                n => format!("; {n} publishers do not match"),
            };
            for reason in self.mismatches().unwrap_or_default() {
                text += &format!("; {reason}");
            }
        }
        let conductor = &self.core.client.conductor;
        if conductor.config().links.enabled {
            for host in conductor.peers_now().unwrap_or_default().not_linked() {
                text += &format!("; host '{host}' is not linked: see 'rgaps peers'");
            }
        }
        text
    }

    fn no_publisher(&self) -> String {
        let topics = self.core.client.conductor.topics_now().unwrap_or_default();
        let known = topics.iter().filter(|row| row.publishers + row.orphans > 0);
        let known = known.map(|row| row.name.as_str());
        match similar_name(self.topic(), known.filter(|name| *name != self.topic())) {
            Some(meant) => format!("it has no publisher; did you mean '{meant}'?"),
            None => "it has no publisher; see 'rgaps topic list' for the topics that have one"
                .to_owned(),
        }
    }

    /// How many publishers of the topic do not match this subscriber. They publish another type, or do not offer the
    /// quality of service that it requests, and it gets none of their messages.
    pub fn mismatched(&self) -> u32 {
        self.core.slot.mismatched().load(Ordering::Acquire)
    }

    /// Why those publishers do not match: one line each, for the first few. Asks the daemon.
    pub fn mismatches(&self) -> Result<Vec<String>, ClientError> {
        let topic = self.core.client.conductor.topic(self.topic())?;
        let own = topic.mismatches.into_iter();
        let own = own.filter(|row| row.subscriber == self.core.member.slot);
        Ok(own.map(|row| row.reason).collect())
    }

    /// How many messages this subscriber has missed so far, over all publishers. May exceed the sum of
    /// [`Sample::missed`] over its samples: no sample counts the missed messages that follow the last sample of a publisher.
    pub fn missed(&self) -> u64 {
        self.core.lock().reader.missed()
    }

    /// How many samples this subscriber holds now. A sample and its clones count once.
    pub fn held(&self) -> u32 {
        self.core.holds.held()
    }
}

impl LinksSubscriberBuilder for SubscriberBuilder {
    fn of_links(mut self) -> Self {
        self.of_links = true;
        self
    }
}

impl LinksSubscriber for Subscriber {
    fn histories(&self) -> Vec<(u64, u64)> {
        self.core.lock().reader.histories()
    }
}

/// The subscriber, as its handles and its samples share it.
pub(crate) struct SubscriberCore {
    client: ClientContext,
    pub(crate) guard: ForkGuard,
    member: Member,
    topic_name: String,
    type_name: String,
    pub(crate) storage: Shared,
    slot: SubscriberView<Shared>,
    /// The doorbell that publishers ring: the subscriber's own, or that of its wait set.
    doorbell: AtomicU32,
    own_doorbell: u32,
    pub(crate) qos: SubscriberQos,
    pub(crate) holds: Holds,
    deferred: Arc<DeferredReleases>,
    /// The mapping of each pool by its number, set before the first sample in that pool.
    pools: [OnceLock<Arc<PoolMapping>>; MAX_POOLS],
    /// The pool of the domain that this subscriber named. None: it named none, and reads messages in their own domain.
    own: Option<Arc<PoolMapping>>,
    /// Bit n: this subscriber copies the messages of pool n for itself, because it cannot read them in place.
    copied: AtomicU32,
    /// The path that was last reported to the daemon: one of `PATH_*`.
    path: AtomicU32,
    readiness: OnceLock<Option<Readiness>>,
    /// All handles are dropped; only samples are left.
    closed: AtomicBool,
    state: Mutex<SubscriberState>,
}

/// The state that every message changes, behind the subscriber's lock.
pub(crate) struct SubscriberState {
    pub(crate) reader: Reader<Shared>,
    /// A message that was taken but cannot be received yet, with its slot in `holds`: its memory cannot be mapped now, or its GPU
    /// work must finish before it is copied. It is the next one to receive.
    unlocated: Option<(u32, Taken<Shared>)>,
}

impl SubscriberState {
    /// Whether trying to receive may succeed.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.unlocated.is_some() || self.reader.is_ready()
    }
}

/// The subscriber's end of the rings.
fn reader(
    topic: &TopicView<Shared>,
    slot: u32,
    qos: &SubscriberQos,
    of_links: bool,
) -> Result<Reader<Shared>, ClientError> {
    let start = match qos.late {
        Late::Nothing => Start::Live,
        Late::Latest => Start::Kept(1),
        Late::Last(n) => Start::Kept(u64::from(n)),
        Late::AllKept => Start::Kept(u64::MAX),
    };
    let begin = match of_links {
        true => Reader::of_links,
        false => Reader::new,
    };
    begin(topic.clone(), slot, qos.reliable, start)
        .ok_or_else(|| broken("a subscriber's slot that cannot be"))
}

impl SubscriberCore {
    fn new(
        conductor: Arc<Conductor>,
        joined: Joined,
        (topic_name, type_name): (String, String),
        qos: SubscriberQos,
        of_links: bool,
    ) -> Result<SubscriberCore, ClientError> {
        let (member, doorbell) = (joined.member, joined.doorbell);
        let pools = std::array::from_fn(|_| OnceLock::new());
        // A subscriber that named a domain maps another pool only for its first message there.
        if let Some(grant) = joined.reads.or(joined.pool) {
            // Map it now, so that creating the subscriber fails if this process cannot use the domain.
            let mapping =
                conductor.pool_mapping(member.zone, grant, Access::ReadOnly, grant.domain)?;
            mapping.prepare(&joined.zone);
            let known = pools.get(grant.pool as usize);
            let known = known.ok_or_else(|| broken("a pool out of range"))?;
            let _ = known.set(mapping);
        }
        // SAFETY: the zone maps the control segment until its last `Arc` is dropped, and the result keeps one in `client`. Two others use
        // the views, each while it holds an `Arc` of the zone: the closure of `drop` in the background, and the chore of deferred releases.
        let (storage, topic) = unsafe { joined.topic()? };
        let mut reader = reader(&topic, member.slot, &qos, of_links)?;
        let mut own = None;
        if let Some(grant) = joined.reads {
            reader.read_in(grant.pool as u16);
            own = pools[grant.pool as usize].get().cloned();
        }
        let slot = topic.subscriber(member.slot as usize);
        slot.doorbell().store(doorbell, Ordering::Release);
        let deferred = DeferredReleases::new(ReleaseList::new(topic, member.slot), storage);
        Ok(SubscriberCore {
            guard: conductor.guard().clone(),
            client: ClientContext {
                zone: joined.zone,
                conductor,
            },
            member,
            topic_name,
            type_name,
            storage,
            slot,
            doorbell: AtomicU32::new(doorbell),
            own_doorbell: doorbell,
            qos,
            holds: Holds::new(qos.max_held),
            deferred: Arc::new(deferred),
            pools,
            own,
            copied: AtomicU32::new(0),
            path: AtomicU32::new(PATH_UNKNOWN),
            readiness: OnceLock::new(),
            closed: AtomicBool::new(false),
            state: Mutex::new(SubscriberState {
                reader,
                unlocated: None,
            }),
        })
    }

    /// Fails if the required path needs peer access between the GPUs of subscriber and topic, and there is none. The daemon cannot
    /// check that: it assumes peer access.
    fn check_path(
        &self,
        require: Option<PathKind>,
        home: Option<PoolGrant>,
    ) -> Result<(), Refusal> {
        let context = self.own.as_ref().and_then(|own| own.context());
        let (Some(require), Some(home), Some(context)) = (require, home, context) else {
            return Ok(());
        };
        let on_gpu = matches!(home.domain, Domain::Cuda(_));
        if require <= PathKind::Pinned || !on_gpu || is_reached(Some(context), &home) {
            return Ok(());
        }
        Err(Refusal {
            code: RefusalCode::PathTooSlow,
            message: format!(
                "topic '{}' is on {}: the subscriber requires a path of {require} or better, and this one \
                 is pinned: the GPUs have no peer access; read in the domain of the messages, or require less",
                self.topic_name, home.domain
            ),
        })
    }

    pub(crate) fn topic_name(&self) -> &str {
        &self.topic_name
    }

    pub(crate) fn member(&self) -> Member {
        self.member
    }

    pub(crate) fn client(&self) -> &ClientContext {
        &self.client
    }

    pub(crate) fn zone(&self) -> &ZoneView {
        &self.client.zone
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SubscriberState> {
        // A poisoned lock is safe to use: nothing under it panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes publishers ring a wait set's doorbell instead of the subscriber's own. False: the subscriber is in a wait set already.
    pub(crate) fn join_wait_set(&self, doorbell: u32) -> bool {
        let own = self.own_doorbell;
        let joined = self
            .doorbell
            .compare_exchange(own, doorbell, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if joined {
            self.slot.doorbell().store(doorbell, Ordering::Release);
        }
        joined
    }

    /// Makes publishers ring the subscriber's own doorbell again.
    pub(crate) fn leave_wait_set(&self) {
        self.slot
            .doorbell()
            .store(self.own_doorbell, Ordering::Release);
        self.doorbell.store(self.own_doorbell, Ordering::Release);
    }

    /// Prepares a sleep: reads the doorbell's count, then announces the sleep to publishers. The caller must check for messages
    /// once more before it sleeps.
    pub(crate) fn announce_sleep(&self) -> Result<Sleeper<'_>, ClientError> {
        self.guard.check()?;
        let sleeper = Sleeper::new(&self.storage, self.doorbell.load(Ordering::Acquire))
            .ok_or_else(|| broken("a doorbell out of range"))?;
        self.lock().reader.announce_sleep();
        Ok(sleeper)
    }

    fn try_recv(core: &Arc<SubscriberCore>) -> Result<Option<Sample>, RecvError> {
        core.guard.check()?;
        core.deferred.tidy(&core.client);
        let mut state = core.lock();
        let next = match state.unlocated.take() {
            Some(next) => Some(next),
            None => core.take(&mut state)?,
        };
        let Some((hold, taken)) = next else {
            return Ok(None);
        };
        let private = match core.locate(&taken) {
            Ok(()) if core.is_copied(&taken.message) => core.copy(&taken),
            Ok(()) => Ok(Some(None)),
            Err(error) => Err(error),
        };
        match private {
            // The GPU work that writes the bytes has not finished, and a private copy is made on the CPU.
            Ok(None) => {
                state.unlocated = Some((hold, taken));
                Ok(None)
            }
            Ok(Some(private)) => Ok(Some(Sample {
                private,
                whole: AtomicBool::new(false),
                there: AtomicU64::new(0),
                part_bytes: taken.part_bytes,
                subscriber: core.clone(),
                held: ManuallyDrop::new(taken.held),
                hold,
                message: taken.message,
                publisher: taken.publisher,
                incarnation: taken.incarnation,
                sequence: taken.sequence,
                missed: taken.missed,
            })),
            Err(error @ RecvError::Client(_)) => {
                // The daemon is away, or the memory cannot be mapped now. Keep the message: the next call tries again.
                state.unlocated = Some((hold, taken));
                Err(error)
            }
            Err(error) => {
                drop(state);
                taken.held.release();
                core.end(hold);
                Err(error)
            }
        }
    }

    /// Takes the next message, and a slot in `holds` for its sample. None: no message is waiting.
    fn take(&self, state: &mut SubscriberState) -> Result<Option<(u32, Taken<Shared>)>, RecvError> {
        let Some(hold) = self.holds.free_slot() else {
            // Being full is an error only when a message is waiting.
            if !state.is_ready() {
                return Ok(None);
            }
            return Err(RecvError::TooManyHeld {
                topic: self.topic_name.clone(),
                limit: self.qos.max_held,
            });
        };
        let Some(taken) = self.poll(state) else {
            return Ok(None);
        };
        // SAFETY: `free_slot` returned `hold` above. This thread has held the lock of `state` since before that, and slots are taken
        // only under that lock, so no other sample has taken the slot.
        let held = unsafe { self.holds.enter(hold, &mut state.reader) };
        self.slot.held().store(held, Ordering::Relaxed);
        Ok(Some((hold, taken)))
    }

    /// Takes a message. If there is none and the descriptor of `readiness` is readable, makes it unreadable and tries again: a
    /// message may have arrived in between.
    fn poll(&self, state: &mut SubscriberState) -> Option<Taken<Shared>> {
        if let Some(taken) = state.reader.poll() {
            return Some(taken);
        }
        let readiness = self.readiness.get()?.as_ref()?;
        if !readiness.clear() {
            return None;
        }
        let taken = state.reader.poll();
        readiness.watch();
        taken
    }

    /// The mapping of a pool that has a sample of this subscriber.
    pub(crate) fn mapping(&self, pool: u16) -> &Arc<PoolMapping> {
        self.pools[usize::from(pool)]
            .get()
            .expect("`locate` has mapped the pool of every sample")
    }

    /// Maps the bytes of a message, unless they are mapped. Fails if they are outside their pool.
    #[inline]
    fn locate(&self, taken: &Taken<Shared>) -> Result<(), RecvError> {
        let message = &taken.message;
        if let Some(own) = &self.own {
            self.note_copy(own, message.pool, taken.home);
        }
        let known = self.pools.get(usize::from(message.pool));
        let mapped = known
            .and_then(OnceLock::get)
            .map_or(0, |mapping| mapping.mapped());
        match message.offset.checked_add(message.bytes) {
            Some(end) if end <= mapped && mapped > 0 => Ok(()),
            _ => self.map(message),
        }
    }

    /// Maps the pool of a message, and its segments up to the message's end.
    #[cold]
    fn map(&self, message: &Message) -> Result<(), RecvError> {
        let pool = u32::from(message.pool);
        let zone = self.member.zone;
        let untrusted = |reason: String| RecvError::Untrusted {
            topic: self.topic_name.clone(),
            reason,
        };
        let known = self
            .pools
            .get(pool as usize)
            .ok_or_else(|| untrusted(format!("there is no pool {pool}")))?;
        if known.get().is_none() {
            let grant = match self.client.conductor.pool_grant(zone, pool) {
                // The pool will never exist. Skip the message: waiting for the pool would block all messages after it.
                Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::NotFound => {
                    return Err(untrusted(format!("there is no pool {pool}")));
                }
                grant => grant?,
            };
            let mapping = self.open(grant)?;
            mapping.prepare(&self.client.zone);
            let _ = known.set(mapping);
        }
        let mapping = self.mapping(message.pool);
        let end = message
            .offset
            .checked_add(message.bytes)
            .filter(|end| *end <= mapping.cap())
            .ok_or_else(|| untrusted(format!("its bytes are outside of pool {pool}")))?;
        if end <= mapping.mapped() {
            return Ok(());
        }
        let synced = self.client.conductor.sync_pool(zone, pool);
        // Check before the error: segments that the daemon sent before it died are mapped although asking it failed.
        if end <= mapping.mapped() {
            return Ok(());
        }
        synced?;
        Err(untrusted(format!(
            "its bytes are beyond the end of pool {pool}"
        )))
    }

    /// Maps a pool for reading in the subscriber's domain. If that domain cannot read the pool in place, maps it in the pool's own
    /// domain instead, and this subscriber copies each message for itself.
    fn open(&self, grant: PoolGrant) -> Result<Arc<PoolMapping>, ClientError> {
        let map = |at| {
            self.client
                .conductor
                .pool_mapping(self.member.zone, grant, Access::ReadOnly, at)
        };
        let Some(own) = &self.own else {
            return map(grant.domain);
        };
        if is_reached(own.context(), &grant) {
            match map(own.at()) {
                Ok(mapping) => {
                    self.report_path(PATH_DIRECT, grant.pool as u16);
                    return Ok(mapping);
                }
                Err(ClientError::Pool(error)) => {
                    tracing::warn!(%error, topic = self.topic_name, "mapping the memory of a peer GPU failed; its messages are copied");
                }
                Err(error) => return Err(error),
            }
        }
        let mapping = map(grant.domain)?;
        self.copied.fetch_or(1 << grant.pool, Ordering::Relaxed);
        self.report_path(PATH_PRIVATE, grant.pool as u16);
        Ok(mapping)
    }

    #[inline]
    fn is_copied(&self, message: &Message) -> bool {
        let Some(own) = &self.own else {
            return false;
        };
        let mapping = self.mapping(message.pool);
        !Arc::ptr_eq(mapping, own)
            && (self.copied.load(Ordering::Relaxed) >> message.pool & 1 != 0
                || !mapping.is_reached_to(message.offset + message.bytes))
    }

    /// Makes a private copy of a message. `Ok(None)`: the GPU work that writes its bytes has not finished.
    #[cold]
    fn copy(&self, taken: &Taken<Shared>) -> Result<Option<Option<Arc<Private>>>, RecvError> {
        let message = &taken.message;
        match progress(&self.storage, message.point) {
            Progress::Pending => return Ok(None),
            // The bytes of an aborted message are undefined; its sample reports that.
            Progress::Aborted | Progress::Reached => {}
        }
        self.report_path(PATH_PRIVATE, message.pool);
        let own = self.own.as_ref().and_then(|own| own.context());
        let from = self.mapping(message.pool);
        let copy = Private::copy(from, message.offset, message.bytes, own)?;
        Ok(Some(Some(Arc::new(copy))))
    }

    fn note_copy(&self, own: &Arc<PoolMapping>, pool: u16, home: u16) {
        // Report only the first path, or a slower one later; a message in its home pool is not a copy.
        if self.path.load(Ordering::Relaxed) != PATH_UNKNOWN || home == pool {
            return;
        }
        let mapping = self.pools.get(usize::from(pool)).and_then(OnceLock::get);
        if mapping.is_some_and(|mapping| Arc::ptr_eq(mapping, own)) {
            self.report_path(PATH_COPIED, home);
        }
    }

    /// Reports to the daemon, for listings, how messages of the pool `home` reach this subscriber, if that has changed.
    fn report_path(&self, path: u32, home: u16) {
        let Some(own) = &self.own else {
            return;
        };
        if self.path.swap(path, Ordering::Relaxed) == path {
            return;
        }
        let home = self
            .client
            .conductor
            .pool_grant(self.member.zone, u32::from(home))
            .ok()
            .map(|grant| grant.domain);
        let text = match path {
            PATH_COPIED => how_copied(own.context(), home),
            PATH_DIRECT => how_read_directly(home),
            _ => {
                "copied by the subscriber for itself: the publisher made no replica here, and the subscriber's GPU or CPU \
                 cannot read the message in place"
            }
        };
        if let Err(error) = self.client.conductor.report_path(self.member, text) {
            tracing::debug!(%error, "telling the daemon the path of a subscriber failed");
        }
    }

    /// Releases a block whose last sample was dropped, behind the work that may still read it.
    pub(crate) fn release_behind(&self, hold: u32, held: Held<Shared>, pool: u16) {
        let mapping = self.mapping(pool);
        if mapping.context().is_none() {
            held.release();
        } else {
            let mut recorded = self.holds.streams(hold);
            let streams = match &recorded[..] {
                // No stream was recorded, so work on the default stream may read the block.
                [] => &[Recorded::DEFAULT],
                streams => streams,
            };
            let deferred = &self.deferred;
            deferred.release_behind(&self.client, held, mapping, streams);
            // `clear` keeps the vector's memory for the slot's next sample.
            recorded.clear();
        }
        self.end(hold);
    }

    /// Releases a block at once: no GPU work of this process reads it.
    pub(crate) fn release(&self, hold: u32, held: Held<Shared>) {
        held.release();
        self.end(hold);
    }

    /// Frees a sample's slot in `holds`.
    fn end(&self, hold: u32) {
        let held = self.holds.end(hold);
        self.slot.held().store(held, Ordering::Relaxed);
        if self.is_closed() {
            // Receiving does this in an open subscriber.
            self.lock().reader.note_membership();
        }
    }

    /// Closes the subscriber: it takes no more messages. Its samples stay valid.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut state = self.lock();
        if let Some((_, taken)) = state.unlocated.take() {
            taken.held.release();
        }
        state.reader.close();
        drop(state);
        if let Err(error) = self.client.conductor.close(self.member) {
            tracing::debug!(%error, "the daemon does not know that a subscriber is closed");
        }
    }

    /// The publishers that match, by incarnation, each counting as 1. None: the subscriber is closed.
    fn members(&self) -> Option<Members> {
        if self.is_closed() {
            return None;
        }
        let topic = self.lock().reader.topic().clone();
        let present = topic.publishers().load(Ordering::Acquire);
        let slots = (0..MAX_PUBLISHERS).filter(|slot| present >> slot & 1 != 0);
        let publishers = slots.map(|slot| topic.publisher(slot));
        let matched = publishers.filter(|publisher| {
            let is_ours = publisher.matched().load(Ordering::Acquire) >> self.member.slot & 1 != 0;
            is_ours && publisher.state().load(Ordering::Acquire) == PUBLISHER_ACTIVE
        });
        Some(
            matched
                .map(|one| (one.incarnation().load(Ordering::Relaxed), 1))
                .collect(),
        )
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl SubscriberCore {
    /// The longest sleep in nanoseconds. Short while a message waits for GPU work, whose end rings no doorbell.
    fn slice_ns(&self) -> u64 {
        match self.lock().unlocated.is_some() {
            true => COPY_SLICE_NS,
            false => WAIT_SLICE_NS,
        }
    }
}

impl Drop for SubscriberCore {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return;
        }
        drop(self.readiness.take());
        let unlocated = self.lock().unlocated.take();
        if let Some((_, taken)) = unlocated {
            taken.held.release();
        }
        let client = self.client.clone();
        let deferred = self.deferred.clone();
        // Whether all GPU work of this subscriber that reads blocks has ended.
        let is_over = move || {
            deferred.tidy(&client);
            // The work of a lost context has ended; the daemon clears the bits that remain in holder words.
            deferred.is_empty() || client.zone.is_gpu_lost()
        };
        let (conductor, member) = (self.client.conductor.clone(), self.member);
        once_over(is_over, move || {
            // Without a daemon leaving fails, and the next daemon finds that this subscriber has left.
            let _ = conductor.leave(member);
        });
    }
}
