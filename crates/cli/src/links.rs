//! Whether the links to other hosts run, and advice for when they do not.

use rgaps::{Config, LinksFailure, LinksInfo, LinksState, Node, Status};
use std::time::{Duration, Instant};

/// How long `up` waits until the links run or have failed.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Time between two looks at the links' state.
const LOOK: Duration = Duration::from_millis(50);

/// The reason and the advice if the configuration wants links and they do not run. None: they run, are starting, or are not wanted.
pub fn failure(config: &Config, links: &LinksInfo) -> Option<LinksFailure> {
    match links.state {
        LinksState::Failed => links.failure.as_deref().cloned(),
        LinksState::Off if config.links.enabled => Some(LinksFailure {
            advice: "'rgaps down', then 'rgaps up'".to_owned(),
            reason: "the configuration has links.enabled = true, but the running daemon was started without it"
                .to_owned(),
        }),
        LinksState::Off | LinksState::Starting | LinksState::Running => None,
    }
}

/// Waits until the links run or have failed, for at most [`START_LIMIT`], and returns the daemon's state.
pub fn settled(node: &Node) -> anyhow::Result<Status> {
    let until = Instant::now() + START_LIMIT;
    loop {
        let status = node.status()?;
        if status.links.state != LinksState::Starting || Instant::now() >= until {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
    }
}

/// The state of the links, without the reason of a failure.
pub fn describe(links: &LinksInfo) -> &'static str {
    match links.state {
        LinksState::Off => "off",
        LinksState::Starting => "starting",
        LinksState::Running => "running",
        LinksState::Failed => "not running",
    }
}
