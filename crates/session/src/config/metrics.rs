//! The port for metrics.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// How many topics metrics name, unless the configuration says otherwise.
const DEFAULT_TOPICS_MAX: u32 = 1024;

/// Metrics of the daemon over HTTP, for Prometheus. They are off unless `listen` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where the daemon serves them: `127.0.0.1:9464`; port 0 takes a free one. `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// Whether other machines may read them: everyone who reaches the address can.
    pub insecure: bool,
    /// Largest number of topics with metrics of their own. Each topic has a dozen.
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

/// The format of logs.
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
