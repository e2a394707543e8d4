//! CUDA's Multi-Process Service (MPS) for a realm: running its control daemon, and asking it whether
//! a dead client is gone from the GPUs.
//!
//! Under MPS a process's work runs through a server, so the end of the process does not prove that
//! the work has ended: only MPS's control can say that. All questions go through a program that may
//! hang, so they are asked on a thread of their own; the engine hands in who died and later finds who
//! is proven to be gone. This process itself stays outside MPS, see [`leave_environment`].

mod place;
mod process;
mod prover;
mod supervisor;

pub use place::Place;
pub(crate) use process::numbers;

use process::directories_of_controls;
use prover::Prover;
use rgaps_session::{MpsInfo, MPS_DEFAULT_PIPE_DIRECTORY, MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use supervisor::Supervisor;

/// How often the control daemon is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long one does not look again for control daemons that are not ours: it means to look at every process.
const FOUND_FRESH: Duration = Duration::from_millis(250);
/// How long a daemon that leaves waits for its MPS to have ended.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// A directory that is not there: a driver that looks for MPS in it finds none.
const NOWHERE: &str = "/nonexistent/rgapsd-stays-outside-mps";

/// A client whose process has ended.
#[derive(Clone, Debug, Default)]
pub struct DeadClient {
    /// What to call it.
    pub name: String,
    /// Its process in this one's PID namespace; 0 if that was not known.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its numbers in all PID namespaces that it was in, as far as they are known.
    pub numbers: Vec<u32>,
    /// The pipe directories of every MPS that it may have been under.
    pub pipes: Vec<PathBuf>,
    /// Its process lives, but has no use for what it has on the GPUs: its context is lost.
    pub lives: bool,
}

/// What the engine wants of MPS.
pub trait Mps: Send {
    /// How it is; `quarantined` is the engine's to know.
    fn info(&self) -> MpsInfo;
    /// Begins to find out whether a dead client is gone from the GPUs.
    fn prove(&mut self, number: u64, client: DeadClient);
    /// Those that are gone, by the numbers given to `prove`; each is told once.
    fn proven(&mut self) -> Vec<u64>;
    /// Why another one is not proven to be gone yet.
    fn doubt(&self, number: u64) -> Option<String>;
    /// The directory that processes use that name none, if a control of root's or of this user's has its socket there.
    fn default_directory(&self) -> Option<PathBuf>;
    /// Whether a control of root's or of this user's serves a directory that a client names. Does not look into it.
    fn is_found(&self, directory: &Path) -> bool;
    /// Ends what was started. What is asked afterwards is not answered.
    fn stop(&mut self);
}

/// Takes this process out of MPS, and gives the directory that its environment named. To be called
/// before any thread is started and CUDA is loaded.
pub fn leave_environment() -> Option<PathBuf> {
    let named = std::env::var_os(MPS_PIPE_VARIABLE).map(PathBuf::from);
    // Not only removed: the driver would look in the default directory then.
    std::env::set_var(MPS_PIPE_VARIABLE, NOWHERE);
    std::env::remove_var(MPS_LOG_VARIABLE);
    named.filter(|directory| directory.is_absolute() && directory.as_os_str() != NOWHERE)
}

/// What the thread has found out.
#[derive(Default)]
struct Board {
    info: MpsInfo,
    /// MPS runs, or it is known why not.
    settled: bool,
    proven: Vec<u64>,
    doubts: HashMap<u64, String>,
}

enum Order {
    Prove(u64, DeadClient),
    Stop(Sender<()>),
}

/// MPS as the daemon keeps it, on a thread of its own that is started when there is something to do.
///
/// Dropping it leaves a control daemon that was started to run, for the next daemon to take over;
/// [`Mps::stop`] ends it.
pub struct Keeper {
    place: Place,
    wanted: bool,
    inherited: Option<PathBuf>,
    board: Arc<Mutex<Board>>,
    thread: Option<Sender<Order>>,
    found: Mutex<Found>,
}

/// Directories of control daemons that were found, and when one looked.
#[derive(Default)]
struct Found {
    directories: Vec<PathBuf>,
    at: Option<Instant>,
}

impl Keeper {
    /// `wanted`: MPS is to run. `inherited`: what [`leave_environment`] gave.
    pub fn new(place: Place, wanted: bool, inherited: Option<PathBuf>) -> Keeper {
        let mut keeper = Keeper {
            place,
            wanted,
            inherited,
            board: Arc::default(),
            thread: None,
            found: Mutex::default(),
        };
        if wanted || keeper.place.has_record() {
            keeper.order(None);
        }
        keeper
    }

    /// Waits until MPS runs, or it is known why it does not.
    pub fn wait(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.thread.is_some() && !self.board().settled && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        lock(&self.board)
    }

    /// Gives the thread an order, or only starts it. False: there is no thread, nor can there be one.
    fn order(&mut self, order: Option<Order>) -> bool {
        if self.thread.is_none() {
            let (sender, orders) = channel();
            let supervisor =
                Supervisor::new(self.place.clone(), self.wanted, self.inherited.clone());
            let board = self.board.clone();
            let started = std::thread::Builder::new()
                .name("rgapsd-mps".to_owned())
                .spawn(move || run(supervisor, &orders, &board));
            match started {
                Ok(_) => self.thread = Some(sender),
                Err(error) => {
                    tracing::error!(%error, "starting the thread for MPS failed");
                    return false;
                }
            }
        }
        match (order, &self.thread) {
            (Some(order), Some(thread)) => thread.send(order).is_ok(),
            _ => true,
        }
    }
}

impl Mps for Keeper {
    fn info(&self) -> MpsInfo {
        self.board().info.clone()
    }

    fn prove(&mut self, number: u64, client: DeadClient) {
        if !self.order(Some(Order::Prove(number, client))) {
            let doubt =
                "the daemon could not start a thread to ask the MPS control daemon".to_owned();
            self.board().doubts.insert(number, doubt);
        }
    }

    fn proven(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.board().proven)
    }

    fn doubt(&self, number: u64) -> Option<String> {
        self.board().doubts.get(&number).cloned()
    }

    fn default_directory(&self) -> Option<PathBuf> {
        let directory = PathBuf::from(MPS_DEFAULT_PIPE_DIRECTORY);
        let owner = std::fs::metadata(directory.join("control")).ok()?.uid();
        // Anyone can make that directory.
        let trusted = [0, rustix::process::geteuid().as_raw()].contains(&owner);
        trusted.then_some(directory)
    }

    fn is_found(&self, directory: &Path) -> bool {
        let own = [Some(self.place.pipes()), self.inherited.as_deref()];
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
        if thread.send(Order::Stop(done)).is_ok() && ended.recv_timeout(STOP_LIMIT).is_err() {
            tracing::error!("MPS did not stop in {} s", STOP_LIMIT.as_secs());
        }
    }
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(mut supervisor: Supervisor, orders: &Receiver<Order>, board: &Mutex<Board>) {
    let mut prover = Prover::default();
    loop {
        let now = Instant::now();
        supervisor.step(now);
        publish(&supervisor, board);
        let (proven, doubts) = prover.step(now, supervisor.own());
        {
            let mut board = lock(board);
            for number in &proven {
                board.doubts.remove(number);
            }
            board.proven.extend(proven);
            board.doubts.extend(doubts);
        }
        let look = supervisor.is_busy().then(|| Instant::now() + LOOK);
        let order = match [look, prover.next()].into_iter().flatten().min() {
            Some(next) => orders.recv_timeout(next.saturating_duration_since(Instant::now())),
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match order {
            Ok(Order::Prove(number, client)) => prover.add(number, client, Instant::now()),
            Ok(Order::Stop(done)) => {
                supervisor.stop();
                publish(&supervisor, board);
                // Who waited may have given up.
                let _ = done.send(());
                return;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn publish(supervisor: &Supervisor, board: &Mutex<Board>) {
    let mut board = lock(board);
    board.info = supervisor.info();
    board.settled = supervisor.is_settled();
}
