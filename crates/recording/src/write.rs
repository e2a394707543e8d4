//! The writing thread of a recorder: takes messages from the queue and writes them to one file after the other.

use crate::counts::{Counters, Reason};
use crate::entry::Entry;
use crate::error::RecordError;
use crate::file::{Failed, OpenFile};
use crate::options::Options;
use crate::queue::{Next, Queue};
use mcap::McapError;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time between two looks at the age of the current chunk while no message comes.
const SLICE: Duration = Duration::from_millis(250);

/// Why a recorder stopped by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file that could not be written.
    pub path: PathBuf,
    /// What the system said.
    pub reason: String,
    /// Length of the file, which ends with its last whole chunk and has no index.
    pub readable_bytes: u64,
}

/// The files of a recording.
pub(crate) struct Files {
    options: Options,
    begun_ns: u64,
    open: Option<OpenFile>,
    number: u32,
    counters: Arc<Counters>,
    failure: Arc<OnceLock<Failure>>,
}

impl Files {
    /// Creates the first file, unless the recorder only keeps messages.
    pub(crate) fn begin(
        options: Options,
        begun_ns: u64,
        counters: Arc<Counters>,
        failure: Arc<OnceLock<Failure>>,
    ) -> Result<Files, RecordError> {
        let mut files = Files {
            options,
            begun_ns,
            open: None,
            number: 0,
            counters,
            failure,
        };
        if files.options.keep.is_none() {
            let path = files.options.path(0);
            let opened = files.open_next(&[]);
            opened.map_err(|error| RecordError::creating(path, error))?;
        }
        Ok(files)
    }

    /// Begins the next file, with a chunk that repeats these messages of earlier files.
    fn open_next(&mut self, repeated: &[Arc<Entry>]) -> Result<(), McapError> {
        let path = self.options.path(self.number);
        let open = OpenFile::create(&path, &self.options, self.begun_ns, repeated)?;
        self.open = Some(open);
        self.number += 1;
        self.counters.files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Runs the thread until the queue ends.
    pub(crate) fn run(mut self, queue: &Queue) {
        loop {
            match queue.next(SLICE) {
                Next::Write(entry) => {
                    self.write(&entry, queue);
                    queue.retire(entry);
                }
                Next::Complete => self.finish(),
                Next::Idle => self.end_old_chunk(),
                Next::End => return self.finish(),
            }
        }
    }

    fn write(&mut self, entry: &Entry, queue: &Queue) {
        let is_full = self.open.as_ref().is_some_and(|open| {
            let (bytes, time) = (self.options.split_bytes, self.options.split_time);
            bytes.is_some_and(|most| open.own_bytes() + entry.bytes.len() as u64 > most)
                && open.has_messages()
                || time.is_some_and(|most| open.opened.elapsed() >= most)
        });
        if is_full {
            self.finish();
        }
        if self.failure.get().is_some() {
            return self.counters.count_dropped(Reason::WriteFailed, 1);
        }
        if self.open.is_none() {
            if let Err(error) = self.open_next(&queue.latest()) {
                self.counters.count_dropped(Reason::WriteFailed, 1);
                let path = self.options.path(self.number);
                return self.fail(path, &error, 0);
            }
        }
        let written = self.open.as_mut().map(|open| open.write(entry));
        self.account(written);
    }

    fn end_old_chunk(&mut self) {
        let written = self.open.as_mut().map(OpenFile::end_old_chunk);
        self.account(written);
    }

    fn account(&mut self, written: Option<Result<u64, McapError>>) {
        match written {
            None => {}
            Some(Ok(messages)) => {
                self.counters
                    .recorded
                    .fetch_add(messages, Ordering::Relaxed);
                let bytes = self.open.as_ref().map_or(0, OpenFile::whole_bytes);
                self.counters.open_bytes.store(bytes, Ordering::Relaxed);
            }
            Some(Err(error)) => {
                if let Some(open) = self.open.take() {
                    self.give_up(*open.fail(error));
                }
            }
        }
    }

    fn finish(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        let dropped = self.counters.dropped_by().into_iter();
        let dropped = dropped.map(|(reason, count)| (reason.to_owned(), count.to_string()));
        match open.finish(dropped.collect()) {
            Ok((messages, bytes)) => {
                self.counters
                    .recorded
                    .fetch_add(messages, Ordering::Relaxed);
                self.counters
                    .complete_bytes
                    .fetch_add(bytes, Ordering::Relaxed);
                self.counters.open_bytes.store(0, Ordering::Relaxed);
            }
            Err(failed) => self.give_up(*failed),
        }
    }

    fn give_up(&mut self, failed: Failed) {
        self.counters
            .count_dropped(Reason::WriteFailed, failed.lost);
        self.counters
            .open_bytes
            .store(failed.bytes, Ordering::Relaxed);
        self.fail(failed.path, &failed.error, failed.bytes);
    }

    fn fail(&mut self, path: PathBuf, error: &McapError, readable_bytes: u64) {
        let reason = match error {
            McapError::Io(error) => error.to_string(),
            other => rgaps_session::explain(other),
        };
        tracing::warn!("{} cannot be written: {reason}", path.display());
        // The first failure ends the recording; later ones follow from it.
        let _ = self.failure.set(Failure {
            path,
            reason,
            readable_bytes,
        });
    }
}
