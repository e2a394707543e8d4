//! The servers that the program uses, and their GPUs, which are numbered in one list.
//!
//! The current device of a thread decides to which server a call goes. What belongs to a device (memory, streams, events and so on) is
//! known on its server only, so its calls go there, whichever device is current: [`at`].

use crate::{notice, thread};
use rgaps_remoting::{
    Code, Communication, DeviceInfo, From, GpuList, ServerConnection, SessionOptions,
};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

/// The variable of the environment that names the servers.
const SERVERS_ENV: &str = "RGAPS_GPU";

pub(crate) struct Server {
    pub(crate) connection: Arc<ServerConnection>,
    /// The error that ended the context, or 0.
    sticky: AtomicI32,
}

impl Server {
    /// The error that ended the context.
    pub(crate) fn sticky(&self) -> Code {
        Code(self.sticky.load(Ordering::Acquire))
    }

    /// Forgets that error: call when a device was reset.
    pub(crate) fn unstick(&self) {
        self.sticky.store(0, Ordering::Release);
    }

    /// Keeps an error that ended the context; gives the first of them.
    pub(crate) fn stick(&self, code: Code) -> Code {
        let first = self
            .sticky
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        Code(first.err().unwrap_or(code.0))
    }

    /// Call when the connection is lost: tells the user, and keeps the error.
    pub(crate) fn lost(&self) -> Code {
        notice::once(&format!(
            "the connection to the GPU server at {} is lost, and with it everything on its GPUs; restart the program",
            self.connection.endpoint()
        ));
        self.stick(Code::DEVICES_UNAVAILABLE)
    }
}

pub(crate) struct Servers {
    pub(crate) all: Vec<Server>,
    /// All GPUs. Their `peers` are indexed by the numbers in this list.
    pub(crate) devices: Vec<DeviceInfo>,
    /// For each GPU the number of its server, and its own number there.
    server_gpus: Vec<(usize, u16)>,
}

fn unavailable(reason: String) -> Code {
    notice::once(&reason);
    Code::DEVICES_UNAVAILABLE
}

fn no_device(reason: String) -> Code {
    notice::once(&reason);
    Code::NO_DEVICE
}

impl Servers {
    /// Connects to the servers that the environment names.
    pub(crate) fn open(
        program: &str,
        stripes: usize,
        inline_bytes: usize,
    ) -> Result<Servers, Code> {
        let text = std::env::var(SERVERS_ENV).map_err(|_| {
            no_device(format!(
                "no GPU server is named: start the program with 'rgaps gpu run --on HOST -- PROGRAM', or set {SERVERS_ENV}"
            ))
        })?;
        let wanted: GpuList = text
            .parse()
            .map_err(|reason| no_device(format!("{SERVERS_ENV}: {reason}")))?;
        let communication =
            Communication::load().map_err(|error| unavailable(error.to_string()))?;
        let mut all = Vec::new();
        for (number, endpoint) in wanted.servers().into_iter().enumerate() {
            let options = SessionOptions {
                server: number as u8,
                stripes,
                inline_bytes,
            };
            let connection = ServerConnection::open(&communication, endpoint, program, options)
                .map_err(|error| unavailable(error.to_string()))?;
            all.push(Server {
                connection,
                sticky: AtomicI32::new(0),
            });
        }
        let infos: Vec<_> = all
            .iter()
            .map(|server| server.connection.inventory().devices.clone())
            .collect();
        let counts: Vec<usize> = infos.iter().map(Vec::len).collect();
        let server_gpus = wanted.gpus(&counts).map_err(no_device)?;
        Ok(Servers {
            devices: numbered(&infos, &server_gpus),
            all,
            server_gpus,
        })
    }

    /// The server of a GPU.
    pub(crate) fn of(&self, device: u16) -> Result<&Server, Code> {
        self.all.get(self.number(device)).ok_or(Code::NO_DEVICE)
    }

    fn number(&self, device: u16) -> usize {
        self.server_gpus
            .get(usize::from(device))
            .map_or(0, |(server, _)| *server)
    }

    /// The number that a GPU has on its server.
    pub(crate) fn ordinal(&self, device: u16) -> u16 {
        self.server_gpus
            .get(usize::from(device))
            .map_or(0, |(_, ordinal)| *ordinal)
    }

    /// The calling thread, and the number of its device on that device's server.
    pub(crate) fn caller(&self) -> From {
        From {
            thread: thread::number(),
            device: self.ordinal(thread::device()),
        }
    }

    /// The CUDA version that all drivers support.
    pub(crate) fn driver_version(&self) -> i32 {
        let versions = self
            .all
            .iter()
            .map(|server| server.connection.inventory().driver_version);
        versions.min().unwrap_or(0)
    }
}

/// The GPUs of all servers in the order of `server_gpus`. A GPU of another server is no peer.
fn numbered(infos: &[Vec<DeviceInfo>], server_gpus: &[(usize, u16)]) -> Vec<DeviceInfo> {
    let info = |(server, ordinal): &(usize, u16)| {
        let own = &infos[*server][usize::from(*ordinal)];
        let is_peer = |(other, at): &(usize, u16)| {
            other == server && own.peers.get(usize::from(*at)).copied().unwrap_or(false)
        };
        DeviceInfo {
            peers: server_gpus.iter().map(is_peer).collect(),
            ..own.clone()
        }
    };
    server_gpus.iter().map(info).collect()
}

/// The servers, if they were opened.
pub(crate) fn opened() -> &'static OnceLock<Result<Servers, Code>> {
    static SERVERS: OnceLock<Result<Servers, Code>> = OnceLock::new();
    &SERVERS
}

/// The number of a GPU's server.
pub(crate) fn number_of(device: u16) -> usize {
    match opened().get() {
        Some(Ok(servers)) => servers.number(device),
        _ => 0,
    }
}

/// The first GPU of a server in the list.
pub(crate) fn device_of(server: usize) -> u16 {
    let found = match opened().get() {
        Some(Ok(servers)) => servers.server_gpus.iter().position(|(of, _)| *of == server),
        _ => None,
    };
    found.unwrap_or(0) as u16
}

/// Whether there are several servers.
pub(crate) fn are_several() -> bool {
    matches!(opened().get(), Some(Ok(servers)) if servers.all.len() > 1)
}

/// Whether a GPU is on the server of the current one.
pub(crate) fn is_here(device: u16) -> bool {
    number_of(device) == number_of(thread::device())
}

/// Calls `act` on the server of a GPU: with that GPU current, unless the current one is on the same server.
pub(crate) fn at<T>(device: u16, act: impl FnOnce() -> T) -> T {
    match is_here(device) {
        true => act(),
        false => thread::with_device(device, act),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_of_the_same_server() {
        let device = |name: &str, peers: &[bool]| DeviceInfo {
            name: name.to_owned(),
            peers: peers.to_vec(),
            ..DeviceInfo::default()
        };
        let infos = [
            vec![device("a0", &[false, true]), device("a1", &[true, false])],
            vec![device("b0", &[false])],
        ];
        let all = numbered(&infos, &[(0, 1), (1, 0), (0, 0)]);
        let names: Vec<_> = all.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["a1", "b0", "a0"]);
        assert_eq!(all[0].peers, [false, false, true]);
        assert_eq!(all[1].peers, [false, false, false]);
        assert_eq!(all[2].peers, [true, false, false]);
    }
}
