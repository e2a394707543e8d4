//! The thread that keeps MPS for the daemon: it supervises the control daemon and asks it for proof.
//!
//! The daemon's thread sends it commands, and reads what it found in a table that both lock for a few instructions.
//! The thread starts with the first command, so a daemon without MPS has none.

use crate::directory::MpsDirectory;
use crate::process::directories_of_controls;
use crate::prover::Prover;
use crate::supervisor::Supervisor;
use crate::{DeadClient, Mps};
use rgaps_session::{MpsInfo, MPS_DEFAULT_PIPE_DIRECTORY};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often to look at the control daemon.
const LOOK: Duration = Duration::from_millis(200);
/// How long a search for other control daemons stays valid: it looks at every process.
const FOUND_FRESH: Duration = Duration::from_millis(250);
/// How long a daemon that leaves waits for the end of its MPS.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// The findings of the thread, for the daemon's thread.
#[derive(Default)]
struct Findings {
    info: MpsInfo,
    /// Whether MPS runs, or `info` says why it does not.
    settled: bool,
    proven: Vec<u64>,
    doubts: HashMap<u64, String>,
}

enum Command {
    Prove(u64, DeadClient),
    Stop(Sender<()>),
}

/// The realm's MPS, kept by a thread of its own.
///
/// Dropping a `Keeper` leaves its control daemon running, for the next daemon to take over. [`Mps::stop`] ends the control daemon.
pub struct Keeper {
    directory: MpsDirectory,
    wanted: bool,
    inherited: Option<PathBuf>,
    findings: Arc<Mutex<Findings>>,
    thread: Option<Sender<Command>>,
    found: Mutex<Found>,
}

/// The directories of control daemons at the last search, and when that was.
#[derive(Default)]
struct Found {
    directories: Vec<PathBuf>,
    at: Option<Instant>,
}

impl Keeper {
    /// `wanted`: whether the configuration asks for MPS. `inherited`: what [`leave_environment`](crate::leave_environment) returned.
    pub fn new(directory: MpsDirectory, wanted: bool, inherited: Option<PathBuf>) -> Keeper {
        let mut keeper = Keeper {
            directory,
            wanted,
            inherited,
            findings: Arc::default(),
            thread: None,
            found: Mutex::default(),
        };
        if wanted || keeper.directory.has_record() {
            keeper.command(None);
        }
        keeper
    }

    /// Waits until MPS runs or has failed, for at most `limit`.
    pub fn wait(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.thread.is_some() && !self.findings().settled && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn findings(&self) -> MutexGuard<'_, Findings> {
        lock(&self.findings)
    }

    /// Sends the thread a command, or only starts it. False: the thread cannot be started.
    fn command(&mut self, command: Option<Command>) -> bool {
        if self.thread.is_none() {
            let (sender, commands) = channel();
            let supervisor =
                Supervisor::new(self.directory.clone(), self.wanted, self.inherited.clone());
            let findings = self.findings.clone();
            let started = std::thread::Builder::new()
                .name("rgapsd-mps".to_owned())
                .spawn(move || run(supervisor, &commands, &findings));
            match started {
                Ok(_) => self.thread = Some(sender),
                Err(error) => {
                    tracing::error!(%error, "starting the thread for MPS failed");
                    return false;
                }
            }
        }
        match (command, &self.thread) {
            (Some(command), Some(thread)) => thread.send(command).is_ok(),
            _ => true,
        }
    }
}

impl Mps for Keeper {
    fn info(&self) -> MpsInfo {
        self.findings().info.clone()
    }

    fn prove(&mut self, number: u64, client: DeadClient) {
        if !self.command(Some(Command::Prove(number, client))) {
            let doubt =
                "the daemon could not start a thread to ask the MPS control daemon".to_owned();
            self.findings().doubts.insert(number, doubt);
        }
    }

    fn proven(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.findings().proven)
    }

    fn doubt(&self, number: u64) -> Option<String> {
        self.findings().doubts.get(&number).cloned()
    }

    fn default_directory(&self) -> Option<PathBuf> {
        let directory = PathBuf::from(MPS_DEFAULT_PIPE_DIRECTORY);
        let owner = std::fs::metadata(directory.join("control")).ok()?.uid();
        // Any user can create that directory.
        let trusted = [0, rustix::process::geteuid().as_raw()].contains(&owner);
        trusted.then_some(directory)
    }

    fn is_found(&self, directory: &Path) -> bool {
        let own = [Some(self.directory.pipes()), self.inherited.as_deref()];
        let is_default = directory == Path::new(MPS_DEFAULT_PIPE_DIRECTORY);
        if own.contains(&Some(directory)) || (is_default && self.default_directory().is_some()) {
            return true;
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = found.at.is_some_and(|at| at.elapsed() < FOUND_FRESH);
        if !fresh && !found.directories.iter().any(|known| known == directory) {
            found.directories = directories_of_controls();
            found.at = Some(Instant::now());
        }
        found.directories.iter().any(|known| known == directory)
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let (done, ended) = channel();
        if thread.send(Command::Stop(done)).is_ok() && ended.recv_timeout(STOP_LIMIT).is_err() {
            tracing::error!("MPS did not stop in {} s", STOP_LIMIT.as_secs());
        }
    }
}

fn lock(findings: &Mutex<Findings>) -> MutexGuard<'_, Findings> {
    findings.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(mut supervisor: Supervisor, commands: &Receiver<Command>, findings: &Mutex<Findings>) {
    let mut prover = Prover::default();
    loop {
        let now = Instant::now();
        supervisor.step(now);
        publish(&supervisor, findings);
        let (proven, doubts) = prover.step(now, supervisor.own());
        {
            let mut findings = lock(findings);
            for number in &proven {
                findings.doubts.remove(number);
            }
            findings.proven.extend(proven);
            findings.doubts.extend(doubts);
        }
        let look = supervisor.is_busy().then(|| Instant::now() + LOOK);
        let command = match [look, prover.next()].into_iter().flatten().min() {
            Some(next) => commands.recv_timeout(next.saturating_duration_since(Instant::now())),
            None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match command {
            Ok(Command::Prove(number, client)) => prover.add(number, client, Instant::now()),
            Ok(Command::Stop(done)) => {
                supervisor.stop();
                publish(&supervisor, findings);
                // This fails if the daemon has stopped waiting.
                let _ = done.send(());
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn publish(supervisor: &Supervisor, findings: &Mutex<Findings>) {
    let mut findings = lock(findings);
    findings.info = supervisor.info();
    findings.settled = supervisor.is_settled();
}
