//! Encryption of connections whose two ends prove who they are: TLS 1.3 with certificates for both, by rustls.

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use thiserror::Error;

/// The most plaintext that one write takes.
const AT_ONCE: usize = 256 << 10;
/// The most bytes that one call reads from the socket.
const READ_BYTES: usize = 128 << 10;
/// How long [`Tls::probe`] waits for a refusal.
const PROBE_QUIET: Duration = Duration::from_millis(300);

/// This daemon's certificate and key, and the certificates that it trusts, as PEM.
#[derive(Clone)]
pub struct TlsFiles {
    /// The certificates of the authorities that sign peers' certificates.
    pub roots: Vec<u8>,
    /// This daemon's certificate, and those that lead from it to a root. It must be valid for client and server use, and for the name
    /// under which peers know this daemon.
    pub chain: Vec<u8>,
    /// The key of that certificate.
    pub key: Vec<u8>,
}

/// Why the files cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file is not PEM, or has no key.
    #[error("{what}: {error}; give a file in PEM format")]
    Pem {
        /// The file: `roots`, `chain` or `key`.
        what: &'static str,
        /// The parser's error.
        error: rustls::pki_types::pem::Error,
    },
    /// The file has no certificate.
    #[error("{0}: the file has no certificate")]
    Empty(&'static str),
    /// A certificate is not valid, or the key is not the certificate's.
    #[error("the certificates cannot be used: {0}")]
    Use(#[from] rustls::Error),
    /// No peer's certificate could be verified with these roots.
    #[error("the CA certificates cannot be used: {0}")]
    Roots(#[from] rustls::server::VerifierBuilderError),
}

/// The configuration of encrypted connections, for both roles.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    own: CertificateDer<'static>,
}

/// Whether a certificate is valid for a host of this name.
fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let parsed = ParsedCertificate::try_from(certificate).ok();
    let both = parsed.zip(ServerName::try_from(name.to_owned()).ok());
    both.is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| TlsError::Pem { what, error })?;
    if all.is_empty() {
        return Err(TlsError::Empty(what));
    }
    Ok(all)
}

impl Tls {
    /// Reads certificates and key from the files' contents.
    pub fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for root in certificates("roots", &files.roots)? {
            roots.add(root)?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("chain", &files.chain)?;
        let own = chain[0].clone();
        let pem = |error| TlsError::Pem { what: "key", error };
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(pem)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        // Connections are few and live long, so sessions are never resumed.
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
            own,
        })
    }

    /// Whether this host's certificate is for this name.
    pub fn is_for(&self, name: &str) -> bool {
        is_for(&self.own, name)
    }

    /// Checks by a handshake, and sends nothing else, that the peer at an address proves that name, and that it accepts this daemon's
    /// certificate. `Err`: why not, as text.
    pub fn probe(&self, address: SocketAddr, name: &str, limit: Duration) -> Result<(), String> {
        let tcp = TcpStream::connect_timeout(&address, limit).map_err(|error| error.to_string())?;
        let session = self.begin(&tcp, Some(name), limit);
        let session = session.map_err(|error| in_words(&error))?;
        // With TLS 1.3 a server may refuse the client's certificate after the client's handshake is complete.
        let quiet = tcp.set_read_timeout(Some(limit.min(PROBE_QUIET)));
        quiet.map_err(|error| error.to_string())?;
        match session.read(&mut [0], |into| uninterrupted(|| (&tcp).read(into))) {
            Ok(0) => Err("it closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(in_words(&error)),
        }
    }

    /// Performs a handshake of at most `limit`. With `dials`, as the client: the peer has to prove that name. Without, as the server: the
    /// peer has to show a certificate of the realm, and [`Session::is`] then says whether it has a name.
    pub fn begin(
        &self,
        tcp: &TcpStream,
        dials: Option<&str>,
        limit: Duration,
    ) -> io::Result<Session> {
        let tls = match dials {
            Some(name) => {
                let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
                ClientConnection::new(Arc::clone(&self.client), name).map(Into::into)
            }
            None => ServerConnection::new(Arc::clone(&self.server)).map(Into::into),
        };
        Session::begin(tls.map_err(io::Error::other)?, tcp, limit)
    }
}

/// Why a handshake failed, as text, with a hint at the cause.
pub fn in_words(error: &io::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError, Error};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let hint = match inner {
        Some(Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => "its certificate is of another CA than links.tls.ca",
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "its certificate does not name the host by which it is known here",
        Some(Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError)) => {
            "it does not take this host's certificate: it is of another CA than its own"
        }
        Some(Error::AlertReceived(Alert::CertificateRequired)) => {
            "it wants a certificate of this host"
        }
        Some(Error::InvalidMessage(_)) => "it does not speak TLS",
        None if matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::TimedOut
                | io::ErrorKind::WouldBlock
        ) =>
        {
            "it ended what was to be TLS: perhaps it does not speak TLS"
        }
        _ => return error.to_string(),
    };
    format!("{hint} ({error})")
}

/// Repeats a call that a signal interrupted. A call with a time-out also ends with `Interrupted` when its process was stopped and
/// continued (signal(7)).
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A stream whose reads and writes fail after a point in time.
struct Limited<'a>(&'a TcpStream, Instant);

impl Limited<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Limited<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| {
            self.0.set_read_timeout(self.left()?)?;
            self.0.read(into)
        })
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        uninterrupted(|| {
            self.0.set_write_timeout(self.left()?)?;
            self.0.write(from)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The state of an encrypted connection. One thread reads the socket and one writes it, each without the lock of `tls`.
#[derive(Debug)]
pub struct Session {
    tls: Mutex<rustls::Connection>,
    incoming: Mutex<Buffer>,
    outgoing: Mutex<Buffer>,
}

/// Encrypted bytes from or for the socket: those of `at..end` are not processed yet.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Session {
    fn begin(mut tls: rustls::Connection, tcp: &TcpStream, limit: Duration) -> io::Result<Self> {
        let mut limited = Limited(tcp, Instant::now() + limit);
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut limited)?;
        }
        tls.set_buffer_limit(Some(AT_ONCE));
        let bytes = vec![0; READ_BYTES];
        Ok(Self {
            tls: Mutex::new(tls),
            incoming: Mutex::new(Buffer {
                bytes,
                ..Buffer::default()
            }),
            outgoing: Mutex::default(),
        })
    }

    /// Whether the peer's certificate is for this name.
    pub fn is(&self, name: &str) -> bool {
        let tls = self.tls.lock().expect("nobody panics with it");
        let first = tls.peer_certificates().and_then(<[_]>::first);
        first.is_some_and(|first| is_for(first, name))
    }

    /// Reads some plaintext; 0 if the peer has closed. `receive` reads encrypted bytes and may wait.
    pub fn read(
        &self,
        into: &mut [u8],
        receive: impl Fn(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut incoming = self.incoming.lock().expect("nobody panics with it");
        let incoming = &mut *incoming;
        loop {
            let mut tls = self.tls.lock().expect("nobody panics with it");
            let mut read = 0;
            loop {
                match tls.reader().read(&mut into[read..]) {
                    Ok(0) => return Ok(read),
                    Ok(more) => read += more,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if incoming.at == incoming.end {
                            break;
                        }
                        let mut left = &incoming.bytes[incoming.at..incoming.end];
                        incoming.at += tls.read_tls(&mut left)?;
                        tls.process_new_packets().map_err(io::Error::other)?;
                    }
                    Err(error) => return Err(error),
                }
                if read == into.len() {
                    return Ok(read);
                }
            }
            drop(tls);
            if read > 0 {
                return Ok(read);
            }
            (incoming.at, incoming.end) = (0, receive(&mut incoming.bytes)?);
            if incoming.end == 0 {
                return Ok(0);
            }
        }
    }

    /// Takes some of these bytes, encrypts them and sends as much as it can; returns how many it took. `send` may send less than it is
    /// given, or nothing. [`Session::flush`] sends the rest.
    pub fn write(
        &self,
        slices: &[IoSlice<'_>],
        send: impl Fn(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut outgoing = self.outgoing.lock().expect("nobody panics with it");
        if !outgoing.flush(&send)? {
            return Ok(0);
        }
        let mut tls = self.tls.lock().expect("nobody panics with it");
        let mut taken = 0;
        for slice in slices {
            let took = tls.writer().write(slice)?;
            taken += took;
            if took < slice.len() {
                break;
            }
        }
        outgoing.bytes.clear();
        while tls.wants_write() {
            tls.write_tls(&mut outgoing.bytes)?;
        }
        drop(tls);
        (outgoing.at, outgoing.end) = (0, outgoing.bytes.len());
        outgoing.flush(&send)?;
        Ok(taken)
    }

    /// Sends bytes that were taken before. Returns whether all are sent.
    pub fn flush(&self, send: impl Fn(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        let mut outgoing = self.outgoing.lock().expect("nobody panics with it");
        outgoing.flush(&send)
    }
}

impl Buffer {
    fn flush(&mut self, send: &impl Fn(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        while self.at < self.end {
            match send(&self.bytes[self.at..self.end])? {
                0 => return Ok(false),
                sent => self.at += sent,
            }
        }
        Ok(true)
    }
}
