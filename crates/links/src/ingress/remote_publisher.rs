//! A publisher elsewhere, as it publishes here.

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

/// Pause before the daemon is asked again for memory that it had not.
const FETCH_AGAIN: Duration = Duration::from_millis(20);

/// No flow has said with which message this host begins.
const UNKNOWN: u64 = u64::MAX;

/// A publisher elsewhere, and the one that stands for it here.
pub struct RemotePublisher {
    /// Publishes here what lands.
    pub publisher: Publisher,
    own_publishers: OwnPublishers,
    /// The publisher's number on its own host.
    pub(super) origin: u64,
    /// Messages may come through several links; one is published at a time.
    pub(super) turn: Mutex<()>,
    /// The next message to be published here: none below it is published again.
    next: AtomicU64,
    /// With which message this host begins, as long as it has had none.
    first: AtomicU64,
    pub(super) mark: DeliveredRecord,
    /// What the publisher here has published.
    pub(super) published: AtomicU64,
    /// Sequence below which messages are history, as long as they land; 0: what lands is live.
    history: AtomicU64,
    /// How many messages never came, up to the last one that was published here. The next one adds the gap before it.
    pub(super) missed: AtomicU64,
    /// Bytes of messages that land here now, and how many there may be.
    pub(super) landing_bytes: AtomicU64,
    pub limits: ArrivalLimits,
    /// It has published since the link's lanes [rested](rgaps_transport::FlowReceiver::rest); and has woken nobody for the last message.
    pub(super) is_in_batch: AtomicBool,
    pub(super) is_unrung: AtomicBool,
    is_quiet: AtomicBool,
    /// Memory for the next message.
    fetched: Mutex<SpareLoan>,
}

/// A landing that lacks memory.
pub struct MemoryRequest {
    /// Whose.
    pub landing: Arc<RemotePublisher>,
    /// For a message of so many bytes.
    pub bytes: u64,
    /// Who is told that there is room.
    pub reporter: LinkReporter,
}

/// Memory for a message, which the daemon is asked for.
#[derive(Default)]
enum SpareLoan {
    /// The daemon was not asked.
    #[default]
    No,
    /// The daemon is being asked.
    Asked,
    /// The daemon had none; it is not asked again before this time.
    Later(Instant),
    /// It is there, since this time.
    Here(Box<Loan>, Instant),
}

/// How much may land of a publisher elsewhere.
pub struct ArrivalLimits {
    /// Bytes at the same time.
    pub bytes_max: u64,
    pub quota: Option<Quota>,
    /// Bytes of the quota that it has.
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

    /// Messages below it are delivered, or count as missed, or are not for this host.
    pub fn position(&self) -> u64 {
        let first = self.first.load(Ordering::Acquire);
        let first = if first == UNKNOWN { 0 } else { first };
        self.next.load(Ordering::Acquire).max(first)
    }

    /// Takes memory that is there at once. If there is none, the daemon is asked for some, on another thread.
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
            // It is another message's, which comes for it in a moment, or never.
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
            // What is wrong for good is said when the message asks again.
            Err(_) => SpareLoan::Later(Instant::now() + FETCH_AGAIN),
        };
        matches!(&*fetched, SpareLoan::Here(..))
    }

    /// Gives back memory that has been there for so long: its message does not want it any more.
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
            // What the publisher has from before, nobody promised.
            let first = match self.first.swap(UNKNOWN, Ordering::AcqRel) {
                0 | UNKNOWN => sequence,
                first => first,
            };
            self.pass(first);
            self.mark.resume();
        }
        sequence.saturating_sub(self.position())
    }

    /// A flow says from which message on this host is owed any. The least of what flows say counts, in whatever order they are heard of,
    /// until a message has its turn here.
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

    /// Nobody here wants the topic: what flows said so far is not for the next who do.
    pub fn forget_first(&self) {
        self.first.store(UNKNOWN, Ordering::Release);
    }

    /// Nobody here has had a message, or nobody had subscribed to the topic for a while.
    fn is_new(&self) -> bool {
        self.next.load(Ordering::Acquire) == 0 || self.mark.is_restarted()
    }

    /// Messages below `next` have landed, or never will. If those are the history, what lands from now on is live.
    pub(super) fn follow_history(&self, next: u64) {
        let history = self.history.load(Ordering::Acquire);
        if history != 0 && next >= history && self.history.swap(0, Ordering::AcqRel) != 0 {
            self.publisher.end_history();
        }
    }

    /// Whether the next message wakes nobody. To be called in its turn.
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

    /// Messages up to `next` are done with.
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
