//! The security rules of connections ([`Security`]), and encrypted connections for users other than links ([`TlsStream`]).

use crate::connection::{Connection, Wait};
use crate::tls::{in_words, Tls, TlsError, TlsFiles};
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Which connections are allowed: plain, encrypted, or within this host only.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Plain connections within this host, and none between hosts.
    #[default]
    Loopback,
    /// Plain connections everywhere: for tests, and for networks where everybody is trusted.
    Insecure,
    /// Encrypted connections only; each end proves by its certificate that it has the host name by which the other knows it.
    Tls(Tls),
}

/// Why this host cannot prove who it is.
#[derive(Debug, Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("links.tls: {} cannot be read: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The files cannot be used.
    #[error("links.tls: {0}")]
    Tls(#[from] TlsError),
    /// The certificate does not name this host.
    #[error(
        "links.tls.certificate: {} does not name '{host}', as this host is called: have one made whose \
         subject alternative names have DNS:{host} (see Certificates on the page 'Links between hosts' of the documentation), or set links.host",
        path.display()
    )]
    Name {
        /// The certificate's file.
        path: PathBuf,
        /// This host's name.
        host: String,
    },
}

impl Security {
    /// The rules of a configuration. With the files of `links.tls` (the realm's certificate authority, this host's certificate, its key):
    /// TLS. Without them, `insecure` allows plain connections between hosts.
    pub fn of(
        paths: Option<[&Path; 3]>,
        insecure: bool,
        host: &str,
    ) -> Result<Security, SecurityError> {
        let Some([ca, certificate, key]) = paths else {
            return Ok(match insecure {
                true => Security::Insecure,
                false => Security::Loopback,
            });
        };
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| SecurityError::Read {
                path: path.to_owned(),
                error,
            })
        };
        let tls = Tls::new(&TlsFiles {
            roots: read(ca)?,
            chain: read(certificate)?,
            key: read(key)?,
        })?;
        match tls.is_for(host) {
            true => Ok(Security::Tls(tls)),
            false => Err(SecurityError::Name {
                path: certificate.to_owned(),
                host: host.to_owned(),
            }),
        }
    }
}

/// An encrypted connection whose two ends have proved who they are. One thread may read while another writes.
#[derive(Debug)]
pub struct TlsStream(Connection);

impl TlsStream {
    /// Makes an encrypted connection to the peer of this name, which has to prove its name. The handshake takes no longer than `limit`.
    pub fn dial(tls: &Tls, tcp: TcpStream, name: &str, limit: Duration) -> io::Result<TlsStream> {
        Self::begin(tls, tcp, Some(name), limit)
    }

    /// Accepts a peer, which has to show a certificate of the realm. [`is`](Self::is) then says whether it has a name.
    pub fn accept(tls: &Tls, tcp: TcpStream, limit: Duration) -> io::Result<TlsStream> {
        Self::begin(tls, tcp, None, limit)
    }

    fn begin(
        tls: &Tls,
        tcp: TcpStream,
        dials: Option<&str>,
        limit: Duration,
    ) -> io::Result<TlsStream> {
        let mut connection = Connection::plain(tcp)?;
        let encrypted = connection.encrypt(tls, dials, limit);
        encrypted.map_err(untrusted)?;
        connection.set_limit(None)?;
        Ok(TlsStream(connection))
    }

    /// Whether the peer's certificate is for this name.
    pub fn is(&self, name: &str) -> bool {
        self.0.may_be(name)
    }

    /// Waits for bytes and reads some; 0 if the peer has closed. With TLS 1.3 the dialing end learns only here that the peer refused its
    /// certificate.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.get_ref() {
            Some(inner) if inner.is::<rustls::Error>() => {
                untrusted(io::Error::other(in_words(&error)))
            }
            _ => error,
        })
    }

    /// Takes some of these bytes and returns how many, once all of those are with the kernel.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(pieces, Wait::Yes)
    }

    /// Ends both directions, also for a thread that is waiting in `read`.
    pub fn close(&self) {
        self.0.close();
    }
}

/// The ends do not trust each other, or do not speak TLS.
fn untrusted(error: io::Error) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, error.to_string())
}
