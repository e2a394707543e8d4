//! Strangers: connections that say nothing, say junk, or ask and never read.

use crate::host::Address;
use rgaps_layout::LAYOUT_VERSION;
use rgaps_session::{ClientPacket, Request, SessionSocket, PROTOCOL_VERSION};
use rgaps_testkit::Random;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Connections to each port, and sessions of the daemon.
const CONNECTIONS: u64 = 100;
const SESSIONS: u64 = 60;
/// Requests that one session sends at most, and bytes of junk.
const REQUESTS: u64 = 500;
const JUNK_BYTES: usize = 600;
const CONNECT_LIMIT: Duration = Duration::from_millis(200);

/// Whom a flood meets, and for how long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flood {
    pub socket: PathBuf,
    pub address: Address,
    pub seed: u64,
    pub lasts: Duration,
}

/// Opens what can be opened in the time, and holds it until the time is over.
pub fn run(flood: &Flood) {
    let end = Instant::now() + flood.lasts;
    let mut random = Random::new(flood.seed);
    let (mut streams, mut sessions) = (Vec::new(), Vec::new());
    for turn in 0..CONNECTIONS {
        if Instant::now() > end {
            return;
        }
        for port in [flood.address.lanes, flood.address.control] {
            streams.extend(connect(&flood.address.ip, port, &mut random));
        }
        if turn < SESSIONS {
            sessions.extend(session(flood, &mut random));
        }
    }
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
}

fn connect(ip: &str, port: u16, random: &mut Random) -> Option<TcpStream> {
    let address = format!("{ip}:{port}").parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT).ok()?;
    stream.set_nonblocking(true).ok()?;
    if random.percent(50) {
        // Whatever of it is taken.
        let _ = stream.write(&junk(random));
    }
    Some(stream)
}

fn junk(random: &mut Random) -> Vec<u8> {
    let bytes = 1 + random.below(JUNK_BYTES as u64);
    (0..bytes).map(|_| random.next_u64() as u8).collect()
}

/// A session of the daemon, held until it is dropped: it asks and reads no answer, says junk, or says nothing.
fn session(flood: &Flood, random: &mut Random) -> Option<OwnedFd> {
    let channel = SessionSocket::connect(&flood.socket).ok()?;
    channel.set_nonblocking(true).ok()?;
    let socket = channel.as_fd().try_clone_to_owned().ok()?;
    match random.below(5) {
        0 => {}
        1 => {
            let speaks = UnixDatagram::from(socket.try_clone().ok()?);
            let _ = speaks.send(&junk(random));
        }
        _ => ask(&channel, 1 + random.below(REQUESTS)),
    }
    Some(socket)
}

/// Sends requests until there is no room for more.
fn ask(channel: &SessionSocket, requests: u64) {
    let hello = Request::Hello {
        protocol: PROTOCOL_VERSION,
        layout: LAYOUT_VERSION,
        realm: "default".into(),
        name: "flood".into(),
    };
    let sends = |id, request| channel.send(&ClientPacket { id, request }, &[]).is_ok();
    let _ = sends(0, hello) && (1..requests).all(|id| sends(id, Request::Status));
}
