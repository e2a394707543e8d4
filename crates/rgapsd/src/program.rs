//! Keeps processes running that the configuration asks for: the links to other hosts, the server of this host's GPUs.

use rgaps_session::{gpu_server_command, links_command, Config, LinksFailure};
use rustix::process::{kill_process, Pid, Signal};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often to look whether the process has ended.
const LOOK: Duration = Duration::from_millis(50);
/// Pauses before the process is started again: the first, and the longest. They double each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// After running for this long a process counts as running: its failure is cleared, and the pauses begin with the first again.
const LIVED: Duration = Duration::from_secs(10);
/// How long the process may take to end after SIGTERM.
const LEAVE_LIMIT: Duration = Duration::from_millis(1500);
/// How many last lines of its log a failure quotes, and most characters of each.
const LAST_LINES: (usize, usize) = (5, 600);

/// A kind of process that the daemon keeps running.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// What the log says while it does not run.
    absence: &'static str,
    command: fn(&Config) -> Result<Command, LinksFailure>,
}

const LINKS: Kind = Kind {
    name: "rgaps-links",
    absence: "links to other hosts are not running",
    command: links_command,
};
const GPU_SERVER: Kind = Kind {
    name: "rgaps gpu serve",
    absence: "the server of this host's GPUs is not running",
    command: gpu_server_command,
};

/// A process that is kept running. Dropping it ends the process.
pub struct Program {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    failure: Board,
}

/// Why the process does not run. None: it was started, and has not failed.
pub type Board = Arc<Mutex<Option<LinksFailure>>>;

impl Program {
    /// Keeps the links running, if the configuration enables them.
    pub fn links(config: &Config) -> std::io::Result<Option<Program>> {
        let wanted = config.links.enabled;
        wanted.then(|| Program::keep(LINKS, config)).transpose()
    }

    /// Keeps the server of this host's GPUs running, if the configuration enables it.
    pub fn gpu_server(config: &Config) -> std::io::Result<Option<Program>> {
        let wanted = config.gpu.serve;
        wanted
            .then(|| Program::keep(GPU_SERVER, config))
            .transpose()
    }

    /// Starts the process, and again whenever it ends.
    fn keep(kind: Kind, config: &Config) -> std::io::Result<Program> {
        let failure = Board::default();
        let (stop, stopped) = channel();
        let (config, board) = (config.clone(), failure.clone());
        let thread = std::thread::Builder::new()
            .name("rgapsd-program".to_owned())
            .spawn(move || supervise(kind, &config, &stopped, &board))?;
        Ok(Program {
            stop: Some(stop),
            thread: Some(thread),
            failure,
        })
    }

    /// Where the supervising thread writes why the process does not run.
    pub fn failure(&self) -> Board {
        self.failure.clone()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn report(kind: Kind, board: &Board, failure: Option<LinksFailure>) {
    let mut current = board.lock().unwrap_or_else(PoisonError::into_inner);
    // Log the same failure once, although every attempt reports it.
    if let Some(failure) = failure
        .as_ref()
        .filter(|failure| current.as_ref() != Some(failure))
    {
        tracing::error!("{}: {failure}", kind.absence);
    }
    *current = failure;
}

fn supervise(kind: Kind, config: &Config, stopped: &Receiver<()>, board: &Board) {
    let mut pause = PAUSES.0;
    loop {
        let begun = Instant::now();
        match start(kind, config) {
            Ok((mut child, log)) => match watch(kind, &mut child, stopped, board) {
                Some(how) => {
                    if begun.elapsed() >= LIVED {
                        pause = PAUSES.0;
                    }
                    report(kind, board, Some(ended(kind, &how, log)));
                }
                None => {
                    end(child);
                    let _ = log.join();
                    return;
                }
            },
            Err(failure) => report(kind, board, Some(failure)),
        }
        match stopped.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(PAUSES.1),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The thread that copies a process's log. It returns the last lines when the process has ended.
type LastLines = JoinHandle<VecDeque<String>>;

/// Starts the process, and a thread that copies its log to the daemon's.
fn start(kind: Kind, config: &Config) -> Result<(Child, LastLines), LinksFailure> {
    let mut command = (kind.command)(config)?;
    let failed = |error: std::io::Error| LinksFailure {
        advice: "see the daemon's log; the daemon tries again every 5 s".to_owned(),
        reason: format!("starting {} failed: {error}", kind.name),
    };
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed)?;
    let log = child.stderr.take().expect("it was asked for");
    let thread = std::thread::Builder::new().name("rgapsd-program-log".to_owned());
    match thread.spawn(move || pass_on(log)) {
        Ok(thread) => Ok((child, thread)),
        Err(error) => {
            end(child);
            Err(failed(error))
        }
    }
}

/// Copies the process's log to the daemon's, and returns its last lines at its end.
fn pass_on(log: ChildStderr) -> VecDeque<String> {
    let (lines, chars) = LAST_LINES;
    let mut last = VecDeque::new();
    for line in BufReader::new(log).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        // A log that cannot be written is no reason to stop the process.
        let _ = writeln!(std::io::stderr(), "{line}");
        if last.len() == lines {
            last.pop_front();
        }
        last.push_back(line.chars().take(chars).collect());
    }
    last
}

fn ended(kind: Kind, how: &str, log: LastLines) -> LinksFailure {
    let lines = Vec::from(log.join().unwrap_or_default());
    let output = match lines.is_empty() {
        true => "it logged nothing".to_owned(),
        false => format!("its last lines are:\n{}", lines.join("\n")),
    };
    LinksFailure {
        advice: format!(
            "correct what {} reports, then run 'rgaps down' and 'rgaps up'",
            kind.name
        ),
        reason: format!("{} ended ({how}); {output}", kind.name),
    }
}

/// Waits until the process has ended, and returns how. None: the daemon ends, so the caller ends the process.
fn watch(kind: Kind, child: &mut Child, stopped: &Receiver<()>, board: &Board) -> Option<String> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.to_string()),
            Ok(None) => {}
            Err(error) => return Some(error.to_string()),
        }
        if begun.elapsed() >= LIVED {
            report(kind, board, None);
        }
        match stopped.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Ends a process: with SIGTERM, and with SIGKILL after [`LEAVE_LIMIT`].
fn end(mut child: Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let until = Instant::now() + LEAVE_LIMIT;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}
