//! Slots: memory that this process shares with its backend, for copies from and to the program's own memory. The program's thread copies
//! bytes into a slot and the GPU copies them out of it, or the other way round. No byte crosses a socket.
//!
//! A slot that was sent to the device is free when the GPU has read it. The server does not report that. But bytes that come back over a
//! stream show that the copies before them on that stream are done; and a thread that finds no free slot waits for the oldest ones in
//! flight ([`BATCH`] at a time, so that a long copy waits once for several).
//!
//! One thread copies slower than a GPU. So a long copy has helper threads, which share its pieces. They make calls under the number of the
//! program's thread, and end before the copy returns.

use crate::handles::streams;
use crate::servers::number_of;
use crate::{session, thread};
use rgaps_remoting::{pieces, Call, Code, Extent, Pitched, Waited};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const SLOT_BYTES: u64 = 1 << 20;
/// Number of slots, and so the most copies in flight.
const SLOTS: u16 = 32;
/// Most slots that a thread waits for in one call, or has in flight to the host.
const BATCH: usize = 4;
/// Most threads of a copy, with the program's own, and the fewest bytes for each: a thread takes about as long to start as to copy so many.
const THREADS_MAX: usize = 4;
const THREAD_BYTES_MIN: u64 = 512 << 10;
/// Pieces for each thread of a copy, unless they would be shorter than [`PIECE_BYTES_MIN`]: the GPU copies one while the thread copies
/// the next.
const PIECES: u64 = 2;
const PIECE_BYTES_MIN: u64 = 256 << 10;
const _: () = assert!(SLOTS <= rgaps_remoting::MARKS_MAX && BATCH * THREADS_MAX <= SLOTS as usize);

/// The slots of this process and one server.
pub(crate) struct Bulk {
    region: u64,
    start: u64,
    slots: Mutex<Slots>,
    freed: Condvar,
}

struct Slots {
    free: Vec<u16>,
    /// Slots in flight to the device, the oldest first.
    flying: VecDeque<Flying>,
    /// How many slots were sent to the device so far.
    sent: u64,
}

/// A slot that was sent to the device.
struct Flying {
    slot: u16,
    /// How many slots had been sent before it.
    number: u64,
    stream: StreamKey,
}

/// Identifies a stream: handle, current device, and for the per-thread default stream the calling thread (else 0). Each device has
/// default streams of its own.
type StreamKey = (u64, u16, u16);

fn stream_key(stream: u64) -> StreamKey {
    let thread = if stream == streams::PER_THREAD {
        thread::number()
    } else {
        0
    };
    (stream, thread::device(), thread)
}

impl Slots {
    /// Frees the slots that were sent to `stream` with numbers below `before`, and returns how many.
    fn land(&mut self, stream: StreamKey, before: u64) -> usize {
        let Slots { free, flying, .. } = self;
        let free_before = free.len();
        flying.retain(|sent| {
            let is_read = sent.stream == stream && sent.number < before;
            if is_read {
                free.push(sent.slot);
            }
            !is_read
        });
        free.len() - free_before
    }
}

/// The slots of the current server, if it is on this host and shares memory; made at the first use.
pub(crate) fn slots() -> Result<Option<&'static Bulk>, Code> {
    static BULK: Mutex<BTreeMap<usize, Option<&'static Bulk>>> = Mutex::new(BTreeMap::new());
    let server = number_of(thread::device());
    let mut all = BULK.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bulk) = all.get(&server) {
        return Ok(*bulk);
    }
    let made = session::share(SLOT_BYTES * u64::from(SLOTS))?.map(|(region, start)| {
        let bulk = Bulk {
            region,
            start,
            slots: Mutex::new(Slots {
                free: (0..SLOTS).collect(),
                flying: VecDeque::new(),
                sent: 0,
            }),
            freed: Condvar::new(),
        };
        // Leaked: the process keeps one for each server until it ends.
        &*Box::leak(Box::new(bulk))
    });
    all.insert(server, made);
    Ok(made)
}

/// Calls `act` for each row of `extent`, with its address at `at` and its address among the packed rows, which follow each other from
/// `packed`.
fn each_row(at: &Pitched, extent: &Extent, packed: u64, mut act: impl FnMut(u64, u64)) {
    for layer in 0..extent.depth {
        for row in 0..extent.height {
            let number = layer * extent.height + row;
            act(
                at.address + layer * at.layer_bytes + row * at.row_bytes,
                packed + number * extent.width_bytes,
            );
        }
    }
}

/// Packs the rows of `extent` at `from`: copies them to `to`, one behind the other.
///
/// # Safety
/// Until this returns, all these rows may be read, and `extent.bytes()` bytes at `to` written. The two do not overlap.
pub(crate) unsafe fn gather(from: &Pitched, extent: &Extent, to: u64) {
    let width = extent.width_bytes as usize;
    each_row(from, extent, to, |row, packed| {
        // SAFETY: `each_row` gives each row of `extent` once, with the address where `width` bytes for it begin in the packed bytes. Our
        // caller promises that all rows may be read and all packed bytes written until this returns, and that the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(row as *const u8, packed as *mut u8, width) };
    });
}

/// Unpacks rows, which lie one behind the other at `from`, to the rows of `extent` at `to`.
///
/// # Safety
/// Until this returns, `extent.bytes()` bytes at `from` may be read, and all rows at `to` written. The two do not overlap.
pub(crate) unsafe fn scatter(from: u64, to: &Pitched, extent: &Extent) {
    let width = extent.width_bytes as usize;
    each_row(to, extent, from, |row, packed| {
        // SAFETY: `each_row` gives each row of `extent` once, with the address where its `width` bytes begin in the packed bytes. Our
        // caller promises that all packed bytes may be read and all rows written until this returns, and that the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(packed as *const u8, row as *mut u8, width) };
    });
}

/// How many threads copy so many bytes.
fn threads_for(bytes: u64) -> usize {
    let most = THREADS_MAX.min(session::stripes());
    most.min((bytes / THREAD_BYTES_MIN) as usize).max(1)
}

/// Runs `work` on this thread and on `threads - 1` helpers, which end before this returns; gives the first error.
fn together(threads: usize, work: impl Fn() -> Result<(), Code> + Sync) -> Result<(), Code> {
    let (thread, device) = (thread::number(), thread::device());
    let help = || {
        thread::adopt(thread, device);
        work()
    };
    std::thread::scope(|scope| {
        let spawn = || {
            let builder = std::thread::Builder::new().name("rgaps-gpu-copy".to_owned());
            // Without helpers the copy takes longer.
            builder.spawn_scoped(scope, help).ok()
        };
        let helpers: Vec<_> = (1..threads).map_while(|_| spawn()).collect();
        let own = work();
        helpers.into_iter().fold(own, |result, helper| {
            result.and(helper.join().unwrap_or(Err(Code::UNKNOWN)))
        })
    })
}

/// Bytes of each piece of a copy by so many threads.
fn piece_bytes(bytes: u64, threads: usize) -> u64 {
    let piece = (bytes / (PIECES * threads as u64)).next_multiple_of(4096);
    piece.clamp(PIECE_BYTES_MIN, SLOT_BYTES)
}

/// A piece of a copy: its rows on the device, and its rows on this host.
type Pair = ((Pitched, Extent), (Pitched, Extent));

/// The pieces of a copy, for several threads.
struct Pieces(Mutex<Box<dyn Iterator<Item = Pair> + Send>>);

impl Pieces {
    fn of(device: Pitched, host: Pitched, extent: Extent, most: u64) -> Pieces {
        let here = pieces(host, extent, most);
        let both = pieces(device, extent, most).zip(here);
        Pieces(Mutex::new(Box::new(both)))
    }

    fn next(&self) -> Option<Pair> {
        let mut rest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rest.next()
    }
}

impl Bulk {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free slot, and waits for one if there is none.
    fn take(&self) -> Result<u16, Code> {
        let mut slots = self.lock();
        loop {
            if let Some(slot) = slots.free.pop() {
                return Ok(slot);
            }
            let count = slots.flying.len().min(BATCH);
            if count == 0 {
                // Other threads have them all, and give them back.
                slots = self
                    .freed
                    .wait(slots)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let oldest = slots.flying.drain(..count);
            let marks: Vec<u16> = oldest.map(|one| one.slot).collect();
            drop(slots);
            let call = Call::WaitForMarks {
                marks: marks.clone(),
            };
            let waited = session::call(&call, &[]);
            slots = self.lock();
            slots.free.extend(marks);
            self.freed.notify_all();
            waited?;
        }
    }

    /// Takes a free slot, if there is one.
    fn try_take(&self) -> Option<u16> {
        self.lock().free.pop()
    }

    fn give(&self, slot: u16) {
        self.lock().free.push(slot);
        self.freed.notify_one();
    }

    fn sent(&self, slot: u16, stream: StreamKey) {
        let mut slots = self.lock();
        let number = slots.sent;
        slots.sent += 1;
        slots.flying.push_back(Flying {
            slot,
            number,
            stream,
        });
        drop(slots);
        self.freed.notify_one();
    }

    /// Call when the GPU has read the slots that were sent to `stream` with numbers below `before`: frees them.
    fn landed(&self, stream: StreamKey, before: u64) {
        if self.lock().land(stream, before) > 0 {
            self.freed.notify_all();
        }
    }

    fn call(
        &self,
        slot: u16,
        device: Pitched,
        extent: Extent,
        is_in: bool,
        stream: u64,
    ) -> Call<'static> {
        Call::CopyShared {
            region: self.region,
            host: Pitched::packed(u64::from(slot) * SLOT_BYTES, &extent),
            device,
            extent,
            is_in,
            stream,
            mark: Some(slot),
        }
    }

    fn address(&self, slot: u16) -> u64 {
        self.start + u64::from(slot) * SLOT_BYTES
    }

    /// Copies rows of the program to the device. The program may change them when this returns.
    ///
    /// # Safety
    /// All rows of `extent` at `host` may be read, by any thread, until this returns.
    pub(crate) unsafe fn copy_in(
        &self,
        device: Pitched,
        host: Pitched,
        extent: Extent,
        stream: u64,
    ) -> Result<(), Code> {
        let bytes = extent.bytes().unwrap_or(0);
        let threads = threads_for(bytes);
        let rest = Pieces::of(device, host, extent, piece_bytes(bytes, threads));
        together(threads, || {
            while let Some(((device, extent), (host, _))) = rest.next() {
                let slot = self.take()?;
                // SAFETY: our caller promises that all rows of its `extent` at its `host` may be read until it has returned, and
                // `together` ends its threads before; `pieces` cuts these rows only. The slot has room for a piece (`piece_bytes`). It is
                // this thread's from `take` to `sent`, and the GPU has read what was there, so nobody else uses it.
                unsafe { gather(&host, &extent, self.address(slot)) };
                let sent = session::send_shared_now(&self.call(slot, device, extent, true, stream));
                self.sent(slot, stream_key(stream));
                sent?;
            }
            Ok(())
        })
    }

    /// Copies rows of the device to the program, and waits for them.
    ///
    /// # Safety
    /// All rows of `extent` at `host` may be written, by any thread, until this returns.
    pub(crate) unsafe fn copy_out(
        &self,
        device: Pitched,
        host: Pitched,
        extent: Extent,
        stream: u64,
    ) -> Result<(), Code> {
        let bytes = extent.bytes().unwrap_or(0);
        let threads = threads_for(bytes);
        let rest = Pieces::of(device, host, extent, piece_bytes(bytes, threads));
        together(threads, || {
            // SAFETY: the rows of `rest` are those of `extent` at `host`. Our caller promises that any thread may write these until
            // `copy_out` has returned, and `together` ends its threads before.
            unsafe { self.bring(&rest, stream) }
        })
    }

    /// Brings pieces until `rest` has no more.
    ///
    /// # Safety
    /// All rows on this host of the pieces of `rest` may be written until this returns.
    unsafe fn bring(&self, rest: &Pieces, stream: u64) -> Result<(), Code> {
        let mut flying: VecDeque<(u16, Waited, Pitched, Extent)> = VecDeque::new();
        let mut result = Ok(());
        let before = self.lock().sent;
        loop {
            // Starts a copy for each slot that it gets, and waits for a slot only if it has no copy in flight.
            while flying.len() < BATCH && result.is_ok() {
                let slot = match flying.is_empty() {
                    true => Some(self.take()?),
                    false => self.try_take(),
                };
                let Some(slot) = slot else { break };
                let Some(((device, extent), (host, _))) = rest.next() else {
                    self.give(slot);
                    break;
                };
                let call = self.call(slot, device, extent, false, stream);
                match session::start_shared(&call) {
                    Ok(waited) => flying.push_back((slot, waited, host, extent)),
                    Err(code) => {
                        self.give(slot);
                        result = Err(code);
                    }
                }
            }
            let Some((slot, waited, host, extent)) = flying.pop_front() else {
                return result;
            };
            let finished = session::finish(waited);
            if finished.is_ok() {
                self.landed(stream_key(stream), before);
            }
            if result.is_ok() && finished.is_ok() {
                // SAFETY: our caller promises that the rows of all pieces of `rest` may be written until this returns, and `rest` gives
                // each piece to one thread. `finish` says that the GPU has written the piece to the slot, which is this thread's until
                // `give`.
                unsafe { scatter(self.address(slot), &host, &extent) };
            }
            result = result.and(finished);
            self.give(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_share_pieces_and_call_as_the_programs_thread() {
        let (at, extent) = (
            Pitched::default(),
            Extent {
                width_bytes: 9 * SLOT_BYTES + 5,
                height: 1,
                depth: 1,
            },
        );
        let rest = Pieces::of(at, at, extent, SLOT_BYTES);
        thread::set_device(3);
        let thread = thread::number();
        let copied = Mutex::new(Vec::new());
        let work = || {
            assert_eq!((thread::number(), thread::device()), (thread, 3));
            while let Some(((device, extent), (host, _))) = rest.next() {
                assert_eq!(device.address, host.address);
                copied
                    .lock()
                    .unwrap()
                    .push((host.address, extent.width_bytes));
            }
            Ok(())
        };
        together(3, work).unwrap();
        let mut copied = copied.into_inner().unwrap();
        copied.sort();
        assert_eq!(copied.len(), 10);
        assert_eq!(copied[9], (9 * SLOT_BYTES, 5));
        let fails = || Err(Code::NOT_READY);
        assert_eq!(together(2, fails), Err(Code::NOT_READY));
    }

    #[test]
    fn copies_are_cut_so_that_each_thread_has_some_pieces() {
        const KIB: u64 = 1 << 10;
        for (bytes, threads, piece) in [
            (20 * KIB, 1, 256 * KIB),
            (512 * KIB, 1, 256 * KIB),
            (4096 * KIB, 4, 512 * KIB),
            (4096 * KIB, 1, 1024 * KIB),
            (65536 * KIB, 4, 1024 * KIB),
        ] {
            assert_eq!(piece_bytes(bytes, threads), piece, "{bytes}");
        }
    }

    #[test]
    fn slots_are_free_when_bytes_came_back_behind_them_on_their_stream() {
        let flying = |slot, number, stream| Flying {
            slot,
            number,
            stream,
        };
        let (mine, other) = ((0, 0, 0), (0, 1, 0));
        let mut slots = Slots {
            free: Vec::new(),
            flying: [
                flying(4, 0, mine),
                flying(5, 1, other),
                flying(6, 2, mine),
                flying(7, 3, mine),
            ]
            .into(),
            sent: 4,
        };
        assert_eq!(slots.land(mine, 3), 2);
        assert_eq!(slots.free, [4, 6]);
        let left: Vec<u16> = slots.flying.iter().map(|one| one.slot).collect();
        assert_eq!(left, [5, 7]);
    }

    #[test]
    fn rows_are_gathered_and_scattered() {
        let from: Vec<u8> = (0..60).collect();
        let mut packed = [0u8; 18];
        let mut to = vec![0u8; 60];
        let at = |start: *const u8| Pitched {
            array: 0,
            address: start as u64,
            row_bytes: 10,
            layer_bytes: 30,
        };
        let extent = Extent {
            width_bytes: 3,
            height: 3,
            depth: 2,
        };
        // SAFETY: the rows of both end at 53, and the packed ones are 18 bytes.
        unsafe {
            gather(&at(from.as_ptr()), &extent, packed.as_mut_ptr() as u64);
            scatter(packed.as_ptr() as u64, &at(to.as_mut_ptr()), &extent);
        }
        assert_eq!(packed[..9], [0, 1, 2, 10, 11, 12, 20, 21, 22]);
        assert_eq!((packed[9], packed[17]), (30, 52));
        let is_copied = |at: usize| at % 30 % 10 < 3;
        assert!((0..60).all(|at| to[at] == if is_copied(at) { at as u8 } else { 0 }));
    }
}
