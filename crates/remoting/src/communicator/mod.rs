//! How bytes get from a client to its server and back: an interface of eight methods, as GVirtuS's thesis has it, with
//! implementations over TCP, TLS, RDMA and Unix sockets, and in libraries that the configuration names.
//!
//! Two factories make them: an [`Endpoint`] is read from text, and [`Communication`], which is the configuration, makes an
//! endpoint's communicator.
mod deadline;
mod endpoint;
mod gpu_list;
mod plugin;
mod rdma;
pub(crate) mod silence;
mod tcp;
mod unix;

pub(crate) use deadline::Deadline;
pub use endpoint::{Endpoint, Protocol, PORT};
pub use gpu_list::GpuList;

use crate::socket::Socket;
use rdma::Rdma;
use rgaps_session::{Config, ConfigError, Gpu, Links};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tcp::Tcp;
use unix::Unix;

/// Bytes in order, there and back. One value is an endpoint that listens, or one end of a connection.
///
/// All methods may be called from several threads; one reads and one writes at a time.
pub trait Communicator: Send + Sync {
    /// Begins to listen at its endpoint.
    fn serve(&self) -> io::Result<()>;
    /// Waits for the next client, and gives the server's end of its connection.
    fn accept(&self) -> io::Result<Arc<dyn Communicator>>;
    /// Connects to the server at its endpoint.
    fn connect(&self) -> io::Result<()>;
    /// Reads some bytes; gives 0 if the other end has closed.
    fn read(&self, to: &mut [u8]) -> io::Result<usize>;
    /// Takes some of these bytes, in their order; waits until there is room.
    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Sends written bytes that it has not sent yet.
    fn sync(&self) -> io::Result<()>;
    /// Ends both directions, also for threads that wait in another method.
    fn close(&self);
    /// Where it listens, or where the other end is, for people.
    fn to_string(&self) -> String;

    /// The socket that carries the bytes as they are. A backend process can have such a socket; for others the server relays.
    fn socket(&self) -> Option<&Socket> {
        None
    }

    /// The TCP connection that carries the bytes, whose other end is watched.
    fn tcp(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether the other end may use this server, and if not, why. Called when it has said hello, after which it counts as a stranger no
    /// more.
    fn admit(&self) -> Result<(), String> {
        Ok(())
    }
}

/// What the configuration says about connections: `links.tls`, `links.insecure`, `links.trusted_fabric`, `gpu.allow`, `gpu.communicators`.
#[derive(Clone, Debug)]
pub struct Communication {
    links: Links,
    gpu: Gpu,
}

impl Communication {
    /// Of a configuration.
    pub fn of(config: &Config) -> Communication {
        Communication {
            links: config.links.clone(),
            gpu: config.gpu.clone(),
        }
    }

    /// Of this process's configuration.
    pub fn load() -> Result<Communication, ConfigError> {
        Config::load(None).map(|config| Communication::of(&config))
    }

    /// Makes the communicator of an endpoint.
    pub fn communicator(&self, at: &Endpoint) -> io::Result<Arc<dyn Communicator>> {
        match at {
            Endpoint::Unix(path) => Ok(Arc::new(Unix::at(path))),
            Endpoint::Tcp { protocol, .. } => {
                let tcp = Arc::new(Tcp::at(at, &self.links, &self.gpu.allow)?);
                Ok(match protocol {
                    Protocol::Rdma => Arc::new(Rdma::at(tcp, rdma::card(&self.links)?)),
                    _ => tcp,
                })
            }
            Endpoint::Plugin {
                communicator,
                address,
            } => {
                let path = self.gpu.communicators.get(communicator).ok_or_else(|| {
                    let text = format!(
                        "there is no communicator '{communicator}'; name its library in the configuration as gpu.communicators.{communicator}"
                    );
                    io::Error::new(io::ErrorKind::Unsupported, text)
                })?;
                Ok(Arc::new(plugin::Plugin::load(path, address)?))
            }
        }
    }
}

/// The error of a method that needs a connection and has none.
fn not_connected() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// Reads all of these bytes; gives how many calls it took.
pub(crate) fn read_exact(from: &dyn Communicator, to: &mut [u8]) -> io::Result<u64> {
    struct Counted<'a>(&'a dyn Communicator, u64);
    impl io::Read for Counted<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to).inspect(|_| self.1 += 1)
        }
    }
    let mut counted = Counted(from, 0);
    io::Read::read_exact(&mut counted, to)?;
    Ok(counted.1)
}

/// Writes all of several pieces, as one call where the communicator takes them; gives how many calls it took.
pub(crate) fn write_all(to: &dyn Communicator, pieces: [&[u8]; 2]) -> io::Result<u64> {
    let total: usize = pieces.iter().map(|piece| piece.len()).sum();
    let (mut done, mut calls) = (0, 0);
    while done < total {
        let first = pieces[0].get(done..).unwrap_or_default();
        let second = &pieces[1][done.saturating_sub(pieces[0].len())..];
        match to.write(&[IoSlice::new(first), IoSlice::new(second)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                done += count;
                calls += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    to.sync()?;
    Ok(calls)
}

#[cfg(test)]
mod tests;
