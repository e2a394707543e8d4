//! Links to other hosts.

use super::landing::{self, LandingRule};
use super::rules::{self, Direction, LinkRule, Quota};
use super::{lane_address, ByteSize};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest name of a host.
const MAX_HOST_NAME: usize = 64;
/// Largest number of lanes of a link.
const MAX_LANES: u32 = 8;
/// Largest number of hosts that a host sends a topic's large messages to.
const MAX_FANOUT: u32 = 64;
/// Largest number of cards with RDMA that lanes use.
const MAX_RAILS: usize = 4;
/// How long threads of links spin, on machines with at least this many processors.
const SPIN_US: u32 = 100;
const SPIN_PROCESSORS: usize = 8;
/// Largest number of endpoints in a list.
const MAX_ENDPOINTS: usize = 256;
/// Shortest lease: with a shorter one, a busy machine loses peers that are alive.
const LEASE_MS_MIN: u64 = 200;
/// Longest lease and outage.
const WAIT_MS_MAX: u64 = 86_400_000;

/// Links to other hosts. They are off unless `enabled` is true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Links {
    /// Whether this host is linked with others.
    pub enabled: bool,
    /// The host's name, unique in the realm: `[A-Za-z0-9_-]`, at most 64 characters. `None`: the machine's name.
    pub host: Option<String>,
    /// This host's own address, at which it accepts lanes of other hosts. Without a port it takes
    /// [`LANE_PORT`](super::LANE_PORT), with port 0 any free port.
    #[serde(deserialize_with = "lane_address::deserialize")]
    pub listen: Option<SocketAddr>,
    /// Zenoh endpoints at which the control plane listens: `tcp/10.0.0.1:7447`, `tls/...`.
    pub control: Vec<String>,
    /// Zenoh endpoints of other hosts. This host tries them until it reaches them.
    pub connect: Vec<String>,
    /// Whether this host also looks for others by multicast.
    pub scouting: bool,
    /// Whether connected hosts tell each other which hosts they know, and connect to those, too.
    pub gossip: bool,
    /// Whether bytes may cross a network without encryption. Within the machine they always may.
    pub insecure: bool,
    /// A host that is silent for this long counts as gone, in milliseconds.
    pub lease_ms: u64,
    /// How long this host keeps messages for a host that has gone, in milliseconds.
    pub outage_ms: u64,
    /// How many bytes of each publisher this host keeps for a host that has gone.
    pub outage_max: ByteSize,
    /// Largest number of bytes of a publisher in flight to one host.
    pub in_flight_max: ByteSize,
    /// Largest number of bytes of a topic that arrive here at the same time.
    pub landing_max: ByteSize,
    /// Largest number of messages of a topic that the links hold at the same time, for all hosts together.
    pub held_max: u32,
    /// Lanes of a link.
    pub lanes: u32,
    /// How long threads of a link poll for the next message before they sleep, in microseconds. `None`: 100 on machines
    /// with 8 processors or more, else 0.
    pub spin_us: Option<u32>,
    /// Whether lanes use RDMA. It needs `trusted_fabric`.
    pub rdma: Rdma,
    /// Whether you trust everyone on the network of the cards with RDMA, since RDMA is not encrypted.
    pub trusted_fabric: bool,
    /// The cards with RDMA that lanes use in turn, at most four. Empty: the cards that are up and nearest to the memory.
    pub rdma_devices: Vec<String>,
    /// How much of an RDMA lane's ring the receiver reads before it tells the sender.
    pub rdma_watermark: Watermark,
    /// Largest number of bytes per second that a link carries. The rates of quotas must not add up to more.
    pub rate_max: Option<ByteSize>,
    /// Whether this host carries messages between hosts that reach each other only through it.
    pub relay: bool,
    /// To how many hosts a host sends a topic's large messages directly; those pass them on to the others. 0: a host sends them
    /// directly to all hosts that it is linked with.
    pub fanout: u32,
    /// Topics with messages of this size or more are sent over trees, if there is a `fanout`.
    pub tree_min: ByteSize,
    /// Certificates, with which hosts prove who they are.
    pub tls: LinksTls,
    /// Which topics may cross, and to or from which hosts.
    pub rules: Vec<LinkRule>,
    /// How much memory and bandwidth topics may use.
    pub quotas: Vec<Quota>,
    /// In which domain messages of other hosts arrive.
    pub landing: Vec<LandingRule>,
}

/// Certificates of the control plane and the lanes. Set all of them or none. The host's certificate contains the name
/// `links.host`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinksTls {
    /// The certificate authority of the realm.
    pub ca: Option<PathBuf>,
    /// This host's certificate.
    pub certificate: Option<PathBuf>,
    /// This host's private key.
    pub key: Option<PathBuf>,
}

impl LinksTls {
    /// All three, if they are set.
    pub fn paths(&self) -> Option<[&Path; 3]> {
        Some([
            self.ca.as_deref()?,
            self.certificate.as_deref()?,
            self.key.as_deref()?,
        ])
    }
}

/// Whether lanes use RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rdma {
    /// No lane uses RDMA.
    Off,
    /// Lanes that can use RDMA do; the others use TCP.
    #[default]
    Auto,
    /// All lanes use RDMA; where that is not possible, there is no lane.
    Only,
}

/// How much of a ring the receiver reads before it tells the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Watermark {
    /// Each message.
    #[serde(rename = "0")]
    Each,
    /// An eighth.
    #[serde(rename = "1/8")]
    Eighth,
    /// A quarter.
    #[default]
    #[serde(rename = "1/4")]
    Quarter,
    /// Half of it.
    #[serde(rename = "1/2")]
    Half,
}

impl Default for Links {
    fn default() -> Self {
        Links {
            enabled: false,
            host: None,
            listen: None,
            control: Vec::new(),
            connect: Vec::new(),
            scouting: false,
            gossip: true,
            insecure: false,
            lease_ms: 1_000,
            outage_ms: 10_000,
            outage_max: ByteSize(1 << 30),
            in_flight_max: ByteSize(256 << 20),
            landing_max: ByteSize(1 << 30),
            held_max: 1024,
            lanes: 2,
            spin_us: None,
            rdma: Rdma::default(),
            trusted_fabric: false,
            rdma_devices: Vec::new(),
            rdma_watermark: Watermark::default(),
            rate_max: None,
            relay: true,
            fanout: 2,
            tree_min: ByteSize(64 << 10),
            tls: LinksTls::default(),
            rules: Vec::new(),
            quotas: Vec::new(),
            landing: Vec::new(),
        }
    }
}

impl Links {
    /// The host's name. An error if the machine's name cannot be one.
    pub fn host_name(&self) -> Result<String, String> {
        let name = match &self.host {
            Some(name) => name.clone(),
            None => {
                let name = rustix::system::uname();
                let name = name.nodename().to_string_lossy();
                name.split('.').next().unwrap_or_default().to_owned()
            }
        };
        check_host(&name).map(|()| name)
    }

    /// How long threads of a link poll for the next message before they sleep.
    pub fn spin(&self) -> Duration {
        let us = self.spin_us.unwrap_or_else(|| {
            let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
            match processors >= SPIN_PROCESSORS {
                true => SPIN_US,
                false => 0,
            }
        });
        Duration::from_micros(us.into())
    }

    /// Whether the control plane is authenticated.
    pub fn has_tls(&self) -> bool {
        self.tls.ca.is_some()
    }

    /// Whether a topic may go to, or come from, this host; if not, the rule that forbids it.
    pub fn may_cross(&self, direction: Direction, host: &str, topic: &str) -> Result<(), String> {
        rules::may_cross(&self.rules, direction, host, topic)
    }

    /// Whether a topic may come from any host; if not, the rule that forbids it.
    pub fn may_arrive(&self, topic: &str) -> Result<(), String> {
        rules::may_arrive(&self.rules, topic)
    }

    /// The quota that a topic has with this host.
    pub fn quota(&self, host: &str, topic: &str) -> Option<&Quota> {
        rules::quota(&self.quotas, host, topic)
    }

    /// The rule that says in which domain a topic arrives.
    pub fn landing(&self, topic: &str) -> Option<&LandingRule> {
        landing::landing(&self.landing, topic)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        landing::check(&self.landing)?;
        rules::check(&self.rules, &self.quotas, self.rate_max)?;
        if let Some(host) = &self.host {
            check_host(host)?;
        }
        self.check_numbers()?;
        if self.rdma == Rdma::Only && !self.trusted_fabric {
            return Err(
                "links.rdma = \"only\": RDMA is not encrypted; set trusted_fabric = true if you trust everything on its \
                 network are trusted"
                    .to_owned(),
            );
        }
        if self.rdma_devices.len() > MAX_RAILS {
            return Err(format!(
                "links.rdma_devices names {} cards; the limit is {MAX_RAILS}",
                self.rdma_devices.len()
            ));
        }
        let tls = [&self.tls.ca, &self.tls.certificate, &self.tls.key];
        if self.has_tls() != tls.iter().all(|path| path.is_some())
            || self.has_tls() != tls.iter().any(|path| path.is_some())
        {
            return Err("links.tls needs all of ca, certificate and key".to_owned());
        }
        for (key, endpoints) in [("control", &self.control), ("connect", &self.connect)] {
            if endpoints.len() > MAX_ENDPOINTS {
                return Err(format!(
                    "links.{key} has more than {MAX_ENDPOINTS} endpoints"
                ));
            }
            for endpoint in endpoints {
                self.check_endpoint(key, endpoint)?;
            }
        }
        self.check_listen()?;
        if !self.enabled {
            return Ok(());
        }
        if self.listen.is_none() {
            return Err(
                "links.listen names no address for lanes: write listen = \"10.0.0.1\" \
                        with this host's own address"
                    .to_owned(),
            );
        }
        if self.control.is_empty() && self.connect.is_empty() && !self.scouting {
            return Err(
                "links.enabled without links.control, links.connect and links.scouting: no \
                        other host can be found; name an endpoint such as \"tcp/10.0.0.2:7447\""
                    .to_owned(),
            );
        }
        self.host_name().map(drop)
    }

    fn check_numbers(&self) -> Result<(), String> {
        for (key, value, least, most) in [
            ("lanes", u64::from(self.lanes), 1, u64::from(MAX_LANES)),
            ("spin_us", u64::from(self.spin_us.unwrap_or(0)), 0, 10_000),
            ("lease_ms", self.lease_ms, LEASE_MS_MIN, WAIT_MS_MAX),
            ("outage_ms", self.outage_ms, 0, WAIT_MS_MAX),
            ("fanout", u64::from(self.fanout), 0, u64::from(MAX_FANOUT)),
            (
                "held_max",
                u64::from(self.held_max),
                1,
                u64::from(rgaps_layout::MAX_HELD),
            ),
        ] {
            if value < least || value > most {
                return Err(format!(
                    "links.{key} = {value}: it must be {least} to {most}"
                ));
            }
        }
        for (key, bytes) in [
            ("outage_max", self.outage_max),
            ("in_flight_max", self.in_flight_max),
            ("landing_max", self.landing_max),
        ] {
            if bytes.0 == 0 {
                return Err(format!("links.{key} = {bytes}: it must be more than 0"));
            }
        }
        Ok(())
    }

    /// The address of this host's lanes.
    fn check_listen(&self) -> Result<(), String> {
        let Some(address) = self.listen else {
            return Ok(());
        };
        if address.ip().is_unspecified() {
            return Err(format!(
                "links.listen = \"{address}\": other hosts connect to this address, so it must be this \
                 host's own"
            ));
        }
        if !address.ip().is_loopback() && !self.insecure && !self.has_tls() {
            return Err(format!(
                "links.listen: lanes at {address} would carry messages over a network unencrypted; \
                 name certificates in links.tls, set links.insecure = true if that network is \
                 trusted, or listen at 127.0.0.1"
            ));
        }
        Ok(())
    }

    fn check_endpoint(&self, key: &str, endpoint: &str) -> Result<(), String> {
        let wrong = |reason: &str| Err(format!("links.{key}: {endpoint:?} {reason}"));
        let Some((protocol, address)) = endpoint.split_once('/') else {
            return wrong("is not an endpoint; write \"tcp/10.0.0.2:7447\"");
        };
        let Some((host, port)) = address.rsplit_once(':') else {
            return wrong("has no port; write \"tcp/10.0.0.2:7447\"");
        };
        if port.parse::<u16>().is_err() || host.is_empty() {
            return wrong("has an invalid host or port; write \"tcp/10.0.0.2:7447\"");
        }
        match protocol {
            "tls" if self.has_tls() => Ok(()),
            "tls" => wrong("needs links.tls.ca, certificate and key"),
            "tcp" if self.insecure || is_loopback(host) => Ok(()),
            "tcp" => {
                wrong("is not encrypted; use tls/ with links.tls, or set links.insecure = true")
            }
            _ => wrong("must start with tcp/ or tls/"),
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn check_host(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > MAX_HOST_NAME || !name.chars().all(plain) {
        return Err(format!(
            "links.host = {name:?}: the name of a host has 1 to {MAX_HOST_NAME} letters, digits, '_' or '-'"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Links, String> {
        let links: Links = toml::from_str(text).map_err(|error| error.to_string())?;
        links.check().map(|()| links)
    }

    const LOOPBACK: &str = "enabled = true\nhost = \"a\"\nlisten = \"127.0.0.1:0\"\n";

    #[test]
    fn hosts_on_one_machine_need_no_more_than_addresses() {
        let links = parse(&format!("{LOOPBACK}control = [\"tcp/127.0.0.1:7447\"]")).unwrap();
        assert_eq!(links.host_name().unwrap(), "a");
        assert_eq!(
            (links.lease_ms, links.lanes, links.scouting),
            (1000, 2, false)
        );
        assert!(links.relay && !parse("relay = false").unwrap().relay);
        assert_eq!(links.rdma_watermark, Watermark::Quarter);
        let links = parse("rdma_watermark = \"1/8\"\noutage_max = \"64MiB\"").unwrap();
        assert_eq!(links.rdma_watermark, Watermark::Eighth);
        assert_eq!(links.outage_max, ByteSize(64 << 20));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (text, named) in [
            ("enabled = true\nhost = \"a\"", "links.listen"),
            (LOOPBACK, "links.connect"),
            ("host = \"a/b\"", "links.host"),
            ("lanes = 9", "links.lanes = 9: it must be 1 to 8"),
            ("lease_ms = 10", "links.lease_ms"),
            ("landing_max = 0", "links.landing_max"),
            ("rdma = \"only\"", "trusted_fabric = true"),
            (
                "rdma_devices = [\"a\", \"b\", \"c\", \"d\", \"e\"]",
                "5 cards",
            ),
            ("rdma = \"maybe\"", "maybe"),
            ("connect = [\"127.0.0.1:1\"]", "is not an endpoint"),
            ("connect = [\"tcp/127.0.0.1\"]", "has no port"),
            (
                "connect = [\"udp/127.0.0.1:1\"]",
                "must start with tcp/ or tls/",
            ),
            ("connect = [\"tls/127.0.0.1:1\"]", "links.tls.ca"),
            ("rdma_watermark = \"1/3\"", "1/3"),
            ("watermark = \"1/8\"", "rdma_watermark"),
            ("listen = \"0.0.0.0:0\"", "links.listen"),
            ("[tls]\nca = \"ca.pem\"", "all of ca, certificate and key"),
            ("[[rules]]\nname = \"r\"\ntopics = [\"a\"]", "action"),
            (
                "[[rules]]\nname = \"r\"\ntopics = []\naction = \"deny\"",
                "links.rules 'r'",
            ),
            ("spare = 1", "spare"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn nothing_is_in_the_clear_on_a_network_unless_it_is_said() {
        for text in [
            "listen = \"10.0.0.1:0\"",
            "connect = [\"tcp/10.0.0.1:7447\"]",
            "control = [\"tcp/0.0.0.0:7447\"]",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("links.insecure = true"), "{text}: {error}");
            parse(&format!("{text}\ninsecure = true")).unwrap();
        }
    }
}
