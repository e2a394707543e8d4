//! A process that makes the calls of one client, and ends with it.
//!
//! Several threads share the connection. One at a time, the reader, takes frames in the order in which they came, and makes
//! their calls. If a call waits for the GPU, the thread that took it releases the reader's lock and waits; another thread goes
//! on reading ("leader and followers"). So the driver sees calls in the client's order, and no thread waits for another's GPU
//! work.
mod apart;
mod api;
mod array_calls;
mod arrays;
mod async_copies;
mod copies;
mod functions;
mod graphs;
mod handles;
mod images;
mod inventory;
mod jobs;
mod kernels;
mod math;
mod math_call;
mod math_libraries;
mod memory;
mod pools;
mod regions;
mod rows;
mod session;
mod shared;
mod staging;
mod stripes;
mod topic_calls;
mod topics;

pub(crate) use stripes::hand_over;

use crate::board::{Counts, WaitingTime};
use crate::call::{Call, CallAnswer, CallValue, Welcome};
use crate::codes::Code;
use crate::communicator::silence::Silence;
use crate::descriptor;
use crate::extent::row;
use crate::frame::{FrameHeader, Violation, HEADER_BYTES};
use crate::limits::{
    CLIENT_THREADS_MAX, IMAGE_BYTES_MAX, SILENCE_LOOK, STRIPED_BYTES_MIN, STRIPES_MAX,
};
use crate::pieces::stripe;
use crate::socket::{write_all, write_memory, Socket};
use crate::stripes::each;
use api::{cu, Api};
use async_copies::AsyncCopies;
use images::Images;
use jobs::{Job, Refused};
use rgaps_cuda::Library;
use rgaps_session::Config;
use rgaps_sync::lock;
use session::{Outcome, Session};
use staging::Staging;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stripes::Stripes;
use topics::Topics;

const READ_BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a piece when bytes are read and thrown away.
const DRAIN_BYTES: usize = 64 << 10;
/// Stack of the threads that make calls: as much as a main thread usually has, since libraries compile code on them.
const STACK_BYTES: usize = 8 << 20;
/// How often the server's copy of the counters is renewed.
const BOARD_INTERVAL: Duration = Duration::from_millis(200);

/// How a backend is to serve.
#[derive(Debug)]
pub struct BackendOptions {
    /// Most bytes of GPU memory that the client may hold.
    pub memory_limit: Option<u64>,
    /// Whether it pins memory of this host.
    pub is_pinning: bool,
    /// A folder for images of libraries, which the backends of a server share.
    pub images: Option<PathBuf>,
    /// The configuration of this host, for topics.
    pub config: Config,
    /// The client's program.
    pub program: String,
    /// Which of the client's servers this one is.
    pub server: u8,
    /// The process that started this one, which it does not outlive.
    pub parent: u32,
}

/// Why a backend ended before its client.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The client does not keep to the protocol.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// The connection failed.
    #[error("the connection to the client failed: {0}")]
    Connection(#[from] io::Error),
}

/// The state that only the reader uses.
struct Core {
    reader: BufReader<Reading>,
    session: Session,
    staging: Option<Staging>,
    /// The first failed quiet call of each of the client's threads, until an answer reports it.
    deferred: HashMap<u16, Code>,
}

struct Shared {
    api: Arc<Api>,
    socket: Arc<Socket>,
    core: Mutex<Core>,
    async_copies: Arc<AsyncCopies>,
    /// Held while an answer is written.
    writing: Mutex<()>,
    stripes: Arc<Stripes>,
    /// Staging buffers that no thread uses.
    spare: Mutex<Vec<Staging>>,
    /// Threads that wait to read.
    idle: AtomicUsize,
    threads: AtomicUsize,
    calls: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    memory_bytes: AtomicU64,
    waiting: WaitingTime,
}

struct Reading(Arc<Socket>);

impl Read for Reading {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(to)
    }
}

/// Serves the client until it leaves. The client has said hello.
pub fn run(socket: Socket, board: File, options: &BackendOptions) -> Result<(), BackendError> {
    end_with_parent(options.parent);
    let socket = Arc::new(socket);
    let (api, inventory) = match start(options) {
        Ok(started) => started,
        Err(reason) => {
            greet(&socket, &Welcome::Refused(reason))?;
            return Ok(());
        }
    };
    let devices = inventory.devices.len();
    let stripes = Arc::new(Stripes::default());
    let token = stripes.listen(options.parent)?;
    greet(&socket, &Welcome::Session { inventory, token })?;
    end_with_client(socket.clone(), stripes.clone())?;
    let async_copies = Arc::new(AsyncCopies::default());
    let images = Images::new(options.images.clone());
    let session = Session::new(
        api.clone(),
        devices,
        options.memory_limit,
        (async_copies.clone(), images),
        Topics::new(options.config.clone(), &options.program),
    );
    let shared = Arc::new(Shared {
        core: Mutex::new(Core {
            reader: BufReader::with_capacity(READ_BUFFER_BYTES, Reading(socket.clone())),
            session,
            staging: None,
            deferred: HashMap::new(),
        }),
        api,
        async_copies,
        socket,
        writing: Mutex::default(),
        stripes,
        spare: Mutex::default(),
        idle: AtomicUsize::new(0),
        threads: AtomicUsize::new(1),
        calls: AtomicU64::new(0),
        bytes_in: AtomicU64::new(0),
        bytes_out: AtomicU64::new(0),
        memory_bytes: AtomicU64::new(0),
        waiting: WaitingTime::default(),
    });
    let counted = shared.clone();
    std::thread::Builder::new()
        .name("board".to_owned())
        .spawn(move || counted.show(&board))?;
    shared.serve()
}

fn start(options: &BackendOptions) -> Result<(Arc<Api>, crate::call::Inventory), String> {
    apart::keep_from_others(options.server);
    let library = Library::driver()?;
    let mut api = Api::resolve(&library);
    if !options.is_pinning {
        // As with a driver that cannot pin memory.
        api.host_register = None;
    }
    let api = Arc::new(api);
    let failed = |code: Code| format!("its CUDA driver gives error {}", code.0);
    // SAFETY: cuInit takes 0.
    unsafe { cu!(api, init(0)) }.map_err(failed)?;
    let inventory = inventory::inventory(&api, options.memory_limit).map_err(failed)?;
    Ok((api, inventory))
}

fn greet(socket: &Socket, welcome: &Welcome) -> io::Result<()> {
    let body = postcard::to_stdvec(welcome).map_err(io::Error::other)?;
    let header = FrameHeader {
        length: body.len() as u32,
        ..FrameHeader::default()
    };
    write_all(socket, [&header.encode(), &body]).map(drop)
}

/// Has the kernel end this process when the server ends, however that ends.
fn end_with_parent(parent: u32) {
    // SAFETY: the call sets a number of this process; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if std::os::unix::process::parent_id() != parent {
        // The server ended before the call.
        std::process::exit(0);
    }
}

/// Ends this process when the client closes one of its connections or is silent on one, whatever the driver is waiting for.
fn end_with_client(socket: Arc<Socket>, stripes: Arc<Stripes>) -> io::Result<()> {
    let watch = move || {
        let mut silences: [Silence; 1 + STRIPES_MAX] = Default::default();
        loop {
            let connections = [vec![socket.clone()], stripes.here()].concat();
            let hang_up = |connection: &Arc<Socket>| libc::pollfd {
                fd: connection.as_fd().as_raw_fd(),
                events: libc::POLLRDHUP,
                revents: 0,
            };
            let mut polled: Vec<_> = connections.iter().map(hang_up).collect();
            let (count, pause_ms) = (polled.len() as libc::nfds_t, SILENCE_LOOK.as_millis());
            // SAFETY: as many structures as the vector has; the descriptors are open while `connections` is.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), count, pause_ms as libc::c_int) };
            let is_silent = |(connection, silence): (&Arc<Socket>, &mut Silence)| {
                matches!(**connection, Socket::Tcp(_)) && !silence.is_alive(connection.as_fd())
            };
            if ready > 0 || connections.iter().zip(&mut silences).any(is_silent) {
                // Without handlers at exit: the driver's may wait for work that does not end.
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) };
            }
        }
    };
    std::thread::Builder::new()
        .name("hang-up".to_owned())
        .spawn(watch)
        .map(drop)
}

impl Shared {
    fn show(&self, board: &File) {
        let mut last = Counts::default();
        loop {
            let now = Counts {
                calls: self.calls.load(Ordering::Relaxed),
                bytes_in: self.bytes_in.load(Ordering::Relaxed),
                bytes_out: self.bytes_out.load(Ordering::Relaxed),
                memory_bytes: self.memory_bytes.load(Ordering::Relaxed),
                waited_ns: self.waiting.total().as_nanos() as u64,
            };
            if now != last && now.write(board).is_ok() {
                last = now;
            }
            std::thread::sleep(BOARD_INTERVAL);
        }
    }

    /// Takes frames until the connection ends.
    fn serve(self: &Arc<Self>) -> Result<(), BackendError> {
        loop {
            self.idle.fetch_add(1, Ordering::AcqRel);
            let mut core = lock(&self.core);
            self.idle.fetch_sub(1, Ordering::AcqRel);
            let Some((of, job, deferred)) = self.read_until_job(&mut core)? else {
                return Ok(());
            };
            drop(core);
            self.replace_reader()?;
            self.finish(&of, &job, deferred)?;
        }
    }

    /// Ensures that a thread reads while this one waits for the GPU.
    fn replace_reader(self: &Arc<Self>) -> io::Result<()> {
        if self.idle.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        if self.threads.fetch_add(1, Ordering::AcqRel) > usize::from(CLIENT_THREADS_MAX) {
            return Err(io::Error::other("more calls that wait than threads"));
        }
        let shared = self.clone();
        let body = move || {
            if let Err(error) = shared.serve() {
                end(&error);
            }
        };
        std::thread::Builder::new()
            .name("rgaps-gpu-wait".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(body)
            .map(drop)
    }

    /// Makes calls until one has to wait; `None` at the end of the connection.
    fn read_until_job(
        &self,
        core: &mut Core,
    ) -> Result<Option<(FrameHeader, Job, Code)>, BackendError> {
        loop {
            if core.reader.buffer().is_empty() {
                self.socket.spin();
            }
            let mut bytes = [0; HEADER_BYTES];
            match core.reader.read_exact(&mut bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            let of = FrameHeader::decode(&bytes)?;
            let mut body = vec![0; of.length as usize];
            core.reader.read_exact(&mut body)?;
            let call = decode(&body)?;
            self.calls.fetch_add(1, Ordering::Relaxed);
            let bytes = (HEADER_BYTES + body.len()) as u64 + of.bulk;
            self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
            if let Call::CopyShared { extent, is_in, .. } = &call {
                let counter = if *is_in {
                    &self.bytes_in
                } else {
                    &self.bytes_out
                };
                counter.fetch_add(extent.bytes().unwrap_or(0), Ordering::Relaxed);
            }
            let result = self.make(core, &of, &call)?;
            self.memory_bytes
                .store(core.session.memory.used(), Ordering::Relaxed);
            if of.is_quiet() {
                match result {
                    Ok(Outcome::Now(_)) => {}
                    // A call that waits or gives memory cannot be quiet.
                    Ok(Outcome::Later(_) | Outcome::Shared(_)) => {
                        return Err(Violation("a call that waits is quiet").into())
                    }
                    Err(code) => {
                        core.deferred.entry(of.thread).or_insert(code);
                    }
                }
                continue;
            }
            let deferred = core.deferred.remove(&of.thread).unwrap_or(Code::SUCCESS);
            match result {
                Ok(Outcome::Now(value)) => {
                    self.async_copies.settle(&self.api);
                    self.answer(&of, Code::SUCCESS, deferred, value)?;
                }
                Ok(Outcome::Later(job)) => return Ok(Some((of, job, deferred))),
                Ok(Outcome::Shared(memory)) => self.answer_with(&of, deferred, &memory)?,
                Err(code) => self.answer(&of, code, deferred, CallValue::Nothing)?,
            }
        }
    }

    /// Makes a call, and takes the bytes behind it.
    fn make(
        &self,
        core: &mut Core,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Result<Outcome, Code>, BackendError> {
        match call {
            Call::CopyIn { to, stream } if of.stripes() > 0 => {
                self.copy_in_striped(core, of, (*to, *stream))
            }
            Call::CopyIn { to, stream } => {
                let (at, extent) = row(*to, of.bulk);
                self.copy_in(core, of, (at, extent, *stream))
            }
            Call::CopyInRows { to, extent, stream } => {
                if extent.bytes() != Some(of.bulk) {
                    return Err(Violation("rows of another length than the bytes").into());
                }
                self.copy_in(core, of, (*to, *extent, *stream))
            }
            Call::LibraryLoad { library, kernels } => {
                if of.bulk > IMAGE_BYTES_MAX {
                    return Err(Violation("an image over the limit").into());
                }
                // Text ends with a zero, whatever the client sent.
                let mut image = vec![0; of.bulk as usize + 1];
                core.reader.read_exact(&mut image[..of.bulk as usize])?;
                let loaded = core.session.load(of, *library, kernels, &image);
                if loaded.is_ok() {
                    core.session.images.keep(&image[..of.bulk as usize]);
                }
                Ok(loaded.map(Outcome::Now))
            }
            _ if of.stripes() > 0 => Err(Violation("stripes for a call that takes none").into()),
            _ if of.bulk > 0 => Err(Violation("bytes behind a call that takes none").into()),
            _ => {
                if matches!(call, Call::Reset) {
                    core.staging
                        .iter_mut()
                        .for_each(|staging| staging.reset(of.device));
                    lock(&self.spare)
                        .iter_mut()
                        .for_each(|staging| staging.reset(of.device));
                }
                Ok(core.session.dispatch(of, call))
            }
        }
    }

    /// Waits for a job, and answers.
    fn finish(&self, of: &FrameHeader, job: &Job, deferred: Code) -> Result<(), BackendError> {
        let waited = self.waiting.of(|| job.wait(&self.api));
        if let Job::FinishCopy { copy, start, bytes } = job {
            let sent = self.finish_copy(of, deferred, waited, (*start, *bytes));
            self.async_copies.end(copy);
            return Ok(sent?);
        }
        if let Job::Topic(work) = job {
            let (code, value) = match self.waiting.of(work) {
                Ok(value) => (Code::SUCCESS, value),
                Err(Refused { code, reason }) => (code, CallValue::Text(reason)),
            };
            self.async_copies.settle(&self.api);
            return Ok(self.answer(of, code, deferred, value)?);
        }
        let value = match job {
            Job::Function => CallValue::Number(functions::next()),
            Job::Math(prepared) => self.waiting.of(|| prepared.call()),
            _ => CallValue::Nothing,
        };
        self.async_copies.settle(&self.api);
        match (job, waited) {
            (Job::CopyOut(wanted), Ok(())) => self.copy_out(of, wanted, deferred),
            (_, waited) => {
                let code = waited.err().unwrap_or(Code::SUCCESS);
                Ok(self.answer(of, code, deferred, value)?)
            }
        }
    }

    /// Sends the bytes of a region.
    fn finish_copy(
        &self,
        of: &FrameHeader,
        deferred: Code,
        waited: Result<(), Code>,
        (start, bytes): (u64, u64),
    ) -> io::Result<()> {
        let _writing = lock(&self.writing);
        if let Err(code) = waited {
            return self.write(of, code, deferred, CallValue::Nothing, (0, &[]));
        }
        let stripes = self.stripes_for(bytes);
        self.promise(of, deferred, (bytes, stripes.len()))?;
        let send = |to: &Socket, offset: usize, length: usize| {
            // SAFETY: the session checked that the range is inside a region. A client that has given the region back meanwhile makes
            // the write fail, or gets other bytes of its own backend.
            unsafe { write_memory(to, (start as *const u8).wrapping_add(offset), length) }
        };
        if stripes.is_empty() {
            return send(&self.socket, 0, bytes as usize);
        }
        each(stripes.len(), |index| {
            stripe(bytes as usize, index, stripes.len())
                .try_for_each(|(offset, length)| send(&stripes[index], offset, length))
        })
    }

    /// The stripes over which so many bytes travel; none: they travel behind the answer.
    fn stripes_for(&self, bytes: u64) -> Vec<Arc<Socket>> {
        let here = match bytes >= STRIPED_BYTES_MIN {
            true => self.stripes.here(),
            false => Vec::new(),
        };
        match here.len() {
            1 => Vec::new(),
            _ => here,
        }
    }

    /// Writes an answer that says how many bytes follow, and over how many stripes. The caller holds `writing`.
    fn promise(&self, of: &FrameHeader, deferred: Code, promised: (u64, usize)) -> io::Result<()> {
        let frame = frame(of, Code::SUCCESS, deferred, CallValue::Nothing, promised)?;
        self.bytes_out
            .fetch_add(frame.len() as u64 + promised.0, Ordering::Relaxed);
        write_all(&self.socket, [&frame, &[]]).map(drop)
    }

    fn answer(
        &self,
        of: &FrameHeader,
        code: Code,
        deferred: Code,
        value: CallValue,
    ) -> io::Result<()> {
        let _writing = lock(&self.writing);
        self.write(of, code, deferred, value, (0, &[]))
    }

    /// Answers, and sends a descriptor.
    fn answer_with(&self, of: &FrameHeader, deferred: Code, memory: &OwnedFd) -> io::Result<()> {
        let frame = frame(of, Code::SUCCESS, deferred, CallValue::Memory, (0, 0))?;
        let _writing = lock(&self.writing);
        if !self.socket.is_local() {
            return write_all(&self.socket, [&frame, &[]]).map(drop);
        }
        let sent = descriptor::send(self.socket.as_fd(), &frame, memory.as_fd())?;
        write_all(&self.socket, [&frame[sent..], &[]]).map(drop)
    }

    /// Writes an answer and the first of `total` bytes behind it. The caller holds `writing`.
    fn write(
        &self,
        of: &FrameHeader,
        code: Code,
        deferred: Code,
        value: CallValue,
        (total, first): (u64, &[u8]),
    ) -> io::Result<()> {
        let frame = frame(of, code, deferred, value, (total, 0))?;
        self.bytes_out
            .fetch_add(frame.len() as u64 + total, Ordering::Relaxed);
        write_all(&self.socket, [&frame, first]).map(drop)
    }
}

/// Encodes an answer with `bulk` bytes behind it, or over `stripes` stripes if that is not 0.
fn frame(
    of: &FrameHeader,
    code: Code,
    deferred: Code,
    value: CallValue,
    (bulk, stripes): (u64, usize),
) -> io::Result<Vec<u8>> {
    let answer = CallAnswer {
        code: code.0,
        deferred: deferred.0,
        value,
    };
    let mut frame =
        postcard::to_extend(&answer, vec![0; HEADER_BYTES]).map_err(io::Error::other)?;
    let header = FrameHeader {
        length: (frame.len() - HEADER_BYTES) as u32,
        flags: FrameHeader::striped(stripes),
        bulk,
        ..*of
    };
    frame[..HEADER_BYTES].copy_from_slice(&header.encode());
    Ok(frame)
}

/// Ends the process: its client is not served any more.
fn end(error: &BackendError) -> ! {
    tracing::warn!(%error, "a client is not served any more");
    std::process::exit(1);
}

fn decode(body: &[u8]) -> Result<Call<'_>, Violation> {
    postcard::from_bytes(body).map_err(|_| Violation("a call that cannot be read"))
}

/// A call as it crosses the connection, for the fuzzer's corpus.
pub fn encode_for_fuzzing(call: &Call<'_>) -> Vec<u8> {
    let body = postcard::to_stdvec(call).expect("calls can be written");
    let header = FrameHeader {
        length: body.len() as u32,
        ..FrameHeader::default()
    };
    [&header.encode()[..], &body].concat()
}

/// Decodes a header and the call behind it, as a backend does first with a client's bytes; for the fuzzer.
pub fn decode_for_fuzzing(bytes: &[u8]) {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    if let Ok(header) = FrameHeader::decode(header) {
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    }
    if let Ok(call) = decode(body) {
        let again = postcard::to_stdvec(&call).expect("what was read can be written");
        assert_eq!(decode(&again).as_ref(), Ok(&call));
    }
}
