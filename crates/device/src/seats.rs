//! Seats of a topic: the owner of each, and how far its subscriber is.

use crate::memory::Segment;
use crate::topic::check_endpoint;
use crate::{DeviceError, DeviceTopic};
use rgaps_layout::{
    DeviceControl, DeviceSeat, DEVICE_CURSOR_JOINED, DEVICE_CURSOR_RELIABLE, DEVICE_CURSOR_SHIFT,
    DEVICE_GENERATION_SHIFT, DEVICE_PUBLISHER_ENDPOINT, DEVICE_SEAT_FREE, MAX_DEVICE_SUBSCRIBERS,
};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{fence, AtomicU64, Ordering};

/// How far a subscriber is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatState {
    /// Whether a kernel has joined in the seat.
    pub joined: bool,
    /// Whether the publisher waits for it.
    pub reliable: bool,
    /// Sequence number of the message that it wants next, by its cursor.
    pub next_sequence: u64,
    /// Messages that it missed, ever.
    pub missed: u64,
}

impl DeviceTopic {
    /// Takes a seat for a subscriber, in which one kernel at a time may join.
    pub fn take_seat(&self) -> Result<u32, DeviceError> {
        let take = |seat: &u32| {
            self.owner_word(*seat)
                .compare_exchange(
                    DEVICE_SEAT_FREE,
                    self.owner,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
        };
        let seat = (0..MAX_DEVICE_SUBSCRIBERS).find(take);
        let seat = seat.ok_or(DeviceError::NoSeat(MAX_DEVICE_SUBSCRIBERS))?;
        if let Err(error) = self.clear_seat(seat).and_then(|()| self.resume(seat)) {
            self.give_seat(seat);
            return Err(error);
        }
        // The publisher ignores the seat until here. The kernel that joins clears the bits that the seat's last subscriber held.
        self.control_word(offset_of!(DeviceControl, evicted))
            .fetch_and(!(1 << seat), Ordering::Release);
        fence(Ordering::SeqCst);
        Ok(seat)
    }

    /// Gives a seat back. The caller has seen its kernels end, or their process and its GPU work with it: a kernel that still used
    /// the seat would clear bits of the next subscriber.
    pub fn leave_seat(&self, seat: u32) -> Result<(), DeviceError> {
        self.evict(seat)?;
        // So a publisher sees no reliable cursor in the seat, and need not read which seats are evicted.
        let cleared = self.clear_seat(seat);
        self.give_seat(seat);
        cleared
    }

    /// Evicts a subscriber: the publisher ignores the blocks that it holds, and does not wait for it. Its waits end, and its releases
    /// report that it was evicted. The seat stays taken until [`leave_seat`](Self::leave_seat).
    pub fn evict(&self, seat: u32) -> Result<(), DeviceError> {
        check_endpoint(seat, MAX_DEVICE_SUBSCRIBERS)?;
        self.control_word(offset_of!(DeviceControl, evicted))
            .fetch_or(1 << seat, Ordering::Release);
        Ok(())
    }

    /// The owner of each seat.
    pub fn owners(&self) -> [u64; MAX_DEVICE_SUBSCRIBERS as usize] {
        std::array::from_fn(|seat| self.owner_word(seat as u32).load(Ordering::SeqCst))
    }

    /// How far a subscriber is.
    pub fn seat(&self, seat: u32) -> Result<SeatState, DeviceError> {
        check_endpoint(seat, MAX_DEVICE_SUBSCRIBERS)?;
        Ok(self.seats()?[seat as usize])
    }

    /// The state of all seats, also of free ones.
    pub fn seats(&self) -> Result<Vec<SeatState>, DeviceError> {
        let words_each = size_of::<DeviceSeat>() / size_of::<u64>();
        let count = MAX_DEVICE_SUBSCRIBERS as usize * words_each;
        let words = self.memory().load_all(Segment::Words, 0, count)?;
        let seats = words.chunks_exact(words_each).map(|words| {
            let word = |field: usize| words[field / size_of::<u64>()];
            let cursor = word(offset_of!(DeviceSeat, cursor));
            SeatState {
                joined: cursor & DEVICE_CURSOR_JOINED != 0,
                reliable: cursor & DEVICE_CURSOR_RELIABLE != 0,
                next_sequence: cursor >> DEVICE_CURSOR_SHIFT,
                missed: word(offset_of!(DeviceSeat, missed)),
            }
        });
        Ok(seats.collect())
    }

    /// Whether the publisher has waited for room for the message behind `newest`.
    pub fn publisher_waits(&self, newest: u64) -> Result<bool, DeviceError> {
        let at = self.seat_at(DEVICE_PUBLISHER_ENDPOINT);
        let words = self.memory().load_all(Segment::Words, at, 1)?;
        Ok(words[0] == newest + 1)
    }

    /// Masks of the seats that are taken, and of those that are evicted.
    pub fn taken_and_evicted(&self) -> (u64, u64) {
        let taken = (0..).zip(self.owners());
        let taken = taken.filter(|(_, owner)| *owner != DEVICE_SEAT_FREE);
        let evicted = self.control_word(offset_of!(DeviceControl, evicted));
        (
            taken.map(|(seat, _)| 1 << seat).sum(),
            evicted.load(Ordering::SeqCst),
        )
    }

    /// How many blocks each seat holds, if no block is free for the publisher; else zeros.
    pub fn held_blocks(&self) -> Result<[u32; MAX_DEVICE_SUBSCRIBERS as usize], DeviceError> {
        let (_, evicted) = self.taken_and_evicted();
        let mut held = [0; MAX_DEVICE_SUBSCRIBERS as usize];
        for holder in self.holders()? {
            let bits = holder & ((1 << DEVICE_GENERATION_SHIFT) - 1) & !evicted;
            if bits == 0 {
                return Ok([0; MAX_DEVICE_SUBSCRIBERS as usize]);
            }
            for (seat, held) in held.iter_mut().enumerate() {
                *held += (bits >> seat & 1) as u32;
            }
        }
        Ok(held)
    }

    fn clear_seat(&self, seat: u32) -> Result<(), DeviceError> {
        let zeros = [0; size_of::<DeviceSeat>()];
        Ok(self.memory().words.write(self.seat_at(seat), &zeros)?)
    }

    fn give_seat(&self, seat: u32) {
        self.owner_word(seat)
            .store(DEVICE_SEAT_FREE, Ordering::Release);
    }

    fn owner_word(&self, seat: u32) -> &AtomicU64 {
        let at = offset_of!(DeviceControl, owners) + seat as usize * size_of::<u64>();
        self.control_word(at)
    }
}
