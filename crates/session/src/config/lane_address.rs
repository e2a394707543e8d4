//! The address at which a host accepts lanes, with or without a port.

use serde::{Deserialize, Deserializer};
use std::net::{IpAddr, SocketAddr};

/// The port of lanes if `links.listen` names none. It is fixed, so that one rule of a firewall is enough.
pub const LANE_PORT: u16 = 7448;

/// Reads `10.0.0.1`, `10.0.0.1:7449`, `fd00::1` or `[fd00::1]:7449`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else {
        return Ok(None);
    };
    let address = match text.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, LANE_PORT),
        Err(_) => text.parse().map_err(|_| {
            serde::de::Error::custom(format!(
                "{text:?} is not an address; write \"10.0.0.1\", which uses port {LANE_PORT}, or \"10.0.0.1:7449\""
            ))
        })?,
    };
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn listen(text: &str) -> Result<String, String> {
        let links: crate::config::Links =
            toml::from_str(&format!("listen = \"{text}\"")).map_err(|error| error.to_string())?;
        Ok(links.listen.expect("it was given").to_string())
    }

    #[test]
    fn lanes_have_a_fixed_port_unless_another_is_named() {
        assert_eq!(listen("10.0.0.1").unwrap(), "10.0.0.1:7448");
        assert_eq!(listen("fd00::1").unwrap(), "[fd00::1]:7448");
        assert_eq!(listen("10.0.0.1:7500").unwrap(), "10.0.0.1:7500");
        assert_eq!(listen("[fd00::1]:0").unwrap(), "[fd00::1]:0");
        for text in ["", "robot-1", "10.0.0.1:", "10.0.0.1:70000", "fd00::1:x"] {
            let error = listen(text).unwrap_err();
            assert!(
                error.contains("is not an address; write \"10.0.0.1\""),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn an_address_survives_the_way_to_a_daemon_that_is_started() {
        let config: Config = toml::from_str("[links]\nlisten = \"127.0.0.1\"").unwrap();
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again.links.listen, config.links.listen);
    }
}
