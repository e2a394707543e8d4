//! The session with Zenoh.

use crate::error::BridgeError;
use rgaps_session::BridgeConfig as Config;
use std::time::Duration;
use zenoh::{Session, Wait as _};

/// Default endpoints of nodes of ROS 2: where they connect to the router, and where they listen.
const ROS_ROUTER: &str = "tcp/localhost:7447";
const ROS_LISTEN: &str = "tcp/localhost:0";
/// Limit on closing the session, which waits for other nodes.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The configuration with the default endpoints of nodes of ROS 2, if it has none.
pub(crate) fn with_router(config: &Config) -> Config {
    let mut config = config.clone();
    if config.connect.is_empty() && config.listen.is_empty() && !config.scouting {
        config.connect.push(ROS_ROUTER.to_owned());
        config.listen.push(ROS_LISTEN.to_owned());
    }
    config
}

/// Opens a session. Does not wait until it reaches another node: Zenoh retries in the background.
pub(crate) fn open(config: &Config) -> Result<Session, BridgeError> {
    if config.connect.is_empty() && config.listen.is_empty() && !config.scouting {
        return Err(BridgeError::NoEndpoint);
    }
    let zenoh = configure(config)?;
    zenoh::open(zenoh)
        .wait()
        .map_err(|error| BridgeError::Zenoh(error.to_string()))
}

/// Zenoh's configuration, with every feature off that `config` does not ask for.
fn configure(config: &Config) -> Result<zenoh::Config, BridgeError> {
    let mut zenoh = zenoh::Config::default();
    for (key, value) in [
        ("mode", "\"peer\"".to_owned()),
        ("listen/endpoints", list(&config.listen)),
        ("connect/endpoints", list(&config.connect)),
        // Zenoh accepts this object only as a whole.
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

/// Closes the session, so that other nodes see it at once. Waits for at most [`CLOSE_LIMIT`]. Dropping the last clone closes the
/// session again, which does nothing.
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
