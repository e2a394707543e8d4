//! Publishers: [`Publisher`] and its builder. The submodules allocate blocks, copy messages to other domains, and wait for
//! subscribers.

mod allocation;
mod back_pressure;
mod matched;
mod memory;
mod replicas;
mod staging;
mod streaming_copy;

use self::memory::{ArenaState, MappedArena, Memory};
pub(crate) use self::replicas::ReplicaBlock;
use self::replicas::Replicas;
use self::staging::Staging;
pub use self::streaming_copy::StreamingCopy;
use self::streaming_copy::StreamingCopyCore;
use crate::bindings::{Patience, PatientPublisher};
use crate::client::broken;
use crate::client::{once_over, ClientContext, Conductor, ForkGuard, Joined, PoolMapping};
use crate::deferred_release::Recorded;
use crate::links::{LinksPublisher, LinksPublisherBuilder};
use crate::loan::Filled;
use crate::parts::lay_out;
use crate::pending::Deadline;
use crate::tensor::contiguous;
use crate::{
    ClientError, DType, Loan, LoanError, Node, OpenError, PartSpec, Parts, PublishError,
    PublisherQos, PutError, SlowReaderPolicy, TensorType,
};
use rgaps_layout::{Domain, PublisherRegion, MAX_BLOCK_ALIGN, MAX_DEPTH};
use rgaps_pool::{Access, Mapping, PoolError, Stream};
use rgaps_session::{ArrivalPath, History, Member, Offer, PathKind, RemoteRow, Role};
use rgaps_sync::atomic::Ordering;
use rgaps_sync::monotonic_ns;
use rgaps_topic::{
    ring_sleepers, Copied, Message, Metadata, Point, PublisherView, RegionView, Shared, Sleeper,
    Tensor, TopicView, With, Writer,
};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How many empty metadata buffers a publisher keeps for later loans. In common use fewer loans than this are open at once.
const SPARE_METADATA_MAX: usize = 16;
/// What to do about a message that is larger than the pool.
const RAISE_HOST_CAP: &str =
    "raise pool.host.cap in rgaps.toml, then run 'rgaps down' and restart the programs";
const RAISE_CUDA_CAP: &str =
    "raise pool.cuda.cap in rgaps.toml, then run 'rgaps down' and restart the programs";

/// Configures and creates a [`Publisher`].
#[derive(Clone, Debug)]
pub struct PublisherBuilder {
    node: Node,
    topic: String,
    type_name: String,
    domain: Option<Domain>,
    require: Option<PathKind>,
    arrives_over: Option<ArrivalPath>,
    qos: PublisherQos,
}

impl PublisherBuilder {
    pub(crate) fn new(node: Node, topic: String) -> Self {
        PublisherBuilder {
            node,
            topic,
            type_name: String::new(),
            domain: None,
            require: None,
            arrives_over: None,
            qos: PublisherQos::default(),
        }
    }

    /// The type of the messages: any name, or a tensor type like `float16[3,*,1920]` ([`TensorType`]), where `*` is any
    /// length. Publishing checks each message against a tensor type. A subscriber that expects a type matches only
    /// publishers whose messages are all of that type. Default: none, and only subscribers without a type match.
    pub fn type_name(mut self, name: &str) -> Self {
        self.type_name = name.to_owned();
        self
    }

    /// The domain of the messages. All publishers of a topic use the domain of its first publisher; another one is
    /// refused. Default: the topic's domain, or host memory if the topic has none yet.
    pub fn domain(mut self, domain: Domain) -> Self {
        self.domain = Some(domain);
        self
    }

    /// The slowest acceptable path to each subscriber. Where only a slower path exists, the second of the two to join is
    /// refused with [`RefusalCode::PathTooSlow`](crate::RefusalCode::PathTooSlow), and another host gets no messages.
    /// Default: any path.
    pub fn require(mut self, path: PathKind) -> Self {
        self.require = Some(path);
        self
    }

    /// Sets the whole quality of service at once.
    pub fn qos(mut self, qos: PublisherQos) -> Self {
        self.qos = qos;
        self
    }

    /// Keeps the last `n` messages (1 to 32768) for subscribers that lag. Default: 16.
    pub fn keep_last(mut self, n: u32) -> Self {
        self.qos.history = History::KeepLast(n);
        self
    }

    /// Keeps all messages, up to `messages` messages (1 to 32768) and `bytes` bytes of payload. At a limit the publisher removes
    /// the oldest message once every reliable subscriber has read it.
    pub fn keep_all(mut self, messages: u32, bytes: u64) -> Self {
        self.qos.history = History::KeepAll { messages, bytes };
        self
    }

    /// Keeps the history for late joiners, even after the publisher has closed or died. Default: volatile.
    pub fn transient_local(mut self) -> Self {
        self.qos.transient_local = true;
        self
    }

    /// Never waits for subscribers. Reliable subscribers do not match this publisher. Default: reliable.
    pub fn best_effort(mut self) -> Self {
        self.qos.reliable = false;
        self
    }

    /// How long a publish waits for slow reliable subscribers. Default: 1 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.qos.deadline = deadline;
        self
    }

    /// What a publish does after the deadline. Default: it fails.
    pub fn slow_reader(mut self, policy: SlowReaderPolicy) -> Self {
        self.qos.slow_reader = policy;
        self
    }

    /// How long a loan waits for free memory when the pool is at its cap. Default: 0, it fails at once.
    pub fn loan_timeout(mut self, timeout: Duration) -> Self {
        self.qos.loan_timeout = timeout;
        self
    }

    /// Creates the publisher: it joins the topic, and creates the topic if it does not exist.
    ///
    /// Errors: [`OpenError::Argument`] for a value outside its limits, and [`ClientError::Refused`] with the daemon's
    /// [`RefusalCode`](crate::RefusalCode), for example when access rules do not let this user publish.
    pub fn create(self) -> Result<Publisher, OpenError> {
        let qos = self.qos;
        let depth = qos.history.depth();
        if depth == 0 || depth > MAX_DEPTH {
            return Err(OpenError::Argument(format!(
                "a history of {depth} messages is outside the limits of 1 to {MAX_DEPTH} messages"
            )));
        }
        let offer = Offer {
            history: qos.history,
            reliable: qos.reliable,
            transient_local: qos.transient_local,
            loans: qos.max_loans,
        };
        let conductor = &self.node.conductor;
        let role = Role::Publisher(offer);
        // A publisher that represents one of another host does not check types: the other host did.
        let declared = match self.arrives_over {
            None => self.type_name.parse().ok(),
            Some(_) => None,
        };
        let joined = conductor.join(
            &self.topic,
            &self.type_name,
            self.domain,
            role,
            self.require,
            self.arrives_over,
        )?;
        let member = joined.member;
        let typed = (self.type_name, declared);
        match PublisherCore::new(conductor.clone(), joined, self.topic, typed, qos) {
            Ok(core) => Ok(Publisher {
                core: Arc::new(core),
            }),
            Err(error) => {
                // The caller needs the first error, not one of leaving.
                let _ = conductor.leave(member);
                Err(error.into())
            }
        }
    }
}

/// A publisher of one topic.
///
/// Several threads may use it; a lock orders their calls, and messages have that order. Clones are the same publisher.
/// It leaves the topic when the last clone and the last loan are dropped.
#[derive(Clone)]
pub struct Publisher {
    core: Arc<PublisherCore>,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("topic", &self.core.topic_name)
            .field("domain", &self.domain())
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.core.topic_name
    }

    /// The declared type of its messages; empty if it declares none.
    pub fn type_name(&self) -> &str {
        &self.core.type_name
    }

    /// The domain that holds the messages: host memory, or a GPU.
    pub fn domain(&self) -> Domain {
        self.core.mapping().domain()
    }

    /// Loans a block of `bytes` bytes, aligned to 256 bytes. Its contents are undefined until they are written.
    ///
    /// Errors: [`LoanError::PoolFull`] if the pool has no memory for `loan_timeout`, [`LoanError::TooLarge`] for a message
    /// that never fits, [`LoanError::TooManyLoans`], [`LoanError::NoBlocks`].
    pub fn loan(&self, bytes: u64) -> Result<Loan, LoanError> {
        self.loan_aligned(bytes, rgaps_layout::BLOCK_ALIGN)
    }

    /// Like [`loan`](Self::loan), but uses only memory that this publisher leases already, and so never waits for the daemon
    /// or the kernel. `None` if that memory has no free block of this size.
    pub fn try_loan(&self, bytes: u64) -> Result<Option<Loan>, LoanError> {
        PublisherCore::try_loan(&self.core, bytes)
    }

    /// Loans a block of `bytes` bytes whose offset in the pool is a multiple of `align` bytes, a power of two of up to
    /// 2 MiB. [`LoanError::Argument`] for another alignment; other errors as in [`loan`](Self::loan).
    pub fn loan_aligned(&self, bytes: u64, align: u64) -> Result<Loan, LoanError> {
        PublisherCore::loan(&self.core, bytes, align)
    }

    /// Loans a block for a tensor of this element type and shape, in row-major order. [`LoanError::Argument`] for a shape
    /// outside its limits; other errors as in [`loan`](Self::loan).
    pub fn loan_tensor(&self, dtype: DType, shape: &[u64]) -> Result<Loan, LoanError> {
        let (tensor, bytes) =
            contiguous(dtype, shape).map_err(|error| LoanError::Argument(error.to_string()))?;
        let mut loan = self.loan(bytes)?;
        loan.tensor = Some(tensor);
        Ok(loan)
    }

    /// Loans one block for several named arrays, each at a multiple of 256 bytes. Fill each of them through
    /// [`Loan::part_mut`]. At most [`MAX_MESSAGE_PARTS`](crate::MAX_MESSAGE_PARTS) parts; [`LoanError::Parts`] if they are invalid.
    pub fn loan_parts(&self, parts: &[PartSpec<'_>]) -> Result<Loan, LoanError> {
        let loan = self.loan_parts_by(parts, |bytes| self.loan(bytes).map(Some))?;
        Ok(loan.expect("a loan or an error"))
    }

    /// Like [`loan_parts`](Self::loan_parts), but uses only memory that this publisher leases already, as
    /// [`try_loan`](Self::try_loan) does. `None` if that memory has no free block of this size.
    pub fn try_loan_parts(&self, parts: &[PartSpec<'_>]) -> Result<Option<Loan>, LoanError> {
        self.loan_parts_by(parts, |bytes| self.try_loan(bytes))
    }

    fn loan_parts_by(
        &self,
        parts: &[PartSpec<'_>],
        loan: impl FnOnce(u64) -> Result<Option<Loan>, LoanError>,
    ) -> Result<Option<Loan>, LoanError> {
        let mut metadata = self.core.metadata();
        let loan = lay_out(parts, &mut metadata)
            .map_err(LoanError::from)
            .and_then(loan);
        match loan {
            Ok(Some(mut loan)) => {
                loan.metadata = Some(metadata);
                Ok(Some(loan))
            }
            other => {
                self.core.keep_spare(metadata);
                other
            }
        }
    }

    /// Publishes a copy of `bytes`. Returns the message's sequence number, which counts from 0. To publish without a copy,
    /// use [`loan`](Self::loan).
    pub fn put(&self, bytes: &[u8]) -> Result<u64, PutError> {
        let mut loan = self.loan(bytes.len() as u64)?;
        loan.write(0, bytes)?;
        Ok(loan.publish()?)
    }

    /// Waits until no reliable subscriber back-pressures a message of `bytes` bytes. False after `timeout`. Another thread
    /// may publish first and take the room, so [`Loan::try_publish`] can still fail.
    pub fn wait_for_room(&self, bytes: u64, timeout: Duration) -> Result<bool, ClientError> {
        self.core.wait_for_room(bytes, Deadline::after(timeout))
    }

    /// Waits until this publisher has `n` matching subscribers, including those on other hosts. False after `timeout`.
    pub fn wait_for_subscribers(&self, n: u32, timeout: Duration) -> Result<bool, ClientError> {
        self.core.wait_for_subscribers(n, Deadline::after(timeout))
    }

    /// A text for users after [`wait_for_subscribers`](Self::wait_for_subscribers) timed out: how many of the `n` subscribers
    /// there are, which ones do not match, and which hosts' subscribers cannot be reached because of a rule, a quota or a
    /// slow path. Without a daemon the text leaves the hosts out.
    pub fn missing_subscribers(&self, n: u32) -> String {
        let mut text = format!(
            "topic '{}' has {} of {n} subscribers",
            self.topic(),
            self.subscribers()
        );
        let remote = self.core.client.conductor.topic(self.topic());
        let remote = remote.map_or_else(|_| Vec::new(), |topic| topic.remote);
        if self.mismatched() > 0 {
            text += &match self.mismatched() {
                1 => "; 1 does not match".to_owned(),
                n => format!("; {n} do not match"),
            };
            for reason in self.mismatches().unwrap_or_default() {
                text += &format!(": {reason}");
            }
        }
        for row in remote {
            if !row.ready && row.subscribers > 0 {
                let RemoteRow {
                    host,
                    subscribers,
                    path,
                    ..
                } = row;
                text += &format!("; {subscribers} on host '{host}' cannot be reached: {path}");
            }
        }
        text
    }

    /// How many subscribers match this publisher now, including those on other hosts that its messages reach.
    pub fn subscribers(&self) -> u32 {
        self.core.subscribers()
    }

    /// How often this publisher went on without a slow reliable subscriber, as its [`SlowReaderPolicy`] says. Each
    /// subscriber counts each time.
    pub fn drops(&self) -> u64 {
        self.core.slot().drops().load(Ordering::Relaxed)
    }

    /// How many subscribers on this host do not match this publisher. They expect another type, or request a quality of
    /// service that it does not offer, and get none of its messages.
    pub fn mismatched(&self) -> u32 {
        self.core.slot().mismatched().load(Ordering::Acquire)
    }

    /// Why those subscribers do not match: one line each, for the first few. Asks the daemon.
    pub fn mismatches(&self) -> Result<Vec<String>, ClientError> {
        let topic = self.core.client.conductor.topic(self.topic())?;
        let slot = self.core.member.slot;
        let own = topic.mismatches.into_iter().filter(|row| {
            let mut subscribers = topic.subscribers.iter();
            row.publisher == slot
                && subscribers.any(|other| other.slot == row.subscriber && !other.observer)
        });
        Ok(own.map(|row| row.reason).collect())
    }

    /// A random number that identifies this publisher, also in [`Sample::publisher_id`](crate::Sample::publisher_id).
    pub fn id(&self) -> u64 {
        self.core.member.incarnation
    }

    pub(crate) fn member(&self) -> Member {
        self.core.member
    }

    /// Bytes of pool memory that this publisher leases, in its own domain and in those to which it copies.
    pub fn leased_bytes(&self) -> u64 {
        self.core.lock().memory.all_leased_bytes()
    }

    /// How many of the leased bytes loans, history, replicas and held samples use. The number is updated by each loan and
    /// by [`trim`](Self::trim).
    pub fn used_bytes(&self) -> u64 {
        self.core.lock().memory.used_bytes()
    }

    /// Returns unused memory to the pools, except for `keep_bytes` bytes in each pool. Returns the number of bytes returned.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, ClientError> {
        self.core.trim(keep_bytes)
    }
}

impl LinksPublisherBuilder for PublisherBuilder {
    fn arrives_over(mut self, over: ArrivalPath) -> Self {
        self.arrives_over = Some(over);
        self
    }
}

impl LinksPublisher for Publisher {
    fn end_history(&self) {
        self.core.lock().writer.end_history();
    }

    fn set_quiet(&self, is_quiet: bool) {
        self.core.lock().writer.set_quiet(is_quiet);
    }

    fn ring(&self) {
        ring_sleepers(&self.core.topic, &self.core.slot());
    }
}

impl PatientPublisher for Publisher {
    fn overdue(&self, bytes: u64) -> Option<PublishError> {
        self.core.overdue(bytes)
    }
}

fn used_up() -> PublishError {
    PublishError::Argument("the loan was published or discarded before; take a new one".to_owned())
}

/// The publisher, as its handles and its loans share it.
pub(crate) struct PublisherCore {
    client: ClientContext,
    pub(crate) guard: ForkGuard,
    /// The publisher's arena in the pool of its own domain.
    own: MappedArena,
    replicas: Mutex<Replicas>,
    /// Streaming copies into other domains, of loans that are not published yet.
    streaming: Mutex<Vec<Weak<StreamingCopyCore>>>,
    /// Empty buffers for attachments and parts of loans, so that publishing with either allocates nothing.
    // Boxes, since a loan takes the box.
    #[allow(clippy::vec_box)]
    spare: Mutex<Vec<Box<Metadata>>>,
    /// Host memory in which the links fill loans on a GPU. None: none was needed yet.
    staging: Mutex<Option<Arc<Staging>>>,
    member: Member,
    topic_name: String,
    type_name: String,
    /// The tensor type that each message must have. None: publishing checks no type.
    declared: Option<TensorType>,
    topic: TopicView<Shared>,
    storage: Shared,
    /// Index of the doorbell that wakes this publisher.
    doorbell: u32,
    qos: PublisherQos,
    /// The history's limit in bytes; `u64::MAX` without one.
    max_bytes: u64,
    /// The conductor has a weak reference, through which it takes free memory when other publishers need it.
    state: Arc<Mutex<ArenaState>>,
}

/// The publisher's end of its ring.
fn writer(
    joined: &Joined,
    storage: Shared,
    topic: TopicView<Shared>,
    max_bytes: u64,
) -> Result<Writer<Shared>, ClientError> {
    let (ring, member) = (&joined.ring, &joined.member);
    let geometry = PublisherRegion {
        ring_capacity: ring.ring_capacity,
        block_capacity: ring.block_capacity,
    };
    let region = RegionView::new(storage, ring.region_offset, geometry)
        .ok_or_else(|| broken("the ring is outside of the control segment"))?;
    let (slot, incarnation) = (member.slot, member.incarnation);
    Writer::new(
        topic,
        slot,
        region,
        incarnation,
        ring.start,
        ring.depth,
        max_bytes,
    )
    .ok_or_else(|| broken("the publisher's slot or history is invalid"))
}

impl PublisherCore {
    fn new(
        conductor: Arc<Conductor>,
        joined: Joined,
        topic_name: String,
        (type_name, declared): (String, Option<TensorType>),
        qos: PublisherQos,
    ) -> Result<PublisherCore, ClientError> {
        let pool = joined
            .pool
            .ok_or_else(|| broken("the publisher has no pool"))?;
        let member = joined.member;
        let mapping = conductor.pool_mapping(member.zone, pool, Access::ReadWrite, pool.domain)?;
        mapping.prepare(&joined.zone);
        // SAFETY: the zone maps the control segment until its last `Arc` is dropped, and the result keeps one in `client`. Two others use
        // the views, each while it holds an `Arc` of the zone: the closure of `drop` in the background, and the conductor taking memory.
        let (storage, topic) = unsafe { joined.topic()? };
        let max_bytes = match qos.history {
            History::KeepLast(_) => u64::MAX,
            History::KeepAll { bytes, .. } => bytes,
        };
        let state = Arc::new(Mutex::new(ArenaState {
            writer: writer(&joined, storage, topic.clone(), max_bytes)?,
            memory: Memory::new(pool.pool, joined.ring.block_capacity),
            loans: 0,
            unasked: Vec::new(),
        }));
        let arena: Weak<Mutex<ArenaState>> = Arc::downgrade(&state);
        conductor.set_arena(member, arena)?;
        Ok(PublisherCore {
            guard: conductor.guard().clone(),
            client: ClientContext {
                zone: joined.zone,
                conductor,
            },
            own: MappedArena {
                arena: 0,
                pool,
                mapping,
            },
            replicas: Mutex::default(),
            streaming: Mutex::default(),
            spare: Mutex::default(),
            staging: Mutex::default(),
            member,
            topic_name,
            type_name,
            declared,
            topic,
            storage,
            doorbell: joined.doorbell,
            qos,
            max_bytes,
            state,
        })
    }

    pub(crate) fn topic_name(&self) -> &str {
        &self.topic_name
    }

    /// The writable mapping of the publisher's own pool.
    pub(crate) fn mapping(&self) -> &Arc<PoolMapping> {
        &self.own.mapping
    }

    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        // A poisoned lock is safe to use: nothing under it panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loan(core: &Arc<PublisherCore>, bytes: u64, align: u64) -> Result<Loan, LoanError> {
        core.guard.check()?;
        core.check_loan(bytes, align)?;
        let (block, offset) = core.block(&core.own, bytes, align)?;
        Ok(core.lend(block, offset, bytes))
    }

    fn try_loan(core: &Arc<PublisherCore>, bytes: u64) -> Result<Option<Loan>, LoanError> {
        core.guard.check()?;
        core.check_loan(bytes, rgaps_layout::BLOCK_ALIGN)?;
        let found = core.block_at_hand(&core.own, bytes, rgaps_layout::BLOCK_ALIGN)?;
        Ok(found.map(|(block, offset)| core.lend(block, offset, bytes)))
    }

    fn lend(self: &Arc<Self>, block: rgaps_topic::Loan, offset: u64, bytes: u64) -> Loan {
        Loan {
            publisher: self.clone(),
            block: Some(block),
            offset,
            bytes,
            tag: 0,
            tensor: None,
            metadata: None,
            stream: Stream(0),
            publish_ns: None,
            missed_so_far: 0,
            failed: None,
            streaming: None,
        }
    }

    /// An empty buffer for a loan's attachment and parts.
    pub(crate) fn metadata(&self) -> Box<Metadata> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.pop().unwrap_or_default()
    }

    /// Clears a metadata buffer and keeps it for the next loan.
    pub(crate) fn keep_spare(&self, mut metadata: Box<Metadata>) {
        metadata.clear();
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_METADATA_MAX {
            spare.push(metadata);
        }
    }

    fn check_loan(&self, bytes: u64, align: u64) -> Result<(), LoanError> {
        if !align.is_power_of_two() || align > MAX_BLOCK_ALIGN {
            return Err(LoanError::Argument(format!(
                "an alignment of {align} is not a power of two up to {MAX_BLOCK_ALIGN}"
            )));
        }
        let too_large = |limit, advice| LoanError::TooLarge {
            topic: self.topic_name.clone(),
            bytes,
            limit,
            advice,
        };
        if bytes > self.own.pool.cap_bytes {
            return Err(too_large(
                self.own.pool.cap_bytes,
                match self.own.pool.domain {
                    Domain::Host => RAISE_HOST_CAP,
                    Domain::Cuda(_) => RAISE_CUDA_CAP,
                },
            ));
        }
        if bytes > self.max_bytes {
            return Err(too_large(
                self.max_bytes,
                "raise the limit of bytes of its history (Python: history=(n, bytes))",
            ));
        }
        Ok(())
    }

    /// Reads the doorbell's count. Call it before the last check before a sleep: a wake-up after this call ends the sleep at once.
    fn sleeper(&self) -> Result<Sleeper<'_>, ClientError> {
        Sleeper::new(&self.storage, self.doorbell).ok_or_else(|| broken("a doorbell out of range"))
    }

    /// Publishes a loan's block and returns the sequence number. On an error the block stays in `block`, except after `LoanLost`.
    pub(crate) fn publish(
        &self,
        block: &mut Option<rgaps_topic::Loan>,
        filled: &Filled<'_>,
        stream: Stream,
        streaming: &mut Option<StreamingCopy>,
        patience: Patience,
    ) -> Result<u64, PublishError> {
        let publish_ns = filled.publish_ns.unwrap_or_else(monotonic_ns);
        self.guard.check()?;
        if block.is_none() {
            return Err(used_up());
        }
        if let Some(tensor) = filled.tensor {
            crate::tensor::check_extent(tensor, filled.bytes)
                .map_err(|error| PublishError::Argument(error.to_string()))?;
        }
        self.check_type(filled.tensor)?;
        if let Some(metadata) = filled.metadata {
            Parts::check(Some(metadata), filled.bytes)
                .map_err(|reason| PublishError::Argument(reason.to_owned()))?;
        }
        let message = Message {
            pool: self.own.pool.pool as u16,
            offset: filled.offset,
            bytes: filled.bytes,
            publish_ns,
            tag: filled.tag,
            point: Point::NONE,
            missed_so_far: filled.missed_so_far,
        };
        // Wait for room before queuing anything on the stream: the subscribers that make room may need work on that stream to run.
        let mut state = self.room(filled.bytes, patience)?;
        state.writer.ring_ahead();
        let is_elsewhere = self.read_in_other_domains() != 0;
        if is_elsewhere || self.own.mapping.context().is_some() || streaming.is_some() {
            drop(state);
            let begun = streaming
                .take()
                .map_or_else(Vec::new, |streaming| streaming.end());
            return self.publish_behind(block, message, filled, stream, begun, patience);
        }
        let with = With {
            tensor: filled.tensor,
            metadata: filled.metadata,
            read: Point::NONE,
            copies: [],
        };
        self.announce(state, block, &message, with)
    }

    /// Fails for a message that is not of the type that this publisher declares.
    #[inline]
    fn check_type(&self, tensor: Option<&Tensor>) -> Result<(), PublishError> {
        let Some(declared) = &self.declared else {
            return Ok(());
        };
        let shape = |tensor: &Tensor| usize::from(tensor.ndim).min(tensor.shape.len());
        match tensor {
            Some(tensor) if declared.holds(tensor.dtype, &tensor.shape[..shape(tensor)]) => Ok(()),
            tensor => Err(PublishError::TypeMismatch {
                topic: self.topic_name.clone(),
                message: tensor.map_or_else(
                    || "plain bytes".to_owned(),
                    |tensor| {
                        TensorType::of(tensor.dtype, &tensor.shape[..shape(tensor)]).to_string()
                    },
                ),
                declared: declared.to_string(),
            }),
        }
    }

    /// Publishes a message that GPU work still writes, or that must be copied to other domains. `begun`: the replicas of its
    /// streaming copy.
    fn publish_behind(
        &self,
        block: &mut Option<rgaps_topic::Loan>,
        mut message: Message,
        filled: &Filled<'_>,
        stream: Stream,
        mut begun: Vec<ReplicaBlock>,
        patience: Patience,
    ) -> Result<u64, PublishError> {
        let targets = match self.provide(filled.bytes, &mut begun) {
            Ok(targets) => targets,
            Err(error) => {
                self.withdraw(begun);
                // Streaming copies of later messages may hold the memory that this message needs.
                self.end_streaming_copies();
                return Err(error);
            }
        };
        let before = self.end_begun(begun);
        message.point = match self.point(stream) {
            Ok(point) => point,
            Err(error) => {
                self.withdraw(targets);
                self.wait_for(before);
                return Err(error.into());
            }
        };
        let (read, copies) = self.copy(targets, filled, message.point, before);
        // Check again: another thread may have published into the room.
        let state = match self.room(filled.bytes, patience) {
            Ok(state) => state,
            Err(error) => {
                self.take_back(copies, read);
                return Err(error);
            }
        };
        let with = With {
            tensor: filled.tensor,
            metadata: filled.metadata,
            read,
            copies,
        };
        self.announce(state, block, &message, with)
    }

    #[inline]
    fn announce(
        &self,
        mut state: MutexGuard<'_, ArenaState>,
        block: &mut Option<rgaps_topic::Loan>,
        message: &Message,
        with: With<'_, impl IntoIterator<Item = Copied>>,
    ) -> Result<u64, PublishError> {
        let ArenaState {
            writer,
            memory,
            loans,
            ..
        } = &mut *state;
        let block = block.take().ok_or_else(used_up)?;
        *loans -= 1;
        writer
            .publish_with(block, message, with, &mut |block| memory.free(block))
            .map_err(|_| PublishError::LoanLost(self.topic_name.clone()))
            .map(|sequence| sequence - writer.start())
    }

    /// Queues a point behind the work queued on a stream so far. [`Point::NONE`]: no work is left.
    pub(crate) fn point(&self, stream: Stream) -> Result<Point, PoolError> {
        self.own
            .mapping
            .point(&self.client, stream)
            .map_err(|error| self.own.mapping.fail(error))
    }

    /// Makes `stream` wait for the work queued on `other` so far.
    pub(crate) fn join(&self, other: Stream, stream: Stream) -> Result<(), PoolError> {
        let point = self.point(other)?;
        if point.is_none() {
            return Ok(());
        }
        // Nothing to do on the CPU: a driver that could queue the point can also wait for it.
        let on_cpu = || {};
        self.own
            .mapping
            .wait_on(&self.client, stream, point, on_cpu)
            .map_err(|error| self.own.mapping.fail(error))
    }

    /// Gives back the block of a loan that is not published, once its streaming copies have read it.
    pub(crate) fn abandon_begun(&self, block: rgaps_topic::Loan, begun: Vec<ReplicaBlock>) {
        let read = self.end_begun(begun);
        let mut state = self.lock();
        state.loans -= 1;
        let ArenaState { writer, memory, .. } = &mut *state;
        writer.abandon(block, read, &mut |block| memory.free(block));
    }

    /// Gives a loan's block back when the work queued on `stream` so far has finished.
    pub(crate) fn abandon(&self, block: rgaps_topic::Loan, stream: Stream) {
        if self.guard.is_child() {
            return;
        }
        let asked = self.own.mapping.ask(&self.client, stream);
        let mut state = self.lock();
        state.loans -= 1;
        state.give_back(block, asked, Recorded::here(stream));
    }

    fn slot(&self) -> PublisherView<Shared> {
        self.topic.publisher(self.member.slot as usize)
    }

    /// The matched subscribers that read in another domain than the publisher's. Bit n: slot n.
    #[inline]
    fn read_in_other_domains(&self) -> u64 {
        self.matched(self.topic.elsewhere().load(Ordering::Acquire))
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64, ClientError> {
        self.guard.check()?;
        let pools = self.lock().memory.pools();
        let mut bytes = 0;
        for (arena, pool) in pools.into_iter().enumerate() {
            let ranges = self.lock().take_free(arena, keep_bytes);
            bytes += ranges.iter().map(|range| range.bytes).sum::<u64>();
            self.client
                .conductor
                .return_ranges(self.member, pool, ranges)?;
        }
        Ok(bytes)
    }
}

impl Drop for PublisherCore {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return;
        }
        let (state, mapping) = (self.state.clone(), self.own.mapping.clone());
        let client = self.client.clone();
        // Whether all GPU work of this publisher that writes blocks has ended.
        let is_over = move || {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.ask_again(&mapping, &client);
            state.collect();
            // The work of a lost context has ended; the daemon clears the bits that remain in holder words.
            !state.is_written() || client.zone.is_gpu_lost()
        };
        let (conductor, member) = (self.client.conductor.clone(), self.member);
        // The streams and buffers of copies live until then.
        let resources = (
            std::mem::take(&mut self.replicas),
            std::mem::take(&mut self.staging),
        );
        let state = self.state.clone();
        once_over(is_over, move || {
            drop(resources);
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.memory.untell_all();
            drop(state);
            // Without a daemon leaving fails, and the next daemon finds that this publisher has left.
            let _ = conductor.leave(member);
        });
    }
}
