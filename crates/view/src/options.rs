//! What to show, and to whom.

use crate::error::{ViewError, TOKEN_MIN};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Foxglove's own port.
pub const PORT: u16 = 8765;

/// Between two messages of a topic, at most.
const PERIOD_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a [`Server`](crate::Server) shows, and to whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// Topics and patterns; none: all topics.
    pub patterns: Vec<String>,
    /// Where to listen. An address other than loopback requires a token. Default: 127.0.0.1:8765.
    pub listen: SocketAddr,
    /// What a client must know. At least [`TOKEN_MIN`](crate::TOKEN_MIN) characters.
    pub token: Option<String>,
    /// Web sites, besides the server's own page, whose scripts may connect without a token. Default: Foxglove's.
    pub origins: Vec<String>,
    /// Messages per second of each topic, at most; the server looks 100 times a second. Default: 10.
    pub rate: f64,
    /// Bytes of a message, at most. The server down-samples a larger image, and sends no other message that is larger. Default:
    /// 1 MiB.
    pub bytes_max: u64,
    /// WebSocket clients at a time, at most. Default: 16.
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
    /// The time between two messages of a topic, at least.
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
