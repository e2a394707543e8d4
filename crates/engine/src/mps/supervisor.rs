//! Running a control daemon: starting it, taking over a predecessor's, starting it again when it
//! dies, and stopping it. One that was there already is left alone.

use super::place::{Place, Process};
use super::process::{servers_of, start_time};
use rgaps_session::{
    unblock_signals, MpsControl, MpsError, MpsInfo, MpsState, MPS_CONTROL_PROGRAM,
    MPS_DEFAULT_PIPE_DIRECTORY, MPS_LOG_VARIABLE, MPS_PIPE_VARIABLE,
};
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a control daemon may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take over one question.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// How often one looks whether it answers, or has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often it is started again in a row.
const MAX_RESTARTS: u32 = 5;
/// How long before the first of these; doubled each time.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// After running so long, what was before is forgotten.
const RUNS_WELL: Duration = Duration::from_secs(60);
/// How long `quit` may take: servers give back what they have on the GPUs.
const QUIT_LIMIT: Duration = Duration::from_secs(8);
/// How long it may take to end afterwards, and after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(3);
/// What is quoted of what it printed.
const TAIL_BYTES: usize = 600;

enum State {
    /// Not wanted, or nothing was done yet.
    Off,
    /// To be started, at once or after a pause.
    Waiting {
        until: Instant,
    },
    Ours {
        process: Process,
        since: Instant,
    },
    Foreign {
        directory: PathBuf,
    },
    /// A predecessor told it to quit; it does so when its clients have ended.
    Draining {
        process: Process,
    },
    Failed,
}

/// Keeps one control daemon running, or knows of one that others run.
pub(super) struct Supervisor {
    place: Place,
    wanted: bool,
    inherited: Option<PathBuf>,
    state: State,
    /// To be waited for, so that they leave no zombies.
    children: Vec<Child>,
    failures: u32,
    restarts: u32,
    /// A control daemon has run, now or under a predecessor.
    has_run: bool,
    reason: Option<String>,
    begun: bool,
}

impl Supervisor {
    pub(super) fn new(place: Place, wanted: bool, inherited: Option<PathBuf>) -> Supervisor {
        // A shell with the environment of this realm's own MPS started us.
        let inherited = inherited.filter(|directory| *directory != place.pipes());
        let has_run = place.has_record();
        Supervisor {
            place,
            wanted,
            inherited,
            state: State::Off,
            children: Vec::new(),
            failures: 0,
            restarts: 0,
            has_run,
            reason: None,
            begun: false,
        }
    }

    pub(super) fn info(&self) -> MpsInfo {
        let text = |path: &Path| Some(path.display().to_string());
        let own = matches!(
            self.state,
            State::Ours { .. } | State::Waiting { .. } | State::Draining { .. }
        );
        let (state, control_pid) = match &self.state {
            State::Off => (MpsState::Off, None),
            State::Waiting { .. } => (MpsState::Starting, None),
            State::Ours { process, .. } => (MpsState::Ours, Some(process.pid)),
            State::Foreign { directory } => {
                (MpsState::Foreign, MpsControl::at(directory).recorded_pid())
            }
            State::Draining { process } => (MpsState::Draining, Some(process.pid)),
            State::Failed => (MpsState::Failed, None),
        };
        let pipe_directory = match &self.state {
            State::Foreign { directory } => text(directory),
            _ if own => text(self.place.pipes()),
            // Its servers may live on, with their clients.
            State::Failed if self.has_run => text(self.place.pipes()),
            _ => None,
        };
        MpsInfo {
            state,
            pipe_directory,
            log_directory: own.then(|| text(&self.place.logs())).flatten(),
            control_pid,
            restarts: self.restarts,
            quarantined: 0,
            reason: self.reason.clone(),
        }
    }

    /// Whether it is known how it came out.
    pub(super) fn is_settled(&self) -> bool {
        self.begun && !matches!(self.state, State::Waiting { .. })
    }

    /// Whether there is something to look after.
    pub(super) fn is_busy(&self) -> bool {
        matches!(
            self.state,
            State::Waiting { .. } | State::Ours { .. } | State::Draining { .. }
        )
    }

    /// The pipe directory that is nobody else's, and the control daemon there.
    pub(super) fn own(&self) -> (&Path, Option<u32>) {
        let pid = match &self.state {
            State::Ours { process, .. } | State::Draining { process } => Some(process.pid),
            _ => None,
        };
        (self.place.pipes(), pid)
    }

    /// Does what is due.
    pub(super) fn step(&mut self, now: Instant) {
        self.reap();
        if !self.begun {
            self.begun = true;
            self.begin(now);
        }
        match &self.state {
            State::Waiting { until } if now >= *until => self.start(),
            State::Ours { process, since } if !process.lives() => {
                let (pid, ran) = (process.pid, now.saturating_duration_since(*since));
                if ran >= RUNS_WELL {
                    self.failures = 0;
                }
                self.fell_over(format!(
                    "the MPS control daemon (process {pid}) ended by itself"
                ));
            }
            State::Draining { process } if !process.lives() => {
                self.place.remove_record();
                self.reason = None;
                self.state = match self.wanted {
                    true => State::Waiting { until: now },
                    false => State::Off,
                };
            }
            _ => {}
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.wanted {
            if let Some(directory) = self.find_foreign() {
                tracing::info!(directory = %directory.display(), "using the MPS that runs already");
                self.state = State::Foreign { directory };
                return;
            }
            self.state = State::Waiting { until: now };
            return;
        }
        match self.place.living_control() {
            Some(process) => {
                tracing::info!(
                    pid = process.pid,
                    "the previous daemon's MPS is not configured any more; stopping it"
                );
                self.drain(process);
            }
            None => self.place.remove_record(),
        }
    }

    /// An MPS that was there already and can be used.
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
        if let Some(process) = self.place.living_control() {
            match self.take_over(process) {
                Ok(()) => return,
                Err(reason) => return self.fell_over(reason),
            }
        }
        match self.spawn() {
            Ok(process) => {
                tracing::info!(pid = process.pid, directory = %self.place.pipes().display(), "MPS is running");
                self.ran(process);
            }
            Err(Start::Never(reason)) => self.give_up(reason),
            Err(Start::Again(reason)) => self.fell_over(reason),
        }
    }

    fn ran(&mut self, process: Process) {
        self.has_run = true;
        self.reason = None;
        self.state = State::Ours {
            process,
            since: Instant::now(),
        };
    }

    /// Goes on with a control daemon that a predecessor started.
    fn take_over(&mut self, process: Process) -> Result<(), String> {
        let control = MpsControl::at(self.place.pipes());
        if self.place.drains() {
            tracing::info!(
                pid = process.pid,
                "the previous daemon's MPS ends after its last client; waiting for it"
            );
            self.reason = Some(
                "the previous daemon's MPS takes no new clients and ends after its last one; then \
                 the daemon starts a new one"
                    .to_owned(),
            );
            self.state = State::Draining { process };
            return Ok(());
        }
        let deadline = Instant::now() + START_LIMIT;
        while process.lives() {
            match control.ask("get_server_list", ASK_LIMIT) {
                Ok(_) => {
                    if let Err(error) = self.place.write_record(process) {
                        tracing::error!(%error, "recording the process of MPS failed");
                    }
                    tracing::info!(pid = process.pid, "took over the previous daemon's MPS");
                    self.ran(process);
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => {
                    // It is ours: a second one beside it would be worse than none.
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

    fn spawn(&mut self) -> Result<Process, Start> {
        let place = &self.place;
        let folder = |error: std::io::Error| {
            Start::Never(format!(
                "'{}' cannot be used: {error}",
                place.pipes().display()
            ))
        };
        place.prepare().map_err(folder)?;
        place.remove_record();
        let output = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(place.output())
            .map_err(folder)?;
        let errors = output.try_clone().map_err(folder)?;
        let mut program = Command::new(MPS_CONTROL_PROGRAM);
        unblock_signals(&mut program);
        let mut child = program
            .arg("-f")
            .env(MPS_PIPE_VARIABLE, place.pipes())
            .env(MPS_LOG_VARIABLE, place.logs())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            // Ctrl-C in the daemon's terminal is for the daemon.
            .process_group(0)
            .spawn()
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Start::Never(MpsError::NoProgram.to_string()),
                _ => Start::Again(MpsError::Spawn(error).to_string()),
            })?;
        let process = Process::of(child.id());
        if let Some(process) = process {
            if let Err(error) = place.write_record(process) {
                // Not for a successor to find, so not to be kept.
                let _ = child.kill();
                let _ = child.wait();
                return Err(folder(error));
            }
        }
        let control = MpsControl::at(place.pipes());
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(Start::Again(format!(
                    "the MPS control daemon ended at once ({status}): {}",
                    self.tail()
                )));
            }
            let late = Instant::now() >= deadline;
            match control.ask("get_server_list", ASK_LIMIT) {
                Ok(_) => break,
                Err(error) if late => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(Start::Again(error.to_string()));
                }
                Err(_) => std::thread::sleep(LOOK_AGAIN),
            }
        }
        let process = process.filter(|process| process.lives());
        self.children.push(child);
        process.ok_or_else(|| Start::Again("MPS's control daemon ended at once".to_owned()))
    }

    /// The end of what the control daemon printed.
    fn tail(&self) -> String {
        let text = std::fs::read(self.place.output()).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(TAIL_BYTES)..];
        let tail = String::from_utf8_lossy(tail).trim().to_owned();
        match tail.is_empty() {
            true => format!("see '{}'", self.place.logs().display()),
            false => tail,
        }
    }

    fn fell_over(&mut self, reason: String) {
        self.place.remove_record();
        if self.failures >= MAX_RESTARTS {
            return self.give_up(format!(
                "{reason}; it was restarted {MAX_RESTARTS} times. See '{}', then run 'rgaps down' and \
                 'rgaps up --mps'",
                self.place.logs().display()
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
        self.state = State::Waiting {
            until: Instant::now() + pause,
        };
    }

    fn give_up(&mut self, reason: String) {
        tracing::error!(reason, "MPS is not running");
        self.reason = Some(reason);
        self.state = State::Failed;
    }

    /// Tells a control daemon to take no more clients and to end when it has none.
    fn drain(&mut self, process: Process) {
        self.place.mark_draining();
        match MpsControl::at(self.place.pipes()).quit_when_idle() {
            Ok(child) => self.children.push(child),
            Err(error) => tracing::error!(%error, "telling MPS to quit failed"),
        }
        self.state = State::Draining { process };
    }

    /// Ends what was started.
    pub(super) fn stop(&mut self) {
        let State::Ours { process, .. } = self.state else {
            return;
        };
        let control = MpsControl::at(self.place.pipes());
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
        for server in servers_of(self.place.pipes(), false) {
            tracing::error!(
                pid = server,
                "an MPS server is still running after its control daemon has ended"
            );
        }
        self.place.remove_record();
        self.state = State::Off;
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

/// Why a start failed.
enum Start {
    /// It may work another time.
    Again(String),
    /// It will not.
    Never(String),
}

fn signal(process: Process, signal: Signal) {
    // Looked at just before: its number is hardly given again in between.
    if start_time(process.pid) != Some(process.start) {
        return;
    }
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    if let Some(Err(error)) = pid.map(|pid| kill_process(pid, signal)) {
        tracing::error!(%error, pid = process.pid, "sending a signal to MPS's control daemon failed");
    }
}
