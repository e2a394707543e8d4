//! The options of a server.

use crate::error::{ViewError, TOKEN_MIN};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The default port of Foxglove's WebSocket protocol.
pub const PORT: u16 = 8765;

/// The longest time between two messages of a topic, for tiny rates.
const PERIOD_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a [`Server`](crate::Server) shows, and to which clients.
#[derive(Clone, Debug)]
pub struct Options {
    /// Topics and patterns. Empty: all topics.
    pub patterns: Vec<String>,
    /// Where to listen. An address other than loopback requires a token. Default: 127.0.0.1:8765.
    pub listen: SocketAddr,
    /// The token that a client must send, of at least [`TOKEN_MIN`](crate::TOKEN_MIN) characters. None: no token.
    pub token: Option<String>,
    /// Web sites, besides the server's own page, whose scripts may connect without a token. Default: Foxglove's.
    pub origins: Vec<String>,
    /// Most messages per second of each topic. The server looks for messages 100 times a second, so it sends no more. Default: 10.
    pub rate: f64,
    /// Most bytes of a message. The server down-samples larger images and point clouds, and sends no other larger messages. Default:
    /// 1 MiB.
    pub bytes_max: u64,
    /// Most WebSocket clients at a time. Default: 16.
    pub clients_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            patterns: Vec::new(),
            listen: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT),
            token: None,
            origins: vec!["https://app.foxglove.dev".to_owned()],
            rate: 10.0,
            bytes_max: 1 << 20,
            clients_max: 16,
        }
    }
}

impl Options {
    /// The least time between two messages of a topic.
    pub(crate) fn period(&self) -> Duration {
        let period = Duration::try_from_secs_f64(1.0 / self.rate);
        period.unwrap_or(PERIOD_MAX).min(PERIOD_MAX)
    }

    pub(crate) fn check(&self) -> Result<(), ViewError> {
        match &self.token {
            None if !is_loopback(self.listen.ip()) => Err(ViewError::NoToken {
                address: self.listen,
            }),
            Some(token) if token.len() < TOKEN_MIN => Err(ViewError::ShortToken),
            _ => Ok(()),
        }
    }
}

pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_rate_has_a_period() {
        let period = |rate| {
            let options = Options {
                rate,
                ..Options::default()
            };
            options.period()
        };
        assert_eq!(period(10.0), Duration::from_millis(100));
        assert_eq!(period(f64::MAX), Duration::ZERO);
        assert_eq!(period(f64::MIN_POSITIVE), PERIOD_MAX);
    }
}
