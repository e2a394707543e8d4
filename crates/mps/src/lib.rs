//! NVIDIA's Multi-Process Service (MPS) for a realm: running it, and proving that the GPU work of dead clients has ended.
//!
//! Under MPS a process's work runs through a server, so the end of the process does not prove that its work has ended.
//! Only MPS's control daemon can confirm that. This crate does three things for the daemon:
//!
//! - [`Keeper`] runs a control daemon in the realm's [`MpsDirectory`], or uses one that runs already. It asks all
//!   questions on a thread of its own, because NVIDIA's program may hang.
//! - [`Quarantine`] lists the dead clients that wait for proof. What a client held is an opaque value: the owner of
//!   the quarantine hands it in, and gets it back with the proof.
//! - [`leave_environment`] keeps the daemon itself outside MPS.
//!
//! Invariant: without proof the quarantine returns nothing, however long the control daemon is silent.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod directory;
mod environment;
mod identity;
mod keeper;
mod process;
mod prover;
mod quarantine;
mod spawn;
mod supervisor;

pub use directory::MpsDirectory;
pub use environment::leave_environment;
pub use identity::{BadPipeDirectory, MpsIdentity};
pub use keeper::Keeper;
pub use quarantine::{Proven, Quarantine};

use rgaps_session::MpsInfo;
use std::path::{Path, PathBuf};

/// A client whose process has ended, or has lost its GPU context.
#[derive(Clone, Debug, Default)]
pub struct DeadClient {
    /// Its name, for messages to people.
    pub name: String,
    /// Its process number in the daemon's PID namespace; 0 if unknown.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its process numbers in all PID namespaces that contain it, as far as they are known.
    pub numbers: Vec<u32>,
    /// The pipe directories of every MPS that it may have been under.
    pub pipes: Vec<PathBuf>,
    /// Whether its process lives and only its GPU context is lost.
    pub lives: bool,
}

/// What [`Quarantine`] needs of MPS. Calls return at once: the implementation asks slow questions on another thread.
pub trait Mps: Send {
    /// The state of the realm's MPS. The implementation leaves `quarantined` at 0.
    fn info(&self) -> MpsInfo;
    /// Begins to find out whether a dead client's GPU work has ended.
    fn prove(&mut self, number: u64, client: DeadClient);
    /// Returns the numbers given to `prove` that have been proven since the last call.
    fn proven(&mut self) -> Vec<u64>;
    /// Why there is no proof for a number yet. None: the control daemon has not answered yet.
    fn doubt(&self, number: u64) -> Option<String>;
    /// The pipe directory of processes that name none, if root or this user runs a control daemon there.
    fn default_directory(&self) -> Option<PathBuf>;
    /// Whether root or this user runs a control daemon for a directory that a client named. Does not look into it.
    fn is_found(&self, directory: &Path) -> bool;
    /// Ends the MPS that this daemon runs. Call it last: it also ends the search for proof.
    fn stop(&mut self);
}
