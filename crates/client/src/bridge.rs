//! Device topics meet ordinary ones: what kernels publish, subscribers on hosts receive, and the reverse.
//!
//! A [`Bridge`] is a thread that copies messages from one to the other, in the order of their publishing. Where kernels
//! publish, it is a reliable subscriber of the device topic, in a seat of its own, and a publisher of the ordinary topic; it
//! releases a message in the device topic when it has published it. So reliable subscribers on hosts hold the kernel back once
//! the history of the ordinary topic is full, and nothing is lost when the process ends: the next bridge goes on in the same
//! seat. Where hosts publish, it is a reliable subscriber of the ordinary topic and the publisher of the device topic.
//!
//! The thread also tells the daemon once a second what the device topic is and how far everybody is. Listings show it, and other
//! processes open the device topic by its name ([`Node::open_device`]). The daemon's answer names the seats that end, of processes that died
//! and of subscribers for which the publisher has waited too long.

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

/// Messages that the ordinary topic keeps, at most as many as the device topic.
const HISTORY_MAX: u32 = 64;
/// How often the daemon hears of it.
const REPORT_PERIOD: Duration = Duration::from_secs(1);
/// How long the thread waits in one go; then it looks whether it is to end.
const WAIT: Duration = Duration::from_millis(50);
/// Between two looks at a device topic that has nothing new: doubled from the first to the second.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// In which direction messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Kernels publish, hosts receive.
    ToHosts,
    /// Hosts publish, kernels receive.
    ToKernels,
}

/// Forwards messages between a device topic and an ordinary one, until it is dropped.
pub struct Bridge {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What has been forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeFigures {
    /// Messages.
    pub forwarded: u64,
    /// Messages that could not be: larger than a block, or aborted.
    pub refused: u64,
    /// Why the bridge has ended by itself.
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

/// What the thread has of both topics.
struct Worker {
    shared: Arc<Shared>,
    topic: Arc<DeviceTopic>,
    conductor: Arc<Conductor>,
    member: Member,
    direction: Direction,
    /// Of the bridge, where kernels publish.
    seat: Option<u32>,
    next_report: Instant,
    /// Subscribers that were evicted because the daemon said so.
    evictions: u64,
    _lock: OwnedFd,
}

/// The ends of a bridge.
enum Ends {
    ToHosts(HostSubscriber, Publisher, Option<CudaStream>),
    ToKernels(Subscriber, HostPublisher),
}

impl Node {
    /// Forwards messages between a device topic and the ordinary topic `name`, in the same domain. Errors:
    /// [`OpenError::Device`] if another process does so already, or all seats are taken.
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
        // Whoever has got the bridge finds the topic by its name.
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
    /// none takes that where it lies. Seats that are taken in it become free when this process has ended.
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
    /// What it has forwarded.
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
                // Before others see the copy.
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

    /// Waits for memory; none: the bridge is to end.
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

    /// Waits for reliable subscribers; false: the bridge is to end.
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
            // SAFETY: the sample's bytes can be read while it is held, in the domain of the device topic, in which the
            // subscriber reads.
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
        // It is for listings and for those who come; the next report may succeed.
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

    /// Does what the daemon wants done with a seat.
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

/// Copies a message into a loan, and waits.
fn copy(
    loan: &mut Loan,
    message: &Waiting,
    stream: Option<&CudaStream>,
) -> Result<(), BridgeError> {
    // Never the default stream, which waits for kernels of other streams.
    let handle = stream.map_or(Stream(0), CudaStream::handle);
    // SAFETY: the message's bytes stay until it is released, which is after this copy has been waited for; a wait fails only
    // with the context, and then its work has ended.
    unsafe { loan.copy_from_on(0, message.address, message.bytes, handle)? };
    if stream.is_some() {
        loan.wait_for(handle)?;
    }
    Ok(())
}
