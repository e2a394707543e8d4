//! The session with Zenoh.

use crate::error::BridgeError;
use rgaps_session::Bridge as Config;
use std::time::Duration;
use zenoh::{Session, Wait as _};

/// How long leaving may wait for nodes that do not answer.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

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

/// Leaves, so that others see it at once.
pub(crate) fn close(session: Session) {
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        if let Err(error) = session.close().wait() {
            tracing::debug!(%error, "closing the session failed");
        }
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(CLOSE_LIMIT);
}
