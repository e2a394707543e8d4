//! What the daemon shows of itself.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Topics that metrics name unless the configuration says otherwise.
const DEFAULT_TOPICS_MAX: u32 = 1024;

/// The figures of the daemon over HTTP, for Prometheus. What is not said is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where they are to be had: `127.0.0.1:9464`, port 0 for a free one. None: nowhere.
    pub listen: Option<SocketAddr>,
    /// Whether others than this machine's users may look; all who can reach the address can.
    pub insecure: bool,
    /// Topics that are named at most, each of which has a dozen figures.
    pub topics_max: u32,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            listen: None,
            insecure: false,
            topics_max: DEFAULT_TOPICS_MAX,
        }
    }
}

impl Metrics {
    pub(super) fn check(&self) -> Result<(), String> {
        match self.listen {
            Some(address) if !address.ip().is_loopback() && !self.insecure => Err(format!(
                "metrics.listen = \"{address}\": everyone who can reach this address could read the names and \
                 figures of all topics; listen at 127.0.0.1, or set metrics.insecure = true if that \
                 is meant"
            )),
            _ => Ok(()),
        }
    }
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON document per line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_for_this_machine_unless_it_is_said() {
        let parse = |text: &str| -> Result<Metrics, String> {
            let metrics: Metrics = toml::from_str(text).map_err(|error| error.to_string())?;
            metrics.check().map(|()| metrics)
        };
        assert_eq!(parse("").unwrap().listen, None);
        for text in ["listen = \"127.0.0.1:9464\"", "listen = \"[::1]:0\""] {
            assert!(parse(text).unwrap().listen.is_some());
        }
        for address in ["0.0.0.0:9464", "10.0.0.1:9464", "[::]:9464"] {
            let text = format!("listen = \"{address}\"");
            assert!(parse(&text)
                .unwrap_err()
                .contains("metrics.insecure = true"));
            parse(&format!("{text}\ninsecure = true")).unwrap();
        }
        parse("listen = 9464").unwrap_err();
    }
}
