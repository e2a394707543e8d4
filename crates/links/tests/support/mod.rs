//! Hosts on one machine: a daemon and links for each, with sockets of their own.
#![allow(dead_code)]

pub mod cable;
pub mod stream;

use rgaps::{
    Config, Node, PeerState, PeerTopic, PublishError, Publisher, PutError, Sample, Subscriber,
};
use rgaps_testkit::{command_within, Daemon, Process};
#[allow(unused_imports, reason = "every test program uses a part of it")]
pub use rgaps_testkit::{content, ports, until, LIMIT, LOOK_AGAIN};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The deadline of publishers that a test back-pressures: when it has passed, the test sees an error.
pub const SHORT: Duration = Duration::from_millis(100);

/// The configuration of a host's pool.
const POOL: &str = "cap = \"2GiB\"";

/// Runs `ip` with these arguments, separated by spaces.
pub fn ip(arguments: &str) -> Result<(), String> {
    network("ip", arguments)
}

/// Makes sending over a device slow or lossy, as `RGAPS_TEST_NETEM` says: "delay 5ms loss 1%", for instance. Not every kernel
/// can do that; the one of tests/vm can.
pub fn disturb(namespace: &str, device: &str) -> Result<(), String> {
    match std::env::var("RGAPS_TEST_NETEM") {
        Ok(how) => network(
            "tc",
            &format!("-n {namespace} qdisc add dev {device} root netem {how}"),
        ),
        Err(_) => Ok(()),
    }
}

fn network(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("running the program '{program}' failed: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Waits for a sample's bytes, and returns them, also from a GPU.
pub fn bytes_of(sample: &Sample) -> Vec<u8> {
    let mut bytes = vec![0; sample.len() as usize];
    sample.synchronize(LIMIT).unwrap();
    sample.read(0, &mut bytes).unwrap();
    bytes
}

/// The path of `rgaps-links`: that of `RGAPS_LINKS_PROGRAM`, or the program that was built with the test.
fn rgaps_links() -> PathBuf {
    let other = std::env::var_os("RGAPS_LINKS_PROGRAM");
    other.map_or_else(|| env!("CARGO_BIN_EXE_rgaps-links").into(), PathBuf::from)
}

pub struct Host {
    pub name: String,
    within: Vec<String>,
    pub daemon: Daemon,
    pub links: Option<Process>,
}

/// Starts so many hosts that know each other. `more` goes into the `[links]` of each.
pub fn hosts(count: usize, more: &str) -> Vec<Host> {
    hosts_started(count, more, Host::start)
}

/// Starts so many hosts that know each other, each with `start`, which gets its name and `[links]`.
pub fn hosts_started(count: usize, more: &str, start: impl Fn(&str, &str) -> Host) -> Vec<Host> {
    let ports = ports(count);
    (0..count)
        .map(|at| {
            let others: Vec<String> = (0..count)
                .filter(|other| *other != at)
                .map(|other| format!("\"tcp/127.0.0.1:{}\"", ports[other]))
                .collect();
            let name = format!("host-{}", (b'a' + at as u8) as char);
            let links = format!(
                "host = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
                 connect = [{}]\n{more}",
                ports[at],
                others.join(", ")
            );
            start(&name, &links)
        })
        .collect()
}

/// Starts a host that knows only these others: gossip about other hosts is off.
pub fn start_among(ports: &[u16], at: usize, others: &[usize], more: &str) -> Host {
    let others = others.iter().filter_map(|other| ports.get(*other));
    let connect: Vec<String> = others
        .map(|port| format!("\"tcp/127.0.0.1:{port}\""))
        .collect();
    let name = format!("host-{}", (b'a' + at as u8) as char);
    let links = format!(
        "host = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
         connect = [{}]\ngossip = false\n{more}",
        ports[at],
        connect.join(", ")
    );
    Host::start(&name, &links)
}

impl Host {
    pub fn start(name: &str, links: &str) -> Host {
        Host::start_in(None, name, links)
    }

    /// Starts a host in a network namespace.
    pub fn start_in(namespace: Option<&str>, name: &str, links: &str) -> Host {
        let within = namespace.map_or_else(Vec::new, |name| {
            ["ip", "netns", "exec", name].map(str::to_owned).to_vec()
        });
        let mut host = Host::with_daemon(within, "default", name, links, POOL);
        host.start_links();
        host
    }

    /// Starts a host in a realm of this name.
    pub fn start_in_realm(realm: &str, name: &str, links: &str) -> Host {
        let mut host = Host::with_daemon(Vec::new(), realm, name, links, POOL);
        host.start_links();
        host
    }

    /// Starts a host's daemon; the test does not start its links.
    pub fn start_whole(name: &str, links: &str) -> Host {
        Host::with_daemon(Vec::new(), "default", name, links, POOL)
    }

    /// Like [`Host::start_whole`], with this pool's configuration.
    pub fn start_whole_with_pool(name: &str, links: &str, pool: &str) -> Host {
        Host::with_daemon(Vec::new(), "default", name, links, pool)
    }

    /// Starts a host with this pool's configuration. `within`: a command that runs the host's programs, such as `ip netns exec NAME`.
    pub fn start_with_pool(name: &str, links: &str, pool: &str, within: Vec<String>) -> Host {
        let mut host = Host::with_daemon(within, "default", name, links, pool);
        host.start_links();
        host
    }

    fn with_daemon(within: Vec<String>, realm: &str, name: &str, links: &str, pool: &str) -> Host {
        let config = format!(
            "realm = \"{realm}\"\nlog = \"warn,rgaps_links=info\"\n\
             [pool.host]\nsegment = \"8MiB\"\n{pool}\n[links]\n{links}\n"
        );
        let program = rgaps_links();
        let daemon = Daemon::builder().config(&config).within(&within);
        let daemon = daemon.settings(&[("RGAPS_LINKS_PROGRAM", program.to_str().unwrap())]);
        Host {
            name: name.to_owned(),
            within,
            daemon: daemon.start(),
            links: None,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.daemon.config_path()
    }

    pub fn config(&self) -> Config {
        self.daemon.config()
    }

    pub fn node(&self, name: &str) -> Node {
        self.daemon.node(name)
    }

    pub fn start_links(&mut self) {
        let mut command = command_within(&self.within, &rgaps_links());
        command.arg("--config").arg(self.path());
        command.stdin(Stdio::null());
        self.links = Some(Process::start(&mut command));
    }

    /// Ends the host's links, as a crash would.
    pub fn kill_links(&mut self) {
        self.links = None;
    }

    pub fn kill_daemon(&mut self) {
        self.daemon.kill();
    }

    pub fn start_daemon(&mut self) {
        self.daemon.restart();
    }

    /// Waits until the host is linked with so many others.
    pub fn wait_for_peers(&self, count: usize) {
        let node = self.node("peers");
        until("hosts to be linked", || {
            let peers = node.peers().unwrap_or_default().peers;
            let linked = peers.iter().filter(|peer| peer.state == PeerState::Linked);
            linked.count() >= count
        });
    }
}

/// Waits until `is_so` is true for a topic's row in `rgaps peers`.
pub fn noted(node: &Node, topic: &str, what: &str, is_so: impl Fn(&PeerTopic) -> bool) {
    let begun = Instant::now();
    loop {
        let peers = node.peers().unwrap_or_default().peers;
        let mut rows = peers.iter().flat_map(|peer| &peer.topics);
        if rows.any(|row| row.topic == topic && is_so(row)) {
            return;
        }
        assert!(
            begun.elapsed() < LIMIT,
            "waited for {what} of '{topic}' in 'rgaps peers': {peers:?}"
        );
        std::thread::sleep(LOOK_AGAIN);
    }
}

pub fn wait_for_subscribers(publisher: &Publisher, count: u32) {
    assert!(
        publisher.wait_for_subscribers(count, LIMIT).unwrap(),
        "waited for {count} subscribers for {LIMIT:?}; there are {}",
        publisher.subscribers()
    );
}

pub fn receive(subscriber: &Subscriber) -> Sample {
    let received = subscriber.recv_timeout(LIMIT);
    received.unwrap_or_else(|error| panic!("topic '{}': {error}", subscriber.topic()))
}

/// Publishes a message. False: the publisher was back-pressured until its deadline.
pub fn try_put(publisher: &Publisher, payload: &[u8]) -> bool {
    match publisher.put(payload) {
        Ok(_) => true,
        Err(PutError::Publish(PublishError::BackPressured { .. })) => false,
        Err(error) => panic!("topic '{}': {error}", publisher.topic()),
    }
}

/// The message that a test publishes last.
pub fn last_message() -> &'static [u8] {
    b"the last message"
}

/// Whether a message is the last one.
pub fn is_last(payload: &[u8]) -> bool {
    payload == last_message()
}

/// Checks that these subscribers have received every message: publishes one more, which must be the next that each of them gets.
pub fn nothing_more(publisher: &Publisher, subscribers: &[&Subscriber]) {
    publisher.put(last_message()).unwrap();
    for subscriber in subscribers {
        let sample = receive(subscriber);
        let is_last = is_last(&bytes_of(&sample));
        assert!(is_last, "{sample:?} came before the last message");
        let more = subscriber.try_recv();
        assert!(matches!(more, Ok(None)), "{more:?} came after it");
    }
}
