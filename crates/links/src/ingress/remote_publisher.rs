//! Landings: each publishes the messages of one publisher of another host on this host, in order and without repeats.

use super::LinkIngress;
use crate::delivered::DeliveredRecord;
use crate::egress::OwnPublishers;
use crate::event::LinkReporter;
use crate::lock;
use rgaps_client::links::{LinksLoan, LinksPublisher, Quota};
use rgaps_client::{Loan, LoanError, Publisher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pause before the daemon is asked again for memory after it had none.
const FETCH_AGAIN: Duration = Duration::from_millis(20);

/// `first` while no flow has said with which message this host begins.
const UNKNOWN: u64 = u64::MAX;

/// The landing of a publisher of another host.
pub struct RemotePublisher {
    /// The publisher on this host.
    pub publisher: Publisher,
    own_publishers: OwnPublishers,
    /// The publisher's number on its own host.
    pub(super) origin: u64,
    /// Held while a message is published: messages may come through several links at once.
    pub(super) turn: Mutex<()>,
    /// The number of the next message to publish: messages below it are not published again.
    next: AtomicU64,
    /// The number of the first message that this host is owed, until it has published one. [`UNKNOWN`]: no flow has said.
    first: AtomicU64,
    /// Keeps `next` in a file, for the next life of the links.
    pub(super) mark: DeliveredRecord,
    /// How many messages were published here.
    pub(super) published: AtomicU64,
    /// Messages below this number are history. 0: all history has landed, and messages are live.
    history: AtomicU64,
    /// How many messages never came, up to the last one that was published here. The next one adds the gap before it.
    pub(super) missed: AtomicU64,
    /// Bytes of messages that land here now.
    pub(super) landing_bytes: AtomicU64,
    /// The limits of `landing_bytes`.
    pub limits: ArrivalLimits,
    /// Whether a message was published since the link's lanes [rested](rgaps_transport::FlowReceiver::rest) last.
    pub(super) is_in_batch: AtomicBool,
    /// Whether subscribers were not woken for the last message.
    pub(super) is_unrung: AtomicBool,
    /// Whether `publisher` publishes without waking subscribers.
    is_quiet: AtomicBool,
    /// A loan for a message that found none at once.
    fetched: Mutex<SpareLoan>,
}

/// A request to the daemon for a landing's memory.
pub struct MemoryRequest {
    pub landing: Arc<RemotePublisher>,
    /// Size in bytes of the message that needs the memory.
    pub bytes: u64,
    /// Gets [`ConductorEvent::Room`](crate::event::ConductorEvent::Room) when there is memory.
    pub reporter: LinkReporter,
}

/// A loan that was requested from the daemon for a message.
#[derive(Default)]
enum SpareLoan {
    /// There is no request.
    #[default]
    No,
    /// The daemon is being asked.
    Asked,
    /// The daemon had no memory; it is not asked again before this time.
    Later(Instant),
    /// The loan has been there since this time.
    Here(Box<Loan>, Instant),
}

/// Limits of the messages that a landing receives.
pub struct ArrivalLimits {
    /// Bytes that may arrive at the same time.
    pub bytes_max: u64,
    pub quota: Option<Quota>,
    /// Bytes of the quota that the landing has reserved.
    pub reserved: u64,
}

impl RemotePublisher {
    /// `next`: former lives of the links published the messages below it. `history`: the messages below it are history if nobody here has
    /// subscribed to the publisher before. Otherwise subscribers may have missed some of them meanwhile, and these are live.
    pub fn new(
        publisher: Publisher,
        (origin, own_publishers): (u64, OwnPublishers),
        (mark, next): (DeliveredRecord, u64),
        history: u64,
        limits: ArrivalLimits,
    ) -> Arc<RemotePublisher> {
        let is_new = next == 0 || mark.is_restarted();
        let history = if is_new && next < history { history } else { 0 };
        if history == 0 {
            publisher.end_history();
        }
        own_publishers
            .write()
            .expect("no panic")
            .insert(publisher.id());
        Arc::new(RemotePublisher {
            publisher,
            own_publishers,
            origin,
            turn: Mutex::new(()),
            next: AtomicU64::new(next),
            first: AtomicU64::new(UNKNOWN),
            mark,
            published: AtomicU64::new(0),
            history: AtomicU64::new(history),
            missed: AtomicU64::new(0),
            landing_bytes: AtomicU64::new(0),
            limits,
            is_in_batch: AtomicBool::new(false),
            is_unrung: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
            fetched: Mutex::default(),
        })
    }

    /// The delivered position: messages below it were delivered, count as missed, or are not for this host.
    pub fn position(&self) -> u64 {
        let first = self.first.load(Ordering::Acquire);
        let first = if first == UNKNOWN { 0 } else { first };
        self.next.load(Ordering::Acquire).max(first)
    }

    /// Takes a loan that is available at once. If there is none, requests memory from the daemon through another thread.
    pub(super) fn loan(
        self: &Arc<Self>,
        bytes: u64,
        owner: &LinkIngress,
    ) -> Result<Option<Loan>, LoanError> {
        let mut fetched = lock(&self.fetched);
        if matches!(&*fetched, SpareLoan::Here(loan, _) if loan.len() == bytes) {
            if let SpareLoan::Here(loan, _) = std::mem::take(&mut *fetched) {
                return Ok(Some(*loan));
            }
        }
        if let Some(mut loan) = self.publisher.try_loan(bytes)? {
            if loan.stage(false)? {
                return Ok(Some(loan));
            }
        }
        match &*fetched {
            SpareLoan::Asked => return Ok(None),
            SpareLoan::Later(then) if Instant::now() < *then => return Ok(None),
            // The loan is for a message of another size, which takes it in a moment, or never; then `give_back` frees it.
            SpareLoan::Here(..) => return Ok(None),
            SpareLoan::No | SpareLoan::Later(_) => {}
        }
        let wanted = MemoryRequest {
            landing: self.clone(),
            bytes,
            reporter: owner.reporter.clone(),
        };
        *fetched = match owner.memory.send(wanted) {
            Ok(()) => SpareLoan::Asked,
            Err(_) => SpareLoan::Later(Instant::now() + FETCH_AGAIN),
        };
        Ok(None)
    }

    /// Asks the daemon for memory. Returns whether there is some.
    pub fn fetch(&self, bytes: u64) -> bool {
        let loan = self.publisher.loan(bytes).and_then(|mut loan| {
            loan.stage(true)?;
            Ok(loan)
        });
        let mut fetched = lock(&self.fetched);
        *fetched = match loan {
            Ok(loan) => SpareLoan::Here(Box::new(loan), Instant::now()),
            // An error that lasts is reported when the message asks for a loan again.
            Err(_) => SpareLoan::Later(Instant::now() + FETCH_AGAIN),
        };
        matches!(&*fetched, SpareLoan::Here(..))
    }

    /// Gives back a loan that has been there for so long: its message does not need it any more.
    pub fn give_back(&self, kept: Duration) {
        let mut fetched = lock(&self.fetched);
        let is_old = matches!(&*fetched, SpareLoan::Here(_, since) if since.elapsed() >= kept);
        let unwanted = is_old.then(|| std::mem::take(&mut *fetched));
        drop(fetched);
        drop(unwanted);
    }

    /// How many messages were missed before this one, which is about to be published: all that lie between it and the last
    /// one that was published here, in whichever lives of the links of both hosts. None before the one with which this host begins.
    pub(super) fn missed_before(&self, sequence: u64) -> u64 {
        if self.is_new() {
            // Messages before the first one were not promised to this host, so they do not count as missed.
            let first = match self.first.swap(UNKNOWN, Ordering::AcqRel) {
                0 | UNKNOWN => sequence,
                first => first,
            };
            self.pass(first);
            self.mark.resume();
        }
        sequence.saturating_sub(self.position())
    }

    /// Records that a flow owes this host the messages from `first` on. Until one has been published, the least `first` of all flows
    /// counts, in whatever order they are opened.
    pub fn begin(&self, first: u64) {
        let _turn = lock(&self.turn);
        if self.is_new() {
            let known = self.first.load(Ordering::Acquire);
            let least = if known == UNKNOWN {
                first
            } else {
                known.min(first)
            };
            self.first.store(least, Ordering::Release);
        }
    }

    /// Forgets the first message: nobody here wants the topic, and what flows promised is not for later subscribers.
    pub fn forget_first(&self) {
        self.first.store(UNKNOWN, Ordering::Release);
    }

    /// Whether no message has been published here, or none since the topic last had no subscriber here.
    fn is_new(&self) -> bool {
        self.next.load(Ordering::Acquire) == 0 || self.mark.is_restarted()
    }

    /// Records that messages below `next` have landed or never will. If that is all of the history, later messages are live.
    pub(super) fn follow_history(&self, next: u64) {
        let history = self.history.load(Ordering::Acquire);
        if history != 0 && next >= history && self.history.swap(0, Ordering::AcqRel) != 0 {
            self.publisher.end_history();
        }
    }

    /// Sets whether the next message wakes no subscriber. Call with `turn` held.
    pub(super) fn set_quiet(&self, is_quiet: bool) {
        if self.is_quiet.swap(is_quiet, Ordering::Relaxed) != is_quiet {
            self.publisher.set_quiet(is_quiet);
        }
    }

    /// Wakes the subscribers for which messages were published [quietly](Self::set_quiet).
    pub(super) fn ring(&self) {
        if self.is_unrung.swap(false, Ordering::AcqRel) {
            self.publisher.ring();
        }
    }

    /// Raises the position to `next`, also in the file.
    pub(super) fn pass(&self, next: u64) {
        if next > self.next.fetch_max(next, Ordering::AcqRel) {
            self.mark.set(next);
        }
    }
}

impl Drop for RemotePublisher {
    fn drop(&mut self) {
        let mut own = self.own_publishers.write().expect("no panic");
        own.remove(&self.publisher.id());
    }
}
