//! How bytes may cross a network, and encrypted connections for others than links.

use crate::connection::{Connection, Wait};
use crate::tls::{in_words, Tls, TlsError, TlsFiles};
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// What connections may be.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Plain within this host, nothing between hosts.
    #[default]
    Loopback,
    /// Plain everywhere: for tests, and networks where everybody is trusted.
    Insecure,
    /// Encrypted everywhere; both ends prove their names, which are those of the links.
    Tls(Tls),
}

/// Why this host cannot prove who it is.
#[derive(Debug, Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("links.tls: {} cannot be read: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The files cannot be used.
    #[error("links.tls: {0}")]
    Tls(#[from] TlsError),
    /// The certificate is another host's.
    #[error(
        "links.tls.certificate: {} does not name '{host}', as this host is called: have one made whose \
         subject alternative names have DNS:{host} (see Certificates on the page 'Links between hosts' of the documentation), or set links.host",
        path.display()
    )]
    Name {
        /// The certificate.
        path: PathBuf,
        /// This host.
        host: String,
    },
}

impl Security {
    /// As a configuration says: TLS where it names the files of `links.tls` (the realm's certificate authority, this host's certificate, and its
    /// key), else `insecure` decides about networks.
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
    /// Connects with the peer of this name, which has to prove it. The handshake takes no longer than `limit`.
    pub fn dial(tls: &Tls, tcp: TcpStream, name: &str, limit: Duration) -> io::Result<TlsStream> {
        Self::begin(tls, tcp, Some(name), limit)
    }

    /// Accepts a peer that proves who it is; [`is`](Self::is) says whether it is somebody.
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

    /// Some bytes; none if the peer closed. With TLS 1.3 an end that dials learns here that its certificate was refused.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.get_ref() {
            Some(inner) if inner.is::<rustls::Error>() => {
                untrusted(io::Error::other(in_words(&error)))
            }
            _ => error,
        })
    }

    /// Takes some of these bytes; they are with the kernel when this returns.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(pieces, Wait::Yes)
    }

    /// Ends both directions, also for a thread that waits in a read.
    pub fn close(&self) {
        self.0.close();
    }
}

/// The ends do not trust each other, or do not speak TLS.
fn untrusted(error: io::Error) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, error.to_string())
}
