//! The receiving end of a channel: it takes completions, hands over frames that arrived, and returns credits.

use crate::channel::{locked, size, Channel, HEADER_BYTES};
use crate::cursors::{Receiver, Ring, Watermark};
use crate::error::{ChannelError, ChannelViolation};
use crate::fabric::{Completion, Work};
use crate::notice::Notice;
use crate::region::Allocation;
use crate::sending::{Owed, Sending};
use crate::status::Status;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most completions of one round.
const COMPLETIONS: usize = 32;
/// The most rounds of one call of [`Channel::progress`].
const ROUNDS_MAX: u32 = 8;
/// This side returns credits when one of so many parts of its receives was used since it returned them last.
const RECEIVES_PART: u64 = 4;
/// How long the device may take to flush all works and receives.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// What a call of [`Channel::progress`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames and marked writes that it handed over.
    pub frames: u64,
    /// Credit arrived, and a sender that lacked credit may try again.
    pub room: bool,
    /// Works completed: [`Channel::completed`] may have grown.
    pub sent: bool,
    /// Anything happened at all. If nothing did, it is time to sleep.
    pub any: bool,
}

pub(crate) struct Receiving {
    completions: [Completion; COMPLETIONS],
    books: Books,
}

/// The state of the ring and the receives, and which credits the peer knows.
struct Books {
    ring: Receiver,
    size: Ring,
    memory: Arc<Allocation>,
    /// The copy of the frame that is being handed over.
    frame: Vec<u8>,
    /// The receives of the queue pair.
    depth: u32,
    /// Receives posted since the start, and how many of them the peer was told of.
    posted: u64,
    reported: u64,
    /// Receives that the device has now.
    out: u32,
    /// Frames and marked writes since the start.
    frames: u64,
}

/// What a round of completions brought.
#[derive(Default)]
struct Round {
    frames: u64,
    /// Receives used.
    used: u32,
    /// The last work known to be complete.
    sent: Option<u64>,
    /// A stall notice, and a head notice.
    stall: bool,
    head: bool,
}

impl Receiving {
    pub(crate) fn new(
        size: Ring,
        watermark: Watermark,
        memory: Arc<Allocation>,
        receives: u32,
    ) -> Self {
        let frame_bytes = usize::try_from(size.frame_bytes_max()).expect("it was allocated");
        Self {
            completions: [Completion::Sent { number: 0 }; COMPLETIONS],
            books: Books {
                ring: Receiver::new(size, watermark),
                size,
                memory,
                frame: vec![0; frame_bytes],
                depth: receives,
                posted: receives.into(),
                reported: receives.into(),
                out: receives,
                frames: 0,
            },
        }
    }
}

impl Books {
    /// Copies a frame out of the ring and checks the copy, since the peer could change the ring meanwhile. Returns the payload.
    fn frame(&mut self, offset: u64, wrote: u32) -> Result<&[u8], ChannelViolation> {
        let expected = self.frames as u32;
        let bytes = u64::from(wrote);
        let header = |claimed, number| ChannelViolation::Header {
            wrote,
            claimed,
            number,
            expected,
        };
        if bytes < HEADER_BYTES || bytes > self.size.frame_bytes_max() {
            return Err(header(0, 0));
        }
        if offset + bytes > self.size.bytes() {
            let slot = offset;
            let expected = self.size.bytes();
            return Err(ChannelViolation::Slot { slot, expected });
        }
        let frame = &mut self.frame[..size(bytes)];
        self.memory.read(size(offset), frame);
        let (head, payload) = frame.split_at(size(HEADER_BYTES));
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let cursor = u64::from_le_bytes(head[8..].try_into().expect("8 bytes"));
        let claimed = u64::from(number(0)) + HEADER_BYTES;
        if claimed != bytes || number(4) != expected {
            return Err(header(claimed, number(4)));
        }
        let slot = self.ring.admit(cursor, bytes)?;
        if slot.offset != offset {
            return Err(ChannelViolation::Slot {
                slot: offset,
                expected: slot.offset,
            });
        }
        self.frames += 1;
        Ok(payload)
    }
}

/// A frame or a marked write of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived<'a> {
    /// A frame's bytes.
    Frame(&'a [u8]),
    /// The peer has written bytes into memory of this side ([`crate::Batch::push_marked`]).
    Written {
        /// Identifies the write to the users of both ends; at most [`crate::MARK_MAX`].
        mark: u32,
        /// How many bytes, as the device counted them.
        bytes: u32,
    },
}

/// A receiver's callback, which takes what arrived. Its error ends the channel.
pub type Each<'a> = dyn FnMut(Arrived<'_>) -> Result<(), String> + 'a;

/// Makes a callback for frames the receiver's callback. It refuses marked writes.
pub fn frames(
    mut each: impl FnMut(&[u8]) -> Result<(), String>,
) -> impl FnMut(Arrived<'_>) -> Result<(), String> {
    move |arrived| match arrived {
        Arrived::Frame(frame) => each(frame),
        Arrived::Written { mark, .. } => Err(format!("nobody expects a write marked {mark}")),
    }
}

impl Channel {
    /// Hands over the frames and marked writes that have arrived, in order, returns credits, and takes the completions of works.
    /// Does not wait for the peer. `each` may send on this channel, but must not receive on it or close it.
    pub fn progress(&self, each: &mut Each<'_>) -> Result<Progress, ChannelError> {
        self.check()?;
        let mut receiving = locked(&self.receiving);
        let mut progress = Progress::default();
        for _ in 0..ROUNDS_MAX {
            let Receiving { completions, books } = &mut *receiving;
            let polled = self.queue.poll(completions);
            let count = polled.map_err(|error| self.fail(error.into()))?;
            if count == 0 {
                break;
            }
            let round = self.round(books, &completions[..count], each)?;
            progress.any = true;
            progress.frames += round.frames;
            progress.sent |= round.sent.is_some();
            progress.room |= self.settle(books, &round)?;
            if count < COMPLETIONS {
                // The queue was empty.
                break;
            }
        }
        self.check()?;
        Ok(progress)
    }

    fn round(
        &self,
        receiving: &mut Books,
        completions: &[Completion],
        each: &mut Each<'_>,
    ) -> Result<Round, ChannelError> {
        self.account(receiving, completions);
        let mut round = Round::default();
        for completion in completions {
            match *completion {
                Completion::Sent { number } => round.sent = Some(number),
                Completion::Received { immediate, bytes } => {
                    round.used += 1;
                    let notice = Notice::from_immediate(immediate);
                    match notice
                        .ok_or_else(|| self.violation(ChannelViolation::Immediate(immediate)))?
                    {
                        Notice::Frame { offset } => {
                            let frame = receiving.frame(offset, bytes);
                            let frame = frame.map_err(|violation| self.violation(violation))?;
                            self.counts.frames_received.add(1);
                            self.counts.bytes_received.add(frame.len() as u64);
                            self.hand_over(Arrived::Frame(frame), each)?;
                            round.frames += 1;
                        }
                        Notice::Written { mark } => {
                            receiving.frames += 1;
                            round.frames += 1;
                            self.counts.frames_received.add(1);
                            self.hand_over(Arrived::Written { mark, bytes }, each)?;
                        }
                        Notice::Stall if round.stall => {
                            return Err(self.violation(ChannelViolation::Turn("stall")))
                        }
                        Notice::Stall => round.stall = true,
                        Notice::Head if round.head => {
                            return Err(self.violation(ChannelViolation::Turn("head")))
                        }
                        Notice::Head => round.head = true,
                    }
                }
                Completion::Failed {
                    number,
                    status,
                    vendor,
                } => return Err(self.failed(number, status, vendor)),
            }
        }
        Ok(round)
    }

    /// Counts the receives that the device gave back, and what it flushed.
    fn account(&self, receiving: &mut Books, completions: &[Completion]) {
        for completion in completions {
            match *completion {
                Completion::Received { .. } => receiving.out -= 1,
                Completion::Failed { number, status, .. } => {
                    receiving.out -= u32::from(number == RECEIVE);
                    self.counts
                        .flushed
                        .add(u64::from(status == Status::Flushed));
                }
                Completion::Sent { .. } => {}
            }
        }
    }

    fn hand_over(&self, arrived: Arrived<'_>, each: &mut Each<'_>) -> Result<(), ChannelError> {
        each(arrived).map_err(|why| self.fail(ChannelError::Refused(why)))
    }

    fn failed(&self, number: u64, status: Status, vendor: u32) -> ChannelError {
        let what = match number {
            RECEIVE => "a receive",
            _ => "a write",
        };
        // If the queue pair failed, an event of the device may have the reason.
        self.device.look();
        match (status, self.signals.event()) {
            (Status::Flushed, Some(event)) => self.fail(ChannelError::Event(event)),
            _ => self.fail(ChannelError::Completion {
                what,
                status,
                vendor,
            }),
        }
    }

    /// Posts the used receives again, and only then returns credits; frees what works have completed. Returns whether a sender
    /// that lacked credit may try again.
    fn settle(&self, receiving: &mut Books, round: &Round) -> Result<bool, ChannelError> {
        receiving.ring.consume();
        if round.used > 0 {
            let posted = self.queue.post_receives(round.used, RECEIVE);
            posted.map_err(|error| self.fail(error.into()))?;
            receiving.out += round.used;
            receiving.posted += u64::from(round.used);
            debug_assert!(receiving.out <= receiving.depth);
        }
        let mut sending = self.sending()?;
        if let Some(number) = round.sent {
            let frames = sending
                .reap(number)
                .map_err(|violation| self.violation(violation))?;
            self.completed.fetch_max(frames, SeqCst);
        }
        if round.head {
            sending
                .head_noticed()
                .map_err(|violation| self.violation(violation))?;
        }
        let head = if round.stall {
            receiving.ring.head_if_moved()
        } else {
            receiving.ring.head_at_watermark()
        };
        let used = receiving.posted - receiving.reported;
        let due = used >= (u64::from(receiving.depth) / RECEIVES_PART).max(1);
        sending.say(head, receiving.posted);
        if round.stall {
            if sending.owes_head() {
                return Err(self.violation(ChannelViolation::Turn("stall")));
            }
            sending.owe(Owed::Head);
        } else if head.is_some() || due {
            sending.owe(Owed::Credits);
        }
        if round.stall || head.is_some() || due {
            receiving.reported = receiving.posted;
        }
        self.settle_notices(&mut sending)?;
        let credit_came = round.sent.is_some() || round.head;
        Ok(credit_came && sending.take_wants())
    }

    /// Waits until the device has flushed all works and receives, or [`DRAIN_LIMIT`] is over. The queue pair must have failed.
    pub(crate) fn drain(&self, receiving: &mut Receiving, sending: Option<&mut Sending>) {
        let start = Instant::now();
        let last = sending.as_ref().map(|sending| sending.last_number());
        let mut is_posted = false;
        let mut is_sent = last.is_none();
        let Receiving {
            completions,
            books: receiving,
        } = receiving;
        while !is_sent || receiving.out > 0 {
            if let (Some(number), false) = (last, is_posted) {
                // SAFETY: the work of `nothing` has no bytes, so the device reads none.
                is_posted = unsafe { self.queue.post(&[nothing(number)]) }.is_ok();
            }
            let count = self.queue.poll(completions).unwrap_or(0);
            self.account(receiving, &completions[..count]);
            is_sent |= completions[..count]
                .iter()
                .any(|completion| match completion {
                    Completion::Sent { number } | Completion::Failed { number, .. } => {
                        Some(*number) == last
                    }
                    Completion::Received { .. } => false,
                });
            if count == 0 {
                if start.elapsed() > DRAIN_LIMIT {
                    self.counts.not_drained.add(1);
                    return;
                }
                std::thread::yield_now();
            }
        }
        if let Some(sending) = sending {
            sending.drained();
        }
    }
}

/// The number of all receives. The numbers of works begin at 1.
pub(crate) const RECEIVE: u64 = 0;

fn nothing(number: u64) -> Work {
    Work {
        number,
        local: std::ptr::null(),
        bytes: 0,
        local_key: 0,
        remote: 0,
        remote_key: 0,
        immediate: None,
        signalled: true,
        inline: false,
    }
}
