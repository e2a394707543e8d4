//! A channel: frames in order over one queue pair, both ways, and direct writes before them.

use crate::address::ChannelAddress;
use crate::counts::{ChannelCounts, Counts};
use crate::cursors::{Ring, Watermark};
use crate::device::{Device, Signals};
use crate::error::{ChannelError, ChannelViolation, VerbsError};
use crate::fabric::{Access, Depths, QueuePair};
use crate::receiving::Receiving;
use crate::region::{Allocation, Region};
use crate::sending::{Sending, STAGED_MAX};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Bytes before each frame's in the ring.
pub const HEADER_BYTES: u64 = 16;
/// Receives that frames leave to notices: one to a stall, one to the head that answers it.
pub(crate) const RECEIVES_RESERVED: u32 = 2;
/// Slots of the send queue that frames leave to stall, head and credits.
pub(crate) const SENDS_RESERVED: u32 = 3;
/// The fewest with which anything moves.
pub(crate) const RECEIVES_LEAST: u32 = RECEIVES_RESERVED + 1;
pub(crate) const SENDS_LEAST: u32 = SENDS_RESERVED + 2;
/// Bytes of one direct write.
pub const DIRECT_BYTES_MAX: u64 = 1 << 30;

/// A channel's sizes. What the device gives may be less, and is what counts.
#[derive(Clone, Copy, Debug)]
pub struct ChannelConfig {
    /// The ring that the peer writes.
    pub ring_bytes: u64,
    /// How much of it is read before its head is returned unasked.
    pub watermark: Watermark,
    /// Receives posted: the peer's frames that may be on their way at one time, and two.
    pub receives: u32,
    /// Works posted at one time.
    pub sends: u32,
    /// Frames up to so many bytes, with their header of 16, are copied into the work request.
    pub inline_bytes: u32,
    /// How many more times the peer's device is asked, for 67 ms each, before the channel ends; at most 7, which on
    /// Soft-RoCE is for ever. That loses an answer now and then where its machine is too busy, several times
    /// in a row where it is very busy; so there something else has to say that the peer is gone.
    pub retries: u8,
    /// How long [`Channel::serve`] polls before it sleeps, at most.
    pub spin: Duration,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            watermark: Watermark::default(),
            receives: 256,
            sends: 128,
            inline_bytes: 220,
            retries: 7,
            spin: Duration::from_micros(50),
        }
    }
}

/// One end of an ordered, reliable pipe for frames. `&self` everywhere: any thread may send, and another
/// receive, but each kind of call is made by one at a time, others wait.
///
/// The first error ends it: the queue pair fails, so the peer can write nothing more, and every call says
/// why. [`Channel::close`], and dropping it, also wait until the device has let go of everything.
pub struct Channel {
    // The order of these fields is that of their end: first what uses memory, then the memory.
    pub(crate) queue: Box<dyn QueuePair>,
    pub(crate) sending: OnceLock<Mutex<Sending>>,
    pub(crate) receiving: Mutex<Receiving>,
    landing: Arc<Region>,
    /// The landing region's memory, with the peer's credit words.
    words: Arc<Allocation>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) device: Arc<Device>,
    pub(crate) config: ChannelConfig,
    pub(crate) depths: Depths,
    pub(crate) counts: Counts,
    /// Frames sent and completed, with their direct writes.
    pub(crate) completed: AtomicU64,
    pub(crate) spin_ns: AtomicU32,
    has_ended: AtomicBool,
    end: OnceLock<ChannelError>,
}

impl Channel {
    /// An end with its ring and its receives posted, which waits for its peer's address.
    pub fn new(device: &Arc<Device>, config: ChannelConfig) -> Result<Self, VerbsError> {
        let ring = Ring::new(config.ring_bytes)?;
        let wanted = Depths {
            sends: config.sends.max(SENDS_LEAST) + 1,
            receives: config.receives.max(RECEIVES_LEAST),
            // All that can be in flight at once also fits when all of it is flushed.
            completions: config.sends.max(SENDS_LEAST) + 1 + config.receives.max(RECEIVES_LEAST),
            inline_bytes: config.inline_bytes,
        };
        let queue = device.fabric().queue_pair(wanted)?;
        let depths = usable(queue.depths(), wanted)?;
        let allocation = Allocation::new(size(ring.bytes()) + size(HEADER_BYTES));
        let landing = Region::new(device, allocation.clone(), Access::RemoteWrite)?;
        let signals = device
            .join(queue.address().number)
            .map_err(|errno| VerbsError::Call {
                call: "eventfd",
                errno: errno.raw_os_error(),
            })?;
        queue.post_receives(depths.receives, 0)?;
        let receiving = Receiving::new(ring, config.watermark, allocation.clone(), depths.receives);
        Ok(Self {
            queue,
            sending: OnceLock::new(),
            receiving: Mutex::new(receiving),
            landing,
            words: allocation,
            signals,
            device: Arc::clone(device),
            config,
            depths,
            counts: Counts::default(),
            completed: AtomicU64::new(0),
            spin_ns: AtomicU32::new(u32::try_from(config.spin.as_nanos()).unwrap_or(u32::MAX)),
            has_ended: AtomicBool::new(false),
            end: OnceLock::new(),
        })
    }

    /// What the peer needs to connect to this end.
    pub fn address(&self) -> ChannelAddress {
        let ring_bytes = self.config.ring_bytes;
        ChannelAddress {
            queue: self.queue.address(),
            key: self.landing.keys().remote,
            ring: self.landing.address(),
            ring_bytes,
            credits: self.landing.address() + ring_bytes,
            receives: self.depths.receives,
        }
    }

    /// Connects to the peer. Its frames may come from now on; ours may go when it has connected, too.
    pub fn connect(&self, peer: &ChannelAddress) -> Result<(), VerbsError> {
        let ring = peer.check(RECEIVES_LEAST)?;
        let mirror = Allocation::new(size(ring.bytes()) + size(HEADER_BYTES));
        let region = Region::new(&self.device, mirror.clone(), Access::LocalRead)?;
        let landing = Arc::clone(&self.words);
        let sending = Sending::new(ring, *peer, mirror, region, landing, self.depths);
        if self.sending.set(Mutex::new(sending)).is_err() {
            let why = "this end is connected already";
            return Err(VerbsError::Address { why });
        }
        self.queue.connect(&peer.queue, self.config.retries)
    }

    /// The largest frame that the peer's ring takes; 0 before there is a peer.
    pub fn frame_bytes_max(&self) -> u64 {
        let sending = self.sending.get();
        sending.map_or(0, |sending| locked(sending).frame_bytes_max())
    }

    /// Direct writes that one frame may have before it: what the send queue holds.
    pub fn directs_max(&self) -> usize {
        let works = self.depths.sends - SENDS_RESERVED;
        // The frame is one itself.
        (works as usize).min(STAGED_MAX) - 1
    }

    /// Frames sent whose works have ended, those of their direct writes with them: [`Channel::send`] number
    /// `n` (the first is 1) needs its memory no more when this is `n` or more.
    pub fn completed(&self) -> u64 {
        self.completed.load(SeqCst)
    }

    /// What was counted.
    pub fn counts(&self) -> ChannelCounts {
        self.counts.read()
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Why it ended, if it has.
    pub fn ended(&self) -> Option<ChannelError> {
        self.end.get().cloned()
    }

    /// Ends it; the first reason stays. From here on the peer writes nothing more.
    pub(crate) fn fail(&self, error: ChannelError) -> ChannelError {
        let error = self.end.get_or_init(|| error).clone();
        if !self.has_ended.swap(true, SeqCst) {
            // What can fail here is a device that is gone.
            let _ = self.queue.fail();
            self.signals.ring();
        }
        error
    }

    pub(crate) fn violation(&self, violation: impl Into<ChannelViolation>) -> ChannelError {
        self.fail(ChannelError::Violation(violation.into()))
    }

    pub(crate) fn check(&self) -> Result<(), ChannelError> {
        if let Some(event) = self.signals.event() {
            self.fail(ChannelError::Event(event));
        }
        match self.has_ended.load(SeqCst) {
            false => Ok(()),
            true => Err(self.ended().unwrap_or(ChannelError::Closed)),
        }
    }

    pub(crate) fn sending(&self) -> Result<MutexGuard<'_, Sending>, ChannelError> {
        let sending = self.sending.get().ok_or(VerbsError::Address {
            why: "there is none yet",
        })?;
        Ok(locked(sending))
    }

    /// Ends the channel and waits until the device has let go: no write of the peer comes any more, and no
    /// memory is read. Not from within a receiver's callback.
    pub fn close(&self) {
        self.fail(ChannelError::Closed);
        let mut receiving = locked(&self.receiving);
        let mut sending = self.sending.get().map(locked);
        self.drain(&mut receiving, sending.as_deref_mut());
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("device", &self.device)
            .field("depths", &self.depths)
            .field("ended", &self.end.get())
            .finish_non_exhaustive()
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of a receiver's callback leaves books that are still true.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("rings and frames fit into memory")
}

/// What was given, as far as the channel uses it: never more than was wanted (a device rounds up), so
/// that all credits add up to no more than the completion queue holds.
fn usable(given: Depths, wanted: Depths) -> Result<Depths, VerbsError> {
    let depths = Depths {
        // One slot stays for the work that shows that the queue is drained.
        sends: given.sends.min(wanted.sends).saturating_sub(1),
        receives: given.receives.min(wanted.receives),
        completions: given.completions,
        inline_bytes: given.inline_bytes.min(wanted.inline_bytes),
    };
    let checks = [
        ("send slots", depths.sends, SENDS_LEAST),
        ("receives", depths.receives, RECEIVES_LEAST),
        (
            "completions",
            depths.completions,
            depths.sends + 1 + depths.receives,
        ),
    ];
    match checks.iter().find(|(_, given, least)| given < least) {
        Some(&(what, given, least)) => Err(VerbsError::Depth { what, given, least }),
        None => Ok(depths),
    }
}
