//! Keeping a session with a daemon, whichever one it is.

use super::session::{CallError, Session};
use super::worker::Worker;
use super::ClientError;
use rgaps_session::{Channel, Config, LaunchError, RECONNECT_PAUSE_MAX_MS};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A daemon may leave between the connection and the hello, idle as it was; then once more.
const OPEN_TRIES: u32 = 4;
/// First pause between attempts to find a daemon; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_millis(RECONNECT_PAUSE_MAX_MS);

/// The session, or how it ended.
pub(super) enum Link {
    Up(Session),
    Down(Down),
}

/// No session.
pub(super) struct Down {
    /// How the last one ended, or why the last attempt at another failed.
    reason: String,
    /// The daemon was stopped on purpose: no other is started.
    stopped: bool,
    pub(super) next_attempt: Instant,
    pause: Duration,
}

/// A session with a daemon that runs, or is started if the configuration lets us.
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

fn find(config: &Config, bin_dirs: &[PathBuf], may_start: bool) -> Result<Channel, LaunchError> {
    if may_start {
        return rgaps_session::connect_or_start(config, bin_dirs);
    }
    rgaps_session::connect(config)?.ok_or_else(|| LaunchError::NoDaemon {
        tried: config.socket_candidates(),
    })
}

impl Worker {
    /// The session has ended.
    pub(super) fn lose(&mut self, reason: String) {
        let (news, stopped) = match &mut self.link {
            Link::Up(session) => session.last_words(),
            Link::Down(down) => (VecDeque::new(), down.stopped),
        };
        if stopped {
            tracing::info!("the daemon was stopped; existing publishers and subscribers continue");
        } else {
            tracing::warn!(
                reason,
                "the daemon has ended; existing publishers and subscribers continue"
            );
        }
        self.link = Link::Down(Down {
            reason,
            stopped,
            next_attempt: Instant::now(),
            pause: PAUSE_MIN,
        });
        for news in news {
            self.heed(news);
        }
    }

    /// The session; looks for a daemon until the command's deadline if there is none. After a daemon was
    /// stopped on purpose, one look has to do.
    pub(super) fn ensure_up(&mut self) -> Result<&mut Session, ClientError> {
        while let Link::Down(down) = &self.link {
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
            if matches!(&self.link, Link::Down(down) if down.stopped) {
                return Err(ClientError::Stopped);
            }
        }
        match &mut self.link {
            Link::Up(session) => Ok(session),
            Link::Down(_) => unreachable!("the loop above ends when the link is up"),
        }
    }

    /// One attempt to find a daemon and to hand it what this process has.
    pub(super) fn attempt(&mut self) {
        let Link::Down(down) = &self.link else { return };
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
                Link::Up(session)
            }
            Err(reason) => {
                tracing::debug!(reason, "no daemon yet");
                Link::Down(Down {
                    reason,
                    stopped,
                    next_attempt: Instant::now() + pause,
                    pause: (pause * 2).min(PAUSE_MAX),
                })
            }
        };
    }
}
