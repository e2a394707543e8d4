//! The server: it greets strangers and starts a backend for each client. It makes no call of CUDA itself but to name the GPUs.
//!
//! Each connection has a thread that waits for its hello, for a limited time. The main thread starts backends, since the kernel ends a
//! backend with the thread that started it (`PR_SET_PDEATHSIG`). A backend has the connection as its standard input and a file for its
//! counters as its standard output; so no descriptor needs a number.

use crate::backend::hand_over;
use crate::board::Counts;
use crate::call::{ClientInfo, Hello, ServerStatus, Welcome, Wish, MAGIC, PROTOCOL};
use crate::communicator::{read_exact, write_all, Communication, Communicator, Deadline, Endpoint};
use crate::frame::{FrameHeader, HEADER_BYTES};
use crate::limits::{HELLO_TIMEOUT, STRANGERS_MAX};
use crate::relay::relay;
use rgaps_sync::lock;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often ended backends are looked for.
const REAP_INTERVAL: Duration = Duration::from_millis(100);
/// How long to wait when no connection can be taken, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest name of a program that is shown.
const PROGRAM_CHARS_MAX: usize = 128;

/// How a server serves.
#[derive(Debug, Clone)]
pub struct FrontOptions {
    /// Where it listens.
    pub listen: Vec<Endpoint>,
    /// How its connections are made, and who may connect.
    pub communication: Communication,
    /// Most clients at a time.
    pub clients_max: u32,
    /// Most bytes of GPU memory of a client.
    pub memory_limit: Option<u64>,
    /// Whether backends pin memory of this host.
    pub is_pinning: bool,
    /// A folder where backends keep images of libraries.
    pub images: Option<PathBuf>,
    /// The program of backends, and its arguments. The server appends those that give [`BackendOptions`](crate::BackendOptions).
    pub backend: (PathBuf, Vec<OsString>),
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// It cannot listen.
    #[error("cannot listen at {0}: {1}")]
    Listen(Endpoint, io::Error),
    /// There is no usable driver.
    #[error("no GPU to serve: {0}")]
    NoGpu(String),
    /// The system refuses something.
    #[error("the server cannot go on: {0}")]
    System(#[from] io::Error),
}

struct Client {
    child: Child,
    info: ClientInfo,
    board: File,
}

struct Shared {
    devices: Vec<String>,
    options: FrontOptions,
    clients: Mutex<Vec<Client>>,
    strangers: AtomicUsize,
}

/// A client that has said hello.
struct Arrival {
    client: Arc<dyn Communicator>,
    program: String,
    pid: u32,
    server: u8,
}

/// A server that listens.
pub struct Front {
    shared: Arc<Shared>,
    listeners: Vec<Arc<dyn Communicator>>,
}

impl Front {
    /// Looks for GPUs and listens.
    pub fn open(options: FrontOptions) -> Result<Front, FrontError> {
        let driver =
            rgaps_cuda::Driver::load().map_err(|error| FrontError::NoGpu(error.to_string()))?;
        let devices = driver
            .devices()
            .map_err(|error| FrontError::NoGpu(error.to_string()))?;
        let bind = |at: &Endpoint| {
            let listen = || {
                let listener = options.communication.communicator(at)?;
                listener.serve().map(|()| listener)
            };
            listen().map_err(|error| FrontError::Listen(at.clone(), error))
        };
        let listeners = options.listen.iter().map(bind).collect::<Result<_, _>>()?;
        Ok(Front {
            listeners,
            shared: Arc::new(Shared {
                devices: devices.into_iter().map(|device| device.name).collect(),
                options,
                clients: Mutex::default(),
                strangers: AtomicUsize::new(0),
            }),
        })
    }

    /// The names of the GPUs.
    pub fn devices(&self) -> &[String] {
        &self.shared.devices
    }

    /// Where it listens.
    pub fn endpoints(&self) -> Vec<String> {
        self.listeners.iter().map(|at| at.to_string()).collect()
    }

    /// Serves until the process ends. Called on the main thread: backends end with the thread that calls this.
    pub fn serve(self) -> Result<(), FrontError> {
        let (arrive, arrivals) = channel();
        for listener in self.listeners {
            let (shared, arrive) = (self.shared.clone(), arrive.clone());
            std::thread::Builder::new()
                .name("accept".to_owned())
                .spawn(move || accept(&*listener, &shared, &arrive))?;
        }
        drop(arrive);
        self.shared.run(&arrivals);
        Ok(())
    }
}

fn accept(listener: &dyn Communicator, shared: &Arc<Shared>, arrive: &Sender<Arrival>) {
    loop {
        let client = match listener.accept() {
            Ok(client) => client,
            Err(error) => {
                tracing::debug!(%error, "no connection taken");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if shared.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS_MAX {
            // Closes the connection: there are too many that have not said hello.
            shared.strangers.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (greeter, arrive) = (shared.clone(), arrive.clone());
        let body = move || {
            let arrival = greeter.greet(client);
            greeter.strangers.fetch_sub(1, Ordering::AcqRel);
            match arrival {
                Ok(Some(arrival)) => drop(arrive.send(arrival)),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a stranger said no hello"),
            }
        };
        let spawned = std::thread::Builder::new()
            .name("greet".to_owned())
            .spawn(body);
        if spawned.is_err() {
            shared.strangers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Shared {
    /// Reads a hello; answers one that begins no session.
    fn greet(&self, client: Arc<dyn Communicator>) -> io::Result<Option<Arrival>> {
        let _deadline = Deadline::new(client.clone(), HELLO_TIMEOUT)?;
        let mut bytes = [0; HEADER_BYTES];
        read_exact(&*client, &mut bytes)?;
        let header = FrameHeader::decode(&bytes).map_err(io::Error::other)?;
        // A hello is a name and a few numbers.
        if header.length > 4096 {
            return Err(io::Error::other("a hello that is too long"));
        }
        let mut body = vec![0; header.length as usize];
        read_exact(&*client, &mut body)?;
        let hello: Hello = postcard::from_bytes(&body).map_err(io::Error::other)?;
        if hello.magic != MAGIC {
            return Err(io::Error::other("a hello of something else"));
        }
        if hello.protocol != PROTOCOL {
            refuse(&client, "it speaks another version of the protocol; install the same version of rgaps on both hosts")?;
            return Ok(None);
        }
        if let Err(reason) = client.admit() {
            tracing::warn!(from = client.to_string(), reason, "client refused");
            refuse(&client, &reason)?;
            return Ok(None);
        }
        match hello.wish {
            Wish::Status => {
                answer(&*client, &Welcome::Status(self.status()))?;
                Ok(None)
            }
            Wish::Stripe { token, index } => {
                let (kind, connection) = connection_of(&client)?;
                match hand_over(&token, index, kind, connection.as_fd()) {
                    Ok(()) => answer(&*client, &Welcome::Stripe)?,
                    Err(_) => refuse(&client, "the session is not there any more")?,
                }
                Ok(None)
            }
            Wish::Session {
                program,
                pid,
                server,
            } => {
                let program = program.chars().filter(|c| !c.is_control());
                Ok(Some(Arrival {
                    client,
                    program: program.take(PROGRAM_CHARS_MAX).collect(),
                    pid,
                    server,
                }))
            }
        }
    }

    fn status(&self) -> ServerStatus {
        let clients = lock(&self.clients);
        let client = |client: &Client| {
            let counts = Counts::read(&client.board);
            ClientInfo {
                calls: counts.calls,
                bytes_in: counts.bytes_in,
                bytes_out: counts.bytes_out,
                memory_bytes: counts.memory_bytes,
                waited_ns: counts.waited_ns,
                ..client.info.clone()
            }
        };
        ServerStatus {
            devices: self.devices.clone(),
            clients: clients.iter().map(client).collect(),
            clients_max: self.options.clients_max,
        }
    }

    fn run(&self, arrivals: &Receiver<Arrival>) {
        loop {
            match arrivals.recv_timeout(REAP_INTERVAL) {
                Ok(arrival) => {
                    self.reap();
                    self.admit(arrival);
                }
                Err(RecvTimeoutError::Timeout) => self.reap(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn reap(&self) {
        lock(&self.clients).retain_mut(|client| match client.child.try_wait() {
            Ok(Some(status)) => {
                tracing::info!(client = client.info.program, %status, "client left");
                false
            }
            _ => true,
        });
    }

    fn admit(&self, arrival: Arrival) {
        let taken = lock(&self.clients).len();
        if taken >= self.options.clients_max as usize {
            let reason = format!(
                "it is full: {taken} clients, which is its limit (rgaps gpu serve --clients)"
            );
            // A client that does not listen is closed.
            let _ = refuse(&arrival.client, &reason);
            return;
        }
        let from = arrival.client.to_string();
        let (program, pid) = (arrival.program, arrival.pid);
        match self.start(&arrival.client, &program, arrival.server) {
            Ok((child, board)) => {
                tracing::info!(client = program, from, backend = child.id(), "client came");
                let info = ClientInfo {
                    backend: child.id(),
                    program,
                    pid,
                    from,
                    ..ClientInfo::default()
                };
                lock(&self.clients).push(Client { child, info, board });
            }
            Err(error) => tracing::warn!(%error, "no backend started"),
        }
    }

    fn start(
        &self,
        client: &Arc<dyn Communicator>,
        client_program: &str,
        server: u8,
    ) -> io::Result<(Child, File)> {
        let board = board_file()?;
        let (program, arguments) = &self.options.backend;
        let (kind, input) = connection_of(client)?;
        let mut command = Command::new(program);
        command.args(arguments).args(["--kind", kind]);
        command.args(["--parent", &std::process::id().to_string()]);
        command.args(["--program", client_program]);
        command.args(["--server", &server.to_string()]);
        if !self.options.is_pinning {
            command.arg("--no-pinning");
        }
        if let Some(limit) = self.options.memory_limit {
            command.args(["--memory-bytes", &limit.to_string()]);
        }
        if let Some(folder) = &self.options.images {
            command.arg("--images").arg(folder);
        }
        // SAFETY: it makes two system calls and touches no memory, so it may run between fork and exec.
        unsafe { command.pre_exec(map_apart) };
        let output: OwnedFd = board.as_fd().try_clone_to_owned()?;
        let child = command
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .spawn();
        if child.is_err() {
            refuse(client, "it cannot start a backend process")?;
        }
        Ok((child?, board))
    }
}

/// Has the kernel place a process's mappings from a third of the address space upwards. Clients reserve the addresses of their device
/// memory, and their own mappings lie at the upper end: in the usual layout one of a thousand clients found them taken. Where a sandbox
/// forbids it, the layout stays the usual one.
fn map_apart() -> io::Result<()> {
    const READ: libc::c_ulong = 0xffff_ffff;
    // SAFETY: both calls change or read a number of this process.
    unsafe {
        let flags = libc::personality(READ);
        if flags >= 0 {
            libc::personality(flags as libc::c_ulong | libc::ADDR_COMPAT_LAYOUT as libc::c_ulong);
        }
    }
    Ok(())
}

/// The socket of a client for its backend, and its kind.
fn connection_of(client: &Arc<dyn Communicator>) -> io::Result<(&'static str, OwnedFd)> {
    Ok(match client.socket() {
        Some(socket) => (socket.kind(), socket.as_fd().try_clone_to_owned()?),
        None => ("relay", relay(client.clone())?),
    })
}

/// A file without a name, for a backend's counters.
fn board_file() -> io::Result<File> {
    // SAFETY: the name is a C string.
    let number = unsafe { libc::memfd_create(c"rgaps-gpu-board".as_ptr(), libc::MFD_CLOEXEC) };
    match number < 0 {
        true => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor was just made, and nobody else knows it.
        false => Ok(File::from(unsafe { crate::socket::inherited(number) })),
    }
}

fn answer(client: &dyn Communicator, welcome: &Welcome) -> io::Result<()> {
    let body = postcard::to_stdvec(welcome).map_err(io::Error::other)?;
    let header = FrameHeader {
        length: body.len() as u32,
        ..FrameHeader::default()
    };
    write_all(client, [&header.encode(), &body]).map(drop)
}

fn refuse(client: &Arc<dyn Communicator>, reason: &str) -> io::Result<()> {
    // A client that does not listen is closed.
    let _deadline = Deadline::new(client.clone(), HELLO_TIMEOUT)?;
    answer(&**client, &Welcome::Refused(reason.to_owned()))
}
