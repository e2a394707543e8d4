//! What publishers' and subscribers' processes have in common.

use crate::board::{self, Actor, Board};
use crate::steps::{arm, Fate, Role};
use anyhow::{bail, Context};
use rgaps::{ClientError, Node, OpenError};
use rgaps_testkit::Random;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a process tries to join while daemons die under its hands. The supervisor loses its
/// patience earlier.
const JOIN_TIMEOUT: Duration = Duration::from_secs(240);
const JOIN_PAUSE: Duration = Duration::from_millis(10);

/// What a process is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub role: Role,
    /// Its place in the scoreboard.
    pub index: u32,
    /// Of `topics::KINDS`.
    pub topic: usize,
    pub seed: u64,
    /// Whether it is to live, and may expect to miss nothing.
    pub survivor: bool,
    pub socket: PathBuf,
    /// The scoreboard's descriptor.
    pub board: i32,
    pub fate: Option<Fate>,
}

impl Spec {
    /// What listings call it.
    pub fn name(&self) -> String {
        let kind = if self.survivor { "survivor" } else { "victim" };
        format!("{kind}-{:?}-{}", self.role, self.index)
    }
}

/// A process at work.
pub struct Part {
    pub spec: Spec,
    pub board: &'static Board,
    pub actor: &'static Actor,
    pub node: Node,
    pub random: Random,
}

/// Runs a publisher or subscriber until it is told to leave, or dies.
pub fn run(spec: &Spec) -> anyhow::Result<()> {
    die_with_parent();
    // SAFETY: the supervisor, our parent, made the board and left the descriptor to us.
    let board = unsafe { Board::map(spec.board) }?;
    let actor = &board.actor[spec.index as usize];
    arm(&board.steps, spec.role, spec.fate.clone());
    actor.pid.store(std::process::id(), Ordering::Release);
    let config = crate::daemon::config(&spec.socket);
    let node = until_joined(|| Node::builder(&spec.name()).config(config.clone()).build())?;
    let part = Part {
        spec: spec.clone(),
        board,
        actor,
        node,
        random: Random::new(spec.seed),
    };
    match spec.role {
        Role::Publisher => crate::publisher::run(part)?,
        Role::Subscriber => crate::subscriber::run(part)?,
        Role::Daemon => bail!("a daemon is no actor"),
    }
    actor.phase.store(board::LEFT, Ordering::Release);
    Ok(())
}

/// Joins, again and again while there is no daemon.
pub fn until_joined<T>(mut join: impl FnMut() -> Result<T, OpenError>) -> anyhow::Result<T> {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    loop {
        match join() {
            Ok(joined) => return Ok(joined),
            Err(OpenError::Client(error)) if is_passing(&error) && Instant::now() < deadline => {
                std::thread::sleep(JOIN_PAUSE);
            }
            Err(error) => return Err(error).context("cannot join"),
        }
    }
}

/// Whether an error is what a dead daemon looks like.
pub fn is_passing(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Launch(_) | ClientError::DaemonLost { .. }
    )
}

impl Part {
    /// Counts what must not happen, and says what it was.
    pub fn complain(&self, count: &AtomicU64, what: impl Display) {
        count.fetch_add(1, Ordering::Relaxed);
        eprintln!("{} on {}: {what}", self.spec.name(), self.kind().name);
    }

    pub fn kind(&self) -> &'static crate::topics::Kind {
        &crate::topics::KINDS[self.spec.topic]
    }
}

/// Has the kernel kill this process when the supervisor is gone.
pub fn die_with_parent() {
    let signal = Some(rustix::process::Signal::KILL);
    let _ = rustix::process::set_parent_process_death_signal(signal);
}
