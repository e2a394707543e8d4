//! Proof that the GPU work of dead clients has ended: their MPS no longer lists them, or has ended itself.
//!
//! An answer counts only if the daemon can judge it: if both number processes alike, and if no server runs without its
//! control daemon. Where they number processes differently, only an MPS without any client is proof.

use crate::process::{is_control_here, servers_of, start_time};
use crate::DeadClient;
use rgaps_session::{MpsControl, MpsError, MpsServer};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a control daemon may take to answer a question.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// The first pause before asking again. It doubles each time.
const AGAIN_FIRST: Duration = Duration::from_millis(5);
/// The longest pause.
const AGAIN_LAST: Duration = Duration::from_secs(1);

/// A dead client that the prover asks about.
struct Case {
    client: DeadClient,
    /// The control daemons that have not confirmed the end of its work yet.
    controls: Vec<MpsControl>,
    next: Instant,
    pause: Duration,
}

/// The dead clients that the prover asks about.
#[derive(Default)]
pub(crate) struct Prover {
    cases: BTreeMap<u64, Case>,
    /// The control daemons whose processes were visible at some time. If such a process is not visible now, it has ended.
    seen: BTreeSet<MpsControl>,
}

/// What the prover saw of a pipe directory's MPS.
enum View {
    /// The servers that a control daemon lists. `comparable`: it numbers processes as this daemon does.
    Servers {
        servers: Vec<MpsServer>,
        comparable: bool,
    },
    /// Neither a control daemon nor a server runs.
    Empty,
}

impl Prover {
    pub(crate) fn add(&mut self, number: u64, client: DeadClient, now: Instant) {
        let controls = client.pipes.iter().map(MpsControl::at).collect();
        let case = Case {
            client,
            controls,
            next: now,
            pause: AGAIN_FIRST,
        };
        self.cases.insert(number, case);
    }

    /// When to ask next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.cases.values().map(|case| case.next).min()
    }

    /// Asks about the cases that are due. Returns the proven numbers, and why the other due ones are not proven. `own`: the realm's
    /// own pipe directory, and the process number of its control daemon if one lives.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        own: (&Path, Option<u32>),
    ) -> (Vec<u64>, Vec<(u64, String)>) {
        let mut views: BTreeMap<MpsControl, Result<View, String>> = BTreeMap::new();
        let (mut proven, mut doubts) = (Vec::new(), Vec::new());
        for (number, case) in self.cases.iter_mut().filter(|(_, case)| case.next <= now) {
            let mut doubt = None;
            case.controls.retain(|control| {
                let view = views
                    .entry(control.clone())
                    .or_insert_with(|| look(control, own, &mut self.seen));
                let left = view
                    .as_ref()
                    .map_err(Clone::clone)
                    .and_then(|view| has_left(control, view, &case.client));
                match left {
                    Ok(()) => false,
                    Err(reason) => {
                        doubt = Some(reason);
                        true
                    }
                }
            });
            match doubt {
                None => proven.push(*number),
                Some(reason) => {
                    tracing::debug!(
                        client = case.client.name,
                        reason,
                        "no proof yet that this client's GPU work has ended"
                    );
                    doubts.push((*number, reason));
                    case.next = Instant::now() + case.pause;
                    case.pause = (case.pause * 2).min(AGAIN_LAST);
                }
            }
        }
        for number in &proven {
            self.cases.remove(number);
        }
        (proven, doubts)
    }
}

/// Asks a control daemon for its servers, and checks the answer against the visible processes. `Err`: why the answer cannot be judged.
fn look(
    control: &MpsControl,
    own: (&Path, Option<u32>),
    seen: &mut BTreeSet<MpsControl>,
) -> Result<View, String> {
    let is_own = own.0 == control.directory();
    let own_pid = own.1.filter(|_| is_own);
    // The supervisor knows the process of the realm's own control daemon. Other control daemons write their numbers to a file.
    let here = own_pid.or_else(|| control.recorded_pid().filter(|pid| is_control_here(*pid)));
    if is_own || here.is_some() {
        seen.insert(control.clone());
    }
    let asked = control.servers(ASK_LIMIT);
    match asked {
        Ok(servers) => {
            let listed = |pid: &u32| servers.iter().any(|server| server.pid == *pid);
            // The environment of other users' servers cannot be read, so they are not in this list.
            let mut visible = servers_of(control.directory(), false).into_iter();
            match visible.find(|pid| !listed(pid)) {
                // No control daemon lists the clients of this server.
                Some(stray) if here.is_some() => Err(stray_server(stray)),
                _ => Ok(View::Servers {
                    servers,
                    comparable: here.is_some(),
                }),
            }
        }
        Err(error) => {
            let lives = here.is_some_and(|pid| start_time(pid).is_some());
            let ended = match error {
                _ if !control.has_socket() || is_own => !lives,
                // A refused connection means that it has ended, since one that hangs does not refuse. But that its process is not
                // visible proves something only if it was visible before.
                MpsError::Refused { .. } => !lives && seen.contains(control),
                _ => false,
            };
            // Servers of the realm's own MPS run as this user, so their environment can be read.
            match servers_of(control.directory(), !is_own).first() {
                Some(stray) if ended => Err(stray_server(*stray)),
                None if ended => Ok(View::Empty),
                _ => Err(error.to_string()),
            }
        }
    }
}

fn stray_server(pid: u32) -> String {
    format!(
        "the MPS server {pid} runs without its control daemon, so nobody can tell which of its clients \
         have ended; end it when its clients have ended"
    )
}

/// Whether MPS no longer lists the client. The error says why that is not proven.
fn has_left(control: &MpsControl, view: &View, client: &DeadClient) -> Result<(), String> {
    let View::Servers {
        servers,
        comparable,
    } = view
    else {
        return Ok(());
    };
    if !comparable || client.pid == 0 {
        return match servers.iter().any(|server| !server.clients.is_empty()) {
            false => Ok(()),
            true => Err(
                "MPS and the daemon are in different PID namespaces, so a client \
                 counts as gone only when MPS has no clients at all"
                    .to_owned(),
            ),
        };
    }
    let is_it = |pid: &u32| *pid == client.pid || client.numbers.contains(pid);
    let Some(server) = servers
        .iter()
        .find(|server| server.clients.iter().any(is_it))
    else {
        return Ok(());
    };
    if server.clients.contains(&client.pid) {
        // The client has ended, so the living process is another one, whose work must not be terminated.
        if !client.lives && start_time(client.pid).is_some() {
            return Err(format!(
                "MPS lists process {}, and a living process has that number",
                client.pid
            ));
        }
        if let Err(error) = control.terminate(server.pid, client.pid, ASK_LIMIT) {
            return Err(error.to_string());
        }
    }
    Err(format!(
        "MPS server {} still lists process {}",
        server.pid, client.pid
    ))
}
