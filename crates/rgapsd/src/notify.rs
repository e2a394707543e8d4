//! Tells systemd that the daemon is ready (`Type=notify`; `man sd_notify`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

/// Tells systemd, if it asked for that through `NOTIFY_SOCKET`. Only logs a failure.
pub fn ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = address(path.as_bytes())
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1\n", &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "telling systemd that the daemon is ready failed");
    }
}

fn address(path: &[u8]) -> std::io::Result<SocketAddr> {
    match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(path))),
    }
}
