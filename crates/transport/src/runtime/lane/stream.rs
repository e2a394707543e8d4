//! A lane over a byte stream.
//!
//! A [`Stream`] has two threads. One reads frames, and chunks straight from the socket into their receive buffers. Short frames are
//! written by whichever thread has them, without waiting; what is long or would have to wait is left to the lane's writing
//! thread.

use super::{Lane, LaneEnd, LaneKind, LaneState, LaneStatus};
use crate::connection::{Connection, Wait};
use crate::machine::frame::{Decoded, Frame};
use crate::machine::{WriteLimit, WriteRange};
use crate::runtime::batch::{Batch, BATCH_SLICES};
use crate::runtime::LinkRuntime;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, TryLockError};

/// Bytes that are read at once when a frame is expected.
const READ_BYTES: usize = 16 << 10;
/// The same behind a chunk: what is read of the next one has to be copied.
const READ_BEHIND_CHUNK: usize = 512;
/// Frames that are read before the link is settled.
const FRAMES_AT_ONCE: usize = 32;
/// A larger chunk is settled at once.
const BULK_BYTES: usize = 64 << 10;

/// A lane over a byte stream.
pub(crate) struct Stream {
    state: LaneState,
    /// Why it is not RDMA.
    why_not: Option<String>,
    writing: Mutex<Batch>,
    bell: (Mutex<bool>, Condvar),
    threads: AtomicU8,
}

impl Stream {
    pub(crate) fn new(
        number: u32,
        connection: Connection,
        why_not: Option<String>,
        now_ms: u64,
    ) -> Self {
        Self {
            state: LaneState::new(number, connection, now_ms),
            why_not,
            writing: Mutex::default(),
            bell: Default::default(),
            threads: AtomicU8::new(2),
        }
    }

    /// The reading thread.
    pub(crate) fn read_all(&self, link: &Arc<LinkRuntime>) {
        if let Err(why) = self.frames(link) {
            self.close(&why);
        }
        self.leave(link);
    }

    /// The writing thread.
    pub(crate) fn write_all(&self, link: &Arc<LinkRuntime>) {
        while !self.state.is_closed() {
            if let Err(why) = self.write(link, Wait::Yes) {
                self.close(&why);
            }
            link.settle();
            let (bell, rung) = &self.bell;
            let mut bell = bell.lock().expect("nobody panics with it");
            while !std::mem::take(&mut *bell) && !self.state.is_closed() {
                bell = rung.wait(bell).expect("nobody panics with it");
            }
        }
        self.leave(link);
    }

    fn lost(&self, doing: &str, error: &std::io::Error) -> String {
        format!("{doing} {}: {error}", self.state.connection.peer())
    }

    fn ring_bell(&self) {
        *self.bell.0.lock().expect("nobody panics with it") = true;
        self.bell.1.notify_one();
    }

    /// Writes all there is; without waiting only what is short, and leaves the rest to the writing thread.
    fn write(&self, link: &LinkRuntime, wait: Wait) -> Result<(), String> {
        let limit = match wait {
            Wait::Yes => WriteLimit::All,
            Wait::No => WriteLimit::Short,
        };
        loop {
            let mut batch = match (wait, self.writing.try_lock()) {
                (_, Ok(batch)) => batch,
                // It looks again when it is done.
                (Wait::No, Err(TryLockError::WouldBlock)) => return Ok(()),
                (Wait::Yes, Err(TryLockError::WouldBlock)) => {
                    self.writing.lock().expect("nobody panics with it")
                }
                (_, Err(TryLockError::Poisoned(_))) => return Err("a writer panicked".into()),
            };
            loop {
                if self.state.is_closed() {
                    return Ok(());
                }
                if batch.is_empty() {
                    let payloads = batch.payloads();
                    // Without the link's lock: the last clone of a payload may be here.
                    batch.clear();
                    let left = link.batch(self.state.number, payloads, limit, &mut batch);
                    if batch.is_empty() {
                        let flushed = self.state.connection.flush(wait);
                        if left || !flushed.map_err(|error| self.lost("writing to", &error))? {
                            self.ring_bell();
                        }
                        break;
                    }
                }
                let mut slices = [IoSlice::new(&[]); BATCH_SLICES];
                let count = batch.slices(&mut slices);
                let wrote = self.state.connection.write(&slices[..count], wait);
                let wrote = wrote.map_err(|error| self.lost("writing to", &error))?;
                if wrote == 0 {
                    // It would have to wait.
                    self.ring_bell();
                    return Ok(());
                }
                batch.wrote(wrote);
                self.state.spoke_ms.store(link.now_ms(), Relaxed);
                self.state.bytes_out.fetch_add(wrote as u64, Relaxed);
            }
            drop(batch);
            // Somebody may have found the lock taken since.
            match link.waiting(self.state.number, limit) {
                None => return Ok(()),
                Some(true) => {}
                Some(false) => {
                    self.ring_bell();
                    return Ok(());
                }
            }
        }
    }

    fn fill(&self, into: &mut [u8], link: &LinkRuntime) -> Result<usize, String> {
        link.receiver.rest();
        self.state.received_ms.store(link.now_ms(), SeqCst);
        self.state.listens.store(true, SeqCst);
        let read = self.state.connection.read(into);
        self.state.listens.store(false, SeqCst);
        let read = read.map_err(|error| self.lost("reading from", &error))?;
        if read == 0 {
            return Err(format!(
                "{} closed the connection",
                self.state.connection.peer()
            ));
        }
        self.state.bytes_in.fetch_add(read as u64, Relaxed);
        Ok(read)
    }

    fn fill_all(&self, mut into: &mut [u8], link: &LinkRuntime) -> Result<(), String> {
        while !into.is_empty() {
            let read = self.fill(into, link)?;
            into = &mut into[read..];
        }
        Ok(())
    }

    /// Reads the rest of a chunk, of which `first` was read with its frame, straight into its receive buffer.
    fn read_chunk(
        &self,
        mut range: WriteRange,
        first: &[u8],
        link: &LinkRuntime,
    ) -> Result<(), String> {
        let bytes = range.as_mut_slice();
        bytes[..first.len()].copy_from_slice(first);
        self.fill_all(&mut bytes[first.len()..], link)?;
        link.landed(range, false);
        Ok(())
    }

    fn frames(&self, link: &Arc<LinkRuntime>) -> Result<(), String> {
        let mut buffer = vec![0; READ_BYTES];
        // A small message that was not read in one piece.
        let mut small = vec![];
        let (mut start, mut end, mut at_once, mut frames) = (0, 0, READ_BYTES, 0);
        loop {
            let decoded = Frame::decode(&buffer[start..end]);
            let decoded =
                decoded.map_err(|error| link.disconnect(Some(self.state.number), &error))?;
            let (frame, used) = match decoded {
                Decoded::Frame(frame, used) => (frame, used),
                Decoded::Short(need) => {
                    link.settle();
                    frames = 0;
                    if start == end {
                        (start, end) = (0, 0);
                    } else if start + need > buffer.len() {
                        buffer.copy_within(start..end, 0);
                        (start, end) = (0, end - start);
                    }
                    let limit = (end + at_once.max(need)).min(buffer.len());
                    end += self.fill(&mut buffer[end..limit], link)?;
                    continue;
                }
            };
            start += used;
            link.check_small(self.state.number, &frame)?;
            let payload = usize::try_from(frame.payload_bytes()).expect("it is bounded");
            let have = payload.min(end - start);
            let here = &buffer[start..start + have];
            start += have;
            if let Frame::Chunk { .. } = frame {
                let range = link.frame(self.state.number, &frame, &[])?;
                let range = range.expect("a chunk has a range, or is a violation");
                self.read_chunk(range, here, link)?;
                at_once = READ_BEHIND_CHUNK;
            } else if have == payload {
                link.frame(self.state.number, &frame, here)?;
            } else {
                small.resize(payload, 0);
                small[..have].copy_from_slice(here);
                self.fill_all(&mut small[have..], link)?;
                link.frame(self.state.number, &frame, &small)?;
            }
            if let Frame::Small { .. } = frame {
                at_once = READ_BYTES;
            }
            frames += 1;
            if frames >= FRAMES_AT_ONCE || payload > BULK_BYTES {
                link.settle();
                frames = 0;
            }
        }
    }
}

impl Lane for Stream {
    fn wake(&self, link: &LinkRuntime) {
        if let Err(why) = self.write(link, Wait::No) {
            self.close(&why);
        }
    }

    fn close(&self, why: &str) {
        self.state.close(why);
        self.ring_bell();
    }

    fn leave(&self, link: &Arc<LinkRuntime>) {
        if self.threads.fetch_sub(1, SeqCst) == 1 {
            // Whoever else writes finds the lane closed from here on.
            self.writing.lock().expect("nobody panics with it").clear();
            self.state.ended(link);
        }
    }

    fn write_last(&self, frame: &Frame) {
        let Ok(batch) = self.writing.try_lock() else {
            return;
        };
        // Within a frame there is no place for another.
        if batch.is_empty() && !self.state.is_closed() {
            let mut bytes = Vec::new();
            let length = frame.encode(&mut bytes);
            let _ = self
                .state
                .connection
                .write(&[IoSlice::new(&bytes[..length])], Wait::No);
        }
    }

    fn status(&self) -> LaneStatus {
        let kind = match self.state.connection.is_encrypted() {
            true => LaneKind::Tls,
            false => LaneKind::Tcp,
        };
        LaneStatus {
            why_not: self.why_not.clone(),
            ..self.state.status(kind)
        }
    }

    fn broke(&self) -> Option<LaneEnd> {
        None
    }

    fn state(&self) -> &LaneState {
        &self.state
    }
}
