//! `rgaps view`.

use crate::completion;
use crate::units::frequency;
use clap::{Args, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use rgaps_session::ByteSize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

#[derive(Args)]
pub struct View {
    /// Topics or patterns. In a pattern * matches any characters of one part of a name, ** any number of parts. Topics
    /// that appear later are included. [default: all topics]
    #[arg(value_name = "PATTERN", add = ArgValueCompleter::new(completion::topics))]
    pub patterns: Vec<String>,
    /// Listen here: ADDRESS, PORT or ADDRESS:PORT. Port 0 is any free one. Other addresses than 127.0.0.1 and ::1 require a
    /// token.
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:8765")]
    pub listen: SocketAddr,
    /// Show nothing to a client that does not add ?token=TOKEN to the address. At least 16 characters. Other users of this host
    /// see it in the list of processes; --token-file hides it from them.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "RGAPS_VIEW_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// Read the token from this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Let this web site connect without a token, besides Foxglove's. May be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Send at most N messages a second of each topic: the newest ones. More than 100 are not sent.
    #[arg(long, value_name = "N", value_parser = frequency, default_value = "10")]
    pub rate: f64,
    /// Send messages of at most this size. Of a larger image, every second (third, ...) pixel is sent; other messages that are
    /// larger are not.
    #[arg(long, value_name = "BYTES", default_value = "1MiB")]
    pub max_bytes: ByteSize,
    /// Serve at most N WebSocket clients at a time.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
}

/// An address, a port, or both.
fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let with_port = |ip: IpAddr| SocketAddr::new(ip, rgaps_view::PORT);
    let on_loopback = |port: u16| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    text.parse()
        .or_else(|_| address.unwrap_or(text).parse().map(with_port))
        .or_else(|_| text.parse().map(on_loopback))
        .map_err(|_| format!("'{text}' is not an address such as 127.0.0.1, 9000 or 0.0.0.0:9000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_the_port_or_be_a_port() {
        for (text, wanted) in [
            ("127.0.0.1", "127.0.0.1:8765"),
            ("9000", "127.0.0.1:9000"),
            ("0.0.0.0:9000", "0.0.0.0:9000"),
            ("::1", "[::1]:8765"),
            ("[::1]", "[::1]:8765"),
            ("[::]:9", "[::]:9"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), wanted);
        }
        for text in ["", "localhost", "70000", "127.0.0.1:", "[::1"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
