//! Links to other hosts.

use super::landing::{self, LandingRule};
use super::rules::{self, Direction, LinkRule, Quota};
use super::{lane_address, ByteSize};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Longest name of a host.
const MAX_HOST_NAME: usize = 64;
/// Lanes of a link, and addresses that they listen at.
const MAX_LANES: u32 = 8;
/// Cards with RDMA that lanes use.
const MAX_RAILS: usize = 4;
/// Threads of links spin for so long, on machines with so many processors.
const SPIN_US: u32 = 100;
const SPIN_PROCESSORS: usize = 8;
/// Endpoints that are listed at most.
const MAX_ENDPOINTS: usize = 256;
/// Shortest lease: below this a busy machine loses peers that are there.
const LEASE_MS_MIN: u64 = 200;
/// Longest lease and outage.
const WAIT_MS_MAX: u64 = 86_400_000;

/// Links to other hosts. What is not said is not done: a host without `enabled` has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Links {
    /// Whether this host is linked with others.
    pub enabled: bool,
    /// What to call this host: `[A-Za-z0-9_-]`, at most 64 characters, no other of the realm's. None
    /// takes the machine's name.
    pub host: Option<String>,
    /// This host's own address, at which lanes of other hosts are accepted. Without a port it is
    /// [`LANE_PORT`](super::LANE_PORT); port 0 takes a free one.
    #[serde(deserialize_with = "lane_address::deserialize")]
    pub listen: Option<SocketAddr>,
    /// Zenoh endpoints at which the control plane listens: `tcp/10.0.0.1:7447`, `tls/...`.
    pub control: Vec<String>,
    /// Zenoh endpoints of other hosts. They are tried for as long as it takes.
    pub connect: Vec<String>,
    /// Whether other hosts are looked for by multicast, too.
    pub scouting: bool,
    /// Whether hosts that are connected tell each other of those that they know, which are then tried, too.
    pub gossip: bool,
    /// Whether bytes may cross other networks than the machine's own in the clear.
    pub insecure: bool,
    /// A host that was not heard of for so long is gone.
    pub lease_ms: u64,
    /// Of a reliable topic, how long messages are kept for a host that is gone.
    pub outage_ms: u64,
    /// Bytes that are kept of each publisher's messages for a host that is gone.
    pub outage_max: ByteSize,
    /// Bytes of a publisher's messages that are on their way to a host at most.
    pub in_flight_max: ByteSize,
    /// Bytes of messages of a topic that land here at the same time at most.
    pub landing_max: ByteSize,
    /// Messages that the links hold of a topic at once, for all hosts together.
    pub held_max: u32,
    /// Lanes of a link.
    pub lanes: u32,
    /// How long threads of a link look for the next message before they sleep, in microseconds. None: 100 where there
    /// are processors to spare, else 0.
    pub spin_us: Option<u32>,
    /// Whether lanes are RDMA where they can be. It takes `trusted_fabric`.
    pub rdma: Rdma,
    /// Everybody on the network of the cards with RDMA is trusted: RDMA is not encrypted.
    pub trusted_fabric: bool,
    /// The cards with RDMA that lanes use, in turns, at most four. Empty: those that are up, the nearest to the memory first.
    pub rdma_devices: Vec<String>,
    /// When the receiver of an RDMA lane tells the sender how far it has read its ring.
    pub rdma_watermark: Watermark,
    /// Bytes a second that a link carries: what quotas' shares add up to at most.
    pub rate_max: Option<ByteSize>,
    /// Whether this host carries on what is for hosts that others reach only through it.
    pub relay: bool,
    /// Who is who between hosts.
    pub tls: LinksTls,
    /// What may cross.
    pub rules: Vec<LinkRule>,
    /// And how much.
    pub quotas: Vec<Quota>,
    /// Where what comes from other hosts lands.
    pub landing: Vec<LandingRule>,
}

/// Certificates of the control plane and the lanes, all or none of them. The host's certificate names
/// it as `links.host` does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinksTls {
    /// Who vouches for the other hosts.
    pub ca: Option<PathBuf>,
    /// This host's certificate.
    pub certificate: Option<PathBuf>,
    /// This host's key.
    pub key: Option<PathBuf>,
}

/// Whether lanes are RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rdma {
    /// No lanes.
    Off,
    /// Those that can be; the others are TCP.
    #[default]
    Auto,
    /// All of them: there is no lane that is not.
    Only,
}

/// What part of a ring is read before the sender is told.
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
            tls: LinksTls::default(),
            rules: Vec::new(),
            quotas: Vec::new(),
            landing: Vec::new(),
        }
    }
}

impl Links {
    /// What this host is called, if it can be found out.
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

    /// How long threads of a link look for the next message before they sleep.
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

    /// Whether a topic may go to, or come from, this host; if not, which rule says so.
    pub fn may_cross(&self, direction: Direction, host: &str, topic: &str) -> Result<(), String> {
        rules::may_cross(&self.rules, direction, host, topic)
    }

    /// Whether a topic may come from any host at all; if not, which rule says so.
    pub fn may_come(&self, topic: &str) -> Result<(), String> {
        rules::may_come(&self.rules, topic)
    }

    /// The quota that a topic has with this host.
    pub fn quota(&self, host: &str, topic: &str) -> Option<&Quota> {
        rules::quota(&self.quotas, host, topic)
    }

    /// What says where a topic lands.
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
