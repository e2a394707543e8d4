//! A host: a folder, a daemon, and the links that the daemon keeps running.

use crate::disk::Disk;
use crate::flood::Flood;
use crate::network;
use anyhow::{bail, Context};
use rgaps::{Config, Node, PeerState};
use rustix::process::{kill_process, Pid, Signal};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon, or its links, may take to come to a state.
pub const LIMIT: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The ports of lanes and of the control plane: of a host's own address, or of this machine's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Address {
    pub ip: String,
    pub lanes: u16,
    pub control: u16,
}

pub struct Host {
    pub name: String,
    pub address: Address,
    namespace: Option<String>,
    folder: PathBuf,
    daemon: Option<Child>,
    /// With socket, state and log. Unmounted after the daemon has ended.
    pub disk: Disk,
    /// Open descriptors of the daemon, and of the links, before there were members.
    idle: [Option<u64>; 2],
}

/// A program beside this one, as it was built with it.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name(name);
    if !program.exists() {
        bail!("{} is not there; 'make soak' builds it", program.display());
    }
    Ok(program)
}

pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Addresses of so many hosts: their own in namespaces, else this machine's loopback.
pub fn addresses(hosts: usize, in_namespaces: bool) -> anyhow::Result<Vec<Address>> {
    let mut held = Vec::new();
    let mut port = || -> anyhow::Result<u16> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        // Until all have theirs.
        held.push(listener);
        Ok(port)
    };
    let addresses = (0..hosts).map(|at| match in_namespaces {
        true => Ok(Address {
            ip: network::address(at),
            lanes: 7448,
            control: 7447,
        }),
        false => Ok(Address {
            ip: "127.0.0.1".to_owned(),
            lanes: port()?,
            control: port()?,
        }),
    });
    addresses.collect()
}

impl Host {
    /// Starts the daemon, which starts the links if there are other hosts.
    pub fn start(
        folder: &Path,
        at: usize,
        addresses: &[Address],
        namespace: Option<&str>,
    ) -> anyhow::Result<Host> {
        let name = format!("host-{at}");
        let folder = folder.join(&name);
        std::fs::create_dir(&folder)?;
        let mut host = Host {
            name,
            address: addresses[at].clone(),
            namespace: namespace.map(str::to_owned),
            disk: Disk::make(folder.join("disk"))?,
            folder,
            daemon: None,
            idle: [None, None],
        };
        let others: Vec<&Address> = addresses
            .iter()
            .enumerate()
            .filter_map(|(other, address)| (other != at).then_some(address))
            .collect();
        std::fs::write(host.config_path(), host.config_text(&others))?;
        host.start_daemon()?;
        Ok(host)
    }

    fn config_text(&self, others: &[&Address]) -> String {
        let endpoint = |address: &Address| format!("\"tcp/{}:{}\"", address.ip, address.control);
        let connect: Vec<String> = others.iter().map(|address| endpoint(address)).collect();
        let socket = self.socket();
        let Address { ip, lanes, .. } = &self.address;
        let mut text = format!(
            "socket = \"{}\"\nautostart = false\nidle_exit_ms = 0\nlog = \"info\"\n\
             [pool.host]\nsegment = \"8MiB\"\ncap = \"512MiB\"\n[pool.cuda]\nenabled = \"off\"\n",
            socket.display()
        );
        if !others.is_empty() {
            text += &format!(
                "[links]\nenabled = true\nhost = \"{}\"\nlisten = \"{ip}:{lanes}\"\ninsecure = true\n\
                 control = [{}]\nconnect = [{}]\n",
                self.name,
                endpoint(&self.address),
                connect.join(", ")
            );
        }
        text
    }

    pub fn socket(&self) -> PathBuf {
        self.disk.folder().join("rgaps.sock")
    }

    pub fn config_path(&self) -> PathBuf {
        self.folder.join("rgaps.toml")
    }

    /// The last lines of the daemon's and the links' log.
    pub fn last_of_log(&self, lines: usize) -> String {
        let log = std::fs::read(self.disk.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// A command that becomes this program in the host's namespace, and ends with us.
    pub fn command(&self, program: &Path) -> anyhow::Result<Command> {
        let own = std::env::current_exe()?;
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(own);
                command
            }
            None => Command::new(own),
        };
        command.args(["become", "--"]).arg(program);
        command.stdin(Stdio::null());
        Ok(command)
    }

    pub fn start_daemon(&mut self) -> anyhow::Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.disk.log())?;
        let mut command = self.command(&program("rgapsd")?)?;
        command
            .args(["--foreground", "--config"])
            .arg(self.config_path());
        command.env("RGAPS_LINKS_PROGRAM", program("rgaps-links")?);
        command
            .env_remove("RUST_LOG")
            .stdout(log.try_clone()?)
            .stderr(log);
        self.daemon = Some(command.spawn().context("the daemon cannot be started")?);
        Ok(())
    }

    /// Starts strangers that take up its connections.
    pub fn flood(&self, seed: u64, lasts: Duration) -> anyhow::Result<Child> {
        let flood = Flood {
            socket: self.socket(),
            address: self.address.clone(),
            seed,
            lasts,
        };
        let mut command = self.command(&std::env::current_exe()?)?;
        command.args(["flood", &serde_json::to_string(&flood)?]);
        Ok(command.spawn()?)
    }

    /// The status of a daemon that has ended though nobody killed it.
    pub fn daemon_ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(daemon) = &mut self.daemon else {
            return Ok(None);
        };
        let status = daemon.try_wait()?;
        if status.is_some() {
            self.daemon = None;
        }
        Ok(status)
    }

    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// The process that the daemon has for the links.
    pub fn links_pid(&self) -> Option<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.daemon_pid()?)).ok()?;
        let children = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<String> = children.collect();
        let mut pids = children
            .iter()
            .flat_map(|pids| pids.split_ascii_whitespace());
        pids.find_map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (name.trim() == "rgaps-links").then(|| pid.parse().ok())?
        })
    }

    pub fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    pub fn node(&self) -> anyhow::Result<Node> {
        let config = Config::load(Some(&self.config_path()))?;
        Ok(Node::builder("soak").config(config).build()?)
    }

    /// Whether the daemon serves, and is linked with so many hosts.
    pub fn is_well(&self, peers: usize) -> bool {
        let Ok(node) = self.node() else {
            return false;
        };
        let rows = node.peers().unwrap_or_default().peers;
        let linked = rows.iter().filter(|peer| peer.state == PeerState::Linked);
        linked.count() >= peers
    }

    pub fn wait_until_well(&self, peers: usize) -> anyhow::Result<()> {
        until(&format!("{} to serve and to be linked", self.name), || {
            self.is_well(peers)
        })
    }

    /// Open descriptors of the daemon and the links, but for those of shared memory, which a pool keeps.
    fn descriptors(&self) -> [Option<u64>; 2] {
        [self.daemon_pid(), self.links_pid()].map(|pid| pid.and_then(count_descriptors))
    }

    pub fn note_descriptors(&mut self) {
        self.idle = self.descriptors();
    }

    /// How many descriptors daemon and links have more than before there were members.
    pub fn more_descriptors(&self) -> [u64; 2] {
        let now = self.descriptors();
        [0, 1].map(|at| match (now[at], self.idle[at]) {
            (Some(now), Some(idle)) => now.saturating_sub(idle),
            _ => 0,
        })
    }

    /// Bytes of the pools that are leased, once kept history is dropped.
    pub fn leased_bytes(&self) -> anyhow::Result<u64> {
        let node = self.node()?;
        for kind in &crate::topics::KINDS {
            // A topic that nobody has is gone.
            let _ = node.forget_topic(kind.name);
        }
        Ok(node.pools()?.iter().map(|pool| pool.leased_bytes).sum())
    }

    pub fn rss_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.node()?.status()?.rss_bytes)
    }

    /// What the daemon and links have open, for a failure.
    pub fn open_files(&self) -> String {
        let pids = [self.daemon_pid(), self.links_pid()];
        let files = pids
            .into_iter()
            .flatten()
            .map(|pid| format!("{pid}: {}", open_files(pid).join(" ")));
        files.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill_daemon();
    }
}

fn open_files(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let mut targets: Vec<_> = targets.map(|target| target.display().to_string()).collect();
    targets.sort();
    targets
}

fn count_descriptors(pid: u32) -> Option<u64> {
    let files = open_files(pid);
    let counted = files.iter().filter(|file| !file.starts_with("/memfd:"));
    (!files.is_empty()).then(|| counted.count() as u64)
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LIMIT {
            bail!("waited for {what} for {LIMIT:?}");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}
