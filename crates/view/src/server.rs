//! Listens on the port, accepts connections, and serves each in a thread.

use crate::access::{Access, Refused};
use crate::client::Client;
use crate::error::ViewError;
use crate::http::{answer, is_for_later, Request, Status};
use crate::hub::Hub;
use crate::look::Looker;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::owner::owner_of;
use crate::state::Overview;
use crate::watch::Watcher;
use crate::{protocol, thumbnail};
use rgaps::Node;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tungstenite::handshake::derive_accept_key;

/// Most connections besides those of WebSocket clients.
const REQUESTS_MAX: usize = 32;
/// Time between two looks whether the server stops.
const SLICE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The files of the page. They have no data of the realm, so they need no token.
const FILES: [(&str, &str, &str); 3] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("page/page.html"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("page/page.js"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("page/page.css"),
    ),
];

/// What the threads of connections share.
struct Shared {
    options: Options,
    access: Access,
    hub: Arc<Hub>,
    overview: Arc<Overview>,
    /// The server's name for clients, and an id that differs for each run.
    name: String,
    session: String,
    stop: AtomicBool,
}

/// Shows topics to browsers and to Foxglove, in threads of its own, until it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens and starts the threads.
    pub fn start(node: Node, mut options: Options) -> Result<Server, ViewError> {
        options.check()?;
        for pattern in &mut options.patterns {
            *pattern = node.resolve_topic(pattern);
        }
        let node = node.with_full_names();
        let address = options.listen;
        let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => ViewError::InUse { address },
            _ => ViewError::Listen { address, error },
        })?;
        let bound = listener.local_addr().and_then(|bound| {
            listener.set_nonblocking(true)?;
            Ok(bound)
        });
        let address = bound.map_err(|error| ViewError::Listen { address, error })?;
        let hub = Arc::new(Hub::new(options.clients_max));
        let overview = Arc::<Overview>::default();
        let started = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let shared = Arc::new(Shared {
            access: Access::new(&options),
            name: node.status().map_or_else(
                |_| "rgaps".to_owned(),
                |status| format!("rgaps, realm {}", status.realm),
            ),
            session: started.map_or(0, |since| since.as_micros()).to_string(),
            options: options.clone(),
            hub: hub.clone(),
            overview: overview.clone(),
            stop: AtomicBool::new(false),
        });
        // If a thread cannot be started, this drops the server, which ends the other threads.
        let mut server = Server {
            address,
            shared: shared.clone(),
            accepting: None,
        };
        let looker = Looker::new(node.clone(), options.clone(), hub.clone(), overview);
        let watcher = Watcher::new(node, options, hub);
        let sharing = shared.clone();
        spawn("rgaps-look", move || looker.run(&sharing.stop))?;
        let sharing = shared.clone();
        spawn("rgaps-watch", move || watcher.run(&sharing.stop))?;
        server.accepting = Some(spawn("rgaps-view", move || accept(&listener, &shared))?);
        Ok(server)
    }

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The accepting thread waits for the threads of connections. Nothing waits for the threads of `look` and `watch`: they ask the
        // daemon, which may take long to answer, and end by themselves.
        if let Some(thread) = self.accepting.take() {
            // A panic of the thread has printed its message.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ViewError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map_err(ViewError::Thread)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    let timeout = Timespec::try_from(SLICE).expect("a short time");
    while !shared.stop.load(Ordering::Relaxed) {
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
        connections.retain(|thread| !thread.is_finished());
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_for_later(&error) => continue,
            Err(_) => {
                // No descriptors are free. The connection stays in the kernel's queue.
                std::thread::sleep(SLICE);
                continue;
            }
        };
        if connections.len() >= REQUESTS_MAX + shared.options.clients_max {
            answer(
                &stream,
                Status::Unavailable,
                TEXT,
                b"too many connections; try again\n",
            );
            continue;
        }
        let sharing = shared.clone();
        let builder = std::thread::Builder::new().name("rgaps-view-client".to_owned());
        // If no thread can be started, this drops the connection.
        connections.extend(builder.spawn(move || serve(&sharing, stream)));
    }
    for thread in connections {
        let _ = thread.join();
    }
}

fn serve(shared: &Shared, mut stream: TcpStream) {
    // Some systems inherit the flag from the listener.
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_nodelay(true);
    let (request, rest) = match Request::read(&mut stream, &shared.stop) {
        Ok(request) => request,
        Err(reason) => return refuse(&stream, &Refused(Status::BadRequest, reason)),
    };
    if let Err(refused) = respond(shared, &request, stream, rest) {
        let (stream, refused) = *refused;
        refuse(&stream, &refused);
    }
}

fn refuse(stream: &TcpStream, Refused(status, reason): &Refused) {
    answer(stream, *status, TEXT, format!("{reason}\n").as_bytes());
}

/// A refused request: its connection, and the answer.
type NotServed = Box<(TcpStream, Refused)>;

fn respond(
    shared: &Shared,
    request: &Request,
    stream: TcpStream,
    rest: Vec<u8>,
) -> Result<(), NotServed> {
    let is_get = request.method == "GET";
    let file = FILES.iter().find(|(path, ..)| *path == request.path);
    let is_socket = request.websocket_key().is_some();
    let allowed = match (is_get, file) {
        (false, _) => Err(Refused(
            Status::MethodNotAllowed,
            "only GET is answered here",
        )),
        (true, Some(_)) if !is_socket => shared.access.check_host(request),
        (true, _) => shared.access.check(request, || owner_of(&stream)),
    };
    if let Err(refused) = allowed {
        return Err(Box::new((stream, refused)));
    }
    if let Some(key) = request.websocket_key() {
        return upgrade(shared, request, key, stream, rest);
    }
    if let Some((_, content_type, text)) = file {
        answer(&stream, Status::Ok, content_type, text.as_bytes());
        return Ok(());
    }
    match request.path.as_str() {
        "/state.json" => send_state(shared, &stream),
        "/thumbnail" => send_thumbnail(shared, request, &stream),
        _ => refuse(&stream, &Refused(Status::NotFound, "there is nothing here")),
    }
    Ok(())
}

fn send_state(shared: &Shared, stream: &TcpStream) {
    match shared.overview.json(&shared.options, &shared.hub) {
        Ok(json) => answer(stream, Status::Ok, JSON, &json),
        Err(error) => {
            let json = serde_json::json!({ "error": error }).to_string();
            answer(stream, Status::Unavailable, JSON, json.as_bytes());
        }
    }
}

fn send_thumbnail(shared: &Shared, request: &Request, stream: &TcpStream) {
    let topic = request.query("topic").unwrap_or_default();
    let Some(frame) = shared.hub.thumbnail(topic) else {
        return refuse(stream, &Refused(Status::NotFound, "there is no such topic"));
    };
    match frame.and_then(|frame| thumbnail::png(&frame)) {
        Some(png) => answer(stream, Status::Ok, "image/png", &png),
        // No image has come yet.
        None => answer(stream, Status::NoContent, "image/png", b""),
    }
}

fn upgrade(
    shared: &Shared,
    request: &Request,
    key: &str,
    mut stream: TcpStream,
    rest: Vec<u8>,
) -> Result<(), NotServed> {
    let offered = request.header("sec-websocket-protocol").unwrap_or_default();
    let is_known = request.header("sec-websocket-version") == Some("13");
    let Some(protocol) = protocol::choose(offered).filter(|_| is_known) else {
        let text = "this server speaks foxglove.sdk.v1 over WebSocket version 13";
        return Err(Box::new((stream, Refused(Status::BadRequest, text))));
    };
    let joined = Outbox::new().ok().and_then(|outbox| {
        let outbox = Arc::new(outbox);
        outbox.announce(protocol::server_info(&shared.name, &shared.session));
        Some((shared.hub.join(&outbox)?, outbox))
    });
    let Some((id, outbox)) = joined else {
        let text = "too many clients; close one, or allow more with --clients";
        return Err(Box::new((stream, Refused(Status::Unavailable, text))));
    };
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n\
         Sec-WebSocket-Protocol: {protocol}\r\n\r\n",
        derive_accept_key(key.as_bytes())
    );
    if stream.write_all(head.as_bytes()).is_ok() {
        Client::new(stream, rest, outbox, &shared.hub).run(&shared.stop);
    }
    shared.hub.leave(id);
    Ok(())
}
