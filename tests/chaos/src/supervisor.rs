//! The supervisor: the daemon, its deaths, and what is common to all episodes.

use crate::actor::Spec;
use crate::board::Board;
use crate::raw::Raw;
use crate::report::{uncovered, Figures, Tally};
use crate::steps::{Fate, Role};
use anyhow::Context;
use rgaps_testkit::Random;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Kills of one episode, after which everybody leaves and all has to be free.
const EPISODE_KILLS: u64 = 40;
/// From how many kills on every step must have been died at.
const COVERAGE_KILLS: u64 = 400;
/// How long a daemon may take to serve, or to take over what it finds.
const DAEMON_PATIENCE: Duration = Duration::from_secs(120);
/// What the control segment may grow by while the same things happen again and again.
const CONTROL_GROWTH: u64 = 4;
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Lines of the log that a failure shows.
const LOG_LINES: usize = 60;

/// Everything that lives longer than an episode.
pub struct Supervisor {
    pub board: &'static Board,
    board_fd: OwnedFd,
    folder: tempfile::TempDir,
    pub socket: PathBuf,
    log: File,
    daemon: Option<Child>,
    /// Where the daemon is to die, if at a step.
    daemon_fate: Option<Fate>,
    pub random: Random,
    pub tally: Tally,
    pub figures: Figures,
    /// Steps in the order in which they are died at.
    steps: [VecDeque<&'static str>; 3],
}

/// Runs the test. False: something is wrong.
pub fn run(kills: u64, seed: u64, keep: bool) -> anyhow::Result<bool> {
    let mut supervisor = Supervisor::new(seed)?;
    eprintln!(
        "chaos: {kills} kills with seed {seed}; logs in {}",
        supervisor.folder.path().display()
    );
    let begun = Instant::now();
    let outcome = supervisor.episodes(kills);
    if let Err(error) = &outcome {
        eprintln!("chaos: {error:#}");
        supervisor.tally.stuck += 1;
    }
    let steps_missing = uncovered(supervisor.board);
    let unknown = supervisor.board.steps.unknown.load(Ordering::Acquire);
    let covered = unknown == 0 && (steps_missing.is_empty() || kills < COVERAGE_KILLS);
    if !steps_missing.is_empty() {
        eprintln!(
            "chaos: nobody was killed here: {}",
            steps_missing.join(", ")
        );
    }
    eprintln!(
        "chaos: {:.1} s; {:?}",
        begun.elapsed().as_secs_f64(),
        supervisor.figures
    );
    let clean = supervisor.tally.is_clean() && covered && outcome.is_ok();
    if !clean {
        supervisor.show_log();
        eprintln!("chaos: FAILED; repeat it with SEED={seed}");
    }
    let tally = serde_json::to_string(&supervisor.tally)?;
    supervisor.end(keep || !clean);
    println!("{tally}");
    Ok(clean)
}

impl Supervisor {
    fn new(seed: u64) -> anyhow::Result<Supervisor> {
        let (board, board_fd) = Board::create()?;
        let folder = tempfile::Builder::new().prefix("rgaps-chaos-").tempdir()?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.path().join("log"))?;
        let mut random = Random::new(seed);
        let steps = Role::ALL.map(|role| {
            let mut steps: Vec<&str> = role.steps().to_vec();
            for at in (1..steps.len()).rev() {
                steps.swap(at, random.below(at as u64 + 1) as usize);
            }
            VecDeque::from(steps)
        });
        Ok(Supervisor {
            board,
            board_fd,
            socket: folder.path().join("r.sock"),
            folder,
            log,
            daemon: None,
            daemon_fate: None,
            random,
            tally: Tally::default(),
            figures: Figures::default(),
            steps,
        })
    }

    fn episodes(&mut self, kills: u64) -> anyhow::Result<()> {
        self.start_daemon(None)?;
        let mut control_used = Vec::new();
        while self.tally.kills < kills && self.tally.is_clean() {
            let wanted = EPISODE_KILLS.min(kills - self.tally.kills);
            crate::episode::run(self, wanted)?;
            let mut raw = Raw::connect(&self.socket)?;
            let zone = crate::holders::Zone::open(raw.enter_zone()?)?;
            control_used.push(zone.control_used()?);
            self.figures.control_used_bytes = zone.control_used()?;
        }
        let (first, last) = (control_used.first(), control_used.last());
        if let Some((first, last)) = first.zip(last) {
            if *last > first * CONTROL_GROWTH {
                self.tally.leaked_blocks += 1;
                eprintln!("chaos: the control segment grew from {first} to {last} bytes");
            }
        }
        Ok(())
    }

    /// Where a process of this role is to die next.
    pub fn next_fate(&mut self, role: Role) -> Fate {
        let steps = &mut self.steps[role as usize];
        steps.rotate_left(1);
        let step = steps[0];
        let passes = match (role, step) {
            (_, "return.emptied" | "return.bitmap" | "wake.publisher") => 2,
            (_, "deferred_release.taken" | "deferred_release.claimed") => 3,
            // Once in the life of a daemon.
            (Role::Daemon, "state.written" | "adopt.begin" | "adopt.loaded") => 1,
            (Role::Daemon, "registry.write") => 20,
            (Role::Daemon, "announce.begin" | "announce.masks" | "announce.epoch") => 5,
            (Role::Daemon, "adopt.claimed") => 8,
            (Role::Daemon, _) => 3,
            (_, "wake.cleared") => 5,
            _ => 40,
        };
        Fate {
            step: step.to_owned(),
            passes: self.random.below(passes),
        }
    }

    /// A fate was not met: somebody else is to die there, soon.
    pub fn retry_fate(&mut self, role: Role, fate: &Fate) {
        let steps = &mut self.steps[role as usize];
        if let Some(at) = steps.iter().position(|step| *step == fate.step) {
            let step = steps.remove(at).expect("it was found there");
            // `next_fate` takes what is behind the first.
            steps.insert(1.min(steps.len()), step);
        }
    }

    fn program(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.log.try_clone()?)
            .env_remove("RUST_LOG");
        Ok(command)
    }

    /// Starts a publisher or subscriber.
    pub fn start_actor(&self, spec: &Spec) -> anyhow::Result<Child> {
        let child = self
            .program()?
            .args(["actor", &serde_json::to_string(spec)?])
            .spawn()
            .context("a process cannot be started")?;
        Ok(child)
    }

    pub fn board_number(&self) -> i32 {
        self.board_fd.as_raw_fd()
    }

    /// Starts a daemon and waits until it serves, and has back what the last one left. One that
    /// meets its fate meanwhile is followed by another.
    pub fn start_daemon(&mut self, fate: Option<Fate>) -> anyhow::Result<()> {
        self.spawn_daemon(fate)?;
        let mut begun = Instant::now();
        while !self.daemon_has_settled() {
            if self.daemon_died()? {
                self.count_daemon_kill();
                self.spawn_daemon(None)?;
                begun = Instant::now();
            }
            if begun.elapsed() > DAEMON_PATIENCE {
                self.tally.stuck += 1;
                let status = Raw::connect(&self.socket).and_then(|mut raw| raw.status());
                anyhow::bail!("the daemon does not come to serve: {status:?}");
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    fn spawn_daemon(&mut self, fate: Option<Fate>) -> anyhow::Result<()> {
        let mut command = self.program()?;
        command
            .arg("daemon")
            .arg(&self.socket)
            .arg(self.board_number().to_string());
        if let Some(fate) = &fate {
            command.arg(serde_json::to_string(fate)?);
        }
        self.daemon_fate = fate;
        self.daemon = Some(command.spawn().context("the daemon cannot be started")?);
        Ok(())
    }

    /// Whether the daemon that runs is to die at a step.
    pub fn has_fate(&self) -> bool {
        self.daemon_fate.is_some()
    }

    fn daemon_has_settled(&self) -> bool {
        let status = Raw::connect(&self.socket).and_then(|mut raw| raw.status());
        status.is_ok_and(|status| !status.recovering)
    }

    /// Whether the daemon is dead, of its fate or of a bug; a daemon that ended otherwise is an
    /// error.
    pub fn daemon_died(&mut self) -> anyhow::Result<bool> {
        use std::os::unix::process::ExitStatusExt;
        let Some(daemon) = &mut self.daemon else {
            return Ok(true);
        };
        let Some(status) = daemon.try_wait()? else {
            return Ok(false);
        };
        self.daemon = None;
        if status.signal() != Some(libc::SIGKILL) {
            self.tally.stuck += 1;
            anyhow::bail!("the daemon ended by itself: {status}");
        }
        Ok(true)
    }

    pub fn count_daemon_kill(&mut self) {
        self.tally.kills += 1;
        self.figures.daemon_kills += 1;
    }

    pub fn kill_daemon(&mut self) -> anyhow::Result<()> {
        if let Some(daemon) = &mut self.daemon {
            daemon.kill()?;
            daemon.wait()?;
            if let Some(fate) = self.daemon_fate.take() {
                self.retry_fate(Role::Daemon, &fate);
            }
        }
        self.daemon = None;
        Ok(())
    }

    /// Warnings, errors and what actors complained of, then the end of the log.
    fn show_log(&self) {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let unusual = lines.iter().filter(|line| !line.contains(" INFO "));
        for line in unusual.take(LOG_LINES) {
            eprintln!("  {line}");
        }
        eprintln!("chaos: the log ends so:");
        for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            eprintln!("  {line}");
        }
    }

    fn end(mut self, keep: bool) {
        let _ = self.kill_daemon();
        if keep {
            eprintln!("chaos: the log is {}/log", self.folder.keep().display());
        }
    }
}
