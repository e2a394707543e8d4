//! The session with Zenoh.

use crate::error::BridgeError;
use rgaps_session::Bridge as Config;
use std::time::Duration;
use zenoh::{Session, Wait as _};

/// Where nodes of ROS 2 look for the router, and where they listen, unless they are told otherwise.
const ROS_ROUTER: &str = "tcp/localhost:7447";
const ROS_LISTEN: &str = "tcp/localhost:0";
/// How long leaving may wait for nodes that do not answer.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Without an endpoint, with those of nodes of ROS 2.
pub(crate) fn with_router(config: &Config) -> Config {
    let mut config = config.clone();
    if config.connect.is_empty() && config.listen.is_empty() && !config.scouting {
        config.connect.push(ROS_ROUTER.to_owned());
        config.listen.push(ROS_LISTEN.to_owned());
    }
    config
}

/// Opens a session. It does not wait until another node is reached: Zenoh tries again and again.
pub(crate) fn open(config: &Config) -> Result<Session, BridgeError> {
    if config.connect.is_empty() && config.listen.is_empty() && !config.scouting {
        return Err(BridgeError::NoEndpoint);
    }
    let zenoh = configure(config)?;
    zenoh::open(zenoh)
        .wait()
        .map_err(|error| BridgeError::Zenoh(error.to_string()))
}

/// Zenoh as we use it: nothing that was not asked for.
fn configure(config: &Config) -> Result<zenoh::Config, BridgeError> {
    let mut zenoh = zenoh::Config::default();
    for (key, value) in [
        ("mode", "\"peer\"".to_owned()),
        ("listen/endpoints", list(&config.listen)),
        ("connect/endpoints", list(&config.connect)),
        // As a whole: a single key of it is not known.
        (
            "connect/retry",
            "{ period_init_ms: 100, period_max_ms: 1000, period_increase_factor: 1.5 }".to_owned(),
        ),
        ("scouting/multicast/enabled", config.scouting.to_string()),
        ("timestamping/enabled", "false".to_owned()),
        ("adminspace/enabled", "false".to_owned()),
    ] {
        zenoh
            .insert_json5(key, &value)
            .map_err(|error| BridgeError::Zenoh(format!("{key} = {value}: {error}")))?;
    }
    Ok(zenoh)
}

/// A list of texts in JSON.
fn list(texts: &[String]) -> String {
    serde_json::Value::from(texts.to_vec()).to_string()
}

/// How many other nodes the session is connected to.
pub(crate) fn peers(session: &Session) -> u64 {
    let info = session.info();
    (info.peers_zid().wait().count() + info.routers_zid().wait().count()) as u64
}

/// Leaves, so that others see it at once. The last clone closes the session again when it is dropped, which then does nothing.
pub fn close(session: Session) {
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        if let Err(error) = session.close().wait() {
            tracing::debug!(%error, "closing the session failed");
        }
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(CLOSE_LIMIT);
}
