//! The life of a control daemon: the supervisor starts it, takes over a predecessor's, restarts it when it dies, and
//! stops it. It leaves alone one that ran already.

use crate::directory::{MpsDirectory, Process};
use crate::process::{servers_of, start_time};
use crate::spawn::{start_control, StartError, ASK_LIMIT, LOOK_AGAIN, START_LIMIT};
use rgaps_session::{
    MpsControl, MpsError, MpsInfo, MpsState, MPS_DEFAULT_PIPE_DIRECTORY, MPS_PIPE_VARIABLE,
};
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// How many times in a row the supervisor restarts a control daemon.
const MAX_RESTARTS: u32 = 5;
/// The pause before the first restart. It doubles each time.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// After a control daemon has run for this long, the count of restarts in a row begins at 0 again.
const RUNS_WELL: Duration = Duration::from_secs(60);
/// How long `quit` may take, since servers free their GPU memory first.
const QUIT_LIMIT: Duration = Duration::from_secs(8);
/// How long the control daemon may take to end after `quit`, and after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(3);

enum SupervisorState {
    /// MPS is not wanted, or `step` was not called yet.
    Off,
    /// A control daemon is to be started at `until`.
    Waiting { until: Instant },
    /// This realm's own control daemon runs.
    Own { process: Process, since: Instant },
    /// The realm uses an MPS that others run.
    Foreign { directory: PathBuf },
    /// This realm's own control daemon was asked to quit, and does so when its last client has ended.
    Draining { process: Process },
    /// MPS cannot be started, or was restarted too often.
    Failed,
}

/// Keeps one control daemon running, or uses one that others run.
pub(crate) struct Supervisor {
    directory: MpsDirectory,
    /// Whether the configuration asks for MPS.
    wanted: bool,
    /// The pipe directory that the daemon's environment named.
    inherited: Option<PathBuf>,
    state: SupervisorState,
    /// Child processes. The supervisor waits for their end, so that they leave no zombies.
    children: Vec<Child>,
    /// Restarts in a row.
    failures: u32,
    /// All restarts.
    restarts: u32,
    /// Whether a control daemon has run under this daemon or a predecessor.
    has_run: bool,
    /// What is wrong with MPS, for `status`.
    reason: Option<String>,
    /// Whether `step` was called.
    begun: bool,
}

impl Supervisor {
    pub(crate) fn new(
        directory: MpsDirectory,
        wanted: bool,
        inherited: Option<PathBuf>,
    ) -> Supervisor {
        // The environment may name this realm's own MPS, which does not count as inherited.
        let inherited = inherited.filter(|named| *named != directory.pipes());
        let has_run = directory.has_record();
        Supervisor {
            directory,
            wanted,
            inherited,
            state: SupervisorState::Off,
            children: Vec::new(),
            failures: 0,
            restarts: 0,
            has_run,
            reason: None,
            begun: false,
        }
    }

    pub(crate) fn info(&self) -> MpsInfo {
        let text = |path: &Path| Some(path.display().to_string());
        let own = matches!(
            self.state,
            SupervisorState::Own { .. }
                | SupervisorState::Waiting { .. }
                | SupervisorState::Draining { .. }
        );
        let (state, control_pid) = match &self.state {
            SupervisorState::Off => (MpsState::Off, None),
            SupervisorState::Waiting { .. } => (MpsState::Starting, None),
            SupervisorState::Own { process, .. } => (MpsState::Own, Some(process.pid)),
            SupervisorState::Foreign { directory } => {
                (MpsState::Foreign, MpsControl::at(directory).recorded_pid())
            }
            SupervisorState::Draining { process } => (MpsState::Draining, Some(process.pid)),
            SupervisorState::Failed => (MpsState::Failed, None),
        };
        let pipe_directory = match &self.state {
            SupervisorState::Foreign { directory } => text(directory),
            _ if own => text(self.directory.pipes()),
            // Servers of a failed control daemon may live on, with their clients.
            SupervisorState::Failed if self.has_run => text(self.directory.pipes()),
            _ => None,
        };
        MpsInfo {
            state,
            pipe_directory,
            log_directory: own.then(|| text(&self.directory.logs())).flatten(),
            control_pid,
            restarts: self.restarts,
            quarantined: 0,
            reason: self.reason.clone(),
        }
    }

    /// Whether MPS runs, or `info` says why it does not.
    pub(crate) fn is_settled(&self) -> bool {
        self.begun && !matches!(self.state, SupervisorState::Waiting { .. })
    }

    /// Whether a process is to be watched or started.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(
            self.state,
            SupervisorState::Waiting { .. }
                | SupervisorState::Own { .. }
                | SupervisorState::Draining { .. }
        )
    }

    /// The realm's own pipe directory, and the process number of the control daemon that runs there.
    pub(crate) fn own(&self) -> (&Path, Option<u32>) {
        let pid = match &self.state {
            SupervisorState::Own { process, .. } | SupervisorState::Draining { process } => {
                Some(process.pid)
            }
            _ => None,
        };
        (self.directory.pipes(), pid)
    }

    /// Starts, watches and restarts the control daemon as far as that is due.
    pub(crate) fn step(&mut self, now: Instant) {
        self.reap();
        if !self.begun {
            self.begun = true;
            self.begin(now);
        }
        match &self.state {
            SupervisorState::Waiting { until } if now >= *until => self.start(),
            SupervisorState::Own { process, since } if !process.lives() => {
                let (pid, ran) = (process.pid, now.saturating_duration_since(*since));
                if ran >= RUNS_WELL {
                    self.failures = 0;
                }
                self.ended_badly(format!(
                    "the MPS control daemon (process {pid}) ended by itself"
                ));
            }
            SupervisorState::Draining { process } if !process.lives() => {
                self.directory.remove_record();
                self.reason = None;
                self.state = match self.wanted {
                    true => SupervisorState::Waiting { until: now },
                    false => SupervisorState::Off,
                };
            }
            _ => {}
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.wanted {
            if let Some(directory) = self.find_foreign() {
                tracing::info!(directory = %directory.display(), "using the MPS that runs already");
                self.state = SupervisorState::Foreign { directory };
                return;
            }
            self.state = SupervisorState::Waiting { until: now };
            return;
        }
        match self.directory.living_control() {
            Some(process) => {
                tracing::info!(
                    pid = process.pid,
                    "the previous daemon's MPS is not configured any more; stopping it"
                );
                self.drain(process);
            }
            None => self.directory.remove_record(),
        }
    }

    /// The pipe directory of an MPS that runs already and serves this user.
    fn find_foreign(&mut self) -> Option<PathBuf> {
        if let Some(named) = self.inherited.clone() {
            if MpsControl::at(&named).answers(ASK_LIMIT) {
                return Some(named);
            }
            tracing::warn!(directory = %named.display(), "{MPS_PIPE_VARIABLE} names a directory in which no MPS answers");
        }
        let default = MpsControl::at(MPS_DEFAULT_PIPE_DIRECTORY);
        if !default.has_socket() {
            return None;
        }
        let owner = std::fs::metadata(default.directory().join("control")).map(|there| there.uid());
        let own = rustix::process::geteuid().as_raw();
        if owner.as_ref().is_ok_and(|uid| *uid != own && *uid != 0) {
            let owner = owner.unwrap_or_default();
            self.reason = Some(format!(
                "user {owner} runs an MPS at '{MPS_DEFAULT_PIPE_DIRECTORY}', which serves only that user: it is \
                 not used, and processes must be started with 'rgaps run' to stay away from it"
            ));
            return None;
        }
        match default.ask("get_server_list", ASK_LIMIT) {
            Ok(_) => Some(default.directory().to_owned()),
            Err(MpsError::Refused { .. }) => None,
            Err(error) => {
                self.reason = Some(error.to_string());
                None
            }
        }
    }

    fn start(&mut self) {
        if let Some(process) = self.directory.living_control() {
            match self.take_over(process) {
                Ok(()) => return,
                Err(reason) => return self.ended_badly(reason),
            }
        }
        match start_control(&self.directory) {
            Ok((process, child)) => {
                self.children.push(child);
                tracing::info!(pid = process.pid, directory = %self.directory.pipes().display(), "MPS is running");
                self.ran(process);
            }
            Err(StartError::Never(reason)) => self.give_up(reason),
            Err(StartError::Again(reason)) => self.ended_badly(reason),
        }
    }

    fn ran(&mut self, process: Process) {
        self.has_run = true;
        self.reason = None;
        self.state = SupervisorState::Own {
            process,
            since: Instant::now(),
        };
    }

    /// Takes over a control daemon that a predecessor started.
    fn take_over(&mut self, process: Process) -> Result<(), String> {
        let control = MpsControl::at(self.directory.pipes());
        if self.directory.drains() {
            tracing::info!(
                pid = process.pid,
                "the previous daemon's MPS ends after its last client; waiting for it"
            );
            self.reason = Some(
                "the previous daemon's MPS takes no new clients and ends after its last one; then \
                 the daemon starts a new one"
                    .to_owned(),
            );
            self.state = SupervisorState::Draining { process };
            return Ok(());
        }
        let deadline = Instant::now() + START_LIMIT;
        while process.lives() {
            match control.ask("get_server_list", ASK_LIMIT) {
                Ok(_) => {
                    if let Err(error) = self.directory.write_record(process) {
                        tracing::error!(%error, "recording the process of MPS failed");
                    }
                    tracing::info!(pid = process.pid, "took over the previous daemon's MPS");
                    self.ran(process);
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => {
                    // It belongs to this realm, and a second control daemon in the same directory would be worse than none.
                    signal(process, Signal::KILL);
                    return Err(format!(
                        "the previous daemon's MPS did not answer and was killed: {error}"
                    ));
                }
                Err(_) => std::thread::sleep(LOOK_AGAIN),
            }
        }
        Err("the previous daemon's MPS has just ended".to_owned())
    }

    fn ended_badly(&mut self, reason: String) {
        self.directory.remove_record();
        if self.failures >= MAX_RESTARTS {
            return self.give_up(format!(
                "{reason}; it was restarted {MAX_RESTARTS} times. See '{}', then run 'rgaps down' and \
                 'rgaps up --mps'",
                self.directory.logs().display()
            ));
        }
        let pause = RESTART_PAUSE * (1 << self.failures);
        self.failures += 1;
        self.restarts += 1;
        tracing::error!(
            reason,
            pause_ms = pause.as_millis() as u64,
            "MPS ended; restarting it"
        );
        self.reason = Some(reason);
        self.state = SupervisorState::Waiting {
            until: Instant::now() + pause,
        };
    }

    fn give_up(&mut self, reason: String) {
        tracing::error!(reason, "MPS is not running");
        self.reason = Some(reason);
        self.state = SupervisorState::Failed;
    }

    /// Asks a control daemon to take no more clients and to end after its last one.
    fn drain(&mut self, process: Process) {
        self.directory.mark_draining();
        match MpsControl::at(self.directory.pipes()).quit_when_idle() {
            Ok(child) => self.children.push(child),
            Err(error) => tracing::error!(%error, "telling MPS to quit failed"),
        }
        self.state = SupervisorState::Draining { process };
    }

    /// Ends the control daemon that this supervisor runs.
    pub(crate) fn stop(&mut self) {
        let SupervisorState::Own { process, .. } = self.state else {
            return;
        };
        let control = MpsControl::at(self.directory.pipes());
        match control.servers(ASK_LIMIT) {
            Ok(servers) if servers.iter().any(|server| !server.clients.is_empty()) => {
                tracing::info!("MPS takes no new clients, and ends after its last one");
                return self.drain(process);
            }
            Ok(_) => {
                if let Err(error) = control.ask("quit", QUIT_LIMIT) {
                    tracing::error!(%error, "MPS does not quit");
                }
            }
            Err(error) => {
                tracing::error!(%error, "telling MPS to quit failed; ending it, although clients may use it")
            }
        }
        if !self.wait_for_end(process) {
            signal(process, Signal::TERM);
        }
        if !self.wait_for_end(process) {
            signal(process, Signal::KILL);
            self.wait_for_end(process);
        }
        for server in servers_of(self.directory.pipes(), false) {
            tracing::error!(
                pid = server,
                "an MPS server is still running after its control daemon has ended"
            );
        }
        self.directory.remove_record();
        self.state = SupervisorState::Off;
    }

    fn reap(&mut self) {
        self.children
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    fn wait_for_end(&mut self, process: Process) -> bool {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            self.reap();
            if !process.lives() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

fn signal(process: Process, signal: Signal) {
    // The number still names this process, unless the kernel gives it to another one between this check and the signal.
    if start_time(process.pid) != Some(process.start) {
        return;
    }
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    if let Some(Err(error)) = pid.map(|pid| kill_process(pid, signal)) {
        tracing::error!(%error, pid = process.pid, "sending a signal to MPS's control daemon failed");
    }
}
