//! Keeps a session with a daemon: opens it, notices its end, and hands this process's state to the next daemon.

use super::session::{CallError, Session};
use super::worker::Worker;
use super::ClientError;
use rgaps_session::{Config, LaunchError, SessionSocket, RECONNECT_PAUSE_MAX_MS};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often to connect. An idle daemon may end between the connection and the hello.
const OPEN_TRIES: u32 = 4;
/// First pause between attempts to find a daemon; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_millis(RECONNECT_PAUSE_MAX_MS);

/// The session, or how it ended.
pub(super) enum DaemonSession {
    Up(Session),
    Down(Down),
}

/// No session.
pub(super) struct Down {
    /// How the last session ended, or why the last attempt to open another one failed.
    reason: String,
    /// A user stopped the daemon: this process does not start another.
    stopped: bool,
    pub(super) next_attempt: Instant,
    /// The pause after `next_attempt`, if that fails.
    pause: Duration,
}

/// Opens a session with the running daemon. Starts a daemon if none runs and `may_start`.
pub(super) fn open(
    config: &Config,
    name: &str,
    bin_dirs: &[PathBuf],
    may_start: bool,
) -> Result<Session, ClientError> {
    let mut tries_left = OPEN_TRIES;
    loop {
        tries_left -= 1;
        let channel = find(config, bin_dirs, may_start)?;
        match Session::open(channel, config, name) {
            Err(ClientError::DaemonLost { .. }) if tries_left > 0 => {}
            other => return other,
        }
    }
}

fn find(
    config: &Config,
    bin_dirs: &[PathBuf],
    may_start: bool,
) -> Result<SessionSocket, LaunchError> {
    if may_start {
        return rgaps_session::connect_or_start(config, bin_dirs);
    }
    rgaps_session::connect(config)?.ok_or_else(|| LaunchError::NoDaemon {
        tried: config.socket_candidates(),
    })
}

impl Worker {
    /// Call when the session has ended, or must not be used again: handles the notices that had arrived, and schedules the first
    /// attempt to find another daemon.
    pub(super) fn lose(&mut self, reason: String) {
        let (notices, stopped) = match &mut self.link {
            DaemonSession::Up(session) => session.last_words(),
            DaemonSession::Down(down) => (VecDeque::new(), down.stopped),
        };
        if stopped {
            tracing::info!("the daemon was stopped; existing publishers and subscribers continue");
        } else {
            tracing::warn!(
                reason,
                "the daemon has ended; existing publishers and subscribers continue"
            );
        }
        self.link = DaemonSession::Down(Down {
            reason,
            stopped,
            next_attempt: Instant::now(),
            pause: PAUSE_MIN,
        });
        for notice in notices {
            self.heed(notice);
        }
    }

    /// The session. Without one, tries to find a daemon until the command's deadline, or only once after a user stopped the
    /// daemon.
    pub(super) fn ensure_up(&mut self) -> Result<&mut Session, ClientError> {
        while let DaemonSession::Down(down) = &self.link {
            let pause = down.next_attempt.saturating_duration_since(Instant::now());
            if !down.stopped {
                if Instant::now() + pause >= self.deadline {
                    return Err(ClientError::DaemonLost {
                        reason: down.reason.clone(),
                    });
                }
                std::thread::sleep(pause);
            }
            self.attempt();
            if matches!(&self.link, DaemonSession::Down(down) if down.stopped) {
                return Err(ClientError::Stopped);
            }
        }
        match &mut self.link {
            DaemonSession::Up(session) => Ok(session),
            DaemonSession::Down(_) => unreachable!("the loop above ends when the link is up"),
        }
    }

    /// Tries once to find a daemon and to hand back this process's zones to it.
    pub(super) fn attempt(&mut self) {
        let DaemonSession::Down(down) = &self.link else {
            return;
        };
        let (stopped, pause) = (down.stopped, down.pause);
        let may_start = self.config.autostart && !stopped;
        let session = open(&self.config, &self.name, &self.bin_dirs, may_start);
        let outcome = session
            .map_err(|error| error.to_string())
            .and_then(|mut session| {
                let handed = self.hand_back(&mut session).map_err(|error| match error {
                    CallError::Lost(reason) => reason,
                    other => ClientError::from(other).to_string(),
                });
                handed.map(|()| session)
            });
        self.link = match outcome {
            Ok(session) => {
                tracing::info!("connected to a new daemon");
                DaemonSession::Up(session)
            }
            Err(reason) => {
                tracing::debug!(reason, "no daemon yet");
                DaemonSession::Down(Down {
                    reason,
                    stopped,
                    next_attempt: Instant::now() + pause,
                    pause: (pause * 2).min(PAUSE_MAX),
                })
            }
        };
    }
}
