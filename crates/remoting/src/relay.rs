//! Relays bytes between a client whose connection is no plain socket and its backend process.

use crate::communicator::silence::watch;
use crate::communicator::{write_all, Communicator};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

const PIECE_BYTES: usize = 256 << 10;

/// Gives the backend's end of a socket, and relays between it and a client until one of the two closes.
pub(crate) fn relay(client: Arc<dyn Communicator>) -> io::Result<OwnedFd> {
    let (own_end, backend_end) = UnixStream::pair()?;
    let silent = Arc::downgrade(&client);
    watch(std::slice::from_ref(&client), move || {
        if let Some(client) = silent.upgrade() {
            client.close();
        }
    })?;
    let back = (client.clone(), own_end.try_clone()?);
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(body).map(drop)
    };
    spawn(
        "to-backend",
        Box::new(move || to_backend(&*client, &own_end)),
    )?;
    spawn("to-client", Box::new(move || to_client(&*back.0, &back.1)))?;
    Ok(backend_end.into())
}

fn to_backend(client: &dyn Communicator, mut backend: &UnixStream) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(count @ 1..) = client.read(&mut piece) {
        if backend.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    end(client, backend);
}

fn to_client(client: &dyn Communicator, mut backend: &UnixStream) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(count @ 1..) = backend.read(&mut piece) {
        if write_all(client, [&piece[..count], &[]]).is_err() {
            break;
        }
    }
    end(client, backend);
}

/// Closes both ends, so that each sees the end of the other. A shutdown fails where an end has closed itself, and is not needed there.
fn end(client: &dyn Communicator, backend: &UnixStream) {
    let _ = backend.shutdown(Shutdown::Both);
    client.close();
}
