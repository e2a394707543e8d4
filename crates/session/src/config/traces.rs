//! Traces of single messages between hosts.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Share of messages that are traced, unless the configuration says otherwise.
const DEFAULT_RATIO: f64 = 0.01;
/// Longest endpoint.
const MAX_ENDPOINT: usize = 200;
/// Where collectors take traces unless the endpoint says otherwise.
const PATH: &str = "/v1/traces";

/// Traces of messages between hosts, for an OpenTelemetry collector. They are off unless `endpoint` is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// Where the links send traces, by OTLP over HTTP: `http://127.0.0.1:4318`. `None`: they send none.
    pub endpoint: Option<String>,
    /// Share of messages that are traced, 0 to 1. The message itself decides, so hosts with the same share trace the
    /// same messages.
    pub ratio: f64,
    /// Whether traces (names of topics, times and sizes) may cross a network without encryption.
    pub insecure: bool,
}

impl Default for Traces {
    fn default() -> Self {
        Traces {
            endpoint: None,
            ratio: DEFAULT_RATIO,
            insecure: false,
        }
    }
}

impl Traces {
    /// The whole address; `None`: there are no traces.
    pub fn url(&self) -> Option<String> {
        let endpoint = self.endpoint.as_deref()?.trim_end_matches('/');
        let has_path = endpoint.trim_start_matches("http://").contains('/');
        Some(match has_path {
            true => endpoint.to_owned(),
            false => format!("{endpoint}{PATH}"),
        })
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.ratio) {
            return Err(format!(
                "traces.ratio = {}: it must be a number from 0 to 1, the fraction of messages to trace",
                self.ratio
            ));
        }
        let Some(endpoint) = &self.endpoint else {
            return Ok(());
        };
        let wrong = |why: &str| Err(format!("traces.endpoint = {endpoint:?}: {why}"));
        if endpoint.starts_with("https:") {
            return wrong(
                "traces are not encrypted; name a collector on this machine, which can send them on \
                 over TLS",
            );
        }
        let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '@';
        let known = endpoint.strip_prefix("http://");
        let known = known.filter(|rest| rest.chars().all(plain) && endpoint.len() <= MAX_ENDPOINT);
        let place = known.and_then(|rest| rest.split('/').next());
        let port = place.and_then(|place| place.rsplit_once(':'));
        let Some((name, port)) = port.filter(|(name, _)| !name.is_empty()) else {
            return wrong("write it like \"http://127.0.0.1:4318\", with a port");
        };
        if port.parse::<u16>().is_err() {
            return wrong("its port is not a number up to 65535");
        }
        let address = format!("{name}:{port}").parse::<SocketAddr>();
        let is_here = match address {
            Ok(address) => address.ip().is_loopback(),
            Err(_) => name == "localhost",
        };
        if !is_here && !self.insecure {
            return wrong(
                "names of topics and times of messages would cross a network unencrypted; name a \
                 collector on this machine, or set traces.insecure = true if that is meant",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Traces, String> {
        let traces: Traces = toml::from_str(text).map_err(|error| error.to_string())?;
        traces.check().map(|()| traces)
    }

    #[test]
    fn traces_stay_on_this_machine_unless_it_is_said() {
        assert_eq!(parse("").unwrap().url(), None);
        for (endpoint, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://localhost:4318/x/y", "http://localhost:4318/x/y"),
        ] {
            let traces = parse(&format!("endpoint = \"{endpoint}\"\nratio = 1")).unwrap();
            assert_eq!(traces.url().as_deref(), Some(url));
        }
        for endpoint in ["http://10.0.0.1:4318", "http://collector:4318/v1/traces"] {
            let text = format!("endpoint = \"{endpoint}\"");
            let error = parse(&text).unwrap_err();
            assert!(error.contains("traces.insecure = true"), "{error}");
            parse(&format!("{text}\ninsecure = true")).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_says_what_to_do() {
        for (text, word) in [
            ("endpoint = \"https://127.0.0.1:4318\"", "on this machine"),
            ("endpoint = \"127.0.0.1:4318\"", "http://"),
            ("endpoint = \"http://127.0.0.1\"", "with a port"),
            ("endpoint = \"http://:4318\"", "with a port"),
            ("endpoint = \"http://127.0.0.1:x\"", "port"),
            ("endpoint = \"http://me@127.0.0.1:1\"", "http://"),
            ("ratio = 1.5", "from 0 to 1"),
            ("ratio = -0.1", "from 0 to 1"),
            ("ratio = nan", "from 0 to 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
