//! Keeps the process with the links to other hosts running, where the configuration has some.

use rgaps_session::{links_command, Config};
use rustix::process::{kill_process, Pid, Signal};
use std::process::Child;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the process is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Pauses before it is started again: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// After running for so long it has not failed at once.
const LIVED: Duration = Duration::from_secs(10);
/// How long it may take to leave in order.
const LEAVE_LIMIT: Duration = Duration::from_millis(1500);

/// The links' process. Dropping it ends the process.
pub struct Links {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    trouble: Trouble,
}

/// Why there are no links where there should be.
pub type Trouble = Arc<Mutex<Option<String>>>;

impl Links {
    /// Starts the process, and again whenever it ends. None: the configuration has no links.
    pub fn keep(config: &Config) -> std::io::Result<Option<Links>> {
        if !config.links.enabled {
            return Ok(None);
        }
        let trouble = Trouble::default();
        let (stop, stopped) = channel();
        let (config, board) = (config.clone(), trouble.clone());
        let thread = std::thread::Builder::new()
            .name("rgapsd-links".to_owned())
            .spawn(move || supervise(&config, &stopped, &board))?;
        Ok(Some(Links {
            stop: Some(stop),
            thread: Some(thread),
            trouble,
        }))
    }

    /// Where it is told why there are no links.
    pub fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tell(board: &Trouble, trouble: Option<String>) {
    if let Some(trouble) = &trouble {
        tracing::error!("{trouble}");
    }
    *board.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
}

fn supervise(config: &Config, stopped: &Receiver<()>, board: &Trouble) {
    let mut pause = PAUSES.0;
    loop {
        let begun = Instant::now();
        let child = links_command(config).and_then(|mut command| {
            let child = command.spawn();
            child.map_err(|error| format!("rgaps-links cannot be started: {error}"))
        });
        match child {
            Ok(mut child) => {
                tell(board, None);
                match watch(&mut child, stopped) {
                    Some(how) => {
                        if begun.elapsed() >= LIVED {
                            pause = PAUSES.0;
                        }
                        tell(board, Some(format!("links to other hosts do not run: rgaps-links ended ({how}) and is started again; see the daemon's log")));
                    }
                    None => return end(child),
                }
            }
            Err(why) => tell(board, Some(why)),
        }
        match stopped.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(PAUSES.1),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Waits until the process has ended, and says how; none: until it is to end.
fn watch(child: &mut Child, stopped: &Receiver<()>) -> Option<String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.to_string()),
            Ok(None) => {}
            Err(error) => return Some(error.to_string()),
        }
        match stopped.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

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
