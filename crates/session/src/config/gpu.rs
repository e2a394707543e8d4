//! The server of this host's GPUs, and how CUDA programs reach servers.

use super::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Most clients of a server.
const CLIENTS_MAX: u32 = 1024;
/// Communicators that need no library.
const BUILT_IN: [&str; 4] = ["tcp", "tls", "rdma", "unix"];

/// GPU remoting. Certificates, and whether bytes may cross a network without encryption, are those of [`Links`](super::Links).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// Whether the daemon keeps a server running.
    pub serve: bool,
    /// Where the server listens: `10.0.0.7`, `unix:PATH`.
    pub listen: Vec<String>,
    /// The GPUs that it serves, by number or UUID. Empty: all.
    pub devices: Vec<String>,
    /// Most clients at a time.
    pub clients: u32,
    /// Most bytes of GPU memory of a client.
    pub memory_max: Option<ByteSize>,
    /// Whether the server pins memory of this host.
    pub pinning: bool,
    /// A folder where the server keeps images of libraries that clients have sent. `None`: the user's folder for caches.
    pub images: Option<PathBuf>,
    /// The hosts whose programs may use the server, by the names in their certificates. Empty: all hosts of the realm.
    pub allow: Vec<String>,
    /// Patterns of the topics of this host that clients may publish and receive, with the rights of the server's user. Empty: none.
    pub topics: Vec<String>,
    /// The servers that programs of this host use by default, in the order in which their GPUs are numbered: `10.0.0.7`, `10.0.0.8:1`.
    pub servers: Vec<String>,
    /// Libraries with further communicators, by the names under which addresses mention them.
    pub communicators: BTreeMap<String, PathBuf>,
}

impl Default for Gpu {
    fn default() -> Self {
        Gpu {
            serve: false,
            listen: vec!["127.0.0.1".to_owned()],
            devices: Vec::new(),
            clients: 16,
            memory_max: None,
            pinning: true,
            images: None,
            allow: Vec::new(),
            topics: Vec::new(),
            servers: Vec::new(),
            communicators: BTreeMap::new(),
        }
    }
}

impl Gpu {
    /// Whether clients may use a topic.
    pub fn may_use(&self, topic: &str) -> bool {
        super::rules::matches(&self.topics, topic)
    }

    pub(super) fn check(&self, has_tls: bool) -> Result<(), String> {
        if self.clients == 0 || self.clients > CLIENTS_MAX {
            let clients = self.clients;
            return Err(format!(
                "gpu.clients = {clients}: it must be 1 to {CLIENTS_MAX}"
            ));
        }
        if self.listen.is_empty() {
            return Err("gpu.listen is empty: name an address, such as \"127.0.0.1\"".to_owned());
        }
        if !self.allow.is_empty() && !has_tls {
            return Err(
                "gpu.allow names hosts, which only certificates prove: set links.tls".to_owned(),
            );
        }
        let is_plain = |name: &String| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        for name in self.communicators.keys() {
            if !is_plain(name) || BUILT_IN.contains(&name.as_str()) {
                return Err(format!(
                    "gpu.communicators.{name}: the name of a communicator has letters, digits and '-', and is none of {}",
                    BUILT_IN.join(", ")
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, has_tls: bool) -> Result<Gpu, String> {
        let gpu: Gpu = toml::from_str(text).map_err(|error| error.to_string())?;
        gpu.check(has_tls).map(|()| gpu)
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(parse("", false).unwrap(), Gpu::default());
        parse("allow = [\"a\"]", true).unwrap();
        let topics = parse("topics = [\"camera/**\"]", false).unwrap();
        assert!(topics.may_use("camera/left") && !topics.may_use("lidar"));
        assert!(!Gpu::default().may_use("lidar"));
        parse("communicators = { vsock = \"/x.so\" }", false).unwrap();
        for (text, named) in [
            ("clients = 0", "gpu.clients"),
            ("listen = []", "gpu.listen"),
            ("allow = [\"a\"]", "links.tls"),
            (
                "communicators = { rdma = \"/x.so\" }",
                "gpu.communicators.rdma",
            ),
            (
                "communicators = { \"a/b\" = \"/x.so\" }",
                "gpu.communicators.a/b",
            ),
        ] {
            let error = parse(text, false).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
