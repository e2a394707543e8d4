//! Checks MPS: whether one runs, whose it is, and what it would improve.

use super::Check;
use crate::mps::describe;
use crate::units;
use rgaps::{Config, MpsInfo, MpsState, Node};
use rgaps_session::{MpsControl, MPS_CLIENTS_MAX};
use std::time::Duration;

const NAME: &str = "MPS";
/// Limit on an answer of MPS's control process.
const ASK_LIMIT: Duration = Duration::from_secs(3);
/// Measured times, for users who wonder whether they want MPS.
const COST: &str =
    "without MPS the kernels of two processes on one GPU take turns: a kernel-to-kernel hand-over takes \
                    142 us on an H200, and 5 us under MPS";
const HOW: &str =
    "run 'rgaps up --mps', then start processes with 'rgaps run -- COMMAND'; the fault of one client may \
                   then end the others: see docs/how-to/mps.md";

pub fn check(config: &Config, gpus: &[String]) -> Check {
    let info = of_the_daemon(config);
    let wanted = config.cuda.mps;
    match info {
        Some(info) if info.state != MpsState::Off => of(&info),
        _ => match MpsControl::of_this_process() {
            Some(control) => in_use(
                &control,
                format!(
                    "not the daemon's; CUDA in this process would use the MPS at '{}'",
                    control.directory().display()
                ),
            ),
            None if gpus.is_empty() => Check::ok(NAME, "off"),
            None if wanted => Check::lack(NAME, "configured, but no daemon is running it", HOW),
            None => Check {
                advice: Some(HOW.to_owned()),
                ..Check::ok(NAME, format!("off: {COST}"))
            },
        },
    }
}

/// The running daemon's view of MPS. None: no daemon runs, which another check reports.
pub fn of_the_daemon(config: &Config) -> Option<MpsInfo> {
    let config = Config {
        autostart: false,
        ..config.clone()
    };
    let node = Node::builder("rgaps-doctor").config(config).build().ok()?;
    node.mps().ok()
}

fn of(info: &MpsInfo) -> Check {
    let found = describe(info);
    match (&info.state, &info.pipe_directory) {
        (MpsState::Own | MpsState::Foreign, Some(directory)) => {
            in_use(&MpsControl::at(directory), found)
        }
        _ => Check::lack(
            NAME,
            found,
            "see the daemon's log; then 'rgaps down' and 'rgaps up --mps'",
        ),
    }
}

fn in_use(control: &MpsControl, found: String) -> Check {
    if !control.has_socket() {
        let found = format!("{found}; this user cannot reach it");
        return Check::lack(NAME, found, "MPS serves one user; run as the daemon's user");
    }
    let servers = match control.servers(ASK_LIMIT) {
        Ok(servers) => servers,
        Err(error) => return Check::lack(
            NAME,
            format!("{found}; {error}"),
            "memory of dead clients stays in quarantine until the control process of MPS answers",
        ),
    };
    let clients: usize = servers.iter().map(|server| server.clients.len()).sum();
    let (most, most_before_volta) = MPS_CLIENTS_MAX;
    let found = format!(
        "{found}; {}, of at most {most} on a GPU ({most_before_volta} before Volta)",
        units::counted(clients as u64, "client")
    );
    if clients >= most as usize {
        return Check::lack(
            NAME,
            found,
            "end some clients; MPS refuses more with CUDA error 808",
        );
    }
    Check::ok(NAME, found)
}
