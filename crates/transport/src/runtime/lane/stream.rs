//! A lane over a byte stream (TCP or TLS).
//!
//! A [`Stream`] has two threads. One reads: frames, and chunks straight from the socket into their receive buffers. The thread that
//! queued a short frame writes it, without waiting. Long frames, and those that would have to wait, are left to the lane's writing
//! thread.

use super::reading::{Begun, Reading};
use super::{Lane, LaneKind, LaneState, Writing};
use crate::machine::frame::Frame;
use crate::machine::WriteLimit;
use crate::runtime::batch::BATCH_SLICES;
use crate::runtime::{clock_ms, LinkRuntime};
use rgaps_connection::{Connection, Wait};
use std::io::IoSlice;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

/// Bytes to read in one call when a frame is expected.
const READ_BYTES: usize = 16 << 10;
/// Bytes to read in one call behind a chunk. Another chunk mostly follows, and its bytes that are read along have to be copied.
const READ_BEHIND_CHUNK: usize = 512;
/// The link is settled after so many frames, at the latest.
const FRAMES_AT_ONCE: usize = 32;
/// After a larger payload the link is settled at once.
const BULK_BYTES: usize = 64 << 10;
/// The name of the thread that reads.
const READS: &str = "lane-rx";

/// A lane over a byte stream.
pub(crate) struct Stream {
    state: LaneState,
    /// Wakes the writing thread: the flag is set by [`Lane::ring`] and cleared by that thread.
    bell: (Mutex<bool>, Condvar),
}

impl Stream {
    pub(crate) fn new(number: u32, connection: Connection, why_not: Option<String>) -> Self {
        let kind = match connection.is_encrypted() {
            true => LaneKind::Tls,
            false => LaneKind::Tcp,
        };
        Self {
            state: LaneState::new(number, connection, (kind, why_not)),
            bell: Default::default(),
        }
    }

    fn lost(&self, doing: &str, error: &std::io::Error) -> String {
        format!("{doing} {}: {error}", self.state.connection.peer())
    }

    /// Waits for bytes and reads some. Returns how many; `Err` if the connection has ended.
    fn fill(&self, into: &mut [u8], link: &LinkRuntime) -> Result<usize, String> {
        link.receiver.rest();
        self.state.received_ms.store(clock_ms(), SeqCst);
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

    /// The reading thread. Reads most of each chunk straight into its receive buffer, and all else through `buffer`.
    fn read_all(&self, link: &LinkRuntime) -> Result<(), String> {
        let mut buffer = vec![0; READ_BYTES];
        let mut reading = Reading::new(self.state.number);
        let (mut start, mut end, mut at_once) = (0, 0, READ_BYTES);
        let (mut frames, mut is_bulk) = (0, false);
        loop {
            while let Some(room) = reading.room() {
                let read = self.fill(room, link)?;
                reading.filled(read, link)?;
            }
            if frames >= FRAMES_AT_ONCE || is_bulk {
                reading.settle(link);
                (frames, is_bulk) = (0, false);
            }
            match reading.begin(&buffer[start..end], link)? {
                Begun::Frame {
                    used,
                    payload_bytes,
                    is_chunk,
                } => {
                    start += used;
                    frames += 1;
                    is_bulk = payload_bytes > BULK_BYTES;
                    if payload_bytes > 0 {
                        at_once = if is_chunk {
                            READ_BEHIND_CHUNK
                        } else {
                            READ_BYTES
                        };
                    }
                }
                Begun::Short(need) => {
                    reading.settle(link);
                    frames = 0;
                    if start == end {
                        (start, end) = (0, 0);
                    } else if start + need > buffer.len() {
                        buffer.copy_within(start..end, 0);
                        (start, end) = (0, end - start);
                    }
                    let limit = (end + at_once.max(need)).min(buffer.len());
                    end += self.fill(&mut buffer[end..limit], link)?;
                }
            }
        }
    }

    fn write_all(&self, link: &LinkRuntime) -> Result<(), String> {
        while !self.state.is_closed() {
            self.write(link, WriteLimit::All)?;
            link.settle();
            let (bell, rung) = &self.bell;
            let mut bell = bell.lock().expect("nobody panics with it");
            while !std::mem::take(&mut *bell) && !self.state.is_closed() {
                bell = rung.wait(bell).expect("nobody panics with it");
            }
        }
        Ok(())
    }
}

fn wait(limit: WriteLimit) -> Wait {
    match limit {
        WriteLimit::All => Wait::Yes,
        WriteLimit::Short | WriteLimit::Posted => Wait::No,
    }
}

impl Lane for Stream {
    fn state(&self) -> &LaneState {
        &self.state
    }

    fn threads(&self) -> &'static [&'static str] {
        &[READS, "lane-tx"]
    }

    fn run(&self, thread: &str, link: &Arc<LinkRuntime>) -> Result<(), String> {
        match thread {
            READS => self.read_all(link),
            _ => self.write_all(link),
        }
    }

    fn ring(&self) {
        *self.bell.0.lock().expect("nobody panics with it") = true;
        self.bell.1.notify_one();
    }

    fn short(&self) -> WriteLimit {
        WriteLimit::Short
    }

    fn reap(&self, Writing { batch, .. }: &mut Writing) -> usize {
        match batch.is_empty() {
            true => batch.payloads_done(),
            false => 0,
        }
    }

    fn put(&self, Writing { batch, .. }: &mut Writing, limit: WriteLimit) -> Result<bool, String> {
        let mut slices = [IoSlice::new(&[]); BATCH_SLICES];
        let count = batch.slices(&mut slices);
        let wrote = self.state.connection.write(&slices[..count], wait(limit));
        let wrote = wrote.map_err(|error| self.lost("writing to", &error))?;
        if wrote == 0 {
            // The write would have to wait.
            self.ring();
            return Ok(false);
        }
        batch.wrote(wrote);
        self.state.bytes_out.fetch_add(wrote as u64, Relaxed);
        Ok(true)
    }

    fn flush(&self, limit: WriteLimit) -> Result<bool, String> {
        let flushed = self.state.connection.flush(wait(limit));
        flushed.map_err(|error| self.lost("writing to", &error))
    }

    fn write_last(&self, frame: &Frame) {
        let Ok(writing) = self.state.writing.try_lock() else {
            return;
        };
        // A frame that is written in part must not be interrupted by another.
        if writing.batch.is_empty() && !self.state.is_closed() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let connection = &self.state.connection;
            let _ = connection.write(&[IoSlice::new(&bytes)], Wait::No);
        }
    }
}
