//! The dead clients that wait for proof, and what their owner keeps for them meanwhile.
//!
//! [`Quarantine::admit`] takes a client together with what it holds, as an opaque value of type `H`.
//! [`Quarantine::poll`] returns that value once MPS has confirmed that the client's GPU work has ended. If MPS never
//! confirms it, the value stays here for good, and after [`PROOF_LIMIT`] log and warnings name the client.

use crate::{DeadClient, Mps};
use rgaps_session::{MpsInfo, MpsState, MPS_PIPE_VARIABLE};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often to look for proof.
const LOOK: Duration = Duration::from_millis(5);
/// How often to look for proof when all clients are overdue.
const LOOK_OVERDUE: Duration = Duration::from_millis(250);
/// After this long without proof a client is overdue: log and status say so.
const PROOF_LIMIT: Duration = Duration::from_secs(10);

/// A client that waits for proof.
struct Ward<H> {
    name: String,
    pid: u32,
    holdings: H,
    since: Instant,
    overdue: bool,
}

/// A client whose GPU work has ended, as MPS has confirmed.
pub struct Proven<H> {
    /// Its name, for messages to people.
    pub name: String,
    /// Its process number; 0 if unknown.
    pub pid: u32,
    /// What it held, as given to [`Quarantine::admit`].
    pub holdings: H,
}

/// Dead clients that wait for proof that their GPU work has ended.
pub struct Quarantine<H> {
    mps: Option<Box<dyn Mps>>,
    wards: BTreeMap<u64, Ward<H>>,
    next_ward: u64,
    /// When to look for proof next. None: nobody waits.
    look: Option<Instant>,
}

impl<H> Default for Quarantine<H> {
    fn default() -> Quarantine<H> {
        Quarantine {
            mps: None,
            wards: BTreeMap::new(),
            next_ward: 0,
            look: None,
        }
    }
}

impl<H> Quarantine<H> {
    /// Sets the MPS to ask. Without one, no client is under MPS.
    pub fn set_mps(&mut self, mps: Box<dyn Mps>) {
        self.mps = Some(mps);
    }

    /// Whether clients can be under MPS at all.
    pub fn has_mps(&self) -> bool {
        self.mps.is_some()
    }

    /// The state of MPS, and how many clients wait for proof.
    pub fn info(&self) -> MpsInfo {
        MpsInfo {
            quarantined: self.wards.len() as u32,
            ..self.mps_info()
        }
    }

    fn mps_info(&self) -> MpsInfo {
        self.mps.as_ref().map(|mps| mps.info()).unwrap_or_default()
    }

    /// Ends the MPS that this daemon runs. An MPS with clients ends after its last one.
    pub fn stop_mps(&mut self) {
        if let Some(mps) = &mut self.mps {
            mps.stop();
        }
    }

    /// When [`poll`](Quarantine::poll) has something to do next.
    pub fn next_look(&self) -> Option<Instant> {
        self.look
    }

    /// Warnings for `status`.
    pub fn warnings(&self) -> Vec<String> {
        let info = self.mps_info();
        let failed = match info.state {
            MpsState::Failed => Some("MPS is not running"),
            MpsState::Starting if info.restarts > 0 => Some("MPS is being restarted"),
            _ => info.reason.as_ref().map(|_| "MPS"),
        };
        let failed = failed.map(|what| format!("{what}: {}", info.reason.unwrap_or_default()));
        let overdue = self.wards.iter().filter(|(_, ward)| ward.overdue);
        let overdue = overdue.map(|(number, ward)| {
            format!(
                "client '{}' (process {}) has died under MPS, or lost its GPU, and is in quarantine; its memory \
                 is not reused: {}",
                ward.name,
                ward.pid,
                self.doubt(*number)
            )
        });
        failed.into_iter().chain(overdue).collect()
    }

    fn doubt(&self, ward: u64) -> String {
        let doubt = self.mps.as_ref().and_then(|mps| mps.doubt(ward));
        doubt.unwrap_or_else(|| "MPS's control has not answered yet".to_owned())
    }

    /// Adds to a dead client every MPS that it may have been under. None: there is no such MPS.
    ///
    /// A directory that the client named counts only if the daemon finds a control daemon for it: anyone can make a folder
    /// that looks like that of an MPS which never answers.
    fn perhaps_under_mps(&self, mut dead: DeadClient) -> Option<DeadClient> {
        let mps = self.mps.as_ref()?;
        dead.pipes.retain(|named| {
            let found = mps.is_found(named);
            if !found {
                tracing::warn!(
                    client = dead.name,
                    directory = %named.display(),
                    "a client that has ended said that it was under an MPS there, but neither root nor the daemon's user \
                     runs one: if one runs, start the daemon with {MPS_PIPE_VARIABLE} set to it"
                );
            }
            found
        });
        dead.pipes
            .extend(mps.info().pipe_directory.map(PathBuf::from));
        dead.pipes.extend(mps.default_directory());
        dead.pipes.sort_unstable();
        dead.pipes.dedup();
        (!dead.pipes.is_empty()).then_some(dead)
    }

    /// Keeps a dead client until there is proof. False: it was under no MPS, so its GPU work ended with its process.
    pub fn admit(&mut self, dead: DeadClient, holdings: H, now: Instant) -> bool {
        let dead = self.perhaps_under_mps(dead);
        let (Some(dead), Some(mps)) = (dead, &mut self.mps) else {
            return false;
        };
        let number = self.next_ward;
        self.next_ward += 1;
        tracing::info!(
            client = dead.name,
            pid = dead.pid,
            "a client that may use MPS has ended; its memory is in quarantine until MPS confirms the end of its GPU work"
        );
        let ward = Ward {
            name: dead.name.clone(),
            pid: dead.pid,
            holdings,
            since: now,
            overdue: false,
        };
        mps.prove(number, dead);
        self.wards.insert(number, ward);
        self.look = Some(now + LOOK);
        true
    }

    /// Returns the clients that have been proven since the last call, if it is time to look.
    pub fn poll(&mut self, now: Instant) -> Vec<Proven<H>> {
        let Some(mps) = &mut self.mps else {
            return Vec::new();
        };
        if self.look.is_none_or(|look| now < look) {
            return Vec::new();
        }
        let numbers = mps.proven();
        let wards = numbers
            .iter()
            .filter_map(|number| self.wards.remove(number));
        let proven = wards.map(|ward| ward.proven(now)).collect();
        self.note_overdue(now);
        let pause = match self.wards.values().any(|ward| !ward.overdue) {
            true => LOOK,
            false => LOOK_OVERDUE,
        };
        self.look = (!self.wards.is_empty()).then(|| now + pause);
        proven
    }

    /// Logs, once, each client that has waited too long.
    fn note_overdue(&mut self, now: Instant) {
        let is_late = |ward: &Ward<H>| {
            !ward.overdue && now.saturating_duration_since(ward.since) >= PROOF_LIMIT
        };
        let wards = self.wards.iter();
        let late: Vec<u64> = wards
            .filter_map(|(number, ward)| is_late(ward).then_some(*number))
            .collect();
        for number in late {
            let doubt = self.doubt(number);
            if let Some(ward) = self.wards.get_mut(&number) {
                ward.overdue = true;
                tracing::error!(
                    client = ward.name,
                    pid = ward.pid,
                    doubt,
                    "a dead client stays in quarantine, with all memory that it held"
                );
            }
        }
    }
}

impl<H> Ward<H> {
    fn proven(self, now: Instant) -> Proven<H> {
        let waited = now.saturating_duration_since(self.since);
        tracing::info!(
            client = self.name,
            pid = self.pid,
            ms = waited.as_millis() as u64,
            "MPS confirms that a client is gone"
        );
        Proven {
            name: self.name,
            pid: self.pid,
            holdings: self.holdings,
        }
    }
}
