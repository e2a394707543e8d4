//! Bridges between device topics and ordinary topics: hosts receive messages that kernels publish, and the reverse.
//!
//! A [`Bridge`] is a thread that copies messages from one topic to the other, in the order of publishing. Where kernels
//! publish, it is a reliable subscriber of the device topic, in a seat of its own, and a publisher of the ordinary topic. It
//! releases a message in the device topic after publishing it in the ordinary one. So reliable subscribers on hosts back-pressure
//! the kernel once the history of the ordinary topic is full, and no message is lost when the process ends: the next bridge
//! continues in the same seat. Where hosts publish, it is a reliable subscriber of the ordinary topic and the publisher of the
//! device topic.
//!
//! Once a second the thread reports the device topic and the state of its seats to the daemon. Listings show them, and other
//! processes open the device topic by its name ([`Node::open_device`]). The daemon answers with the seats to end: those of dead
//! processes, and of subscribers for which the publisher has waited too long.

use crate::client::{block_signals, Conductor};
use crate::{
    Loan, LoanError, Node, OpenError, PublishError, Publisher, RecvError, Sample, Stream,
    Subscriber, Unpublished,
};
use rgaps_cuda::CudaStream;
use rgaps_device::{DeviceError, DeviceTopic, Full, HostPublisher, HostSubscriber, Role, Waiting};
use rgaps_layout::{device_owner, Domain, DEVICE_SEAT_FREE, MAX_DEVICE_SUBSCRIBERS};
use rgaps_session::{DeviceRow, DeviceSeatRow, Member, SeatEnd};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many messages the ordinary topic keeps, or fewer if the device topic's ring is shorter.
const HISTORY_MAX: u32 = 64;
/// How often the thread reports to the daemon.
const REPORT_PERIOD: Duration = Duration::from_secs(1);
/// The longest single wait, after which the thread checks whether it must stop.
const WAIT: Duration = Duration::from_millis(50);
/// Pauses between two polls of a device topic without new messages: each is twice the last, from the first to the second.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// The direction in which a bridge copies messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Kernels publish, hosts receive.
    ToHosts,
    /// Hosts publish, kernels receive.
    ToKernels,
}

/// Forwards messages between a device topic and an ordinary one, in a thread of its own, until it is dropped.
pub struct Bridge {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Counters of a [`Bridge`] since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeFigures {
    /// Messages that were forwarded.
    pub forwarded: u64,
    /// Messages that were skipped: larger than a block of the device topic, aborted, or invalid.
    pub refused: u64,
    /// Why the bridge has ended by itself; `None` while it runs.
    pub failure: Option<String>,
}

struct Shared {
    is_stopped: AtomicBool,
    forwarded: AtomicU64,
    refused: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// Why the thread ends by itself.
#[derive(Debug, thiserror::Error)]
enum BridgeError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Loan(#[from] LoanError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Recv(#[from] RecvError),
}

/// The state of the bridge's thread.
struct Worker {
    shared: Arc<Shared>,
    topic: Arc<DeviceTopic>,
    conductor: Arc<Conductor>,
    member: Member,
    direction: Direction,
    /// The bridge's seat in the device topic. None: hosts publish.
    seat: Option<u32>,
    next_report: Instant,
    /// How many subscribers this bridge evicted at the daemon's request.
    evictions: u64,
    /// Held so that no other process forwards messages of this device topic.
    _lock: OwnedFd,
}

/// The subscriber and the publisher of a bridge.
enum Ends {
    ToHosts(HostSubscriber, Publisher, Option<CudaStream>),
    ToKernels(Subscriber, HostPublisher),
}

impl Node {
    /// Starts to forward messages between a device topic and the ordinary topic `name`, in the same domain. Errors:
    /// [`OpenError::Device`] if another bridge forwards the device topic, or all seats are taken; [`OpenError::Client`] if the
    /// daemon refuses; [`OpenError::Thread`].
    pub fn bridge(
        &self,
        name: &str,
        topic: Arc<DeviceTopic>,
        direction: Direction,
    ) -> Result<Bridge, OpenError> {
        let lock = topic.lock()?;
        let domain = topic.domain();
        let (ends, member, seat) = match direction {
            Direction::ToHosts => {
                let publisher = self.publisher(name).domain(domain);
                let depth = topic.geometry().depth.min(HISTORY_MAX);
                let publisher = publisher.keep_last(depth).deadline(WAIT).create()?;
                let subscriber = HostSubscriber::join(topic.clone())?;
                let (member, seat) = (publisher.member(), subscriber.seat());
                let stream = topic.stream()?;
                let ends = Ends::ToHosts(subscriber, publisher, stream);
                (ends, member, Some(seat))
            }
            Direction::ToKernels => {
                let subscriber = self.subscriber(name).domain(domain).reliable().create()?;
                let publisher = HostPublisher::attach(topic.clone())?;
                let member = subscriber.core.member();
                (Ends::ToKernels(subscriber, publisher), member, None)
            }
        };
        let shared = Arc::new(Shared {
            is_stopped: AtomicBool::new(false),
            forwarded: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failure: Mutex::default(),
        });
        let mut worker = Worker {
            shared: shared.clone(),
            topic,
            conductor: self.conductor.clone(),
            member,
            direction,
            seat,
            next_report: Instant::now(),
            evictions: 0,
            _lock: lock,
        };
        // Report before returning, so that the device topic can be opened by its name from then on.
        worker.report()?;
        let thread = std::thread::Builder::new().name("rgaps-bridge".to_owned());
        let thread = thread.spawn(move || worker.run(ends));
        let thread = thread.map_err(|error| OpenError::Thread(error.to_string()))?;
        Ok(Bridge {
            shared,
            thread: Some(thread),
        })
    }

    /// Opens the device topic that a bridge forwards to or from the topic `name`. `domain` is the GPU whose kernels use it;
    /// `None`: the GPU that holds the device topic. The seats that this process takes become free when it has ended.
    ///
    /// Errors: [`OpenError::Client`] if the daemon knows no such device topic or does not permit the role,
    /// [`OpenError::Device`] if the topic cannot be mapped for `domain`.
    pub fn open_device(
        &self,
        name: &str,
        domain: Option<Domain>,
        role: Role,
    ) -> Result<DeviceTopic, OpenError> {
        let opened = self
            .conductor
            .open_device(&self.resolve_topic(name), role == Role::Publisher)?;
        let domain = domain.unwrap_or(opened.row.domain);
        let grant = opened.zone.grant();
        let owner = device_owner(opened.zone.id(), grant.client_index, grant.client_id);
        let topic = DeviceTopic::open(domain, opened.fds, role)?;
        Ok(topic.owned_by(owner, Box::new(self.conductor.clone())))
    }
}

impl Bridge {
    /// The counters of this bridge, and whether it has failed.
    pub fn figures(&self) -> BridgeFigures {
        let failure = self.shared.failure.lock();
        BridgeFigures {
            forwarded: self.shared.forwarded.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            failure: failure.unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its hook.
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn run(&mut self, ends: Ends) {
        block_signals();
        let ended = match ends {
            Ends::ToHosts(subscriber, publisher, stream) => {
                self.forward_to_hosts(subscriber, &publisher, stream.as_ref())
            }
            Ends::ToKernels(subscriber, publisher) => {
                self.forward_to_kernels(&subscriber, publisher)
            }
        };
        if let Err(error) = ended {
            tracing::error!(%error, "the bridge of a device topic has ended");
            let failure = self.shared.failure.lock();
            *failure.unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared.is_stopped.load(Ordering::Relaxed)
    }

    fn forward_to_hosts(
        &mut self,
        mut subscriber: HostSubscriber,
        publisher: &Publisher,
        stream: Option<&CudaStream>,
    ) -> Result<(), BridgeError> {
        let mut pause = PAUSE_MIN;
        while !self.is_stopped() {
            self.report_if_due();
            let waiting = subscriber.waiting()?;
            if waiting.is_empty() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
                continue;
            }
            pause = PAUSE_MIN;
            for message in waiting {
                let Some(mut loan) = self.loan(publisher, message.bytes)? else {
                    return Ok(());
                };
                copy(&mut loan, &message, stream)?;
                // Fails if the bridge was evicted, in which case the copied bytes may be wrong. Must come before publishing.
                subscriber.check_held()?;
                loan.set_tag(message.sequence);
                if !self.publish(loan)? {
                    return Ok(());
                }
                subscriber.release()?;
                self.shared.forwarded.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Takes a loan, and waits for memory. None: the bridge must stop.
    fn loan(&mut self, publisher: &Publisher, bytes: u64) -> Result<Option<Loan>, BridgeError> {
        loop {
            match publisher.loan(bytes) {
                Ok(loan) => return Ok(Some(loan)),
                Err(LoanError::PoolFull { .. } | LoanError::NoBlocks { .. }) => {
                    if self.is_stopped() {
                        return Ok(None);
                    }
                    self.report_if_due();
                    std::thread::sleep(PAUSE_MAX);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Publishes a loan, and waits for reliable subscribers. False: the bridge must stop.
    fn publish(&mut self, mut loan: Loan) -> Result<bool, BridgeError> {
        loop {
            match loan.publish_on(Stream::NONE) {
                Ok(_) => return Ok(true),
                Err(Unpublished {
                    error: PublishError::BackPressured { .. },
                    loan: Some(unpublished),
                }) if !self.is_stopped() => {
                    self.report_if_due();
                    loan = *unpublished;
                }
                Err(_) if self.is_stopped() => return Ok(false),
                Err(unpublished) => return Err(unpublished.error.into()),
            }
        }
    }

    fn forward_to_kernels(
        &mut self,
        subscriber: &Subscriber,
        mut publisher: HostPublisher,
    ) -> Result<(), BridgeError> {
        while !self.is_stopped() {
            self.report_if_due();
            let sample = match subscriber.recv_timeout(WAIT) {
                Ok(sample) => sample,
                Err(RecvError::TimedOut(_)) => continue,
                Err(error @ RecvError::Untrusted { .. }) => {
                    self.refuse(&error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let outcome = self.forward(&sample, &mut publisher);
            match outcome {
                Ok(()) => {}
                Err(
                    BridgeError::Recv(RecvError::Aborted { .. })
                    | BridgeError::Device(DeviceError::Argument(_)),
                ) => self.refuse(&outcome.expect_err("matched above")),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn forward(
        &mut self,
        sample: &Sample,
        publisher: &mut HostPublisher,
    ) -> Result<(), BridgeError> {
        loop {
            match sample.synchronize(WAIT) {
                Ok(()) => break,
                Err(RecvError::Unfinished { .. }) if !self.is_stopped() => self.report_if_due(),
                Err(error) => return Err(error.into()),
            }
        }
        while !self.is_stopped() {
            // SAFETY: `Node::bridge` made the subscriber read in the domain of the device topic, and the caller holds the sample
            // during this call, so its bytes stay readable at this address.
            match unsafe { publisher.publish(sample.address(), sample.len())? } {
                Ok(_) => {
                    self.shared.forwarded.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(Full::BackPressured | Full::NoBlock) => {
                    self.report_if_due();
                    std::thread::sleep(PAUSE_MIN);
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, why: &dyn std::error::Error) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%why, "a message is not forwarded to a device topic");
    }

    fn report_if_due(&mut self) {
        if Instant::now() < self.next_report {
            return;
        }
        // Forwarding does not depend on reports, and the next report may succeed.
        if let Err(error) = self.report() {
            tracing::debug!(%error, "the daemon did not hear of a device topic");
        }
    }

    fn report(&mut self) -> Result<(), OpenError> {
        self.next_report = Instant::now() + REPORT_PERIOD;
        let row = self.row()?;
        let fds = self.topic.descriptors().map(|fd| fd.try_clone_to_owned());
        let mut owned = Vec::with_capacity(fds.len());
        for fd in fds {
            owned.push(fd.map_err(|error| OpenError::Thread(error.to_string()))?);
        }
        for end in self.conductor.report_device(self.member, row, owned)? {
            self.end_seat(end)?;
        }
        Ok(())
    }

    /// Frees or evicts a seat at the daemon's request. Does nothing if the seat has another owner by now.
    fn end_seat(&mut self, end: SeatEnd) -> Result<(), DeviceError> {
        let owner = self.topic.owners().get(end.seat as usize).copied();
        if owner != Some(end.owner) {
            return Ok(());
        }
        let (_, evicted) = self.topic.taken_and_evicted();
        self.evictions += u64::from(evicted >> end.seat & 1 == 0);
        match end.is_free {
            true => self.topic.leave_seat(end.seat),
            false => self.topic.evict(end.seat),
        }
    }

    fn row(&self) -> Result<DeviceRow, DeviceError> {
        let geometry = self.topic.geometry();
        let (_, evicted) = self.topic.taken_and_evicted();
        let newest = self.topic.newest_sequence()?;
        let publisher_waits = self.topic.publisher_waits(newest)?;
        let held = match publisher_waits {
            true => self.topic.held_blocks()?,
            false => [0; MAX_DEVICE_SUBSCRIBERS as usize],
        };
        let states = self.topic.seats()?.into_iter().zip(self.topic.owners());
        let seats = (0u32..).zip(states);
        let seats = seats.filter(|(_, (_, owner))| *owner != DEVICE_SEAT_FREE);
        Ok(DeviceRow {
            domain: self.topic.domain(),
            depth: geometry.depth,
            blocks: geometry.blocks,
            block_bytes: geometry.block_bytes,
            kernels_publish: self.direction == Direction::ToHosts,
            takes_turns: self.topic.takes_turns(),
            newest,
            publisher_waits,
            forwarded: self.shared.forwarded.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            evictions: self.evictions,
            seats: seats
                .map(|(seat, (state, owner))| DeviceSeatRow {
                    seat,
                    owner,
                    joined: state.joined,
                    reliable: state.reliable,
                    evicted: evicted >> seat & 1 != 0,
                    is_bridge: self.seat == Some(seat),
                    next_sequence: state.next_sequence,
                    missed: state.missed,
                    held: held[seat as usize],
                })
                .collect(),
        })
    }
}

/// Copies a message of the device topic into a loan, and waits until the copy is complete.
fn copy(
    loan: &mut Loan,
    message: &Waiting,
    stream: Option<&CudaStream>,
) -> Result<(), BridgeError> {
    // On a GPU never the default stream, which would wait for the kernels of other streams: they may run for ever.
    let handle = stream.map_or(Stream(0), CudaStream::handle);
    // SAFETY: the message's bytes stay until the bridge releases it, after this function has waited for the copy. That wait fails
    // only if the CUDA context is lost, and then the context's work has ended.
    unsafe { loan.copy_from_on(0, message.address, message.bytes, handle)? };
    if stream.is_some() {
        loan.wait_for(handle)?;
    }
    Ok(())
}
