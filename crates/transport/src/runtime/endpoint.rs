//! A daemon's end of all its links: a listener for lanes, the keys of the links that it expects, and the clock's thread.

use super::handshake::{accept_hello, dial_hello, refuse, HelloError, HELLO_LIMIT};
use super::{LinkConfig, LinkRuntime, LinkUser, Peer};
use crate::machine::frame::{Hello, LaneKey};
use crate::machine::FlowReceiver;
use crate::rdma::{Rdma, RdmaError, Registrar, RegistrationTable};
use rgaps_connection::{Connection, Handshakes, Security};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// The time between ticks of links.
const TICK: Duration = Duration::from_millis(10);
/// The time between ticks after [`IDLE_TICKS`] ticks for which nothing waited. [`Shared::hurry`] ends that state.
const TICK_IDLE: Duration = Duration::from_millis(100);
const IDLE_TICKS: u32 = 50;

/// The configuration of an [`Endpoint`].
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// The daemon's incarnation: a number that no earlier one had; not 0.
    pub incarnation: u64,
    /// The realm, as a number that all its daemons derive from its name.
    pub realm: u64,
    /// The address at which it accepts lanes; `None` if this daemon only dials.
    pub listen: Option<SocketAddr>,
    /// Whether lanes have to be encrypted, and with which certificates.
    pub security: Security,
    /// What RDMA lanes need; `None` for no RDMA.
    pub rdma: Option<Rdma>,
}

/// Why making an endpoint or a link failed.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// The endpoint cannot listen at its address.
    #[error(
        "cannot accept lanes at {address}: {error}; {}",
        advice(error, address)
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The incarnation is 0.
    #[error("an incarnation must not be 0")]
    Incarnation,
    /// A thread did not start.
    #[error("starting a thread failed: {0}")]
    Thread(io::Error),
    /// The RDMA configuration is not valid.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// Another link has this key.
    #[error("another link already has this key; each pair of daemons needs its own")]
    Key,
}

fn advice(error: &io::Error, address: &SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another daemon's links or another program has this port ('ss -ltnp' names it): end it, or give this \
             host another one, as in links.listen = \"{}\"",
            SocketAddr::new(address.ip(), address.port().wrapping_add(1).max(1024))
        ),
        io::ErrorKind::AddrNotAvailable => {
            "links.listen must be an address of this host ('ip addr' lists them)".to_owned()
        }
        _ => "choose another address for links.listen".to_owned(),
    }
}

/// The state that an endpoint and its links share.
pub(crate) struct Shared {
    pub(crate) config: EndpointConfig,
    /// Memory that is registered with the rails.
    pub(crate) registered: Arc<RegistrationTable>,
    links: Mutex<HashMap<LaneKey, Weak<LinkRuntime>>>,
    /// The number of the last machine of a link.
    machines: AtomicU64,
    /// How many connections were refused in the handshake, and why the last one was, until somebody takes the reason.
    refused: Mutex<(u64, Option<String>)>,
    handshakes: Handshakes,
    closing: Mutex<bool>,
    /// The clock ticks slowly. Clearing this and notifying `clock` brings the next tick soon.
    slow: AtomicBool,
    clock: Condvar,
}

impl Shared {
    /// A number that no machine of this endpoint has had.
    pub(crate) fn next_machine(&self) -> u64 {
        self.machines.fetch_add(1, Relaxed) + 1
    }

    fn link(&self, key: &LaneKey) -> Option<Arc<LinkRuntime>> {
        self.lock_links().get(key)?.upgrade()
    }

    fn all(&self) -> Vec<Arc<LinkRuntime>> {
        let links = self.lock_links();
        links.values().filter_map(Weak::upgrade).collect()
    }

    /// A link waits for a tick: the clock ticks fast again.
    pub(crate) fn hurry(&self) {
        if self.slow.load(SeqCst) && self.slow.swap(false, SeqCst) {
            // Taking the lock once ensures that the clock's thread either has not checked `slow` yet or waits already.
            drop(self.closing.lock());
            self.clock.notify_all();
        }
    }

    fn lock_refused(&self) -> MutexGuard<'_, (u64, Option<String>)> {
        self.refused.lock().expect("nobody panics with it")
    }

    fn lock_links(&self) -> MutexGuard<'_, HashMap<LaneKey, Weak<LinkRuntime>>> {
        self.links.lock().expect("nobody panics with it")
    }

    fn is_closing(&self) -> bool {
        *self.closing.lock().expect("nobody panics with it")
    }

    /// Makes a lane's connection from a TCP connection, encrypted if the configuration demands that. `dials`: the name of the peer if
    /// this end opened it; `None` if the peer did, which names itself later.
    fn connection(&self, tcp: TcpStream, dials: Option<&str>) -> Result<Connection, HelloError> {
        let mut connection = Connection::plain(tcp)?;
        match &self.config.security {
            Security::Loopback if !connection.is_loopback() => {
                let why = format!("{} is another host, and lanes between hosts need TLS; configure certificates, or set insecure = true", connection.peer());
                return Err(HelloError::Refused(why));
            }
            Security::Tls(tls) => connection.encrypt(tls, dials, HELLO_LIMIT)?,
            Security::Loopback | Security::Insecure => {}
        }
        Ok(connection)
    }

    /// Handles a connection that a peer opened: finds the link by the key in HELLO.
    fn accept(&self, tcp: TcpStream) -> Result<(), HelloError> {
        let connection = self.connection(tcp, None)?;
        let other = accept_hello(&connection, self.config.incarnation, self.config.realm)?;
        match self.link(&other.key) {
            Some(link) => link.accepted(connection, &other),
            None => Err(refuse(&connection, "key", "a link's", "an unknown one")),
        }
    }

    /// Opens one lane of a link.
    fn dial(
        &self,
        link: &Arc<LinkRuntime>,
        address: SocketAddr,
        own: &Hello,
    ) -> Result<(), HelloError> {
        let tcp = TcpStream::connect_timeout(&address, HELLO_LIMIT)?;
        let connection = self.connection(tcp, Some(&link.name))?;
        let other = dial_hello(&connection, own)?;
        link.dialled(connection, own, &other)
    }
}

/// A daemon's end of all its links. Dropping it ends the listener and closes all its links.
pub struct Endpoint {
    shared: Arc<Shared>,
    listener: Option<Arc<TcpListener>>,
    threads: Vec<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts the listener, if the configuration has an address for it, and the clock.
    pub fn new(config: EndpointConfig) -> Result<Self, EndpointError> {
        if config.incarnation == 0 {
            return Err(EndpointError::Incarnation);
        }
        config.rdma.as_ref().map_or(Ok(()), Rdma::check)?;
        let listen = |address| {
            let listener = TcpListener::bind(address).map(Arc::new);
            listener.map_err(|error| EndpointError::Listen { address, error })
        };
        let listener = config.listen.map(listen).transpose()?;
        let shared = Arc::new(Shared {
            config,
            registered: Arc::default(),
            links: Mutex::default(),
            machines: AtomicU64::new(0),
            refused: Mutex::default(),
            handshakes: Handshakes::default(),
            closing: Mutex::new(false),
            slow: AtomicBool::new(false),
            clock: Condvar::new(),
        });
        let mut endpoint = Self {
            shared: Arc::clone(&shared),
            listener: listener.clone(),
            threads: Vec::new(),
        };
        if let Some(listener) = listener {
            let shared = Arc::clone(&shared);
            let accepts = spawn("lanes-accept", move || accept_all(&shared, &listener))?;
            endpoint.threads.push(accepts);
        }
        let ticks = spawn("lanes-clock", move || tick_all(&shared))?;
        endpoint.threads.push(ticks);
        Ok(endpoint)
    }

    /// The address at which the endpoint accepts lanes.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr().ok()
    }

    /// How many connections were refused in the handshake so far.
    pub fn refused(&self) -> u64 {
        self.shared.lock_refused().0
    }

    /// Returns a handle that registers memory with the rails.
    pub fn registrar(&self) -> Registrar {
        Registrar {
            rdma: self.shared.config.rdma.clone(),
            table: Arc::clone(&self.shared.registered),
        }
    }

    /// Takes the reason why the last lane was refused. Each reason is returned once.
    pub fn take_refusal(&self) -> Option<String> {
        self.shared.lock_refused().1.take()
    }

    /// Makes a link to the peer of this name (with TLS, the name in its certificate). It gets lanes as soon as the peer has made its end.
    pub fn link(
        &self,
        name: &str,
        config: LinkConfig,
        peer: Peer,
        users: (Arc<dyn FlowReceiver>, Arc<dyn LinkUser>),
    ) -> Result<Link, EndpointError> {
        let key = peer.key;
        let shared = Arc::clone(&self.shared);
        let link = Arc::new(LinkRuntime::new(name, config, peer, users, shared));
        let mut links = self.shared.lock_links();
        if links.get(&key).is_some_and(|link| link.strong_count() > 0) {
            return Err(EndpointError::Key);
        }
        links.insert(key, Arc::downgrade(&link));
        drop(links);
        let dialling = Arc::clone(&link);
        let dials = spawn("lanes-dial", move || dial_all(&dialling))?;
        link.lock().threads.push(dials);
        Ok(Link(Arc::new(Handle(link))))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        *self.shared.closing.lock().expect("nobody panics with it") = true;
        self.shared.clock.notify_all();
        if let Some(listener) = &self.listener {
            // Ends the listener's wait in `accept`.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for link in self.shared.all() {
            link.close();
        }
    }
}

pub(super) fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, EndpointError> {
    let builder = std::thread::Builder::new().name(name.into());
    builder.spawn(run).map_err(EndpointError::Thread)
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    while !shared.is_closing() {
        let Ok((tcp, _)) = listener.accept() else {
            // When the process is out of file descriptors, `accept` fails again at once.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let Some(handshake) = shared.handshakes.admit(&tcp) else {
            shared.lock_refused().0 += 1;
            continue;
        };
        let accepting = Arc::clone(shared);
        // If no thread starts, the closure is dropped, which closes the connection.
        let _ = spawn("lane-hello", move || {
            let from = tcp.peer_addr();
            match accepting.accept(tcp) {
                Ok(()) => handshake.complete(),
                Err(error) => {
                    let from = from.map_or_else(|_| "nobody".to_owned(), |from| from.to_string());
                    let mut refused = accepting.lock_refused();
                    *refused = (refused.0 + 1, Some(format!("{from}: {error}")));
                }
            }
        });
    }
}

/// The clock's thread: ticks all links until the endpoint closes.
fn tick_all(shared: &Shared) {
    let mut quiet = 0;
    loop {
        let is_idle = quiet >= IDLE_TICKS;
        let limit = if is_idle { TICK_IDLE } else { TICK };
        let waits = |closing: &mut bool| !*closing && (!is_idle || shared.slow.load(SeqCst));
        let closing = shared.closing.lock().expect("nobody panics with it");
        let waited = shared.clock.wait_timeout_while(closing, limit, waits);
        if *waited.expect("nobody panics with it").0 {
            return;
        }
        if is_idle && !shared.slow.load(SeqCst) {
            quiet = 0;
            continue;
        }
        // Set before the links tick: a link that needs a tick after its own turn calls `hurry`, which clears this.
        shared.slow.store(quiet + 1 >= IDLE_TICKS, SeqCst);
        let mut awaited = false;
        for link in shared.all() {
            awaited |= link.tick();
        }
        quiet = if awaited {
            0
        } else {
            IDLE_TICKS.min(quiet + 1)
        };
    }
}

/// A link's thread that opens lanes: takes the peer's addresses in turn after each failure.
fn dial_all(link: &Arc<LinkRuntime>) {
    let mut attempt = 0;
    while let Some((hello, addresses)) = link.next_dial() {
        let address = addresses[attempt % addresses.len()];
        if let Err(error) = link.shared.dial(link, address, &hello) {
            attempt += 1;
            link.dial_failed(&hello, &error);
        }
    }
}

/// Closes the link when the user drops its last [`Link`]; lanes' threads hold the runtime itself.
struct Handle(Arc<LinkRuntime>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
        let mut links = self.0.shared.lock_links();
        links.retain(|_, link| !std::ptr::eq(link.as_ptr(), &*self.0));
    }
}

/// A link to one peer, in both directions. Dropping the last clone closes it.
#[derive(Clone)]
pub struct Link(Arc<Handle>);

impl Link {
    /// Replaces what the control plane knows of the peer. With another incarnation or key, all lanes are closed, and
    /// [`super::LinkEvent::Restarted`] follows; other addresses alone take effect with the next lane.
    pub fn set_peer(&self, peer: Peer) -> Result<(), EndpointError> {
        let link = &self.0 .0;
        let mut links = link.shared.lock_links();
        let is_ours = |of: &Weak<LinkRuntime>| std::ptr::eq(of.as_ptr(), &**link);
        let other = links.get(&peer.key).filter(|of| !is_ours(of));
        if other.is_some_and(|of| of.strong_count() > 0) {
            return Err(EndpointError::Key);
        }
        links.retain(|_, of| !is_ours(of));
        links.insert(peer.key, Arc::downgrade(link));
        drop(links);
        link.set_peer(peer);
        Ok(())
    }
}

impl Deref for Link {
    type Target = LinkRuntime;

    fn deref(&self) -> &LinkRuntime {
        &self.0 .0
    }
}
