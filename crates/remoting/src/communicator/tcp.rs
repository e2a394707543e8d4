//! TCP, plain or encrypted. The rules are those of links in the configuration: without certificates bytes stay within this host, unless
//! `links.insecure` is set; with certificates both ends prove their names.
//!
//! An accepted connection does its handshake when it is read first, so that a slow stranger keeps no other client waiting. Strangers have
//! the limits that lanes of links have ([`Handshakes`]).

use super::silence::prepare;
use super::{not_connected, Communicator, Endpoint, Protocol};
use crate::limits::HELLO_TIMEOUT;
use crate::socket::Socket;
use rgaps_connection::{Handshake, Handshakes, Security, Tls, TlsStream};
use rgaps_session::Links;
use rgaps_sync::lock;
use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How a TLS record with a handshake begins. No hello begins so: it is far shorter than its first two bytes would then say.
const TLS_RECORD: [u8; 2] = [22, 3];
/// How long to wait for the second byte of a connection when the first is there.
const PEEK_PAUSE: Duration = Duration::from_millis(1);

/// What carries the bytes.
enum Line {
    Plain(Socket),
    Tls(TlsStream),
}

/// A connection that was accepted.
struct Accepted {
    tcp: TcpStream,
    /// The same connection, until its first use takes it for the handshake.
    unread: Mutex<Option<TcpStream>>,
    peer: SocketAddr,
    /// Counts the connection as a stranger's, until `admit` takes it.
    stranger: Mutex<Option<Handshake>>,
    refusal: OnceLock<String>,
}

pub(super) struct Tcp {
    name: String,
    host: String,
    port: u16,
    tls: Option<Tls>,
    /// Whether bytes may leave this host without encryption.
    is_insecure: bool,
    allow: Arc<[String]>,
    strangers: Handshakes,
    listener: OnceLock<TcpListener>,
    accepted: Option<Accepted>,
    /// The connection that was dialled.
    dialled: OnceLock<TcpStream>,
    line: OnceLock<Line>,
}

fn denied(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// The certificates, if connections to or at this host are to be encrypted.
fn tls(protocol: Protocol, host: &str, links: &Links) -> io::Result<Option<Tls>> {
    let is_wanted = match protocol {
        Protocol::Tls => true,
        Protocol::Plain => false,
        Protocol::Configured | Protocol::Rdma => links.has_tls() && !Endpoint::is_loopback(host),
    };
    if !is_wanted {
        return Ok(None);
    }
    let paths = links.tls.paths();
    let own = links.host_name().map_err(denied)?;
    match Security::of(paths, links.insecure, &own).map_err(|error| denied(error.to_string()))? {
        Security::Tls(tls) => Ok(Some(tls)),
        _ => Err(denied(
            "TLS needs certificates: set links.tls.ca, certificate and key in the configuration"
                .to_owned(),
        )),
    }
}

impl Tcp {
    pub(super) fn at(at: &Endpoint, links: &Links, allow: &[String]) -> io::Result<Tcp> {
        let Endpoint::Tcp {
            protocol,
            name,
            host,
            port,
        } = at
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok(Tcp {
            name: name.as_ref().unwrap_or(host).clone(),
            host: host.clone(),
            port: *port,
            tls: tls(*protocol, host, links)?,
            is_insecure: links.insecure,
            allow: allow.into(),
            strangers: Handshakes::default(),
            listener: OnceLock::new(),
            accepted: None,
            dialled: OnceLock::new(),
            line: OnceLock::new(),
        })
    }

    /// Refuses plain bytes between hosts, unless they are allowed.
    fn may_be_plain(&self, address: IpAddr) -> io::Result<()> {
        if self.tls.is_some() || self.is_insecure || address.is_loopback() {
            return Ok(());
        }
        Err(denied(format!(
            "bytes would cross a network to or from {address} without encryption: name certificates in links.tls of the configuration, or set \
             links.insecure = true if you trust everyone on that network"
        )))
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            self.may_be_plain(address.ip())?;
            match TcpStream::connect_timeout(&address, HELLO_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// What carries the bytes. An accepted connection does its handshake here, once.
    fn connected(&self) -> io::Result<&Line> {
        if let Some(line) = self.line.get() {
            return Ok(line);
        }
        let accepted = self.accepted.as_ref().ok_or_else(not_connected)?;
        let tcp = lock(&accepted.unread).take().ok_or_else(not_connected)?;
        let line = self.answer(accepted, tcp)?;
        prepare(&accepted.tcp)?;
        Ok(self.line.get_or_init(|| line))
    }

    /// The server's part of a handshake.
    fn answer(&self, accepted: &Accepted, tcp: TcpStream) -> io::Result<Line> {
        let Some(tls) = &self.tls else {
            return Ok(Line::Plain(Socket::Tcp(tcp)));
        };
        let refuse = |why: &str| {
            // The first reason stays; a handshake is done once.
            let _ = accepted.refusal.set(why.to_owned());
        };
        if !speaks_tls(&tcp)? {
            refuse("it takes only encrypted connections: give this host a certificate of the realm, and name it in links.tls of its configuration");
            return Ok(Line::Plain(Socket::Tcp(tcp)));
        }
        let stream = TlsStream::accept(tls, tcp, HELLO_TIMEOUT)?;
        if !self.allow.is_empty() && !self.allow.iter().any(|name| stream.is(name)) {
            refuse("gpu.allow in its configuration does not name this host; add the name in this host's certificate there");
        }
        Ok(Line::Tls(stream))
    }
}

/// Whether the other end begins with TLS.
fn speaks_tls(tcp: &TcpStream) -> io::Result<bool> {
    let until = Instant::now() + HELLO_TIMEOUT;
    tcp.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut first = [0; TLS_RECORD.len()];
    loop {
        match tcp.peek(&mut first) {
            // A read with a time limit ends early where this process was stopped and goes on.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) if count < first.len() => {
                if Instant::now() > until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(PEEK_PAUSE);
            }
            Ok(_) => {
                tcp.set_read_timeout(None)?;
                return Ok(first == TLS_RECORD);
            }
        }
    }
}

impl Communicator for Tcp {
    fn serve(&self) -> io::Result<()> {
        let listener = TcpListener::bind((self.host.as_str(), self.port))?;
        self.may_be_plain(listener.local_addr()?.ip())?;
        self.listener
            .set(listener)
            .map_err(|_| io::ErrorKind::AddrInUse.into())
    }

    fn accept(&self) -> io::Result<Arc<dyn Communicator>> {
        let listener = self.listener.get().ok_or_else(not_connected)?;
        loop {
            let (tcp, peer) = listener.accept()?;
            tcp.set_nodelay(true)?;
            // `admit` has closed it: its address has too many connections that have not said hello.
            let Some(stranger) = self.strangers.admit(&tcp) else {
                continue;
            };
            return Ok(Arc::new(Tcp {
                name: self.name.clone(),
                host: self.host.clone(),
                port: self.port,
                tls: self.tls.clone(),
                is_insecure: self.is_insecure,
                allow: self.allow.clone(),
                strangers: self.strangers.clone(),
                listener: OnceLock::new(),
                accepted: Some(Accepted {
                    tcp: tcp.try_clone()?,
                    unread: Mutex::new(Some(tcp)),
                    peer,
                    stranger: Mutex::new(Some(stranger)),
                    refusal: OnceLock::new(),
                }),
                dialled: OnceLock::new(),
                line: OnceLock::new(),
            }));
        }
    }

    fn connect(&self) -> io::Result<()> {
        let tcp = self.dial()?;
        let dialled = tcp.try_clone()?;
        let line = match &self.tls {
            None => Line::Plain(Socket::Tcp(tcp)),
            Some(tls) => {
                let stream = TlsStream::dial(tls, tcp, &self.name, HELLO_TIMEOUT);
                Line::Tls(stream.map_err(|error| {
                    match error.kind() == io::ErrorKind::PermissionDenied && self.name == self.host
                    {
                        true => denied(format!(
                            "{error}; if its certificate has another name, write NAME@{}",
                            self.host
                        )),
                        false => error,
                    }
                })?)
            }
        };
        prepare(&dialled)?;
        let again = |()| io::Error::from(io::ErrorKind::AlreadyExists);
        self.dialled.set(dialled).map_err(drop).map_err(again)?;
        self.line.set(line).map_err(drop).map_err(again)
    }

    fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        match self.connected()? {
            Line::Plain(socket) => (&*socket).read(to),
            Line::Tls(stream) => stream.read(to),
        }
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.connected()? {
            Line::Plain(socket) => (&*socket).write_vectored(pieces),
            Line::Tls(stream) => stream.write(pieces),
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn close(&self) {
        match (self.line.get(), &self.accepted) {
            (Some(Line::Plain(socket)), _) => socket.shut_down(),
            (Some(Line::Tls(stream)), _) => stream.close(),
            // Perhaps another thread reads its handshake. If the connection has ended, the shutdown fails, and is not needed.
            (None, Some(accepted)) => drop(accepted.tcp.shutdown(Shutdown::Both)),
            (None, None) => {}
        }
    }

    fn to_string(&self) -> String {
        if let Some(accepted) = &self.accepted {
            return accepted.peer.to_string();
        }
        let local = self
            .listener
            .get()
            .and_then(|listener| listener.local_addr().ok());
        let (host, port) = match local {
            Some(local) => (local.ip().to_string(), local.port()),
            None => (self.host.clone(), self.port),
        };
        let protocol = match &self.tls {
            Some(_) => Protocol::Tls,
            None => Protocol::Configured,
        };
        Endpoint::Tcp {
            protocol,
            name: None,
            host,
            port,
        }
        .to_string()
    }

    fn socket(&self) -> Option<&Socket> {
        match self.line.get()? {
            Line::Plain(socket) => Some(socket),
            Line::Tls(_) => None,
        }
    }

    fn tcp(&self) -> Option<BorrowedFd<'_>> {
        let accepted = self.accepted.as_ref().map(|accepted| &accepted.tcp);
        Some(accepted.or_else(|| self.dialled.get())?.as_fd())
    }

    fn admit(&self) -> Result<(), String> {
        let Some(accepted) = &self.accepted else {
            return Ok(());
        };
        if let Some(reason) = accepted.refusal.get() {
            return Err(reason.clone());
        }
        if let Some(stranger) = lock(&accepted.stranger).take() {
            stranger.complete();
        }
        Ok(())
    }
}
