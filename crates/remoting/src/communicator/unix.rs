//! Unix sockets. Descriptors can travel with the bytes, so both ends can share memory.

use super::{not_connected, Communicator};
use crate::socket::Socket;
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(super) struct Unix {
    path: PathBuf,
    listener: OnceLock<UnixListener>,
    socket: OnceLock<Socket>,
}

impl Unix {
    pub(super) fn at(path: &Path) -> Unix {
        Unix {
            path: path.to_owned(),
            listener: OnceLock::new(),
            socket: OnceLock::new(),
        }
    }

    fn connected(&self) -> io::Result<&Socket> {
        self.socket.get().ok_or_else(not_connected)
    }
}

impl Communicator for Unix {
    /// Replaces the file of a socket at which no process listens.
    fn serve(&self) -> io::Result<()> {
        let is_left = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if UnixStream::connect(&self.path).is_err_and(is_left) {
            std::fs::remove_file(&self.path)?;
        }
        let listener = UnixListener::bind(&self.path)?;
        self.listener
            .set(listener)
            .map_err(|_| io::ErrorKind::AddrInUse.into())
    }

    fn accept(&self) -> io::Result<Arc<dyn Communicator>> {
        let listener = self.listener.get().ok_or_else(not_connected)?;
        let (stream, _) = listener.accept()?;
        let client = Unix::at(&self.path);
        // Cannot fail: the value is new.
        let _ = client.socket.set(Socket::Unix(stream));
        Ok(Arc::new(client))
    }

    fn connect(&self) -> io::Result<()> {
        let stream = UnixStream::connect(&self.path)?;
        self.socket
            .set(Socket::Unix(stream))
            .map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        self.connected()?.read(to)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connected()?.write_vectored(pieces)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn close(&self) {
        if let Some(socket) = self.socket.get() {
            socket.shut_down();
        }
    }

    fn to_string(&self) -> String {
        match self.socket.get() {
            Some(_) => "this host".to_owned(),
            None => format!("unix:{}", self.path.display()),
        }
    }

    fn socket(&self) -> Option<&Socket> {
        self.socket.get()
    }
}
