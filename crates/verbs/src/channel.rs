//! A channel: ordered frames in both directions over one queue pair, and direct writes that arrive before them.

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

/// Bytes of the header before each frame's payload in the ring.
pub const HEADER_BYTES: u64 = 16;
/// Receives of the peer that frames never use: one for this side's stall notice, one for its head notice.
pub(crate) const RECEIVES_RESERVED: u32 = 2;
/// Slots of the send queue that frames never use: for a stall notice, a head notice, and credits without a notice.
pub(crate) const SENDS_RESERVED: u32 = 3;
/// The fewest receives with which a channel can send frames.
pub(crate) const RECEIVES_LEAST: u32 = RECEIVES_RESERVED + 1;
/// The fewest send slots: those that are reserved, a frame, and a direct write before it.
pub(crate) const SENDS_LEAST: u32 = SENDS_RESERVED + 2;
/// The most bytes of one direct write.
pub const DIRECT_BYTES_MAX: u64 = 1 << 30;

/// A channel's sizes. The device may give fewer slots and inline bytes; the channel then uses those.
#[derive(Clone, Copy, Debug)]
pub struct ChannelConfig {
    /// The size of the ring that the peer writes.
    pub ring_bytes: u64,
    /// How much of the ring this end reads before it returns the head unasked.
    pub watermark: Watermark,
    /// Receives that this end posts: two more than the peer's frames that may be in flight at one time.
    pub receives: u32,
    /// The most works in flight at one time.
    pub sends: u32,
    /// Frames of at most so many bytes, with their header of 16, are copied into the work request.
    pub inline_bytes: u32,
    /// How often the device sends again, 67 ms apart, before a silent peer ends the channel; at most 7, which is
    /// for ever on Soft-RoCE. A very busy machine with Soft-RoCE loses several answers in a row; with 7 something
    /// else has to find out there that the peer is gone.
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

/// One end of an ordered, reliable pipe for frames. Any thread may send while another receives; of several senders, or
/// several receivers, one at a time goes on and the others wait.
///
/// The first error ends the channel: the queue pair fails, so the peer can write nothing more, and every later call returns
/// that error. [`Channel::close`], and dropping the channel, also wait until the device uses none of its memory.
pub struct Channel {
    // The fields are dropped in this order: first the queue pair, which uses memory, then the memory.
    pub(crate) queue: Box<dyn QueuePair>,
    pub(crate) sending: OnceLock<Mutex<Sending>>,
    pub(crate) receiving: Mutex<Receiving>,
    /// The memory that the peer writes: the ring, and behind it the peer's credit words.
    landing: Arc<Region>,
    /// The memory of `landing`.
    words: Arc<Allocation>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) device: Arc<Device>,
    pub(crate) config: ChannelConfig,
    pub(crate) depths: Depths,
    pub(crate) counts: Counts,
    /// Frames sent and completed, with their direct writes.
    pub(crate) completed: AtomicU64,
    /// How long `serve` polls before it sleeps; it adapts this.
    pub(crate) spin_ns: AtomicU32,
    has_ended: AtomicBool,
    end: OnceLock<ChannelError>,
}

impl Channel {
    /// Creates an end: allocates its ring and posts its receives. [`Channel::connect`] then needs the peer's address.
    pub fn new(device: &Arc<Device>, config: ChannelConfig) -> Result<Self, VerbsError> {
        let ring = Ring::new(config.ring_bytes)?;
        let wanted = Depths {
            sends: config.sends.max(SENDS_LEAST) + 1,
            receives: config.receives.max(RECEIVES_LEAST),
            // Enough if everything that can be in flight completes at once, as when it is flushed.
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

    /// Connects to the peer. The peer's frames may arrive from now on. Send only when the peer has connected, too.
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

    /// The most bytes of a frame, without its header, that the peer's ring takes; 0 before [`Channel::connect`].
    pub fn frame_bytes_max(&self) -> u64 {
        let sending = self.sending.get();
        sending.map_or(0, |sending| locked(sending).frame_bytes_max())
    }

    /// The most direct writes that one frame may have before it, since the send queue must hold them together.
    pub fn directs_max(&self) -> usize {
        let works = self.depths.sends - SENDS_RESERVED;
        // The frame is a work itself.
        (works as usize).min(STAGED_MAX) - 1
    }

    /// How many frames have completed, with their direct writes. The memory of the direct writes of frame `n` (the
    /// first is 1) may be used again when this is `n` or more.
    pub fn completed(&self) -> u64 {
        self.completed.load(SeqCst)
    }

    /// The channel's counters.
    pub fn counts(&self) -> ChannelCounts {
        self.counts.read()
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Why the channel ended; `None` while it has not.
    pub fn ended(&self) -> Option<ChannelError> {
        self.end.get().cloned()
    }

    /// Ends the channel: from here on the peer writes nothing. Returns why it ended: the first error, which stays.
    pub(crate) fn fail(&self, error: ChannelError) -> ChannelError {
        let error = self.end.get_or_init(|| error).clone();
        if !self.has_ended.swap(true, SeqCst) {
            // This fails only if the device is gone.
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
            why: "this end is not connected yet",
        })?;
        Ok(locked(sending))
    }

    /// Ends the channel and waits until the device is done: it takes no write of the peer and reads no memory any
    /// more. Do not call this from a receiver's callback. If the device does not flush within two seconds, this returns
    /// all the same, and [`ChannelCounts::not_drained`] counts it; then only dropping the channel ends all access.
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
    // A panic of a receiver's callback leaves the state consistent.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("rings and frames fit into memory")
}

/// The depths that the channel uses: no more than the device gave, and no more than wanted (a device rounds up),
/// so that the completion queue has room for everything that the credits allow.
fn usable(given: Depths, wanted: Depths) -> Result<Depths, VerbsError> {
    let depths = Depths {
        // One slot is for the work whose completion shows that the send queue is drained.
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
