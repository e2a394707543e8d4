//! Whether the links to other hosts run, and what to do where they do not.

use rgaps::{Config, LinksFailure, LinksInfo, LinksState, Node, Status};
use std::time::{Duration, Instant};

/// How long `up` waits until the links run or have failed.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(50);

/// What to do for links to other hosts, where they do not run though the configuration has some.
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

/// The daemon's state once its links run or have failed, or as it is after a time.
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

/// In one line, for a host whose links are no failure.
pub fn describe(links: &LinksInfo) -> &'static str {
    match links.state {
        LinksState::Off => "off",
        LinksState::Starting => "starting",
        LinksState::Running => "running",
        LinksState::Failed => "not running",
    }
}
