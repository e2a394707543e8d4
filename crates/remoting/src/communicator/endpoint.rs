//! Where a server listens, as text.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of an endpoint that names none.
pub const PORT: u16 = 7462;

/// Whether TCP is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Encrypted if the configuration has certificates and the address is not of this host.
    Configured,
    /// Not encrypted.
    Plain,
    /// Encrypted.
    Tls,
    /// TCP finds the other end, as configured; RDMA carries the bytes.
    Rdma,
}

/// Where a server listens: `HOST[:PORT]`, `tls/HOST[:PORT]`, `tcp/HOST[:PORT]`, `rdma/HOST[:PORT]`, `unix:PATH`, or `NAME/ADDRESS` for
/// the communicator of a plug-in. `NAME@HOST` says which name the server's certificate has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// TCP, and RDMA, whose ends find each other over TCP.
    Tcp {
        /// Whether it is encrypted, and whether it is RDMA.
        protocol: Protocol,
        /// The server's name in its certificate, if that is not `host`.
        name: Option<String>,
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket; both ends share memory.
    Unix(PathBuf),
    /// A communicator of a plug-in.
    Plugin {
        /// Its name in the configuration.
        communicator: String,
        /// The address, which the plug-in interprets.
        address: String,
    },
}

impl Endpoint {
    /// Whether a host, as it is written, is this one.
    pub(crate) fn is_loopback(host: &str) -> bool {
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    fn tcp(protocol: Protocol, text: &str) -> Result<Endpoint, String> {
        let (name, address) = match text.split_once('@') {
            Some((name, address)) => (Some(name.to_owned()), address),
            None => (None, text),
        };
        let (host, port) = match address.rsplit_once(':') {
            // An IPv6 address in brackets may have a port.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let port = port
                    .parse()
                    .map_err(|_| format!("'{port}' is not a port"))?;
                (host, port)
            }
            _ => (address, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match host.is_empty() || name.as_ref().is_some_and(String::is_empty) {
            true => Err(format!("'{text}' names no host")),
            false => Ok(Endpoint::Tcp {
                protocol,
                name,
                host: host.to_owned(),
                port,
            }),
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err("'unix:' has no path".to_owned()),
                false => Ok(Endpoint::Unix(path.into())),
            };
        }
        match text.split_once('/') {
            None => Endpoint::tcp(Protocol::Configured, text),
            Some(("tcp", rest)) => Endpoint::tcp(Protocol::Plain, rest),
            Some(("tls", rest)) => Endpoint::tcp(Protocol::Tls, rest),
            Some(("rdma", rest)) => Endpoint::tcp(Protocol::Rdma, rest),
            Some(("", _)) => Err(format!("'{text}' is a path; write unix:{text}")),
            Some((communicator, address)) => Ok(Endpoint::Plugin {
                communicator: communicator.to_owned(),
                address: address.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp {
                protocol,
                name,
                host,
                port,
            } => {
                f.write_str(match protocol {
                    Protocol::Configured => "",
                    Protocol::Plain => "tcp/",
                    Protocol::Tls => "tls/",
                    Protocol::Rdma => "rdma/",
                })?;
                if let Some(name) = name {
                    write!(f, "{name}@")?;
                }
                match host.contains(':') {
                    true => write!(f, "[{host}]:{port}"),
                    false => write!(f, "{host}:{port}"),
                }
            }
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Plugin {
                communicator,
                address,
            } => write!(f, "{communicator}/{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_shown() {
        for (text, shown) in [
            ("gpu7", "gpu7:7462"),
            ("gpu7:99", "gpu7:99"),
            ("10.0.0.1:5", "10.0.0.1:5"),
            ("[::1]:5", "[::1]:5"),
            ("::1", "[::1]:7462"),
            ("unix:/run/x", "unix:/run/x"),
            ("tls/gpu7@10.0.0.1", "tls/gpu7@10.0.0.1:7462"),
            ("tcp/[fd00::7]:5", "tcp/[fd00::7]:5"),
            ("rdma/10.0.0.1", "rdma/10.0.0.1:7462"),
            ("abstract/gpu/7", "abstract/gpu/7"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "unix:",
            ":5",
            "host:port",
            "/run/x",
            "tls/",
            "@10.0.0.1",
        ] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
