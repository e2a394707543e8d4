//! The client's end of a connection: calls of many threads, in one order.
//!
//! A quiet call is appended to a batch. The batch is written when somebody waits for an answer, when it is full, or
//! after [`BATCH_DELAY`] by a thread of its own. So a program that does not wait makes one system call for many calls,
//! and one that waits makes one write and one read.
//!
//! There is one connection, so the server sees the calls of all threads in the order in which the threads made them.
//! One of the threads that wait for answers reads for all of them, and hands the others theirs ("leader and
//! followers"). A thread reads whatever the server sends (see `async_copy`), so the server can always write.
//!
//! A connection that fails stays failed: each call then gives [`Lost`], at once.

use crate::call::{Call, CallAnswer, CallValue, Hello, Inventory, Welcome, Wish, MAGIC, PROTOCOL};
use crate::communicator::silence::watch;
use crate::communicator::{read_exact, write_all, Communication, Communicator, Deadline, Endpoint};
use crate::descriptor::{Receiver, Waiting};
use crate::expected_copies::ExpectedCopies;
use crate::frame::{FrameHeader, HEADER_BYTES, QUIET};
use crate::limits::{BATCH_BYTES, BATCH_DELAY, BODY_BYTES_MAX, HELLO_TIMEOUT, STRIPES_MAX};
use crate::options::SessionOptions;
use crate::socket::Socket;
use crate::stripes::Stripes;
use rgaps_sync::lock;
use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody is there.
    #[error("no GPU server answers at {0}: {1}; start one there with 'rgaps gpu serve'")]
    Unreachable(Endpoint, io::Error),
    /// The server does not want this client.
    #[error("the GPU server at {0} refuses: {1}")]
    Refused(Endpoint, String),
    /// One of the two does not trust the other, or the configuration does not allow it.
    #[error("no connection to the GPU server at {0}: {1}")]
    Untrusted(Endpoint, String),
    /// Something else listens there.
    #[error("what listens at {0} is no GPU server of this version of rgaps")]
    Stranger(Endpoint),
}

/// The connection has ended, and with it everything on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the GPU server is lost")]
pub struct Lost;

/// The counters of a connection.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls that were sent.
    pub calls: AtomicU64,
    /// Of these, calls whose answer was waited for.
    pub round_trips: AtomicU64,
    /// System calls that wrote.
    pub writes: AtomicU64,
    /// System calls that read.
    pub reads: AtomicU64,
    /// Bytes that were sent.
    pub bytes_out: AtomicU64,
    /// Bytes that were received.
    pub bytes_in: AtomicU64,
    /// Bytes that were copied from or to memory that both ends have.
    pub bytes_shared: AtomicU64,
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

/// Which thread calls, for which device.
#[derive(Debug, Clone, Copy)]
pub struct From {
    /// The thread's number.
    pub thread: u16,
    /// The device that is current on it.
    pub device: u16,
}

#[derive(Default)]
struct Outbox {
    batch: Vec<u8>,
    request: u64,
    is_lost: bool,
}

/// Memory of a caller for the bytes behind an answer.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: the callers of `call_out` and `call_out_async` promise that any thread may write `bytes` bytes at `start`: until `call_out`
// returns, or until `wait_for_async_copies` has returned for them. Both return only when the answer was read, or the connection is lost
// and no thread reads.
unsafe impl Send for Target {}

#[derive(Default)]
pub(crate) struct Inbox {
    /// Calls whose answers were not read yet, each with the memory for the bytes of its answer.
    wanted: HashMap<u64, Option<Target>>,
    answers: HashMap<u64, (CallAnswer, Option<OwnedFd>)>,
    pub(crate) expected_copies: ExpectedCopies,
    /// A thread reads.
    pub(crate) is_read: bool,
    pub(crate) is_lost: bool,
}

/// A session on a server.
pub struct ServerConnection {
    server: Arc<dyn Communicator>,
    stripes: Stripes,
    inline_bytes: usize,
    endpoint: Endpoint,
    inventory: Inventory,
    outbox: Mutex<Outbox>,
    /// Notified when the batch has its first call.
    filled: Condvar,
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) answered: Condvar,
    reader: Mutex<BufReader<Receiver>>,
    /// Descriptors that came with answers.
    descriptors: Arc<Waiting>,
    is_ending: AtomicBool,
    /// Its counters.
    pub counters: Counters,
}

/// A call whose answer has to be taken by [`ServerConnection::finish`].
#[derive(Debug)]
#[must_use]
pub struct Waited {
    request: u64,
    thread: u16,
}

/// Connects and says hello; gives the connection and the server's answer.
fn greet(
    communication: &Communication,
    at: &Endpoint,
    wish: Wish,
) -> Result<(Arc<dyn Communicator>, Welcome), ConnectError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
            ConnectError::Untrusted(at.clone(), error.to_string())
        }
        _ => ConnectError::Unreachable(at.clone(), error),
    };
    let stranger = || ConnectError::Stranger(at.clone());
    let server = communication.communicator(at).map_err(failed)?;
    server.connect().map_err(failed)?;
    let _deadline = Deadline::new(server.clone(), HELLO_TIMEOUT).map_err(failed)?;
    let hello = Hello {
        magic: MAGIC,
        protocol: PROTOCOL,
        wish,
    };
    let body = postcard::to_stdvec(&hello).map_err(|_| stranger())?;
    let header = FrameHeader {
        length: body.len() as u32,
        ..FrameHeader::default()
    };
    let sent = write_all(&*server, [&header.encode(), &body]);
    let mut bytes = [0; HEADER_BYTES];
    // A server may have sent a reason before it closed.
    if let Err(error) = read_exact(&*server, &mut bytes) {
        let is_told = error.kind() == io::ErrorKind::PermissionDenied;
        return Err(failed(match sent {
            Err(unsent) if !is_told => unsent,
            _ => error,
        }));
    }
    let header = FrameHeader::decode(&bytes).map_err(|_| stranger())?;
    let mut body = vec![0; header.length as usize];
    read_exact(&*server, &mut body).map_err(failed)?;
    let welcome = postcard::from_bytes(&body).map_err(|_| stranger())?;
    Ok((server, welcome))
}

/// Asks a server who uses it.
pub fn status(
    communication: &Communication,
    at: &Endpoint,
) -> Result<crate::call::ServerStatus, ConnectError> {
    match greet(communication, at, Wish::Status)?.1 {
        Welcome::Status(status) => Ok(status),
        Welcome::Refused(reason) => Err(ConnectError::Refused(at.clone(), reason)),
        _ => Err(ConnectError::Stranger(at.clone())),
    }
}

/// Makes up to `count` further connections for a session.
fn open_stripes(
    communication: &Communication,
    at: &Endpoint,
    token: [u8; 16],
    count: usize,
) -> Stripes {
    let open = |index| {
        let wish = Wish::Stripe { token, index };
        match greet(communication, at, wish) {
            Ok((stripe, Welcome::Stripe)) => Some(stripe),
            _ => None,
        }
    };
    let all = (0..count.min(STRIPES_MAX) as u8).map_while(open);
    Stripes::new(all.collect())
}

impl ServerConnection {
    /// Begins a session.
    pub fn open(
        communication: &Communication,
        at: &Endpoint,
        program: &str,
        options: SessionOptions,
    ) -> Result<Arc<ServerConnection>, ConnectError> {
        let wish = Wish::Session {
            program: program.to_owned(),
            pid: std::process::id(),
            server: options.server,
        };
        let (server, inventory, token) = match greet(communication, at, wish)? {
            (server, Welcome::Session { inventory, token }) => (server, inventory, token),
            (_, Welcome::Refused(reason)) => return Err(ConnectError::Refused(at.clone(), reason)),
            _ => return Err(ConnectError::Stranger(at.clone())),
        };
        let is_local = server.socket().is_some_and(Socket::is_local);
        let stripes = match is_local {
            true => Stripes::default(),
            false => open_stripes(communication, at, token, options.stripes),
        };
        let descriptors = Arc::new(Waiting::default());
        let receiver = Receiver::new(server.clone(), descriptors.clone());
        let connection = Arc::new(ServerConnection {
            reader: Mutex::new(BufReader::with_capacity(16 << 10, receiver)),
            descriptors,
            server,
            stripes,
            inline_bytes: options.inline_bytes,
            endpoint: at.clone(),
            inventory,
            outbox: Mutex::default(),
            filled: Condvar::new(),
            inbox: Mutex::default(),
            answered: Condvar::new(),
            is_ending: AtomicBool::new(false),
            counters: Counters::default(),
        });
        let flusher = connection.clone();
        std::thread::Builder::new()
            .name("rgaps-gpu-send".to_owned())
            .spawn(move || flusher.flush_idle_batches())
            .map_err(|error| ConnectError::Unreachable(at.clone(), error))?;
        let silent = Arc::downgrade(&connection);
        let main = std::slice::from_ref(&connection.server);
        let connections = [main, connection.stripes.all()].concat();
        watch(&connections, move || {
            if let Some(connection) = silent.upgrade() {
                connection.lose();
            }
        })
        .map_err(|error| ConnectError::Unreachable(at.clone(), error))?;
        Ok(connection)
    }

    /// The server's GPUs.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Where the server is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether the server is on this host, and can share memory with the client.
    pub fn is_local(&self) -> bool {
        self.server.socket().is_some_and(Socket::is_local)
    }

    /// Whether the connection has failed.
    pub fn is_lost(&self) -> bool {
        lock(&self.outbox).is_lost
    }

    /// Ends the session.
    pub fn close(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.lose();
        self.filled.notify_all();
    }

    /// Makes a call that nobody waits for, with bytes behind it. The caller may change them when this returns.
    pub fn send(&self, from: From, call: &Call<'_>, bulk: &[u8]) -> Result<(), Lost> {
        let mut outbox = lock(&self.outbox);
        let was_empty = outbox.batch.is_empty();
        self.append(&mut outbox, from, QUIET, call, bulk)?;
        if was_empty && !outbox.batch.is_empty() {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Makes a call that nobody waits for, and writes the batch at once: for a caller that has other work to do meanwhile.
    pub fn send_now(&self, from: From, call: &Call<'_>) -> Result<(), Lost> {
        let mut outbox = lock(&self.outbox);
        self.append(&mut outbox, from, QUIET, call, &[])?;
        self.flush(&mut outbox)
    }

    /// Makes a call and waits for the answer.
    pub fn call(&self, from: From, call: &Call<'_>, bulk: &[u8]) -> Result<CallAnswer, Lost> {
        let waited = self.begin(from, call, bulk, None, |_, _| ())?;
        self.finish(waited).map(|(answer, _)| answer)
    }

    /// Makes a call for whose answer [`finish`](Self::finish) waits, so that other calls can be made meanwhile.
    pub fn start(&self, from: From, call: &Call<'_>) -> Result<Waited, Lost> {
        self.begin(from, call, &[], None, |_, _| ())
    }

    /// Makes a call that gives bytes, and waits for them. They are at `to` when this returns, unless the answer has an error.
    ///
    /// # Safety
    /// `bytes` bytes at `to` may be written, by any thread, until this returns.
    pub unsafe fn call_out(
        &self,
        from: From,
        call: &Call<'_>,
        to: *mut u8,
        bytes: usize,
    ) -> Result<CallAnswer, Lost> {
        let waited = self.begin(
            from,
            call,
            &[],
            Some(Target { start: to, bytes }),
            |_, _| (),
        )?;
        self.finish(waited).map(|(answer, _)| answer)
    }

    pub(crate) fn begin(
        &self,
        from: From,
        call: &Call<'_>,
        bulk: &[u8],
        target: Option<Target>,
        note: impl FnOnce(&mut Inbox, u64),
    ) -> Result<Waited, Lost> {
        let mut outbox = lock(&self.outbox);
        // Noted before the call is sent, so that the thread that reads the answer finds it.
        let mut inbox = lock(&self.inbox);
        inbox.wanted.insert(outbox.request, target);
        note(&mut inbox, outbox.request);
        drop(inbox);
        let request = outbox.request;
        let sent = self.append(&mut outbox, from, 0, call, bulk);
        let sent = sent.and_then(|_| self.flush(&mut outbox));
        drop(outbox);
        if sent.is_err() {
            self.forget(request);
        }
        sent.map(|()| Waited {
            request,
            thread: from.thread,
        })
    }

    /// Forgets a call that could not be sent. A server that answered it before it had all of it may have a thread write to the caller's
    /// memory: that has ended when this returns.
    fn forget(&self, request: u64) {
        let mut inbox = lock(&self.inbox);
        inbox.wanted.remove(&request);
        while inbox.is_read {
            let waited = self.answered.wait(inbox);
            inbox = waited.unwrap_or_else(PoisonError::into_inner);
        }
        inbox.answers.remove(&request);
    }

    /// Waits for an answer, and takes the descriptor that came with it.
    pub fn finish(&self, waited: Waited) -> Result<(CallAnswer, Option<OwnedFd>), Lost> {
        add(&self.counters.round_trips, 1);
        let (mut answer, descriptor) = self.answer(waited.request)?;
        if answer.deferred == 0 {
            answer.deferred = lock(&self.inbox)
                .expected_copies
                .error(waited.thread)
                .unwrap_or(0);
        }
        Ok((answer, descriptor))
    }

    /// Appends a frame to the batch; gives its number.
    fn append(
        &self,
        outbox: &mut Outbox,
        from: From,
        flags: u16,
        call: &Call<'_>,
        bulk: &[u8],
    ) -> Result<u64, Lost> {
        if outbox.is_lost {
            return Err(Lost);
        }
        let request = outbox.request;
        outbox.request += 1;
        let start = outbox.batch.len();
        outbox.batch.extend_from_slice(&[0; HEADER_BYTES]);
        let batch = std::mem::take(&mut outbox.batch);
        outbox.batch = postcard::to_extend(call, batch).map_err(|_| self.lose_holding(outbox))?;
        let length = outbox.batch.len() - start - HEADER_BYTES;
        if length > BODY_BYTES_MAX {
            outbox.batch.truncate(start);
            return Err(self.lose_holding(outbox));
        }
        let stripes = match call {
            Call::CopyIn { .. } => self.stripes.wanted(bulk.len() as u64),
            _ => 0,
        };
        let header = FrameHeader {
            length: length as u32,
            flags: flags | FrameHeader::striped(stripes),
            thread: from.thread,
            device: from.device,
            request,
            bulk: bulk.len() as u64,
        };
        outbox.batch[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
        add(&self.counters.calls, 1);
        if stripes > 0 {
            self.flush(outbox)?;
            add(&self.counters.bytes_out, bulk.len() as u64);
            self.stripes
                .write(bulk, &self.counters.writes)
                .map_err(|_| self.lose_holding(outbox))?;
        } else if bulk.len() <= self.inline_bytes {
            outbox.batch.extend_from_slice(bulk);
            if outbox.batch.len() >= BATCH_BYTES {
                self.flush(outbox)?;
            }
        } else {
            self.write(outbox, bulk)?;
        }
        Ok(request)
    }

    fn flush(&self, outbox: &mut Outbox) -> Result<(), Lost> {
        match outbox.batch.is_empty() {
            true => Ok(()),
            false => self.write(outbox, &[]),
        }
    }

    /// Writes the batch and bytes behind it.
    fn write(&self, outbox: &mut Outbox, bulk: &[u8]) -> Result<(), Lost> {
        let result = write_all(&*self.server, [&outbox.batch, bulk]);
        add(
            &self.counters.bytes_out,
            (outbox.batch.len() + bulk.len()) as u64,
        );
        outbox.batch.clear();
        match result {
            Ok(calls) => {
                add(&self.counters.writes, calls);
                Ok(())
            }
            Err(_) => Err(self.lose_holding(outbox)),
        }
    }

    /// Runs on a thread of its own: sends batches of programs that do not wait for anything.
    fn flush_idle_batches(&self) {
        let mut outbox = lock(&self.outbox);
        while !outbox.is_lost && !self.is_ending.load(Ordering::Acquire) {
            if outbox.batch.is_empty() {
                outbox = self
                    .filled
                    .wait(outbox)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(outbox);
            std::thread::sleep(BATCH_DELAY);
            outbox = lock(&self.outbox);
            // Callers get the loss from their next call.
            let _ = self.flush(&mut outbox);
        }
    }

    /// Waits for an answer; reads for all threads that wait, if no other does.
    fn answer(&self, request: u64) -> Result<(CallAnswer, Option<OwnedFd>), Lost> {
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some(answer) = inbox.answers.remove(&request) {
                return Ok(answer);
            }
            if inbox.is_lost {
                inbox.wanted.remove(&request);
                // A reader may still write to this caller's memory.
                if !inbox.is_read {
                    return Err(Lost);
                }
            }
            inbox = self.read_or_wait(inbox);
        }
    }

    /// Reads one answer, if no other thread reads; else waits until one has read an answer.
    pub(crate) fn read_or_wait<'a>(
        &'a self,
        mut inbox: MutexGuard<'a, Inbox>,
    ) -> MutexGuard<'a, Inbox> {
        if inbox.is_read {
            return self
                .answered
                .wait(inbox)
                .unwrap_or_else(PoisonError::into_inner);
        }
        inbox.is_read = true;
        drop(inbox);
        let result = self.read_one();
        inbox = lock(&self.inbox);
        inbox.is_read = false;
        match result {
            Ok((of, answer, descriptor)) => {
                if !inbox.expected_copies.take(of, &answer) {
                    inbox.answers.insert(of, (answer, descriptor));
                }
            }
            Err(_) => inbox.is_lost = true,
        }
        if inbox.is_lost {
            inbox.expected_copies.lose();
            drop(inbox);
            self.lose();
            inbox = lock(&self.inbox);
        }
        self.answered.notify_all();
        inbox
    }

    /// Reads one answer, and the bytes behind it to the caller's memory.
    fn read_one(&self) -> io::Result<(u64, CallAnswer, Option<OwnedFd>)> {
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        let mut reader = lock(&self.reader);
        if let (true, Some(socket)) = (reader.buffer().is_empty(), self.server.socket()) {
            socket.spin();
        }
        let mut bytes = [0; HEADER_BYTES];
        reader.read_exact(&mut bytes)?;
        let header = FrameHeader::decode(&bytes).map_err(|_| broken())?;
        let mut body = vec![0; header.length as usize];
        reader.read_exact(&mut body)?;
        let answer: CallAnswer = postcard::from_bytes(&body).map_err(|_| broken())?;
        let descriptor = match answer.value {
            CallValue::Memory if self.is_local() => {
                Some(self.descriptors.take().ok_or_else(broken)?)
            }
            _ => None,
        };
        let target = lock(&self.inbox)
            .wanted
            .remove(&header.request)
            .ok_or_else(broken)?;
        add(
            &self.counters.bytes_in,
            (HEADER_BYTES + body.len()) as u64 + header.bulk,
        );
        match target {
            None if header.bulk == 0 => {}
            Some(_) if header.bulk == 0 => {}
            Some(target) if header.bulk == target.bytes as u64 && header.stripes() > 0 => {
                let (count, to) = (header.stripes(), (target.start, target.bytes));
                // SAFETY: the caller of `call_out` or `call_out_async` registered `target` and lets any thread write there until the
                // answer is handed over or nobody reads any more (`is_read`). This thread does either only after `read`, which joins all
                // stripes' threads.
                unsafe { self.stripes.read(count, to, &self.counters.reads)? };
            }
            Some(target) if header.bulk == target.bytes as u64 => {
                // SAFETY: the caller of `call_out` or `call_out_async` registered `target` and lets any thread write there until the
                // answer is handed over or nobody reads any more (`is_read`). This thread does either only after it has read. Nobody else
                // has the range: the target was taken out of `wanted`.
                let to = unsafe { std::slice::from_raw_parts_mut(target.start, target.bytes) };
                reader.read_exact(to)?;
            }
            _ => return Err(broken()),
        }
        add(&self.counters.reads, reader.get_mut().take_calls());
        Ok((header.request, answer, descriptor))
    }

    fn lose_holding(&self, outbox: &mut Outbox) -> Lost {
        outbox.is_lost = true;
        outbox.batch.clear();
        self.server.close();
        self.stripes.close();
        // The thread that reads sees the end, and wakes the others.
        Lost
    }

    fn lose(&self) {
        self.server.close();
        self.stripes.close();
        let mut outbox = lock(&self.outbox);
        outbox.is_lost = true;
        outbox.batch.clear();
        drop(outbox);
        lock(&self.inbox).is_lost = true;
        self.answered.notify_all();
        self.filled.notify_all();
    }
}

impl std::fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}
