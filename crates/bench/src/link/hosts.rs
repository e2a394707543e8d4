//! Two hosts on this machine, each with a daemon and a process of links: in two network namespaces with a cable (a veth
//! pair) between them, or at loopback.

use crate::board::{Board, Geometry};
use crate::crew::{Crew, Job, Orders};
use anyhow::{bail, Context};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rgaps::{Config, Node, PeerState};
use rgaps_session::{find_daemon, links_command, ByteSize, Rdma};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, TcpListener};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long daemons and links may take to start.
const SOON: Duration = Duration::from_secs(30);
/// The port of the control plane in a network namespace of its own.
pub(super) const CONTROL_PORT: u16 = 7447;
/// The ports that the control plane may use at loopback.
const PORTS: Range<u16> = 30_000..32_000;
const MIB: u64 = 1 << 20;

/// Whether the two hosts are network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Namespaces if they can be made, otherwise loopback.
    Auto,
    /// Namespaces. The benchmark fails if they cannot be made.
    Yes,
    /// Loopback.
    No,
}

/// A program that a member of the crew executes in its own process, so that it ends with the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    pub netns: Option<PathBuf>,
    pub path: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Program {
    pub fn become_it(&self) -> anyhow::Result<()> {
        enter(self.netns.as_deref())?;
        let errors = std::io::stderr().as_fd().try_clone_to_owned()?;
        let error = Command::new(&self.path)
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(errors)
            .exec();
        Err(error).with_context(|| format!("'{}' cannot be run", self.path.display()))
    }
}

/// Moves this process into a network namespace. Call it before the process starts threads: they would stay behind.
pub fn enter(netns: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = netns else { return Ok(()) };
    let file = std::fs::File::open(path)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .context("the network namespace cannot be entered")
}

/// One of the two hosts, running.
#[allow(missing_docs)] // the names say it
pub struct Host {
    pub config: Config,
    pub address: IpAddr,
    pub netns: Option<PathBuf>,
    /// Process ids of the host's daemon and of its links.
    pub(crate) daemon: u32,
    pub(crate) links: u32,
}

/// A host's certificate and key, and the certificate of the authority that signed both hosts': PEM files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Certificates {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Both hosts and the connection between them. Dropping it ends their processes.
pub struct Hosts {
    /// The host that publishes.
    pub a: Host,
    /// The host that subscribes.
    pub b: Host,
    /// Whether a cable joins the hosts. Otherwise they are at loopback.
    pub(crate) cable: bool,
    /// Why there is no cable.
    pub(crate) why: Option<String>,
    pub(crate) certificates: Option<[Certificates; 2]>,
    crew: Crew,
    /// A temporary folder, removed at the end.
    pub folder: TempDir,
}

/// Returns the user's configuration, changed for a daemon of the benchmark at this socket.
pub(super) fn bench_config(user: &Config, socket: PathBuf) -> Config {
    let mut config = Config {
        realm: "bench".to_owned(),
        socket: Some(socket),
        idle_exit_ms: 0,
        autostart: false,
        access: Vec::new(),
        log: "error".to_owned(),
        ..user.clone()
    };
    config.cuda.mps = false;
    config
}

/// How the hosts reach each other: values for both, by host.
struct Network {
    addresses: [IpAddr; 2],
    ports: [u16; 2],
    certificates: Option<[Certificates; 2]>,
}

impl Network {
    /// The configuration of one of the hosts.
    fn config(&self, user: &Config, wanted: &Wanted, folder: &Path, at: usize) -> Config {
        let mut config = bench_config(user, folder.join(["a.sock", "b.sock"][at]));
        let protocol = if wanted.tls { "tls" } else { "tcp" };
        let endpoint = |at: usize| format!("{protocol}/{}:{}", self.addresses[at], self.ports[at]);
        let links = &mut config.links;
        links.host = Some(["bench-a", "bench-b"][at].to_owned());
        links.listen = Some((self.addresses[at], 0).into());
        links.control = vec![endpoint(at)];
        links.connect = vec![endpoint(1 - at)];
        links.insecure = !wanted.tls;
        links.lanes = wanted.lanes;
        links.trusted_fabric = wanted.rdma;
        links.rdma = match wanted.rdma {
            true => Rdma::Only,
            false => Rdma::Off,
        };
        links.outage_max = ByteSize(wanted.held);
        links.landing_max = ByteSize(wanted.held);
        links.in_flight_max = ByteSize(wanted.size.max(256 * MIB));
        if let Some(both) = &self.certificates {
            links.tls.ca = Some(both[at].ca.clone());
            links.tls.certificate = Some(both[at].certificate.clone());
            links.tls.key = Some(both[at].key.clone());
        }
        config
    }
}

const NOT_SHARED: &str = "cards with RDMA are not shared with network namespaces";

/// Options of the links between both hosts.
pub(crate) struct Wanted {
    /// Bytes of a message.
    pub size: u64,
    /// Bytes that the links may retain on the sending host, and hold in landing memory on the other.
    pub held: u64,
    pub lanes: u32,
    pub tls: bool,
    pub rdma: bool,
    pub namespaces: Namespaces,
}

pub(super) struct Start<'a> {
    pub(super) crew: Crew,
    pub(super) board: &'a Board,
}

impl Start<'_> {
    fn start(&mut self, program: Program, config: &Config) -> anyhow::Result<u32> {
        let orders = Orders {
            member: 0,
            geometry: geometry(),
            config: config.clone(),
            topic: String::new(),
            job: Job::Become(program),
        };
        self.crew.add(&orders, self.board)?;
        Ok(self.crew.last_pid())
    }
}

pub(super) fn geometry() -> Geometry {
    Geometry {
        members: 1,
        samples: 1,
    }
}

impl Hosts {
    pub(crate) fn start(user: &Config, wanted: &Wanted) -> anyhow::Result<Hosts> {
        let folder = tempfile::Builder::new().prefix("rgaps-bench-").tempdir();
        let folder = folder.context("no temporary folder can be made; set TMPDIR")?;
        let board = Board::create(geometry())?;
        let crew = Crew::default();
        let mut start = Start {
            crew,
            board: &board,
        };
        let (netns, why) = match wanted.namespaces {
            Namespaces::No => (None, Some("as asked".to_owned())),
            Namespaces::Yes if wanted.rdma => bail!("{NOT_SHARED}"),
            Namespaces::Auto if wanted.rdma => (None, Some(NOT_SHARED.to_owned())),
            may => match lay_cable(&mut start, user) {
                Ok(both) => (Some(both), None),
                Err(error) if may == Namespaces::Auto => (None, Some(format!("{error:#}"))),
                Err(error) => return Err(error.context("network namespaces cannot be made")),
            },
        };
        let addresses: [IpAddr; 2] = match netns {
            Some(_) => [[10, 213, 79, 1].into(), [10, 213, 79, 2].into()],
            None => [[127, 0, 0, 1].into(), [127, 0, 0, 2].into()],
        };
        let certificates = wanted
            .tls
            .then(|| certificates(folder.path(), addresses))
            .transpose()?;
        let ports = match netns {
            Some(_) => [CONTROL_PORT; 2],
            None => free_ports(addresses)?,
        };
        let network = Network {
            addresses,
            ports,
            certificates,
        };
        let mut hosts = Vec::new();
        for at in 0..2 {
            let config = network.config(user, wanted, folder.path(), at);
            hosts.push(start.host(config, addresses[at], netns.as_ref().map(|n| n[at].clone()))?);
        }
        let b = hosts.pop().context("two hosts")?;
        let a = hosts.pop().context("two hosts")?;
        let mut hosts = Hosts {
            a,
            b,
            cable: netns.is_some(),
            why,
            certificates: network.certificates,
            crew: start.crew,
            folder,
        };
        hosts.wait_for_links()?;
        Ok(hosts)
    }

    fn wait_for_links(&mut self) -> anyhow::Result<()> {
        for config in [self.a.config.clone(), self.b.config.clone()] {
            let node = node(&config, "rgaps-bench-peers")?;
            until(&mut self.crew, "the hosts to be linked", || {
                let peers = node.peers().unwrap_or_default().peers;
                peers.iter().any(|peer| peer.state == PeerState::Linked)
            })?;
        }
        Ok(())
    }
}

impl Start<'_> {
    pub(super) fn host(
        &mut self,
        config: Config,
        address: IpAddr,
        netns: Option<PathBuf>,
    ) -> anyhow::Result<Host> {
        // Variables of the environment override a configuration file, but not an inline configuration.
        let inline = toml::to_string(&config).context("the configuration as TOML")?;
        let environment = vec![("RGAPSD_CONFIG".to_owned(), inline)];
        let program = |path: PathBuf, argument: &str| Program {
            netns: netns.clone(),
            path,
            arguments: vec![argument.to_owned()],
            environment: environment.clone(),
        };
        let daemon = self.start(program(find_daemon(&[])?, "--foreground"), &config)?;
        until(&mut self.crew, "a daemon", || {
            node(&config, "rgaps-bench-wait").is_ok()
        })?;
        let links = links_command(&config).map_err(anyhow::Error::msg)?;
        let links = self.start(
            program(links.get_program().into(), "--with-parent"),
            &config,
        )?;
        Ok(Host {
            config,
            address,
            netns,
            daemon,
            links,
        })
    }
}

fn node(config: &Config, name: &str) -> anyhow::Result<Node> {
    crate::stage::node(config, name)
}

pub(super) fn until(
    crew: &mut Crew,
    what: &str,
    mut so: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !so() {
        crew.check()?;
        anyhow::ensure!(begun.elapsed() < SOON, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Makes a network namespace that ends with the benchmark. Returns the id of a process in it, and the namespace's path.
pub(super) fn name_space(start: &mut Start<'_>, config: &Config) -> anyhow::Result<(u32, PathBuf)> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "only root can make them"
    );
    let own = std::fs::read_link("/proc/self/ns/net")?;
    let program = Program {
        netns: None,
        path: "unshare".into(),
        arguments: ["--net", "sleep", "86400"].map(str::to_owned).into(),
        environment: Vec::new(),
    };
    let pid = start.start(program, config)?;
    let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
    until(&mut start.crew, "a network namespace", || {
        std::fs::read_link(&path).is_ok_and(|is| is != own)
    })?;
    Ok((pid, path))
}

/// Makes two network namespaces with a cable between them, and returns their paths.
fn lay_cable(start: &mut Start<'_>, config: &Config) -> anyhow::Result<[PathBuf; 2]> {
    let (first, second) = (name_space(start, config)?, name_space(start, config)?);
    let (pids, paths) = ([first.0, second.0], [first.1, second.1]);
    let ends = ["a", "b"].map(|end| format!("rgb{}{end}", std::process::id()));
    let [first, second] = [pids[0], pids[1]].map(|pid| pid.to_string());
    run(
        "ip",
        &[
            "link", "add", &ends[0], "netns", &first, "type", "veth", "peer", "name", &ends[1],
            "netns", &second,
        ],
    )?;
    for at in 0..2 {
        let inside = |arguments: &[&str]| {
            let path = format!("--net={}", paths[at].display());
            run("nsenter", &[&[path.as_str(), "ip"], arguments].concat())
        };
        let address = format!("10.213.79.{}/24", at + 1);
        inside(&["addr", "add", &address, "dev", &ends[at]])?;
        inside(&["link", "set", "lo", "up"])?;
        inside(&["link", "set", &ends[at], "up"])?;
    }
    Ok(paths)
}

pub(super) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("the program '{program}' cannot be run"))?;
    if !output.status.success() {
        bail!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Returns a free port for each host, below the kernel's default range of ephemeral ports: nobody gets such a port by
/// chance before the host's process binds it.
fn free_ports(addresses: [IpAddr; 2]) -> anyhow::Result<[u16; 2]> {
    let first = std::process::id() as usize * 2;
    let mut ports = PORTS.cycle().skip(first % PORTS.len()).take(PORTS.len());
    let mut free = |address| {
        let found = ports.find(|port| TcpListener::bind((address, *port)).is_ok());
        found.context("no port is free")
    };
    Ok([free(addresses[0])?, free(addresses[1])?])
}

fn certificates(folder: &Path, addresses: [IpAddr; 2]) -> anyhow::Result<[Certificates; 2]> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, authority.pem())?;
    let host = |name: &str, address: IpAddr| -> anyhow::Result<Certificates> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new([name.to_owned(), address.to_string()])?;
        let signed = params.signed_by(&key, &authority)?;
        let files = Certificates {
            ca: ca.clone(),
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
        };
        std::fs::write(&files.certificate, signed.pem())?;
        std::fs::write(&files.key, key.serialize_pem())?;
        Ok(files)
    };
    Ok([
        host("bench-a", addresses[0])?,
        host("bench-b", addresses[1])?,
    ])
}

/// CPU time of a process in nanoseconds, summed over the threads that it has now; 0 if there is no such process.
pub(crate) fn cpu_ns(pid: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Bytes sent so far in the network namespace of a process: over its cable, or over loopback, which counts both
/// directions.
pub(crate) fn sent_bytes(pid: u32, cable: bool) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| (name.trim() == "lo") != cable)
        .filter_map(|(_, counts)| counts.split_whitespace().nth(8)?.parse::<u64>().ok())
        .sum()
}
